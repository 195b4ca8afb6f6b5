package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/model/topo"
)

// part is what a name stands for: links, and the nodes they belong to.
type part struct {
	nodes []topo.NodeID
	links []topo.LinkID
}

// find resolves the name of a node, a host, a switch port or a link.
func find(g *topo.Graph, name string) (part, error) {
	var p part
	name = strings.TrimSpace(name)
	if h, ok := g.HostByName(name); ok {
		host := &g.Hosts[h]
		for i := range host.Count {
			p.add(g, host.First+topo.NodeID(i))
		}
		return p, nil
	}
	if strings.Contains(name, " - ") {
		for l := range g.Links {
			if g.LinkName(topo.LinkID(l)) == name {
				p.links = append(p.links, topo.LinkID(l))
			}
		}
		if len(p.links) == 0 {
			return p, fmt.Errorf("no link %q; a link is written like %q", name, g.LinkName(0))
		}
		return p, nil
	}
	n, err := g.Lookup(name)
	if err == nil {
		p.add(g, n)
		return p, nil
	}
	if at := strings.LastIndex(name, ":p"); at > 0 {
		if port, bad := strconv.ParseUint(name[at+2:], 10, 16); bad == nil {
			if sw, bad := g.Lookup(name[:at]); bad == nil && g.Nodes[sw].Kind == topo.Switch {
				for _, e := range g.Edges(sw) {
					l := &g.Links[e.Link]
					if l.A == sw && l.APort == uint16(port) || l.B == sw && l.BPort == uint16(port) {
						p.links = append(p.links, e.Link)
						return p, nil
					}
				}
				return p, fmt.Errorf("switch %q has nothing at port %d", name[:at], port)
			}
		}
	}
	return p, err
}

func (p *part) add(g *topo.Graph, n topo.NodeID) {
	p.nodes = append(p.nodes, n)
	for _, e := range g.Edges(n) {
		p.links = append(p.links, e.Link)
	}
}

// without gives the graph with the links of dead parts taken out. Nodes keep
// their numbers. A NIC that has lost every cable serves no GPU any more, and so
// GPUs go to the nearest one that still works.
func without(g *topo.Graph, names []string) (*topo.Graph, error) {
	dead := map[topo.LinkID]bool{}
	for _, name := range names {
		p, err := find(g, name)
		if err != nil {
			return nil, fmt.Errorf("cannot fail %q: %w", name, err)
		}
		for _, l := range p.links {
			dead[l] = true
		}
	}
	return withoutLinks(g, dead)
}

// withoutLinks is without, of links.
func withoutLinks(g *topo.Graph, dead map[topo.LinkID]bool) (*topo.Graph, error) {
	b := topo.NewBuilder(g.Name)
	b.Grow(len(g.Nodes), len(g.Links))
	for _, f := range g.Fabrics {
		b.Fabric(f)
	}
	for _, h := range g.Hosts {
		b.Host(h)
	}
	for i := range g.Nodes {
		n := g.Nodes[i]
		if n.Kind == topo.NIC && n.Fabric != topo.None && isolated(g, topo.NodeID(i), dead) {
			n.Fabric = topo.None
		}
		b.Node(n)
	}
	classes := make([]topo.ClassID, len(g.Classes)) // plus one
	for i, l := range g.Links {
		if dead[topo.LinkID(i)] {
			continue
		}
		if classes[l.Class] == 0 {
			classes[l.Class] = b.Class(g.Classes[l.Class]) + 1
		}
		l.Class = classes[l.Class] - 1
		b.Link(l)
	}
	return b.Graph()
}

// isolated reports whether a NIC had cables and has none left.
func isolated(g *topo.Graph, nic topo.NodeID, dead map[topo.LinkID]bool) bool {
	had, left := false, false
	for _, e := range g.Edges(nic) {
		if g.Class(e.Link).Kind.Network() {
			had = true
			left = left || !dead[e.Link]
		}
	}
	return had && !left
}
