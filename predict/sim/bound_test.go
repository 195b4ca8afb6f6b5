package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"pgregory.net/rapid"
)

// TestNoTimeIsBelowTheBound: whatever the algorithm, the machine, the size and the
// faults, a simulation takes at least what bound says.
func TestNoTimeIsBelowTheBound(t *testing.T) {
	machines := map[string]*topo.Graph{"dgx-h100": preset(t, "dgx-h100", nil), "dgx-1v": preset(t, "dgx-1v", nil),
		"gb200-su": preset(t, "gb200-su", nil),
		"rail":     preset(t, "rail", map[string]int{"hosts": 4}), "fat-tree": preset(t, "fat-tree", map[string]int{"hosts": 3})}
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"dgx-h100", "dgx-1v", "rail", "fat-tree", "gb200-su"}).Draw(t, "machine")
		g := machines[name]
		op := rapid.SampledFrom(sched.Collectives()).Draw(t, "op")
		a := rapid.SampledFrom(algo.All()).Draw(t, "algorithm")
		n := rapid.IntRange(2, 24).Draw(t, "ranks")
		size := unit.Bytes(1) << rapid.IntRange(0, 28).Draw(t, "size")
		o := Options{Measured: rapid.Bool().Draw(t, "measured"), Catalog: catalog.Default()}
		if rapid.Bool().Draw(t, "costs") {
			o.Costs = DefaultCosts(g, o.Catalog)
		}
		if rapid.Bool().Draw(t, "ecmp") {
			o.Routing = ECMP
		}
		if rapid.Bool().Draw(t, "slow") {
			first := topo.NodeID(topo.None)
			g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { first = max(first, id) })
			o.Slow = []Slow{{g.NodeName(first), 0.5}}
		}
		if rapid.Bool().Draw(t, "dead") {
			if nics := nodesOf(g, topo.NIC); len(nics) > 0 {
				o.Fail = []string{g.NodeName(rapid.SampledFrom(nics).Draw(t, "NIC"))}
			}
		}
		p, err := Wish{}.Program(a, g, op, min(n, g.Count(topo.GPU)), size, o.Catalog)
		if err != nil {
			t.Skip(err)
		}
		net, err := networkOf(g, o)
		if err != nil {
			t.Fatal(err)
		}
		j, err := Job{Program: p, Size: size}.placed(g)
		if err != nil {
			t.Skip(err)
		}
		least, err := net.bound(j)
		if err != nil {
			t.Skip(err)
		}
		r, err := net.run([]Job{j}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if least > r.Time {
			t.Fatalf("%s of %s by %s on %d GPUs of %s takes %s, the bound is %s", op, size, a.Name, p.Ranks, name, r.Time, least)
		}
	})
}

// TestBoundIsNearTheTime of algorithms that a rank or a link holds back, so that it
// spares their simulation.
func TestBoundIsNearTheTime(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default()), Catalog: catalog.Default()}
	for _, c := range []struct {
		algo string
		op   sched.Collective
		size unit.Bytes
		part float64
		fail string
	}{
		{"direct", sched.Broadcast, 16 * unit.MiB, 0.9, ""}, {"direct", sched.Gather, 16 * unit.MiB, 0.8, ""},
		{"ring", sched.AllReduce, unit.GiB, 0.9, ""},
		{"recursive-doubling", sched.AllReduce, 64 * unit.MiB, 0.9, ""}, {"direct", sched.Broadcast, 8, 0.5, ""},
		{"ring", sched.AllReduce, 256 * unit.MiB, 0.9, g.NodeName(nodesOf(g, topo.NIC)[13])},
	} {
		o := o
		if c.fail != "" {
			o.Fail = []string{c.fail}
		}
		a, err := algo.Find(c.algo)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Wish{}.Program(a, g, c.op, 32, c.size, o.Catalog)
		if err != nil {
			t.Fatal(err)
		}
		net, err := networkOf(g, o)
		if err != nil {
			t.Fatal(err)
		}
		j, err := Job{Program: p, Size: c.size}.placed(g)
		if err != nil {
			t.Fatal(err)
		}
		least, err := net.bound(j)
		if err != nil {
			t.Fatal(err)
		}
		r, err := net.run([]Job{j}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if float64(least) < c.part*float64(r.Time) {
			t.Errorf("%s of %s by %s: the bound is %s of %s", c.op, c.size, c.algo, least, r.Time)
		}
	}
}

// nodesOf lists the nodes of a kind.
func nodesOf(g *topo.Graph, kind topo.Kind) (all []topo.NodeID) {
	g.Each(kind, func(id topo.NodeID, _ *topo.Node) { all = append(all, id) })
	return all
}

