package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
	"pgregory.net/rapid"
)

// plainShares is max-min fairness in its plainest form, with real numbers: raise
// all rates together until a link is full, fix the flows on it, go on.
func plainShares(capacity []float64, flows []map[int]float64) []float64 {
	rates := make([]float64, len(flows))
	fixed := make([]bool, len(flows))
	left := slices.Clone(capacity)
	for {
		best, level := -1, math.Inf(1)
		for r := range capacity {
			open := 0.0
			for f := range flows {
				if !fixed[f] {
					open += flows[f][r]
				}
			}
			if open > 0 && left[r]/open < level {
				best, level = r, left[r]/open
			}
		}
		if best < 0 {
			return rates
		}
		for f := range flows {
			if !fixed[f] && flows[f][best] > 0 {
				fixed[f], rates[f] = true, level
				for r, w := range flows[f] {
					left[r] -= w * level
				}
			}
		}
	}
}

// Rates are those of the plain form, whatever flows came and went before, and
// every flow has a full link on which none is faster.
func TestSharesAreMaxMinFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sharing
		var capacity []float64
		for range rapid.IntRange(1, 8).Draw(t, "links") {
			c := rapid.Int64Range(1e6, 4e12).Draw(t, "capacity")
			s.resource(c)
			capacity = append(capacity, float64(c))
		}
		var loads []map[int]float64
		for range rapid.IntRange(1, 12).Draw(t, "flows") {
			m := map[int]float64{}
			var list []load
			for r := range capacity {
				if len(list) == 0 && r == len(capacity)-1 || rapid.Bool().Draw(t, "uses") {
					share := rapid.SampledFrom([]int64{whole, whole / 2, whole / 4, 5 * whole / 18}).Draw(t, "share")
					list = append(list, load{res: int32(r), share: share})
					m[r] = float64(share) / whole
				}
			}
			s.flow(list)
			loads = append(loads, m)
		}
		on := make([]bool, len(loads))
		for range rapid.IntRange(1, 10).Draw(t, "changes") {
			for range rapid.IntRange(1, 4).Draw(t, "at once") {
				f := rapid.IntRange(0, len(loads)-1).Draw(t, "flow")
				if on[f] = !on[f]; on[f] {
					s.start(int32(f))
				} else {
					s.stop(int32(f))
				}
			}
			s.solve()
			var active []map[int]float64
			var ids []int
			for f := range loads {
				if on[f] {
					active, ids = append(active, loads[f]), append(ids, f)
				}
			}
			want := plainShares(capacity, active)
			for i, f := range ids {
				// A byte a second is lost to rounding for each flow, times the shares' ratio.
				if got := float64(s.flows[f].rate); math.Abs(got-want[i]) > 1e-6*want[i]+20*float64(len(loads)) {

					t.Fatalf("flow %d has %.0f B/s, the plain form gives %.0f", f, got, want[i])
				}
			}
			for r := range capacity {
				sum := int64(0)
				for _, m := range s.res[r].on {
					sum += s.flows[m.flow].rate * s.flows[m.flow].loads[m.load].share
				}
				if sum > s.res[r].cap*whole {
					t.Fatalf("link %d carries more than it can", r)
				}
			}
		}
	})
}

