package synth

import (
	"cmp"
	"slices"
)

// Share is the part of what one rank sends another that takes a link.
type Share struct {
	From, To int // nodes
	Part     float64
}

// Routes says which links carry what two ranks send one another, for those pairs whose bytes do not
// all take the only shortest way: a plan that counts on a switch beside a direct link is only as good as its
// messages are split over both. Links of a pair are in the order of its ways. It is nil where all pairs have
// one shortest way, or where trees were made by filling links.
func (p *Plan) Routes() map[[2]int][]Share {
	type link = [2]int
	load := map[[2]int]map[link]float64{} // by pair of ranks and link
	order := map[[2]int][]link{}
	longer := map[[2]int]bool{}
	add := func(t *Tree, up bool, weight float64) {
		if t == nil || t.made == nil {
			return
		}
		if t.was != nil { // its links are those of the tree as it was packed, up and down
			t = t.was
		}
		for child, parent := range t.Parent {
			if parent < 0 {
				continue
			}
			pair := [2]int{parent, child}
			if up {
				pair = [2]int{child, parent}
			}
			if load[pair] == nil {
				load[pair] = map[link]float64{}
			}
			t.made.spread(parent, child, weight, 0, func(u, v int, part float64, hops int) {
				l := link{u, v}
				if up {
					l = link{v, u}
				}
				if load[pair][l] == 0 {
					order[pair] = append(order[pair], l)
				}
				load[pair][l] += part
				longer[pair] = longer[pair] || hops > t.made.far[parent][child]
			})
		}
	}
	for _, w := range p.Ways {
		add(w.Up, true, float64(w.Weight))
		add(w.Down, false, float64(w.Weight))
	}
	for pair, links := range p.roads {
		load[pair], longer[pair] = links, !p.Net.onlyWay(pair, len(links))
		for l := range links {
			order[pair] = append(order[pair], l)
		}
		slices.SortFunc(order[pair], func(a, b link) int { return cmp.Or(a[0]-b[0], a[1]-b[1]) })
	}
	var routes map[[2]int][]Share
	for pair, links := range order {
		if !longer[pair] && p.Net.onlyWay(pair, len(links)) {
			continue
		}
		var sum float64
		for _, l := range links {
			if l[0] == pair[0] {
				sum += load[pair][l]
			}
		}
		if routes == nil {
			routes = map[[2]int][]Share{}
		}
		// From the sender on: a link comes after those that lead to it.
		var list []Share
		at := []int{pair[0]}
		for i := 0; i < len(at); i++ {
			for _, l := range links {
				if l[0] == at[i] {
					list = append(list, Share{l[0], l[1], load[pair][l] / sum})
					if !slices.Contains(at, l[1]) {
						at = append(at, l[1])
					}
				}
			}
		}
		routes[pair] = list
	}
	return routes
}

// spread tells which links carry a part of what goes from u to t, and how many links the longest way has that each is on.
func (w *wired) spread(u, t int, part float64, hops int, tell func(u, v int, part float64, hops int)) {
	total := w.wires[u][t]
	for _, c := range w.over[[2]int{u, t}] {
		total += c
	}
	if c := w.wires[u][t]; c > 0 {
		tell(u, t, part*float64(c)/float64(total), hops+1)
	}
	for v := range w.net.Nodes() {
		if c := w.over[[2]int{u, t}][v]; c > 0 {
			p := part * float64(c) / float64(total)
			w.spread(u, v, p, hops+w.hops[v][t], tell)
			w.spread(v, t, p, hops+w.hops[u][v], tell)
		}
	}
}

// onlyWay reports whether two ranks have a single shortest way over switches, of a number of links.
func (n *Net) onlyWay(pair [2]int, links int) bool {
	at := map[int]int{pair[0]: 1} // by node: ways to it
	for hops := 1; hops <= links && len(at) > 0; hops++ {
		next := map[int]int{}
		for _, e := range n.Edges {
			if at[e.From] > 0 && (e.From == pair[0] || e.From >= n.Ranks) {
				next[e.To] += at[e.From]
			}
		}
		if ways := next[pair[1]]; ways > 0 {
			return ways == 1 && hops == links
		}
		at = next
	}
	return false
}