// TestAutoSimulatesFew: work of auto on thousands of ranks stays bounded. Work is
// counted in actions of simulated ranks, those folded left out.
func TestAutoSimulatesFew(t *testing.T) {
	sending, gathering := bounded.Times(48, 128), bounded.Times(128, 512)
	for _, c := range []struct {
		name string
		set  map[string]int
		n    int
		op   sched.Collective
		fail []string
		most int64 // actions
	}{
		{"gb200-su", nil, 144, sched.AllReduce, nil, 1_000_000},
		{"rail", map[string]int{"hosts": sending}, 8 * sending, sched.Broadcast, nil, 1_000_000},
		{"rail", map[string]int{"hosts": gathering}, 8 * gathering, sched.Gather, nil, 1_000_000},
		{"rail", map[string]int{"hosts": 32}, 256, sched.ReduceScatter, nil, 500_000},
		{"rail", map[string]int{"hosts": 1024}, 8192, sched.AllGather, []string{"n5:nic2"}, 100_000}, // the ring between hosts is late
	} {
		t.Run(fmt.Sprint(c.name, c.n, c.op, c.fail), func(t *testing.T) {
			g := preset(t, c.name, c.set)
			o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default()), Fail: c.fail}
			best, err := Best(g, c.op, c.n, unit.GiB, o, Wish{})
			if err != nil {
				t.Fatal(err)
			}
			if best.Actions > c.most {
				t.Errorf("%d actions were simulated for %s, at most %d are wanted: %+v", best.Actions, best.Algo, c.most, best.Tried)
			}
			t.Logf("%d actions for %s in %s", best.Actions, best.Algo, best.Result.Time)
		})
	}
}

// TestNoTimeIsBelowThatOfKinds: whatever is slow or dead, a program takes at least what its kinds of ranks take with the best ways that
// any of them has, and with many steps little more. The times compared are those of the unfolded simulator.
func TestNoTimeIsBelowThatOfKinds(t *testing.T) {
	graphs := orbitGraphs(t)
	rnd := rand.New(rand.NewPCG(11, 3))
	near, some := 0, 0
	for range bounded.Times(150, 3000) {
		c, ok := drawFaults(rnd, graphs)
		if !ok {
			continue
		}
		if rnd.IntN(2) == 0 {
			c.o.Fail, c.o.Slow = nil, nil
		}
		j, err := c.job.placed(c.g)
		if err != nil {
			t.Fatal(err)
		}
		net, err := networkOf(c.g, c.o)
		if err != nil {
			continue // no path is left
		}
		w, err := newWorld(net, []Job{j}, net.o)
		if err != nil {
			continue
		}
		k := w.kinds(1 << 60)
		if k == nil {
			continue
		}
		if err := k.run(); err != nil {
			t.Fatal(err)
		}
		plain := c.o
		plain.Unfolded = true
		want, err := Run(c.g, []Job{c.job}, plain)
		if err != nil {
			t.Fatal(err)
		}
		some++
		if least := k.runs[0].end; least > want.Time {
			p := c.job.Program
			t.Fatalf("%s of %s on %d ranks of %s takes %s, its kinds %s: %+v", p.Name, c.job.Size, p.Ranks, c.g.Name, want.Time, least, c.o)
		} else if float64(least) > 0.9*float64(want.Time) {
			near++
		}
	}
	if some < 10 || near < some/10 {
		t.Errorf("of %d programs with kinds of ranks %d take little more than their kinds", some, near)
	}
	t.Logf("%d of %d take at most a ninth more than their kinds", near, some)
}

// TestNoTimeIsBelowTheSoonest: no program takes less than one rank of each kind with the best ways that there might be. The times
// compared are those of the unfolded simulator.
func TestNoTimeIsBelowTheSoonest(t *testing.T) {
	graphs := orbitGraphs(t)
	rnd := rand.New(rand.NewPCG(12, 5))
	some, near := 0, 0
	for range bounded.Times(150, 3000) {
		c, ok := drawFaults(rnd, graphs)
		if !ok {
			continue
		}
		if rnd.IntN(2) == 0 {
			c.o.Fail, c.o.Slow = nil, nil
		}
		j, err := c.job.placed(c.g)
		if err != nil {
			t.Fatal(err)
		}
		net, err := networkOf(c.g, c.o)
		if err != nil {
			continue // no path is left
		}
		k := net.guess(j, 1<<60, 1)
		if k == nil {
			continue
		}
		if err := k.run(); err != nil {
			t.Fatal(err)
		}
		c.o.Unfolded = true
		want, err := Run(c.g, []Job{c.job}, c.o)
		if err != nil {
			continue
		}
		some++
		if least := k.runs[0].end; least > want.Time {
			t.Fatalf("%s of %s on %d ranks of %s takes %s, at the soonest %s: %+v", j.Program.Name, j.Size, j.Program.Ranks, c.g.Name,
				want.Time, least, c.o)
		} else if 2*least > want.Time {
			near++
		}
	}
	if some < 10 || near < some/4 {
		t.Errorf("of %d programs %d take less than twice as long as at the soonest", some, near)
	}
	t.Logf("%d of %d take less than twice as long as at the soonest", near, some)
}
