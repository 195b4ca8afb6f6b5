package network

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
	"github.com/weft-fabric/weft/model/unit"
)

// hostname is a name that DNS takes (RFC 1123).
var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// words checks what the intent says of itself: names, gateways, priorities.
func (m *maker) words() {
	for part := range strings.SplitSeq(m.in.Domain, ".") {
		if !hostname.MatchString(part) || len(m.in.Domain) > 253 {
			m.fail("domain", "%q is no domain name; write letters, digits and hyphens between dots, such as cluster.local", clip(m.in.Domain))
			break
		}
	}
	if last := m.in.Domain[strings.LastIndexByte(m.in.Domain, '.')+1:]; strings.Trim(last, "0123456789") == "" && len(last) > 0 {
		m.fail("domain", "%q ends in digits alone, which programs read as an address; write one such as cluster.local", clip(m.in.Domain))
	}
	for _, x := range m.nets() {
		if !x.net.Gateway.IsValid() && x.role == Frontend {
			x.net.Gateway = at(x.net.Prefix, 1)
		}
		if len(x.net.DNS) == 0 && x.role == Frontend {
			x.net.DNS = []netip.Addr{at(x.net.Prefix, nameServer(x.net.Prefix))}
		}
		m.inside(x.role, "gateway", x.net.Gateway, x.net)
		for _, d := range x.net.DNS {
			if x.net.Prefix.Contains(d) {
				m.inside(x.role, "dns", d, x.net)
			}
			for _, y := range m.nets() {
				if y.role != x.role && y.net.Prefix.Contains(d) && (y.role == Backend || y.role == Storage) {
					m.fail(x.role.String()+".dns", "%s is in %s of %s, where hosts have their own addresses; name a server on the front end or outside", d, y.net.Prefix, y.role)
				}
			}
		}
		if x.role == Backend && x.net.Gateway.IsValid() {
			m.fail("backend.gateway", "%s; a host has one default route, on the front end; rails have a route each in a table of their own", x.net.Gateway)
		}
		if x.role == Storage && x.net.Gateway.IsValid() {
			m.fail("storage.gateway", "%s; a host has one default route, on the front end", x.net.Gateway)
		}
		if x.net.VLAN == 4094 {
			m.fail(x.role.String()+".vlan", "4094 is kept for the link between the two switches of a pair; take another")
		}
	}
	vlans := map[int]Role{}
	for _, x := range m.nets() {
		if other, twice := vlans[x.net.VLAN]; twice {
			m.fail(x.role.String()+".vlan", "%d is also the VLAN of %s; each network has its own", x.net.VLAN, other)
		}
		vlans[x.net.VLAN] = x.role
		if x.net.VLAN == 1 {
			m.warn("%s.vlan 1 is the VLAN that switch ports are in unless told otherwise: whatever is plugged in is in this network", x.role)
		}
	}
	m.nics()
	m.roce()
	if guarded := m.in.Routing.TTLSecurity || m.in.Routing.Password != ""; guarded && (m.in.Render.Leaf == "nvue" || m.in.Render.Spine == "nvue") {
		m.fail("routing", "ttl-security and password-file are written for frr and sonic, not for nvue; leave them out, or write render: {leaf: frr, spine: frr}")
	}
	if m.in.Routing.Multiplier > 0 && m.in.Routing.BFD.Milliseconds() < 100 {
		m.warn("routing.bfd %s x%d: on busy switches intervals under 100 ms report neighbours dead that are not", m.in.Routing.BFD, m.in.Routing.Multiplier)
	}
}

// nameServer is where the name server of a network stands: .53 where hosts begin behind it.
func nameServer(p netip.Prefix) int {
	if p.Bits() >= 24 {
		return 2
	}
	return 53
}

type roleNet struct {
	role Role
	net  *cluster.Net
}

