package launch

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// newLines is a writer of rank 7 and where its lines go.
func newLines(prefix string) (*lineWriter, *bytes.Buffer) {
	var got bytes.Buffer
	return Lines(&got, new(Screen), func() string { return prefix }).(*lineWriter), &got
}

// Lines come out whole and unchanged however the input is cut: a prefix stands before
// each, and before what follows a carriage return.
func FuzzLines(f *testing.F) {
	f.Add("one\ntwo\n\nthree", uint8(3))
	f.Add("", uint8(1))
	f.Add("\n\n", uint8(200))
	f.Add("\r10%\r20%\r\nend", uint8(2))
	f.Fuzz(func(t *testing.T, text string, cut uint8) {
		l, got := newLines("[7] ")
		for rest := text; rest != ""; {
			n := min(int(cut)+1, len(rest))
			if _, err := l.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		l.Flush()
		if strings.Contains(text, "[7] ") {
			return
		}
		var want strings.Builder
		for line := range strings.Lines(text) {
			line = strings.TrimSuffix(line, "\n")
			if strings.Contains(strings.TrimSuffix(line, "\r"), "\r") {
				if back := strings.ReplaceAll(got.String(), "[7] ", ""); back != text && back != text+"\n" {
					t.Errorf("%q without prefixes is %q", text, back)
				}
				return
			}
			want.WriteString("[7] " + line + "\n")
		}
		if got.String() != want.String() {
			t.Errorf("got %q, want %q", got.String(), want.String())
		}
	})
}

// A progress bar shows at once, whoever else prints, and lines are never mixed.
func TestProgressShowsAtOnce(t *testing.T) {
	var got bytes.Buffer
	var screen Screen
	bar := Lines(&got, &screen, func() string { return "[0] " })
	other := Lines(&got, &screen, func() string { return "[1] " })
	for _, step := range []struct {
		to         io.Writer
		text, want string
	}{
		{bar, "held back", ""},
		{bar, "\r10%", "[0] held back\r[0] 10%"},
		{bar, "\r20%", "\r[0] 20%"},
		{other, "loss 3", ""},
		{other, ".5\n", "\n[1] loss 3.5\n"},
		{bar, " of all", "[0]  of all"},
		{bar, "\r100%\r", "\r[0] 100%"},
		{bar, "\n", "\r\n"},
		{bar, "done\n", "[0] done\n"},
	} {
		got.Reset()
		if _, err := step.to.Write([]byte(step.text)); err != nil || got.String() != step.want {
			t.Errorf("%q gave %q, %v; want %q", step.text, got.String(), err, step.want)
		}
	}
}

func TestVeryLongLinesComeInPieces(t *testing.T) {
	l, got := newLines("> ")
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
		got, err := bounded.Command(t, "sh", "-c", "printf %s "+quote(s)).Output()
		if err != nil || string(got) != s {
			t.Errorf("%q became %q, %v", s, got, err)
		}
	})
}

// FuzzRemote: a template that is accepted gives a command line for any host, with the host in it.
func FuzzRemote(f *testing.F) {
	for _, s := range []string{"ssh {host} {command}", "ip netns exec {host}", "{command} {host}", "{host}", "env ON={host} sh -c {command}",
		"sudo {command} {host}", " "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRemote(text)
		if err != nil {
			return
		}
		args, _, _ := r.wrap("h7", []string{"true"}, []string{"RANK=1"}, "token")
		if !strings.Contains(strings.Join(args, " "), "h7") {
			t.Errorf("%q: %q does not name the host", text, args)
		}
	})
}
