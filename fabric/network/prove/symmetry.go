package prove

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/model/sets"
)

// A fabric of thousands of switches has few that differ. A symmetry is a renaming of routers, AS numbers
// and areas under which everything that the prover reads stays the same: sessions, cables and their MTUs,
// who shares a number, who sends from where and how much, who advertises what. It takes classes of targets
// to classes, and whatever is decided for one of them holds for the other. So one class of each orbit is
// decided; where it is refuted, all of its orbit are, so that counterexamples and counts are complete.
//
// Symmetries are drawn at random: in two copies of the network, a part of one and a part of the other that
// nothing tells apart yet are declared to be the same, and what follows from that is refined, until every
// part has its image. Each is then verified part by part and edge by edge. A symmetry that is not found
// costs time, and one that is not there is never used.

// web is a network as symmetries see it: nodes of some colour, and at most one edge between two, with a label.
type web struct {
	colour []int32
	edges  [][]webEdge
	names  map[string]int32
	joined map[[2]int32]string
}

type webEdge struct{ to, label int32 }

// name gives equal texts equal numbers.
func (w *web) name(text string) int32 {
	id, ok := w.names[text]
	if !ok {
		id = int32(len(w.names))
		w.names[text] = id
	}
	return id
}

func (w *web) node(colour ...any) int32 {
	w.colour = append(w.colour, w.name(fmt.Sprintln(colour...)))
	return int32(len(w.colour) - 1)
}

// join adds to what is between two nodes. The order of calls is that of the files, so what is
// between two nodes is sorted in the end.
func (w *web) join(a, b int32, what string) {
	key := [2]int32{min(a, b), max(a, b)}
	w.joined[key] += what + "\n"
}

// done makes edges of what was joined.
func (w *web) done() {
	w.edges = make([][]webEdge, len(w.colour))
	keys := make([][2]int32, 0, len(w.joined))
	for k := range w.joined {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]int32) int { return slices.Compare(a[:], b[:]) })
	for _, k := range keys {
		label := w.name("edge " + sortedLines(w.joined[k]))
		w.edges[k[0]] = append(w.edges[k[0]], webEdge{k[1], label})
		w.edges[k[1]] = append(w.edges[k[1]], webEdge{k[0], label})
	}
	w.joined = nil
}

func sortedLines(text string) string {
	var lines []string
	for at := 0; at < len(text); {
		end := at
		for text[end] != '\n' {
			end++
		}
		lines = append(lines, text[at:end])
		at = end + 1
	}
	slices.Sort(lines)
	return fmt.Sprint(lines)
}

// web draws the network; classes are its last nodes.
func (p *prover) web() *web {
	n := p.n
	w := &web{names: map[string]int32{}, joined: map[[2]int32]string{}}
	asns := map[uint32]int32{}
	for _, d := range n.routers {
		if d.BGP == nil {
			w.node("router without BGP", p.buffers.level[d.id])
		} else {
			w.node("router", d.BGP.Relax, d.BGP.MaxPaths, p.buffers.level[d.id])
		}
	}
	for _, d := range n.routers {
		if d.BGP == nil {
			continue
		}
		a, ok := asns[d.BGP.ASN]
		if !ok {
			a = w.node("number")
			asns[d.BGP.ASN] = a
		}
		w.join(d.id, a, "has")
	}
	p.webCables(w)
	p.webAreas(w)
	w.done()
	return w
}

// webCables joins routers: each cable with what it carries, and whether both ends speak BGP over it.
func (p *prover) webCables(w *web) {
	speaks := make([]bool, len(p.n.cables))
	for _, list := range p.n.sessions {
		for _, e := range list {
			speaks[e.cable] = true
		}
	}
	for i := range p.n.cables {
		if c := &p.n.cables[i]; c.trunk() {
			mtu := min(c.mtu(), p.largest) // what is large enough is alike
			w.join(c.a.on.id, c.b.on.id, fmt.Sprint(mtu, speaks[i], p.buffers.lossless[i]))
		}
	}
}