// nets lists the four networks.
func (m *maker) nets() []roleNet {
	return []roleNet{{Frontend, &m.in.Frontend}, {Backend, &m.in.Backend}, {Storage, &m.in.Storage}, {Management, &m.in.Management}}
}

// inside checks that a gateway or name server is an address of its network that no host has.
func (m *maker) inside(role Role, what string, a netip.Addr, net *cluster.Net) {
	if !a.IsValid() {
		return
	}
	field := role.String() + "." + what
	offset := -1
	if net.Prefix.Contains(a) {
		offset = between(net.Prefix.Addr(), a)
	}
	switch {
	case offset < 0:
		m.fail(field, "%s is outside %s", a, net.Prefix)
	case offset == 0 || offset == size(net.Prefix)-1:
		m.fail(field, "%s is the network's own or its broadcast address", a)
	case net.Prefix.Bits() >= 24 && offset >= firstOfBlock,
		net.Prefix.Bits() < 24 && offset >= 256+firstOfBlock && offset%256 >= firstOfBlock && offset%256 < firstOfBlock+perBlock:
		m.fail(field, "%s is an address that hosts get; take one of %s to %s", a, at(net.Prefix, 1), at(net.Prefix, firstOfBlock-1))
	}
}

// between is how far b is behind a.
func between(a, b netip.Addr) int {
	x, y := a.As4(), b.As4()
	n := 0
	for i := range x {
		n = n<<8 + int(y[i]) - int(x[i])
	}
	return n
}

// roce checks priorities and thresholds.
func (m *maker) roce() {
	r := &m.in.RoCE
	if r.CNPDSCP == r.DSCP {
		other := 48
		if r.DSCP == other {
			other = 46
		}
		m.fail("roce.cnp-dscp", "%d is the DSCP of the data, too; take another such as %d", r.CNPDSCP, other)
	}
	if r.DSCP == 0 {
		m.fail("roce.dscp", "0 is what all other traffic has; take one of its own such as 26")
	}
	if r.ECNMin >= r.ECNMax {
		m.fail("roce.ecn.min", "%v is not below max %v; marks begin at min and reach their probability at max", r.ECNMin, r.ECNMax)
	}
	if r.ECNMin < 1000 {
		m.fail("roce.ecn.min", "%v is less than one packet; write a size such as 150KB", r.ECNMin)
	}
	if r.ECNMax > switchBuffer {
		m.fail("roce.ecn.max", "%v; switches buffer %v in all, so a queue never gets there: write a size such as 1500KB", r.ECNMax, unit.Bytes(switchBuffer))
	}
	if r.Mode != "lossless" {
		return
	}
	if r.Priority == 0 {
		m.fail("roce.priority", "0 is the priority of all other traffic, which would pause the data with it; take another such as 3")
	}
	if r.Priority == 7 {
		m.warn("roce.priority 7 is where many switches put their own control traffic, BGP and BFD among it; 3 is usual")
	}
	if r.DSCP>>3 != r.Priority {
		m.warn("roce.dscp %d is not in priority %d by the NICs' own map (dscp/8 = %d); the files set the map on NICs and switches", r.DSCP, r.Priority, r.DSCP>>3)
	}
	if r.CNPPriority == r.Priority {
		m.fail("roce.cnp-priority", "%d is the lossless priority; notifications of congestion must not wait behind the congestion, take another such as %d", r.CNPPriority, map[bool]int{true: 5, false: 6}[r.Priority == 6])
	}
}

// switchBuffer is the packet buffer of a large switch today (Spectrum-4: 160 MB);
// a threshold above it is a typing error.
const switchBuffer = 160e6

