package draw

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// frame is how a group looks: heading lines, then squares in rows.
type frame struct {
	shown bool
	lines []string
	title string
	cells []cell
	per   int // squares a row
	box   svg.Box
	low   float64 // least width
	want  float64 // width at which squares have labels
}

// cell is a square: the members from..to-1 of the group.
type cell struct {
	from, to int
	label    string
	rail     int16
	box      svg.Box
}

const (
	mostCells   = 64  // squares of a frame; more are folded by rail, or left out in the middle
	pad         = 8.0 // inside a frame
	cellHeight  = 18.0
	cellGap     = 3.0
	leastCell   = 9.0
	mostHeading = 176.0 // width of a heading; longer ones are shortened
)

func (p *page) railOf(gr *group, i int) int16 {
	if gr.kind == 0 {
		return topo.None
	}
	return p.g.Nodes[gr.nodes[i]].Rail
}

func (p *page) memberName(gr *group, i int) string {
	if gr.kind == 0 {
		return p.g.Hosts[gr.hosts[i]].Name
	}
	return p.g.Nodes[gr.nodes[i]].Name
}

// prepare decides what a group's frame shows, before its width is known.
func (p *page) prepare(gr *group) {
	v := &gr.view
	n := gr.size()
	at := func(i int) string { return p.memberName(gr, i) }
	if gr.kind != 0 { // members are by rail; the heading names them in their own order
		ids := slices.Sorted(slices.Values(gr.nodes))
		at = func(i int) string { return p.g.Nodes[ids[i]].Name }
	}
	name := span(n, at)
	v.title = spanAll(n, at)
	var second string
	if gr.kind == 0 {
		second = models(n, func(i int) string { return p.g.Hosts[gr.hosts[i]].Model }, "host")
		v.lines = []string{name, second}
		if gpus := p.gpuText(gr.hosts); gpus != "" {
			v.lines = append(v.lines, gpus)
		}
	} else {
		if n == 1 {
			second = p.g.Nodes[gr.nodes[0]].Model
		} else {
			second = models(n, func(i int) string { return p.g.Nodes[gr.nodes[i]].Model }, tierWord(gr.kind, gr.tier))
		}
		v.lines = []string{name}
		if second != "" {
			v.lines = append(v.lines, second)
		}
		if gr.plane != topo.None {
			v.lines = append(v.lines, fmt.Sprintf("plane %d", gr.plane))
		}
	}
	v.title += "\n" + strings.Join(v.lines[1:], ", ")

	rails := map[int16]bool{}
	for i := range n {
		rails[p.railOf(gr, i)] = true
	}
	switch {
	case n == 1:
		if r := p.railOf(gr, 0); r >= 0 {
			v.lines[len(v.lines)-1] += fmt.Sprintf(", rail %d", r)
		}
	case n <= mostCells:
		for i := range n {
			c := cell{from: i, to: i + 1, rail: p.railOf(gr, i), label: short(at(i))}
			if gr.kind != 0 {
				c.label = short(p.memberName(gr, i))
				if c.rail >= 0 && len(rails) > 1 {
					c.label = fmt.Sprintf("r%d", c.rail)
				}
			}
			v.cells = append(v.cells, c)
		}
	case len(rails) > 1 && len(rails) <= mostCells:
		for i := 0; i < n; {
			j := i
			for j < n && p.railOf(gr, j) == p.railOf(gr, i) {
				j++
			}
			v.cells = append(v.cells, cell{from: i, to: j, rail: p.railOf(gr, i), label: fmt.Sprintf("r%d ×%d", p.railOf(gr, i), j-i)})
			i = j
		}
	default:
		const head, last = 12, 3
		for i := range n {
			c := cell{from: i, to: i + 1, rail: p.railOf(gr, i), label: short(p.memberName(gr, i))}
			if i == head {
				c.to, c.label = n-last, "…"
			}
			if i <= head || i >= n-last {
				v.cells = append(v.cells, c)
			}
		}
	}
	for i, l := range v.lines {
		f := small
		if i == 0 {
			f = strong
		}
		v.low = max(v.low, min(f.Width(l), mostHeading))
	}
	v.low += 2 * pad
	v.want = v.low + 8
	if k := len(v.cells); k > 0 {
		label := 0.0
		for _, c := range v.cells {
			label = max(label, small.Width(c.label)+6)
		}
		row := float64(min(k, 32))
		if gr.kind == 0 {
			row = float64(min(k, 16))
		}
		v.low = max(v.low, 2*pad+row*(leastCell+cellGap)-cellGap)
		v.want = max(v.want, 2*pad+row*(max(label, 20)+cellGap)-cellGap)
	}
}

