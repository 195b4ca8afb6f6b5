package draw

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// mostLines is how many links are drawn between two rows, a line each, before they become bands.
const mostLines = 64

// fewLines is how many lines are clear even where each stands for several links.
const fewLines = 24

// mostComb is the same where each line goes straight up from a box of hosts to
// a switch above it, and none crosses another.
const mostComb = 160

// spot is an end of drawn links: a square, the squares of one rail, or a whole frame.
type spot struct {
	box   svg.Box // where lines meet it: its x extent, the frame's top and bottom
	rail  int16
	name  string
	same  int  // index of the rail's spot
	frame int  // index of the frame's spot
	lone  bool // a line can meet it: it is a frame, or a square of a frame with one row of them
	one   bool // it is a frame of one switch
}

// pair is two spots, the upper first.
type pair struct{ hi, lo int }

// bundle is all links between two spots.
type bundle struct {
	pair
	tally
}

// wiring is what is known about the links of a panel while they are drawn.
type wiring struct {
	spots  []spot
	node   []int32 // spot of each switch, -1 if not in the panel
	host   []int32
	labels []svg.Label // written last, over everything
}

// connect draws the links of the panel.
func (v *tiersView) connect() {
	w := &v.wires
	w.node, w.host = make([]int32, len(v.g.Nodes)), make([]int32, len(v.g.Hosts))
	for i := range w.node {
		w.node[i] = -1
	}
	for i := range w.host {
		w.host[i] = -1
	}
	for row := range v.rows {
		for _, gr := range v.shownGroups(row) {
			w.addGroup(v.page, gr)
		}
	}
	for _, c := range v.columns {
		if c.more != nil {
			w.addMore(c.more)
			continue
		}
		for _, s := range c.blocks {
			if s.more != nil {
				w.addMore(s.more)
			}
		}
	}

	// Links by the squares they join, row pair by row pair.
	rows := len(v.rows)
	byRows := make([]map[pair]*tally, rows*rows)
	for i := range v.g.Links {
		l := &v.g.Links[i]
		if !v.pn.owns(l) || !v.mineOrHost(l.A) || !v.mineOrHost(l.B) {
			continue
		}
		ra, rb := v.row(l.A), v.row(l.B)
		a, b := w.spotOf(v.g, l.A), w.spotOf(v.g, l.B)
		if ra > rb || ra == rb && a > b {
			ra, rb, a, b = rb, ra, b, a
		}
		if a < 0 || b < 0 || a == b {
			continue
		}
		m := &byRows[ra*rows+rb]
		if *m == nil {
			*m = map[pair]*tally{}
		}
		t := (*m)[pair{a, b}]
		if t == nil {
			t = &tally{}
			(*m)[pair{a, b}] = t
		}
		t.add(v.g, topo.LinkID(i))
	}
	for k, m := range byRows {
		if len(m) == 0 {
			continue
		}
		hi, lo := k/rows, k%rows
		if hi == lo {
			v.arcs(sorted(m))
			continue
		}
		v.drawGap(m, lo == v.hostRow)
	}
}

// put notes at which spot a member of a group is drawn.
func (w *wiring) put(gr *group, member, spot int) {
	if gr.kind == 0 {
		w.host[gr.hosts[member]] = int32(spot)
	} else {
		w.node[gr.nodes[member]] = int32(spot)
	}
}

// addGroup makes a spot of a group's frame, and where it has cells one of each cell and of each run of cells of one rail.
func (w *wiring) addGroup(p *page, gr *group) {
	f := &gr.view
	at := len(w.spots)
	w.spots = append(w.spots, spot{box: f.box, rail: topo.None, name: f.lines[0], same: at, frame: at, lone: true})
	if len(f.cells) == 0 {
		w.spots[at].rail = p.railOf(gr, 0)
		w.spots[at].one = gr.kind != 0
		for i := range gr.size() {
			w.put(gr, i, at)
		}
		return
	}
	seg := -1
	for i, c := range f.cells {
		if i == 0 || c.rail != f.cells[i-1].rail || c.rail < 0 {
			seg = len(w.spots)
			w.spots = append(w.spots, spot{box: svg.Box{X: c.box.X, Y: f.box.Y, W: c.box.W, H: f.box.H}, rail: c.rail,
				name: fmt.Sprintf("%s, rail %d", f.lines[0], c.rail), same: seg, frame: at})
			if c.rail < 0 {
				w.spots[seg].same = at
			}
		}
		s := &w.spots[seg]
		s.box.W = max(s.box.Right(), c.box.Right()) - s.box.X
		id := len(w.spots)
		w.spots = append(w.spots, spot{box: svg.Box{X: c.box.X, Y: f.box.Y, W: c.box.W, H: f.box.H}, rail: c.rail,
			name: span(c.to-c.from, func(j int) string { return p.memberName(gr, c.from+j) }), same: w.spots[seg].same, frame: at, lone: i < f.per &&
				len(f.cells) <= f.per})
		for j := c.from; j < c.to; j++ {
			w.put(gr, j, id)
		}
	}
}

