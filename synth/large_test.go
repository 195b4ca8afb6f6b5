package synth

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/build"
	"github.com/weft-fabric/weft/topo/catalog"
)

func preset(t testing.TB, name string, params map[string]int) (*topo.Graph, []topo.NodeID) {
	t.Helper()
	built, err := build.BuildPreset(catalog.Default(), name, params)
	if err != nil {
		t.Fatal(err)
	}
	var gpus []topo.NodeID
	built.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	return built.Graph, gpus
}

func BenchmarkBound1024(b *testing.B) {
	g, gpus := preset(b, "rail", map[string]int{"hosts": 128})
	for b.Loop() {
		n, err := FromGraph(g, gpus, Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce} {
			if _, err := n.Bounds(op, 0, false); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// Generation time by size: GPUs of rail-optimised hosts with eight each.
func BenchmarkMake(b *testing.B) {
	for _, hosts := range []int{1, 4, 8, 16, 32} {
		b.Run(fmt.Sprint(hosts*8), func(b *testing.B) {
			g, gpus := preset(b, "rail", map[string]int{"hosts": hosts})
			for b.Loop() {
				n, err := FromGraph(g, gpus, Options{})
				if err != nil {
					b.Fatal(err)
				}
				p, err := n.Make(sched.AllGather, 0, Wish{Loss: 0.02})
				if err != nil {
					b.Fatal(err)
				}
				b.Logf("%d trees of %d hops, %.4g of the bound", len(p.Ways), p.Height(), p.Share())
			}
		})
	}
}
