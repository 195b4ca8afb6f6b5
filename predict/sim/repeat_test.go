package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// faultCase is a collective on a small cluster with up to three bad parts, drawn at random.
type faultCase struct {
	g   *topo.Graph
	job Job
	o   Options
}

func drawFaults(rnd *rand.Rand, graphs []*topo.Graph) (faultCase, bool) {
	g := graphs[rnd.IntN(len(graphs))]
	a := algo.All()[rnd.IntN(len(algo.All()))]
	n := min(32<<rnd.IntN(3), g.Count(topo.GPU))
	size := []unit.Bytes{1, 64 << 10, 8 << 20, 256 << 20}[rnd.IntN(4)]
	c := faultCase{g: g, o: Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}}
	for range 1 + rnd.IntN(3) {
		if name := drawPart(rnd, g); rnd.IntN(2) == 0 {
			c.o.Fail = append(c.o.Fail, name)
		} else {
			c.o.Slow = append(c.o.Slow, Slow{name, []float64{0.1, 0.5, 0.9}[rnd.IntN(3)]})
		}
	}
	var err error
	c.job, err = Wish{}.Job(a, g, a.Ops[rnd.IntN(len(a.Ops))], n, size, catalog.Default())
	c.job.Fewer = nil
	return c, err == nil && c.job.Program.Switches == 0
}

// drawPart draws the name of a NIC, a GPU, a switch or one of their network links.
func drawPart(rnd *rand.Rand, g *topo.Graph) string {
	for {
		id := topo.NodeID(rnd.IntN(len(g.Nodes)))
		if k := g.Nodes[id].Kind; k != topo.NIC && k != topo.GPU && k != topo.Switch || len(g.Edges(id)) == 0 {
			continue
		}
		if rnd.IntN(2) == 0 {
			return g.NodeName(id)
		}
		for _, e := range g.Edges(id) {
			if g.Class(e.Link).Kind.Network() {
				return g.LinkName(e.Link)
			}
		}
	}
}

// The time of bad parts that are repeated, so that ranks fold, is near that of the bad parts alone, which the unfolded simulator gives.
func TestRepeatedFaults(t *testing.T) {
	graphs := orbitGraphs(t)
	rnd := rand.New(rand.NewPCG(7, 1))
	off := map[bool][]float64{} // by whether every host has the bad part
	for range bounded.Times(200, 2000) {
		c, ok := drawFaults(rnd, graphs)
		if !ok {
			continue
		}
		plain := c.o
		plain.Unfolded = true
		want, err := Run(c.g, []Job{c.job}, plain)
		if err != nil {
			continue // no path is left
		}
		c.o.shorten = true
		got, err := Run(c.g, []Job{c.job}, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if got.Every > 0 {
			off[got.Every == 1] = append(off[got.Every == 1], math.Abs(float64(got.Time)/float64(want.Time)-1))
		} else if got.Time != want.Time {
			t.Fatalf("%s on %s, fail %v slow %v: %d ps, unfolded %d ps", c.job.Program.Name, c.g.Name, c.o.Fail, c.o.Slow, got.Time, want.Time)
		}
	}
	for every, most := range map[bool]float64{true: 0.10, false: 0.07} {
		list := off[every]
		slices.Sort(list)
		if len(list) < 10 {
			t.Fatalf("only %d estimates: the test tests little", len(list))
		}
		half, nine := list[len(list)/2], list[len(list)*9/10]
		t.Logf("%d estimates, bad in every host %v: half of them within %.2f%%, nine of ten within %.1f%%, the worst %.0f%% off",
			len(list), every, 100*half, 100*nine, 100*list[len(list)-1])
		near, _ := slices.BinarySearch(list, most)
		if far := len(list) - near; half > 0.01 || chanceOf(far, len(list), 0.1) < 0.01 {
			t.Errorf("bad in every host %v: %d of %d estimates are more than %.0f%% off; want a tenth, and half within 1%%",
				every, far, len(list), 100*most)
		}
	}
}

// chanceOf is how likely k or more of n draws are, each with probability p.
func chanceOf(k, n int, p float64) float64 {
	one, sum := math.Pow(1-p, float64(n)), 0.0 // one is the chance of exactly i
	for i := range n + 1 {
		if i >= k {
			sum += one
		}
		one *= float64(n-i) / float64(i+1) * p / (1 - p)
	}
	return sum
}

// A large collective around a bad part has a time, and names the link that is bad, not one of its copies.
func TestLargeCollectivesAroundFaults(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 128})
	for _, c := range []struct {
		name  string
		op    sched.Collective
		o     Options
		limit string
	}{
		{"pairwise-xor", sched.AllToAll, Options{Fail: []string{"n77:nic2"}}, "n77:nic3 - "},
		{"pairwise-xor", sched.AllToAll, Options{Slow: []Slow{{"n77:nic2", 0.1}}}, "n77:nic2 - "},
	} {
		p := program(t, c.name, algo.Spec{Op: c.op, Ranks: 1024})
		r, err := Collective(g, p, 64*unit.GiB, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Every == 0 || len(r.Limit) < len(c.limit) || r.Limit[:len(c.limit)] != c.limit {
			t.Errorf("%s: %s, repeated every %d hosts, limit %q; want an estimate limited by %s", c.name, r.Time, r.Every, r.Limit, c.limit)
		}
	}
}

// On a thousand ranks and more, where such estimates are for, one bad part says how long all take.
func TestOneBadPartOfMany(t *testing.T) {
	hosts := bounded.Times(128, 256)
	g := preset(t, "rail", map[string]int{"hosts": hosts, "tiers": 2})
	a, err := algo.Find("hierarchical")
	if err != nil {
		t.Fatal(err)
	}
	type trial struct {
		name string
		size unit.Bytes
		o    Options
	}
	for _, c := range []trial{
		{"a slow NIC", 1 << 30, Options{Slow: []Slow{{"n7:nic2", 0.5}}}},
		{"a dead NIC", 1 << 28, Options{Fail: []string{"n70:nic0"}}},
		{"a slow NIC, few bytes", 1 << 16, Options{Slow: []Slow{{"n7:nic2", 0.1}}}},
		{"a slow GPU", 1 << 26, Options{Slow: []Slow{{"n30:gpu5", 0.25}}}},
	} {
		p, err := Wish{Outer: "rabenseifner"}.Program(a, g, sched.AllReduce, hosts*8, c.size, catalog.Default())
		if err != nil {
			t.Fatal(err)
		}
		c.o.Measured, c.o.Costs = true, DefaultCosts(g, catalog.Default())
		whole := c.o
		whole.Unfolded = true
		want, err := Run(g, []Job{{Program: p, Size: c.size}}, whole)
		if err != nil {
			t.Fatal(err)
		}
		c.o.shorten = true
		got, err := Run(g, []Job{{Program: p, Size: c.size}}, c.o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s whole, %s with the part bad in one of every %d hosts", c.name, want.Time, got.Time, got.Every)
		if d := math.Abs(float64(got.Time)/float64(want.Time) - 1); d > 0.01 {
			t.Errorf("%s: %s whole, %s with the part bad in one of every %d hosts: %.1f%% off", c.name, want.Time, got.Time, got.Every, 100*d)
		}
	}
}
