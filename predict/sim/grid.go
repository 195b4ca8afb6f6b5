package sim

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
)

// grid gives the lengths of the torus that the first n accelerators of a graph
// make up, and the rank at each of its places, the first dimension fastest: hosts
// hold blocks of a torus, so that ranks in the graph's order are no neighbours.
// It gives nothing where the accelerators are not all of one torus.
func grid(g *topo.Graph, n int) (dims []int, order []sched.Rank) {
	order = make([]sched.Rank, n)
	taken := make([]bool, n)
	r, fabric := 0, int8(topo.None)
	for i := range g.Nodes {
		node := &g.Nodes[i]
		if node.Kind != topo.GPU || r == n {
			continue
		}
		if r == 0 {
			fabric = node.Fabric
		}
		if fabric == topo.None || node.Fabric != fabric || node.Pos < 0 || int(node.Pos) >= n || taken[node.Pos] {
			return nil, nil
		}
		order[node.Pos], taken[node.Pos] = sched.Rank(r), true
		r++
	}
	if r < n || g.Fabrics[fabric].Family != topo.Torus {
		return nil, nil
	}
	product := 1
	for _, d := range g.Fabrics[fabric].Dims {
		product *= d
	}
	if product != n {
		return nil, nil
	}
	return g.Fabrics[fabric].Dims, order
}
