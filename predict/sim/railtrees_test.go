package sim

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// Over many hosts a broadcast and a reduce come near what the NICs of a host carry, also where the last host has fewer of them.
func TestRailTreesComeNearTheBound(t *testing.T) {
	const nic = 48e9 // bytes a second, measured
	for _, x := range []struct {
		hosts, gpus int
		broadcast   float64 // share of the bound
		reduce      float64
	}{
		{2, 16, 0.8, 0.8}, {13, 97, 0.95, 0.95}, {13, 100, 0.8, 0.65}, {13, 103, 0.5, 0.5}, {13, 104, 0.5, 0.75}, {64, 512, 0.4, 0.75},
	} {
		g := preset(t, "rail", map[string]int{"hosts": x.hosts})
		o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
		nics := x.gpus % 8
		if nics == 0 {
			nics = 8
		}
		bound := float64(unit.GiB) / float64(nics) / nic
		for op, share := range map[sched.Collective]float64{sched.Broadcast: x.broadcast, sched.Reduce: x.reduce} {
			best, err := Best(g, op, x.gpus, unit.GiB, o, Wish{NoSwitches: true, Plain: true})
			if err != nil {
				t.Fatal(err)
			}
			took := best.Result.Time.Seconds()
			if took < bound || bound/took < share {
				t.Errorf("%s on %d GPUs: %s by %s, %.2f of the bound, want %.2f", op, x.gpus, best.Result.Time, best.Algo, bound/took, share)
			}
		}
	}
}

// Folding changes nothing, whichever rank is the root.
func TestRailTreesFoldedAreUnfolded(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 5})
	o := Options{Measured: true, Costs: DefaultCosts(g, catalog.Default())}
	for _, n := range []int{8, 9, 19, 28, 32, 40} {
		for _, root := range []int{0, n / 2, n - 1} {
			for _, op := range []sched.Collective{sched.Broadcast, sched.Reduce} {
				for _, size := range []unit.Bytes{64 * unit.KiB, 64 * unit.MiB} {
					p := program(t, "rail-trees", algo.Spec{Op: op, Ranks: n, Local: 8, Root: root, Pieces: 1 + n%9, Slots: slots})
					both(t, g, []Job{{Program: p, Size: size}}, o)
				}
			}
		}
	}
}
