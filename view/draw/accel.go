package draw

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// accelerators draws the links among GPUs as arcs below them, then NVSwitches,
// then boxes for what lies outside the host.
func (v *hostView) accelerators() {
	v.direct()
	if len(v.chips) > 0 {
		v.switches()
	}
	v.outside()
}

// direct draws GPU to GPU links. Arcs of neighbours are shallow, arcs of
// distant GPUs deep, so that each can be followed.
func (v *hostView) direct() {
	place := map[*part]int{}
	for i, pt := range v.gpus {
		place[pt] = i
	}
	type arc struct {
		a, b *part
		l    topo.LinkID
	}
	var list []arc
	for _, a := range v.gpus {
		for _, e := range v.g.Edges(a.id) {
			if b := v.parts[e.Peer]; b != nil && b.kind == topo.GPU && place[a] < place[b] {
				list = append(list, arc{a, b, e.Link})
			}
		}
	}
	if len(list) == 0 {
		return
	}
	// Ends of arcs at one GPU stand side by side: the nearest peer outermost on its side, so that arcs nest.
	ends := map[*part][]arc{}
	for _, x := range list {
		ends[x.a] = append(ends[x.a], x)
		ends[x.b] = append(ends[x.b], x)
	}
	port := map[topo.LinkID]map[*part]float64{}
	for _, pt := range v.gpus {
		mine := ends[pt]
		other := func(x arc) *part {
			if x.a == pt {
				return x.b
			}
			return x.a
		}
		// Left to right: peers on the left, nearest first, then peers on the right, farthest first.
		slices.SortFunc(mine, func(x, y arc) int {
			dx, dy := place[other(x)]-place[pt], place[other(y)]-place[pt]
			if (dx < 0) != (dy < 0) {
				return cmp.Compare(dx, dy)
			}
			return cmp.Compare(dy, dx)
		})
		step := min((pt.box.W-12)/float64(max(len(mine)-1, 1)), 14)
		x0 := pt.box.Mid() - step*float64(len(mine)-1)/2
		for i, x := range mine {
			if port[x.l] == nil {
				port[x.l] = map[*part]float64{}
			}
			port[x.l][pt] = x0 + float64(i)*step
		}
	}
	y, deepest := v.y, 0.0
	var labels wiring
	for _, x := range list {
		xa, xb := port[x.l][x.a], port[x.l][x.b]
		depth := 18 + 26*float64(place[x.b]-place[x.a])
		depth = min(depth, 260)
		deepest = max(deepest, depth*0.75)
		v.wire((&svg.Pen{}).Move(xa, y).Curve(xa, y+depth, xb, y+depth, xb, y), x.l)
		if k := v.g.Links[x.l].Count; k > 1 {
			text := fmt.Sprintf("×%d", k)
			w := small.Width(text)
			for _, t := range []float64{0.5, 0.38, 0.62, 0.3, 0.7, 0.22, 0.78} { // the first place along the arc that is free
				x, dy := xa+(xb-xa)*t*t*(3-2*t), 3*depth*t*(1-t)
				if labels.keep([]svg.Label{{Text: text, Box: svg.Box{X: x - w/2, Y: y + dy - small.Height()/2, W: w, H: small.Height()}}}) {
					break
				}
			}
		}
	}
	labels.write(v.page)
	v.y += deepest + 16
}

