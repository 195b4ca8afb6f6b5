package paths

import (
	"math"
	"math/bits"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
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
// add up. In three tiers of 128 ports that is some 4,000 links for each end,
// 50 us (2026-11), however many ways there are.
func (f *finder) equalCost(s span) uint64 {
	if n, ok := f.ways[s]; ok {
		return n
	}
	n := f.count(s)
	f.ways[s] = n
	return n
}

func (f *finder) family(l lane) topo.Family {
	if l.fabric == topo.None {
		return topo.Irregular
	}
	return f.g.Fabrics[l.fabric].Family
}

// cables counts the physical links from one NIC straight to the other.
func (f *finder) cables(s span) (n uint64) {
	for _, e := range f.g.Edges(s.out) {
		if e.Peer == s.in && f.g.Class(e.Link).Kind.Network() {
			n = plus64(n, uint64(f.g.Links[e.Link].Count))
		}
	}
	return n
}

// tiered reports whether an irregular fabric has tiers all the same, and no switches side by side.
func (f *finder) tiered(s span) bool {
	return slices.ContainsFunc(f.g.Edges(s.out), func(e topo.Edge) bool { return f.g.Nodes[e.Peer].Tier > 0 }) && !f.g.Peered(s.lane.fabric)
}

// count counts the equal-cost paths between two ends, searching from both until they meet. It is 1 where routing is of
// a kind that it does not know.
func (f *finder) count(s span) uint64 {
	g := f.g
	family := f.family(s.lane)
	if family == topo.Torus {
		return f.throughTorus(s)
	}
	if direct := f.cables(s); direct > 0 {
		return direct
	}
	tiered := family == topo.Clos || family == topo.Irregular && f.tiered(s)
	if f.fronts[0] == nil {
		f.fronts = [2]*front{newFront(g), newFront(g)}
	}
	a, b := f.fronts[0], f.fronts[1]
	a.start(g, s.out, s.lane.plane)
	b.start(g, s.in, s.lane.plane)
	for {
		for _, side := range f.fronts {
			if n := a.meet(b); n > 0 {
				return n
			}
			if !side.spread(g, tiered) {
				return 1 // routed in a way that is not of this kind
			}
		}
	}
}

// front is the switches that are reached from one end within hops, with the number of
// ways to each. Switches stand at the end of a graph's nodes, so a number less
// that of the first is an index here.
type front struct {
	first topo.NodeID
	ways  []uint64
	level []uint8 // hops from the end, 0 for not met
	at    []topo.NodeID
	met   []topo.NodeID // all that were met, to be forgotten at the next start
	hops  uint8
}

func newFront(g *topo.Graph) *front {
	first := topo.NodeID(0)
	if n := len(g.Hosts); n > 0 {
		first = g.Hosts[n-1].First + topo.NodeID(g.Hosts[n-1].Count)
	}
	n := len(g.Nodes) - int(first)
	return &front{first: first, ways: make([]uint64, n), level: make([]uint8, n)}
}

// start takes the first hop from a NIC into a plane.
func (f *front) start(g *topo.Graph, nic topo.NodeID, plane int8) {
	for _, n := range f.met {
		f.ways[n-f.first], f.level[n-f.first] = 0, 0
	}
	f.at, f.met, f.hops = f.at[:0], f.met[:0], 1
	for _, e := range g.Edges(nic) {
		if g.Nodes[e.Peer].Kind == topo.Switch && g.Nodes[e.Peer].Plane == plane && g.Class(e.Link).Kind.Network() {
			f.reach(e.Peer, uint64(g.Links[e.Link].Count))
		}
	}
	f.met = append(f.met, f.at...)
}

// reach adds ways to a switch unless fewer hops lead there.
func (f *front) reach(n topo.NodeID, ways uint64) {
	i := n - f.first
	switch f.level[i] {
	case 0:
		f.level[i] = f.hops
		f.at = append(f.at, n)
		f.ways[i] = ways
	case f.hops:
		f.ways[i] = plus64(f.ways[i], ways)
	}
}

// spread goes one hop further, among switches; false if there is nowhere to go.
func (f *front) spread(g *topo.Graph, tiered bool) bool {
	from := f.at
	f.at = make([]topo.NodeID, 0, len(from))
	if f.hops++; f.hops == 0 {
		return false
	}
	for _, n := range from {
		ways, tier := f.ways[n-f.first], g.Nodes[n].Tier
		edges := g.Edges(n)
		for i := len(edges) - 1; i >= 0; i-- {
			e := edges[i]
			peer := &g.Nodes[e.Peer]
			if peer.Kind != topo.Switch || tiered && peer.Tier <= tier {
				if tiered && peer.Fabric == g.Nodes[n].Fabric || peer.Host != topo.None {
					break // in a fabric, what stands before has a lower tier or is in a host
				}
				continue
			}
			if g.Class(e.Link).Kind.Network() {
				f.reach(e.Peer, times64(ways, uint64(g.Links[e.Link].Count)))
			}
		}
	}
	f.met = append(f.met, f.at...)
	return len(f.at) > 0
}

// meet adds up the ways through all switches at which two fronts stand.
func (f *front) meet(o *front) uint64 {
	if len(f.at) > len(o.at) {
		f, o = o, f
	}
	var sum uint64
	for _, n := range f.at {
		if i := n - f.first; o.level[i] == o.hops {
			sum = plus64(sum, times64(f.ways[i], o.ways[i]))
		}
	}
	return sum
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
		var ok bool
		if ways, ok = timesChoose(ways, total+step, step); !ok {
			return math.MaxUint64
		}
		total += step
	}
	if total != hops {
		return 1
	}
	return ways
}

// timesChoose multiplies ways by the number of places for k steps among n, binomial(n, k); false if that overflows.
func timesChoose(ways uint64, n, k int) (uint64, bool) {
	for i := 1; i <= k; i++ {
		hi, lo := bits.Mul64(ways, uint64(n-k+i))
		if hi >= uint64(i) {
			return 0, false
		}
		ways, _ = bits.Div64(hi, lo, uint64(i))
	}
	return ways, true
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
