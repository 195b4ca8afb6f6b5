package sim

import (
	"fmt"
	"io"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/view/draw/svg"
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
	p := &timeline{c: &c, font: plain, index: map[row]int{}, end: 1}
	for i, s := range t.Spans {
		if i == 0 || s.Begin < p.begin {
			p.begin = s.Begin
		}
		p.end = max(p.end, s.End)
	}
	var labels []string
	left := 0.0
	for r := range t.order() {
		p.index[r] = len(labels)
		labels = append(labels, fmt.Sprintf("rank %d · %s · channel %d", r.rank, name(r.job, int(r.rank)), r.channel))
		left = max(left, plain.Width(labels[len(labels)-1]))
	}
	left += timelineMargin + 12
	y := float64(timelineMargin)
	c.Text(timelineMargin, y, svg.Start, bold, bold.Fit(title, timelineWidth-2*timelineMargin))
	y += 30
	p.legend(y)
	p.top = y + 44
	p.bottom = p.top + float64(len(labels))*rowHeight
	width := timelineWidth - timelineMargin - left
	for _, g := range t.Gaps {
		if g.Begin >= p.begin && g.End <= p.end {
			p.gaps = append(p.gaps, g)
		}
	}
	if float64(len(p.gaps))*gapWidth > width/2 { // too many to show each
		p.gaps = nil
	}
	p.scale = newScale(p.gaps, p.begin, p.end, left, width)
	p.axis()
	for i, text := range labels {
		c.Text(left-10, p.top+float64(i)*rowHeight+2, svg.End, plain, text)
	}
	for _, s := range t.Spans {
		p.span(s)
	}
	for _, g := range p.gaps {
		p.gap(g)
	}
	y = p.bottom + 12
	if t.Cut {
		c.Text(timelineMargin, y, svg.Start, plain, fmt.Sprintf("The first %d actions of these ranks are shown.", len(t.Spans)), svg.Class("dim"))
		y += 20
	}
	return c.WriteTo(w, timelineWidth, y+timelineMargin, "weft-sim", title, timelineStyle)
}

// timeline is a picture that is being drawn.
type timeline struct {
	c           *svg.Canvas
	font        svg.Font
	index       map[row]int
	begin, end  unit.Time
	top, bottom float64 // of the rows
	gaps        []Gap
	scale       *scale
}

// legend says what the colours mean.
func (p *timeline) legend(y float64) {
	x := float64(timelineMargin)
	for _, k := range []struct{ class, text string }{
		{"pay", "overhead"}, {"send", "send"}, {"reduce", "receive, reduce and send"}, {"pass", "receive and send on"}, {"receive", "receive"},
		{"local", "copy"},
	} {
		p.c.Rect(svg.Box{X: x, Y: y + 1, W: 12, H: 12}, 2, "", svg.Class(k.class))
		b := p.c.Text(x+17, y, svg.Start, p.font, k.text, svg.Class("dim"))
		x = b.Right() + 20
	}
}

// axis draws the times: at the ends of gaps, or some in between where there are none.
func (p *timeline) axis() {
	ticks := []unit.Time{p.begin}
	for _, g := range p.gaps {
		ticks = append(ticks, g.Begin, g.End)
	}
	if len(p.gaps) == 0 {
		for i := 1; i < 6; i++ {
			ticks = append(ticks, p.begin+(p.end-p.begin)*unit.Time(i)/6)
		}
	}
	last := 0.0
	for _, at := range append(ticks, p.end) {
		x := p.scale.x(at)
		text := (at - p.begin).String()
		half := p.font.Width(text) / 2
		p.c.Line(x, p.top-4, x, p.bottom, "", svg.Class("rule"))
		if x-half < last+8 || x+half > timelineWidth-2 {
			continue
		}
		p.c.Text(x, p.top-20, svg.Middle, p.font, text, svg.Class("dim"))
		last = x + half
	}
}

// span draws an action.
func (p *timeline) span(s Span) {
	at := p.top + float64(p.index[row{s.Job, s.Rank, s.Channel}])*rowHeight + 3
	hover := fmt.Sprintf("%s, %s, %s to %s", s.Op, s.Bytes, s.Begin, s.End)
	if s.From >= 0 {
		hover += fmt.Sprintf(", from rank %d", s.From)
	}
	if s.To >= 0 {
		hover += fmt.Sprintf(", to rank %d", s.To)
	}
	begin, flow, end := p.scale.x(s.Begin), p.scale.x(s.Flow), p.scale.x(s.End)
	if s.Flow > s.Begin {
		p.c.Rect(svg.Box{X: begin, Y: at, W: flow - begin, H: rowHeight - 6}, 0, "", svg.Class("pay"))
	}
	p.c.Rect(svg.Box{X: flow, Y: at, W: max(end-flow, 0.5), H: rowHeight - 6}, 0, hover, svg.Class(colour(s)))
}

// gap draws what is left out.
func (p *timeline) gap(g Gap) {
	x := p.scale.x(g.Begin)
	p.c.Rect(svg.Box{X: x, Y: p.top, W: gapWidth, H: p.bottom - p.top}, 0,
		fmt.Sprintf("%d rounds like the ones before, %s", g.Rounds, g.End-g.Begin), svg.Class("gap"))
	text := fmt.Sprintf("× %d", g.Rounds)
	p.c.Text(x+gapWidth/2, (p.top+p.bottom)/2-7, svg.Middle, p.font, p.font.Fit(text, gapWidth-6), svg.Class("dim"))
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