// nics checks that the NICs of the front end and of storage are there, are no
// rails, and are in one network only.
func (m *maker) nics() {
	compute, free := map[string]bool{}, map[string]bool{}
	m.g.Each(topo.NIC, func(_ topo.NodeID, n *topo.Node) {
		if n.Fabric >= 0 && !m.g.Fabrics[n.Fabric].Service {
			compute[n.Name] = true
		} else {
			free[n.Name] = true
		}
	})
	known := "there is none but for the rails"
	if len(free) > 0 {
		known = "known: " + strings.Join(slices.SortedFunc(maps.Keys(free), topo.Natural), ", ")
	}
	for _, x := range []roleNet{{Frontend, &m.in.Frontend}, {Storage, &m.in.Storage}} {
		field := x.role.String() + ".nics"
		if !m.in.Given(field) {
			continue
		}
		for _, name := range x.net.NICs {
			switch {
			case compute[name]:
				m.fail(field, "%q is a NIC of the compute fabric, which has a rail of its own; %s", clip(name), known)
			case !free[name]:
				m.fail(field, "no host has a NIC %q; %s", clip(name), known)
			case x.role == Storage && slices.Contains(m.in.Frontend.NICs, name):
				m.fail(field, "%q is under frontend, too; a NIC is in one network", clip(name))
			case x.role == Frontend && slices.Contains(m.in.Storage.NICs, name) && !m.in.Given("storage.nics"):
				m.fail(field, "%q is by default in storage, and a NIC is in one network; write storage: {nics: ...}, too", clip(name))
			}
		}
	}
}

// Prefixes that something on a host usually takes.
var (
	never = []struct {
		prefix string
		why    string
	}{
		{"127.0.0.0/8", "the loopback"}, {"169.254.0.0/16", "link-local addresses"}, {"224.0.0.0/4", "multicast"}, {"0.0.0.0/8", "no network"}, {"240.0.0.0/4", "reserved"},
	}
	usual = []struct {
		prefix string
		why    string
	}{
		{"172.17.0.0/16", "Docker's default bridge"}, {"192.168.122.0/24", "libvirt's default network"}, {"10.96.0.0/12", "Kubernetes' default services"}, {"10.244.0.0/16", "Flannel's default pods"},
		{"10.42.0.0/15", "k3s' default pods and services"}, {"10.128.0.0/14", "OpenShift's default pods"}, {"172.30.0.0/16", "OpenShift's default services"},
	}
)

// disjoint checks that no two networks share an address.
func (m *maker) disjoint() {
	type named struct {
		field, name string
		prefix      netip.Prefix
	}
	var all []named
	for _, x := range m.nets() {
		all = append(all, named{x.role.String() + ".prefix", x.role.String(), x.net.Prefix})
	}
	all = append(all, named{"loopbacks", "loopbacks", m.in.Loopbacks})
	for _, r := range m.in.Reserved {
		all = append(all, named{"reserved", "reserved", r})
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if a.name == "reserved" && b.name == "reserved" || !a.prefix.Overlaps(b.prefix) {
				continue
			}
			m.fail(a.field, "%s overlaps %s of %s; give one of them another prefix", a.prefix, b.prefix, b.name)
		}
		if a.name == "reserved" {
			continue
		}
		for _, n := range never {
			if p := netip.MustParsePrefix(n.prefix); p.Overlaps(a.prefix) {
				m.fail(a.field, "%s overlaps %s, %s", a.prefix, p, n.why)
			}
		}
		if private := a.prefix.Addr().IsPrivate() || netip.MustParsePrefix("100.64.0.0/10").Contains(a.prefix.Addr()); !private {
			m.warn("%s %s is public: hosts do not reach its owner in the Internet, unless it is yours", a.name, a.prefix)
		}
		for _, n := range usual {
			p := netip.MustParsePrefix(n.prefix)
			if p.Overlaps(a.prefix) && !slices.ContainsFunc(m.in.Reserved, func(r netip.Prefix) bool { return r.Overlaps(p) }) {
				m.warn("%s %s overlaps %s, %s; change one if hosts run it", a.name, a.prefix, p, n.why)
			}
		}
	}
	if calico := netip.MustParsePrefix("192.168.0.0/16"); slices.Contains(m.in.Render.Schedules, "kubernetes") && len(m.in.Reserved) == 0 {
		for _, x := range m.nets() {
			if x.net.Prefix.Overlaps(calico) {
				m.fail(x.role.String()+".prefix", "%s is Calico's default pool of pod addresses; say under reserved what pods and services use, or take another prefix", x.net.Prefix)
			}
		}
	}
}

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
		m.fail("backend.table", "%d: %d rails would use tables %d to %d, and 253 to 255 are the kernel's; begin at %d or less, or at 256", first, n, first, last, 253-n)
	}
	if last > math.MaxInt32 {
		m.fail("backend.table", "%d: the last of %d rails would have table %d, and Linux tools read at most %d; begin at 101", first, n, last, math.MaxInt32)
	}
	if lastRule >= 32766 {
		m.fail("backend.rule", "%d: the last of %d rails would have priority %d, behind the main table's 32766; begin at %d or less", m.in.Backend.Rule, n, lastRule, 32765-10*(n-1))
	}
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
	if m.in.Backend.Bond == "lacp" {
		m.fail("backend.bond", "lacp; rails are separate networks, collectives spread over them")
	}
	for _, x := range m.nets() {
		if x.net.MTU > SwitchMTU-14 {
			m.fail(x.role.String()+".mtu", "%d; switch ports carry %d with the frame around it, so hosts at most %d", x.net.MTU, SwitchMTU, SwitchMTU-14)
		}
	}
}

