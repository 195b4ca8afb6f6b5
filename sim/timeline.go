package sim

import (
	"fmt"
	"io"

	"github.com/weft-fabric/weft/draw/svg"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/unit"
)

// timelineStyle colours the timeline with the colours of Okabe and Ito (2008).
const timelineStyle = `
.weft-sim{--bg:#ffffff;--ink:#1b1f24;--dim:#57606a;--faint:#d0d7de;--gap:#f0f2f4;--send:#0072b2;--reduce:#d55e00;--pass:#56b4e9;--receive:#009e73;--local:#7a7a7a;--pay:#c8ced4;background:var(--bg);font-family:Helvetica Neue,Arial,DejaVu Sans,Liberation Sans,sans-serif}
@media (prefers-color-scheme:dark){.weft-sim{--bg:#0d1117;--ink:#e6edf3;--dim:#9aa5b1;--faint:#30363d;--gap:#1a2027;--send:#4aa3df;--reduce:#f0793a;--pass:#7cc8f2;--receive:#1fbf90;--local:#a8a8a8;--pay:#47505a}}
.weft-sim text{fill:var(--ink)}.weft-sim .dim{fill:var(--dim)}.weft-sim .rule{stroke:var(--faint)}.weft-sim .gap{fill:var(--gap)}
.weft-sim .send{fill:var(--send)}.weft-sim .reduce{fill:var(--reduce)}.weft-sim .pass{fill:var(--pass)}.weft-sim .receive{fill:var(--receive)}.weft-sim .local{fill:var(--local)}.weft-sim .pay{fill:var(--pay)}
`

// Sizes of the timeline, in pixels.
const (
	timelineWidth  = 1200
	timelineMargin = 20
	rowHeight      = 18
	gapWidth       = 110
)

// row is one channel of one rank.
type row struct {
	job     int
	rank    sched.Rank
	channel int32
}

// scale turns times into places: folded stretches have a fixed width, and what
// is left is shared out in proportion to time.
type scale struct {
	gaps       []Gap
	begin, end unit.Time
	left, per  float64 // pixels a picosecond
}

func newScale(gaps []Gap, begin, end unit.Time, left, width float64) *scale {
	s := &scale{gaps: gaps, begin: begin, end: end, left: left}
	shown := end - begin
	for _, g := range gaps {
		shown -= g.End - g.Begin
		width -= gapWidth
	}
	s.per = max(width, 100) / float64(max(shown, 1))
	return s
}

func (s *scale) x(t unit.Time) float64 {
	x, at := s.left, s.begin
	for _, g := range s.gaps {
		if t <= g.Begin {
			break
		}
		x += float64(g.Begin-at) * s.per
		if t < g.End {
			return x + gapWidth*float64(t-g.Begin)/float64(g.End-g.Begin)
		}
		x += gapWidth
		at = g.End
	}
	return x + float64(t-at)*s.per
}

