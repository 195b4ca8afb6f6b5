package network

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// IPoIBMTU is the most that IP over InfiniBand carries in datagram mode, with
// partitions of mtu=5 (4096 bytes less 4 of header).
const IPoIBMTU = 4092

// SwitchMTU is what switch ports carry: a jumbo frame of 9000 bytes and what
// tunnels put around it.
const SwitchMTU = 9216

// Make numbers the network of a cluster. lock is what an earlier plan gave out,
// or nil. Every error is a *cluster.Error, or several joined; file is the
// cluster file's name in them.
func Make(file string, c *cluster.Cluster, lock *Lock) (*Plan, error) {
	if lock == nil {
		lock = &Lock{}
	}
	intent := c.Network
	g, at := wired(c, lock)
	m := &maker{file: file, g: g, in: &intent, plan: &Plan{Name: c.Name, Intent: &intent, Graph: g, Catalog: c.Catalog, Floor: at,
		Services: c.Services}}
	m.words()
	m.disjoint()
	m.rails()
	if len(m.errs) > 0 {
		return nil, m.err()
	}
	m.hosts(lock)
	m.switches(lock)
	if len(m.errs) == 0 {
		m.called()
		m.pins()
	}
	if len(m.errs) > 0 {
		return nil, m.err()
	}
	m.ports()
	m.addresses()
	m.bonds()
	m.segments()
	m.front()
	m.unplugged()
	m.oneRack()
	m.inventory()
	m.partitions()
	m.slurm()
	if len(m.errs) > 0 {
		return nil, m.err()
	}
	m.plan.Digest = digest(m.plan)
	return m.plan, nil
}