// addMore lets cables to parts that were left out end at the box that stands for them.
func (w *wiring) addMore(e *elision) {
	at := len(w.spots)
	w.spots = append(w.spots, spot{box: e.box, rail: topo.None, name: e.lines[0], same: at, frame: at, lone: true})
	put := func(gr *group) {
		if gr == nil {
			return
		}
		for _, n := range gr.nodes {
			w.node[n] = int32(at)
		}
		for _, h := range gr.hosts {
			w.host[h] = int32(at)
		}
	}
	add := func(b *block) {
		for _, gr := range b.leaf {
			put(gr)
		}
		put(b.host)
	}
	for _, pd := range e.pods {
		for _, row := range pd.mid {
			for _, gr := range row {
				put(gr)
			}
		}
		for _, b := range pd.blocks {
			add(b)
		}
	}
	for _, b := range e.blocks {
		add(b)
	}
}

func (w *wiring) spotOf(g *topo.Graph, n topo.NodeID) int {
	if h := g.Nodes[n].Host; h != topo.None {
		return int(w.host[h])
	}
	return int(w.node[n])
}

func sorted(m map[pair]*tally) []bundle {
	list := make([]bundle, 0, len(m))
	for k, t := range m {
		list = append(list, bundle{k, *t})
	}
	slices.SortFunc(list, func(a, b bundle) int { return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo)) })
	return list
}

// fold adds bundles up after mapping their ends to coarser spots.
func fold(list []bundle, hi, lo func(int) int) []bundle {
	m := map[pair]*tally{}
	for i := range list {
		k := pair{hi(list[i].hi), lo(list[i].lo)}
		if m[k] == nil {
			m[k] = &tally{}
		}
		m[k].merge(&list[i].tally)
	}
	return sorted(m)
}

// drawGap draws the links between two rows in the finest form that stays
// readable: square to square, host box to square, rail to rail, frame to frame.
func (v *tiersView) drawGap(m map[pair]*tally, toHosts bool) {
	w := &v.wires
	self := func(i int) int { return i }
	frame := func(i int) int { return w.spots[i].frame }
	rail := func(i int) int { return w.spots[i].same }
	cells := sorted(m)
	comb := fold(cells, self, frame)
	combed := toHosts && len(comb) <= mostComb && w.single(comb)
	// Hosts joined to one switch each are clear as lines; hosts joined to all of them are clearer as a comb.
	links := 0
	for i := range cells {
		links += cells[i].links
	}
	few := len(cells) <= fewLines || len(cells) <= mostLines && links <= mostLines
	if few && w.single(cells) && !(combed && len(cells) > fewLines && len(cells) >= 2*len(comb)) {
		v.lines(cells, toHosts)
		return
	}
	if combed {
		v.lines(comb, toHosts)
		return
	}
	rails := fold(cells, rail, rail)
	pure := true
	for _, b := range rails {
		hi, lo := w.spots[b.hi].rail, w.spots[b.lo].rail
		pure = pure && (hi >= 0 || lo >= 0) && (hi == lo || hi < 0 || lo < 0)
	}
	if pure && len(rails) <= mostLines {
		v.ribbons(rails)
		return
	}
	v.ribbons(fold(cells, frame, frame))
}

// single reports whether every end can be met by a line: its squares lie in one row.
func (w *wiring) single(list []bundle) bool {
	for _, b := range list {
		if !w.spots[b.hi].lone || !w.spots[b.lo].lone {
			return false
		}
	}
	return true
}

// colour is the class of a bundle: its rail's if both ends agree on one, else its kind's.
func (v *tiersView) colour(b *bundle) string {
	hi, lo := &v.wires.spots[b.hi], &v.wires.spots[b.lo]
	r := hi.rail
	if r < 0 {
		r = lo.rail
	} else if lo.rail >= 0 && lo.rail != r {
		r = topo.None
	}
	k := b.kind(v.g)
	if r >= 0 {
		v.rails[r] = true
		return railClass(r)
	}
	v.kinds[k] = true
	return k.String()
}

func (v *tiersView) hover(b *bundle) string {
	return fmt.Sprintf("%s to %s\n%s", v.wires.spots[b.lo].name, v.wires.spots[b.hi].name, b.text(v.g))
}

// lines draws each bundle as a straight line from the upper frame's bottom to the lower one's top.
func (v *tiersView) lines(list []bundle, toHosts bool) {
	w := &v.wires
	var labels []svg.Label
	for i := range list {
		b := &list[i]
		hi, lo := &w.spots[b.hi], &w.spots[b.lo]
		x1, x2 := hi.box.Mid(), lo.box.Mid()
		switch { // a box that is one end for all its members is met where the line is straight
		case lo.frame == b.lo && !lo.one && lo.box.W > hi.box.W:
			x2 = min(max(x1, lo.box.X+6), lo.box.Right()-6)
		case hi.frame == b.hi && (toHosts || !hi.one) && hi.box.W > lo.box.W:
			x1 = min(max(x2, hi.box.X+6), hi.box.Right()-6)
		}
		class := svg.Class("line " + v.colour(b))
		v.marks["width"] = true
		v.c.Line(x1, hi.box.Bottom(), x2, lo.box.Y, v.hover(b), class, svg.Stroke(strokeFor(b.rate/2)))
		if b.links > 1 {
			text := "×" + thousands(b.links)
			y := (hi.box.Bottom()+lo.box.Y)/2 - small.Height()/2
			labels = append(labels, svg.Label{Text: text,
				Box: svg.Box{X: (x1+x2)/2 - small.Width(text)/2, Y: y, W: small.Width(text), H: small.Height()}})
		}
	}
	w.keep(labels)
}

