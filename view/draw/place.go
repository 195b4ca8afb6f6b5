package draw

import (
	"github.com/weft-fabric/weft/view/draw/svg"
)

// stretch shares room among things with a least and a wanted width: each gets
// its least, then all go towards what they want together, then up to twice that.
func stretch(room float64, low, want []float64) []float64 {
	sumLow, sumWant := 0.0, 0.0
	for i := range low {
		sumLow, sumWant = sumLow+low[i], sumWant+want[i]
	}
	out := make([]float64, len(low))
	for i := range low {
		switch {
		case room <= sumLow || sumWant <= sumLow && room <= sumWant:
			out[i] = low[i]
		case room < sumWant:
			out[i] = low[i] + (want[i]-low[i])*(room-sumLow)/(sumWant-sumLow)
		default:
			out[i] = want[i] * min(room/sumWant, 2)
		}
	}
	return out
}

func sum(list []float64) float64 {
	s := 0.0
	for _, v := range list {
		s += v
	}
	return s
}

// horizontal gives every column, block and frame its x and width.
func (v *tiersView) horizontal() {
	var low, want []float64
	for _, c := range v.columns {
		low, want = append(low, c.low), append(want, c.want)
	}
	gaps := between * float64(max(len(v.columns)-1, 0))
	widths := stretch(v.body-gaps, low, want)
	for i, c := range v.columns {
		if c.more != nil {
			widths[i] = moreWidth
		}
	}
	x := v.x0 + max(0, (v.body-gaps-sum(widths))/2)
	for i, c := range v.columns {
		c.x, c.w = x, widths[i]
		x += c.w + between
		edge := 0.0
		if v.framed {
			edge = inside
		}
		if c.more != nil {
			continue
		}
		for _, row := range c.pod.mid {
			spread(row, c.x+edge, c.w-2*edge)
		}
		low, want = nil, nil
		for _, s := range c.blocks {
			low, want = append(low, s.low), append(want, s.want)
		}
		room := c.w - 2*edge - between*float64(len(c.blocks)-1)
		ws := stretch(room, low, want)
		for j, s := range c.blocks {
			if s.more != nil {
				ws[j] = moreWidth
			}
		}
		bx := c.x + edge + max(0, (room-sum(ws))/2)
		for j, s := range c.blocks {
			s.x, s.w = bx, ws[j]
			bx += s.w + between
			if s.more == nil {
				spread(s.block.leaf, s.x+inside, s.w-2*inside)
				if s.block.host != nil {
					spread([]*group{s.block.host}, s.x+inside, s.w-2*inside)
				}
			}
		}
	}
	for _, row := range v.pn.above {
		spread(row, v.x0, v.body)
	}
}

// spread lays groups side by side in the middle of the room; hosts take all of it.
func spread(groups []*group, x, room float64) {
	if len(groups) == 0 {
		return
	}
	var low, want []float64
	for _, gr := range groups {
		low, want = append(low, gr.view.low), append(want, gr.view.want)
	}
	free := room - inside*float64(len(groups)-1)
	ws := stretch(free, low, want)
	if len(groups) == 1 && groups[0].kind == 0 {
		ws[0] = room
	}
	x += max(0, (free-sum(ws))/2)
	for i, gr := range groups {
		gr.view.box.X, gr.view.box.W = x, ws[i]
		x += ws[i] + inside
	}
}

// shownGroups lists the frames of a row, left to right.
func (v *tiersView) shownGroups(row int) []*group {
	var list []*group
	if row < len(v.pn.above) {
		list = append(list, v.pn.above[row]...)
	}
	for _, c := range v.columns {
		if c.more != nil {
			continue
		}
		if row < len(c.pod.mid) {
			list = append(list, c.pod.mid[row]...)
		}
		for _, s := range c.blocks {
			if s.more != nil {
				continue
			}
			if row == v.hostRow-1 {
				list = append(list, s.block.leaf...)
			}
			if row == v.hostRow && s.block.host != nil {
				list = append(list, s.block.host)
			}
		}
	}
	return list
}

func noteHeight(notes []note) float64 {
	h := 0.0
	for _, n := range notes {
		h += float64(len(n.font().Wrap(n.text, gutter-20)))*n.font().Size*leading + 3
	}
	return h
}

func (n note) font() svg.Font {
	if n.title {
		return large
	}
	return small
}

