package synth

import (
	"slices"

	"github.com/weft-fabric/weft/model/sets"
)

// mirror finds for every edge the one that carries as much the other way; it gives
// nil where some edge has none. Nodes are their own mirrors, but for a part that is
// there once for each direction, as PCIe on the way to a NIC is: both have one name.
func (n *Net) mirror() []int {
	other := make([]int, n.Nodes())
	known := map[string]int{}
	for v, name := range n.Names {
		other[v] = v
		if u, ok := known[name]; ok && v >= n.Ranks && u >= n.Ranks {
			other[u], other[v] = v, u
		}
		known[name] = v
	}
	at := make(map[[2]int]int, len(n.Edges))
	for i, e := range n.Edges {
		at[[2]int{e.From, e.To}] = i
	}
	back := make([]int, len(n.Edges))
	for i, e := range n.Edges {
		j, ok := at[[2]int{other[e.To], other[e.From]}]
		if !ok || n.Edges[j].Cap != e.Cap || at[[2]int{e.From, e.To}] != i {
			return nil
		}
		back[i] = j
	}
	return back
}

// even reports whether links carry as much one way as the other.
func (n *Net) even() bool { return n.mirror() != nil }

// refined tells nodes apart that have other links than others to nodes that were
// told apart already, until nothing changes. Nodes that stay alike keep one colour;
// colours are numbers that depend on links alone and not on the nodes' numbers.
func (n *Net) refined(colour []uint64, in, out [][]int) []uint64 {
	kinds := func(list []uint64) int {
		seen := make(map[uint64]bool, len(list))
		for _, c := range list {
			seen[c] = true
		}
		return len(seen)
	}
	for classes := kinds(colour); ; {
		next := make([]uint64, len(colour))
		for v, c := range colour {
			sum := scramble(c)
			for _, i := range out[v] {
				sum += scramble(colour[n.Edges[i].To] + 3*scramble(uint64(n.Edges[i].Cap)))
			}
			for _, i := range in[v] {
				sum += scramble(colour[n.Edges[i].From] + 5*scramble(uint64(n.Edges[i].Cap)))
			}
			next[v] = scramble(sum)
		}
		now := kinds(next)
		if now == classes {
			return colour
		}
		colour, classes = next, now
	}
}

// plainColours are ranks and switches.
func (n *Net) plainColours() []uint64 {
	colour := make([]uint64, n.Nodes())
	for v := n.Ranks; v < n.Nodes(); v++ {
		colour[v] = 1
	}
	return colour
}

// colours numbers nodes so that alike ones have the same number: those with as
// many links of each capacity to and from each number.
func (n *Net) colours() []int {
	in, out := n.sides()
	number := map[uint64]int{}
	list := make([]int, n.Nodes())
	for v, c := range n.refined(n.plainColours(), in, out) {
		k, ok := number[c]
		if !ok {
			k = len(number)
			number[c] = k
		}
		list[v] = k
	}
	return list
}

// alike numbers nodes and edges so that alike ones have the same number: by orbits, and
// by colours where orbits would take too long.
func (n *Net) alike() (nodes, edges []int) {
	if n.Ranks <= mostPaired {
		return n.orbits(nil)
	}
	nodes = n.colours()
	number := map[[3]int64]int{}
	for _, e := range n.Edges {
		key := [3]int64{int64(nodes[e.From]), int64(nodes[e.To]), e.Cap}
		k, ok := number[key]
		if !ok {
			k = len(number)
			number[key] = k
		}
		edges = append(edges, k)
	}
	return nodes, edges
}

// orbits numbers nodes and edges so that those with the same number can take one
// another's place: there is a renumbering of nodes that keeps all links and takes one
// to the other. What is best for the network is then best with alike values for them,
// as the mean over all renumberings shows. Alike nodes that were not found to be so
// only make work. Ranks of different weights, if there are any, are not alike.
func (n *Net) orbits(weight []int64) (nodes, edges sets.Sets[int]) {
	in, out := n.sides()
	at := make(map[[2]int]int, len(n.Edges))
	for i, e := range n.Edges {
		at[[2]int{e.From, e.To}] = i
	}
	nodes, edges = sets.New[int](n.Nodes()), sets.New[int](len(n.Edges))
	colour := n.plainColours()
	for r, w := range weight {
		colour[r] = scramble(uint64(w) + 2)
	}
	colour = n.refined(colour, in, out)
	first := map[uint64]int{}
	for v, c := range colour {
		u, ok := first[c]
		if !ok {
			first[c] = v
			continue
		}
		if nodes.Find(u) == nodes.Find(v) {
			continue
		}
		to := n.renumbering(colour, u, v, in, out, at)
		if to == nil {
			continue
		}
		for x, y := range to {
			nodes.Join(x, y)
		}
		for i, e := range n.Edges {
			edges.Join(i, at[[2]int{to[e.From], to[e.To]}])
		}
	}
	nodes.Flatten()
	edges.Flatten()
	return nodes, edges
}

// kept is a renumbering if it keeps all links, as wide as they are, and nil if it does not.
func (n *Net) kept(to []int, at map[[2]int]int) []int {
	for _, e := range n.Edges {
		if i, ok := at[[2]int{to[e.From], to[e.To]}]; !ok || n.Edges[i].Cap != e.Cap {
			return nil
		}
	}
	return to
}

// renumbering looks for one that takes u to v and keeps all links; nil for none. Nodes
// are told apart by u on one side and v on the other; those that are still alike then
// stay what they are if they can, one after the other.
func (n *Net) renumbering(colour []uint64, u, v int, in, out [][]int, at map[[2]int]int) []int {
	a, b := slices.Clone(colour), slices.Clone(colour)
	for mark := uint64(1); ; mark++ {
		a[u], b[v] = scramble(a[u]+mark), scramble(b[v]+mark)
		a, b = n.refined(a, in, out), n.refined(b, in, out)
		have := map[uint64][]int{}
		for y, c := range b {
			have[c] = append(have[c], y)
		}
		open := -1
		seen := map[uint64]int{}
		for x, c := range a {
			if seen[c]++; seen[c] > len(have[c]) {
				return nil
			}
			if open < 0 && len(have[c]) > 1 {
				open = x
			}
		}
		if open < 0 {
			to := make([]int, len(a))
			for x, c := range a {
				to[x] = have[c][0]
			}
			return n.kept(to, at)
		}
		u, v = open, have[a[open]][0]
		if b[open] == a[open] {
			v = open
		}
	}
}

// tight gives the network with no link wider than what can come into it or go on from
// it: switches pass on what they take. What flows between ranks stays the same.
func (n *Net) tight() *Net {
	t := *n
	t.Edges = slices.Clone(n.Edges)
	for again := true; again; {
		again = false
		in, out := make([]int64, n.Nodes()), make([]int64, n.Nodes())
		for _, e := range t.Edges {
			in[e.To] += e.Cap
			out[e.From] += e.Cap
		}
		back := make(map[[2]int]int64, len(t.Edges))
		for _, e := range t.Edges {
			back[[2]int{e.To, e.From}] = e.Cap
		}
		for i := range t.Edges {
			e := &t.Edges[i]
			most := e.Cap
			turns := back[[2]int{e.From, e.To}] // nothing goes back where it came from
			if e.From >= n.Ranks {
				most = min(most, in[e.From]-turns)
			}
			if e.To >= n.Ranks {
				most = min(most, out[e.To]-turns)
			}
			if most < e.Cap {
				e.Cap, again = max(most, 0), true
			}
		}
	}
	return &t
}
