package sim

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// whole is a flow's whole stream in units of shares. It divides by every small
// number of links that bytes are striped over (1 to 10, 12, 14, 15, 16, 18, 20
// and by powers of two up to 4,096), so that such shares are exact.
const whole = 1 << 12 * 9 * 5 * 7

// maxRate bounds a resource's capacity, at 5 TB/s, so that sums a little above
// capacity times whole fit 63 bits.
const maxRate = math.MaxInt64 / whole * 7 / 10

// wire is a directed link, 2*link for forward and 2*link+1 for back; or, from
// 2*len(Links) on, the CPU's copies for a NIC's sockets, in the same manner.
type wire int32

// use is a wire and the part of whole that passes it.
type use struct {
	wire  wire
	share int32
}

// network is a graph with what its links reach.
type network struct {
	g      *topo.Graph
	whole  *topo.Graph // without bad parts; nil if there are none
	o      Options
	copied map[topo.HostID]topo.HostID // hosts with a copy of a bad part: where it is bad
	cycle  int                         // hosts after which bad parts were repeated; 0 if they were not
	bases  map[*sched.Program]base     // of programs that were looked at
	quick  bool                        // rather give up with a manyError than simulate very many actions around a bad part
	reach  []float64                   // by class: efficiency
	slow   map[topo.LinkID]float64     // links that are slower than their class
	lame   map[topo.NodeID]float64     // GPUs that are
	hosts  []hostPlan
	plans  map[planKey]*plan
	middle map[[2]topo.NodeID]middle // adaptive routing: by first and last switch
	tiers  tiered
	chips  []chipLatency
	way    []topo.Use
	work   int64 // actions carried out by runs, those folded left out

	bounded *sched.Program // the program that bound looked at last
	bounds  []*rankBound   // and what it found of some ranks

	rates []int64 // by wire: its capacity; nil until somebody asks
}

// middle is what all flows from one switch to another have in common.
type middle struct {
	uses    []use     // nil if the fabric has no tiers to spread over
	latency unit.Time // of the ways between them, both switches included; 0 if not known yet
}

// bareNetwork is a network without what is slow; layout must follow.
func bareNetwork(g *topo.Graph, o Options) *network {
	n := &network{g: g, o: o, slow: map[topo.LinkID]float64{}, lame: map[topo.NodeID]float64{},
		plans: map[planKey]*plan{}, middle: map[[2]topo.NodeID]middle{}, bases: map[*sched.Program]base{}}
	for i := range g.Classes {
		n.reach = append(n.reach, n.efficiency(&g.Classes[i]))
	}
	return n
}

// networkWith is a network with bad parts of a graph, whatever options name.
func networkWith(g *topo.Graph, bad badParts, o Options) (*network, error) {
	cut := g
	if len(bad.dead) > 0 {
		var err error
		if cut, err = withoutLinks(g, bad.dead); err != nil {
			return nil, err
		}
	}
	o.Fail, o.Slow = nil, nil
	n := bareNetwork(cut, o)
	n.lame = bad.lame
	next := topo.LinkID(0) // links keep their order
	for l := range g.Links {
		if bad.dead[topo.LinkID(l)] {
			continue
		}
		if f, ok := bad.slow[topo.LinkID(l)]; ok {
			n.slow[next] = f
		}
		next++
	}
	n.layout()
	return n, nil
}

func newNetwork(g *topo.Graph, o Options) (*network, error) {
	n := bareNetwork(g, o)
	for _, s := range o.Slow {
		if !(s.Factor > 0 && s.Factor <= 1) {
			return nil, fmt.Errorf("%q at %g of its rate: a factor is above 0 and at most 1; a dead part is one that failed", s.Name, s.Factor)
		}
		p, err := find(g, s.Name)
		if err != nil {
			return nil, fmt.Errorf("cannot slow %q: %w", s.Name, err)
		}
		for _, l := range p.links {
			n.slow[l] = min(s.Factor, n.slowness(l))
		}
		for _, node := range p.nodes {
			if g.Nodes[node].Kind == topo.GPU {
				n.lame[node] = s.Factor
			}
		}
	}
	n.layout()
	return n, nil
}

func (n *network) slowness(l topo.LinkID) float64 {
	if f, ok := n.slow[l]; ok {
		return f
	}
	return 1
}

// efficiency is what a transport reaches of a class's rate.
func (n *network) efficiency(c *topo.Class) float64 {
	if !n.o.Measured {
		return 1
	}
	e := n.o.Catalog.Links[c.Gen].Efficiency
	switch {
	case c.Kind.Network() && n.o.Transport == TCP:
		return socketShare
	case c.Kind.Network() && e <= socketShare: // unknown, or measured over sockets
		return rdmaShare
	case e > 0:
		return e
	}
	return 1
}

// capacities are those of all wires, the same for all runs.
func (n *network) capacities() []int64 {
	if n.rates == nil {
		n.rates = make([]int64, 2*(len(n.g.Links)+len(n.g.Nodes)))
		for i := range n.rates {
			n.rates[i] = n.capacity(wire(i))
		}
	}
	return n.rates
}

// capacity is what a wire carries, in bytes a second.
func (n *network) capacity(w wire) int64 {
	l := topo.LinkID(w >> 1)
	if int(l) >= len(n.g.Links) {
		return int64(socketRate)
	}
	if n.o.Wide {
		if t := n.tier(w); t == Spine || t == Core {
			return maxRate
		}
	}
	link := &n.g.Links[l]
	rate := float64(n.g.Classes[link.Class].Rate) * float64(link.Count) * n.reach[link.Class]
	if len(n.slow) > 0 {
		rate *= n.slowness(l)
	}
	return max(1, int64(min(rate, maxRate)))
}

// name says what a wire is, with its direction.
func (n *network) name(w wire) string {
	l := topo.LinkID(w >> 1)
	switch w {
	case noWire:
		return "memory"
	case coreWire:
		return "cores"
	}
	if int(l) >= len(n.g.Links) {
		return "the CPU's copies for " + n.g.NodeName(topo.NodeID(int(l)-len(n.g.Links)))
	}
	return n.g.LinkName(l)
}

// tier says what part of the cluster a wire belongs to.
func (n *network) tier(w wire) Tier {
	l := topo.LinkID(w >> 1)
	switch w {
	case noWire:
		return Host
	case coreWire:
		return Sockets
	}
	if int(l) >= len(n.g.Links) {
		return Sockets
	}
	link := &n.g.Links[l]
	switch kind := n.g.Classes[link.Class].Kind; {
	case kind.Accelerator():
		return Accelerator
	case !kind.Network():
		return Host
	}
	a, b := &n.g.Nodes[link.A], &n.g.Nodes[link.B]
	if a.Kind == topo.Switch && b.Kind == topo.Switch {
		if max(a.Tier, b.Tier) > 2 {
			return Core
		}
		return Spine
	}
	return Leaf
}

// rate turns a share of a capacity into a rate; it is exact in whole bytes a second.
func rate(capacity int64, share int64) int64 {
	// capacity*whole fits 63 bits by maxRate.
	return capacity * whole / share
}

// span is the time that bytes take at a rate, rounded up to the next picosecond.
func span(bytes float64, rate int64) unit.Time {
	ps := math.Ceil(bytes / float64(rate) * 1e12)
	if ps >= math.MaxInt64/4 {
		return math.MaxInt64 / 4
	}
	return unit.Time(ps)
}