// bridges refuses subnets of several hosts where no file makes the bridge that joins them.
func (m *maker) bridges() {
	switch {
	case m.in.Backend.Links == "rail":
		m.fail("backend.links", "rail; a subnet over several leaves needs bridges between them (VXLAN with EVPN), which is not written; write /31, or leaf with render: {leaf: sonic}")
	case m.in.Backend.Links == "leaf" && m.in.Render.Leaf == "frr":
		m.fail("backend.links", "leaf; FRR routes and makes no bridge for a leaf's hosts; write /31, or render: {leaf: sonic}")
	}
}

// routedStorage reports whether a storage NIC has an Ethernet cable: its links are routed then.
func (m *maker) routedStorage() bool {
	found := false
	m.g.Each(topo.NIC, func(id topo.NodeID, n *topo.Node) {
		if e := cables(m.g, id); !found && len(e) > 0 && slices.Contains(m.in.Storage.NICs, n.Name) {
			found = n.Fabric >= 0 && m.g.Fabrics[n.Fabric].Service && m.g.Class(e[0].Link).Kind != topo.InfiniBand
		}
	})
	return found
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
		if x.role == Storage && x.net.Bond == "none" && m.routedStorage() { // a /31 for each link
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
		m.exhausted("backend.prefix", "hosts", m.in.Backend.Prefix, room(m.in.Backend.Prefix), hosts, func(p netip.Prefix) bool { return room(p) >= hosts })
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
				m.warn("all %d leaves of fabric %s stand in rack %s: without its power no host has a network; spread them under floor: {place: ...}", n, m.g.Fabrics[f].Name, rack)
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
		m.exhausted("management.prefix", "switches", m.in.Management.Prefix, max(0, size(m.in.Management.Prefix)-2-hostOffset(m.in.Management.Prefix, max(0, hosts-1))), n, free)
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

// wrongName says that a host or switch must not be called what it is.
func (m *maker) wrongName(kind, name, format string, args ...any) {
	m.errs = append(m.errs, &cluster.Error{File: m.file, Line: m.in.DeviceLine(name), Field: kind, Msg: fmt.Sprintf(format, args...)})
}

// called checks the names of hosts and switches, which DNS does not tell apart
// by case, and in which n0-bmc is a name of n0.
func (m *maker) called() {
	byName := make(map[string]string, len(m.plan.Hosts)+len(m.plan.Switches))
	lineOf := func(name string) string {
		if at := m.in.DeviceLine(name); at > 0 {
			return fmt.Sprintf(" on line %d", at)
		}
		return ""
	}
	add := func(kind, name string) bool {
		switch {
		case !hostname.MatchString(name) && (kind == "hosts" || m.in.DeviceLine(name) > 0):
			m.wrongName(kind, name, "name %q; a name has letters, digits and hyphens, at most 63, and a letter or digit at both ends", clip(name))
			return false
		case strings.Trim(name, "0123456789") == "" || strings.EqualFold(name, "localhost"):
			m.wrongName(kind, name, "name %q; programs read it as an address of their own, take one such as n0", clip(name))
			return false
		case strings.EqualFold(name, "ns"):
			m.wrongName(kind, name, "name %q; the zone calls the name server so, take another", name)
			return false
		}
		low := strings.ToLower(name)
		if other, taken := byName[low]; taken {
			m.wrongName(kind, name, "%q and %q%s are one name to DNS; call one of them otherwise", clip(name), clip(other), lineOf(other))
			return false
		}
		byName[low] = name
		return true
	}
	for i := range m.plan.Hosts {
		h := &m.plan.Hosts[i]
		if !add("hosts", h.Name) {
			return
		}
		label := len(h.Name) + len("-bmc")
		for j := range h.Interfaces {
			label = max(label, len(h.Name)+1+len(h.Interfaces[j].Name))
		}
		if full := label + 1 + len(m.in.Domain); label > 63 || full > 253 {
			m.wrongName("hosts", h.Name, "the names of %q have up to %d bytes and with the domain %d; DNS takes 63 and 253: shorten the name or the domain", clip(h.Name), label, full)
			return
		}
	}
	for i := range m.plan.Switches {
		if !add("switches", m.plan.Switches[i].Name) {
			return
		}
	}
	names := make([]string, 0, len(byName))
	for i := range m.plan.Hosts {
		names = append(names, m.plan.Hosts[i].Name)
	}
	for i := range m.plan.Switches {
		names = append(names, m.plan.Switches[i].Name)
	}
	for _, name := range names {
		low := strings.ToLower(name)
		for at := strings.IndexByte(low, '-'); at >= 0; at = nextHyphen(low, at) {
			h := m.plan.Host(byName[low[:at]])
			if h == nil || !m.labelled(h, low) {
				continue
			}
			m.wrongName("hosts", name, "%q is in DNS also the name of a part of %q%s; call one of them otherwise", clip(name), clip(h.Name), lineOf(h.Name))
			return
		}
	}
}

// nextHyphen is where the next hyphen behind one stands; -1 if there is none.
func nextHyphen(s string, at int) int {
	next := strings.IndexByte(s[at+1:], '-')
	if next < 0 {
		return -1
	}
	return at + 1 + next
}

// labelled reports whether a part of a host has a name in DNS, given in small letters.
func (m *maker) labelled(h *Host, low string) bool {
	if low == strings.ToLower(h.Name)+"-bmc" {
		return true
	}
	front := h.First(Frontend)
	for j := range h.Interfaces {
		if x := &h.Interfaces[j]; x != front && x.Bond == "" && strings.ToLower(h.Label(x)) == low {
			return true
		}
	}
	return false
}

// names checks the names of a host's interfaces, which the kernel limits.
func (m *maker) names(h *Host) {
	for i, x := range h.Interfaces {
		if len(m.errs) > 0 {
			return // hosts of one kind have the same names
		}
		if len(x.Name) > 15 || strings.ContainsAny(x.Name, "/: \t") || x.Name == "lo" || x.Name == "all" || x.Name == "default" {
			m.wrongName("hosts", h.Name, "%s: interface name %q; Linux takes at most 15 bytes without slash, colon or space, and not lo, all or default: rename it under kinds", h.Name, clip(x.Name))
		}
		if strings.EqualFold(x.Name, "bmc") {
			m.wrongName("hosts", h.Name, "%s: interface name %q; %s-bmc is the BMC: rename it under kinds", h.Name, x.Name, h.Name)
		}
		for _, y := range h.Interfaces[:i] {
			if x.Name == y.Name || len(x.Name) == len(y.Name) && h.same(&x, &y) {
				m.wrongName("hosts", h.Name, "%s: interface name %q stands for a NIC of the %s and of the %s network: rename the NIC under kinds, or name others with nics", h.Name, clip(x.Name), y.Role, x.Role)
			}
		}
	}
}

// pins sets the addresses that somebody chose, if nobody else has them.
func (m *maker) pins() {
	if len(m.in.Pins) == 0 {
		return
	}
	owner := map[netip.Addr]string{}
	for i := range m.plan.Hosts {
		for _, x := range m.plan.Hosts[i].Interfaces {
			owner[x.Addr.Addr()] = m.plan.Hosts[i].Name
		}
		owner[m.plan.Hosts[i].BMC.Addr()] = m.plan.Hosts[i].Name
	}
	for i := range m.plan.Switches {
		owner[m.plan.Switches[i].Mgmt.Addr()] = "switch " + m.plan.Switches[i].Name
	}
	for _, pin := range m.in.Pins {
		field := "pin." + pin.Host + "." + pin.Net
		h := m.plan.Host(pin.Host)
		if h == nil {
			m.fail(field, "there is no host %q", clip(pin.Host))
			continue
		}
		role, err := ParseRole(pin.Net)
		if err != nil || !pin.Addr.IsValid() {
			continue
		}
		net := m.plan.Net(role)
		if !net.Prefix.Contains(pin.Addr) {
			m.fail(field, "%s is outside %s", pin.Addr, net.Prefix)
			continue
		}
		if end := between(net.Prefix.Addr(), pin.Addr); end == 0 || end == size(net.Prefix)-1 {
			m.fail(field, "%s is the network's own or its broadcast address; take one that no host has, such as %s", pin.Addr, at(net.Prefix, firstOfBlock-1))
			continue
		}
		if other := owner[pin.Addr]; other != "" && other != h.Name {
			m.fail(field, "%s belongs to %s; take one that no host has, such as %s", pin.Addr, other, at(net.Prefix, firstOfBlock-1))
			continue
		}
		if pin.Addr == net.Gateway || slices.Contains(net.DNS, pin.Addr) {
			m.fail(field, "%s is the gateway's or a name server's", pin.Addr)
			continue
		}
		owner[pin.Addr] = h.Name
		if role == Management {
			h.BMC = whole(pin.Addr, net.Prefix)
		} else if x := h.First(role); x != nil {
			if part := x.Addr.Masked(); !part.Contains(pin.Addr) {
				m.fail(field, "%s is outside %s, the part of %s %s", pin.Addr, part, h.Name, x.Name)
				continue
			}
			x.Addr = whole(pin.Addr, x.Addr)
		} else if slices.ContainsFunc(h.Interfaces, func(x Interface) bool { return x.Role == role && x.Net.IsValid() }) {
			m.fail(field, "%s; storage links are routed, and their addresses follow from NIC and host: leave it out", pin.Addr)
		} else {
			m.fail(field, "%s has no interface in %s", h.Name, role)
		}
	}
}

// bonds refuses bonds that cannot come up: LACP needs the same at the other end,
// on one switch or on two that act as one (MLAG, EVPN multihoming), and the files
// for switches have neither. Where the cluster file has no cables of the network,
// its switches are somebody else's to configure.
func (m *maker) bonds() {
	for _, x := range m.nets() {
		if x.net.Bond != "lacp" {
			continue
		}
		field := x.role.String() + ".bond"
		for i := range m.plan.Hosts {
			h := &m.plan.Hosts[i]
			peers, members := map[topo.NodeID]bool{}, 0
			var names []string
			for _, y := range h.Interfaces {
				if y.Bond == "" || y.Role != x.role {
					continue
				}
				members++
				if y.IB {
					m.fail(field, "lacp: %s %s is InfiniBand, which has no LACP; leave bond out", h.Name, y.Name)
					return
				}
				if y.Link != None {
					l := m.g.Links[y.Link]
					peer := l.A
					if peer == y.Node {
						peer = l.B
					}
					peers[peer] = true
					names = append(names, m.g.Nodes[peer].Name)
				}
			}
			if members == 1 {
				m.fail(field, "lacp: %s has one NIC there; a bond needs two", h.Name)
				return
			}
			if len(names) > 1 && len(peers) > 1 {
				m.fail(field, "lacp: the NICs of %s go to %s, which no MLAG and no Ethernet segment makes one; leave bond out: each NIC is then a routed link with an address of its own", h.Name, strings.Join(names, " and "))
				return
			}
			if len(names) > 1 {
				m.fail(field, "lacp: both NICs of %s go to %s, whose files make no port channel of them; leave bond out: each NIC is then a routed link with an address of its own", h.Name, names[0])
				return
			}
		}
	}
}

// unplugged says that storage NICs get addresses and nothing more where the file
// has no switches for them.
func (m *maker) unplugged() {
	for i := range m.plan.Hosts {
		for _, x := range m.plan.Hosts[i].Interfaces {
			if x.Role == Storage && x.Bond == "" && x.Link == None {
				m.warn("storage: %s of %s has no switch in the file, so nothing here joins storage NICs; declare the switches under fabrics (service: true) to have them planned", x.Name, m.plan.Hosts[i].Name)
				return
			}
		}
	}
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
				m.fail("frontend.nics", "%s of %s is plugged into %s, whose uplinks are routed: VLAN %d ends there, and no switch has the gateway %s; leave the switches of the front end out of fabrics, under services they are counted", x.Name, h.Name, sw.Name, x.VLAN, m.in.Frontend.Gateway)
				return
			}
		}
	}
}

