package sim

import (
	"slices"

	"github.com/weft-fabric/weft/topo"
)

// spread adds a way through a fabric: as it is under ECMP, and under adaptive
// routing with the part between the first switch and the last laid evenly over
// all ways that are as short, up and down the tiers.
func (n *network) spread(way []topo.Use, p *path) {
	g := n.g
	if n.o.Routing != Adaptive || len(way) < 4 {
		for _, u := range way {
			p.uses = append(p.uses, n.use(u))
		}
		return
	}
	_, a := g.Links[way[0].Link].Ends(way[0].Forward)
	b, _ := g.Links[way[len(way)-1].Link].Ends(way[len(way)-1].Forward)
	key := [2]topo.NodeID{a, b}
	mid, known := n.middle[key]
	if !known {
		mid = n.ways(a, b, len(way)-2)
		n.middle[key] = mid
	}
	if mid == nil {
		for _, u := range way {
			p.uses = append(p.uses, n.use(u))
		}
		return
	}
	p.uses = append(p.uses, n.use(way[0]))
	p.uses = append(p.uses, mid...)
	p.uses = append(p.uses, n.use(way[len(way)-1]))
}

// ways lays a stream from switch a to switch b evenly over all ways of so many
// hops that go up half of them and down the other half; nil if the fabric has
// no such tiers.
func (n *network) ways(a, b topo.NodeID, hops int) []use {
	g := n.g
	up := hops / 2
	if hops%2 != 0 || g.Nodes[a].Tier == 0 || g.Nodes[a].Tier != g.Nodes[b].Tier {
		return nil
	}
	// above[i] holds the switches i hops above b.
	above := []map[topo.NodeID]bool{{b: true}}
	for i := range up {
		next := map[topo.NodeID]bool{}
		for s := range above[i] {
			for _, e := range g.Edges(s) {
				if n.upward(s, e) {
					next[e.Peer] = true
				}
			}
		}
		above = append(above, next)
	}
	// leads reports whether so many hops further up there is a switch above b.
	memo := map[topo.NodeID]bool{}
	var leads func(s topo.NodeID, left int) bool
	leads = func(s topo.NodeID, left int) bool {
		if left == 0 {
			return above[up][s]
		}
		if v, ok := memo[s]; ok {
			return v
		}
		found := false
		for _, e := range g.Edges(s) {
			if n.upward(s, e) && leads(e.Peer, left-1) {
				found = true
				break
			}
		}
		memo[s] = found
		return found
	}
	var out []use
	level := map[topo.NodeID]int64{a: whole}
	spill := func(allowed func(s topo.NodeID, e topo.Edge) bool) bool {
		next := map[topo.NodeID]int64{}
		var from []topo.NodeID
		for s := range level {
			from = append(from, s)
		}
		slices.Sort(from)
		for _, s := range from {
			total := int64(0)
			for _, e := range g.Edges(s) {
				if allowed(s, e) {
					total += int64(g.Links[e.Link].Count)
				}
			}
			if total == 0 {
				return false
			}
			for _, e := range g.Edges(s) {
				if allowed(s, e) {
					part := level[s] * int64(g.Links[e.Link].Count) / total
					out = append(out, use{n.wire(e.Link, s), int32(max(part, 1))})
					next[e.Peer] += max(part, 1)
				}
			}
		}
		level = next
		return true
	}
	for i := range up {
		if !spill(func(s topo.NodeID, e topo.Edge) bool { return n.upward(s, e) && leads(e.Peer, up-i-1) }) {
			return nil
		}
	}
	for i := up - 1; i >= 0; i-- {
		if !spill(func(s topo.NodeID, e topo.Edge) bool { return above[i][e.Peer] && n.upward(e.Peer, topo.Edge{Peer: s, Link: e.Link}) }) {
			return nil
		}
	}
	return out
}

// upward reports whether a link of a switch leads to a switch of a higher tier.
func (n *network) upward(s topo.NodeID, e topo.Edge) bool {
	p := &n.g.Nodes[e.Peer]
	return p.Kind == topo.Switch && p.Tier > n.g.Nodes[s].Tier && n.g.Class(e.Link).Kind.Network()
}
