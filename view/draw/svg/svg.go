// Package svg writes SVG documents: escaping, groups, shapes, text with its
// approximate extent, and numbers in one fixed form, so that the same calls
// give the same bytes on every machine.
//
// A Canvas remembers where every text lies. Layout code asks Width before it
// places a text, and tests ask Texts afterwards whether two of them overlap or
// one leaves the picture.
package svg

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Box is a rectangle, y growing downwards, in user units (CSS pixels).
type Box struct{ X, Y, W, H float64 }

// Right is the x of the right edge.
func (b Box) Right() float64 { return b.X + b.W }

// Bottom is the y of the bottom edge.
func (b Box) Bottom() float64 { return b.Y + b.H }

// Mid is the x of the centre.
func (b Box) Mid() float64 { return b.X + b.W/2 }

// Overlaps reports whether two boxes share more than a touching edge.
func (b Box) Overlaps(o Box) bool {
	const touch = 0.01
	return b.X+touch < o.Right() && o.X+touch < b.Right() && b.Y+touch < o.Bottom() && o.Y+touch < b.Bottom()
}

// Inside reports whether b lies within o.
func (b Box) Inside(o Box) bool {
	return b.X >= o.X && b.Y >= o.Y && b.Right() <= o.Right() && b.Bottom() <= o.Bottom()
}

// Label is a text that was written and the box it fills at most.
type Label struct {
	Text string
	Box  Box
}

// Attr is one attribute of an element; the value is escaped when written.
type Attr struct{ Name, Value string }

// Class is the class attribute, with its leading blank left to the writer.
func Class(names string) Attr { return Attr{"class", names} }

// Data is a data-* attribute holding a whole number.
func Data(name string, n int) Attr { return Attr{"data-" + name, strconv.Itoa(n)} }

// Stroke is the width of a line, as an attribute.
func Stroke(width float64) Attr { return Attr{"stroke-width", Number(width)} }

// Canvas collects the elements of one document. The zero value is ready.
type Canvas struct {
	body  bytes.Buffer
	texts []Label
	depth int
}

// Texts lists the texts written so far, in order.
func (c *Canvas) Texts() []Label { return c.texts }

// Number prints a coordinate with at most two decimals, and no trailing zeros.
func Number(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		v = 0
	}
	v = math.Round(v*100) / 100
	if v == 0 {
		return "0" // also for negative zero
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// Escape makes any bytes safe as text or attribute value: markup characters
// become entities; what XML forbids (control characters, broken UTF-8) becomes U+FFFD.
func Escape(s string) string {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] < utf8.RuneSelf && strings.IndexByte(`<>&"'`, s[i]) < 0
	}
	if plain {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '&':
			b.WriteString("&amp;")
		case r == '"':
			b.WriteString("&quot;")
		case r == '\'':
			b.WriteString("&#39;")
		case r == '\n':
			b.WriteString("&#10;")
		case r < ' ' && r != '\t', r == 0xFFFE, r == 0xFFFF, r >= 0x7F && r < 0xA0:
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(r) // a broken byte is ranged over as U+FFFD already
		}
	}
	return b.String()
}

// open begins a tag and leaves it open. Attributes without a name are left out, and values are escaped.
func (c *Canvas) open(name string, attrs []Attr) {
	c.body.WriteByte('<')
	c.body.WriteString(name)
	for _, a := range attrs {
		if a.Name == "" {
			continue
		}
		c.body.WriteByte(' ')
		c.body.WriteString(a.Name)
		c.body.WriteString(`="`)
		c.body.WriteString(Escape(a.Value))
		c.body.WriteByte('"')
	}
}

// leaf writes an element that holds nothing but, perhaps, a title shown on hover.
func (c *Canvas) leaf(name, title string, attrs []Attr) {
	c.open(name, attrs)
	if title == "" {
		c.body.WriteString("/>\n")
		return
	}
	c.body.WriteString("><title>" + Escape(title) + "</title></" + name + ">\n")
}

// Group opens a group; a title is shown while the pointer is over any part of
// it that has none of its own. Every Group is closed by an End.
func (c *Canvas) Group(title string, attrs ...Attr) {
	c.open("g", attrs)
	c.body.WriteByte('>')
	if title != "" {
		c.body.WriteString("<title>" + Escape(title) + "</title>")
	}
	c.body.WriteByte('\n')
	c.depth++
}

// End closes the innermost group.
func (c *Canvas) End() {
	if c.depth == 0 {
		panic("svg: End without Group")
	}
	c.depth--
	c.body.WriteString("</g>\n")
}

