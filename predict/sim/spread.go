package sim

import (
	"github.com/weft-fabric/weft/model/topo"
)

// spread adds a way through a fabric: as it is under ECMP, and under adaptive
// routing with the part between the first switch and the last laid evenly over
// all ways that are as short, up and down the tiers.
func (n *network) spread(way []topo.Use, p *path) {
	g := n.g
	if n.o.Routing == Adaptive && len(way) >= 2 {
		a, _ := g.Links[way[0].Link].Ends(way[0].Forward)
		_, b := g.Links[way[len(way)-1].Link].Ends(way[len(way)-1].Forward)
		from, to := 0, len(way)
		if g.Nodes[a].Kind != topo.Switch {
			_, a = g.Links[way[0].Link].Ends(way[0].Forward)
			from++
		}
		if g.Nodes[b].Kind != topo.Switch {
			b, _ = g.Links[way[to-1].Link].Ends(way[to-1].Forward)
			to--
		}
		key := [2]topo.NodeID{a, b}
		mid, known := n.middle[key]
		if !known && to-from >= 2 {
			mid.uses = n.ways(a, b, to-from)
			n.middle[key] = mid
		}
		if mid.uses != nil {
			for _, u := range way[:from] {
				p.uses = append(p.uses, n.use(u))
			}
			p.mid = mid.uses
			for _, u := range way[to:] {
				p.uses = append(p.uses, n.use(u))
			}
			return
		}
	}
	for _, u := range way {
		p.uses = append(p.uses, n.use(u))
	}
}

// tiered is the scratch space of ways: what is known of each switch, counted
// from the first node outside hosts, valid where stamp is the present one.
type tiered struct {
	first topo.NodeID
	stamp []uint32
	now   uint32
	above []uint8 // bit i: i hops above the destination
	own   []uint8 // bit i: i hops above the source
	leads []uint8 // bit i: the same, and on a way to the destination
	share []int64
	total []int64 // links down to the destination
	wide  int     // how many links the last answer had
}

func (t *tiered) at(s topo.NodeID) int {
	i := int(s - t.first)
	if t.stamp[i] != t.now {
		t.stamp[i], t.above[i], t.own[i], t.leads[i], t.share[i] = t.now, 0, 0, 0, 0
	}
	return i
}

// ways lays a stream from switch a to switch b evenly over all ways of a number
// of hops: half of them up, half of them down. It is nil if the fabric has no such
// tiers.
func (n *network) ways(a, b topo.NodeID, hops int) []use {
	g, up := n.g, hops/2
	if hops%2 != 0 || up > 7 || g.Nodes[a].Tier == 0 || g.Nodes[a].Tier != g.Nodes[b].Tier {
		return nil
	}
	t := &n.tiers
	if t.stamp == nil {
		if h := len(g.Hosts); h > 0 {
			t.first = g.Hosts[h-1].First + topo.NodeID(g.Hosts[h-1].Count)
		}
		size := len(g.Nodes) - int(t.first)
		t.stamp, t.share, t.total = make([]uint32, size), make([]int64, size), make([]int64, size)
		t.above, t.own, t.leads = make([]uint8, size), make([]uint8, size), make([]uint8, size)
	}
	t.now++
	// climb lists the switches i hops above one, for every i, and marks them.
	climb := func(s topo.NodeID, marks []uint8) [][]topo.NodeID {
		levels := [][]topo.NodeID{{s}}
		marks[t.at(s)] |= 1
		for i := range up {
			var next []topo.NodeID
			for _, s := range levels[i] {
				for _, e := range g.Edges(s) {
					if !n.upward(s, e) {
						continue
					}
					if at := t.at(e.Peer); marks[at]&(2<<i) == 0 {
						marks[at] |= 2 << i
						next = append(next, e.Peer)
					}
				}
			}
			levels = append(levels, next)
		}
		return levels
	}
	below := climb(b, t.above)
	levels := climb(a, t.own)
	for _, s := range levels[up] {
		at := t.at(s)
		t.leads[at] |= t.above[at] & (1 << up)
	}
	leads := func(s topo.NodeID, i int, e topo.Edge) bool {
		return n.upward(s, e) && t.leads[t.at(e.Peer)]&(2<<i) != 0
	}
	for i := up - 1; i >= 0; i-- {
		for _, s := range levels[i] {
			for _, e := range g.Edges(s) {
				if leads(s, i, e) {
					t.leads[t.at(s)] |= 1 << i
					break
				}
			}
		}
	}
	if t.leads[t.at(a)]&1 == 0 {
		return nil
	}
	out := make([]use, 0, t.wide)
	defer func() { t.wide = len(out) }()
	t.share[t.at(a)] = whole
	give := func(from, to topo.NodeID, link topo.LinkID, of int64) {
		part := max(1, t.share[t.at(from)]*int64(g.Links[link].Count)/of)
		out = append(out, use{n.wire(link, from), int32(part)})
		t.share[t.at(to)] += part
	}
	for i := range up {
		for _, s := range levels[i] {
			if t.leads[t.at(s)]&(1<<i) == 0 {
				continue
			}
			total := int64(0)
			for _, e := range g.Edges(s) {
				if leads(s, i, e) {
					total += int64(g.Links[e.Link].Count)
				}
			}
			for _, e := range g.Edges(s) {
				if leads(s, i, e) {
					give(s, e.Peer, e.Link, total)
				}
			}
		}
	}
	// Downwards a switch has many links and few of them lead to b: go over
	// those that b's side has upwards.
	for i := up - 1; i >= 0; i-- {
		for _, s := range below[i+1] {
			t.total[t.at(s)] = 0
		}
		down := func(f func(s topo.NodeID, e topo.Edge)) {
			for _, s := range below[i] {
				for _, e := range g.Edges(s) {
					if n.upward(s, e) && t.above[t.at(e.Peer)]&(2<<i) != 0 && t.share[t.at(e.Peer)] > 0 {
						f(s, e)
					}
				}
			}
		}
		down(func(s topo.NodeID, e topo.Edge) { t.total[t.at(e.Peer)] += int64(g.Links[e.Link].Count) })
		for _, s := range below[i] {
			t.share[t.at(s)] = 0
		}
		down(func(s topo.NodeID, e topo.Edge) { give(e.Peer, s, e.Link, t.total[t.at(e.Peer)]) })
	}
	return out
}

// upward reports whether a link of a switch leads to a switch of a higher tier.
func (n *network) upward(s topo.NodeID, e topo.Edge) bool {
	p := &n.g.Nodes[e.Peer]
	return p.Kind == topo.Switch && p.Tier > n.g.Nodes[s].Tier
}
