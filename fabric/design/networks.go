package design

import (
	"cmp"
	"fmt"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// Network is one of the networks of a cluster, counted and priced: the compute
// fabrics, service fabrics among them, and the networks beside the graph.
type Network struct {
	Name         string      `json:"name"`
	Counted      bool        `json:"counted"` // among cost and power; otherwise it is what weft would build
	Switches     int         `json:"switches"`
	Ports        int         `json:"ports"` // of hosts and other devices
	Cables       int         `json:"cables"`
	Transceivers int         `json:"transceivers"`
	USD          float64     `json:"usd"`
	Watts        float64     `json:"watts"`
	Bill         []Item      `json:"bill,omitempty"` // of a network beside the graph
	Note         string      `json:"note,omitempty"`
	Graph        *topo.Graph `json:"-"` // of a network beside the graph, for pictures
}

// beside counts and prices the networks that stand beside the graph.
func (r *Report) beside(c *cluster.Cluster, facts *catalog.Catalog) error {
	for _, s := range c.AllServices() {
		n := Network{Name: s.Name, Counted: s.Declared, Note: s.Problem, Graph: s.Graph}
		if s.Graph != nil {
			if err := n.count(facts, 1, r.fibre && s.Name != "out-of-band"); err != nil {
				return fmt.Errorf("%s network: %w", s.Name, err)
			}
			if !s.Declared {
				n.Note = fmt.Sprintf("not in the file and not in the cost; services: {%s: {}} adds it", s.Name)
			}
		}
		r.Networks = append(r.Networks, n)
	}
	return nil
}

// count counts and prices a network that is a graph of its own.
func (n *Network) count(facts *catalog.Catalog, perCable int, fibre bool) error {
	v, err := look(n.Graph)
	if err != nil {
		return err
	}
	part := &Report{perCable: perCable, fibre: fibre}
	part.count(v)
	part.billSwitches(n.Graph, facts)
	part.billCables(v, facts)
	n.Switches, n.Ports, n.Cables, n.Transceivers = part.Switches.Total(), len(v.ends), part.Cables.Total(), part.Optics.Transceivers
	for _, it := range part.Bill {
		it.USD, it.Watts = it.UnitUSD*float64(it.Count), it.UnitWatts*float64(it.Count)
		n.USD, n.Watts = n.USD+it.USD, n.Watts+it.Watts
		n.Bill = append(n.Bill, it)
	}
	return nil
}

// billServices puts the declared networks beside the graph onto the bill.
func (r *Report) billServices() {
	for _, n := range r.Networks {
		if !n.Counted {
			continue
		}
		for _, it := range n.Bill {
			it.Note = cmp.Or(it.Note, n.Name+" network")
			r.Bill = append(r.Bill, it)
		}
	}
}

// networks counts the fabrics of the graph, each by itself, before the networks beside it.
func (r *Report) networks(v *view, facts *catalog.Catalog) error {
	var list []Network
	if len(v.g.Fabrics) == 1 && !v.direct { // all that the report counted is of this one
		n := Network{Name: v.g.Fabrics[0].Name, Counted: true, Switches: r.Switches.Total(), Ports: len(v.ends), Cables: r.Cables.Total(),
			Transceivers: r.Optics.Transceivers}
		for _, it := range r.Bill[:r.own] {
			if it.Kind != "host" {
				n.USD, n.Watts = n.USD+it.USD, n.Watts+it.Watts
			}
		}
		r.Networks = append([]Network{n}, r.Networks...)
		return nil
	}
	for i, f := range v.g.Fabrics {
		n := Network{Name: f.Name, Counted: true, Graph: fabricAlone(v.g, int8(i)), Note: ternary(f.Service, "service fabric of the file", "")}
		if n.Graph == nil {
			continue
		}
		if err := n.count(facts, ternary(f.Service, 1, r.perCable), r.fibre); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		n.Graph, n.Bill = nil, nil // the whole graph is drawn, the whole bill is printed
		list = append(list, n)
	}
	r.Networks = append(list, r.Networks...)
	return nil
}

// plugMoved copies the cables between nodes that were moved to another graph.
func plugMoved(b *topo.Builder, g *topo.Graph, moved []topo.NodeID) {
	for i := range g.Links {
		l := g.Links[i]
		x, y := moved[l.A], moved[l.B]
		if x == topo.None || y == topo.None || !g.Classes[l.Class].Kind.Network() {
			continue
		}
		l.A, l.B, l.Class = x, y, b.Class(g.Classes[l.Class])
		b.Wire(b.Link(l), g.Wires[topo.LinkID(i)])
	}
}

// fabricAlone cuts one fabric out of a graph: its switches, its cables and the
// NICs at their ends; nil where it has no switch.
func fabricAlone(g *topo.Graph, fabric int8) *topo.Graph {
	b := topo.NewBuilder(g.Name)
	f := g.Fabrics[fabric]
	f.Service = false
	b.Fabric(f)
	moved := make([]topo.NodeID, len(g.Nodes))
	hosts := map[topo.HostID]topo.HostID{}
	switches := 0
	for i := range g.Nodes {
		n := g.Nodes[i]
		moved[i] = topo.None
		if n.Fabric != fabric || n.Kind != topo.NIC && n.Kind != topo.Switch {
			continue
		}
		if n.Kind == topo.Switch {
			switches++
		}
		if n.Host != topo.None {
			id, seen := hosts[n.Host]
			if !seen {
				id = b.Host(g.Hosts[n.Host])
				hosts[n.Host] = id
			}
			n.Host = id
		}
		n.Fabric = 0
		moved[i] = b.Node(n)
	}
	if switches == 0 {
		return nil
	}
	plugMoved(b, g, moved)
	out, err := b.Graph()
	if err != nil {
		return nil
	}
	return out
}

func (r *Report) networkSection() section {
	t := table{Cols: []col{left("network"), right("ports"), right("switches"), right("cables"), right("transceivers"), right("cost"),
		right("power"), answer("counted"), left("note")}}
	var out float64
	for _, n := range r.Networks {
		usd, w := "$"+money(n.USD), watts(n.Watts)
		if !n.Counted {
			out += n.USD
		}
		t.Rows = append(t.Rows, []string{n.Name, count(n.Ports), count(n.Switches), count(n.Cables), count(n.Transceivers), usd, w,
			ternary(n.Counted, "yes", "no"), n.Note})
	}
	s := section{ID: "networks", Title: "Networks", Tables: []table{t}}
	if out > 0 {
		s.Lead = fmt.Sprintf("Networks that the file does not have would cost about $%s more; services: all in the file counts them.",
			millions(out))
	}
	return s
}
