package launch

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Lines come out whole and unchanged however the input is cut.
func FuzzLines(f *testing.F) {
	f.Add("one\ntwo\n\nthree", uint8(3))
	f.Add("", uint8(1))
	f.Add("\n\n", uint8(200))
	f.Fuzz(func(t *testing.T, text string, cut uint8) {
		var got bytes.Buffer
		l := &lineWriter{to: &got, mu: new(sync.Mutex), prefix: []byte("[7] "), line: []byte("[7] ")}
		for rest := text; rest != ""; {
			n := min(int(cut)+1, len(rest))
			if _, err := l.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		l.Flush()
		var want strings.Builder
		for line := range strings.Lines(text) {
			want.WriteString("[7] " + strings.TrimSuffix(line, "\n") + "\n")
		}
		if got.String() != want.String() {
			t.Errorf("got %q, want %q", got.String(), want.String())
		}
	})
}

func TestVeryLongLinesComeInPieces(t *testing.T) {
	var got bytes.Buffer
	l := &lineWriter{to: &got, mu: new(sync.Mutex), prefix: []byte("> "), line: []byte("> ")}
	text := strings.Repeat("y", 5*maxLine/2)
	for rest := text; rest != ""; rest = rest[min(len(rest), 4099):] {
		l.Write([]byte(rest[:min(len(rest), 4099)]))
	}
	l.Flush()
	lines := strings.Split(strings.TrimSuffix(got.String(), "\n"), "\n")
	if len(lines) != 3 || len(lines[0]) != maxLine+2 || strings.Count(got.String(), "y") != len(text) {
		t.Errorf("%d pieces, the first of %d bytes", len(lines), len(lines[0]))
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	l := newTail()
	for i := range 1000 {
		l.Write([]byte(strings.Repeat("z", i%50) + "\n"))
	}
	l.Write([]byte("end"))
	got := l.lines()
	if len(got) != tailLines || got[tailLines-1] != "end" || got[tailLines-2] != strings.Repeat("z", 49) {
		t.Errorf("%q", got)
	}
	if len(l.buf) > tailBytes {
		t.Errorf("%d bytes kept", len(l.buf))
	}
}

// A quoted word is the same word to a shell.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a b", "it's", `\`, "$(id)", "a\nb", "'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(s, "\x00") {
			t.Skip("no argument holds a zero byte")
		}
		got, err := exec.Command("sh", "-c", "printf %s "+quote(s)).Output()
		if err != nil || string(got) != s {
			t.Errorf("%q became %q, %v", s, got, err)
		}
	})
}
