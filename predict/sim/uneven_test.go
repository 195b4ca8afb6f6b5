package sim

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Where the last host has fewer GPUs than the others, auto comes near what its NICs allow: they send all that leaves the host and receive
// all that enters it, which is the whole buffer for an all-reduce and the other hosts' part of an all-to-all.
func TestAutoOnUnevenHosts(t *testing.T) {
	const nic = 48e9 // bytes a second, measured
	for _, x := range []struct {
		preset string
		hosts  int
		gpus   int
		op     sched.Collective
		share  float64 // of the bound
	}{
		{"rail", 4, 25, sched.AllReduce, 0.9},
		{"rail", 3, 19, sched.AllReduce, 0.6},
		{"rail", 13, 97, sched.AllReduce, 0.9},
		{"rail", 4, 25, sched.AllToAll, 0.95},
		{"rail", 3, 19, sched.AllToAll, 0.95},
		{"rail", 13, 103, sched.AllToAll, 0.95},
	} {
		g := preset(t, x.preset, map[string]int{"hosts": x.hosts})
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
		best, err := Best(g, x.op, x.gpus, unit.GiB, o, Wish{NoSwitches: true, Plain: true})
		if err != nil {
			t.Fatal(err)
		}
		short := float64(x.gpus % 8)
		out := float64(unit.GiB)
		if x.op == sched.AllToAll {
			out *= short * (float64(x.gpus) - short) / float64(x.gpus)
		}
		bound := out / short / nic
		if took := best.Result.Time.Seconds(); took < bound || bound/took < x.share {
			t.Errorf("%s on %d GPUs: %s by %s, %.2f of the bound, want %.2f", x.op, x.gpus, best.Result.Time, best.Algo, bound/took, x.share)
		}
	}
}

// Folding changes nothing where hosts are uneven.
func TestUnevenHostsFoldedAreUnfolded(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 5})
	for name, op := range map[string]sched.Collective{"hierarchical": sched.AllReduce, "pairwise-hosts": sched.AllToAll} {
		a, err := algo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{9, 19, 28, 39} {
			p, err := Wish{}.Program(a, g, op, n, 64*unit.MiB, catalog.Default())
			if err != nil {
				t.Fatal(err)
			}
			o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
			folded, err := Collective(g, p, 64*unit.MiB, o)
			if err != nil {
				t.Fatal(err)
			}
			o.Unfolded = true
			plain, err := Collective(g, p, 64*unit.MiB, o)
			if err != nil || plain.Time != folded.Time {
				t.Errorf("%s on %d GPUs: %d ps folded, %d ps unfolded; %v", name, n, folded.Time, plain.Time, err)
			}
		}
	}
}
