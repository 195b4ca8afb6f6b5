package topo

// FabricOnly keeps of a graph what discovery of its network can see, so that a
// design and what was found of it can be compared: Diff of the FabricOnly of
// both is empty if they are the same. NICs under their hosts, switches and
// cables stay, as Cabled has them; all fabrics become one, since a discovery is
// one; tiers and family are inferred from the wiring (see InferTiers). What only
// the designer knows is left out (pods, racks, rails, planes, positions,
// models), and so is what only the discovery knows (GUIDs and other attributes).
func FabricOnly(g *Graph) *Graph {
	cabled := Cabled(g)
	b := NewBuilder(g.Name)
	fabric := b.Fabric(Fabric{Name: "fabric", Family: Irregular})
	for _, h := range cabled.Hosts {
		b.Host(Host{Name: h.Name, Pod: None, Rack: None})
	}
	for _, n := range cabled.Nodes {
		part := Part(n.Kind, n.Host, n.Name)
		part.Fabric, part.Ports = fabric, n.Ports
		b.Node(part)
	}
	for _, l := range cabled.Links {
		l.Class = b.Class(cabled.Classes[l.Class])
		b.Link(l)
	}
	if b.InferTiers(fabric) {
		b.g.Fabrics[fabric].Family = Clos
	}
	return b.must()
}

// Cabled keeps of a graph its NICs, its switches and the cables between them:
// a link of Count n becomes n links, every end has a port number (numbers that
// the graph leaves open are given out from the lowest free one, in the order of
// links), and every node knows how many ports it has. NICs that belong to no fabric
// and hosts without a NIC are left out. Of a graph with InfiniBand links only these
// are kept: no subnet manager sees the Ethernet beside them.
func Cabled(g *Graph) *Graph {
	b := NewBuilder(g.Name)
	for _, f := range g.Fabrics {
		b.Fabric(f)
	}
	seen, kind := g.seen()
	moved := make([]NodeID, len(g.Nodes))
	hosts := make(map[HostID]HostID)
	for i := range g.Nodes {
		moved[i] = None
		if !seen[i] {
			continue
		}
		n := g.Nodes[i]
		if n.Host != None {
			if _, ok := hosts[n.Host]; !ok {
				hosts[n.Host] = b.Host(g.Hosts[n.Host])
			}
			n.Host = hosts[n.Host]
		}
		moved[i] = b.Node(n)
		b.Attr(moved[i], g.Attrs[NodeID(i)])
	}
	used := make(map[NodeID]map[uint16]bool)
	take := func(n NodeID, port uint16) bool {
		if used[n] == nil {
			used[n] = map[uint16]bool{}
		}
		if port == 0 || used[n][port] {
			return false
		}
		used[n][port] = true
		b.At(n).Ports = max(b.At(n).Ports, port)
		return true
	}
	var open []openEnd
	for i := range g.Links {
		l := g.Links[i]
		if !g.onNetwork(LinkID(i)) || g.Class(LinkID(i)).Kind != kind {
			continue
		}
		l.A, l.B, l.Class = moved[l.A], moved[l.B], b.Class(g.Classes[l.Class])
		count := l.Count
		l.Count = 1
		for range count {
			id := b.Link(l)
			b.Wire(id, g.Wires[LinkID(i)])
			if !take(l.A, l.APort) {
				open = append(open, openEnd{id, l.A, false})
			}
			if !take(l.B, l.BPort) {
				open = append(open, openEnd{id, l.B, true})
			}
		}
	}
	next := make(map[NodeID]uint16)
	for _, o := range open {
		port := next[o.node] + 1
		for !take(o.node, port) {
			port++
		}
		next[o.node] = port
		if o.b {
			b.g.Links[o.link].BPort = port
		} else {
			b.g.Links[o.link].APort = port
		}
	}
	return b.must()
}

// openEnd is an end of a link that still needs a port.
type openEnd struct {
	link LinkID
	node NodeID
	b    bool
}

// onNetwork reports whether a link joins NICs and switches.
func (g *Graph) onNetwork(l LinkID) bool {
	net := func(n NodeID) bool { return g.Nodes[n].Kind == NIC || g.Nodes[n].Kind == Switch }
	return g.Class(l).Kind.Network() && net(g.Links[l].A) && net(g.Links[l].B)
}

// discovered is the kind of network whose discovery is asked: of a cluster with both, the InfiniBand one.
func (g *Graph) discovered() LinkKind {
	for i := range g.Links {
		if g.onNetwork(LinkID(i)) && g.Class(LinkID(i)).Kind == InfiniBand {
			return InfiniBand
		}
	}
	return Ethernet
}

// seen marks the switches and the NICs that discovery of the network meets, and says which kind of network it is.
func (g *Graph) seen() ([]bool, LinkKind) {
	kind := g.discovered()
	seen := make([]bool, len(g.Nodes))
	linked := make([]bool, len(g.Nodes))
	for i := range g.Links {
		if l := &g.Links[i]; g.onNetwork(LinkID(i)) {
			linked[l.A], linked[l.B] = true, true
			if g.Class(LinkID(i)).Kind == kind {
				seen[l.A], seen[l.B] = true, true
			}
		}
	}
	for i := range g.Nodes {
		if n := &g.Nodes[i]; !linked[i] && (n.Kind == Switch || n.Kind == NIC && n.Fabric != None) {
			seen[i] = true
		}
	}
	return seen, kind
}

// copyParts adds a host of another graph with its parts, and the NVSwitches at them, which belong to no host. It says
// which node each has become.
func (b *Builder) copyParts(g *Graph, host Host) map[NodeID]NodeID {
	id := b.Host(host)
	moved := make(map[NodeID]NodeID)
	take := func(n NodeID, host HostID) {
		part := g.Nodes[n]
		part.Host, part.Fabric, part.Pos = host, None, None
		moved[n] = b.Node(part)
		b.Attr(moved[n], g.Attrs[n])
	}
	for i := range host.Count {
		take(host.First+NodeID(i), id)
	}
	for i := range host.Count {
		for _, e := range g.Edges(host.First + NodeID(i)) {
			if _, ok := moved[e.Peer]; !ok && g.Nodes[e.Peer].Kind == NVSwitch {
				take(e.Peer, None)
			}
		}
	}
	return moved
}

// HostOnly keeps of a graph one host and the NVSwitches that its GPUs are linked to.
func HostOnly(g *Graph, h HostID) *Graph {
	host := g.Hosts[h]
	b := NewBuilder(host.Name)
	moved := b.copyParts(g, host)
	for i := range host.Count {
		n := host.First + NodeID(i)
		for _, e := range g.Edges(n) {
			l := g.Links[e.Link]
			other, ok := moved[e.Peer]
			if !ok || e.Peer < n && g.Nodes[e.Peer].Host == h {
				continue
			}
			if l.A != n {
				l.A, l.B, l.APort, l.BPort = l.B, l.A, l.BPort, l.APort
			}
			l.A, l.B, l.Class = moved[n], other, b.Class(g.Classes[l.Class])
			b.Wire(b.Link(l), g.Wires[e.Link])
		}
	}
	return b.must()
}

// must finishes a graph that was cut out of a valid one, and so is valid.
func (b *Builder) must() *Graph {
	g, err := b.Graph()
	if err != nil {
		panic("topo: a part of a valid graph is not valid: " + err.Error())
	}
	return g
}
