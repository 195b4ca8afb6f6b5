package svg

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func document(t testing.TB, name string) []byte {
	t.Helper()
	var c Canvas
	c.Group(name, Class(name), Data("n", 3))
	c.Rect(Box{1, 2, 3, 4}, 2, name)
	c.Line(0, 0, 1, 1, name, Stroke(1.5))
	c.Path((&Pen{}).Move(0, 0).To(1, 1).Curve(1, 2, 3, 4, 5, 6).Close(), name)
	c.Circle(1, 1, 1, "")
	c.Text(5, 5, Middle, Font{Size: 12}, name)
	c.End()
	var out bytes.Buffer
	if err := c.WriteTo(&out, 100, 50, "k", name, ".k{fill:red}"); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// texts decodes a document and gives all character data.
func texts(t testing.TB, doc []byte) string {
	t.Helper()
	var all strings.Builder
	d := xml.NewDecoder(bytes.NewReader(doc))
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatalf("%v in %q", err, doc)
		}
		if text, ok := tok.(xml.CharData); ok {
			all.Write(text)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", `<a href="x">&'`: "&lt;a href=&quot;x&quot;&gt;&amp;&#39;", "a\x00b\x1b": "a\uFFFDb\uFFFD",
		"\xff": "\uFFFD", "é…": "é…", "a\nb\tc": "a&#10;b\tc", "\uFFFE": "\uFFFD",
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "leaf0", "</svg>", "]]>", "\x00\xff", "&amp;", "a\nb", "\u2028\u202e", "\r"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		doc := document(t, s)
		if strings.Count(string(doc), "</svg>") != 1 {
			t.Fatalf("%q closed the document", s)
		}
		texts(t, doc)
	})
}

func TestTextSurvives(t *testing.T) {
	const name = `leaf<0> & "co" 'x' …`
	if got := strings.Count(texts(t, document(t, name)), name); got != 5 {
		t.Errorf("the name is read back %d times of 5", got)
	}
}

func TestNumber(t *testing.T) {
	for in, want := range map[float64]string{0: "0", 1: "1", 1.005: "1", 1.25: "1.25", -0.001: "0", 1e7: "10000000", -3.456: "-3.46",
		math.Inf(1): "0", math.NaN(): "0", 1.0 / 3: "0.33"} {
		if got := Number(in); got != want {
			t.Errorf("Number(%v) = %q, want %q", in, got, want)
		}
	}
}

// TestWidth adds up the advances of the letters of one word.
func TestWidth(t *testing.T) {
	f := Font{Size: 1000}
	if got := f.Width("leaf0"); got != 278+615+613+352+636 {
		t.Errorf("leaf0 is %v", got)
	}
	if bold := (Font{Size: 1000, Bold: true}); bold.Width("leaf0") <= f.Width("leaf0") {
		t.Error("bold is not wider")
	}
}

func FuzzFit(f *testing.F) {
	f.Add("leaf0-31  QM9700", 40.0)
	f.Add("名前 名前", 10.0)
	f.Add("", 0.0)
	f.Fuzz(func(t *testing.T, s string, width float64) {
		if !(width >= 0 && width < 1e4) {
			return
		}
		font := Font{Size: 12}
		if got := font.Fit(s, width); font.Width(got) > width {
			t.Fatalf("Fit(%q, %v) = %q is %v wide", s, width, got, font.Width(got))
		}
		for _, line := range font.Wrap(s, width) {
			if font.Width(line) > width {
				t.Fatalf("Wrap(%q, %v) has line %q of %v", s, width, line, font.Width(line))
			}
		}
	})
}

// TestWrapKeepsWords checks that wrapping loses no word that fits.
func TestWrapKeepsWords(t *testing.T) {
	const text = "1,024 × NDR 400 Gb/s (50 GB/s) each way; 51.2 TB/s in all"
	f := Font{Size: 11}
	lines := f.Wrap(text, 120)
	if got := strings.Join(lines, " "); got != text || len(lines) < 3 {
		t.Errorf("%q", lines)
	}
	if got := f.Fit("a-very-long-name-17", 60); !strings.HasSuffix(got, "7") || !strings.Contains(got, "…") {
		t.Errorf("the number at the end is lost: %q", got)
	}
}

func TestBox(t *testing.T) {
	a := Box{0, 0, 10, 10}
	for _, c := range []struct {
		b    Box
		over bool
	}{{Box{10, 0, 5, 5}, false}, {Box{9, 9, 5, 5}, true}, {Box{2, 2, 1, 1}, true}, {Box{0, 11, 5, 5}, false}} {
		if a.Overlaps(c.b) != c.over || c.b.Overlaps(a) != c.over {
			t.Errorf("%v and %v: %v", a, c.b, !c.over)
		}
	}
}

func TestGroupsMustClose(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an open group was written")
		}
	}()
	var c Canvas
	c.Group("")
	_ = c.WriteTo(io.Discard, 1, 1, "", "", "")
}