// inventory puts what is known of real parts into the interfaces.
func (m *maker) inventory() {
	for _, d := range m.in.Inventory {
		bad := func(format string, args ...any) {
			m.errs = append(m.errs, &cluster.Error{File: m.in.InventoryFile, Line: d.Line, Msg: fmt.Sprintf(format, args...)})
		}
		h := m.plan.Host(d.Host)
		if h == nil {
			bad("there is no host %q in %s; correct the name or drop the line", clip(d.Host), m.file)
			continue
		}
		x := h.Interface(d.Part)
		if x == nil {
			if d.Part != "bmc" {
				bad("%s has no part %q with an address; it has %s and bmc", h.Name, clip(d.Part), interfaces(h))
			}
			continue
		}
		x.MAC, x.PCI, x.GUID = d.MAC, d.PCI, d.GUID
	}
}

// interfaces lists the interfaces of a host by name.
func interfaces(h *Host) string {
	var names []string
	for i := range h.Interfaces {
		names = append(names, h.Interfaces[i].Name)
	}
	return strings.Join(names, ", ")
}

// partitions checks the tenants of an InfiniBand fabric.
func (m *maker) partitions() {
	keys := map[int]string{}
	for _, p := range m.in.Partitions {
		field := "partitions." + p.Name
		if other, twice := keys[p.PKey]; twice {
			m.fail(field+".pkey", "0x%x is also the key of %s; the subnet manager would make one partition of both", p.PKey, other)
		}
		keys[p.PKey] = p.Name
		for _, name := range p.Hosts {
			h := m.plan.Host(name)
			if h == nil {
				m.fail(field+".hosts", "there is no host %q", clip(name))
				break
			}
			if !slices.ContainsFunc(h.Interfaces, func(x Interface) bool { return x.IB }) {
				m.fail(field+".hosts", "%s has no InfiniBand NIC; partitions are InfiniBand's, Ethernet has VLANs", name)
				break
			}
		}
	}
}

