package topo

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/sets"
)

// Builder collects a graph. Elements may be added in any order; Graph puts them
// into the canonical one and checks the whole.
type Builder struct {
	g        Graph
	classIDs map[Class]ClassID
	err      error
}

// NewBuilder starts an empty graph.
func NewBuilder(name string) *Builder {
	return &Builder{g: Graph{Name: name}, classIDs: map[Class]ClassID{}}
}

// Grow makes room for more nodes and links.
func (b *Builder) Grow(nodes, links int) {
	b.g.Nodes = slices.Grow(b.g.Nodes, nodes)
	b.g.Links = slices.Grow(b.g.Links, links)
}

// Class gives the id of a class, the same one for equal classes.
func (b *Builder) Class(c Class) ClassID {
	id, ok := b.classIDs[c]
	if !ok {
		id = ClassID(len(b.g.Classes))
		if len(b.g.Classes) == 1<<16 {
			b.fail("more than %d different sorts of link", 1<<16)
			return 0
		}
		b.g.Classes = append(b.g.Classes, c)
		b.classIDs[c] = id
	}
	return id
}

// Fabric adds a network and gives its index.
func (b *Builder) Fabric(f Fabric) int8 {
	if len(b.g.Fabrics) == 127 {
		b.fail("more than 127 fabrics")
		return 0
	}
	b.g.Fabrics = append(b.g.Fabrics, f)
	return int8(len(b.g.Fabrics) - 1)
}

// Host adds a host; its nodes name it in Node.Host.
func (b *Builder) Host(h Host) HostID {
	h.First, h.Count = 0, 0
	b.g.Hosts = append(b.g.Hosts, h)
	return HostID(len(b.g.Hosts) - 1)
}

// Part gives a node of a kind with every other field saying that it does not apply.
func Part(k Kind, host HostID, name string) Node {
	return Node{Kind: k, Host: host, Name: name, Fabric: None, Plane: None, Rail: None, Pod: None, Rack: None, Pos: None}
}

// Node adds a node. A node inside a host takes the host's pod and rack.
func (b *Builder) Node(n Node) NodeID {
	if n.Host != None {
		n.Pod, n.Rack = b.g.Hosts[n.Host].Pod, b.g.Hosts[n.Host].Rack
	}
	b.g.Nodes = append(b.g.Nodes, n)
	return NodeID(len(b.g.Nodes) - 1)
}

// At gives a node added before, to be read or changed until Graph is called.
func (b *Builder) At(n NodeID) *Node { return &b.g.Nodes[n] }

// Link adds a link; a Count of zero means one.
func (b *Builder) Link(l Link) LinkID {
	l.Count = max(l.Count, 1)
	b.g.Links = append(b.g.Links, l)
	return LinkID(len(b.g.Links) - 1)
}

// Stamp adds a copy of a graph of one host (and of nothing else) as host h and
// gives the id that the pattern's node 0 has in the copy: its node i is first+i.
func (b *Builder) Stamp(pattern *Graph, h Host) (host HostID, first NodeID) {
	host = b.Host(h)
	first = NodeID(len(b.g.Nodes))
	for i := range pattern.Nodes {
		n := pattern.Nodes[i]
		n.Host, n.Pod, n.Rack = host, h.Pod, h.Rack
		b.g.Nodes = append(b.g.Nodes, n)
	}
	classes := make([]ClassID, len(pattern.Classes))
	for i, c := range pattern.Classes {
		classes[i] = b.Class(c)
	}
	for _, l := range pattern.Links {
		l.A, l.B, l.Class = l.A+first, l.B+first, classes[l.Class]
		b.g.Links = append(b.g.Links, l)
	}
	for n, a := range pattern.Attrs {
		b.Attr(first+n, a)
	}
	return host, first
}

// Attr adds what a dialect says of a node.
func (b *Builder) Attr(n NodeID, a Attrs) {
	if len(a) == 0 {
		return
	}
	if b.g.Attrs == nil {
		b.g.Attrs = map[NodeID]Attrs{}
	}
	if b.g.Attrs[n] == nil {
		b.g.Attrs[n] = Attrs{}
	}
	maps.Copy(b.g.Attrs[n], a)
}

// Wire adds what a dialect says of a link.
func (b *Builder) Wire(l LinkID, a Attrs) {
	if len(a) == 0 {
		return
	}
	if b.g.Wires == nil {
		b.g.Wires = map[LinkID]Attrs{}
	}
	if b.g.Wires[l] == nil {
		b.g.Wires[l] = Attrs{}
	}
	maps.Copy(b.g.Wires[l], a)
}

func (b *Builder) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

// Graph puts everything into canonical order, checks it and indexes it. The
// builder must not be used afterwards. Hosts come by name, the nodes of a host
// by kind and name, then the nodes outside hosts by fabric, tier and name;
// numbers inside names count as numbers. Links come by their ends.
func (b *Builder) Graph() (*Graph, error) {
	if b.err != nil {
		return nil, b.err
	}
	g := &b.g
	if err := g.checkEnds(); err != nil {
		return nil, err
	}
	g.sortHosts()
	g.sortNodes()
	g.sortClasses()
	g.sortLinks()
	g.index()
	if err := g.Validate(); err != nil {
		return nil, err
	}
	g.affinity()
	return g, nil
}