// webAreas joins areas to their groups, to the routers at which their packets enter, and to their targets' classes.
func (p *prover) webAreas(w *web) {
	groups, areas, nets := map[string]int32{}, make([]int32, len(p.areas)), p.webNets(w)
	for i := range p.areas {
		a := &p.areas[i]
		if _, ok := groups[a.Group]; !ok {
			groups[a.Group] = w.node("group")
		}
		areas[i] = w.node("area", a.Open)
		w.join(areas[i], groups[a.Group], "in")
	}
	for _, l := range p.legs {
		for _, s := range l.sources {
			x := w.node("source", s.count, s.mtu, s.open)
			w.join(x, s.router, "at")
			w.bridge(x, &s.bridge, nets)
			w.join(x, areas[l.from], "from")
			w.join(x, areas[l.to], "to")
		}
	}
	for _, c := range p.classes {
		x := w.node("class")
		w.bridge(x, &c.bridge, nets)
		for _, r := range c.chain[0].origins {
			w.join(x, r, "origin")
		}
		for _, r := range c.chain[0].connected {
			w.join(x, r, "connected")
		}
		for i, count := range c.count {
			if count > 0 {
				w.join(x, areas[i], fmt.Sprint("targets ", count))
			}
		}
	}
}

// orbits gives each class the first class that a symmetry takes to it, itself if there is none.
func (p *prover) orbits() []int {
	up := sets.New[int](len(p.classes))
	if len(p.classes) < 8 || slices.ContainsFunc(p.classes, func(c *class) bool { return len(c.chain) > 1 || len(c.chain[0].shut) > 0 }) {
		return up
	}
	w := p.web()
	first := len(w.colour) - len(p.classes)
	rng := rand.New(rand.NewPCG(1, 7))
	for fruitless := 0; fruitless < 3; {
		fruitless++
		to := w.symmetry(rng)
		if to == nil || !w.verify(to) {
			continue
		}
		for i := range up {
			if up.Join(i, int(to[first+i])-first) {
				fruitless = 0
			}
		}
	}
	up.Flatten()
	return up
}

// verify reports whether a renaming leaves everything as it is.
func (w *web) verify(to []int32) bool {
	label := make([]int32, len(to))
	stamp := make([]int32, len(to))
	for v := range to {
		at := to[v]
		if w.colour[v] != w.colour[at] || len(w.edges[v]) != len(w.edges[at]) {
			return false
		}
		for _, e := range w.edges[at] {
			label[e.to], stamp[e.to] = e.label, int32(v)+1
		}
		for _, e := range w.edges[v] {
			if stamp[to[e.to]] != int32(v)+1 || label[to[e.to]] != e.label {
				return false
			}
		}
	}
	return true
}

// symmetry draws a renaming that may be a symmetry; nil if it came to nothing.
func (w *web) symmetry(rng *rand.Rand) []int32 {
	n := len(w.colour)
	r := newRefiner(w)
	r.run()
	for at := 0; at < len(r.cells); {
		c := r.cells[at]
		left, right := r.sides(c, rng)
		switch {
		case left < 0 || right < 0 || r.left != c.size-r.left:
			return nil
		case c.size == 2:
			at++
		default:
			r.split(int32(at), left, right)
			r.run()
		}
	}
	to := make([]int32, n)
	for _, c := range r.cells {
		a, b := r.elems[c.first], r.elems[c.first+1]
		to[min(a, b)] = max(a, b) - int32(n)
	}
	return to
}

// refiner sorts the nodes of two copies of a web into cells of nodes that nothing tells apart. Node v of the
// web is v in the first copy and n+v in the second.
type refiner struct {
	w       *web
	n       int32
	elems   []int32 // all nodes, cell by cell
	pos     []int32 // of each node in elems
	cell    []int32 // of each node
	cells   []cellRange
	queue   []int32 // cells to split others by
	queued  []bool
	sum     []uint64 // of what a node has to the cell at hand
	touched []int32  // nodes with a sum
	left    int32    // nodes of the first copy in the cell that sides looked at
	spread  []uint64 // a random number for each label
}

type cellRange struct{ first, size int32 }

