// Package lab brings a network plan up on one machine: every host and switch a
// network namespace, every cable a pair of virtual Ethernet devices, with the
// files that weft net emit writes for production: FRR routes, systemd-networkd
// configures hosts, lldpd reports neighbours.
//
// Without root, or with hundreds of routers, BIRD or computed static routes replace FRR,
// and weft itself replaces systemd-networkd.
//
//	weft lab up ──► init ──┬─ namespace leaf0   zebra bgpd bfdd   frr.conf
//	 (ends)        (stays) ├─ namespace spine0  zebra bgpd bfdd   frr.conf
//	                       ├─ namespace n0      networkd          *.network
//	                       └─ front end: a bridge at init's own namespace
//
// Init is the first process in its own process, mount and network namespaces. When it
// ends, for whatever reason, the kernel ends everything inside and removes every
// namespace, device and file.
package lab

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// Spec is what a lab is made of: a value that init is given.
type Spec struct {
	Name  string
	File  string // the cluster file, to compare the lab with
	Nodes []Node
	Wires []Wire
	Front string   // the gateway's address and length on the front end's bridge
	Rails []string // the prefixes of the backend, one a rail
	Options
}

// Options say who does what in a lab.
type Options struct {
	Routing string // what switches run: "frr" on the emitted frr.conf, "bird" on a file of the lab's own, or "static" for routes that weft computes
	Setup   string // who configures hosts: "networkd" on the emitted files, "plain" for weft itself, or "none" for a lab without hosts
	LLDP    bool   // lldpd says who is plugged into whom

	Wait time.Duration // how long a daemon may take to start, and routes to settle; 0: as long as they take on a busy machine
}

// patience is how long a step of a lab may take.
func (o Options) patience() time.Duration { return cmp.Or(o.Wait, 90*time.Second) }

// Usual is a lab on the emitted files alone.
func Usual() Options { return Options{Routing: "frr", Setup: "networkd", LLDP: true} }

// Check says what is wrong with options.
func (o Options) Check() error {
	if !slices.Contains(Routings, o.Routing) {
		return fmt.Errorf("unknown routing %q; known: %s", o.Routing, strings.Join(Routings, ", "))
	}
	if !slices.Contains(Configurers, o.Setup) {
		return fmt.Errorf("hosts cannot be configured by %q; known: %s", o.Setup, strings.Join(Configurers, ", "))
	}
	return nil
}

// Routings and Configurers are the words of Options.
var (
	Routings    = []string{"frr", "bird", "static"}
	Configurers = []string{"networkd", "plain", "none"}
)

// Node is a host or a switch.
type Node struct {
	Name   string
	Router bool
	Tier   int
	Island string      // the first router that cables between routers lead to; routers of two islands do not reach one another
	Files  []emit.File // below the node's own root
	Script []string    // lines of ip -batch that configure the node where no daemon does
	Uplink []string    // interfaces to other switches
	Loop   string      // a switch's own address
	Front  string      // a host's address on the front end
	Addrs  []string    // addresses that must be there before the lab is ready
	Rules  int         // routing rules of a host that must be there
	Ports  []Port      // of a host, on networks that switches join

	// Tunnels are a switch's VXLAN devices, each with the other switches that have the same network.
	Tunnels map[string][]string
	VRFs    []VRFRoutes // of a switch
}

// VRFRoutes are the networks that a switch must have routes to in the table of a VRF.
type VRFRoutes struct {
	Table  int
	Routes []string
}

// Wire is a cable.
type Wire struct {
	A, AIf string // node and interface
	B, BIf string // "" for the front end's or storage's bridge
	AMTU   int
	BMTU   int
	Bridge string // which bridge, where B is ""
}

// MaxNodes is how many namespaces a lab may have.
const MaxNodes = 2000

