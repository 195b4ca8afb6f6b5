package sim

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"pgregory.net/rapid"
)

// Around a part that failed or is slow, few flows share links. Lanes with events for
// these alone give what events for all give, for jobs side by side as for one.
func TestBrokenFoldedIsUnfolded(t *testing.T) {
	graphs := map[string]*topo.Graph{
		"rail":  preset(t, "rail", map[string]int{"hosts": 12}),
		"three": preset(t, "rail", map[string]int{"hosts": 40, "tiers": 3}),
		"tree":  preset(t, "fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1}),
	}
	mixed := 0
	check := func(t *rapid.T) {
		g := graphs[rapid.SampledFrom([]string{"rail", "three", "tree"}).Draw(t, "graph")]
		var gpus, parts []topo.NodeID
		for id := range g.Nodes {
			switch n := topo.NodeID(id); g.Nodes[n].Kind {
			case topo.GPU:
				gpus = append(gpus, n)
			case topo.NIC, topo.Switch:
				parts = append(parts, n)
			}
		}
		hosts := len(gpus) / 8
		o := Options{Measured: rapid.Bool().Draw(t, "measured"), PXN: rapid.Bool().Draw(t, "pxn"), Costs: costs}
		o.Routing = rapid.SampledFrom([]Routing{Adaptive, Adaptive, ECMP}).Draw(t, "routing")
		for range rapid.IntRange(1, 2).Draw(t, "bad parts") {
			name := g.NodeName(rapid.SampledFrom(parts).Draw(t, "part"))
			if rapid.Bool().Draw(t, "dead") {
				o.Fail = append(o.Fail, name)
			} else {
				o.Slow = append(o.Slow, Slow{name, rapid.SampledFrom([]float64{0.1, 0.5, 0.9}).Draw(t, "factor")})
			}
		}
		ranks := rapid.IntRange(2, hosts).Draw(t, "ranks")
		name := rapid.SampledFrom([]string{"ring", "ring", "binomial", "rabenseifner"}).Draw(t, "algorithm")
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		var jobs []Job
		for k := range rapid.IntRange(1, 8).Draw(t, "groups") { // sister groups: one rank a host each
			var set []topo.NodeID
			for h := range ranks {
				set = append(set, gpus[h*8+k])
			}
			op := sched.AllReduce
			if name == "binomial" {
				op = sched.Broadcast
			}
			size := unit.Bytes(rapid.SampledFrom([]int64{1 << 10, 1 << 20, 64 << 20}).Draw(t, "size"))
			p, err := Wish{}.ProgramOn(a, g, op, set, size)
			if err != nil {
				t.Skip("does not fit")
			}
			jobs = append(jobs, Job{Program: p, Size: size, Place: set,
				Start: unit.Time(rapid.IntRange(0, 2).Draw(t, "start")) * 10 * unit.Microsecond})
		}
		plain := o
		plain.Unfolded, plain.ordered = true, true
		want, err := Run(g, jobs, plain)
		if err != nil {
			t.Skip("no way is left: " + err.Error())
		}
		got, err := Run(g, jobs, o)
		if err != nil {
			t.Fatal(err)
		}
		if got.Time != want.Time || !slices.Equal(got.Jobs, want.Jobs) {
			t.Fatalf("%s x %d of %d ranks on %s, fail %v slow %v: %d ps unfolded, %d ps folded\n%v\n%v",
				name, len(jobs), ranks, g.Name, o.Fail, o.Slow, want.Time, got.Time, want.Jobs, got.Jobs)
		}
		x, y := want.carried(), got.carried()
		for i := range x {
			if x[i] != y[i] {
				t.Fatalf("%s carries %g and %g", want.w.net.name(wire(i)), x[i]/whole, y[i]/whole)
			}
		}
		if got.w.mixed {
			mixed++
		}
	}
	rapid.Check(t, check)
	for more := 0; more < 10 && mixed == 0 && !testing.Short(); more++ { // few draws mix
		rapid.Check(t, check)
	}
	if !testing.Short() && mixed == 0 {
		t.Error("no run had both flows that share and flows that do not: the test tests nothing")
	}
}

// A dead GPU that a rank stands on is named, rather than two that have no path to one another.
func TestDeadRankIsNamed(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 2})
	p := program(t, "ring", algo.Spec{Op: sched.AllReduce, Ranks: 16})
	_, err := Collective(g, p, unit.MiB, Options{Fail: []string{"n0:gpu3"}})
	if !errors.Is(err, topo.ErrUnreachable) || !strings.Contains(err.Error(), "rank 3 stands on n0:gpu3, which is dead") {
		t.Error(err)
	}
}
