// Package network turns a cluster and its owner's intent into one plan: the
// address, gateway, rail, routing table, VLAN, MTU and AS number of every
// interface of every host and every port of every switch. The plan is a value;
// package fabric/network/emit writes it in every dialect, and package fabric/network/check
// compares machines with it.
//
//	cluster.Cluster ──► network.Make ──► Plan ──┬─► fabric/network/emit    files for hosts, switches, schedulers
//	  graph + intent       + Lock               ├─► fabric/network/check   what differs, and where
//	                                            └─► Path, Reach     a flow's route, who reaches whom
//
// # Numbers
//
// A lock file stores each host's number, so that addresses stay when the cluster
// grows. Host i has the address x.x.(1+i/240).(10+i%240) on the front
// end and in management. The backend is cut into one prefix per rail; inside it
// link k has the addresses 2k (switch) and 2k+1 (host). Storage is cut in the same
// way, into one prefix per storage NIC, where the cluster file has its switches;
// otherwise it is numbered as the front end is.
package network

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/floor"
)

// Role is what a network is for.
type Role uint8

// The roles, in the order of a host's interfaces.
const (
	Frontend Role = iota
	Backend
	Storage
	Management
)

var roleNames = [...]string{"frontend", "backend", "storage", "management"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads what Role.String prints.
func ParseRole(s string) (Role, error) {
	for i, n := range roleNames {
		if n == s {
			return Role(i), nil
		}
	}
	return 0, fmt.Errorf("unknown network %q; known: frontend, backend, storage, management", s)
}

// Plan is the whole network of a cluster. Nothing changes it after Make.
type Plan struct {
	Name     string
	Digest   string // equal addresses and equal settings give equal digests
	Intent   *cluster.Network
	Graph    *topo.Graph
	Catalog  *catalog.Catalog
	Rails    []Rail
	Hosts    []Host   // in the order of the graph
	Switches []Switch // in the order of the graph
	Warnings []string // what is allowed but may surprise
	Bridged  bool     // tunnels join bridges or VRFs of several leaves, and all switches carry EVPN
	VRFs     []VRF    // of tenants on routed links

	Floor    *floor.Plan       // where everything stands; nil where the file does not say
	Services []cluster.Service // networks beside the graph that the file declares

	// Numbers of the lock whose hosts and switches are gone. They stay in the lock,
	// so that nobody gets them again.
	goneHosts, goneSwitches map[string]int
}

// Rail is one prefix of the backend: NIC i of every host, in one plane.
type Rail struct {
	Number     int // among all rails of the plan
	NIC        int // which of a host's compute NICs, from 0
	Plane      int // None where there is one plane
	Fabric     int
	InfiniBand bool
	Prefix     netip.Prefix
	Table      int // routing table of a host for this rail
	Rule       int // priority of its rule
}

// Host is a machine and its interfaces.
type Host struct {
	Name       string
	Number     int // kept by the lock
	ID         topo.HostID
	Interfaces []Interface
	BMC        netip.Prefix
}

// Interface is one network device of a host: a port of a NIC, or a bond.
type Interface struct {
	Name    string // of the device: "nic0", "nic0b" for the second plane, "stor" for a bond
	Role    Role
	Rail    int // index in Plan.Rails; None outside the backend
	Node    topo.NodeID
	Link    topo.LinkID // its cable; None where the graph has none
	Addr    netip.Prefix
	Gateway netip.Addr // the switch's end; the default route on the front end
	MTU     int
	VLAN    int          // 0: untagged on a routed link
	Net     netip.Prefix // of a routed storage link: what all hosts' NICs of this number share
	Table   int          // of a routed storage link: its routing table
	Rule    int          // and the priority of its rule
	Bond    string       // the bond it is a member of; a member has no address
	IB      bool
	MAC     string // from the inventory; empty if unknown
	PCI     string
	GUID    string
}

// Switch is a switch and its ports.
type Switch struct {
	Name     string
	Number   int // kept by the lock
	Node     topo.NodeID
	Tier     int // 1 leaf, 2 spine, 3 core
	Role     Role
	IB       bool
	ASN      uint32       // 0 where nothing is routed
	Loopback netip.Addr   // likewise
	Mgmt     netip.Prefix // of its management port
	Ports    []Port       // by number
}

// Port is a port of a switch that something is plugged into.
type Port struct {
	Number int
	Link   topo.LinkID
	Peer   topo.NodeID
	Host   int          // index in Plan.Hosts of the host behind it; None for a switch
	Iface  int          // index of the host's interface
	Rail   int          // of a host port; None otherwise
	Addr   netip.Prefix // the switch's end of a routed host link; invalid on links between switches
	MTU    int
	VLAN   int // of a bridged host port; 0 where it is routed

	VRF     int // which of Plan.VRFs routes a host link, counted from 1; 0 is the table that hosts without a tenant share
	VNI     int // the VXLAN network that joins the VLAN with those of other leaves; 0 where it ends at this switch
	Segment int // the Ethernet segment of a bonded host, the same on each of its leaves; 0 without a bond
}

// VRF is the routing table of a tenant on all leaves that have its hosts. A VXLAN tunnel between the leaves carries its packets.
type VRF struct {
	Name   string // of the device
	Tenant string
	Table  int // on Linux switches
	VLAN   int // of the tunnel on a switch; no port is a member
	VNI    int // of the tunnel
}

// None is "no such thing" in indices.
const None = -1

// Interface finds an interface of a host by its name.
func (h *Host) Interface(name string) *Interface {
	for i := range h.Interfaces {
		if h.Interfaces[i].Name == name {
			return &h.Interfaces[i]
		}
	}
	return nil
}

// Label is the name of an interface in DNS, which takes no underscore.
func (h *Host) Label(x *Interface) string {
	return h.Name + "-" + strings.ReplaceAll(x.Name, "_", "-")
}

// same reports whether two interfaces would have one name in DNS.
func (h *Host) same(x, y *Interface) bool {
	return strings.EqualFold(strings.ReplaceAll(x.Name, "_", "-"), strings.ReplaceAll(y.Name, "_", "-"))
}

// First gives the first interface of a role that has an address; nil if there is none.
func (h *Host) First(r Role) *Interface {
	for i := range h.Interfaces {
		if x := &h.Interfaces[i]; x.Role == r && x.Addr.IsValid() {
			return x
		}
	}
	return nil
}

// Host finds a host by name.
func (p *Plan) Host(name string) *Host {
	id, ok := p.Graph.HostByName(name)
	if !ok {
		return nil
	}
	return &p.Hosts[id]
}

// Switch finds a switch by name.
func (p *Plan) Switch(name string) *Switch {
	for i := range p.Switches {
		if p.Switches[i].Name == name {
			return &p.Switches[i]
		}
	}
	return nil
}

// Net is the intent of a role.
func (p *Plan) Net(r Role) *cluster.Net {
	return [...]*cluster.Net{&p.Intent.Frontend, &p.Intent.Backend, &p.Intent.Storage, &p.Intent.Management}[r]
}

// Dialect is what a switch's files are written in: the intent's render section by tier. It is empty for
// InfiniBand switches, which a subnet manager configures.
func (p *Plan) Dialect(s *Switch) string {
	switch {
	case s.IB:
		return ""
	case s.Tier == 1:
		return p.Intent.Render.Leaf
	}
	return p.Intent.Render.Spine
}

// Rendered is the same plan with one dialect for all switches.
func (p *Plan) Rendered(dialect string) *Plan {
	out, in := *p, *p.Intent
	in.Render.Leaf, in.Render.Spine = dialect, dialect
	out.Intent = &in
	return &out
}

// Routed reports whether the plan has switches that speak a routing protocol.
func (p *Plan) Routed() bool {
	for i := range p.Switches {
		if p.Switches[i].ASN != 0 {
			return true
		}
	}
	return false
}
