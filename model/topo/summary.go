package topo

import (
	"cmp"
	"slices"

	"github.com/weft-fabric/weft/model/unit"
)

// Sort is one line of a summary: links of one class between two kinds of node.
type Sort struct {
	A, B  Kind
	Tiers [2]uint8 // of switches, else 0
	Class Class
	Links int // physical links
}

// Summary counts a graph's links by what they join and of which class, nearest
// the GPUs first.
func (g *Graph) Summary() []Sort {
	type key struct {
		a, b  Kind
		tiers [2]uint8
		class ClassID
	}
	count := map[key]int{}
	for i := range g.Links {
		l := &g.Links[i]
		a, b := &g.Nodes[l.A], &g.Nodes[l.B]
		count[key{a.Kind, b.Kind, [2]uint8{a.Tier, b.Tier}, l.Class}] += int(l.Count)
	}
	var all []Sort
	for k, n := range count {
		all = append(all, Sort{k.a, k.b, k.tiers, g.Classes[k.class], n})
	}
	slices.SortFunc(all, func(x, y Sort) int {
		return cmp.Or(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B), cmp.Compare(x.Tiers[0], y.Tiers[0]),
			cmp.Compare(x.Tiers[1], y.Tiers[1]), compareClasses(&x.Class, &y.Class))
	})
	return all
}

// Injection is what one accelerator can send, one way: over its accelerator
// links all together, over PCIe, and through the NIC it uses.
type Injection struct {
	Accelerator, PCIe, NIC unit.Rate
}

// Injection sums up the links of one GPU.
func (g *Graph) Injection(gpu NodeID) Injection {
	var in Injection
	for _, e := range g.Edges(gpu) {
		switch k := g.Class(e.Link).Kind; {
		case k.Accelerator():
			in.Accelerator += g.Rate(e.Link)
		case k == PCIe:
			in.PCIe += g.Rate(e.Link)
		}
	}
	if nic := g.near[gpu]; nic != None {
		for _, e := range g.Edges(nic) {
			if g.Class(e.Link).Kind.Network() {
				in.NIC += g.Rate(e.Link)
			}
		}
	}
	return in
}