// slurm chooses the topology that the scheduler's files describe, so that
// slurm.conf and topology.conf cannot disagree, and checks its blocks.
func (m *maker) slurm() {
	in := &m.in.Slurm
	if in.Topology == "" {
		in.Topology = m.slurmDefault()
	}
	switch switches := m.computeSwitches(); {
	case in.Topology == "tree" && !switches:
		m.fail("slurm.topology", "tree; no switch joins the hosts: leave topology out, or write none")
	case in.Topology == "block" && len(m.plan.Hosts) > 0:
		m.blocks()
	}
}

// slurmDefault is blocks where NVLink joins all hosts and Slurm has them, else a
// tree where switches join hosts.
func (m *maker) slurmDefault() string {
	inside := 0
	for _, d := range format.NVLinkDomains(m.g) {
		inside += len(d)
	}
	switch {
	case inside > 0 && inside == len(m.g.Hosts) && m.in.Slurm.HasBlocks():
		return "block"
	case m.computeSwitches():
		return "tree"
	}
	return "none"
}

// computeSwitches reports whether switches of a compute fabric join hosts.
func (m *maker) computeSwitches() bool {
	return slices.ContainsFunc(m.plan.Switches, func(s Switch) bool {
		f := m.g.Nodes[s.Node].Fabric
		return f < 0 || !m.g.Fabrics[f].Service
	})
}

