package read

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/observe/doctor/read/internal/regexp"
)

// maxLine is how much of a line is kept. NCCL's lines are at most 1023 bytes up to
// 2.28 and a few KiB after; a longer line is cut, and the rest of it is skipped.
const maxLine = 16 << 10

// lines reads a stream line by line in bounded memory.
type lines struct {
	r    *bufio.Reader
	n    int // of the line that was read last
	long int // lines that were cut
	err  error
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, 64<<10)} }

// next gives the next line without its end; ok is false at the end. The slice is
// valid until the next call.
func (l *lines) next() (line []byte, ok bool) {
	if l.err != nil {
		return nil, false
	}
	b, err := l.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		b = append([]byte(nil), b[:maxLine]...)
		l.long++
		for err == bufio.ErrBufferFull {
			_, err = l.r.ReadSlice('\n')
		}
	} else if len(b) > maxLine {
		b = b[:maxLine]
		l.long++
	}
	if err != nil {
		l.err = err
		if len(b) == 0 {
			return nil, false
		}
	}
	l.n++
	b = bytes.TrimRight(b, "\r\n")
	if len(b) == 0 && err == nil { // of empty lines the first is enough
		ahead, _ := l.r.Peek(l.r.Buffered())
		k := len(ahead) - len(bytes.TrimLeft(ahead, "\n"))
		l.r.Discard(k)
		l.n += k
	}
	return b, true
}

var (
	ansi     = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	isoTime  = regexp.MustCompile(`(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)([.,]\d+)?(Z|[+-]\d\d:?\d\d)?`)
	abslTime = regexp.MustCompile(`(?:^|[\[\s])[EWIF](\d{1,2})(\d\d) (\d\d:\d\d:\d\d)(?:\.(\d+))?`)
	longTime = regexp.MustCompile(`\[?((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) +)?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d:\d\d:\d\d)(?:\.(\d+))?(?: (\d{4}))?`)
)

// hasClock says whether 12:34:56 is in a text, before slower looks.
func hasClock(s string) bool {
	for i := 2; i+5 < len(s); i++ {
		if s[i] == ':' && s[i+3] == ':' && isClock(s[i-2:i+6]) {
			return true
		}
	}
	return false
}

// isClock looks only at the digits of 12:34:56; the colons are known.
func isClock(s string) bool {
	for _, i := range [...]int{0, 1, 3, 4, 6, 7} {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// isoClock reads the parts of isoTime: date, time, fraction with its mark, and zone.
func isoClock(m []string) float64 {
	t, err := time.Parse("2006-01-02 15:04:05", m[1]+" "+m[2])
	if err != nil {
		return 0
	}
	sec := float64(t.Unix())
	if m[3] != "" {
		if f, err := strconv.ParseFloat("0."+m[3][1:], 64); err == nil {
			sec += f
		}
	}
	if z := strings.ReplaceAll(m[4], ":", ""); len(z) == 5 {
		h, _ := strconv.Atoi(z[1:3])
		mi, _ := strconv.Atoi(z[3:5])
		off := float64(h*3600 + mi*60)
		if z[0] == '+' {
			off = -off
		}
		sec += off
	}
	return sec
}

// clock finds a time in the head of a line: seconds since 1970. Times without a
// zone are taken as they stand, since only differences on one host count.
func clock(s string) float64 {
	if !hasClock(s) {
		return 0
	}
	if m := isoTime.FindStringSubmatch(s); m != nil {
		return isoClock(m)
	}
	if m := abslTime.FindStringSubmatch(s); m != nil { // of c10 and absl: month, day, no year
		return yearless("2006 1 02 15:04:05", m[1]+" "+m[2]+" "+m[3], m[4])
	}
	if m := longTime.FindStringSubmatch(s); m != nil {
		year := m[6]
		if year == "" {
			year = "1972" // a leap year, for logs that leave it out
		}
		t, err := time.Parse("2006 Jan 2 15:04:05", year+" "+m[2]+" "+m[3]+" "+m[4])
		if err != nil {
			return 0
		}
		return float64(t.Unix())
	}
	return 0
}

// yearless reads a time of a log that leaves the year out: it is taken as a leap year.
func yearless(form, text, fraction string) float64 {
	t, err := time.Parse(form, "1972 "+text)
	if err != nil {
		return 0
	}
	f, _ := strconv.ParseFloat("0."+fraction, 64)
	return float64(t.Unix()) + f
}
