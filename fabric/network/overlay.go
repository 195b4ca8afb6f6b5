package network

import (
	"slices"

	"github.com/weft-fabric/weft/model/topo"
)

// An overlay joins host ports of several leaves into one Ethernet segment: each leaf has a bridge, and VXLAN tunnels
// between the leaves' loopbacks join the bridges. EVPN, which BGP carries on the sessions that are there anyway, tells
// leaves where hardware addresses are. Three things ask for it:
//
//   - a bond over two leaves, which act as one switch then: both have the bond in one Ethernet segment (ES-LAG, RFC 7432)
//   - backend.links: rail, one subnet per rail
//   - tenants: each has a bridge of its own on each network, and nothing joins two of them
//
// Tenants on routed links have a VRF each instead: a routing table on every leaf with hosts of theirs. EVPN carries
// the routes of a VRF to the other leaves, and a tunnel its packets.

// firstTransit and a tenant's number is the VLAN that switches give the tunnel of its VRF; firstTable likewise its table.
const firstTransit, firstTable = 3000, 1000

// LastMetric is that of a VRF's route for what nothing else leads to.
const LastMetric = 4278198272

// vrfPrefix begins the names of VRFs: SONiC takes no others. Linux takes device names of 15 bytes.
const vrfPrefix, maxDevice = "Vrf_", 15

// firstVNI and the VLAN are the number of a VXLAN network.
const firstVNI = 4000

// TunnelHeader is what VXLAN puts around a packet: Ethernet, IPv4, UDP and its own header.
const TunnelHeader = 50

// overlays reports whether a network of a plan is bridged over its leaves.
func (m *maker) overlays(role Role) bool {
	switch role {
	case Backend:
		_, ethernet := m.kinds()
		return ethernet && m.in.Backend.Links == "rail"
	case Storage:
		return m.in.Storage.Bond == "lacp" && m.pluggedStorage()
	}
	return false
}

// vlan is the VLAN of a host on a network that is bridged: each rail and each tenant has one of its own.
func (m *maker) vlan(h *Host, role Role, rail int) int {
	switch {
	case role == Storage:
		return m.in.Storage.VLAN + m.tenant(h.Name)
	case m.in.Backend.Links != "rail":
		return m.in.Backend.VLAN
	}
	return m.in.Backend.VLAN + rail*(1+len(m.in.Tenants)) + m.tenant(h.Name)
}

// tenant numbers a host's tenant from 1; hosts without one are together in 0.
func (m *maker) tenant(host string) int {
	if m.tenantOf == nil {
		m.tenantOf = map[string]int{}
		for i, t := range m.in.Tenants {
			for _, name := range t.Hosts {
				m.tenantOf[name] = i + 1
			}
		}
	}
	return m.tenantOf[host]
}

// Tenant names a host's tenant; it is empty for hosts without one.
func (p *Plan) Tenant(host string) string {
	for _, t := range p.Intent.Tenants {
		if slices.Contains(t.Hosts, host) {
			return t.Name
		}
	}
	return ""
}

// routes reports whether the host links of a network are routed by switches of the plan.
func (m *maker) routes(role Role) bool {
	switch role {
	case Backend:
		_, ethernet := m.kinds()
		return ethernet && m.in.Backend.Links == "/31"
	case Storage:
		return m.routedStorage()
	}
	return false
}

// hasVRFs reports whether tenants have VRFs: where links are routed.
func (m *maker) hasVRFs() bool {
	return len(m.in.Tenants) > 0 && (m.routes(Backend) || m.routes(Storage))
}

// meetsVRFs reports whether some of a range of VLANs are those of VRFs.
func (m *maker) meetsVRFs(first, last int) bool {
	return m.hasVRFs() && first <= firstTransit+len(m.in.Tenants) && last > firstTransit
}

// vrfs makes the VRFs of tenants.
func (m *maker) vrfs() {
	if !m.hasVRFs() {
		return
	}
	for i, t := range m.in.Tenants {
		m.plan.VRFs = append(m.plan.VRFs, VRF{Name: vrfPrefix + t.Name, Tenant: t.Name, Table: firstTable + i + 1, VLAN: firstTransit + i + 1,
			VNI: firstVNI + firstTransit + i + 1})
	}
}

// segments gives host ports of bridged networks their VXLAN network, bonds their Ethernet segment, and routed links of tenants
// their VRF.
func (m *maker) segments() {
	m.vrfs()
	for i := range m.plan.Switches {
		for j := range m.plan.Switches[i].Ports {
			q := &m.plan.Switches[i].Ports[j]
			if q.Host != None && q.Iface != None {
				m.segment(q)
			}
		}
	}
}