// switches draws the NVSwitches of the host and the links to them.
func (v *hostView) switches() {
	gap := 130.0
	y := v.y + gap
	left, right := v.width, 0.0
	for _, pt := range v.gpus {
		left, right = min(left, pt.box.X), max(right, pt.box.Right())
	}
	if len(v.gpus) == 0 {
		left, right = margin, v.width-margin
	}
	const apart = 24.0
	n := float64(len(v.chips))
	wide, height := min((right-left-apart*(n-1))/n, 260), 0.0 // wide boxes keep the lines to them apart
	for _, pt := range v.chips {
		wide, height = max(wide, v.ownWidth(pt)), max(height, pt.height())
	}
	total := wide*n + apart*(n-1)
	v.width = max(v.width, total+2*margin)
	x := min(max((left+right)/2-total/2, margin), v.width-margin-total)
	for _, pt := range v.chips {
		pt.box = svg.Box{X: x, Y: y, W: wide, H: height}
		x += wide + apart
	}
	type join struct {
		gpu, sw *part
		l       topo.LinkID
	}
	var list []join
	for _, s := range v.chips {
		for _, e := range v.g.Edges(s.id) {
			if pt := v.parts[e.Peer]; pt != nil && pt.kind == topo.GPU {
				list = append(list, join{pt, s, e.Link})
			}
		}
	}
	if len(list) <= mostLines {
		for _, j := range list {
			i := slices.Index(v.gpus, j.gpu)
			step := (j.sw.box.W - 12) / float64(max(len(v.gpus)-1, 1))
			k := slices.Index(v.chips, j.sw)
			out := min((j.gpu.box.W-12)/float64(max(len(v.chips)-1, 1)), 14)
			x1 := j.gpu.box.Mid() + out*(float64(k)-float64(len(v.chips)-1)/2)
			x2 := j.sw.box.X + 6 + float64(i)*step
			v.thin((&svg.Pen{}).Move(x1, v.y).To(x2, y), j.l, 8)
		}
	} else if len(list) > 0 {
		// One band for each set of GPUs and switches that hang together: a DGX-2 has one a board.
		first := v.g.Hosts[v.h].First
		boards := newSets(int(v.g.Hosts[v.h].Count))
		for _, j := range list {
			boards.join(int(j.gpu.id-first), int(j.sw.id-first))
		}
		done := map[int]bool{}
		for _, j := range list {
			root := boards.find(int(j.gpu.id - first))
			if done[root] {
				continue
			}
			done[root] = true
			var part tally
			x1, x2, x3, x4 := v.width, 0.0, v.width, 0.0
			for _, k := range list {
				if boards.find(int(k.gpu.id-first)) == root {
					part.add(v.g, k.l)
					x1, x2 = min(x1, k.gpu.box.X), max(x2, k.gpu.box.Right())
					x3, x4 = min(x3, k.sw.box.X), max(x4, k.sw.box.Right())
				}
			}
			v.band(v.y, y, x1, x2, x3, x4, &part)
		}
	}
	// NVSwitch to NVSwitch, between the two boards of a DGX-2: arcs below.
	deep := 0.0
	var across []topo.LinkID
	for _, s := range v.chips {
		for _, e := range v.g.Edges(s.id) {
			if o := v.parts[e.Peer]; o != nil && o.kind == topo.NVSwitch && s.id < e.Peer {
				across = append(across, e.Link)
			}
		}
	}
	if len(across) <= mostLines {
		for _, l := range across {
			a, b := v.parts[v.g.Links[l].A].box, v.parts[v.g.Links[l].B].box
			depth := min(20+0.08*abs(b.Mid()-a.Mid()), 110)
			deep = max(deep, 0.75*depth)
			v.wire((&svg.Pen{}).Move(a.Mid(), a.Bottom()).Curve(a.Mid(), a.Bottom()+depth, b.Mid(), a.Bottom()+depth, b.Mid(), a.Bottom()), l)
		}
	}
	for _, pt := range v.chips {
		v.paintPart(pt)
	}
	v.y = y + height + deep + 10
}

// band draws many links as one ribbon with its count.
func (p *page) band(y1, y2, x1, x2, x3, x4 float64, t *tally) {
	k := t.kind(p.g)
	p.kinds[k] = true
	p.marks["ribbon"] = true
	pen := (&svg.Pen{}).Move(x1, y1).To(x2, y1).To(x4, y2).To(x3, y2).Close()
	p.c.Path(pen, t.text(p.g), svg.Class("ribbon "+k.String()))
	text := t.text(p.g)
	if plain.Width(text) > max(x2-x1, x4-x3) {
		text = "×" + thousands(t.links)
	}
	w := plain.Width(text)
	mid := min(max((x1+x2+x3+x4)/4, margin+w/2), p.width-margin-w/2)
	y := (y1+y2)/2 - plain.Height()/2
	p.c.Rect(svg.Box{X: mid - w/2 - 4, Y: y - 1, W: w + 8, H: plain.Height() + 2}, 3, "", svg.Class("plate"))
	p.c.Text(mid, y, svg.Middle, plain, text)
}

