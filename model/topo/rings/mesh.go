package rings

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// mostMeshed is how many GPUs a search over direct links takes: a ring's vertices fit in a word.
const mostMeshed = 64

// meshed packs rings and trees into the direct links between the GPUs.
func (s *search) meshed() (Plan, error) {
	g, n := s.g, len(s.gpus)
	if n > mostMeshed {
		return Plan{}, fmt.Errorf("%d GPUs; over direct links at most %d are searched", n, mostMeshed)
	}
	index := map[topo.NodeID]int{}
	for i, gpu := range s.gpus {
		index[gpu] = i
	}
	links := make([][]int16, n)
	wires := make([][][]topo.Edge, n) // per pair, one entry per physical link
	for i := range links {
		links[i], wires[i] = make([]int16, n), make([][]topo.Edge, n)
	}
	var edges []edge
	fastest := topo.LinkID(topo.None)
	for i, gpu := range s.gpus {
		for _, e := range g.Edges(gpu) {
			j, ok := index[e.Peer]
			if !ok || !g.Class(e.Link).Kind.Accelerator() {
				continue
			}
			if fastest == topo.None || g.Class(e.Link).Rate > g.Class(fastest).Rate {
				fastest = e.Link
			}
			count := int(g.Links[e.Link].Count)
			links[i][j] += int16(count)
			wires[i][j] = append(wires[i][j], slices.Repeat([]topo.Edge{e}, count)...)
			if i < j {
				edges = append(edges, slices.Repeat([]edge{{i, j}}, count)...)
			}
		}
	}
	if len(edges) == 0 {
		return Plan{}, fmt.Errorf("no link joins two of %s directly", s.names(s.gpus))
	}
	best := g.Class(fastest)
	p := Plan{Medium: Medium(best.Kind.String()), Exact: true, Unmeasured: s.unmeasured(fastest)}
	s.meshRings(&p, links, wires, best.Rate)
	s.meshTrees(&p, edges, wires)
	return p, nil
}

// meshRings searches for as many rings as the smallest cut lets through, then for fewer.
func (s *search) meshRings(p *Plan, links [][]int16, wires [][][]topo.Edge, best unit.Rate) {
	cut, side := minCut(links)
	p.Bound = Bound{Rings: cut, Rate: unit.Rate(cut) * best, Why: s.cutWhy(cut, side, len(links))}
	var orders [][]int
	k := cut
	for ; k > 0 && orders == nil; k-- {
		rings, result, steps := pack(links, k, s.o)
		p.Steps += steps
		orders = rings
		p.Exact = p.Exact && result != unknown
	}
	used := map[[2]int]int{}
	for _, order := range orders {
		r := Ring{Rate: best}
		expected := best
		for i, v := range order {
			u := order[(i+1)%len(order)]
			e := wires[v][u][used[[2]int{v, u}]]
			used[[2]int{v, u}]++
			r.Order = append(r.Order, s.gpus[v])
			r.Uses = append(r.Uses, topo.Use{Link: e.Link, Forward: s.g.Links[e.Link].A == s.gpus[v], Share: 1})
			rate := s.g.Class(e.Link).Rate
			r.Rate = min(r.Rate, rate)
			expected = min(expected, rate*unit.Rate(s.efficiency(e.Link)))
		}
		p.Rings = append(p.Rings, r)
		p.RingBus += r.Rate
		p.RingExpected += expected
	}
	p.Why = p.whyNoMore(len(orders))
}

// whyNoMore says what keeps a mesh from having more rings than were found: its cut, its shape, or the end of the search.
func (p *Plan) whyNoMore(found int) string {
	switch cut := p.Bound.Rings; {
	case found == cut && cut > 0:
		return p.Bound.Why
	case found == 0 && cut == 0:
		return "no ring: " + p.Bound.Why
	case p.Exact && found == 0:
		return "no cycle of links visits every GPU of the set once"
	case p.Exact:
		return fmt.Sprintf("%s, but no %d rings fit: every combination was tried", p.Bound.Why, found+1)
	default:
		return fmt.Sprintf("%s; %d rings were found within %d steps and more may fit", p.Bound.Why, found, p.Steps)
	}
}

// others lists what of n vertices is not on one side of a cut.
func others(side []int, n int) (list []int) {
	for v := range n {
		if !slices.Contains(side, v) {
			list = append(list, v)
		}
	}
	return list
}

// cutWhy names the smaller side of the smallest cut, which is what bounds the rings.
func (s *search) cutWhy(cut int, side []int, n int) string {
	if len(side) > n/2 && len(side) > 1 {
		side = others(side, n)
	}
	var list []topo.NodeID
	for _, v := range side {
		list = append(list, s.gpus[v])
	}
	switch {
	case cut == 0 && len(list) == 1:
		return fmt.Sprintf("%s has no link into the set", s.names(list))
	case cut == 0:
		return fmt.Sprintf("no link joins {%s} to the rest of the set", s.names(list))
	case len(list) == 1:
		return fmt.Sprintf("%s has %d %s into the set", s.names(list), cut, plural(cut, "link"))
	default:
		return fmt.Sprintf("%d %s join {%s} to the rest of the set", cut, plural(cut, "link"), s.names(list))
	}
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// meshTrees packs spanning trees. All-reduce over t trees moves a t-th of the
// buffer up and down each, so its bus bandwidth is t x rate x 2(n-1)/n.
func (s *search) meshTrees(p *Plan, edges []edge, wires [][][]topo.Edge) {
	n := len(s.gpus)
	taken := map[[2]int]int{}
	wire := make([]topo.Edge, len(edges)) // as seen from the edge's a
	for i, e := range edges {
		wire[i] = wires[e.a][e.b][taken[[2]int{e.a, e.b}]]
		taken[[2]int{e.a, e.b}]++
	}
	factor := unit.Rate(2*(n-1)) / unit.Rate(n)
	for _, members := range spanningTrees(n, edges) {
		root, parent, up, depth := hang(n, edges, members)
		t := Tree{Root: s.gpus[root], Depth: depth, Parent: make([]topo.NodeID, n)}
		var expected unit.Rate
		for v := range n {
			if parent[v] < 0 {
				t.Parent[v] = topo.None
				continue
			}
			link := wire[up[v]].Link
			t.Parent[v] = s.gpus[parent[v]]
			t.Uses = append(t.Uses, topo.Use{Link: link, Forward: s.g.Links[link].A == s.gpus[v], Share: 1})
			rate := s.g.Class(link).Rate
			if reached := rate * unit.Rate(s.efficiency(link)); len(t.Uses) == 1 {
				t.Rate, expected = rate, reached
			} else {
				t.Rate, expected = min(t.Rate, rate), min(expected, reached)
			}
		}
		p.Trees = append(p.Trees, t)
		p.TreeBus += t.Rate * factor
		p.TreeExpected += expected * factor * treeShare
	}
}
