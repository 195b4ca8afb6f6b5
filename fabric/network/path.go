package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// Path is the way of a flow from one host to another.
type Path struct {
	Flow      string     `json:"flow"`
	Network   string     `json:"network"`
	From      string     `json:"from"`
	To        string     `json:"to"`
	Source    netip.Addr `json:"source"`
	Target    netip.Addr `json:"target"`
	Interface string     `json:"interface"`
	Rail      int        `json:"rail"` // None outside the backend
	Table     int        `json:"table,omitempty"`
	Gateway   netip.Addr `json:"gateway"`
	VLAN      int        `json:"vlan,omitempty"`
	MTU       int        `json:"mtu"`
	Hops      []string   `json:"hops"`            // devices on the way, both ends included
	Paths     int        `json:"paths,omitempty"` // of equal cost, by the files
	Why       string     `json:"why"`
	Unreached string     `json:"unreached,omitempty"` // why the flow cannot be; empty if it can

	// Modelled says that the emitted files decide where the flow goes: Hops, Paths and Unreached are
	// for package prove to say. InfiniBand and networks of the site are the plan's to answer.
	Modelled bool `json:"-"`
}

// Flows lists the kinds of flow that the plan knows.
func (p *Plan) Flows() []string {
	var out []string
	for _, f := range p.Intent.Flows {
		out = append(out, f.Flow)
	}
	return out
}

// Path says which network a flow takes, from which address to which, and over
// which switches. rail chooses among the rails; it counts for the backend only.
func (p *Plan) Path(from, to, flow string, rail int) (*Path, error) {
	a, b, err := p.ends(from, to)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(p.Intent.Flows, func(f cluster.FlowNet) bool { return f.Flow == flow })
	if i < 0 {
		return nil, fmt.Errorf("unknown flow %q; known: %s", clip(flow), strings.Join(p.Flows(), ", "))
	}
	role, err := ParseRole(p.Intent.Flows[i].Net)
	if err != nil {
		return nil, err
	}
	out := &Path{Flow: flow, From: from, To: to, Rail: None, Why: fmt.Sprintf("%s goes over the %s network", flow, role)}
	if role == Storage && (a.First(Storage) == nil || b.First(Storage) == nil) {
		role = Frontend
		out.Why = fmt.Sprintf("%s goes over the front end, since a host has no NIC in storage", flow)
	}
	out.Network = role.String()
	if role == Management {
		out.Source, out.Target, out.Interface = a.First(Frontend).Addr.Addr(), b.BMC.Addr(), a.First(Frontend).Name
		out.MTU, out.VLAN, out.Gateway = p.Intent.Management.MTU, p.Intent.Management.VLAN, a.First(Frontend).Gateway
		out.Hops = []string{from, "the gateway " + out.Gateway.String(), to + "'s BMC"}
		return out, nil
	}
	x, y := a.First(role), b.First(role)
	if role == Backend {
		if rail < 0 || rail >= len(p.Rails) {
			return nil, fmt.Errorf("rail %d; the plan has %d", rail, len(p.Rails))
		}
		x, y = onRail(a, rail), onRail(b, rail)
		if x == nil || y == nil {
			return nil, fmt.Errorf("%s and %s are not both on rail %d", from, to, rail)
		}
		out.Rail, out.Table = rail, p.Rails[rail].Table
		out.Why += fmt.Sprintf("; the source address %s is of rail %d, whose rule leads to table %d", x.Addr.Addr(), rail, out.Table)
		if p.Rails[rail].InfiniBand || x.Addr.Bits() == p.Rails[rail].Prefix.Bits() {
			out.Table = 0
			out.Why = fmt.Sprintf("%s goes over the %s network; %s is on the subnet of rail %d", flow, role, y.Addr.Addr(), rail)
		}
	}
	if x == nil || y == nil {
		return nil, fmt.Errorf("%s and %s are not both on the %s network", from, to, role)
	}
	out.Source, out.Target, out.Interface, out.Gateway, out.MTU, out.VLAN = x.Addr.Addr(), y.Addr.Addr(), x.Name, x.Gateway,
		min(x.MTU, y.MTU), x.VLAN
	if x.Net.IsValid() {
		out.Table = x.Table
		out.Why += fmt.Sprintf("; the source address %s is of %s, whose rule leads to table %d", x.Addr.Addr(), x.Name, x.Table)
	}
	out.Modelled = modelled(a.Leg(x)) && modelled(b.Leg(y))
	if !out.Modelled {
		out.Hops, out.Unreached = p.hops(x, y), p.apart(a, b, x, y)
	}
	return out, nil
}

