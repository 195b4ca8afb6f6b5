package draw

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// part is a box in the picture of a host.
type part struct {
	id       topo.NodeID
	kind     topo.Kind
	parent   *part
	up       topo.LinkID // link to the parent
	children []*part
	depth    int
	lines    []string
	room     float64 // width of the part with all below it
	box      svg.Box
}

// hostView lays out the inside of one host: CPUs at the top, the PCIe tree down
// to GPUs and NICs, accelerator links and NVSwitches below the GPUs.
type hostView struct {
	*page
	h     topo.HostID
	parts map[topo.NodeID]*part
	order []*part // in the order of the host's nodes
	roots []*part // CPUs, and parts that no CPU reaches
	gpus  []*part // left to right
	chips []*part
	cap   float64 // width of a line of text in a box
}

const (
	partGap  = 6.0
	partRow  = 44.0 // between rows of the tree
	partLine = 14.5 // a line of text in a box
)

func (p *page) inside(h topo.HostID) {
	v := &hostView{page: p, h: h, parts: map[topo.NodeID]*part{}}
	v.collect()
	v.tree()
	v.place(v.y + v.headroom())
	v.paintTree()
	v.accelerators()
	v.table()
}

var kindClass = map[topo.Kind]string{topo.GPU: "gpu", topo.CPU: "cpu", topo.RootPort: "root", topo.PCIeSwitch: "pciesw",
	topo.NVSwitch: "nvsw", topo.NIC: "nic"}

func (v *hostView) collect() {
	host := &v.g.Hosts[v.h]
	for i := range v.g.HostNodes(v.h) {
		id := host.First + topo.NodeID(i)
		pt := &part{id: id, kind: v.g.Nodes[id].Kind, up: topo.None}
		v.parts[id] = pt
		v.order = append(v.order, pt)
	}
}

// climbs reports whether a link belongs to the tree: PCIe, a root port on its
// CPU, or an accelerator link between a CPU and its GPU.
func (v *hostView) climbs(a, b *part, k topo.LinkKind) bool {
	if a.kind == topo.NVSwitch || b.kind == topo.NVSwitch || a.kind == topo.CPU && b.kind == topo.CPU {
		return false
	}
	return k == topo.PCIe || k == topo.SMP || k.Accelerator() && (a.kind == topo.CPU || b.kind == topo.CPU)
}

// tree gives every part its parent, breadth first from the CPUs. PCIe goes
// before other links, so that a GPU hangs from its switch where it has both.
func (v *hostView) tree() {
	seen := map[*part]bool{}
	grow := func(queue []*part) {
		for q := 0; q < len(queue); q++ {
			at := queue[q]
			for _, e := range v.g.Edges(at.id) {
				next := v.parts[e.Peer]
				if next == nil || seen[next] || !v.climbs(at, next, v.g.Class(e.Link).Kind) {
					continue
				}
				if k := v.g.Class(e.Link).Kind; k.Accelerator() && v.hasPCIe(next) {
					continue
				}
				seen[next] = true
				next.parent, next.up, next.depth = at, e.Link, at.depth+1
				at.children = append(at.children, next)
				if next.kind != topo.GPU && next.kind != topo.NIC {
					queue = append(queue, next)
				}
			}
		}
	}
	root := func(pt *part) {
		seen[pt] = true
		v.roots = append(v.roots, pt)
	}
	for _, pt := range v.order {
		if pt.kind == topo.CPU {
			root(pt)
		}
	}
	grow(slices.Clone(v.roots))
	for _, kind := range []topo.Kind{topo.RootPort, topo.PCIeSwitch, topo.GPU, topo.NIC} { // what no CPU reaches
		for _, pt := range v.order {
			if pt.kind != kind || seen[pt] {
				continue
			}
			root(pt)
			if !device(kind) {
				grow([]*part{pt})
			}
		}
	}
	for _, pt := range v.order {
		if pt.kind == topo.NVSwitch {
			v.chips = append(v.chips, pt)
		}
		slices.SortStableFunc(pt.children, func(a, b *part) int { return cmp.Compare(v.firstID(a), v.firstID(b)) })
	}
}

func (v *hostView) hasPCIe(pt *part) bool {
	return slices.ContainsFunc(v.g.Edges(pt.id), func(e topo.Edge) bool {
		return v.g.Class(e.Link).Kind == topo.PCIe && v.parts[e.Peer] != nil
	})
}

// firstID orders siblings by the first device below them, so that gpu0 is left of gpu1.
func (v *hostView) firstID(pt *part) topo.NodeID {
	if pt.kind == topo.GPU || pt.kind == topo.NIC {
		return pt.id
	}
	best := topo.NodeID(1 << 30)
	for _, c := range pt.children {
		best = min(best, v.firstID(c))
	}
	return best
}