// Rect draws a rectangle with rounded corners of radius r.
func (c *Canvas) Rect(b Box, r float64, title string, attrs ...Attr) {
	at := []Attr{{"x", Number(b.X)}, {"y", Number(b.Y)}, {"width", Number(max(b.W, 0))}, {"height", Number(max(b.H, 0))}}
	if r > 0 {
		at = append(at, Attr{"rx", Number(r)})
	}
	c.leaf("rect", title, append(at, attrs...))
}

// Line draws a straight line.
func (c *Canvas) Line(x1, y1, x2, y2 float64, title string, attrs ...Attr) {
	c.leaf("line", title, append([]Attr{{"x1", Number(x1)}, {"y1", Number(y1)}, {"x2", Number(x2)}, {"y2", Number(y2)}}, attrs...))
}

// Circle draws a circle.
func (c *Canvas) Circle(x, y, r float64, title string, attrs ...Attr) {
	c.leaf("circle", title, append([]Attr{{"cx", Number(x)}, {"cy", Number(y)}, {"r", Number(r)}}, attrs...))
}

// Path draws a path made with Pen.
func (c *Canvas) Path(p *Pen, title string, attrs ...Attr) {
	c.leaf("path", title, append([]Attr{{"d", p.d.String()}}, attrs...))
}

// Pen builds path data.
type Pen struct{ d strings.Builder }

func (p *Pen) add(op byte, v ...float64) *Pen {
	p.d.WriteByte(op)
	for i, x := range v {
		if i > 0 {
			p.d.WriteByte(' ')
		}
		p.d.WriteString(Number(x))
	}
	return p
}

// Move starts at a point.
func (p *Pen) Move(x, y float64) *Pen { return p.add('M', x, y) }

// To draws a straight line to a point.
func (p *Pen) To(x, y float64) *Pen { return p.add('L', x, y) }

// Curve draws a cubic Bézier to x, y by way of two control points.
func (p *Pen) Curve(x1, y1, x2, y2, x, y float64) *Pen { return p.add('C', x1, y1, x2, y2, x, y) }

// Close draws back to where it started.
func (p *Pen) Close() *Pen { return p.add('Z') }

// Align says which point of a text lies at its x.
type Align uint8

// The alignments.
const (
	Start Align = iota
	Middle
	End
)

// Font is a size in pixels and a weight. The family is the style sheet's.
type Font struct {
	Size float64
	Bold bool
}

// Height is from the top of the highest letter to the bottom of the lowest:
// ascent 0.93 em plus descent 0.24 em in DejaVu Sans, rounded up.
func (f Font) Height() float64 { return f.Size * 1.2 }

// Text writes one line; y is the top of its box. It returns the box.
func (c *Canvas) Text(x, y float64, align Align, f Font, text string, attrs ...Attr) Box {
	w := f.Width(text)
	b := Box{x, y, w, f.Height()}
	anchor := ""
	switch align {
	case Middle:
		b.X, anchor = x-w/2, "middle"
	case End:
		b.X, anchor = x-w, "end"
	}
	if text == "" {
		return b
	}
	c.texts = append(c.texts, Label{text, b})
	at := []Attr{{"x", Number(x)}, {"y", Number(y + 0.94*f.Size)}, {"font-size", Number(f.Size)}}
	if anchor != "" {
		at = append(at, Attr{"text-anchor", anchor})
	}
	if f.Bold {
		at = append(at, Attr{"font-weight", "bold"})
	}
	c.open("text", append(at, attrs...))
	c.body.WriteString(">" + Escape(text) + "</text>\n")
	return b
}

// WriteTo writes the whole document: a root element of the given size and
// class, a title for readers that speak, a style sheet, and the body.
func (c *Canvas) WriteTo(w io.Writer, width, height float64, class, title, style string) error {
	if c.depth != 0 {
		panic(fmt.Sprintf("svg: %d groups left open", c.depth))
	}
	var head bytes.Buffer
	fmt.Fprintf(&head,
		`<svg xmlns="http://www.w3.org/2000/svg" class="%s" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-label="%s">`+"\n",
		Escape(class), Number(width), Number(height), Number(width), Number(height), Escape(title))
	if style != "" {
		head.WriteString("<style>" + Escape(style) + "</style>\n")
	}
	for _, part := range [][]byte{head.Bytes(), c.body.Bytes(), []byte("</svg>\n")} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	return nil
}
