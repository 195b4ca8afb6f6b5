package paths

import (
	"math"
	"math/bits"

	"github.com/weft-fabric/weft/topo"
)

// wire gives the links between two NICs in one network that a flow takes: the
// one with the smallest key that enters the network asked for, since a NIC with
// ports in several planes sends each flow into one of them.
func (f *finder) wire(s span, way []topo.Use) ([]topo.Use, bool) {
	const keys = 64
	start := len(way)
	for key := range uint64(keys) {
		var ok bool
		if way, ok = f.g.Across(s.out, s.in, key, way[:start]); !ok || len(way) == start {
			return way[:start], false
		}
		if _, first := f.g.Links[way[start].Link].Ends(way[start].Forward); f.g.Nodes[first].Plane == s.lane.plane || first == s.in {
			return way, true
		}
	}
	return way[:start], false
}

// equalCost counts the shortest ways between two NICs without listing them.
//
// It spreads from both ends at once, one hop at a time, upwards only in a fabric
// with tiers, and keeps for each switch met the number of ways to it; parallel
// links count one by one. Where the two meet for the first time, the products
// add up. In three tiers of 64 ports that is some 2,000 links for each end, not
// the 16,000,000 ways that there can be from leaf to leaf.
func (f *finder) equalCost(s span) uint64 {
	if n, ok := f.ways[s]; ok {
		return n
	}
	n := f.count(s)
	f.ways[s] = n
	return n
}

func (f *finder) count(s span) uint64 {
	g := f.g
	family := topo.Irregular
	if i := s.lane.fabric; i != topo.None {
		family = g.Fabrics[i].Family
	}
	if family == topo.Torus {
		return f.throughTorus(s)
	}
	tiered := family == topo.Clos
	if family == topo.Irregular { // routed upwards where its switches have tiers
		for _, e := range g.Edges(s.out) {
			tiered = tiered || g.Nodes[e.Peer].Tier > 0
		}
	}
	a, b := newFront(s.out), newFront(s.in)
	const farthest = 64
	for range farthest {
		for _, side := range []*front{a, b} {
			if n := a.meet(b); n > 0 {
				return n
			}
			if !side.spread(g, tiered, s.lane.plane) {
				return 1
			}
		}
	}
	return 1
}

// front is the switches that so many hops from one end reach, each with the number of ways to it.
type front struct {
	at   []topo.NodeID
	ways []uint64
	seat map[topo.NodeID]int32 // index in at
	seen map[topo.NodeID]bool  // in at, or met before
	hops int
}

func newFront(n topo.NodeID) *front {
	return &front{at: []topo.NodeID{n}, ways: []uint64{1}, seat: map[topo.NodeID]int32{n: 0}, seen: map[topo.NodeID]bool{n: true}}
}

func (f *front) meet(o *front) uint64 {
	if len(f.at) > len(o.at) {
		f, o = o, f
	}
	var sum uint64
	for i, n := range f.at {
		if j, ok := o.seat[n]; ok {
			sum = plus64(sum, times64(f.ways[i], o.ways[j]))
		}
	}
	return sum
}

// spread goes one hop further; false if there is nowhere to go.
func (f *front) spread(g *topo.Graph, tiered bool, plane int8) bool {
	var at []topo.NodeID
	var ways []uint64
	seat := map[topo.NodeID]int32{}
	for i, n := range f.at {
		tier := g.Nodes[n].Tier
		for _, e := range g.Edges(n) {
			peer := &g.Nodes[e.Peer]
			switch {
			case !g.Class(e.Link).Kind.Network(), f.seen[e.Peer],
				peer.Kind == topo.NIC && f.hops > 0, // nothing passes through another NIC
				peer.Kind == topo.Switch && (peer.Plane != plane || tiered && peer.Tier <= tier):
				continue
			}
			j, ok := seat[e.Peer]
			if !ok {
				j = int32(len(at))
				seat[e.Peer] = j
				at, ways = append(at, e.Peer), append(ways, 0)
			}
			ways[j] = plus64(ways[j], times64(f.ways[i], uint64(g.Links[e.Link].Count)))
		}
	}
	f.hops++
	for _, n := range at {
		f.seen[n] = true
	}
	f.at, f.ways, f.seat = at, ways, seat
	return len(at) > 0
}

// throughTorus counts the ways between the routers of two NICs.
func (f *finder) throughTorus(s span) uint64 {
	way, ok := f.wire(s, nil)
	if !ok || len(way) < 2 {
		return 1
	}
	_, first := f.g.Links[way[0].Link].Ends(way[0].Forward)
	last, _ := f.g.Links[way[len(way)-1].Link].Ends(way[len(way)-1].Forward)
	return f.minimal(first, last, len(way)-2)
}

// minimal counts the shortest ways on a torus: the orders in which the steps of
// all dimensions can be taken, times two for each dimension in which both
// directions are equally long. Routing by dimension takes one of them. Where the
// way taken is longer than on a torus, as on a mesh without wrap-around, only
// that one is counted.
func (f *finder) minimal(a, b topo.NodeID, hops int) uint64 {
	fabric := f.g.Nodes[a].Fabric
	if fabric == topo.None || f.g.Nodes[a].Pos < 0 || f.g.Nodes[b].Pos < 0 {
		return 1
	}
	x, y := int(f.g.Nodes[a].Pos), int(f.g.Nodes[b].Pos)
	total, ways := 0, uint64(1)
	for _, d := range f.g.Fabrics[fabric].Dims {
		if d < 1 {
			return 1
		}
		step := (y%d - x%d + d) % d
		x, y = x/d, y/d
		if 2*step == d && d > 2 {
			ways = times64(ways, 2)
		}
		step = min(step, d-step)
		for i := 1; i <= step; i++ { // one dimension's steps among all so far: binomial(total, step)
			total++
			hi, lo := bits.Mul64(ways, uint64(total))
			if hi >= uint64(i) {
				return math.MaxUint64
			}
			ways, _ = bits.Div64(hi, lo, uint64(i))
		}
	}
	if total != hops {
		return 1
	}
	return ways
}

// plus64 and times64 stay at the largest number instead of wrapping around.
func plus64(a, b uint64) uint64 {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxUint64
}

func times64(a, b uint64) uint64 {
	if hi, lo := bits.Mul64(a, b); hi == 0 {
		return lo
	}
	return math.MaxUint64
}