// describe writes the lines of a part's box.
func (v *hostView) describe(pt *part) {
	n := &v.g.Nodes[pt.id]
	pt.lines = []string{n.Name}
	if n.Model != "" {
		pt.lines = append(pt.lines, n.Model)
	}
	if pt.up != topo.None {
		if c := v.g.Class(pt.up); c.Kind != topo.SMP {
			gen := genTitle(c)
			if k := v.g.Links[pt.up].Count; k > 1 {
				gen = fmt.Sprintf("%d × %s", k, gen)
			}
			pt.lines = append(pt.lines, gen, rough(v.g.Rate(pt.up)))
		}
	}
	if pt.kind != topo.NIC {
		return
	}
	for _, e := range v.g.Edges(pt.id) {
		c := v.g.Class(e.Link)
		if v.parts[e.Peer] == nil && c.Kind.Network() {
			pt.lines = append(pt.lines, "to "+v.g.Nodes[e.Peer].Name, genTitle(c), rough(v.g.Rate(e.Link)))
		}
	}
	if n.Rail >= 0 {
		pt.lines = append(pt.lines, fmt.Sprintf("rail %d", n.Rail))
	}
}

// rough prints a rate with three digits, for boxes; the table below has the exact one.
func rough(r unit.Rate) string {
	scale, name := 1e9, "GB/s"
	if r >= 1e12 {
		scale, name = 1e12, "TB/s"
	}
	return fmt.Sprintf("%.3g %s", float64(r)/scale, name)
}

func (v *hostView) ownWidth(pt *part) float64 {
	w := 44.0
	for i, l := range pt.lines {
		f := small
		if i == 0 {
			f = strong
		}
		w = max(w, min(f.Width(l), v.cap)+8)
	}
	return w
}

func (pt *part) height() float64 { return 10 + float64(len(pt.lines))*partLine }

func (v *hostView) measure(pt *part) float64 {
	pt.room = 0
	for i, c := range pt.children {
		if i > 0 {
			pt.room += partGap
		}
		pt.room += v.measure(c)
	}
	pt.room = max(pt.room, v.ownWidth(pt))
	return pt.room
}

func device(k topo.Kind) bool { return k == topo.GPU || k == topo.NIC }

// place gives every box of the tree its place; devices share the bottom row.
func (v *hostView) place(top float64) {
	for _, pt := range v.order {
		v.describe(pt)
	}
	total := 0.0
	for _, v.cap = range []float64{130, 100, 80, 64} { // long models are shortened before the page grows
		total = 3 * partGap * float64(max(len(v.roots)-1, 0))
		for _, r := range v.roots {
			total += v.measure(r)
		}
		if total+2*margin <= v.width {
			break
		}
	}
	if need := total + 2*margin; need > v.width {
		v.width = need
	}
	deepest := 0
	var heights []float64
	var bottom float64
	var each func(pt *part, f func(*part))
	each = func(pt *part, f func(*part)) {
		f(pt)
		for _, c := range pt.children {
			each(c, f)
		}
	}
	all := func(f func(*part)) {
		for _, r := range v.roots {
			each(r, f)
		}
	}
	all(func(pt *part) {
		if device(pt.kind) {
			bottom = max(bottom, pt.height())
			return
		}
		for len(heights) <= pt.depth {
			heights = append(heights, 0)
		}
		heights[pt.depth] = max(heights[pt.depth], pt.height())
		deepest = max(deepest, pt.depth+1)
	})
	rows := make([]float64, deepest+1)
	y := top
	for d := range deepest {
		rows[d] = y
		y += heights[d] + partRow
	}
	rows[deepest] = y
	// Spare room widens the space between devices, up to half as much again.
	leaves := 0
	all(func(pt *part) {
		if len(pt.children) == 0 {
			leaves++
		}
	})
	spare := 0.0
	if leaves > 0 {
		spare = min((v.width-2*margin-total)/float64(leaves), 24)
	}
	var settle func(pt *part, x float64) float64
	settle = func(pt *part, x float64) float64 {
		start := x
		w := v.ownWidth(pt)
		h, at := bottom, rows[deepest]
		if !device(pt.kind) {
			h, at = heights[pt.depth], rows[pt.depth]
		}
		if len(pt.children) == 0 {
			pt.box = svg.Box{X: x + spare/2, Y: at, W: w, H: h}
			return max(w, pt.room) + spare
		}
		inner := 0.0
		for i, c := range pt.children {
			if i > 0 {
				inner += partGap
			}
			inner += c.room
		}
		x += max(0, (pt.room-inner)/2)
		for i, c := range pt.children {
			if i > 0 {
				x += partGap
			}
			x += settle(c, x)
		}
		first, last := pt.children[0].box, pt.children[len(pt.children)-1].box
		mid := (first.Mid() + last.Mid()) / 2
		if pt.kind == topo.CPU {
			w = max(w, last.Right()-first.X)
		}
		pt.box = svg.Box{X: mid - w/2, Y: at, W: w, H: h}
		return max(x-start, pt.room)
	}
	x := margin + max(0, (v.width-2*margin-total-spare*float64(leaves))/2)
	for i, r := range v.roots {
		if i > 0 {
			x += 3 * partGap
		}
		x += settle(r, x)
	}
	all(func(pt *part) {
		if pt.kind == topo.GPU {
			v.gpus = append(v.gpus, pt)
		}
	})
	v.y = rows[deepest] + bottom
}

