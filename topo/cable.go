package topo

import "github.com/weft-fabric/weft/unit"

// Lengths of cables between hosts and switches in metres, where nobody has
// measured them: inside a rack, from a host to its leaf, from a leaf to a spine
// or another leaf, and above. They decide which cable is bought and how long a
// signal takes.
const (
	RackMetres      = 2
	HostLeafMetres  = 20
	LeafSpineMetres = 30
	SpineCoreMetres = 100
)

// A class of network link is as slow as WireMetres of cable, at PerMetre, make it.
const (
	WireMetres = 20
	PerMetre   = 5 * unit.Nanosecond // light in fibre and signals in copper, to a few percent
)

// Metres is how long a cable of the network between hosts is taken to be; 0 for any other link.
func (g *Graph) Metres(l LinkID) float64 {
	if !g.Class(l).Kind.Network() {
		return 0
	}
	link := &g.Links[l]
	a, b := &g.Nodes[link.A], &g.Nodes[link.B]
	low, high := min(a.Tier, b.Tier), max(a.Tier, b.Tier)
	switch {
	case g.rack(link.A) != None && g.rack(link.A) == g.rack(link.B):
		return RackMetres
	case a.Kind != Switch || b.Kind != Switch:
		return HostLeafMetres
	case low <= 1 && high <= 2:
		return LeafSpineMetres
	}
	return SpineCoreMetres
}

// rack is where a node or its host stands.
func (g *Graph) rack(n NodeID) int32 {
	if h := g.Nodes[n].Host; h != None && g.Nodes[n].Rack == None {
		return g.Hosts[h].Rack
	}
	return g.Nodes[n].Rack
}

// LinkLatency is how long a signal takes over a link: that of its class, with
// the cable's own length instead of the usual one.
func (g *Graph) LinkLatency(l LinkID) unit.Time {
	t := g.Class(l).Latency
	if m := g.Metres(l); m > 0 {
		t = max(0, t+unit.Time((m-WireMetres)*float64(PerMetre)))
	}
	return t
}
