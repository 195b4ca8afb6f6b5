// Package hostlist reads and writes the short form of many names that Slurm,
// pdsh and their users type: "n[0-127]", "srv[1101-1108,1201-1208]",
// "rack[1-4]n[01-16]-ib".
package hostlist

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of one list. They are far above every cluster there is, and keep a
// slip of the finger such as n[0-99999999] from filling the memory.
const (
	MaxNames = 1 << 20 // names in one expanded list
	MaxBytes = 1 << 26 // bytes of all those names together
)

// piece is a part of a pattern: literal text, or the alternatives of a bracket.
type piece struct {
	text   string
	ranges []span
}

// span is lo to hi, written with at least width digits. A span of one keeps its
// digits in text, so that a number of any length can stand alone.
type span struct {
	lo, hi uint64
	width  int
	text   string
}

func (s span) count() uint64 { return s.hi - s.lo + 1 }

// Expand lists the names that a hostlist stands for, in the order written: a
// later bracket turns faster than an earlier one. Repeated names are kept, for
// the caller to refuse or to drop. An empty list is an error.
func Expand(s string) ([]string, error) {
	var names []string
	bytes := 0
	for rest, more := s, true; more; {
		var item string
		item, rest, more = cutItem(rest)
		pieces, err := parse(strings.TrimSpace(item), s)
		if err != nil {
			return nil, err
		}
		count, longest := uint64(1), 0
		for _, p := range pieces {
			longest += len(p.text)
			if p.ranges == nil {
				continue
			}
			sum, wide := uint64(0), 0
			for _, r := range p.ranges {
				sum += r.count()
				wide = max(wide, r.width, len(r.text), 20)
			}
			longest += wide
			if sum > MaxNames || count*sum > MaxNames {
				return nil, fmt.Errorf("hostlist %q stands for more than %d names; write a smaller range", clip(s), MaxNames)
			}
			count *= sum
		}
		if uint64(len(names))+count > MaxNames {
			return nil, fmt.Errorf("hostlist %q stands for more than %d names; write a smaller range", clip(s), MaxNames)
		}
		if bytes += int(count) * longest; bytes > MaxBytes {
			return nil, fmt.Errorf("the names of hostlist %q take more than %d bytes; write shorter names", clip(s), MaxBytes)
		}
		names = unfold(names, "", pieces)
	}
	return names, nil
}

// unfold appends every name that starts with prefix and goes on with the pieces.
func unfold(names []string, prefix string, pieces []piece) []string {
	if len(pieces) == 0 {
		return append(names, prefix)
	}
	p := pieces[0]
	if p.ranges == nil {
		return unfold(names, prefix+p.text, pieces[1:])
	}
	for _, r := range p.ranges {
		if r.text != "" {
			names = unfold(names, prefix+r.text, pieces[1:])
			continue
		}
		for v := r.lo; v <= r.hi; v++ {
			names = unfold(names, prefix+pad(v, r.width), pieces[1:])
		}
	}
	return names
}

func pad(v uint64, width int) string {
	digits := strconv.FormatUint(v, 10)
	if len(digits) < width {
		digits = strings.Repeat("0", width-len(digits)) + digits
	}
	return digits
}

// cutItem cuts at the first comma outside brackets.
func cutItem(s string) (item, rest string, more bool) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return s, "", false
}

// parse cuts one item into pieces; whole is the list, for errors.
func parse(item, whole string) ([]piece, error) {
	if item == "" {
		return nil, fmt.Errorf("hostlist %q has an empty name; write names like n0 or n[0-7], separated by commas", clip(whole))
	}
	var pieces []piece
	for item != "" {
		open := strings.IndexByte(item, '[')
		text := item
		if open >= 0 {
			text = item[:open]
		}
		if i := strings.IndexFunc(text, bad); i >= 0 {
			return nil, fmt.Errorf("hostlist %q has %q in a name; names have no spaces, control characters or stray brackets",
				clip(whole), text[i:i+1])
		}
		if text != "" {
			pieces = append(pieces, piece{text: text})
		}
		if open < 0 {
			break
		}
		end := strings.IndexByte(item, ']')
		if end < open {
			return nil, fmt.Errorf("hostlist %q has a bracket that does not close", clip(whole))
		}
		p := piece{}
		for part := range strings.SplitSeq(item[open+1:end], ",") {
			r, err := parseSpan(strings.TrimSpace(part), whole)
			if err != nil {
				return nil, err
			}
			p.ranges = append(p.ranges, r)
		}
		pieces = append(pieces, p)
		item = item[end+1:]
	}
	return pieces, nil
}

