package sim

import (
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
	"github.com/weft-fabric/weft/unit"
)

// slots is how many messages may be under way between two ranks, as many as
// NCCL has buffers (NCCL_STEPS): fewer would make long ways slower than their links.
const slots = 8

// Domain is the number of GPUs of one host, or of one accelerator network where
// that is larger, among the first n of a graph; n if all are in one.
func Domain(g *topo.Graph, n int) int {
	var gpus []topo.NodeID
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	n = min(n, len(gpus))
	var way []topo.Use
	for k := 1; k < n; k++ {
		var err error
		if way, err = g.Route(topo.Flow{From: gpus[0], To: gpus[k]}, way[:0]); err != nil {
			return k
		}
		for _, u := range way {
			if g.Class(u.Link).Kind.Network() {
				return k
			}
		}
	}
	return max(n, 1)
}

// Spec fills in what an algorithm should know of the machine it runs on.
func Spec(g *topo.Graph, op sched.Collective, n int) algo.Spec {
	return algo.Spec{Op: op, Ranks: n, Slots: slots, Local: Domain(g, n)}
}

// Place gives rings the orders that suit the machine, a channel each, a torus its
// dimensions and the ranks in their order, and hierarchical the copies that keep
// both its levels busy: four of them reach 0.78 of the NICs' rate on 128 hosts,
// one 0.49. Beyond vast one copy is simulated; --channels asks for more, which
// at 16,384 ranks takes 4 s instead of 0.1.
func Place(a *algo.Algorithm, s algo.Spec, g *topo.Graph, c *catalog.Catalog) algo.Spec {
	switch a.Name {
	case "ring":
		s.Orders = Orders(g, s.Ranks, c)
		s.Channels = max(len(s.Orders), 1)
	case "hierarchical":
		if s.Ranks <= vast && s.Local < s.Ranks {
			s.Channels = 4
		}
	case "torus":
		if dims, order := grid(g, s.Ranks); dims != nil {
			s.Dims, s.Orders = dims, [][]sched.Rank{order}
		}
	}
	return s
}

// many is the number of ranks from which only algorithms are tried whose ranks
// do alike: simulating the others grows with the pairs of ranks, and they lose.
const many = 128

// vast is the number of ranks from which hierarchical is the only all-reduce
// tried: rings and trees through every rank lose by a multiple there, and take
// minutes to simulate.
const vast = 4096

// Candidates lists programs for a collective, one for each algorithm that does
// it with these ranks on its own and not in switches.
func Candidates(g *topo.Graph, op sched.Collective, n int, c *catalog.Catalog) []*sched.Program {
	var list []*sched.Program
	for _, a := range algo.All() {
		if !a.Serves(op) {
			continue
		}
		p, err := a.Program(Place(a, Spec(g, op, n), g, c))
		if err != nil || p.Switches > 0 || a.Name == "torus" && !torus(g) {
			continue
		}
		if few := a.Name == "ring" || a.Name == "torus" || a.Name == "hierarchical" || strings.Contains(a.Name, "tree"); n > many && !few && op == sched.AllReduce {
			continue
		}
		if n > vast && op == sched.AllReduce && a.Name == "hierarchical" && Domain(g, n) < n {
			return []*sched.Program{p}
		}
		list = append(list, p)
	}
	return list
}

// Best simulates every candidate and gives the fastest with its result.
func Best(g *topo.Graph, op sched.Collective, n int, size unit.Bytes, o Options) (*sched.Program, *Result, error) {
	var best *sched.Program
	var result *Result
	for _, p := range Candidates(g, op, n, o.Catalog) {
		r, err := Collective(g, p, size, o)
		if err != nil {
			return nil, nil, err
		}
		if result == nil || r.Time < result.Time {
			best, result = p, r
		}
	}
	if best == nil {
		return nil, nil, fmt.Errorf("no algorithm does %s with %d ranks", op, n)
	}
	return best, result, nil
}

// torus reports whether a graph's accelerators or switches form a torus.
func torus(g *topo.Graph) bool {
	for _, f := range g.Fabrics {
		if f.Family == topo.Torus {
			return true
		}
	}
	return false
}