// keep takes the labels of one gap if none of them meets another; the notes and
// the hover texts hold the same numbers. It reports whether it took them.
func (w *wiring) keep(labels []svg.Label) bool {
	for i := range labels {
		for j := range i {
			if near := labels[i].Box; (svg.Box{X: near.X - 4, Y: near.Y, W: near.W + 8, H: near.H}).Overlaps(labels[j].Box) {
				return false
			}
		}
		for _, l := range w.labels {
			if labels[i].Box.Overlaps(l.Box) {
				return false
			}
		}
		for _, s := range w.spots {
			if labels[i].Box.Overlaps(s.box) {
				return false
			}
		}
	}
	w.labels = append(w.labels, labels...)
	return true
}

func (w *wiring) write(p *page) {
	for _, l := range w.labels {
		p.c.Rect(svg.Box{X: l.Box.X - 2, Y: l.Box.Y, W: l.Box.W + 4, H: l.Box.H}, 3, "", svg.Class("plate"))
		p.c.Text(l.Box.Mid(), l.Box.Y, svg.Middle, small, l.Text)
	}
}

// ribbons draws bundles as bands. At each end the bands of a spot share its
// edge in the order of where they lead to.
func (v *tiersView) ribbons(list []bundle) {
	w := &v.wires
	v.marks["ribbon"] = true
	type slot struct{ x, w float64 }
	his, los := make([]slot, len(list)), make([]slot, len(list))
	share := func(end func(*bundle) int, other func(*bundle) int, out []slot) {
		by := map[int][]int{}
		var order []int
		for i := range list {
			k := end(&list[i])
			if by[k] == nil {
				order = append(order, k)
			}
			by[k] = append(by[k], i)
		}
		for _, k := range order {
			ids := by[k]
			slices.SortStableFunc(ids, func(a, b int) int {
				return cmp.Compare(w.spots[other(&list[a])].box.Mid(), w.spots[other(&list[b])].box.Mid())
			})
			total := 0.0
			for _, i := range ids {
				total += w.spots[other(&list[i])].box.W
			}
			box := w.spots[k].box
			edge := min(6, box.W/8)
			x, room := box.X+edge, box.W-2*edge
			for _, i := range ids {
				part := room * w.spots[other(&list[i])].box.W / total
				out[i] = slot{x, part}
				x += part
			}
		}
	}
	hi := func(b *bundle) int { return b.hi }
	lo := func(b *bundle) int { return b.lo }
	share(hi, lo, his)
	share(lo, hi, los)
	var labels []svg.Label
	for i := range list {
		b := &list[i]
		top, bottom := w.spots[b.hi].box.Bottom(), w.spots[b.lo].box.Y
		h, l := his[i], los[i]
		gap := min(1, h.w/6, l.w/6)
		x1, x2, x3, x4 := h.x+gap, h.x+h.w-gap, l.x+l.w-gap, l.x+gap
		mid := (top + bottom) / 2
		pen := (&svg.Pen{}).Move(x1, top).To(x2, top).Curve(x2, mid, x3, mid, x3, bottom).To(x4, bottom).Curve(x4, mid, x1, mid, x1, top).Close()
		v.c.Path(pen, v.hover(b), svg.Class("ribbon "+v.colour(b)))
		text := "×" + thousands(b.links)
		// The band's middle at three quarters of its curve, where bands from one frame have parted.
		const across, down = 0.84375, 0.703125
		cx, mid := (x1+x2)/2*(1-across)+(x3+x4)/2*across, top+(bottom-top)*down
		labels = append(labels, svg.Label{Text: text,
			Box: svg.Box{X: cx - small.Width(text)/2, Y: mid - small.Height()/2, W: small.Width(text), H: small.Height()}})
	}
	w.keep(labels)
}

// arcs draws links inside a tier below it, if they are few; the notes count them in any case.
func (v *tiersView) arcs(list []bundle) {
	if len(list) > mostLines/2 {
		return
	}
	for i := range list {
		b := &list[i]
		a, z := v.wires.spots[b.hi].box, v.wires.spots[b.lo].box
		y := a.Bottom()
		depth := min(34, 12+0.05*abs(z.Mid()-a.Mid()))
		pen := (&svg.Pen{}).Move(a.Mid(), y).Curve(a.Mid(), y+depth, z.Mid(), y+depth, z.Mid(), y)
		v.c.Path(pen, v.hover(b), svg.Class("line "+v.colour(b)), svg.Stroke(strokeFor(b.rate/2)))
	}
}

func abs(x float64) float64 { return max(x, -x) }
