package network

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// tables checks the routing tables and rule priorities of the rails.
func (m *maker) tables() {
	n := len(m.plan.Rails)
	if n == 0 {
		return
	}
	first, last := m.plan.Rails[0].Table, m.plan.Rails[n-1].Table
	lastRule := m.plan.Rails[n-1].Rule
	if m.routedStorage() {
		n += len(m.in.Storage.NICs)
		last, lastRule = last+len(m.in.Storage.NICs), lastRule+10*len(m.in.Storage.NICs)
	}
	if first <= 255 && last >= 253 {
		m.fail("backend.table", "%d: %d rails would use tables %d to %d, and 253 to 255 are the kernel's; begin at %d or less, or at 256",
			first, n, first, last, 253-n)
	}
	if last > math.MaxInt32 {
		m.fail("backend.table", "%d: the last of %d rails would have table %d, and Linux tools read at most %d; begin at 101",
			first, n, last, math.MaxInt32)
	}
	if lastRule >= 32766 {
		m.fail("backend.rule", "%d: the last of %d rails would have priority %d, behind the main table's 32766; begin at %d or less",
			m.in.Backend.Rule, n, lastRule, 32765-10*(n-1))
	}
	m.carriers()
	if m.in.Backend.Bond == "lacp" {
		m.fail("backend.bond", "lacp; rails are separate networks, collectives spread over them")
	}
	for _, x := range m.nets() {
		if x.net.MTU > SwitchMTU-14 {
			m.fail(x.role.String()+".mtu", "%d; switch ports carry %d with the frame around it, so hosts at most %d",
				x.net.MTU, SwitchMTU, SwitchMTU-14)
		}
	}
}

// carriers checks what the backend asks for against what InfiniBand and Ethernet can do. A key that only the other one has
// is an error only where the file gives it.
func (m *maker) carriers() {
	ib, ethernet := m.kinds()
	if ib && m.in.Backend.MTU > IPoIBMTU && m.in.Given("backend.mtu") {
		m.fail("backend.mtu", "%d; IP over InfiniBand carries at most %d in datagram mode", m.in.Backend.MTU, IPoIBMTU)
	}
	if ib && !ethernet && m.in.Given("backend.links") && m.in.Backend.Links != "rail" {
		m.fail("backend.links", "%s; InfiniBand does not route between its ports, so a rail is one subnet: write rail", m.in.Backend.Links)
	}
	if ethernet {
		m.bridges()
	}
	if ib && !ethernet && m.in.Given("backend.vlan") {
		m.fail("backend.vlan", "%d; InfiniBand has no VLANs, write partitions to keep tenants apart", m.in.Backend.VLAN)
	}
	if ib && !ethernet && m.in.Given("roce") {
		m.fail("roce", "the compute fabric is InfiniBand, which RoCE's settings do not concern; leave roce out")
	}
	if ethernet && !ib && m.in.Backend.MTU < 4200 {
		m.warn("backend MTU %d: RDMA packets carry 4096 bytes only where the MTU is 4200 or more", m.in.Backend.MTU)
	}
}

// routedStorage reports whether storage links are routed: where they have Ethernet cables, and no bond makes one of them.
func (m *maker) routedStorage() bool { return m.in.Storage.Bond == "none" && m.pluggedStorage() }

// pluggedStorage reports whether a storage NIC has an Ethernet cable.
func (m *maker) pluggedStorage() bool {
	if m.plugged == nil {
		found := false
		m.g.Each(topo.NIC, func(id topo.NodeID, n *topo.Node) {
			if e := cables(m.g, id); !found && len(e) > 0 && slices.Contains(m.in.Storage.NICs, n.Name) {
				found = n.Fabric >= 0 && m.g.Fabrics[n.Fabric].Service && m.g.Class(e[0].Link).Kind != topo.InfiniBand
			}
		})
		m.plugged = &found
	}
	return *m.plugged
}

// fits checks that every prefix holds the hosts, and says which would.
func (m *maker) fits(hosts int) {
	for _, x := range m.nets() {
		if x.role == Backend {
			continue
		}
		parts := 1
		if x.role == Storage || x.role == Frontend {
			if x.net.Bond == "none" {
				parts = max(1, m.most(x.net.NICs))
			}
		}
		room := hostRoom
		if x.role == Storage && m.routedStorage() { // a /31 for each link
			parts, room = len(x.net.NICs), func(p netip.Prefix) int { return size(p) / 2 }
		}
		ok := func(p netip.Prefix) bool {
			c := cut(p, 0, parts)
			return c.IsValid() && room(c) >= hosts
		}
		if !ok(x.net.Prefix) {
			m.exhausted(x.role.String()+".prefix", "hosts", x.net.Prefix, room(x.net.Prefix)/parts, hosts, ok)
		}
	}
	rails := len(m.plan.Rails)
	if rails == 0 {
		return
	}
	ib, _ := m.kinds()
	room := func(p netip.Prefix) int {
		c := cut(p, 0, rails)
		switch {
		case !c.IsValid():
			return 0
		case ib || m.in.Backend.Links == "rail":
			return max(0, size(c)-3)
		case m.in.Backend.Links == "leaf":
			return m.leafRoom(c)
		}
		return size(c) / 2
	}
	if room(m.in.Backend.Prefix) < hosts && !m.in.Given("backend.prefix") {
		m.widen(func(p netip.Prefix) bool { return room(p) >= hosts })
	}
	if room(m.in.Backend.Prefix) < hosts {
		m.exhausted("backend.prefix", "hosts", m.in.Backend.Prefix, room(m.in.Backend.Prefix), hosts,
			func(p netip.Prefix) bool { return room(p) >= hosts })
	}
}