// checkEnds refuses references that the sorting below could not follow.
func (g *Graph) checkEnds() error {
	var all problems
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if !within(int(n.Host), None, len(g.Hosts)) {
			all.add("node %q names host number %d of %d", n.Name, n.Host, len(g.Hosts))
		}
		if !within(int(n.Fabric), None, len(g.Fabrics)) {
			all.add("node %q names fabric number %d of %d", n.Name, n.Fabric, len(g.Fabrics))
		}
	}
	for i := range g.Links {
		l := &g.Links[i]
		if !within(int(l.A), 0, len(g.Nodes)) || !within(int(l.B), 0, len(g.Nodes)) || int(l.Class) >= len(g.Classes) {
			all.add("link %d leads to nowhere: ends %d and %d, class %d", i, l.A, l.B, l.Class)
		}
	}
	return all.err()
}

func within(i, least, n int) bool { return least <= i && i < n }

// problems collects findings, a readable number of them.
type problems struct {
	list []error
	more int
}

func (p *problems) add(format string, args ...any) {
	if len(p.list) == 10 {
		p.more++
		return
	}
	p.list = append(p.list, fmt.Errorf(format, args...))
}

func (p *problems) err() error {
	if p.more > 0 {
		p.list = append(p.list, fmt.Errorf("and %d more problems", p.more))
		p.more = 0
	}
	return errors.Join(p.list...)
}

// Validate checks what every graph must keep: names unique, links between two
// different nodes at a positive rate, ports used once and in range, and the
// PCIe links of a host without a cycle.
func (g *Graph) Validate() error {
	var all problems
	for i := 1; i < len(g.Hosts); i++ {
		if g.Hosts[i].Name == g.Hosts[i-1].Name {
			all.add("two hosts are named %q", g.Hosts[i].Name)
		}
	}
	for i, h := range g.Hosts {
		if h.Name == "" || strings.ContainsAny(h.Name, ": \t\n") {
			all.add("host %d has name %q; a name is not empty and has neither colon nor space", i, h.Name)
		}
	}
	g.checkNodes(&all)
	for i, c := range g.Classes {
		if c.Kind < NVLink || c.Kind > Ethernet || !(c.Rate > 0) || c.Latency < 0 {
			all.add("link class %d (%s %q) has rate %s and latency %s; both must be known", i, c.Kind, c.Gen, c.Rate, c.Latency)
		}
	}
	for i := range g.Links {
		if l := &g.Links[i]; l.A == l.B {
			all.add("link %s joins a node to itself", g.LinkName(LinkID(i)))
		}
	}
	g.checkPorts(&all)
	g.checkTrees(&all)
	return all.err()
}

// checkNodes finds nodes of no known kind, and names that are missing or taken. Names are unique in a host, and among
// the switches and hosts.
func (g *Graph) checkNodes(all *problems) {
	seen := map[string]bool{}
	last := HostID(None)
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Host != last {
			clear(seen)
			last = n.Host
		}
		if n.Kind < GPU || n.Kind > Switch {
			all.add("node %q has kind %s", g.NodeName(NodeID(i)), n.Kind)
		}
		if n.Name == "" {
			all.add("node %d has no name", i)
		} else if seen[n.Name] {
			all.add("two nodes are named %q", g.NodeName(NodeID(i)))
		}
		seen[n.Name] = true
		if n.Host == None && g.hosts != nil {
			if _, ok := g.hosts[n.Name]; ok {
				all.add("a host and a switch are both named %q", n.Name)
			}
		}
		if n.Kind == Switch && n.Host != None {
			all.add("switch %q is inside a host; it must stand alone", g.NodeName(NodeID(i)))
		}
	}
}

// port is the number of a link's port at one of its ends.
func (l *Link) port(end NodeID) uint16 {
	if l.B == end {
		return l.BPort
	}
	return l.APort
}

// checkPorts finds ports that are used twice or that the switch does not have. Links that state no port still count
// against the total.
func (g *Graph) checkPorts(all *problems) {
	used := map[uint16]LinkID{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Kind != Switch {
			continue
		}
		clear(used)
		edges, total := g.Edges(NodeID(i)), 0
		for _, e := range edges {
			l := &g.Links[e.Link]
			total += int(l.Count)
			port := l.port(NodeID(i))
			if port == 0 {
				continue
			}
			if n.Ports > 0 && port > n.Ports {
				all.add("link %s uses port %d of %q, which has %d ports", g.LinkName(e.Link), port, n.Name, n.Ports)
			}
			if other, taken := used[port]; taken {
				all.add("port %d of %q is used twice: %s and %s", port, n.Name, g.LinkName(other), g.LinkName(e.Link))
			}
			used[port] = e.Link
		}
		if n.Ports > 0 && total > int(n.Ports) {
			all.add("%q needs %d ports and has %d", n.Name, total, n.Ports)
		}
	}
}

// checkTrees finds a cycle among the PCIe links of each host by joining sets.
func (g *Graph) checkTrees(all *problems) {
	joined := sets.New[NodeID](len(g.Nodes))
	for i := range g.Links {
		l := &g.Links[i]
		if g.Classes[l.Class].Kind != PCIe || l.A == l.B {
			continue
		}
		if g.Nodes[l.A].Host != g.Nodes[l.B].Host {
			all.add("PCIe link %s leaves its host", g.LinkName(LinkID(i)))
			continue
		}
		if !joined.Join(l.A, l.B) {
			all.add("the PCIe tree of host %q has a cycle; link %s closes it", g.hostName(l.A), g.LinkName(LinkID(i)))
		}
	}
}

func (g *Graph) hostName(n NodeID) string {
	if h := g.Nodes[n].Host; h != None {
		return g.Hosts[h].Name
	}
	return ""
}
