package network

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// hostname is a name that DNS takes (RFC 1123).
var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// words checks what the intent says of itself: names, gateways, priorities.
func (m *maker) words() {
	m.domain()
	for _, x := range m.nets() {
		if !x.net.Gateway.IsValid() && x.role == Frontend {
			x.net.Gateway = at(x.net.Prefix, 1)
		}
		if len(x.net.DNS) == 0 && x.role == Frontend {
			x.net.DNS = []netip.Addr{at(x.net.Prefix, nameServer(x.net.Prefix))}
		}
		m.inside(x.role, "gateway", x.net.Gateway, x.net)
		for _, d := range x.net.DNS {
			m.resolver(x.role, x.net, d)
		}
		if x.role == Backend && x.net.Gateway.IsValid() {
			m.fail("backend.gateway", "%s; a host has one default route, on the front end; rails have a route each in a table of their own",
				x.net.Gateway)
		}
		if x.role == Storage && x.net.Gateway.IsValid() {
			m.fail("storage.gateway", "%s; a host has one default route, on the front end", x.net.Gateway)
		}
		if x.net.VLAN == 4094 {
			m.fail(x.role.String()+".vlan", "4094 is kept for the link between the two switches of a pair; take another")
		}
	}
	m.vlans()
	m.nics()
	m.roce()
	m.routing()
}

func (m *maker) domain() {
	for part := range strings.SplitSeq(m.in.Domain, ".") {
		if !hostname.MatchString(part) || len(m.in.Domain) > 253 {
			m.fail("domain", "%q is no domain name; write letters, digits and hyphens between dots, such as cluster.local", clip(m.in.Domain))
			break
		}
	}
	if last := m.in.Domain[strings.LastIndexByte(m.in.Domain, '.')+1:]; strings.Trim(last, "0123456789") == "" && len(last) > 0 {
		m.fail("domain", "%q ends in digits alone, which programs read as an address; write one such as cluster.local", clip(m.in.Domain))
	}
}

// resolver checks the address of a name server: it may lie in its own network or outside, but not where hosts of
// another network get theirs.
func (m *maker) resolver(role Role, net *cluster.Net, d netip.Addr) {
	if net.Prefix.Contains(d) {
		m.inside(role, "dns", d, net)
	}
	for _, y := range m.nets() {
		if y.role != role && y.net.Prefix.Contains(d) && (y.role == Backend || y.role == Storage) {
			m.fail(role.String()+".dns", "%s is in %s of %s, where hosts have their own addresses; name a server on the front end or outside",
				d, y.net.Prefix, y.role)
		}
	}
}

func (m *maker) vlans() {
	taken := map[int]Role{}
	for _, x := range m.nets() {
		if other, twice := taken[x.net.VLAN]; twice {
			m.fail(x.role.String()+".vlan", "%d is also the VLAN of %s; each network has its own", x.net.VLAN, other)
		}
		taken[x.net.VLAN] = x.role
		if x.net.VLAN == 1 {
			m.warn("%s.vlan 1 is the VLAN that switch ports are in unless told otherwise: whatever is plugged in is in this network", x.role)
		}
	}
}

func (m *maker) routing() {
	r := &m.in.Routing
	if guarded := r.TTLSecurity || r.Password != ""; guarded && (m.in.Render.Leaf == "nvue" || m.in.Render.Spine == "nvue") {
		m.fail("routing",
			"ttl-security and password-file are written for frr and sonic, not for nvue; leave them out, or write render: {leaf: frr, spine: frr}")
	}
	if r.Multiplier > 0 && r.BFD.Milliseconds() < 100 {
		m.warn("routing.bfd %s x%d: on busy switches intervals under 100 ms report neighbours dead that are not", r.BFD, r.Multiplier)
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

// forHosts says whether hosts get the address at an offset: the rest of a small network, and a part of each block of 256
// behind the first in a large one.
func forHosts(net netip.Prefix, offset int) bool {
	if net.Bits() >= 24 {
		return offset >= firstOfBlock
	}
	return offset >= 256+firstOfBlock && offset%256 >= firstOfBlock && offset%256 < firstOfBlock+perBlock
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
	case forHosts(net.Prefix, offset):
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
		m.fail("roce.ecn.max", "%v; switches buffer %v in all, so a queue never gets there: write a size such as 1500KB",
			r.ECNMax, unit.Bytes(switchBuffer))
	}
	if r.Mode == "lossless" {
		m.lossless(r)
	}
}

// lossless checks the priority that is never dropped.
func (m *maker) lossless(r *cluster.RoCE) {
	if r.Priority == 0 {
		m.fail("roce.priority", "0 is the priority of all other traffic, which would pause the data with it; take another such as 3")
	}
	if r.Priority == 7 {
		m.warn("roce.priority 7 is where many switches put their own control traffic, BGP and BFD among it; 3 is usual")
	}
	if r.DSCP>>3 != r.Priority {
		m.warn("roce.dscp %d is not in priority %d by the NICs' own map (dscp/8 = %d); the files set the map on NICs and switches",
			r.DSCP, r.Priority, r.DSCP>>3)
	}
	if r.CNPPriority == r.Priority {
		m.fail("roce.cnp-priority",
			"%d is the lossless priority; notifications of congestion must not wait behind the congestion, take another such as %d",
			r.CNPPriority, map[bool]int{true: 5, false: 6}[r.Priority == 6])
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
			default:
				m.inOneNetwork(x.role, field, name)
			}
		}
	}
}

// inOneNetwork checks that a NIC of one of the two networks is not in the other one as well.
func (m *maker) inOneNetwork(role Role, field, name string) {
	switch {
	case role == Storage && slices.Contains(m.in.Frontend.NICs, name):
		m.fail(field, "%q is under frontend, too; a NIC is in one network", clip(name))
	case role == Frontend && slices.Contains(m.in.Storage.NICs, name) && !m.in.Given("storage.nics"):
		m.fail(field, "storage uses %q by default, and a NIC belongs to one network; also write storage: {nics: ...}", clip(name))
	}
}

// Prefixes that something on a host usually takes.
var (
	never = []struct {
		prefix string
		why    string
	}{
		{"127.0.0.0/8", "the loopback"}, {"169.254.0.0/16", "link-local addresses"}, {"224.0.0.0/4", "multicast"}, {"0.0.0.0/8", "no network"},
		{"240.0.0.0/4", "reserved"},
	}
	usual = []struct {
		prefix string
		why    string
	}{
		{"172.17.0.0/16", "Docker's default bridge"}, {"192.168.122.0/24", "libvirt's default network"},
		{"10.96.0.0/12", "Kubernetes' default services"}, {"10.244.0.0/16", "Flannel's default pods"},
		{"10.42.0.0/15", "k3s' default pods and services"}, {"10.128.0.0/14", "OpenShift's default pods"},
		{"172.30.0.0/16", "OpenShift's default services"},
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
				m.fail(x.role.String()+".prefix",
					"%s is Calico's default pool of pod addresses; say under reserved what pods and services use, or take another prefix", x.net.Prefix)
			}
		}
	}
}