// modelled reports whether files of this plan decide where packets of an interface go.
func modelled(x *Interface) bool { return !x.IB && x.Link != None }

// ends finds two hosts.
func (p *Plan) ends(from, to string) (a, b *Host, err error) {
	if len(p.Hosts) == 0 {
		return nil, nil, errors.New("the cluster has no hosts, only switches")
	}
	a, b = p.Host(from), p.Host(to)
	for _, x := range []struct {
		name string
		h    *Host
	}{{from, a}, {to, b}} {
		if x.h == nil {
			return nil, nil, fmt.Errorf("there is no host %q; hosts are %s to %s", clip(x.name), p.Hosts[0].Name, p.Hosts[len(p.Hosts)-1].Name)
		}
	}
	return a, b, nil
}

func onRail(h *Host, rail int) *Interface {
	for i := range h.Interfaces {
		if h.Interfaces[i].Rail == rail {
			return &h.Interfaces[i]
		}
	}
	return nil
}

// hops lists the devices between two interfaces, as the graph has them.
func (p *Plan) hops(x, y *Interface) []string {
	g := p.Graph
	ends := []string{"", ""}
	for i, e := range []*Interface{x, y} {
		if e.Node == None || e.Link == None {
			return []string{"the cluster file has no cables of this network"}
		}
		ends[i] = g.NodeName(e.Node)
	}
	if x.Node == y.Node {
		return ends[:1]
	}
	way, ok := g.Across(x.Node, y.Node, 0, nil)
	if !ok {
		return append(ends[:1], "no cable leads on", ends[1])
	}
	out := ends[:1]
	for _, u := range way[:len(way)-1] {
		_, to := g.Links[u.Link].Ends(u.Forward)
		out = append(out, g.NodeName(to))
	}
	return append(out, g.NodeName(y.Node))
}

// apart says why two interfaces cannot talk that no files decide on, or nothing. The front end without cables
// is the site's own network.
func (p *Plan) apart(a, b *Host, x, y *Interface) string {
	switch {
	case !x.IB && x.Role == Storage:
		return fmt.Sprintf("the cluster file has no switches of the storage network, so nothing here joins %s and %s; "+
			"declare them under fabrics (service: true)",
			a.Label(x), b.Label(y))
	case !x.IB:
		return ""
	}
	mine, theirs := p.tenants(a.Name), p.tenants(b.Name)
	if len(mine) == 0 && len(theirs) == 0 {
		return ""
	}
	for name, full := range mine {
		if other, shared := theirs[name]; shared {
			if full || other {
				return ""
			}
			return fmt.Sprintf("both are limited members of partition %s, and limited members do not hear one another", name)
		}
	}
	return fmt.Sprintf("%s is in %s, %s in %s: they share no partition", a.Name, partitions(mine), b.Name, partitions(theirs))
}

// tenants gives the partitions of a host, and whether it is a full member.
func (p *Plan) tenants(host string) map[string]bool {
	out := map[string]bool{}
	for _, t := range p.Intent.Partitions {
		if slices.Contains(t.Hosts, host) {
			out[t.Name] = !slices.Contains(t.Limited, host)
		}
	}
	return out
}

func partitions(m map[string]bool) string {
	if len(m) == 0 {
		return "the default partition only"
	}
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return "partition " + strings.Join(names, ", ")
}

// Contact is whether one network of a host reaches one of another.
type Contact struct {
	From    string `json:"from"` // networks
	To      string `json:"to"`
	Reaches bool   `json:"reaches"`
	Why     string `json:"why"`

	// Modelled says that the emitted files decide it: whether a packet that leaves the first host by this
	// interface arrives. Reaches is for package prove to say then.
	Modelled       bool       `json:"-"`
	Source, Target netip.Addr `json:"-"`
	Switch         string     `json:"-"` // where the interface is plugged in; empty without a cable
	Adapters       [2]string  `json:"-"` // both ends, where the subnet manager's files decide it
}

// FromFiles reports whether the emitted files decide the contact.
func (c *Contact) FromFiles() bool { return c.Modelled || c.Adapters[0] != "" }

