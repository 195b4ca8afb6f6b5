package sim

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/topo"
)

// DefaultPlace puts data ranks on the GPUs in the graph's order. Switches that
// compute go where what they do can be done: those that do what multimem does on
// the accelerator network of their domain, a share of the ranks each; the leaves
// of a sharp program on the switches at the NICs of their ranks, by the program's
// order of ranks, and its root and the switches of other programs above them, on
// the highest tier there is.
func DefaultPlace(g *topo.Graph, p *sched.Program) ([]topo.NodeID, error) {
	var place []topo.NodeID
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { place = append(place, n) })
	if len(place) < p.Ranks {
		return nil, fmt.Errorf("%s needs %d GPUs; %s has %d", p.Name, p.Ranks, g.Name, len(place))
	}
	return PlaceOn(g, p, place[:p.Ranks])
}

// PlaceOn puts data ranks on the GPUs given, and switches as DefaultPlace does.
func PlaceOn(g *topo.Graph, p *sched.Program, gpus []topo.NodeID) ([]topo.NodeID, error) {
	if len(gpus) != p.Ranks {
		return nil, fmt.Errorf("%s is for %d ranks, not for %d GPUs", p.Name, p.Ranks, len(gpus))
	}
	place := slices.Clone(gpus)
	if p.Switches == 0 {
		return place, nil
	}
	top, err := highest(g)
	code := step.Compile(p)
	leaves := p.Switches
	leafy := byLeaf(p)
	if leafy && leaves > 1 {
		leaves--
	}
	for k := range p.Switches {
		gpu := place[p.At(0, int64(min(k*((p.Ranks+leaves-1)/leaves), p.Ranks-1)))]
		at := topo.NodeID(topo.None)
		switch {
		case code.Multimem(sched.Rank(p.Ranks + k)):
			at = neighbour(g, gpu, topo.NVSwitch)
		case leafy && k < leaves && g.Near(gpu) != topo.None:
			at = neighbour(g, g.Near(gpu), topo.Switch)
		case err == nil:
			at = top[k%len(top)]
			if leaf := common(g, place[:p.Ranks], k%p.Ranks); leaf != topo.None {
				at = leaf
			}
		}
		if at == topo.None {
			return nil, fmt.Errorf("%s computes in %d switches; %s has none for %s", p.Name, p.Switches, g.Name, g.NodeName(gpu))
		}
		place = append(place, at)
	}
	return place, nil
}

// byLeaf reports whether the algorithm of a program puts switches at the leaves that ranks hang on.
func byLeaf(p *sched.Program) bool {
	a, err := algo.Find(p.Name)
	return err == nil && a.ByLeaf
}

// leafOrder groups the first n GPUs by the switch that their NICs hang on: the ranks,
// group after group, and how many there are in each. Where groups differ in size
// a switch stands for several of them. It gives no order where a GPU has no NIC at
// a switch, or where that would cut groups down to single ranks.
func leafOrder(g *topo.Graph, n int) (local int, order []sched.Rank) {
	groups := map[topo.NodeID][]sched.Rank{}
	var leaves []topo.NodeID
	r, lost := 0, false
	g.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) {
		if r == n {
			return
		}
		at := topo.NodeID(topo.None)
		if nic := g.Near(id); nic != topo.None {
			at = neighbour(g, nic, topo.Switch)
		}
		lost = lost || at == topo.None
		if groups[at] == nil {
			leaves = append(leaves, at)
		}
		groups[at] = append(groups[at], sched.Rank(r))
		r++
	})
	if lost {
		return 0, nil
	}
	for _, at := range leaves {
		for a, b := local, len(groups[at]); ; a, b = b%a, a {
			if a == 0 {
				local = b
				break
			}
		}
		order = append(order, groups[at]...)
	}
	if local == 1 && len(leaves) < n {
		return 0, nil
	}
	return local, order
}

// neighbour is the first node of a kind that a node is linked to.
func neighbour(g *topo.Graph, n topo.NodeID, k topo.Kind) topo.NodeID {
	for _, e := range g.Edges(n) {
		if g.Nodes[e.Peer].Kind == k {
			return e.Peer
		}
	}
	return topo.None
}

// highest lists the switches of the highest tier of the networks that GPUs use.
func highest(g *topo.Graph) ([]topo.NodeID, error) {
	var list []topo.NodeID
	tier := uint8(0)
	g.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
		if s.Fabric == topo.None || g.Fabrics[s.Fabric].Service || s.Tier < tier {
			return
		}
		if s.Tier > tier {
			list, tier = list[:0], s.Tier
		}
		list = append(list, n)
	})
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no network switches", g.Name)
	}
	return list, nil
}

// common is the switch that serves all NICs of a rank's rail, None if there are several.
func common(g *topo.Graph, ranks []topo.NodeID, k int) topo.NodeID {
	nic := g.Near(ranks[k])
	if nic == topo.None {
		return topo.None
	}
	at := neighbour(g, nic, topo.Switch)
	for _, r := range ranks {
		other := g.Near(r)
		if other == topo.None || g.Nodes[other].Rail == g.Nodes[nic].Rail && neighbour(g, other, topo.Switch) != at {
			return topo.None
		}
	}
	return at
}