// widen grows the default prefix of the backend, and cuts it anew, where the wider one is
// nobody else's.
func (m *maker) widen(fits func(netip.Prefix) bool) {
	bits, ok := grow(m.in.Backend.Prefix, fits)
	wider, err := m.in.Backend.Prefix.Addr().Prefix(bits)
	if !ok || err != nil || bits < cluster.WidestBackend.Bits() {
		return
	}
	taken := append([]netip.Prefix{m.in.Frontend.Prefix, m.in.Storage.Prefix, m.in.Management.Prefix, m.in.Loopbacks}, m.in.Reserved...)
	if slices.ContainsFunc(taken, wider.Overlaps) {
		return
	}
	m.in.Backend.Prefix = wider
	for i := range m.plan.Rails {
		m.plan.Rails[i].Prefix = cut(wider, i, len(m.plan.Rails))
	}
}

// oneRack warns where all leaves of a fabric stand in one rack and hosts do not: its power
// is then the whole network's.
func (m *maker) oneRack() {
	if m.plan.Floor == nil {
		return
	}
	racks := map[string]bool{}
	for i := range m.plan.Hosts {
		racks[m.plan.Floor.RackOf(m.plan.Hosts[i].Name)] = true
	}
	for f := range m.g.Fabrics {
		leaves := m.leafRacks(f)
		for rack, n := range leaves {
			if n > 1 && len(leaves) == 1 && len(racks) > 1 && rack != "" {
				m.warn("all %d leaves of fabric %s stand in rack %s: without its power no host has a network; spread them under floor: {place: ...}",
					n, m.g.Fabrics[f].Name, rack)
			}
		}
	}
}

// leafRacks counts the leaves of a fabric by rack.
func (m *maker) leafRacks(fabric int) map[string]int {
	out := map[string]int{}
	for i := range m.plan.Switches {
		if s := &m.plan.Switches[i]; s.Tier == 1 && int(m.g.Nodes[s.Node].Fabric) == fabric {
			out[m.plan.Floor.RackOf(s.Name)]++
		}
	}
	return out
}

// leafRoom is how many hosts a rail's prefix holds with a subnet a leaf: as many
// leaves as fit, each with the links of the fullest one.
func (m *maker) leafRoom(rail netip.Prefix) int {
	full, leaves, links := 0, 0, 0
	m.g.Each(topo.Switch, func(id topo.NodeID, n *topo.Node) {
		here := map[int]int{}
		for _, e := range cables(m.g, id) {
			if p := m.g.Nodes[e.Peer]; p.Kind == topo.NIC && !m.g.Fabrics[max(0, p.Fabric)].Service {
				here[int(p.Rail)]++
			}
		}
		for _, k := range here {
			full, links, leaves = max(full, k), links+k, leaves+1
		}
	})
	subnet := 4
	for subnet < full+3 {
		subnet *= 2
	}
	if full == 0 || leaves == 0 {
		return 0
	}
	perRail := max(1, leaves/max(1, len(m.plan.Rails)))
	if size(rail)/subnet >= perRail {
		return max(len(m.g.Hosts), size(rail)/subnet*full)
	}
	return size(rail) / subnet * full
}

// exhausted says that a prefix is too small for what is numbered in it, and which would do.
func (m *maker) exhausted(field, what string, p netip.Prefix, room, n int, ok func(netip.Prefix) bool) {
	fix := "take a wider one"
	if bits, found := grow(p, ok); found {
		fix = fmt.Sprintf("a /%d would do", bits)
	}
	m.fail(field, "%s holds %d %s and %d are numbered; %s", p, room, what, n, fix)
}

// most is how many of some NICs the best equipped host has.
func (m *maker) most(names []string) int {
	most := 0
	for h := range m.g.Hosts {
		n := 0
		for _, x := range m.g.HostNodes(topo.HostID(h)) {
			if x.Kind == topo.NIC && slices.Contains(names, x.Name) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// switchesFit checks loopbacks and management addresses.
func (m *maker) switchesFit(n int) {
	if room := max(0, size(m.in.Loopbacks)-2); n > room {
		m.exhausted("loopbacks", "switches", m.in.Loopbacks, room, n, func(p netip.Prefix) bool { return size(p)-2 >= n })
	}
	hosts := 0
	for i := range m.plan.Hosts {
		hosts = max(hosts, m.plan.Hosts[i].Number+1)
	}
	free := func(p netip.Prefix) bool {
		return size(p)-1-n > hostOffset(p, max(0, hosts-1))
	}
	if !free(m.in.Management.Prefix) {
		m.exhausted("management.prefix", "switches", m.in.Management.Prefix,
			max(0, size(m.in.Management.Prefix)-2-hostOffset(m.in.Management.Prefix, max(0, hosts-1))), n, free)
	}
}

// asnsFit checks that private AS numbers suffice.
func (m *maker) asnsFit(pods, switches int) {
	first, end := int(m.in.Routing.ASN), 4294967294
	if first < 1<<16 {
		end = 65534
	}
	if switches > 0 && (pods*max(1, len(m.g.Fabrics)) >= m.leafASN() || first+m.leafASN()+switches-1 > end) {
		m.fail("routing.asn", "%d: %d switches in %d pods do not fit below %d; begin at 4200000000", first, switches, pods, end)
	}
}
