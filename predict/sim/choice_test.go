package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// measuredHosts is what cost.Links describe as a graph, with the cores of its machines.
func measuredHosts(t *testing.T, l *cost.Links, hosts, local int) (*topo.Graph, []topo.NodeID, *Processors) {
	t.Helper()
	const quick = 100_000 * unit.GBps
	g, place := starOf(t, hosts, local,
		topo.Class{Kind: topo.PCIe, Gen: "memory", Lanes: 1, Rate: quick, Latency: cost.Span(l.Near.Alpha / 2)},
		topo.Class{Kind: topo.PCIe, Gen: "bus", Lanes: 1, Rate: quick},
		topo.Class{Kind: topo.Ethernet, Gen: "cable", Lanes: 1, Rate: unit.Rate(1e6 / l.Far.Wire),
			Latency: cost.Span((l.Far.Alpha - l.Near.Alpha) / 2)}, "none")
	work := func(x cost.Link) Work {
		return Work{Send: cost.Span(x.Post), Take: cost.Span(x.Post), SendByte: x.Beta * 1e3, TakeByte: x.Beta * 1e3, Kept: 32 << 10}
	}
	p := &Processors{Near: work(l.Near), Far: work(l.Far), Sum: 3 * l.Paces[0].Byte * 1e3, Copy: 3 * l.Paces[0].Byte * 1e3}
	for h := range hosts {
		p.Cores, p.Machine = append(p.Cores, float64(l.Cores)), append(p.Machine, h)
	}
	return g, place, p
}

var noChips = &catalog.Catalog{NICs: map[string]catalog.NIC{"none": {Latency: unit.Picosecond}},
	Switches: map[string]catalog.Switch{"none": {Latency: unit.Picosecond}}}

// Choosing needs thousands of times in a moment, so it does without events: cost.Links replay a program along its longest chain. On random
// links, clusters and sizes that agrees with the simulator about how long a program takes, and its choice is seldom much slower there
// than the best.
func TestChoosingAgreesWithTheSimulator(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	between := func(lo, hi float64) float64 { return lo * math.Pow(hi/lo, r.Float64()) }
	ops := []sched.Collective{sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.AllToAll, sched.Broadcast, sched.Reduce}
	var ratios, losses []float64
	for range 400 {
		hosts, local := 1+r.IntN(4), 1+r.IntN(4)
		n := hosts * local
		if n < 2 {
			continue
		}
		cores := local
		if r.IntN(3) == 0 { // ranks share cores
			cores = max(1, local/2)
		}
		l := &cost.Links{Kind: "tcp", Ranks: n, Cores: cores, Paces: []cost.Pace{{Traffic: 1, Byte: between(1e-7, 1e-4)}},
			Near: cost.Link{Alpha: between(0.3, 5), Post: between(0.2, 5), Beta: between(2e-5, 5e-4)},
			Far:  cost.Link{Alpha: between(6, 60), Post: between(0.5, 6), Beta: between(2e-5, 5e-4), Wire: between(2e-5, 1e-2)}}
		c := &contest{links: l, op: ops[r.IntN(len(ops))]}
		c.size = unit.Bytes(64*n) + unit.Bytes(between(8, 64<<20))/unit.Bytes(8*n)*unit.Bytes(8*n)
		c.graph, c.place, c.cores = measuredHosts(t, l, hosts, local)
		for k := range n {
			c.hosts = append(c.hosts, k/local)
		}
		of, loss := c.run(t)
		ratios, losses = append(ratios, of...), append(losses, loss)
	}
	slices.Sort(ratios)
	slices.Sort(losses)
	at := func(list []float64, share float64) float64 { return list[int(share*float64(len(list)-1))] }
	t.Logf("%d programs: replayed time over simulated %.2f (5%%), %.2f, %.2f (95%%); %d choices, %.2f of the best (90%%), %.2f at most",
		len(ratios), at(ratios, 0.05), at(ratios, 0.5), at(ratios, 0.95), len(losses), at(losses, 0.9), at(losses, 1))
	if m := at(ratios, 0.5); m < 0.95 || m > 1.05 {
		t.Errorf("half of the programs take %.2f times as long as simulated", m)
	}
	if lo, hi := at(ratios, 0.05), at(ratios, 0.95); lo < 0.7 || hi > 1.3 {
		t.Errorf("90%% of programs take %.2f to %.2f times as long as simulated", lo, hi)
	}
	if at(losses, 0.9) > 1.1 || at(losses, 1) > 2 {
		t.Errorf("a choice of ten is %.2f times slower than the best, one %.2f times", at(losses, 0.9), at(losses, 1))
	}
}

// contest is all programs for an operation on a cluster.
type contest struct {
	links *cost.Links
	hosts []int
	graph *topo.Graph
	place []topo.NodeID
	cores *Processors
	op    sched.Collective
	size  unit.Bytes
}

// run gives each program's time as a multiple of the simulated one, and that of the choice as a multiple of the best, both simulated.
func (c *contest) run(t *testing.T) (ratios []float64, loss float64) {
	t.Helper()
	best, least, chosen := math.Inf(1), math.Inf(1), 0.0
	for _, a := range algo.All() {
		if !slices.Contains(a.Ops, c.op) || a.Adds != algo.NoSwitch || a.Outer || a.Grid || a.Torus || a.Layers {
			continue
		}
		p, err := a.Program(algo.Spec{Op: c.op, Ranks: c.links.Ranks})
		if err != nil {
			continue // it takes other numbers of ranks
		}
		replayed, err := c.links.Replay(p, c.size, c.hosts)
		if err != nil {
			t.Fatalf("%s: %v", a.Name, err)
		}
		p.Slots = max(p.Slots, 64) // transports have room for more messages than programs ask for
		simulated, err := Run(c.graph, []Job{{Program: p, Size: c.size, Place: c.place}}, Options{Processors: c.cores, Catalog: noChips})
		if err != nil {
			t.Fatalf("%s: %v", a.Name, err)
		}
		quick, slow := replayed.Time.Microseconds(), simulated.Time.Microseconds()
		ratios, best = append(ratios, quick/slow), min(best, slow)
		if quick < least {
			least, chosen = quick, slow
		}
	}
	return ratios, chosen / best
}