// outside draws one dashed box for the accelerator links that leave the host.
func (v *hostView) outside() {
	var sum tally
	peers := map[topo.NodeID]bool{}
	left, right := v.width, 0.0
	bottom := v.y
	for _, pt := range v.order {
		if pt.kind != topo.GPU && pt.kind != topo.NVSwitch {
			continue
		}
		for _, e := range v.g.Edges(pt.id) {
			if v.parts[e.Peer] == nil && v.g.Class(e.Link).Kind.Accelerator() {
				sum.add(v.g, e.Link)
				peers[e.Peer] = true
				left, right = min(left, pt.box.X), max(right, pt.box.Right())
				bottom = pt.box.Bottom()
			}
		}
	}
	if sum.links == 0 {
		return
	}
	ids := make([]topo.NodeID, 0, len(peers))
	for n := range peers {
		ids = append(ids, n)
	}
	slices.Sort(ids)
	name := span(len(ids), func(i int) string { return v.g.NodeName(ids[i]) })
	text := fmt.Sprintf("%s outside the host: %s", count(len(ids), word(v.g.Nodes[ids[0]].Kind)), name)
	bottom = max(bottom, v.y-16)
	y := bottom + 70
	w := min(max(right-left, strong.Width(text)+20, plain.Width(sum.text(v.g))+20), v.width-2*margin)
	x := min(max((left+right)/2-w/2, margin), v.width-margin-w)
	v.band(bottom, y, left, right, x, x+w, &sum)
	v.c.Rect(svg.Box{X: x, Y: y, W: w, H: 30}, 6, "", svg.Class("more"))
	v.c.Text(x+w/2, y+8, svg.Middle, strong, strong.Fit(text, w-12))
	v.y = y + 30
}

// table lists every sort of link of the host with exact figures, and what each
// GPU has in all.
func (v *hostView) table() {
	type key struct {
		a, b topo.Kind
		c    topo.ClassID
		n    uint16 // links a pair
	}
	counts := map[key]int{}
	var keys []key
	most := map[topo.NodeID]unit.Rate{}
	for _, pt := range v.order {
		for _, e := range v.g.Edges(pt.id) {
			in := v.parts[e.Peer] != nil
			if v.g.Class(e.Link).Kind.Accelerator() && pt.kind == topo.GPU && v.g.Nodes[e.Peer].Kind != topo.CPU {
				most[pt.id] += v.g.Rate(e.Link)
			}
			if in && e.Peer < pt.id {
				continue
			}
			k := key{pt.kind, v.g.Nodes[e.Peer].Kind, v.g.Links[e.Link].Class, v.g.Links[e.Link].Count}
			if k.a > k.b {
				k.a, k.b = k.b, k.a
			}
			if counts[k] == 0 {
				keys = append(keys, k)
			}
			counts[k]++
		}
	}
	slices.SortFunc(keys, func(x, y key) int {
		return cmp.Or(cmp.Compare(x.a, y.a), cmp.Compare(x.b, y.b), cmp.Compare(x.c, y.c), cmp.Compare(x.n, y.n))
	})
	var rows []string
	for _, k := range keys {
		text := fmt.Sprintf("%s to %s: %s × %s", word(k.a), word(k.b), thousands(counts[k]), rateTitle(&v.g.Classes[k.c]))
		if k.n > 1 {
			text = fmt.Sprintf("%s to %s: %s of %d × %s", word(k.a), word(k.b), count(counts[k], "pair"), k.n, rateTitle(&v.g.Classes[k.c]))
		}
		rows = append(rows, text)
	}
	if len(v.gpus) > 0 {
		least, top := most[v.gpus[0].id], most[v.gpus[0].id]
		for _, pt := range v.gpus {
			least, top = min(least, most[pt.id]), max(top, most[pt.id])
		}
		switch {
		case top == 0:
		case least == top:
			rows = append(rows, fmt.Sprintf("each GPU: %s each way over accelerator links, %s", top, top.BothWays()))
		default:
			rows = append(rows, fmt.Sprintf("a GPU: %s to %s each way over accelerator links", least, top))
		}
	}
	v.y += 22
	v.c.Text(margin, v.y, svg.Start, strong, "Links, exactly")
	v.y += strong.Size*leading + 2
	width := 0.0
	for _, r := range rows {
		width = max(width, plain.Width(r)+30)
	}
	cols := max(1, min(3, int((v.width-2*margin)/max(width, 1))))
	per := (len(rows) + cols - 1) / cols
	colWidth := (v.width - 2*margin) / float64(cols)
	for i, r := range rows {
		v.c.Text(margin+float64(i/per)*colWidth, v.y+float64(i%per)*plain.Size*1.4, svg.Start, plain, plain.Fit(r, colWidth-10), svg.Class("dim"))
	}
	v.y += float64(per) * plain.Size * 1.4
}

func word(k topo.Kind) string {
	switch k {
	case topo.GPU:
		return "GPU"
	case topo.CPU:
		return "CPU"
	case topo.NIC:
		return "NIC"
	case topo.RootPort:
		return "root port"
	case topo.PCIeSwitch:
		return "PCIe switch"
	case topo.NVSwitch:
		return "NVSwitch"
	}
	return k.String()
}