// WriteTimeline draws a trace: a row for each channel of each traced rank, an
// action as a bar, the overhead before its first byte paler.
func (t *Trace) WriteTimeline(w io.Writer, title string, name func(job, rank int) string) error {
	var c svg.Canvas
	plain, bold := svg.Font{Size: 12}, svg.Font{Size: 15, Bold: true}
	var rows []row
	index := map[row]int{}
	begin, end := unit.Time(0), unit.Time(1)
	for i, s := range t.Spans {
		if i == 0 || s.Begin < begin {
			begin = s.Begin
		}
		end = max(end, s.End)
	}
	for r := range t.order() {
		index[r] = len(rows)
		rows = append(rows, r)
	}
	label := func(r row) string {
		return fmt.Sprintf("rank %d · %s · channel %d", r.rank, name(r.job, int(r.rank)), r.channel)
	}
	left := 0.0
	for _, r := range rows {
		left = max(left, plain.Width(label(r)))
	}
	left += timelineMargin + 12
	y := float64(timelineMargin)
	c.Text(timelineMargin, y, svg.Start, bold, bold.Fit(title, timelineWidth-2*timelineMargin))
	y += 30
	x := float64(timelineMargin)
	for _, k := range []struct{ class, text string }{
		{"pay", "overhead"}, {"send", "send"}, {"reduce", "receive, reduce and send"}, {"pass", "receive and send on"}, {"receive", "receive"}, {"local", "copy"},
	} {
		c.Rect(svg.Box{X: x, Y: y + 1, W: 12, H: 12}, 2, "", svg.Class(k.class))
		b := c.Text(x+17, y, svg.Start, plain, k.text, svg.Class("dim"))
		x = b.Right() + 20
	}
	y += 44
	top := y
	width := timelineWidth - timelineMargin - left
	var gaps []Gap
	for _, g := range t.Gaps {
		if g.Begin >= begin && g.End <= end {
			gaps = append(gaps, g)
		}
	}
	if float64(len(gaps))*gapWidth > width/2 { // too many to show each
		gaps = nil
	}
	s := newScale(gaps, begin, end, left, width)
	bottom := top + float64(len(rows))*rowHeight
	last := 0.0
	tick := func(at unit.Time) {
		x := s.x(at)
		text := (at - begin).String()
		half := plain.Width(text) / 2
		c.Line(x, top-4, x, bottom, "", svg.Class("rule"))
		if x-half < last+8 || x+half > timelineWidth-2 {
			return
		}
		c.Text(x, top-20, svg.Middle, plain, text, svg.Class("dim"))
		last = x + half
	}
	ticks := []unit.Time{begin}
	for _, g := range gaps {
		ticks = append(ticks, g.Begin, g.End)
	}
	if len(gaps) == 0 {
		for i := 1; i < 6; i++ {
			ticks = append(ticks, begin+(end-begin)*unit.Time(i)/6)
		}
	}
	for _, at := range append(ticks, end) {
		tick(at)
	}
	for i, r := range rows {
		c.Text(left-10, top+float64(i)*rowHeight+2, svg.End, plain, label(r))
	}
	for _, sp := range t.Spans {
		i := index[row{sp.Job, sp.Rank, sp.Channel}]
		at := top + float64(i)*rowHeight + 3
		hover := fmt.Sprintf("%s, %s, %s to %s", sp.Op, sp.Bytes, sp.Begin, sp.End)
		if sp.From >= 0 {
			hover += fmt.Sprintf(", from rank %d", sp.From)
		}
		if sp.To >= 0 {
			hover += fmt.Sprintf(", to rank %d", sp.To)
		}
		if sp.Flow > sp.Begin {
			c.Rect(svg.Box{X: s.x(sp.Begin), Y: at, W: s.x(sp.Flow) - s.x(sp.Begin), H: rowHeight - 6}, 0, "", svg.Class("pay"))
		}
		c.Rect(svg.Box{X: s.x(sp.Flow), Y: at, W: max(s.x(sp.End)-s.x(sp.Flow), 0.5), H: rowHeight - 6}, 0, hover, svg.Class(colour(sp)))
	}
	for _, g := range gaps {
		c.Rect(svg.Box{X: s.x(g.Begin), Y: top, W: gapWidth, H: bottom - top}, 0, fmt.Sprintf("%d rounds like the ones before, %s", g.Rounds, g.End-g.Begin), svg.Class("gap"))
		text := fmt.Sprintf("× %d", g.Rounds)
		c.Text(s.x(g.Begin)+gapWidth/2, (top+bottom)/2-7, svg.Middle, plain, plain.Fit(text, gapWidth-6), svg.Class("dim"))
	}
	y = bottom + 12
	if t.Cut {
		c.Text(timelineMargin, y, svg.Start, plain, fmt.Sprintf("The first %d actions of these ranks are shown.", len(t.Spans)), svg.Class("dim"))
		y += 20
	}
	return c.WriteTo(w, timelineWidth, y+timelineMargin, "weft-sim", title, timelineStyle)
}

// order lists the rows in order of job, rank and channel.
func (t *Trace) order() func(func(row) bool) {
	most := map[[2]int]int32{}
	jobs := 0
	for _, s := range t.Spans {
		k := [2]int{s.Job, int(s.Rank)}
		most[k] = max(most[k], s.Channel+1)
		jobs = max(jobs, s.Job+1)
	}
	return func(yield func(row) bool) {
		for j := range jobs {
			for i, r := range t.Ranks {
				if i > 0 && t.Ranks[i-1] == r {
					continue
				}
				for c := range most[[2]int{j, int(r)}] {
					if !yield(row{j, r, c}) {
						return
					}
				}
			}
		}
	}
}

func colour(s Span) string {
	switch {
	case s.From >= 0 && s.To >= 0 && s.Op.Reduces():
		return "reduce"
	case s.From >= 0 && s.To >= 0:
		return "pass"
	case s.To >= 0:
		return "send"
	case s.From >= 0:
		return "receive"
	}
	return "local"
}