// paintTree draws links first, boxes over them.
func (v *hostView) paintTree() {
	for _, pt := range v.order {
		if pt.parent == nil {
			continue
		}
		x := min(max(pt.box.Mid(), pt.parent.box.X+4), pt.parent.box.Right()-4)
		y1, y2 := pt.parent.box.Bottom(), pt.box.Y
		bend := y1 + partRow/2
		pen := (&svg.Pen{}).Move(x, y1).Curve(x, bend, pt.box.Mid(), bend, pt.box.Mid(), min(y1+partRow, y2)).To(pt.box.Mid(), y2)
		v.wire(pen, pt.up)
	}
	v.sockets()
	for _, pt := range v.order {
		if pt.kind != topo.NVSwitch {
			v.paintPart(pt)
		}
	}
}

func (v *hostView) wire(pen *svg.Pen, l topo.LinkID) { v.thin(pen, l, 1) }

// thin draws a link as if it had a part of its rate, where many cross.
func (v *hostView) thin(pen *svg.Pen, l topo.LinkID, part unit.Rate) {
	k := v.g.Class(l).Kind
	v.kinds[k] = true
	v.marks["width"] = true
	v.c.Path(pen, v.linkTitle(l), svg.Class("line "+k.String()), svg.Stroke(strokeFor(v.g.Rate(l)/part)))
}

func (v *hostView) linkTitle(l topo.LinkID) string {
	link := &v.g.Links[l]
	return fmt.Sprintf("%s\n%d × %s", v.g.LinkName(l), link.Count, rateTitle(v.g.Class(l)))
}

func (v *hostView) paintPart(pt *part) {
	n := &v.g.Nodes[pt.id]
	title := v.g.NodeName(pt.id) + "\n" + strings.Join(pt.lines[1:], ", ")
	v.c.Group(title, svg.Attr{Name: "data-part", Value: n.Name})
	v.c.Rect(pt.box, 4, "", svg.Class(kindClass[pt.kind]))
	if n.Rail >= 0 && pt.kind == topo.NIC {
		v.rails[n.Rail] = true
		v.c.Rect(svg.Box{X: pt.box.X, Y: pt.box.Y, W: pt.box.W, H: 4}, 2, "", svg.Class("fill "+railClass(n.Rail)))
	}
	y := pt.box.Y + 6
	for i, l := range pt.lines {
		f, class := small, "dim"
		if i == 0 {
			f, class = strong, ""
		}
		v.c.Text(pt.box.Mid(), y, svg.Middle, f, f.Fit(l, pt.box.W-6), svg.Class(class))
		y += partLine
	}
	v.c.End()
}

// socketLink joins two CPUs, the left one first; steps says how many places apart they stand.
type socketLink struct {
	a, b  *part
	l     topo.LinkID
	steps int
}

func (v *hostView) socketLinks() []socketLink {
	var list []socketLink
	for i, a := range v.roots {
		for j, b := range v.roots[i+1:] {
			for _, e := range v.g.Edges(a.id) {
				if e.Peer == b.id && a.kind == topo.CPU && b.kind == topo.CPU {
					list = append(list, socketLink{a, b, e.Link, j + 1})
				}
			}
		}
	}
	return list
}

const socketStep = 12.0 // height of an arc for each CPU it passes over

// headroom is what arcs between CPUs that are not neighbours take above them.
func (v *hostView) headroom() float64 {
	h := 0.0
	for _, s := range v.socketLinks() {
		if s.steps > 1 {
			h = max(h, socketStep*float64(s.steps)+8)
		}
	}
	return h
}

// sockets draws the links between CPUs: straight between neighbours, as arcs above else.
func (v *hostView) sockets() {
	for _, s := range v.socketLinks() {
		a, b := s.a.box, s.b.box
		if s.steps > 1 {
			h := socketStep * float64(s.steps) / 0.75
			v.wire((&svg.Pen{}).Move(a.Mid(), a.Y).Curve(a.Mid(), a.Y-h, b.Mid(), b.Y-h, b.Mid(), b.Y), s.l)
			continue
		}
		y := a.Y + a.H/2
		v.wire((&svg.Pen{}).Move(a.Right(), y).To(b.X, y), s.l)
		if text := fmt.Sprintf("%d × %s", v.g.Links[s.l].Count, rateTitle(v.g.Class(s.l))); small.Width(text) < b.X-a.Right()-12 {
			v.c.Text((a.Right()+b.X)/2, y-small.Height()-4, svg.Middle, small, text, svg.Class("dim"))
		}
	}
}