// draw picks a machine, an algorithm that fits and how it is treated.
func draw(t *rapid.T, graphs map[string]*topo.Graph) (*topo.Graph, *sched.Program, unit.Bytes, Options) {
	var names []string
	for n := range graphs {
		names = append(names, n)
	}
	slices.Sort(names)
	g := graphs[rapid.SampledFrom(names).Draw(t, "graph")]
	gpus := g.Count(topo.GPU)
	n := rapid.SampledFrom([]int{2, 3, 4, 6, 8, 12, 16, 24, 32, 64}).Filter(func(n int) bool { return n <= gpus }).Draw(t, "ranks")
	a := rapid.SampledFrom(algo.All()).Draw(t, "algorithm")
	op := rapid.SampledFrom(a.Ops).Draw(t, "op")
	spec := Spec(g, op, n)
	spec.Channels = rapid.IntRange(1, 2).Draw(t, "channels")
	spec.Slots = rapid.SampledFrom([]int{0, 4, 8}).Draw(t, "slots")
	if rapid.Bool().Draw(t, "placed") {
		spec = Place(a, spec, g, catalog.Default())
	}
	p, err := a.Program(spec)
	if err != nil || p.Switches > 0 {
		t.Skip("does not fit")
	}
	size := unit.Bytes(rapid.SampledFrom([]int64{1, 1000, 64 << 10, 1 << 20, 100 << 20}).Draw(t, "size"))
	o := Options{Measured: rapid.Bool().Draw(t, "measured"), PXN: rapid.Bool().Draw(t, "pxn"), Seed: rapid.Uint64Range(0, 3).Draw(t, "seed")}
	o.Routing = rapid.SampledFrom([]Routing{Adaptive, ECMP}).Draw(t, "routing")
	o.Transport = rapid.SampledFrom([]Transport{RDMA, RDMA, TCP}).Draw(t, "transport")
	o.Costs = Costs{Launch: unit.Microsecond, Local: unit.Time(rapid.IntRange(0, 2000).Draw(t, "overhead")) * unit.Nanosecond,
		Net:    unit.Microsecond,
		Memory: unit.Rate(rapid.SampledFrom([]float64{0, 3e12, 2e10}).Draw(t, "memory"))}
	if rapid.Bool().Draw(t, "slow") {
		l := topo.LinkID(rapid.IntRange(0, len(g.Links)-1).Draw(t, "link"))
		o.Slow = append(o.Slow, Slow{g.LinkName(l), 0.3})
	}
	return g, p, size, o
}

func smallGraphs(tb testing.TB) map[string]*topo.Graph {
	return map[string]*topo.Graph{
		"h100":  preset(tb, "dgx-h100", nil),
		"v100":  preset(tb, "dgx-1v", nil),
		"pcie":  preset(tb, "pcie-8-plx", nil),
		"rail":  preset(tb, "rail", map[string]int{"hosts": 8}),
		"tree":  preset(tb, "fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1}),
		"nvl72": preset(tb, "gb200-nvl72", nil),
	}
}

// Folding changes nothing: neither time nor the bytes of any link.
func TestFoldedIsUnfolded(t *testing.T) {
	graphs := smallGraphs(t)
	folded, alike := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		g, p, size, o := draw(t, graphs)
		plain, quick := o, o
		plain.Unfolded, plain.ordered = true, true
		a, err := Collective(g, p, size, plain)
		if err != nil {
			t.Fatalf("%s on %s: %v", p.Name, g.Name, err)
		}
		b, err := Collective(g, p, size, quick)
		if err != nil {
			t.Fatal(err)
		}
		if a.Time != b.Time {
			t.Fatalf("%s %s, %d ranks on %s: %d ps unfolded, %d ps folded", p.Name, p.Op, p.Ranks, g.Name, a.Time, b.Time)
		}
		x, y := a.carried(), b.carried()
		for i := range x {
			if x[i] != y[i] {
				t.Fatalf("%s: %s carries %g and %g", p.Name, a.w.net.name(wire(i)), x[i]/whole, y[i]/whole)
			}
		}
		sum := unit.Time(0)
		for _, c := range b.Critical {
			sum += c
		}
		if sum != b.Time {
			t.Fatalf("%s: the longest chain accounts for %s of %s: %v", p.Name, sum, b.Time, b.Critical)
		}
		if b.Folded > 0 {
			folded++
		}
		if b.Ranks < p.Ranks {
			alike++
		}
	})
	if !testing.Short() && (folded == 0 || alike == 0) {
		t.Errorf("%d runs folded rounds, %d ranks: the test tests nothing", folded, alike)
	}
}

