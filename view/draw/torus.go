package draw

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/view/draw/svg"
)

// torusView draws a torus as layers of its first two dimensions, side by side
// along the others.
type torusView struct {
	*page
	pn     *panel
	dims   []int
	unit   string // "chip" or "switch"
	class  string
	steps  []tally // links along each dimension
	wraps  []tally // those of them that close a ring
	local  tally   // links to hosts
	other  int     // links that are neither
	pitch  float64
	cols   []int // shown coordinates of the first dimension, -1 for the gap
	rows   []int
	layers []pick
}

// torus draws a torus as a grid. One whose nodes do not fill its dimensions is drawn as tiers.
func (p *page) torus(pn *panel) {
	v := &torusView{page: p, pn: pn, dims: p.g.Fabrics[pn.fabric].Dims, unit: "chip", class: "gpu"}
	nodes := len(pn.chips)
	if nodes == 0 {
		v.unit, v.class, nodes = "switch", "switch", len(pn.switches)
	}
	if !v.regular(nodes) {
		p.tiers(pn)
		return
	}
	p.section(pn.title)
	v.tally()
	v.draw()
}

// regular reports whether the structure holds all that is there: every node has
// a place of its own in the grid, chips and switches are not mixed, and the grid is not mostly empty.
func (v *torusView) regular(nodes int) bool {
	volume := 1
	for _, d := range v.dims {
		if d < 1 || volume > 4*nodes {
			return false
		}
		volume *= d
	}
	if len(v.dims) == 0 || volume < nodes || volume > 4*nodes || len(v.pn.chips) > 0 && len(v.pn.switches) > 0 {
		return false
	}
	return v.placed(volume) == nodes
}

// placed counts the nodes that are in the first places of the grid.
func (v *torusView) placed(volume int) (n int) {
	for i := range volume {
		if at := v.g.At(v.pn.fabric, i); at != topo.None && v.pn.mine[at] {
			n++
		}
	}
	return n
}

// tally counts links by the dimension they run along.
func (v *torusView) tally() {
	v.steps, v.wraps = make([]tally, len(v.dims)), make([]tally, len(v.dims))
	for i := range v.g.Links {
		l := &v.g.Links[i]
		a, b := v.pn.mine[l.A], v.pn.mine[l.B]
		switch {
		case a && b:
			if d, wrap := v.along(v.g.Nodes[l.A].Pos, v.g.Nodes[l.B].Pos); d >= 0 {
				v.steps[d].add(v.g, topo.LinkID(i))
				if wrap {
					v.wraps[d].add(v.g, topo.LinkID(i))
				}
			} else {
				v.other += int(l.Count)
			}
		case (a || b) && v.unit == "switch":
			v.local.add(v.g, topo.LinkID(i))
		}
	}
}

// along gives the dimension in which two positions differ by one step, and whether the step closes a ring.
func (v *torusView) along(a, b int32) (dim int, wrap bool) {
	if a < 0 || b < 0 {
		return -1, false
	}
	x, y := int(a), int(b)
	found := -1
	for d, n := range v.dims {
		if cx, cy := x%n, y%n; cx != cy {
			step := max(cx-cy, cy-cx)
			if found >= 0 || step != 1 && step != n-1 {
				return -1, false
			}
			found, wrap = d, step == n-1 && n > 2
		}
		x, y = x/n, y/n
	}
	return found, wrap
}

func axis(d int) string {
	if d < 4 {
		return string("xyzw"[d])
	}
	return fmt.Sprintf("axis %d", d+1)
}

// shown lists coordinates 0..n-1, with a gap where there are too many.
func shown(n, most int) []int {
	var list []int
	for i := range n {
		switch {
		case n <= most || i < most-4 || i >= n-3:
			list = append(list, i)
		case i == most-4:
			list = append(list, -1)
		}
	}
	return list
}

