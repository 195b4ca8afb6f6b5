package sim

import (
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/build"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

func BenchmarkSynthesise32(b *testing.B) {
	built, err := build.BuildPreset(catalog.Default(), "rail", map[string]int{"hosts": 4})
	if err != nil {
		b.Fatal(err)
	}
	var gpus []topo.NodeID
	built.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	for b.Loop() {
		s, err := Synthesise(built.Graph, gpus, sched.AllReduce, unit.GiB, Options{}, SynthWish{Loss: DefaultLoss})
		if err != nil {
			b.Fatal(err)
		}
		b.Log(s.Form, s.Result.Time, s.Tried)
	}
}
