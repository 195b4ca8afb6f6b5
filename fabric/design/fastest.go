package design

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/topo"
)

// Fastest is what no schedule of a collective over all GPUs can beat, however
// good: bytes of the larger buffer over time, and the bus bandwidth of nccl-tests.
type Fastest struct {
	Op    string  `json:"op"`
	Adds  bool    `json:"switches_add"` // if switches copy and add
	Rate  float64 `json:"bytes_per_s"`
	Bus   float64 `json:"bus_bytes_per_s"`
	Limit string  `json:"limit"`
}

// mostBounded is how many GPUs are looked at: 1,024 take a second.
const mostBounded = 2048

// Collectives bounds collectives over all GPUs, all-reduce also with switches
// that add. It is nil where GPUs do not reach one another, or are too many.
func Collectives(g *topo.Graph) []Fastest {
	var gpus []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	var list []Fastest
	if len(gpus) < 2 || len(gpus) > mostBounded {
		return list
	}
	n, err := synth.FromGraph(g, gpus, synth.Options{})
	if err != nil {
		return list
	}
	for _, x := range []struct {
		op   sched.Collective
		adds bool
	}{{sched.AllGather, false}, {sched.AllReduce, false}, {sched.AllReduce, true}} {
		b, err := n.Bounds(x.op, 0, x.adds)
		if err != nil {
			continue
		}
		list = append(list, Fastest{x.op.String(), x.adds, float64(b.Rate), float64(b.Rate) * x.op.BusFactor(len(gpus)), b.Why})
	}
	return list
}
