package sim

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"pgregory.net/rapid"
)

// orbitGraphs are fabrics of two and three tiers, whose hosts are alike.
func orbitGraphs(tb testing.TB) []*topo.Graph {
	return []*topo.Graph{
		preset(tb, "rail", map[string]int{"hosts": 8}),
		smallPods(tb),
		preset(tb, "fat-tree", map[string]int{"hosts": 16, "tiers": 2, "down": 7, "up": 1}),
		preset(tb, "fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1}),
		preset(tb, "fat-tree", map[string]int{"hosts": 16, "tiers": 3}),
	}
}

// smallPods is a rail fabric of three tiers with four hosts per pod.
func smallPods(tb testing.TB) *topo.Graph {
	c, err := cluster.Parse("pods.yaml", []byte(`
name: pods
hosts: {"n[0-15]": {kind: dgx-h100}}
fabric: {family: rail, tiers: 3, switch: SN5600, pod: 4}
`), nil)
	if err != nil {
		tb.Fatal(err)
	}
	return c.Graph
}

// Ranks that stand for others by renaming hosts take the time that all ranks take one by one, and that the listed routes of all
// give, to the picosecond; so do the bytes of every link. A slow or dead part, wherever it is, changes nothing about that.
func TestOrbitsAreExact(t *testing.T) {
	graphs := orbitGraphs(t)
	used := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		g := rapid.SampledFrom(graphs).Draw(t, "graph")
		gpus := g.Count(topo.GPU)
		n := rapid.SampledFrom([]int{16, 32, 64, 96, 128}).Filter(func(n int) bool { return n <= gpus }).Draw(t, "ranks")
		a := rapid.SampledFrom(algo.All()).Draw(t, "algorithm")
		op := rapid.SampledFrom(a.Ops).Draw(t, "op")
		p, err := Wish{}.Program(a, g, op, n, unit.MiB, catalog.Default())
		if err != nil || p.Switches > 0 {
			t.Skip("does not fit")
		}
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default()),
			Transport: rapid.SampledFrom([]Transport{RDMA, TCP}).Draw(t, "transport")}
		if rapid.IntRange(0, 3).Draw(t, "slow") == 0 {
			l := topo.LinkID(rapid.IntRange(0, len(g.Links)-1).Draw(t, "link"))
			o.Slow = []Slow{{g.LinkName(l), 0.5}}
		}
		size := unit.Bytes(rapid.SampledFrom([]int64{1, 64 << 10, 8 << 20}).Draw(t, "size"))
		quick, err := Collective(g, p, size, o)
		if err != nil {
			t.Fatal(err)
		}
		if s := quick.w.sym; s != nil && s.group != nil {
			used[p.Name]++
		}
		for _, other := range []string{"unfolded", "listed"} {
			plain := o
			plain.Unfolded, plain.ordered, plain.listed = other == "unfolded", other == "unfolded", other == "listed"
			want, err := Collective(g, p, size, plain)
			if err != nil {
				t.Fatal(err)
			}
			if quick.Time != want.Time {
				t.Fatalf("%s %s, %d ranks on %s: %d ps, %s %d ps", p.Name, op, n, g.Name, quick.Time, other, want.Time)
			}
			x, y := quick.carried(), want.carried()
			for i := range x {
				if x[i] != y[i] {
					t.Fatalf("%s on %s: %s carries %g, %s %g", p.Name, g.Name, quick.w.net.name(wire(i)), x[i]/whole, other, y[i]/whole)
				}
			}
		}
	})
	if !testing.Short() && len(used) < 5 {
		t.Errorf("only %v folded by orbits: the test tests little", used)
	}
}

// A group is one of the fabric as it is: a slow link anywhere between the hosts' NICs and the top leaves a smaller group or none, whose
// orbits hold only links of one rate. The links are compared here by what the graph says of them.
func TestOrbitsHoldLinksOfOneKind(t *testing.T) {
	g := smallPods(t)
	var place []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { place = append(place, id) })
	healthy, smaller, tried := int32(0), 0, 0
	for l := -1; l < len(g.Links); l++ {
		o := Options{Catalog: catalog.Default()}
		if l >= 0 {
			if !g.Class(topo.LinkID(l)).Kind.Network() {
				continue
			}
			o.Slow = []Slow{{g.LinkName(topo.LinkID(l)), 0.5}}
			tried++
		}
		net, err := networkOf(g, o)
		if err != nil {
			t.Fatal(err)
		}
		orbits := findOrbits(net, place, 8, true)
		if l < 0 {
			if orbits == nil {
				t.Fatal("a fabric of like hosts has no orbits")
			}
			healthy = orbits.few
			continue
		}
		if orbits == nil || orbits.few > healthy {
			smaller++
		}
		if orbits == nil {
			continue
		}
		for i, link := range orbits.links {
			rep := orbits.links[orbits.root.Find(int32(i))]
			if a, b := net.slowness(link), net.slowness(rep); a != b {
				t.Fatalf("%s slow: %s at %g stands for %s at %g", g.LinkName(topo.LinkID(l)), g.LinkName(rep), b, g.LinkName(link), a)
			}
		}
	}
	if smaller < tried/2 {
		t.Errorf("of %d slow links only %d cost any symmetry", tried, smaller)
	}
}

// What an all-to-all takes on a fabric of three tiers is known from a few ranks: every rank has a flow to every other, and listing
// them would need more than 2 GiB.
func TestAllToAllOfManyRanksFolds(t *testing.T) {
	g := large(t, 1<<14)
	for _, n := range []int{2048, 16384} {
		p := program(t, "pairwise-xor", algo.Spec{Op: sched.AllToAll, Ranks: n})
		r, err := Collective(g, p, unit.GiB, Options{Measured: true})
		if err != nil {
			t.Fatal(err)
		}
		if r.Ranks > 8 {
			t.Errorf("%d of %d ranks were simulated", r.Ranks, n)
		}
		// No rank can receive its share faster than its NIC: all but its host's.
		if least := unit.Bytes(float64(unit.GiB) * float64(n-8) / float64(n)).Over(48 * unit.GBps); r.Time < least {
			t.Errorf("%d ranks: %s, the NIC alone needs %s", n, r.Time, least)
		}
		sum := unit.Bytes(0)
		for _, u := range r.Tiers() {
			if u.Tier == Leaf {
				sum = u.Bytes
			}
		}
		each := (int64(unit.GiB) + int64(n) - 1) / int64(n)
		if want := unit.Bytes(2 * int64(n) * int64(n-8) * each); sum < want || float64(sum) > 1.001*float64(want) {
			t.Errorf("%d ranks: %s on NIC cables, want %s", n, sum, fmt.Sprint(want))
		}
	}
}