// draw shows as many layers as fit at a readable size, and leaves out the middle of the others.
func (v *torusView) draw() {
	second := 1
	if len(v.dims) > 1 {
		second = v.dims[1]
	}
	v.cols, v.rows = shown(v.dims[0], 32), shown(second, 32)
	layers := 1
	for _, d := range v.dims[min(2, len(v.dims)):] {
		layers *= d
	}
	x0 := margin + gutter
	body := v.width - margin - x0
	wide, high := float64(len(v.cols)), float64(len(v.rows))
	const edge, apart, more = 34.0, 40.0, 96.0
	sigs := make([]string, layers)
	for n := layers; n >= 1; n-- { // as many layers as fit at a readable size
		v.layers = choices(sigs, n)
		room := body - apart*float64(len(v.layers)-1)
		k := 0.0
		for _, pk := range v.layers {
			if pk.index < 0 {
				room -= more
			} else {
				k++
			}
		}
		v.pitch = min((room/k-2*edge)/wide, 46, 460/high)
		if v.pitch >= 15 {
			break
		}
	}
	v.pitch = max(v.pitch, 13)
	w, h := wide*v.pitch+2*edge, high*v.pitch+2*edge
	total := 0.0
	for i, pk := range v.layers {
		if i > 0 {
			total += apart
		}
		if pk.index < 0 {
			total += more
		} else {
			total += w
		}
	}
	if total > body {
		v.width += total - body
		body = total
	}
	top := v.y
	x := x0 + (body-total)/2
	var first, last svg.Box
	for i, pk := range v.layers {
		var b svg.Box
		if pk.index < 0 {
			b = svg.Box{X: x, Y: top, W: more, H: h}
			v.elide(b, pk)
		} else {
			b = svg.Box{X: x, Y: top, W: w, H: h}
			v.layer(b, edge, pk.index)
		}
		if i > 0 {
			y := top + h/2
			v.c.Line(last.Right(), y, b.X, y, "along "+axis(2)+": "+v.steps[min(2, len(v.steps)-1)].text(v.g), svg.Class("line "+v.kind()),
				svg.Stroke(4))
		} else {
			first = b
		}
		last = b
		x = b.Right() + apart
	}
	bottom := top + h
	if len(v.dims) > 2 {
		bottom += 24
		if v.wraps[2].links > 0 && len(v.layers) > 1 {
			y := top + h + 20
			pen := (&svg.Pen{}).Move(first.Mid(), top+h+18).Curve(first.Mid(), y+44, last.Mid(), y+44, last.Mid(), top+h+18)
			v.c.Path(pen, "wraps around in "+axis(2)+": "+v.wraps[2].text(v.g), svg.Class("line "+v.kind()), svg.Stroke(4))
			bottom = y + 40
		}
	}
	v.y = max(bottom, v.notes(top))
}

func (v *torusView) kind() string {
	for i := range v.steps {
		if k := v.steps[i].kind(v.g); k != 0 {
			v.kinds[k] = true
			return k.String()
		}
	}
	return "ici"
}

// layerName says where a layer lies on the axes beyond the second.
func (v *torusView) layerName(i int) string {
	var parts []string
	for d := 2; d < len(v.dims); d++ {
		parts = append(parts, fmt.Sprintf("%s = %d", axis(d), i%v.dims[d]))
		i /= v.dims[d]
	}
	return strings.Join(parts, ", ")
}

// layer draws one grid; nodes lie at edge inside the box, wrap-around links in the edge.
func (v *torusView) layer(b svg.Box, edge float64, index int) {
	plane := v.dims[0]
	if len(v.dims) > 1 {
		plane *= v.dims[1]
	}
	nodes := 0
	for i := range plane {
		if v.g.At(v.pn.fabric, index*plane+i) != topo.None {
			nodes++
		}
	}
	v.marks["square-"+v.unit] = true
	v.c.Group("", svg.Data(plural(2, v.unit), nodes))
	if len(v.dims) > 2 {
		v.c.Rect(b, 8, "", svg.Class("pod"))
		v.c.Text(b.Mid(), b.Bottom()+3, svg.Middle, strong, v.layerName(index))
	}
	kind := v.kind()
	size := v.pitch * 0.66
	cx := func(i int) float64 { return b.X + edge + (float64(i)+0.5)*v.pitch }
	cy := func(i int) float64 { return b.Y + edge + (float64(i)+0.5)*v.pitch }
	left, right, top, bottom := cx(0), cx(len(v.cols)-1), cy(0), cy(len(v.rows)-1)
	width := svg.Stroke(min(2.5, v.pitch/8))
	line := svg.Class("line " + kind)
	for i, r := range v.rows {
		if r < 0 {
			continue
		}
		v.c.Line(left, cy(i), right, cy(i), "", line, width)
		v.stub(v.wraps[0].links > 0 && v.dims[0] > 2, i == 0, left, cy(i), right, cy(i), edge, line, width)
	}
	if len(v.dims) > 1 {
		for i, c := range v.cols {
			if c < 0 {
				continue
			}
			v.c.Line(cx(i), top, cx(i), bottom, "", line, width)
			v.stub(v.wraps[1].links > 0 && v.dims[1] > 2, i == 0, cx(i), top, cx(i), bottom, edge, line, width)
		}
	}
	for j, r := range v.rows {
		for i, c := range v.cols {
			at := svg.Box{X: cx(i) - size/2, Y: cy(j) - size/2, W: size, H: size}
			if r < 0 || c < 0 {
				v.c.Rect(svg.Box{X: cx(i) - 8, Y: cy(j) - 5, W: 16, H: 10}, 3, "", svg.Class("plate"))
				v.c.Text(cx(i), cy(j)-small.Height()/2-2, svg.Middle, small, "…")
				continue
			}
			if n := v.g.At(v.pn.fabric, index*plane+r*v.dims[0]+c); n != topo.None {
				v.c.Rect(at, 2, v.g.NodeName(n), svg.Class(v.class))
			}
		}
	}
	v.c.End()
}