// digest names a plan.
func digest(p *Plan) string {
	h := sha256.New()
	h.Write(p.Lock())
	in := p.Intent
	fmt.Fprint(h, in.Domain, in.Frontend, in.Backend, in.Storage, in.Management, in.Routing, in.RoCE, in.Partitions, in.Slurm,
		string(in.Routing.Password))
	if len(in.Tenants) > 0 {
		fmt.Fprint(h, in.Tenants)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// maker is a plan being made. What is wrong is collected, so that one run shows it all.
type maker struct {
	file string
	g    *topo.Graph
	in   *cluster.Network
	plan *Plan
	errs []error

	lanes    map[lane]int   // rail of a port of a NIC
	leafs    map[[2]int]int // ordinal of a leaf (node, rail) among the leaves of the rail
	place    map[[3]int]int // ordinal of a host's link at a leaf: (leaf node, rail, host)
	room     map[int]int    // links of the fullest leaf of a rail
	plugged  *bool          // storage NICs have Ethernet cables; nil until somebody asks
	tenantOf map[string]int // number of a host's tenant
	byNic    []int32        // interface at an end of a link, as an index into its host's; None for other ends
}

// lane tells the ports of a host's compute NICs apart: which NIC, and which of its links.
type lane struct{ nic, port int }

// end is the place of a link's end at a node in byNic.
func (m *maker) end(node topo.NodeID, link topo.LinkID) int {
	if m.g.Links[link].A == node {
		return 2 * int(link)
	}
	return 2*int(link) + 1
}

const maxErrors = 10

func (m *maker) fail(field, format string, args ...any) {
	name := "network"
	if field != "" {
		name += "." + field
	}
	m.errs = append(m.errs, &cluster.Error{File: m.file, Line: m.in.Line(field), Field: name, Msg: fmt.Sprintf(format, args...)})
}

func (m *maker) warn(format string, args ...any) {
	m.plan.Warnings = append(m.plan.Warnings, fmt.Sprintf(format, args...))
}

func (m *maker) err() error {
	if n := len(m.errs) - maxErrors; n > 0 {
		m.errs = append(m.errs[:maxErrors], fmt.Errorf("%s: and %d more problems", m.file, n))
	}
	return errors.Join(m.errs...)
}

// cables lists the network links of a node, by port.
func cables(g *topo.Graph, n topo.NodeID) []topo.Edge {
	var out []topo.Edge
	for _, e := range g.Edges(n) {
		if g.Class(e.Link).Kind.Network() {
			out = append(out, e)
		}
	}
	return out
}

// computeNICs calls f for every cable of every compute NIC of a host: its
// number among the host's compute NICs, its cable's number among the NIC's.
func computeNICs(g *topo.Graph, h topo.HostID, f func(l lane, node topo.NodeID, ports int, e topo.Edge)) {
	first, next := g.Hosts[h].First, 0
	for i, n := range g.HostNodes(h) {
		if n.Kind != topo.NIC || n.Fabric < 0 || g.Fabrics[n.Fabric].Service {
			continue
		}
		nic := next
		if n.Rail >= 0 {
			nic = int(n.Rail)
		}
		next = nic + 1
		id := first + topo.NodeID(i)
		edges := cables(g, id)
		for port, e := range edges {
			f(lane{nic, port}, id, len(edges), e)
		}
	}
}

// rails finds the rails that hosts have, and gives each a part of the backend.
func (m *maker) rails() {
	m.lanes = map[lane]int{}
	found := map[lane]*Rail{}
	for h := range m.g.Hosts {
		computeNICs(m.g, topo.HostID(h), func(l lane, node topo.NodeID, ports int, e topo.Edge) {
			if found[l] != nil {
				return
			}
			r := &Rail{NIC: l.nic, Plane: None, Fabric: int(m.g.Nodes[node].Fabric), InfiniBand: m.g.Class(e.Link).Kind == topo.InfiniBand}
			if ports > 1 {
				r.Plane = l.port
			}
			found[l] = r
		})
	}
	order := make([]lane, 0, len(found))
	for l := range found {
		order = append(order, l)
	}
	slices.SortFunc(order, func(a, b lane) int { return cmp.Or(a.nic-b.nic, a.port-b.port) })
	for i, l := range order {
		r := found[l]
		r.Number, r.Table, r.Rule = i, m.in.Backend.Table+i, m.in.Backend.Rule+10*i
		if r.Prefix = cut(m.in.Backend.Prefix, i, len(order)); !r.Prefix.IsValid() {
			m.fail("backend.prefix", "%s cannot be cut into %d rails", m.in.Backend.Prefix, len(order))
			return
		}
		m.lanes[l] = i
		m.plan.Rails = append(m.plan.Rails, *r)
	}
	m.tables()
	m.overlaid()
}

// mixed reports whether some rail is of one kind and some of the other.
func (m *maker) kinds() (ib, ethernet bool) {
	for _, r := range m.plan.Rails {
		ib, ethernet = ib || r.InfiniBand, ethernet || !r.InfiniBand
	}
	return ib, ethernet
}

// hosts gives every host its number and its interfaces, without addresses of the backend.
func (m *maker) hosts(lock *Lock) {
	g := m.g
	names := make([]string, len(g.Hosts))
	for i := range g.Hosts {
		names[i] = g.Hosts[i].Name
	}
	number := numbers(names, lock.Hosts)
	m.plan.goneHosts = gone(names, lock.Hosts)
	m.fits(top(number))
	if len(m.errs) > 0 {
		return
	}
	m.byNic = slices.Repeat([]int32{None}, 2*len(g.Links))
	m.plan.Hosts = make([]Host, len(g.Hosts))
	for i := range g.Hosts {
		h := &m.plan.Hosts[i]
		*h = Host{Name: names[i], Number: number[i], ID: topo.HostID(i)}
		h.BMC = whole(at(m.in.Management.Prefix, hostOffset(m.in.Management.Prefix, number[i])), m.in.Management.Prefix)
		m.service(h, Frontend, &m.in.Frontend)
		m.backend(h)
		m.service(h, Storage, &m.in.Storage)
		m.names(h)
	}
}

// service adds a host's interfaces on the front end or in storage.
func (m *maker) service(h *Host, role Role, net *cluster.Net) {
	g := m.g
	var nodes []topo.NodeID
	for _, name := range net.NICs {
		for i, n := range g.HostNodes(h.ID) {
			if n.Kind == topo.NIC && n.Name == name {
				nodes = append(nodes, g.Hosts[h.ID].First+topo.NodeID(i))
			}
		}
	}
	if len(nodes) == 0 {
		if role == Storage {
			return // flows to storage take the front end
		}
		h.Interfaces = append(h.Interfaces, Interface{Name: "front0", Role: role, Rail: None, Node: None, Link: None,
			Addr: m.flat(net.Prefix, h.Number), Gateway: net.Gateway, MTU: net.MTU, VLAN: net.VLAN})
		return
	}
	bond := ""
	if net.Bond == "lacp" {
		bond = map[Role]string{Frontend: "front", Storage: "stor"}[role]
	}
	for i, id := range nodes {
		x := m.port(h, role, net, id)
		x.Bond = bond
		switch {
		case bond != "":
		case role == Storage && x.Link != None && !x.IB:
			k := slices.Index(net.NICs, x.Name)
			x.VLAN, x.Net = 0, cut(net.Prefix, k, len(net.NICs))
			x.Table, x.Rule = m.in.Backend.Table+len(m.plan.Rails)+k, m.in.Backend.Rule+10*(len(m.plan.Rails)+k)
		case len(nodes) > 1:
			x.Addr = m.flat(cut(net.Prefix, i, len(nodes)), h.Number)
		default:
			x.Addr = m.flat(net.Prefix, h.Number)
		}
		if role == Frontend && i == 0 {
			x.Gateway = net.Gateway
		}
		h.Interfaces = append(h.Interfaces, x)
	}
	if bond != "" {
		x := Interface{Name: bond, Role: role, Rail: None, Node: None, Link: None, Addr: m.flat(net.Prefix, h.Number), MTU: net.MTU,
			VLAN: net.VLAN}
		if m.overlays(role) {
			x.VLAN = m.vlan(h, role, 0)
		}
		if role == Frontend {
			x.Gateway = net.Gateway
		}
		h.Interfaces = append(h.Interfaces, x)
	}
}

// port is a host's NIC on the front end or in storage, without an address.
func (m *maker) port(h *Host, role Role, net *cluster.Net, id topo.NodeID) Interface {
	g := m.g
	x := Interface{Name: g.Nodes[id].Name, Role: role, Rail: None, Node: id, Link: None, MTU: net.MTU, VLAN: net.VLAN}
	if m.overlays(role) {
		x.VLAN = m.vlan(h, role, 0)
	}
	if e := cables(g, id); len(e) > 0 {
		x.Link = e[0].Link
		x.IB = g.Class(e[0].Link).Kind == topo.InfiniBand
		m.byNic[m.end(id, x.Link)] = int32(len(h.Interfaces))
	}
	if field := role.String() + ".mtu"; x.IB && net.MTU > IPoIBMTU && m.in.Given(field) && len(m.errs) == 0 {
		m.fail(field, "%d: %s of %s is InfiniBand, and IP over it carries at most %d in datagram mode", net.MTU, x.Name, h.Name, IPoIBMTU)
	}
	if x.IB {
		x.MTU, x.VLAN = min(x.MTU, IPoIBMTU), 0
	}
	return x
}

// flat is host number i in a network that its hosts share.
func (m *maker) flat(p netip.Prefix, i int) netip.Prefix { return whole(at(p, hostOffset(p, i)), p) }

// backend adds a host's interfaces of all rails. Their addresses follow when the
// switches are known.
func (m *maker) backend(h *Host) {
	computeNICs(m.g, h.ID, func(l lane, node topo.NodeID, ports int, e topo.Edge) {
		name := m.g.Nodes[node].Name
		if ports > 1 {
			name += string(rune('a' + l.port))
		}
		r := &m.plan.Rails[m.lanes[l]]
		x := Interface{Name: name, Role: Backend, Rail: r.Number, Node: node, Link: e.Link, MTU: m.in.Backend.MTU, IB: r.InfiniBand}
		if x.IB {
			x.MTU = min(x.MTU, IPoIBMTU)
		} else if m.in.Backend.Links != "/31" {
			x.VLAN = m.vlan(h, Backend, r.Number)
		}
		m.byNic[m.end(node, e.Link)] = int32(len(h.Interfaces))
		h.Interfaces = append(h.Interfaces, x)
	})
}

// switches gives every switch its number, AS number, loopback and management address.
func (m *maker) switches(lock *Lock) {
	var names []string
	m.g.Each(topo.Switch, func(id topo.NodeID, n *topo.Node) {
		m.plan.Switches = append(m.plan.Switches, m.newSwitch(id, n))
		names = append(names, n.Name)
	})
	number := numbers(names, lock.Switches)
	m.plan.goneSwitches = gone(names, lock.Switches)
	m.switchesFit(top(number))
	if len(m.errs) > 0 {
		return
	}
	group := m.spineGroups()
	pods := 1
	for _, k := range group {
		pods = max(pods, k+1)
	}
	mgmt, leaves := m.in.Management.Prefix, 0
	for i := range m.plan.Switches {
		s := &m.plan.Switches[i]
		s.Number = number[i]
		s.Mgmt = whole(at(mgmt, size(mgmt)-2-s.Number), mgmt)
		if a := s.Mgmt.Addr(); a == m.in.Management.Gateway || slices.Contains(m.in.Management.DNS, a) {
			m.fail("management", "%s is the address of switch %s, too; take one of %s to %s", a, s.Name, at(mgmt, 1), at(mgmt, firstOfBlock-1))
		}
		if s.IB {
			continue
		}
		s.Loopback = at(m.in.Loopbacks, 1+s.Number)
		leaves = max(leaves, s.Number+1)
		s.ASN = m.asn(s, pods, group)
	}
	m.asnsFit(pods, leaves)
	if leaves == 0 && len(m.plan.Switches) > 0 {
		m.nothingRoutes()
	}
}

func (m *maker) newSwitch(id topo.NodeID, n *topo.Node) Switch {
	s := Switch{Name: n.Name, Node: id, Tier: int(n.Tier), Role: Backend}
	if n.Fabric >= 0 && m.g.Fabrics[n.Fabric].Service {
		s.Role = m.serviceRole(int(n.Fabric))
	}
	for _, e := range cables(m.g, id) {
		s.IB = s.IB || m.g.Class(e.Link).Kind == topo.InfiniBand
	}
	return s
}

// nothingRoutes refuses settings of routers in a cluster that has none.
func (m *maker) nothingRoutes() {
	for _, field := range []string{"routing", "render.leaf", "render.spine"} {
		if m.in.Given(field) {
			m.fail(field, "all switches are InfiniBand, which a subnet manager configures; leave it out")
		}
	}
}

// serviceRole is the role of a service fabric: that of the NICs plugged into it.
func (m *maker) serviceRole(fabric int) Role {
	role := Storage
	m.g.Each(topo.NIC, func(_ topo.NodeID, n *topo.Node) {
		if int(n.Fabric) == fabric && slices.Contains(m.in.Frontend.NICs, n.Name) {
			role = Frontend
		}
	})
	return role
}

// spineGroups numbers the spines of every fabric: those that share a leaf are one
// group. In a fabric of three tiers two groups with one AS number would refuse one
// another's routes, since every path between them holds it twice.
func (m *maker) spineGroups() map[topo.NodeID]int {
	group := map[topo.NodeID]int{}
	next := map[int32]int{} // of each fabric
	var join func(spine topo.NodeID, k int)
	join = func(spine topo.NodeID, k int) {
		if _, known := group[spine]; known {
			return
		}
		group[spine] = k
		for _, leaf := range m.joined(spine, 1) {
			for _, other := range m.joined(leaf, 2) {
				join(other, k)
			}
		}
	}
	for i := range m.plan.Switches {
		s := &m.plan.Switches[i]
		f := int32(m.g.Nodes[s.Node].Fabric)
		if _, known := group[s.Node]; s.Tier == 2 && !known {
			join(s.Node, next[f])
			next[f]++
		}
	}
	return group
}

// joined lists the switches of a tier that a switch has cables to, one for each cable.
func (m *maker) joined(n topo.NodeID, tier int) (out []topo.NodeID) {
	for _, e := range cables(m.g, n) {
		if x := &m.g.Nodes[e.Peer]; x.Kind == topo.Switch && int(x.Tier) == tier {
			out = append(out, e.Peer)
		}
	}
	return out
}

// AS numbers, from the first one: cores 0, spines 1 + group, leaves from leafASN.
// All spines of a group share one, so that no path leads through a second spine;
// every leaf has its own.
func (m *maker) asn(s *Switch, pods int, group map[topo.NodeID]int) uint32 {
	n := m.g.Nodes[s.Node]
	clos := n.Fabric >= 0 && m.g.Fabrics[n.Fabric].Family == topo.Clos
	switch {
	case clos && s.Tier == 3:
		return m.in.Routing.ASN
	case clos && s.Tier == 2:
		return m.in.Routing.ASN + 1 + uint32(max(0, int(n.Fabric))*pods+group[s.Node])
	}
	return m.in.Routing.ASN + uint32(m.leafASN()) + uint32(s.Number)
}

// leafASN is where the numbers of leaves begin: few for cores and spines where there are only 1,023.
func (m *maker) leafASN() int {
	if m.in.Routing.ASN < 1<<16 {
		return 100
	}
	return 10000
}

// numberPorts gives ports without a number the lowest ones that are free.
func (s *Switch) numberPorts() {
	used := map[int]bool{}
	for j := range s.Ports {
		used[s.Ports[j].Number] = true
	}
	next := 1
	for j := range s.Ports {
		if s.Ports[j].Number == 0 {
			for used[next] {
				next++
			}
			used[next] = true
			s.Ports[j].Number = next
		}
	}
}

// ports lists what is plugged into every switch, by port number.
func (m *maker) ports() {
	m.leafs, m.place, m.room = map[[2]int]int{}, map[[3]int]int{}, map[int]int{}
	leaves := map[int]int{} // leaves of a rail
	held := map[[2]int]int{}
	for i := range m.plan.Switches {
		s := &m.plan.Switches[i]
		edges := cables(m.g, s.Node)
		s.Ports = make([]Port, 0, len(edges))
		unnumbered := false
		for _, e := range edges {
			p := m.portOf(s, e)
			unnumbered = unnumbered || p.Number == 0
			s.Ports = append(s.Ports, p)
		}
		if unnumbered {
			s.numberPorts()
		}
		slices.SortStableFunc(s.Ports, func(a, b Port) int { return a.Number - b.Number })
		if m.in.Backend.Links != "leaf" {
			continue
		}
		for _, p := range s.Ports {
			if p.Rail == None {
				continue
			}
			key := [2]int{int(s.Node), p.Rail}
			if _, known := m.leafs[key]; !known {
				m.leafs[key] = leaves[p.Rail]
				leaves[p.Rail]++
			}
			m.place[[3]int{int(s.Node), p.Rail, p.Host}] = held[key]
			held[key]++
			m.room[p.Rail] = max(m.room[p.Rail], held[key])
		}
	}
}

// portOf is a switch's port as its cable has it; one that the cable does not number is 0.
func (m *maker) portOf(s *Switch, e topo.Edge) Port {
	l := m.g.Links[e.Link]
	number := int(l.APort)
	if l.B == s.Node {
		number = int(l.BPort)
	}
	p := Port{Number: number, Link: e.Link, Peer: e.Peer, Host: None, Iface: None, Rail: None, MTU: SwitchMTU}
	if peer := m.g.Nodes[e.Peer]; peer.Kind == topo.NIC && peer.Host >= 0 {
		p.Host = int(peer.Host)
		if j := int(m.byNic[m.end(e.Peer, e.Link)]); j != None {
			x := &m.plan.Hosts[p.Host].Interfaces[j]
			p.Iface, p.Rail, p.VLAN = j, x.Rail, x.VLAN
		}
	}
	return p
}

// railAddress gives a link of a rail its addresses: from the rail's prefix, from one that the leaf's hosts of the rail share, or
// from one of its own.
func (m *maker) railAddress(s *Switch, p *Port, x *Interface) {
	r, h := &m.plan.Rails[p.Rail], &m.plan.Hosts[p.Host]
	switch {
	case r.InfiniBand || m.in.Backend.Links == "rail":
		x.Addr = whole(at(r.Prefix, 2+h.Number), r.Prefix)
	case m.in.Backend.Links == "leaf":
		leaf := m.leafPrefix(r, int(s.Node))
		x.Addr = whole(at(leaf, 2+m.place[[3]int{int(s.Node), p.Rail, p.Host}]), leaf)
		x.Gateway = at(leaf, 1)
		p.Addr = whole(x.Gateway, leaf)
	default:
		link := netip.PrefixFrom(at(r.Prefix, 2*h.Number), 31)
		p.Addr = link
		x.Addr, x.Gateway = whole(at(link, 1), link), link.Addr()
	}
}

// addresses gives the links of the backend and of routed storage their addresses.
func (m *maker) addresses() {
	for i := range m.plan.Switches {
		s := &m.plan.Switches[i]
		for j := range s.Ports {
			p := &s.Ports[j]
			if p.Host == None || p.Iface == None {
				continue
			}
			h := &m.plan.Hosts[p.Host]
			x := &h.Interfaces[p.Iface]
			if p.Rail == None {
				if x.Net.IsValid() { // routed storage; otherwise the host has its address
					p.Addr = netip.PrefixFrom(at(x.Net, 2*h.Number), 31)
					x.Addr, x.Gateway = whole(at(p.Addr, 1), p.Addr), p.Addr.Addr()
				}
				continue
			}
			r := &m.plan.Rails[p.Rail]
			m.railAddress(s, p, x)
			if !x.Addr.IsValid() {
				m.fail("backend.prefix", "%s: no address is left for %s %s on rail %d", r.Prefix, h.Name, x.Name, p.Rail)
				return
			}
		}
	}
}

// leafPrefix is the subnet of a leaf in a rail, in a backend with a subnet a leaf.
func (m *maker) leafPrefix(r *Rail, leaf int) netip.Prefix {
	n := 1 << 2
	for n < m.room[r.Number]+3 { // network, gateway, broadcast
		n *= 2
	}
	return cut(r.Prefix, m.leafs[[2]int{leaf, r.Number}], size(r.Prefix)/n)
}
