package topo

import (
	"maps"
	"slices"
	"strconv"

	"github.com/weft-fabric/weft/model/unit"
)

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

// lengthKey is the attribute of a link whose cable's length is known, in metres.
const lengthKey = "metres"

// Placed gives the same graph with other racks, by the names of hosts and
// switches, and with lengths of the cables between them. Where a function gives
// None or 0 it knows nothing, and the rack or the usual length stays.
func (g *Graph) Placed(rack func(device string) int32, metres func(LinkID) float64) *Graph {
	same := *g
	same.Hosts, same.Nodes, same.Wires = slices.Clone(g.Hosts), slices.Clone(g.Nodes), maps.Clone(g.Wires)
	if same.Wires == nil {
		same.Wires = map[LinkID]Attrs{}
	}
	same.rerack(rack)
	for i := range same.Links {
		l := LinkID(i)
		if !g.Class(l).Kind.Network() {
			continue
		}
		if m := metres(l); m > 0 {
			a := maps.Clone(same.Wires[l])
			if a == nil {
				a = Attrs{}
			}
			a[lengthKey] = strconv.FormatFloat(m, 'g', -1, 64)
			same.Wires[l] = a
		}
	}
	same.measure()
	return &same
}

// rerack moves hosts, with all their parts, and switches outside of hosts into the racks that it is given.
func (g *Graph) rerack(rack func(device string) int32) {
	for h := range g.Hosts {
		host := &g.Hosts[h]
		if r := rack(host.Name); r != None {
			host.Rack = r
			for i := range host.Count {
				g.Nodes[host.First+NodeID(i)].Rack = r
			}
		}
	}
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Host == None && n.Kind == Switch {
			if r := rack(n.Name); r != None {
				n.Rack = r
			}
		}
	}
}

// measure reads the lengths of cables out of the attributes of links.
func (g *Graph) measure() {
	g.metres = nil
	for l, a := range g.Wires {
		m, err := strconv.ParseFloat(a[lengthKey], 32)
		if err != nil || !(m > 0 && m < 1e6) || l < 0 || int(l) >= len(g.Links) {
			continue
		}
		if g.metres == nil {
			g.metres = make([]float32, len(g.Links))
		}
		g.metres[l] = float32(m)
	}
}

// SameRack reports whether both ends of a link stand in one rack.
func (g *Graph) SameRack(l LinkID) bool {
	link := &g.Links[l]
	return g.rack(link.A) != None && g.rack(link.A) == g.rack(link.B)
}

// Metres is how long a cable of the network between hosts is, or is taken to be
// where nobody has said it; 0 for any other link.
func (g *Graph) Metres(l LinkID) float64 {
	if !g.Class(l).Kind.Network() {
		return 0
	}
	if g.metres != nil && g.metres[l] > 0 {
		return float64(g.metres[l])
	}
	link := &g.Links[l]
	a, b := &g.Nodes[link.A], &g.Nodes[link.B]
	low, high := min(a.Tier, b.Tier), max(a.Tier, b.Tier)
	switch {
	case g.SameRack(l):
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

// Replugged gives the same graph with its links plugged in elsewhere: link i is links[i]. Hosts
// take the pods that pod gives them.
func (g *Graph) Replugged(links []Link, pod func(HostID) int32) (*Graph, error) {
	same := *g
	same.Hosts, same.Nodes, same.Links, same.Wires = slices.Clone(g.Hosts), slices.Clone(g.Nodes), links, maps.Clone(g.Wires)
	for h := range same.Hosts {
		host := &same.Hosts[h]
		host.Pod = pod(HostID(h))
		for i := range host.Count {
			same.Nodes[host.First+NodeID(i)].Pod = host.Pod
		}
	}
	same.sortLinks()
	same.index()
	return &same, same.Validate()
}