// stub draws the ring's closing link: in full around the first row or column, as two short ends elsewhere.
func (v *torusView) stub(wraps, full bool, x1, y1, x2, y2, edge float64, attrs ...svg.Attr) {
	if !wraps {
		return
	}
	out := edge*0.45 + v.pitch/2
	dx, dy := 0.0, 0.0
	if y1 == y2 {
		dx = out
	} else {
		dy = out
	}
	if !full {
		v.c.Line(x1-dx, y1-dy, x1, y1, "", attrs...)
		v.c.Line(x2, y2, x2+dx, y2+dy, "", attrs...)
		return
	}
	// Around the outside: away from the first node, along the edge of the box, and back to the last.
	pen := &svg.Pen{}
	if dx > 0 {
		top := y1 - v.pitch/2 - edge*0.5
		pen.Move(x1, y1).Curve(x1-dx*1.5, y1, x1-dx*1.5, top, x1, top).To(x2, top).Curve(x2+dx*1.5, top, x2+dx*1.5, y2, x2, y2)
	} else {
		left := x1 - v.pitch/2 - edge*0.5
		pen.Move(x1, y1).Curve(x1, y1-dy*1.5, left, y1-dy*1.5, left, y1).To(left, y2).Curve(left, y2+dy*1.5, x2, y2+dy*1.5, x2, y2)
	}
	v.c.Path(pen, "wraps around", attrs...)
}

func (v *torusView) elide(b svg.Box, pk pick) {
	plane := v.dims[0] * v.dims[1] // only a grid of three dimensions has layers to leave out
	nodes := 0
	for i := pk.from * plane; i < pk.to*plane; i++ {
		if v.g.At(v.pn.fabric, i) != topo.None {
			nodes++
		}
	}
	v.c.Group("", svg.Data(plural(2, v.unit), nodes))
	v.c.Rect(b, 8, "", svg.Class("more"))
	y := b.Y + b.H/2 - 34
	for i, l := range []string{fmt.Sprintf("… %d more", pk.to-pk.from), "layers", "like this", count(nodes, v.unit)} {
		f := small
		if i == 0 {
			f = strong
		}
		v.c.Text(b.Mid(), y, svg.Middle, f, l)
		y += 16
	}
	v.c.End()
}

// linksAlong says what links there are along a dimension. One of two has no room for a ring.
func (v *torusView) linksAlong(d int) string {
	if v.steps[d].links == 0 {
		return "no links"
	}
	text := v.steps[d].text(v.g)
	if n := v.wraps[d].links; n > 0 {
		return text + fmt.Sprintf("; %s of them wrap around", thousands(n))
	}
	if v.dims[d] > 2 {
		return text + "; no wrap-around"
	}
	return text
}

// notes writes the left column and gives the y below it.
func (v *torusView) notes(y float64) float64 {
	var size []string
	for _, d := range v.dims {
		size = append(size, fmt.Sprint(d))
	}
	v.c.Group("", svg.Data("hosts", len(v.pn.hosts)))
	defer v.c.End()
	write := func(f svg.Font, text, class string) { y = v.paragraph(margin, y, gutter-20, f, text, class) + 3 }
	write(large, strings.Join(size, " × ")+" "+plural(2, v.unit), "")
	for d := range v.dims {
		write(small, fmt.Sprintf("along %s: %s", axis(d), v.linksAlong(d)), "dim")
	}
	for d, drawn := range [][]int{v.cols, v.rows} {
		if k := len(drawn) - 1; slices.Contains(drawn, -1) {
			write(small, fmt.Sprintf("along %s %d of %d are drawn, the last after the …", axis(d), k, v.dims[d]), "dim")
		}
	}
	if v.local.links > 0 {
		write(small, "host to switch: "+v.local.text(v.g), "dim")
	}
	if v.other > 0 {
		write(small, fmt.Sprintf("%s beyond the grid, not drawn", count(v.other, "link")), "dim")
	}
	write(large, "Hosts", "")
	text := models(len(v.pn.hosts), func(i int) string { return v.g.Hosts[v.pn.hosts[i]].Model }, "host")
	if n := len(v.pn.chips); n > 0 {
		text += fmt.Sprintf(", %s", count(n, "chip"))
	}
	write(small, text, "dim")
	write(small, "closing links are drawn around the first row and column; all rows and columns close alike", "dim")
	return y
}