// segment gives a host port its VXLAN network, Ethernet segment or VRF.
func (m *maker) segment(q *Port) {
	h := &m.plan.Hosts[q.Host]
	x := &h.Interfaces[q.Iface]
	if q.VLAN == 0 {
		if q.Addr.IsValid() && m.routes(x.Role) {
			q.VRF = m.tenant(h.Name)
			m.plan.Bridged = m.plan.Bridged || q.VRF != 0
		}
		return
	}
	if x.IB || !m.overlays(x.Role) {
		return
	}
	q.VNI, m.plan.Bridged = firstVNI+q.VLAN, true
	if x.Bond != "" {
		q.Segment = 1 + h.Number
	}
}

// overlaid refuses overlays that no file here describes.
func (m *maker) overlaid() {
	wanted := m.wanted()
	if len(wanted) == 0 && len(m.in.Tenants) == 0 {
		return
	}
	m.tenants()
	count := map[Role]int{Storage: 1 + len(m.in.Tenants), Backend: max(1, len(m.plan.Rails)) * (1 + len(m.in.Tenants))}
	for _, x := range wanted {
		if !m.tunnelled(x) {
			return
		}
		m.vlanRange(x, count[x.role], wanted)
	}
	for _, x := range m.nets() {
		if len(m.in.Tenants) > 0 && m.routes(x.role) && !m.tunnelled(x) {
			return
		}
	}
}

// tunnelled checks what tunnels between leaves ask of a network.
func (m *maker) tunnelled(x roleNet) bool {
	field := x.role.String()
	if m.in.Render.Leaf == "nvue" || m.in.Render.Spine == "nvue" {
		m.fail("render",
			"nvue; tunnels join %s of several leaves (EVPN with VXLAN), which is written for frr and sonic: write render: {leaf: sonic, spine: sonic}",
			field)
		return false
	}
	if most := SwitchMTU - 14 - TunnelHeader; x.net.MTU > most {
		m.fail(field+".mtu", "%d; tunnels between leaves put %d bytes around a packet, so hosts send at most %d", x.net.MTU, TunnelHeader, most)
	}
	return true
}

// wanted lists the networks that are bridged.
func (m *maker) wanted() (out []roleNet) {
	for _, x := range m.nets() {
		if m.overlays(x.role) {
			out = append(out, x)
		}
	}
	return out
}

// vlanRange checks that the VLANs of a bridged network are its own.
func (m *maker) vlanRange(x roleNet, count int, wanted []roleNet) {
	first, last := x.net.VLAN, x.net.VLAN+count-1
	field := x.role.String() + ".vlan"
	if last >= 4094 {
		m.fail(field, "%d: %d VLANs, one per rail and tenant, end at %d, and 4093 is the last; begin at %d or less",
			first, count, last, 4094-count)
		return
	}
	if end := firstTransit + len(m.in.Tenants); m.meetsVRFs(first, last) {
		m.fail(field, "%d: %d VLANs, one per rail and tenant, reach to %d, and VRFs of tenants take %d to %d; begin at another such as 1000",
			first, count, last, firstTransit+1, end)
		return
	}
	for _, y := range m.nets() {
		inside := y.net.VLAN >= first && y.net.VLAN <= last
		if inside && (y.role > x.role || y.role != x.role && !slices.Contains(wanted, y)) {
			m.fail(field, "%d: %d VLANs, one per rail and tenant, reach to %d, and %d is the VLAN of %s; begin at another such as 1000",
				first, count, last, y.net.VLAN, y.role)
			return
		}
	}
}

// tenants checks tenants of an Ethernet fabric.
func (m *maker) tenants() {
	if len(m.in.Tenants) == 0 {
		return
	}
	ib, ethernet := m.kinds()
	if ib {
		m.fail("tenants", "the compute fabric is InfiniBand, which keeps tenants apart by partitions; write partitions")
		return
	}
	if ethernet && m.in.Backend.Links == "leaf" {
		m.fail("tenants",
			"backend.links is leaf: hosts of several tenants would share the subnet of a leaf; write links: /31, which gives each tenant a VRF, or links: rail, which gives each tenant bridges")
		return
	}
	if m.hasVRFs() && !m.vrfsFit() {
		return
	}
	m.tenantHosts()
}

// tenantHosts checks that the hosts of tenants are there, and each has one.
func (m *maker) tenantHosts() {
	owner := map[string]string{}
	for _, t := range m.in.Tenants {
		for _, name := range t.Hosts {
			if _, ok := m.g.HostByName(name); !ok {
				m.fail("tenants."+t.Name+".hosts", "there is no host %q", clip(name))
				return
			}
			if other, twice := owner[name]; twice {
				m.fail("tenants."+t.Name+".hosts", "%s is a host of %s, too; a host has one tenant", name, other)
				return
			}
			owner[name] = t.Name
		}
	}
}