func newRefiner(w *web) *refiner {
	n := int32(len(w.colour))
	r := &refiner{w: w, n: n, elems: make([]int32, 2*n), pos: make([]int32, 2*n), cell: make([]int32, 2*n), sum: make([]uint64, 2*n)}
	for i := range r.elems {
		r.elems[i] = int32(i)
	}
	slices.SortStableFunc(r.elems, func(a, b int32) int { return int(w.colour[a%n]) - int(w.colour[b%n]) })
	for i, v := range r.elems {
		if i == 0 || w.colour[v%n] != w.colour[r.elems[i-1]%n] {
			r.cells = append(r.cells, cellRange{first: int32(i)})
			r.queue, r.queued = append(r.queue, int32(len(r.cells)-1)), append(r.queued, true)
		}
		c := int32(len(r.cells) - 1)
		r.pos[v], r.cell[v] = int32(i), c
		r.cells[c].size++
	}
	source := rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), 5)))
	r.spread = make([]uint64, len(w.names))
	for i := range r.spread {
		r.spread[i] = source.Uint64()
	}
	return r
}

// sides picks a node of the first copy and one of the second in a cell, and counts those of the first.
func (r *refiner) sides(c cellRange, rng *rand.Rand) (left, right int32) {
	left, right = -1, -1
	r.left = 0
	seconds := 0
	for _, v := range r.elems[c.first : c.first+c.size] {
		if v < r.n {
			if r.left++; left < 0 {
				left = v
			}
			continue
		}
		if seconds++; rng.IntN(seconds) == 0 {
			right = v
		}
	}
	return left, right
}

// split makes a cell of some nodes of a cell.
func (r *refiner) split(at int32, nodes ...int32) {
	c := &r.cells[at]
	end := c.first + c.size
	for i, v := range nodes {
		to := end - 1 - int32(i)
		other := r.elems[to]
		r.elems[to], r.elems[r.pos[v]] = v, other
		r.pos[other], r.pos[v] = r.pos[v], to
	}
	c.size -= int32(len(nodes))
	r.cut(end-int32(len(nodes)), int32(len(nodes)), at)
}

// cut makes a cell of a part of another's elements, and has the smaller of both split others.
func (r *refiner) cut(first, size, from int32) {
	fresh := int32(len(r.cells))
	r.cells, r.queued = append(r.cells, cellRange{first, size}), append(r.queued, false)
	for _, v := range r.elems[first : first+size] {
		r.cell[v] = fresh
	}
	next := fresh
	if !r.queued[from] && r.cells[from].size < size {
		next = from
	}
	r.queued[next] = true
	r.queue = append(r.queue, next)
}

// run splits cells until none tells nodes of another apart.
func (r *refiner) run() {
	for len(r.queue) > 0 {
		at := r.queue[len(r.queue)-1]
		r.queue = r.queue[:len(r.queue)-1]
		r.queued[at] = false
		r.by(at)
	}
}

// by splits all cells by what their nodes have to one.
func (r *refiner) by(at int32) {
	r.touched = r.touched[:0]
	c := r.cells[at]
	for _, v := range r.elems[c.first : c.first+c.size] {
		copied := v - v%r.n
		for _, e := range r.w.edges[v%r.n] {
			u := e.to + copied
			if r.sum[u] == 0 {
				r.touched = append(r.touched, u)
			}
			r.sum[u] += r.spread[e.label]
		}
	}
	slices.SortFunc(r.touched, func(a, b int32) int {
		return cmp.Or(cmp.Compare(r.cell[a], r.cell[b]), cmp.Compare(r.sum[a], r.sum[b]))
	})
	for i := 0; i < len(r.touched); {
		cell, end := r.cell[r.touched[i]], i
		for end < len(r.touched) && r.cell[r.touched[end]] == cell {
			end++
		}
		r.parts(cell, r.touched[i:end])
		i = end
	}
	for _, u := range r.touched {
		r.sum[u] = 0
	}
}

// parts splits a cell by the sums of those of its nodes that have any, which are sorted by them.
func (r *refiner) parts(cell int32, nodes []int32) {
	if int32(len(nodes)) == r.cells[cell].size { // the first stay
		i := 0
		for i < len(nodes) && r.sum[nodes[i]] == r.sum[nodes[0]] {
			i++
		}
		nodes = nodes[i:]
	}
	for i := 0; i < len(nodes); {
		end := i
		for end < len(nodes) && r.sum[nodes[end]] == r.sum[nodes[i]] {
			end++
		}
		r.split(cell, nodes[i:end]...)
		i = end
	}
}