// vertical gives every row its y, every frame its height, and moves the page's y below the panel.
func (v *tiersView) vertical() {
	y := v.y
	v.rows = make([]band, v.hostRow+1)
	for row := range v.rows {
		if row == v.podRow && v.framed || row == v.hostRow-1 {
			y += inside
		}
		height := 0.0
		groups := v.shownGroups(row)
		for _, gr := range groups {
			height = max(height, gr.view.place(gr.view.box.W))
		}
		for _, gr := range groups {
			gr.view.settle(svg.Box{X: gr.view.box.X, Y: y, W: gr.view.box.W, H: height})
		}
		v.rows[row] = band{y, y + height}
		notes := noteHeight(v.notes[row])
		y += max(height, notes)
		if row < v.hostRow {
			below := max(92, noteHeight(v.gaps[row])+30)
			y = max(y+24+noteHeight(v.gaps[row]), v.rows[row].bottom+below)
		}
	}
	bottom := v.rows[v.hostRow].bottom + inside + v.labelRoom()
	v.y = max(y, bottom, v.elisions(bottom))
}

// elisions places the boxes that stand for what is left out, and returns the lowest y that they reach: their text may need
// more room than the rows have.
func (v *tiersView) elisions(bottom float64) (y float64) {
	for _, c := range v.columns {
		if e := c.more; e != nil {
			top := v.rows[v.podRow].top - inside
			h := max(bottom-top, e.height())
			e.box = svg.Box{X: c.x, Y: top, W: c.w, H: h}
			y = max(y, e.box.Bottom())
			continue
		}
		for _, s := range c.blocks {
			if e := s.more; e != nil {
				top := v.rows[v.blockRow()].top
				e.box = svg.Box{X: s.x, Y: top, W: s.w, H: max(v.rows[v.hostRow].bottom-top, e.height())}
				y = max(y, e.box.Bottom())
			}
		}
	}
	return y
}

// labelRoom is what the pods' names take below their hosts, where no link passes.
func (v *tiersView) labelRoom() float64 {
	for _, pd := range v.pn.pods {
		if v.framed && v.podName(pd) != "" {
			return 22
		}
	}
	return 0
}

func (v *tiersView) blockRow() int { return max(v.hostRow-1, 0) }

func (e *elision) height() float64 {
	return 2*pad + float64(len(e.lines))*plain.Size*leading
}

// paintAll draws back to front: pod boxes, links, frames, notes.
func (v *tiersView) paintAll() {
	for _, c := range v.columns {
		if c.more != nil || !v.framed {
			continue
		}
		top := v.rows[v.podRow].top - inside
		b := svg.Box{X: c.x, Y: top, W: c.w, H: v.rows[v.hostRow].bottom + inside + v.labelRoom() - top}
		v.c.Rect(b, 8, "", svg.Class("pod"))
	}
	for _, c := range v.columns {
		if c.more != nil || len(c.blocks) < 2 {
			continue
		}
		for _, s := range c.blocks {
			if s.more == nil {
				top := v.rows[v.blockRow()].top - 6
				v.c.Rect(svg.Box{X: s.x + 3, Y: top, W: s.w - 6, H: v.rows[v.hostRow].bottom + 6 - top}, 6, "", svg.Class("block"))
			}
		}
	}
	v.connect()
	for row := range v.rows {
		for _, gr := range v.shownGroups(row) {
			v.paint(gr)
		}
	}
	for _, c := range v.columns {
		if c.more != nil {
			v.paintMore(c.more)
			continue
		}
		if v.framed {
			v.c.Text(c.x+c.w/2, v.rows[v.hostRow].bottom+inside+3, svg.Middle, strong, v.podName(c.pod), svg.Class("dim"))
		}
		for _, s := range c.blocks {
			if s.more != nil {
				v.paintMore(s.more)
			}
		}
	}
	v.wires.write(v.page)
	for row := range v.rows {
		y := v.writeNotes(v.rows[row].top, v.notes[row])
		if row < v.hostRow {
			v.writeNotes(max(y, v.rows[row].bottom)+12, v.gaps[row])
		}
	}
}

func (v *tiersView) writeNotes(y float64, notes []note) float64 {
	for _, n := range notes {
		class := "dim"
		if n.title {
			class = ""
		}
		y = v.paragraph(margin, y, gutter-20, n.font(), n.text, class) + 3
	}
	return y
}

// paintMore draws the box that stands for what was left out. Its data attributes have the true counts, which tests add
// up.
func (p *page) paintMore(e *elision) {
	switches, hosts := e.counts()
	total := 0
	for _, n := range switches {
		total += n
	}
	p.c.Group("", svg.Data("switches", total), svg.Data("hosts", hosts))
	p.c.Rect(e.box, 8, "", svg.Class("more"))
	y := e.box.Y + (e.box.H-e.height())/2 + pad
	for i, l := range e.lines {
		f := small
		if i == 0 {
			f = strong
		}
		p.c.Text(e.box.Mid(), y, svg.Middle, f, f.Fit(l, e.box.W-8))
		y += plain.Size * leading
	}
	p.c.End()
}