// NewSpec makes the lab of a plan.
func NewSpec(p *network.Plan, name string, o Options) (*Spec, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if err := canBeLab(p); err != nil {
		return nil, err
	}
	p = p.Rendered("frr") // what routes in a lab has FRR's names of ports
	s := &Spec{Name: name, Options: o}
	front := p.Intent.Frontend
	s.Front = fmt.Sprintf("%s/%d", front.Gateway, front.Prefix.Bits())
	for _, r := range p.Rails {
		s.Rails = append(s.Rails, r.Prefix.String())
	}
	files, err := emit.Make(p, []string{"frr", "lldp", "networkd", "sysctl"})
	if err != nil {
		return nil, err
	}
	byNode := map[string][]emit.File{}
	for _, f := range files {
		part := strings.SplitN(f.Path, "/", 3)
		byNode[part[1]] = append(byNode[part[1]], emit.File{Path: part[2], Mode: f.Mode, Data: f.Data})
	}
	for i := range p.Switches {
		sw := &p.Switches[i]
		n := Node{Name: sw.Name, Router: true, Tier: sw.Tier, Island: sw.Name, Files: byNode[sw.Name], Loop: sw.Loopback.String()}
		for j := range sw.Ports {
			q := &sw.Ports[j]
			here := emit.PortName(p, sw, q.Number)
			if q.Host == network.None {
				n.Uplink = append(n.Uplink, here)
				far, port := p.Far(q)
				if far == nil || far.Node < sw.Node {
					continue
				}
				s.Wires = append(s.Wires, Wire{A: sw.Name, AIf: here, AMTU: q.MTU, B: far.Name, BIf: emit.PortName(p, far, port.Number),
					BMTU: port.MTU})
				continue
			}
			if q.Iface == network.None || o.Setup == "none" {
				continue
			}
			x := &p.Hosts[q.Host].Interfaces[q.Iface]
			s.Wires = append(s.Wires, Wire{A: sw.Name, AIf: here, AMTU: q.MTU, B: p.Hosts[q.Host].Name, BIf: x.Name, BMTU: x.MTU})
		}
		s.Nodes = append(s.Nodes, n)
	}
	s.islands()
	if err := s.tunnels(p); err != nil {
		return nil, err
	}
	if err := s.vrfs(p); err != nil {
		return nil, err
	}
	switch o.Routing {
	case "bird":
		if err := birds(p, s); err != nil {
			return nil, err
		}
	case "static":
		static(p, s)
	}
	if o.Setup == "none" {
		return s, nil
	}
	for i := range p.Hosts {
		if err := s.host(p, &p.Hosts[i], byNode[p.Hosts[i].Name]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// islands gives all routers that cables join the same name.
func (s *Spec) islands() {
	at := map[string]*Node{}
	for i := range s.Nodes {
		at[s.Nodes[i].Name] = &s.Nodes[i]
	}
	for changed := true; changed; {
		changed = false
		for _, w := range s.Wires {
			a, b := at[w.A], at[w.B]
			if a == nil || b == nil || a.Island == b.Island {
				continue
			}
			a.Island = min(a.Island, b.Island)
			b.Island, changed = a.Island, true
		}
	}
}

// vxlans lists the switches of each VXLAN network, and names the device that each of them has for it.
func (s *Spec) vxlans(p *network.Plan) (on map[int][]*Node, device map[int]string) {
	on, device = map[int][]*Node{}, map[int]string{}
	for i := range p.Switches {
		n := s.Node(p.Switches[i].Name)
		for _, q := range p.Switches[i].Ports {
			if q.VNI != 0 && !slices.Contains(on[q.VNI], n) {
				on[q.VNI], device[q.VNI] = append(on[q.VNI], n), fmt.Sprintf("vx%d", q.VLAN)
			}
		}
	}
	return on, device
}

// tunnels notes which switches must know of one another because tunnels join their bridges.
func (s *Spec) tunnels(p *network.Plan) error {
	on, device := s.vxlans(p)
	if len(on) > 0 && s.Routing != "frr" {
		return fmt.Errorf("%s has bridges that EVPN joins, which --routing %s does not speak; start the lab with --routing frr",
			p.Name, s.Routing)
	}
	for vni, list := range on {
		for _, n := range list {
			if n.Tunnels == nil {
				n.Tunnels = map[string][]string{}
			}
			for _, other := range list {
				if other != n && other.Island == n.Island {
					n.Tunnels[device[vni]] = append(n.Tunnels[device[vni]], other.Loop)
				}
			}
		}
	}
	return nil
}

// vrfs notes which routes switches must learn in the VRFs of tenants.
func (s *Spec) vrfs(p *network.Plan) error {
	if len(p.VRFs) > 0 && s.Routing != "frr" {
		return fmt.Errorf("%s has VRFs that EVPN joins, which --routing %s does not speak; start the lab with --routing frr", p.Name, s.Routing)
	}
	type at struct {
		vrf    int
		island string
	}
	nets, on := map[at][]string{}, map[*Node]map[int]bool{}
	for i := range p.Switches {
		n := s.Node(p.Switches[i].Name)
		on[n] = map[int]bool{}
		for _, q := range p.Switches[i].Ports {
			if q.VRF != 0 && s.Setup != "none" {
				nets[at{q.VRF, n.Island}] = append(nets[at{q.VRF, n.Island}], q.Addr.Masked().String())
				on[n][q.VRF] = true
			}
		}
	}
	for n, list := range on {
		for k := range list {
			n.VRFs = append(n.VRFs, VRFRoutes{p.VRFs[k-1].Table, nets[at{k, n.Island}]})
		}
	}
	return nil
}

// canBeLab says what of a plan a lab cannot have.
func canBeLab(p *network.Plan) error {
	if len(p.Switches) == 0 {
		return fmt.Errorf("%s has no switches; a lab needs a fabric", p.Name)
	}
	for i := range p.Switches {
		if p.Switches[i].IB {
			return fmt.Errorf("%s is InfiniBand; a lab has Ethernet only, and ibsim simulates InfiniBand: weft topo export --to ibsim",
				p.Switches[i].Name)
		}
	}
	if p.Intent.Backend.Links == "leaf" {
		return errors.New("network.backend.links is leaf, which is SONiC's, and a lab's switches run FRR: write /31 or rail")
	}
	if n := len(p.Hosts) + len(p.Switches); n > MaxNodes {
		return fmt.Errorf("%d hosts and switches; a lab has at most %d", n, MaxNodes)
	}
	return nil
}

// host adds one with its wires to bridges; those to switches are there already.
func (s *Spec) host(p *network.Plan, h *network.Host, files []emit.File) error {
	n := Node{Name: h.Name, Files: files, Ports: ports(p, h), Front: h.First(network.Frontend).Addr.Addr().String()}
	for j := range h.Interfaces {
		x := &h.Interfaces[j]
		leg := h.Leg(x)
		if x.Bond != "" && leg.Link == network.None || x.Link == network.None && leg == x {
			s.Wires = append(s.Wires, Wire{A: h.Name, AIf: x.Name, AMTU: x.MTU, Bridge: x.Role.String(), BMTU: x.MTU})
		}
		if s.Options.Setup == "plain" && leg != x {
			n.Script = append(n.Script, plainBond(h, x)...)
		}
		if x.Bond != "" {
			continue
		}
		n.Addrs = append(n.Addrs, x.Addr.String())
		_, rules := emit.Routing(p, x)
		n.Rules += len(rules)
		if s.Options.Setup == "plain" {
			n.Script = append(n.Script, plainSetup(p, x)...)
		}
	}
	s.Nodes = append(s.Nodes, n)
	return nil
}

// plainBond are the commands of ip that make a bond.
func plainBond(h *network.Host, x *network.Interface) []string {
	script := []string{"link add name " + x.Name + " type bond mode 802.3ad lacp_rate fast miimon 100 xmit_hash_policy layer3+4"}
	for _, y := range h.Interfaces {
		if y.Bond == x.Name {
			script = append(script, "link set dev "+y.Name+" down", "link set dev "+y.Name+" master "+x.Name)
		}
	}
	return script
}

// plainSetup are the commands of ip that set an interface up.
func plainSetup(p *network.Plan, x *network.Interface) (script []string) {
	script = append(script, fmt.Sprintf("link set dev %s mtu %d up", x.Name, x.MTU), fmt.Sprintf("addr add %s dev %s", x.Addr, x.Name))
	routes, rules := emit.Routing(p, x)
	for _, r := range routes {
		to, table := "default", ""
		if r.To.IsValid() {
			to = r.To.String()
		}
		if r.Table > 0 {
			table = fmt.Sprintf(" table %d", r.Table)
		}
		script = append(script, fmt.Sprintf("route add %s via %s dev %s%s", to, r.Via, x.Name, table))
	}
	for _, r := range rules {
		script = append(script, fmt.Sprintf("rule add priority %d from %s to %s table %d", r.Priority, r.From.Addr(), r.To, r.Table))
	}
	return script
}

// Neighbours is how many entries of the kernel's neighbour tables the lab takes,
// about one for each end of a cable in each of IPv4 and IPv6. The tables are one
// for the whole machine.
func (s *Spec) Neighbours() int { return 2 * len(s.Wires) }

// Hosts names the hosts, in the order of the plan.
func (s *Spec) Hosts() []string {
	var out []string
	for i := range s.Nodes {
		if !s.Nodes[i].Router {
			out = append(out, s.Nodes[i].Name)
		}
	}
	return out
}

// Node finds a node by name.
func (s *Spec) Node(name string) *Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// WireAt finds the wire that an interface of a node is an end of.
func (s *Spec) WireAt(node, iface string) *Wire {
	for i := range s.Wires {
		w := &s.Wires[i]
		if w.A == node && w.AIf == iface || w.B == node && w.BIf == iface {
			return w
		}
	}
	return nil
}