// Reach says which networks of one host reach which of another, and why.
func (p *Plan) Reach(from, to string) ([]Contact, error) {
	a, b, err := p.ends(from, to)
	if err != nil {
		return nil, err
	}
	var out []Contact
	for _, f := range []Role{Frontend, Backend, Storage, Management} {
		for _, t := range []Role{Frontend, Backend, Storage, Management} {
			if (f != Management && a.First(f) == nil) || (t != Management && b.First(t) == nil) {
				continue
			}
			out = append(out, p.contact(a, b, f, t))
		}
	}
	return out, nil
}

// contact says whether one host can reach another between two roles, and why. What the files of the plan decide is
// marked as modelled and left to the proof; the rest is judged here.
func (p *Plan) contact(a, b *Host, f, t Role) Contact {
	c := Contact{From: f.String(), To: t.String()}
	x, y := a.First(f), b.First(t)
	files := x != nil && y != nil && modelled(a.Leg(x)) && modelled(b.Leg(y))
	if t == Management || f != t && !files {
		c.Reaches, c.Why = p.byRole(f, t)
		return c
	}
	if files {
		c.Modelled, c.Source, c.Target, c.Why = true, x.Addr.Addr(), y.Addr.Addr(), joinedBy(x)
		if sw, _ := p.PeerPort(a.Leg(x)); sw != nil {
			c.Switch = sw.Name
		}
		return c
	}
	if c.Why = p.apart(a, b, x, y); c.Why == "" {
		c.Reaches, c.Why = true, p.outside(x)
	}
	c.Adapters = p.adapters(x, y)
	return c
}

// adapters are the ends of a way over InfiniBand; empty where there is none.
func (p *Plan) adapters(x, y *Interface) (out [2]string) {
	if x.IB && y.IB && x.Link != None && y.Link != None {
		out = [2]string{p.Graph.NodeName(x.Node), p.Graph.NodeName(y.Node)}
	}
	return out
}

// byRole says what is known of two networks that no file joins.
func (p *Plan) byRole(f, t Role) (reaches bool, why string) {
	switch {
	case f == Management && t == Management:
		return true, fmt.Sprintf("one VLAN, %d", p.Intent.Management.VLAN)
	case f == Frontend && t == Management:
		return false, fmt.Sprintf("VLAN %d and VLAN %d meet at the gateway only, and it should let operators through alone",
			p.Intent.Frontend.VLAN, p.Intent.Management.VLAN)
	}
	return false, fmt.Sprintf("%s and %s share no switch port, VLAN or route", f, t)
}

// joinedBy says what joins the hosts of a network whose packets arrive.
func joinedBy(x *Interface) string {
	switch {
	case x.VLAN != 0:
		return fmt.Sprintf("bridged, VLAN %d", x.VLAN)
	case x.Role == Storage:
		return "routed by the storage fabric, each NIC a link of its own"
	}
	return "routed by the fabric, rail by rail"
}

// outside says what joins the hosts of a network whose switches have no files.
func (p *Plan) outside(x *Interface) string {
	switch {
	case x.IB && len(p.Intent.Partitions) == 0:
		return "one InfiniBand subnet, all in the default partition"
	case x.IB:
		return "one InfiniBand subnet, by shared partition"
	}
	return fmt.Sprintf("one VLAN, %d, on switches outside this plan", x.VLAN)
}

// PeerPort names the switch port that an interface is plugged into; nothing where there is no cable.
func (p *Plan) PeerPort(x *Interface) (sw *Switch, port *Port) {
	if x.Link == None {
		return nil, nil
	}
	l := p.Graph.Links[x.Link]
	peer := l.A
	if peer == x.Node {
		peer = l.B
	}
	return p.Far(&Port{Peer: peer, Link: x.Link})
}

// Far gives the other end of a cable between switches; nothing for a host's.
func (p *Plan) Far(q *Port) (sw *Switch, port *Port) {
	i, ok := slices.BinarySearchFunc(p.Switches, q.Peer, func(s Switch, n topo.NodeID) int { return int(s.Node) - int(n) })
	if !ok {
		return nil, nil
	}
	for j := range p.Switches[i].Ports {
		if p.Switches[i].Ports[j].Link == q.Link {
			return &p.Switches[i], &p.Switches[i].Ports[j]
		}
	}
	return nil, nil
}