// vrfsFit checks that the names, VLANs and tables of VRFs are to be had.
func (m *maker) vrfsFit() bool {
	for _, t := range m.in.Tenants {
		if most := maxDevice - len(vrfPrefix); len(t.Name) > most {
			m.fail("tenants."+t.Name, "the tenant's VRF is the device %s%s, and device names have at most %d bytes; write a name of at most %d",
				vrfPrefix, t.Name, maxDevice, most)
			return false
		}
	}
	last := firstTransit + len(m.in.Tenants)
	if last >= 4094 {
		m.fail("tenants", "%d tenants; VLANs for their VRFs begin at %d, so at most %d fit", len(m.in.Tenants), firstTransit+1, 4093-firstTransit)
		return false
	}
	for _, x := range m.nets() {
		if x.net.VLAN > firstTransit && x.net.VLAN <= last {
			m.fail(x.role.String()+".vlan", "%d; VRFs of tenants take VLANs %d to %d; take another", x.net.VLAN, firstTransit+1, last)
			return false
		}
	}
	return true
}

// bonds refuses bonds that cannot come up: LACP needs the same at the other end. Bonded storage NICs go to two leaves,
// which an Ethernet segment makes one. Where the cluster file has no cables of the network, its switches are
// somebody else's to configure.
func (m *maker) bonds() {
	for _, x := range m.nets() {
		if x.net.Bond != "lacp" {
			continue
		}
		for i := range m.plan.Hosts {
			if !m.bonded(&m.plan.Hosts[i], x.role) {
				return
			}
		}
	}
}

// bonds lists the interfaces that the bond of a network joins.
func (h *Host) bonds(role Role) (list []*Interface) {
	for k := range h.Interfaces {
		if y := &h.Interfaces[k]; y.Bond != "" && y.Role == role {
			list = append(list, y)
		}
	}
	return list
}

// bonded checks the bond of a host on a network.
func (m *maker) bonded(h *Host, role Role) bool {
	field := role.String() + ".bond"
	peers, members := map[topo.NodeID]bool{}, 0
	var names []string
	for _, y := range h.bonds(role) {
		members++
		if y.IB {
			m.fail(field, "lacp: %s %s is InfiniBand, which has no LACP; leave bond out", h.Name, y.Name)
			return false
		}
		if y.Link != None {
			sw, _ := m.plan.PeerPort(y)
			peers[sw.Node] = true
			names = append(names, sw.Name)
		}
	}
	switch {
	case members == 1:
		m.fail(field, "lacp: %s has one NIC there; a bond needs two", h.Name)
	case len(names) > 0 && len(names) < members:
		m.fail(field, "lacp: of %d NICs of %s only %d have a switch in the file; plug all of them in, or leave bond out",
			members, h.Name, len(names))
	case len(names) > 1 && len(peers) < len(names):
		m.fail(field,
			"lacp: both NICs of %s go to %s, which takes both with it; write leaves: 2 under the storage fabric, or leave bond out: each NIC is then a routed link with an address of its own",
			h.Name, names[0])
	default:
		return true
	}
	return false
}

// unplugged says that storage NICs get addresses and nothing more where the file
// has no switches for them.
func (m *maker) unplugged() {
	for i := range m.plan.Hosts {
		h := &m.plan.Hosts[i]
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			if x.Role == Storage && x.Bond == "" && h.Leg(x).Link == None {
				m.warn("storage: %s of %s has no switch in the file, so nothing here joins storage NICs; declare the switches under fabrics (service: true) to have them planned",
					x.Name, h.Name)
				return
			}
		}
	}
}

// Leg is the interface whose cable carries packets: the first member of a bond, else the interface itself.
func (h *Host) Leg(x *Interface) *Interface {
	for i := range h.Interfaces {
		if y := &h.Interfaces[i]; y.Bond != "" && y.Bond == x.Name {
			return y
		}
	}
	return x
}

// front refuses a front end on switches of the plan: its VLAN would end at every
// leaf, since their uplinks are routed, and no switch would have its gateway.
func (m *maker) front() {
	for i := range m.plan.Hosts {
		h := &m.plan.Hosts[i]
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			if x.Role != Frontend || x.Link == None || x.IB {
				continue
			}
			if sw, _ := m.plan.PeerPort(x); sw != nil {
				m.fail("frontend.nics",
					"%s of %s is plugged into %s, whose uplinks are routed: VLAN %d ends there, and no switch has the gateway %s; leave the switches of the front end out of fabrics, under services they are counted",
					x.Name, h.Name, sw.Name, x.VLAN, m.in.Frontend.Gateway)
				return
			}
		}
	}
}

// bridges refuses subnets of several hosts where no file makes the bridge that joins them.
func (m *maker) bridges() {
	if m.in.Backend.Links == "leaf" && m.in.Render.Leaf == "frr" {
		m.fail("backend.links", "leaf; FRR routes and makes no bridge for a leaf's hosts; write /31, or render: {leaf: sonic}")
	}
}