// What enters a chip leaves it, and a GPU sends and receives what its rank does.
func TestBytesAreConserved(t *testing.T) {
	graphs := smallGraphs(t)
	rapid.Check(t, func(t *rapid.T) {
		g, p, size, o := draw(t, graphs)
		o.Transport = RDMA
		res, err := Collective(g, p, size, o)
		if err != nil {
			t.Fatal(err)
		}
		out, in := make([]float64, len(g.Nodes)), make([]float64, len(g.Nodes))
		for i, v := range res.carried() {
			if l := topo.LinkID(i >> 1); int(l) < len(g.Links) && v > 0 {
				from, to := g.Links[l].Ends(i&1 == 0)
				out[from] += v
				in[to] += v
			}
		}
		for n := range g.Nodes {
			if k := g.Nodes[n].Kind; k == topo.GPU || o.PXN {
				continue
			}
			if math.Abs(in[n]-out[n]) > 1e-4*in[n]+whole {
				t.Fatalf("%s takes %.0f bytes and gives %.0f", g.NodeName(topo.NodeID(n)), in[n]/whole, out[n]/whole)
			}
		}
	})
}

// The quick way to a route gives the links that the graph's own search gives.
func TestRoutesAreTheGraphs(t *testing.T) {
	graphs := smallGraphs(t)
	graphs["dragonfly"] = preset(t, "dragonfly", map[string]int{})
	graphs["three"] = preset(t, "rail", map[string]int{"hosts": 64, "tiers": 3})
	rapid.Check(t, func(t *rapid.T) {
		var names []string
		for n := range graphs {
			names = append(names, n)
		}
		slices.Sort(names)
		g := graphs[rapid.SampledFrom(names).Draw(t, "graph")]
		var gpus []topo.NodeID
		g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
		n, err := newNetwork(g, Options{Catalog: catalog.Default(), Routing: ECMP, Seed: rapid.Uint64().Draw(t, "seed"),
			PXN: rapid.Bool().Draw(t, "pxn")})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 { // several with one network, for what it remembers to be used
			from, to := rapid.SampledFrom(gpus).Draw(t, "from"), rapid.SampledFrom(gpus).Draw(t, "to")
			if from == to {
				continue
			}
			var p path
			if err := n.route(from, to, 1, &p); err != nil {
				t.Fatal(err)
			}
			key := mix(mix(n.o.Seed, uint64(from)<<32|uint64(to)), 1)
			way, err := g.Route(topo.Flow{From: from, To: to, Key: key, PXN: n.o.PXN}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var want []use
			for _, u := range way {
				want = append(want, n.use(u))
			}
			if !slices.Equal(p.uses, want) {
				t.Fatalf("%s to %s: %v, the graph says %v", g.NodeName(from), g.NodeName(to), p.uses, want)
			}
			if lat := n.latency(from, to, way); p.latency != lat {
				t.Fatalf("%s to %s: latency %s, of the whole way %s", g.NodeName(from), g.NodeName(to), p.latency, lat)
			}
		}
	})
}

// The same input gives the same bytes of trace, picture and result.
func TestSameInputSameBytes(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	p := program(t, "hierarchical", Spec(g, sched.AllReduce, 32))
	o := Options{Measured: true, Costs: costs, Trace: 500, Routing: ECMP, Seed: 3}
	out := func() string {
		res, err := Collective(g, p, 10*unit.MiB, o)
		if err != nil {
			t.Fatal(err)
		}
		var b buffer
		name := func(_, rank int) string { return fmt.Sprint("r", rank) }
		if err := res.Trace.WriteChrome(&b, name); err != nil {
			t.Fatal(err)
		}
		if err := res.Trace.WriteTimeline(&b, "title", name); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(res.Time, res.Limit, res.Critical, res.Links(), res.Tiers(), string(b))
	}
	if a, b := out(), out(); a != b {
		t.Error("two runs differ")
	}
}

type buffer []byte

func (b *buffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }
