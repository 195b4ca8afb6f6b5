package design

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// Growth is what the next unit needs and how far these switches go.
type Growth struct {
	Unit      string    `json:"unit"`
	UnitHosts int       `json:"unit_hosts"`
	MaxHosts  int       `json:"max_hosts"` // with the tiers there are; 0 if unknown
	MaxRule   string    `json:"max_rule"`
	Next      *NextUnit `json:"next,omitempty"`
	Problem   string    `json:"problem,omitempty"` // why the next unit could not be built
}

// NextUnit is the difference to the same design with one unit more.
type NextUnit struct {
	Hosts    int      `json:"hosts"`
	GPUs     int      `json:"gpus"`
	Switches Switches `json:"switches"`
	Cables   Cables   `json:"cables"`
	Moved    string   `json:"moved"` // what of the existing must be rewired, by counts
}

// grow says how far the fabric can grow, and what one unit more would take: the next larger cluster is built and the
// parts are subtracted.
func (r *Report) grow(v *view, gr cluster.Growth) {
	out := &r.Growth
	out.Unit, out.UnitHosts, out.MaxHosts = gr.Unit, gr.UnitHosts, gr.MaxHosts
	if gr.MaxHosts > 0 {
		out.MaxRule = "the preset's own rule, with the tiers there are"
	} else {
		out.MaxHosts, out.MaxRule = v.largest(r)
	}
	if gr.Next == nil {
		return
	}
	g, err := gr.Next()
	if err != nil {
		out.Problem = err.Error()
		return
	}
	w, err := look(g)
	if err != nil {
		out.Problem = err.Error()
		return
	}
	then := Report{perCable: r.perCable}
	then.count(w)
	out.Next = &NextUnit{
		Hosts: then.Hosts + then.ServiceHosts - r.Hosts - r.ServiceHosts,
		GPUs:  then.GPUs - r.GPUs,
		Switches: Switches{
			Leaf: then.Switches.Leaf - r.Switches.Leaf, Spine: then.Switches.Spine - r.Switches.Spine, Core: then.Switches.Core - r.Switches.Core,
			Higher: then.Switches.Higher - r.Switches.Higher, Service: then.Switches.Service - r.Switches.Service,
		},
		Cables: Cables{
			HostLeaf: then.Cables.HostLeaf - r.Cables.HostLeaf, LeafSpine: then.Cables.LeafSpine - r.Cables.LeafSpine,
			SpineCore: then.Cables.SpineCore - r.Cables.SpineCore,
			Peer:      then.Cables.Peer - r.Cables.Peer, Other: then.Cables.Other - r.Cables.Other, Service: then.Cables.Service - r.Cables.Service,
			Direct: then.Cables.Direct - r.Cables.Direct,
		},
	}
	out.Next.Moved = moved(g, v.g, max(r.perCable, 1))
}

// moved counts links between the same two switches that the larger design has
// no longer: cables that somebody has to pull.
func moved(larger, now *topo.Graph, perCable int) string {
	type pair struct{ a, b string }
	have := map[pair]int{}
	each := func(g *topo.Graph, f func(pair, int)) {
		for i := range g.Links {
			l := &g.Links[i]
			if a, b := &g.Nodes[l.A], &g.Nodes[l.B]; a.Kind == topo.Switch && b.Kind == topo.Switch {
				f(pair{a.Name, b.Name}, int(l.Count))
			}
		}
	}
	each(larger, func(p pair, n int) { have[p] += n })
	pulled := 0
	each(now, func(p pair, n int) {
		if have[p] < n {
			pulled += n - have[p]
		}
		have[p] = max(0, have[p]-n)
	})
	if pulled = (pulled + perCable - 1) / perCable; pulled == 0 {
		return "no cable between existing switches moves"
	}
	return fmt.Sprintf("%d cables between existing switches move", pulled)
}

// closOf is the most NICs that a Clos of switches with k ports reaches with some tiers, and the formula.
func closOf(k int, tiers uint8) (most int, rule string) {
	switch tiers {
	case 2:
		return k * k / 2, "k^2/2"
	case 3:
		return k * k * k / 4, "k^3/4"
	case 4:
		return k * k * k * k / 8, "k^4/8"
	}
	return k, "k"
}

// largest is the most hosts a non-blocking Clos of these switches reaches with
// the tiers there are: with k ports k NICs in one tier, k^2/2 in two, k^3/4 in
// three, for each plane or fabric by itself.
func (v *view) largest(r *Report) (int, string) {
	family, _, ok := v.family()
	if !ok || family != topo.Clos && family != topo.Irregular || v.direct {
		return 0, "no formula for this family"
	}
	if slices.ContainsFunc(v.nodes, func(n topo.NodeID) bool { return v.g.Nodes[n].Ports == 0 }) {
		return 0, "the switches' port counts are not known"
	}
	k := 0
	for i, n := range v.nodes {
		if ports := int(v.g.Nodes[n].Ports); i == 0 || ports < k {
			k = ports
		}
	}
	apart := max(r.Sizes.Planes, r.Sizes.Fabrics, 1)
	nics := max(r.Sizes.NICsPerHost/apart, 1)
	most, rule := closOf(k, v.top())
	return most / nics, fmt.Sprintf("%s NICs for k = %d ports in %d tiers without oversubscription, %d NICs a host in each of %d planes",
		rule, k, v.top(), nics, apart)
}