// Blocks lists the hosts of every block of Slurm's block topology: an NVLink
// domain each, or where NVLink joins no hosts the intent's number of them, or a pod.
func (p *Plan) Blocks() [][]topo.HostID {
	if domains := format.NVLinkDomains(p.Graph); len(domains) > 0 {
		return domains
	}
	index := map[int]int{}
	var out [][]topo.HostID
	for i := range p.Graph.Hosts {
		key := int(p.Graph.Hosts[i].Pod)
		if size := p.Intent.Slurm.Block; size > 0 {
			key = i / size
		}
		if _, known := index[key]; !known {
			index[key] = len(out)
			out = append(out, nil)
		}
		out[index[key]] = append(out[index[key]], topo.HostID(i))
	}
	return out
}

// blocks checks that no block is smaller than the base: before 25.05 Slurm gives
// jobs none of its hosts.
func (m *maker) blocks() {
	n, block := len(m.plan.Hosts), m.in.Slurm.Block
	least, most, inside := n, 0, 0
	for _, b := range m.plan.Blocks() {
		least, most, inside = min(least, len(b)), max(most, len(b)), inside+len(b)
	}
	domains := len(format.NVLinkDomains(m.g)) > 0
	switch {
	case inside < n:
		m.fail("slurm.topology", "block; %d of %d hosts are in no NVLink domain and so in no block: write topology: tree", n-inside, n)
	case domains && block > least:
		m.fail("slurm.block", "%d is more than the %d hosts of an NVLink domain, and a block is one domain; write %d or less", block, least, least)
	case block == 0 && least != most:
		what := "pods"
		if domains {
			what = "NVLink domains"
		}
		m.warn("slurm.topology block: %s have %d to %d hosts, and the smallest is the base: jobs see %d hosts of each; write block", what, least, most, least)
	case block > 0 && !domains && n%block != 0:
		m.fail("slurm.block", "%d does not divide %d hosts, and Slurm leaves the hosts of a smaller block idle; write %s", block, n, divisors(n, block))
	}
}

// divisors names the divisors of n next to a number that is none.
func divisors(n, near int) string {
	fix := ""
	for d := 1; d <= n; d++ {
		if n%d == 0 && d < near {
			fix = fmt.Sprintf("%d", d)
		} else if n%d == 0 {
			return fix + fmt.Sprintf(" or %d", d)
		}
	}
	return fix
}