func bad(r rune) bool { return r <= ' ' || r == ']' || r == 0x7f }

// parseSpan reads a number or a range. width keeps leading zeros: 08-10 is 08, 09, 10.
func parseSpan(s, whole string) (span, error) {
	lo, hi, ranged := strings.Cut(s, "-")
	if !digits(lo) || ranged && !digits(hi) {
		return span{}, fmt.Errorf("hostlist %q has %q in brackets; write numbers and ranges, as in [0-7,9]", clip(whole), clip(s))
	}
	if !ranged {
		return span{text: lo}, nil
	}
	a, errA := strconv.ParseUint(lo, 10, 63)
	b, errB := strconv.ParseUint(hi, 10, 63)
	if errA != nil || errB != nil || len(lo) > 20 {
		return span{}, fmt.Errorf("hostlist %q has the range %q, whose numbers are too long", clip(whole), clip(s))
	}
	if a > b {
		return span{}, fmt.Errorf("hostlist %q has the range %q, which runs backwards; write %s-%s", clip(whole), s, hi, lo)
	}
	return span{lo: a, hi: b, width: len(lo)}, nil
}

func digits(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }) < 0
}

func clip(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

// Compress writes names as a hostlist that Expand reads back in the same order.
// Neighbours that differ in one number share a bracket; nothing is sorted and
// nothing dropped. The names must be such as Expand gives: not empty, without
// spaces, commas and brackets.
func Compress(names []string) string { return compress(names, true) }

// Slurm is Compress for Slurm's own files: Slurm 22.05 reads no text behind a
// bracket (leaf[0-1]a), so such names stand alone.
func Slurm(names []string) string { return compress(names, false) }

// compress writes names as hostlists. Only neighbours in the list are joined, so the order is kept. suffixes says
// whether text may follow a bracket.
func compress(names []string, suffixes bool) string {
	var out strings.Builder
	for i := 0; i < len(names); {
		if i > 0 {
			out.WriteByte(',')
		}
		at := hole{}
		if i+1 < len(names) {
			at = differ(names[i], names[i+1])
		}
		if at.end == at.start || !suffixes && at.end < len(names[i]) {
			out.WriteString(names[i])
			i++
			continue
		}
		prefix, suffix := names[i][:at.start], names[i][at.end:]
		numbers := between(names[i:], prefix, suffix)
		out.WriteString(prefix)
		out.WriteByte('[')
		writeNumbers(&out, numbers)
		out.WriteByte(']')
		out.WriteString(suffix)
		i += len(numbers)
	}
	return out.String()
}

// between gives the numbers between prefix and suffix, up to the first name that is not made so.
func between(names []string, prefix, suffix string) (numbers []string) {
	for _, n := range names {
		if len(n) < len(prefix)+len(suffix)+1 || !strings.HasPrefix(n, prefix) || !strings.HasSuffix(n, suffix) {
			break
		}
		middle := n[len(prefix) : len(n)-len(suffix)]
		if !digits(middle) {
			break
		}
		numbers = append(numbers, middle)
	}
	return numbers
}

// hole is where the one differing number of a name starts and ends.
type hole struct{ start, end int }

// differ finds the number of a in which alone b differs; an empty hole if there is none.
func differ(a, b string) hole {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	start := i
	for start > 0 && isDigit(a[start-1]) {
		start--
	}
	end, endB := digitsEnd(a, start), digitsEnd(b, start)
	if end == start || endB == start || a == b || a[end:] != b[endB:] {
		return hole{}
	}
	return hole{start, end}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func digitsEnd(s string, i int) int {
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return i
}

// writeNumbers writes numbers as spans wherever one follows the other.
func writeNumbers(out *strings.Builder, numbers []string) {
	for i := 0; i < len(numbers); {
		end := i + 1
		if lo, err := strconv.ParseUint(numbers[i], 10, 62); err == nil && len(numbers[i]) <= 20 {
			for v := lo + 1; end < len(numbers) && numbers[end] == pad(v, len(numbers[i])); v++ {
				end++
			}
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(numbers[i])
		if end > i+1 {
			out.WriteByte('-')
			out.WriteString(numbers[end-1])
		}
		i = end
	}
}
