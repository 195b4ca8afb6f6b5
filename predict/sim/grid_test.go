package sim

import (
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// On a torus of chips, six links of 50 GB/s each are all busy with neighbours only,
// whatever blocks the hosts hold.
func TestTorusIsPlacedByItsGrid(t *testing.T) {
	c, err := cluster.Preset("tpu-v4", map[string]int{"x": 4, "y": 4, "z": 8})
	if err != nil {
		t.Fatal(err)
	}
	dims, order := grid(c.Graph, 128)
	if !slices.Equal(dims, []int{4, 4, 8}) {
		t.Fatalf("dimensions %v", dims)
	}
	for pos, r := range order {
		if n := &c.Graph.Nodes[place(c.Graph)[r]]; int(n.Pos) != pos {
			t.Errorf("rank %d stands at %d, not at %d", r, n.Pos, pos)
		}
	}
	best, err := Best(c.Graph, sched.AllReduce, 128, unit.GB, Options{}, Wish{})
	if err != nil {
		t.Fatal(err)
	}
	p, res := best.Program, best.Result
	if bus := float64(res.BusBW) / 1e9; p.Name != "torus" || bus < 240 || bus > 300 {
		t.Errorf("%s with %g GB/s of bus bandwidth; want torus near 300", p.Name, bus)
	}
	if dims, _ := grid(c.Graph, 64); dims != nil {
		t.Errorf("half a torus is given as %v", dims)
	}
	h, err := cluster.Preset("dgx-h100", nil)
	if err != nil {
		t.Fatal(err)
	}
	if dims, _ := grid(h.Graph, 8); dims != nil {
		t.Errorf("a host is given as the torus %v", dims)
	}
}

func place(g *topo.Graph) (list []topo.NodeID) {
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { list = append(list, n) })
	return list
}