// place fixes a frame's squares for a width and gives its height.
func (v *frame) place(width float64) float64 {
	h := pad
	for i := range v.lines {
		if i == 0 {
			h += strong.Size * leading
		} else {
			h += small.Size * leading
		}
	}
	v.per = 0
	if k := len(v.cells); k > 0 {
		fit := max(1, int((width-2*pad+cellGap)/(leastCell+cellGap)))
		rows := int(math.Ceil(float64(k) / float64(fit)))
		v.per = int(math.Ceil(float64(k) / float64(rows)))
		h += 3 + float64(rows)*(cellHeight+cellGap)
	}
	return h + pad - 3
}

// settle gives a frame its place; the squares fill the bottom of it.
func (v *frame) settle(b svg.Box) {
	v.box, v.shown = b, true
	if v.per == 0 {
		return
	}
	rows := (len(v.cells) + v.per - 1) / v.per
	pitch := min((b.W-2*pad+cellGap)/float64(v.per), 120)
	w := min(pitch-cellGap, 64)
	total := float64(v.per-1)*pitch + w
	x0, y0 := b.Mid()-total/2, b.Bottom()-pad+3-float64(rows)*(cellHeight+cellGap)
	for i := range v.cells {
		v.cells[i].box = svg.Box{X: x0 + float64(i%v.per)*pitch, Y: y0 + float64(i/v.per)*(cellHeight+cellGap), W: w, H: cellHeight}
	}
}

// paint draws a settled frame.
func (p *page) paint(gr *group) {
	v := &gr.view
	data, mark, class := "switches", "square-switch", "switch"
	if gr.kind == 0 {
		data, mark, class = "hosts", "square-host", "host"
	}
	p.c.Group(v.title, svg.Data(data, gr.size()))
	attrs := []svg.Attr{svg.Class("frame")}
	p.c.Rect(v.box, 5, "", attrs...)
	if gr.size() == 1 && gr.kind != 0 {
		if r := p.railOf(gr, 0); r >= 0 {
			p.rails[r] = true
			p.c.Rect(svg.Box{X: v.box.X, Y: v.box.Y, W: v.box.W, H: 4}, 2, "", svg.Class("fill "+railClass(r)))
		}
	}
	y := v.box.Y + pad
	for i, l := range v.lines {
		f, c := small, "dim halo"
		if i == 0 {
			f, c = strong, "halo"
		}
		p.c.Text(v.box.Mid(), y, svg.Middle, f, f.Fit(l, v.box.W-2*pad), svg.Class(c))
		y += f.Size * leading
	}
	if slices.ContainsFunc(v.cells, func(c cell) bool { return c.to-c.from > 1 && c.label != "…" }) {
		mark = "square-folded"
	}
	fits := true
	for _, c := range v.cells {
		fits = fits && labelFont(c).Width(c.label) <= c.box.W-1
	}
	for _, c := range v.cells {
		p.marks[mark] = true
		title := spanAll(c.to-c.from, func(i int) string { return p.memberName(gr, c.from+i) })
		text := ""
		switch {
		case c.label == "…":
		case c.rail >= 0:
			p.rails[c.rail] = true
			title += fmt.Sprintf("\nrail %d", c.rail)
			p.c.Rect(c.box, 2, title, svg.Class("fill "+railClass(c.rail)))
			text = "on " + railClass(c.rail)
		default:
			p.c.Rect(c.box, 2, title, svg.Class(class))
		}
		if f := labelFont(c); fits || c.label == "…" && f.Width(c.label) <= c.box.W {
			p.c.Text(c.box.Mid(), c.box.Y+(cellHeight-f.Height())/2, svg.Middle, f, c.label, svg.Class(text))
		}
	}
	p.c.End()
}

func labelFont(c cell) svg.Font {
	f := small
	f.Bold = c.rail >= 0
	return f
}

// gpuText says what accelerators the hosts hold: "8 × H100-SXM each".
func (p *page) gpuText(hosts []topo.HostID) string {
	least, most, with := math.MaxInt32, 0, 0
	model, mixed := "", false
	for _, h := range hosts {
		n := int(p.gpus[h])
		if n == 0 {
			continue
		}
		with++
		least, most = min(least, n), max(most, n)
		m := p.g.Nodes[p.g.Hosts[h].First].Model // GPUs come first in a host
		mixed = mixed || model != "" && m != model
		model = m
	}
	if with == 0 {
		return ""
	}
	if model == "" || mixed {
		model = "GPU"
	}
	text := fmt.Sprintf("%d × %s", most, model)
	if least != most {
		text = fmt.Sprintf("%d to %d × %s", least, most, model)
	}
	return text + each(with, len(hosts))
}

// each says how many of the hosts the number before it is for.
func each(with, hosts int) string {
	switch {
	case with < hosts:
		return fmt.Sprintf(" in each of %d", with)
	case with > 1:
		return " each"
	}
	return ""
}
