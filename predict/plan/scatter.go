package plan

import (
	"fmt"
	"io"
	"math"

	"github.com/weft-fabric/weft/view/draw/svg"
)

// Spot is a layout in the scatter of times and memory.
type Spot struct {
	Layout    string
	Step      float64 // seconds
	Peak, USD float64 // bytes of a GPU, dollars a step
	Front     bool    // no other layout is better in both
}

const scatterStyle = `
.weft-scatter{--bg:#ffffff;--ink:#1b1f24;--line:#d0d7de;--dot:#56b4e9;--front:#0072b2;--best:#d55e00;background:var(--bg);font-family:Helvetica Neue,Arial,DejaVu Sans,Liberation Sans,sans-serif}
@media (prefers-color-scheme:dark){.weft-scatter{--bg:#0d1117;--ink:#e6edf3;--line:#30363d;--dot:#7cc8f2;--front:#4aa3df;--best:#f0793a}}
.weft-scatter text{fill:var(--ink)}.weft-scatter .axis{stroke:var(--line)}.weft-scatter .dot{fill:var(--dot)}.weft-scatter .front{fill:var(--front)}.weft-scatter .best{fill:var(--best)}.weft-scatter .error{stroke:var(--best)}
`

// axis maps values to places and says where ticks are.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 { return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from) }

// ticks are round values, about five.
func (a axis) ticks() (out []float64) {
	unit := math.Pow(10, math.Floor(math.Log10((a.high-a.low)/2)))
	for (a.high-a.low)/unit > 6 {
		unit *= 2
	}
	for v := math.Ceil(a.low/unit) * unit; v <= a.high; v += unit {
		out = append(out, v)
	}
	return out
}

// WriteScatter draws layouts by the time of a step and the memory of a GPU; the area of a spot is its dollars. The answer has the
// bars of its 90% intervals.
func (c *Cost) WriteScatter(w io.Writer, spots []Spot) error {
	const width, height, left, top = 760.0, 340.0, 70.0, 16.0
	low, high := c.Interval.orElse(c.Step)
	x := axis{low, high, left, width - 20}
	y := axis{0, c.Capacity / 1e9 * 1.05, height - 40, top}
	most := c.USDPerStep
	for _, s := range spots {
		x.low, x.high = min(x.low, s.Step), max(x.high, s.Step)
		y.high, most = max(y.high, s.Peak/1e9*1.05), max(most, s.USD)
	}
	x.low, x.high = x.low*.97, x.high*1.03
	var doc svg.Canvas
	font := svg.Font{Size: 11}
	for _, v := range x.ticks() {
		doc.Line(x.at(v), top, x.at(v), y.from, "", svg.Class("axis"))
		doc.Text(x.at(v), y.from+6, svg.Middle, font, readable(v)+" s")
	}
	for _, v := range y.ticks() {
		doc.Line(left, y.at(v), x.to, y.at(v), "", svg.Class("axis"))
		doc.Text(left-6, y.at(v)-7, svg.End, font, readable(v)+" GB")
	}
	limit := y.at(c.Capacity / 1e9)
	doc.Line(left, limit, x.to, limit, "a GPU's memory", svg.Class("error"), svg.Attr{Name: "stroke-dasharray", Value: "4 4"})
	size := func(usd float64) float64 {
		if most <= 0 {
			return 4
		}
		return 3 + 5*math.Sqrt(usd/most)
	}
	for _, s := range spots {
		class := "dot"
		if s.Front {
			class = "front"
		}
		doc.Circle(x.at(s.Step), y.at(s.Peak/1e9), size(s.USD),
			fmt.Sprintf("%s s, %.1f GB, %s a step: %s", readable(s.Step), s.Peak/1e9, dollars(s.USD), s.Layout), svg.Class(class))
	}
	mid := y.at(c.Peak / 1e9)
	doc.Line(x.at(low), mid, x.at(high), mid, fmt.Sprintf("90%% interval %s to %s s", readable(low), readable(high)), svg.Class("error"),
		svg.Stroke(2))
	if i := c.MemoryInterval; i != nil {
		doc.Line(x.at(c.Step), y.at(i.Low/1e9), x.at(c.Step), y.at(min(i.High/1e9, y.high)), i.String(), svg.Class("error"), svg.Stroke(2))
	}
	doc.Circle(x.at(c.Step), mid, size(c.USDPerStep),
		fmt.Sprintf("the answer: %s s, %.1f GB, %s a step", readable(c.Step), c.Peak/1e9, dollars(c.USDPerStep)), svg.Class("best"))
	return doc.WriteTo(w, width, height, "weft-scatter", "layouts by step time and memory", scatterStyle)
}

// orElse is the interval's ends, or the value itself where there is none.
func (i *Interval) orElse(step float64) (low, high float64) {
	if i == nil {
		return step, step
	}
	return i.Low, i.High
}
