package topo

// FabricOnly keeps of a graph what discovery of its network can see: NICs under
// their hosts, switches, and the links between them with ports and classes. All
// fabrics become one, since a discovery is one; tiers and family are inferred
// from the wiring (see InferTiers); what only the designer knows is left out:
// pods, racks, rails, planes, positions and models. NICs without a network link
// and hosts without a NIC are not seen. Of a graph with InfiniBand links only
// these are kept: no subnet manager sees the Ethernet beside them.
func FabricOnly(g *Graph) *Graph {
	b := NewBuilder(g.Name)
	seen := g.seen()
	moved := make([]NodeID, len(g.Nodes))
	hosts := make(map[HostID]HostID)
	fabric := b.Fabric(Fabric{Name: "fabric", Family: Irregular})
	for i := range g.Nodes {
		moved[i] = None
		if !seen[i] {
			continue
		}
		n := &g.Nodes[i]
		part := Part(n.Kind, None, n.Name)
		part.Fabric = fabric
		if n.Kind == Switch {
			part.Ports = n.Ports
		}
		if n.Host != None {
			if _, ok := hosts[n.Host]; !ok {
				hosts[n.Host] = b.Host(Host{Name: g.Hosts[n.Host].Name, Pod: None, Rack: None})
			}
			part.Host = hosts[n.Host]
		}
		moved[i] = b.Node(part)
		b.Attr(moved[i], g.Attrs[NodeID(i)])
	}
	for i := range g.Links {
		l := g.Links[i]
		if !g.onNetwork(LinkID(i)) || moved[l.A] == None || moved[l.B] == None {
			continue
		}
		l.A, l.B, l.Class = moved[l.A], moved[l.B], b.Class(g.Classes[l.Class])
		b.Wire(b.Link(l), g.Wires[LinkID(i)])
	}
	if b.InferTiers(fabric) {
		b.g.Fabrics[fabric].Family = Clos
	}
	return b.must()
}

// onNetwork reports whether a link joins NICs and switches.
func (g *Graph) onNetwork(l LinkID) bool {
	net := func(n NodeID) bool { return g.Nodes[n].Kind == NIC || g.Nodes[n].Kind == Switch }
	return g.Class(l).Kind.Network() && net(g.Links[l].A) && net(g.Links[l].B)
}

// seen marks the switches and the NICs that discovery of the network meets.
func (g *Graph) seen() []bool {
	kind := Ethernet
	for i := range g.Links {
		if g.onNetwork(LinkID(i)) && g.Class(LinkID(i)).Kind == InfiniBand {
			kind = InfiniBand
		}
	}
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
		if g.Nodes[i].Kind == Switch && !linked[i] {
			seen[i] = true
		}
	}
	return seen
}

// HostOnly keeps of a graph one host and the NVSwitches that its GPUs are linked to.
func HostOnly(g *Graph, h HostID) *Graph {
	host := g.Hosts[h]
	b := NewBuilder(host.Name)
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
