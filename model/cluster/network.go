package cluster

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/model/unit"
)

// Network is the section network: what the owner wants of addresses, routing and
// configuration files. Package network makes a plan of it. Every field has a
// default, so a file without the section has a plan, too.
type Network struct {
	Domain     string
	Frontend   Net // users, code, the API, the default route
	Backend    Net // collectives, one prefix a rail
	Storage    Net // data and checkpoints
	Management Net // BMCs and the management ports of switches
	Loopbacks  netip.Prefix
	Reserved   []netip.Prefix // pods, services, VPN: taken by others
	Pins       []Pin
	Routing    Routing
	RoCE       RoCE
	Partitions []Partition
	Tenants    []Tenant
	Slurm      Slurm
	Render     Render
	Flows      []FlowNet
	Inventory  []Device // what the inventory file says of parts, in its order

	InventoryFile string

	lines   map[string]int // "frontend.prefix" to its line
	devices map[string]int // a host or a switch to the line that names it
}

// Net is one of the four networks.
type Net struct {
	Prefix  netip.Prefix
	NICs    []string // parts of every host, "svc0"; none: an interface of this network's name outside the graph
	Gateway netip.Addr
	DNS     []netip.Addr
	VLAN    int
	MTU     int
	Links   string // backend: "/31" a subnet a link, "leaf" one a leaf, "rail" one a rail
	Bond    string // "none" or "lacp"
	Table   int    // backend: the routing table of rail 0
	Rule    int    // backend: the rule priority of rail 0
}

// Pin is an address that somebody chose by hand.
type Pin struct {
	Host, Net string
	Addr      netip.Addr
	Line      int
}

// Routing says how switches of an Ethernet fabric learn routes.
type Routing struct {
	Protocol   string // "bgp-unnumbered"
	ASN        uint32 // the first of the private ones used
	BFD        time.Duration
	Multiplier int // lost BFD packets until a path counts as dead; 0: no BFD

	TTLSecurity bool   // sessions take packets from the other end of their cable alone (RFC 5082)
	Password    Secret // of all sessions (RFC 2385); read from a file of its own
}

// Secret is a text that is never printed. Files that hold it are not for everyone to read.
type Secret string

func (Secret) String() string { return "(secret)" }

// GoString keeps %#v from printing it.
func (Secret) GoString() string { return "(secret)" }

// MarshalText keeps JSON from printing it.
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

// RoCE says how RDMA over Ethernet is kept lossless, or that it is not.
type RoCE struct {
	Mode                 string // "lossless" or "lossy"
	DSCP, Priority       int    // of the data
	CNPDSCP, CNPPriority int    // of congestion notifications
	ECNMin, ECNMax       unit.Bytes
	Probability          int // percent of marks at ECNMax
}

// Partition is a tenant of an InfiniBand fabric.
type Partition struct {
	Name    string
	PKey    int
	Hosts   []string
	Limited []string // those of Hosts that may talk to full members only
	Line    int
}

// Slurm says what the scheduler's files need besides the graph.
type Slurm struct {
	// Topology is "tree", "block" or "none", and empty where the file leaves the
	// choice to the plan: blocks where NVLink joins hosts, a tree where switches do.
	Topology string
	Block    int    // hosts of the base block; 0: those of an NVLink domain or a pod
	Version  string // the oldest Slurm that reads the files, such as "22.05"; empty: BlockVersion or later
}

// BlockVersion is the first Slurm whose blocks have sizes (BlockSizes, --segment).
const BlockVersion = "24.05"

// HasBlocks reports whether the Slurm that reads the files has the block plug-in.
func (s *Slurm) HasBlocks() bool { return s.Version == "" || s.Version >= BlockVersion }

var slurmVersion = regexp.MustCompile(`^[0-9][0-9]\.[0-9][0-9]$`)

// slurm reads what the scheduler's files need.
func (p *parse) slurm(n *node, into *Slurm) {
	if n == nil {
		return
	}
	f := p.fields("network.slurm", n)
	if f.has("topology") {
		into.Topology = f.oneOf("topology", "tree", "block", "none")
	}
	if f.has("block") {
		into.Block = f.integer("block", 1, 1<<16)
	}
	if f.has("version") {
		if into.Version = f.text("version"); !slurmVersion.MatchString(into.Version) {
			f.fail("version", "%q; write the two numbers of a release, such as \"22.05\"", clip(into.Version))
		}
	}
	switch {
	case into.Topology == "block" && !into.HasBlocks():
		f.fail("topology", "block with version %s; blocks with sizes came with Slurm %s: write topology: tree, or leave it out",
			into.Version, BlockVersion)
	case f.has("block") && into.Topology != "block":
		f.fail("block", "%d with topology: %s, which has no blocks; write topology: block, or leave block out",
			into.Block, cmp.Or(into.Topology, "tree"))
	}
	f.done()
}

// Render names the dialect of each file.
type Render struct {
	Host      string // netplan, networkd, networkmanager
	Leaf      string // frr, sonic, nvue
	Spine     string
	Schedules []string // slurm, kubernetes
}

// FlowNet says which network a kind of flow takes.
type FlowNet struct{ Flow, Net string }

// Device is a line of the inventory: what only the real part can tell.
type Device struct {
	Host, Part, MAC, PCI, GUID, Serial string
	Line                               int
}

// Line is where a field of the section stands, 0 if the file does not have it.
func (n *Network) Line(field string) int {
	for {
		if at, ok := n.lines[field]; ok {
			return at
		}
		cut := strings.LastIndexByte(field, '.')
		if cut < 0 {
			return n.lines[""]
		}
		field = field[:cut]
	}
}

// DeviceLine is where a host or a switch is named, 0 if the file does not name it.
func (n *Network) DeviceLine(name string) int { return n.devices[name] }

// Given reports whether the file itself has a field.
func (n *Network) Given(field string) bool { return n.lines[field] > 0 }

// Flows that users know, and the network each takes unless the file says otherwise.
var defaultFlows = []FlowNet{
	{"collective", "backend"}, {"pipeline", "backend"}, {"kv-cache", "backend"},
	{"data", "storage"}, {"checkpoint", "storage"},
	{"login", "frontend"}, {"api", "frontend"}, {"code", "frontend"}, {"metrics", "frontend"}, {"scheduler", "frontend"},
	{"rendezvous", "frontend"},
	{"bmc", "management"}, {"switch-config", "management"},
}

// WidestBackend is what the default prefix of the backend grows to where its rails do not
// hold all hosts: a part of 10.0.0.0/8 that Kubernetes, its usual networks, Docker and
// libvirt leave alone.
var WidestBackend = netip.MustParsePrefix("10.160.0.0/11")

// DefaultNetwork is the plan of a file that says nothing: four networks, as most
// guides number them, and RoCE lossless in priority 3.
func DefaultNetwork() Network {
	p := netip.MustParsePrefix
	return Network{
		Domain:     "cluster.local",
		Frontend:   Net{Prefix: p("10.0.0.0/16"), NICs: []string{"svc0"}, VLAN: 10, MTU: 1500, Bond: "none"},
		Backend:    Net{Prefix: p("10.160.0.0/16"), Links: "/31", VLAN: 20, MTU: 9000, Bond: "none", Table: 101, Rule: 1010},
		Storage:    Net{Prefix: p("10.1.0.0/16"), NICs: []string{"stor0", "stor1"}, VLAN: 40, MTU: 9000, Bond: "none"},
		Management: Net{Prefix: p("172.16.0.0/16"), VLAN: 30, MTU: 1500, Bond: "none"},
		Loopbacks:  p("10.255.0.0/16"),
		Routing:    Routing{Protocol: "bgp-unnumbered", ASN: 4200000000, BFD: 300 * time.Millisecond, Multiplier: 3},
		RoCE: RoCE{Mode: "lossless", DSCP: 26, Priority: 3, CNPDSCP: 48, CNPPriority: 6,
			ECNMin: 150e3, ECNMax: 1500e3, Probability: 100},
		Render: Render{Host: "netplan", Leaf: "frr", Spine: "frr", Schedules: []string{"slurm"}},
		Flows:  slices.Clone(defaultFlows),
		lines:  map[string]int{},
	}
}

// HostDialects, SwitchDialects and Schedulers are the words of render.
var (
	HostDialects   = []string{"netplan", "networkd", "networkmanager"}
	SwitchDialects = []string{"frr", "sonic", "nvue"}
	Schedulers     = []string{"slurm", "kubernetes"}
)

// network reads the section network, and the inventory beside it.
func (p *parse) network(f *fields) Network {
	out := DefaultNetwork()
	inventory := f.get("inventory")
	if n := f.get("network"); n != nil {
		out.lines[""] = n.line
		q := p.fields("network", n)
		out.note("", q.n)
		if q.has("domain") {
			out.Domain = strings.TrimSuffix(q.text("domain"), ".")
		}
		p.net(q, "frontend", &out.Frontend)
		p.net(q, "backend", &out.Backend)
		p.net(q, "storage", &out.Storage)
		p.net(q, "management", &out.Management)
		if q.has("loopbacks") {
			out.Loopbacks = p.prefix(q, "loopbacks", out.Loopbacks)
		}
		if r := q.get("reserved"); r != nil {
			out.Reserved = p.prefixes(q, "reserved", r)
		}
		out.Pins = p.pins(q.get("pin"))
		p.routing(q.get("routing"), &out.Routing)
		p.roce(q.get("roce"), &out.RoCE)
		out.Partitions = p.partitions(q.get("partitions"))
		out.Tenants = p.tenants(q.get("tenants"))
		p.slurm(q.get("slurm"), &out.Slurm)
		p.render(q.get("render"), &out.Render)
		p.flows(q.get("flows"), &out)
		q.done()
	}
	if inventory != nil {
		out.Inventory, out.InventoryFile = p.inventory(f, inventory), inventory.text
	}
	return out
}

// note keeps the lines of a mapping's fields, and of those in them.
func (n *Network) note(path string, m *node) {
	for _, e := range m.keys {
		n.lines[path+e.key] = e.line
		n.note(path+e.key+".", e.value)
	}
}

// net reads one of the four networks over its defaults.
func (p *parse) net(q *fields, name string, into *Net) {
	n := q.get(name)
	if n == nil {
		return
	}
	f := p.fields(q.at(name), n)
	if f.has("prefix") {
		into.Prefix = p.prefix(f, "prefix", into.Prefix)
	}
	if f.has("gateway") {
		into.Gateway = p.addr(f, "gateway", f.get("gateway"))
	}
	if d := f.get("dns"); d != nil {
		p.dns(f, name, d, into)
	}
	if f.has("vlan") {
		into.VLAN = f.integer("vlan", 1, 4094)
	}
	if f.has("mtu") {
		into.MTU = f.integer("mtu", 1280, 9216)
	}
	if f.has("nics") {
		f.netNICs(name, into)
	}
	if f.has("bond") && name == "management" {
		f.fail("bond", "%s; a BMC has one port: leave bond out", f.get("bond").show())
	} else if f.has("bond") {
		into.Bond = f.oneOf("bond", "none", "lacp")
	}
	if name == "backend" {
		f.backend(into)
	}
	f.done()
}

// netNICs reads which NICs a network has, where that is not settled elsewhere.
func (f *fields) netNICs(name string, into *Net) {
	into.NICs = f.names("nics")
	switch name {
	case "backend":
		f.fail("nics", "%s; rails are the NICs of the compute fabrics: write nics there, under fabric", f.get("nics").show())
	case "management":
		f.fail("nics", "%s; BMCs are no NICs of the host: leave nics out", f.get("nics").show())
	}
}

// backend reads what only rails have: how leaves number their links, and the tables and rules of hosts that route by source.
func (f *fields) backend(into *Net) {
	if f.has("links") {
		into.Links = f.oneOf("links", "/31", "leaf", "rail")
	}
	if f.has("table") {
		into.Table = f.integer("table", 1, math.MaxInt32)
	}
	if f.has("rule") {
		into.Rule = f.integer("rule", 1, 32765)
	}
}

// nameServer reports whether an address can be that of one other host.
func nameServer(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// dns reads the name servers of a network: one to three, as resolvers read no more.
func (p *parse) dns(f *fields, name string, n *node, into *Net) {
	if name == "backend" || name == "storage" {
		p.fail(n.line, f.at("dns"), "%s; a host has one list of name servers, write it under frontend", n.show())
		return
	}
	items := p.items(f, "dns", n, "addresses such as [10.0.0.53]")
	if n.kind == list && len(items) == 0 {
		p.fail(n.line, f.at("dns"), "an empty list; name one to three servers, or leave dns out")
	}
	if len(items) > 3 {
		p.fail(items[3].line, f.at("dns"), "%s is number 4; resolvers ask the first three only", items[3].show())
	}
	for _, item := range items {
		a := p.addr(f, "dns", item)
		switch {
		case !a.IsValid():
		case !nameServer(a):
			p.fail(item.line, f.at("dns"), "%s is no address of a server that hosts reach; write one such as 10.0.0.53", a)
		case slices.Contains(into.DNS, a):
			p.fail(item.line, f.at("dns"), "%s comes twice; write it once", a)
		default:
			into.DNS = append(into.DNS, a)
		}
	}
}

// items gives the entries of a list, or the one text that stands in its place.
func (p *parse) items(f *fields, name string, n *node, want string) []*node {
	switch n.kind {
	case list:
		return n.list
	case scalar:
		return []*node{n}
	}
	p.fail(n.line, f.at(name), "%s; it must be a list of %s", n.show(), want)
	return nil
}

func (p *parse) addr(f *fields, name string, n *node) netip.Addr {
	a, err := netip.ParseAddr(n.text)
	if n.kind != scalar || err != nil || !a.Is4() {
		p.fail(n.line, f.at(name), "%s; it must be an IPv4 address such as 10.0.0.1", n.show())
		return netip.Addr{}
	}
	return a
}

func (p *parse) prefix(f *fields, name string, def netip.Prefix) netip.Prefix {
	n := f.get(name)
	got, err := p.onePrefix(n)
	if err != "" {
		p.fail(n.line, f.at(name), "%s; %s", n.show(), err)
		return def
	}
	return got
}

func (p *parse) prefixes(f *fields, name string, n *node) []netip.Prefix {
	var out []netip.Prefix
	for _, item := range p.items(f, name, n, "prefixes such as [10.244.0.0/16]") {
		got, err := p.onePrefix(item)
		if err != "" {
			p.fail(item.line, f.at(name), "%s; %s", item.show(), err)
			continue
		}
		out = append(out, got)
	}
	return out
}

// onePrefix reads an IPv4 prefix, and says how a wrong one should look.
func (p *parse) onePrefix(n *node) (netip.Prefix, string) {
	got, err := netip.ParsePrefix(n.text)
	switch {
	case n.kind != scalar || err != nil || !got.Addr().Is4():
		return got, "it must be an IPv4 prefix such as 10.0.0.0/16"
	case got != got.Masked():
		return got, "the address has bits behind the prefix; write " + got.Masked().String()
	case got.Bits() < 8:
		return got, "at most a /8 is planned"
	}
	return got, ""
}

// pins reads addresses that hosts keep. Backend addresses follow from rail and host and cannot be pinned.
func (p *parse) pins(n *node) []Pin {
	if n == nil {
		return nil
	}
	var out []Pin
	f := p.fields("network.pin", n)
	for _, e := range f.n.keys {
		q := p.fields(f.at(clip(e.key)), e.value)
		for _, s := range q.n.keys {
			if !slices.Contains([]string{"frontend", "storage", "management"}, s.key) {
				p.fail(s.line, q.at(clip(s.key)),
					"unknown network; pins are for frontend, storage and management, backend addresses follow from rail and host")
				continue
			}
			out = append(out, Pin{Host: e.key, Net: s.key, Addr: p.addr(q, s.key, s.value), Line: s.line})
		}
	}
	return out
}

// holdTime is how long BGP waits for a silent neighbour in the files that are written.
const holdTime = 9 * time.Second

// routing reads how switches find routes. Absent keys keep what the preset or the defaults have.
func (p *parse) routing(n *node, r *Routing) {
	if n == nil {
		return
	}
	f := p.fields("network.routing", n)
	r.Protocol = f.oneOf("protocol", "bgp-unnumbered")
	if f.has("asn") {
		v, err := strconv.ParseUint(f.text("asn"), 10, 32)
		two, four := v >= 64512 && v <= 65534, v >= 4200000000 && v <= 4294967294
		if err != nil || !two && !four {
			f.fail("asn", "%q; it must be the first private number to use, 4200000000 to 4294967294 (or 64512 to 65534, which are 1,023)",
				clip(f.text("asn")))
		} else {
			r.ASN = uint32(v)
		}
	}
	if f.has("ttl-security") {
		r.TTLSecurity = f.bool("ttl-security")
	}
	if f.has("password-file") {
		r.Password = p.secret(f, "password-file")
	}
	if f.has("bfd") {
		text := f.text("bfd")
		r.BFD, r.Multiplier = 0, 0
		if text != "off" && text != "false" {
			every, times, ok := strings.Cut(text, "x")
			d, err := time.ParseDuration(strings.TrimSpace(every))
			m, err2 := strconv.Atoi(strings.TrimSpace(times))
			switch {
			case !ok || err != nil || err2 != nil || d < 10*time.Millisecond || d > time.Minute || m < 2 || m > 255:
				f.fail("bfd", "%q; it must be an interval of 10ms to 1m and how many may be lost (2 to 255), such as 300ms x3, or off", clip(text))
			case d%time.Millisecond != 0:
				f.fail("bfd", "%q; routers take whole milliseconds: write %s x%d", clip(text), d.Round(time.Millisecond), m)
			case d*time.Duration(m) > holdTime:
				f.fail("bfd", "%q finds a dead path after %s, and BGP's own timer does after %s; write a shorter one such as 300ms x3, or off",
					clip(text), d*time.Duration(m), holdTime)
			default:
				r.BFD, r.Multiplier = d, m
			}
		}
	}
	f.done()
}

// secret reads a password from a file: its only line.
func (p *parse) secret(f *fields, name string) Secret {
	file := f.text(name)
	if p.open == nil {
		f.fail(name, "%s cannot be read here; leave it out", clip(file))
		return ""
	}
	data, err := p.open(file)
	if err != nil {
		f.fail(name, "%v", err)
		return ""
	}
	text := strings.TrimSpace(string(data))
	if len(text) < 8 || len(text) > 80 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		f.fail(name, "%s: it must hold one password of 8 to 80 letters, digits and signs, without spaces", clip(file))
		return ""
	}
	return Secret(text)
}

func (p *parse) roce(n *node, r *RoCE) {
	if n == nil {
		return
	}
	f := p.fields("network.roce", n)
	r.Mode = f.oneOf("mode", "lossless", "lossy")
	for _, x := range []struct {
		name string
		into *int
		hi   int
	}{{"dscp", &r.DSCP, 63}, {"priority", &r.Priority, 7}, {"cnp-dscp", &r.CNPDSCP, 63}, {"cnp-priority", &r.CNPPriority, 7}} {
		if f.has(x.name) {
			*x.into = f.integer(x.name, 0, x.hi)
		}
	}
	if e := f.get("ecn"); e != nil {
		q := p.fields("network.roce.ecn", e)
		quantity(q, "min", &r.ECNMin, unit.ParseBytes)
		quantity(q, "max", &r.ECNMax, unit.ParseBytes)
		if q.has("probability") {
			r.Probability = q.integer("probability", 1, 100)
		}
		q.done()
	}
	f.done()
}

// partitions reads which hosts share an InfiniBand partition key.
func (p *parse) partitions(n *node) []Partition {
	if n == nil {
		return nil
	}
	var out []Partition
	f := p.fields("network.partitions", n)
	for _, e := range f.n.keys {
		q := p.fields(f.at(clip(e.key)), e.value)
		key, err := strconv.ParseInt(q.text("pkey"), 0, 32)
		if err != nil || key < 1 || key > 0x7ffe {
			q.fail("pkey", "%q; it must be a number from 0x1 to 0x7ffe, the top bit says full or limited", clip(q.text("pkey")))
		}
		p.checkPartition(f, e, out)
		hosts := q.names("hosts")
		if len(hosts) == 0 && len(p.errs) == 0 {
			q.fail("hosts", "missing; write the hosts of the partition, such as \"n[0-3]\"")
		}
		out = append(out, Partition{Name: e.key, PKey: int(key), Hosts: hosts, Limited: limited(q, hosts), Line: e.line})
		q.done()
	}
	return out
}

// checkPartition refuses names that OpenSM would cut short, take for its own partition or for another one of the file.
func (p *parse) checkPartition(f *fields, e entry, others []Partition) {
	if !partitionName.MatchString(e.key) {
		p.fail(e.line, f.at(clip(e.key)),
			"a partition's name has 1 to 63 letters, digits, hyphens, dots and underscores, since the subnet manager's file ends it at other signs")
	} else if strings.EqualFold(e.key, "default") {
		p.fail(e.line, f.at(e.key), "the partition 0x7fff has this name, and every port is in it; take another")
	}
	for _, o := range others {
		if strings.EqualFold(o.Name, e.key) {
			p.fail(e.line, f.at(clip(e.key)), "%q is on line %d and differs in case only; take another name", o.Name, o.Line)
		}
	}
}

// partitionName is a name that OpenSM's partitions.conf takes whole.
var partitionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// limited reads which hosts of a partition are limited members. Limited members
// do not hear one another, so some must be full.
func limited(q *fields, hosts []string) []string {
	n := q.get("limited")
	if n == nil || n.kind == scalar && n.text == "false" {
		return nil
	}
	if n.kind == scalar && n.text == "true" {
		q.fail("limited",
			"true; limited members do not hear one another, so none would hear any: name the hosts that are limited, such as \"n[2-3]\"")
		return nil
	}
	out := q.names("limited")
	for _, h := range out {
		if !slices.Contains(hosts, h) {
			q.fail("limited", "%q is not under hosts of the partition; write it there, too", clip(h))
			return nil
		}
	}
	if len(out) > 0 && len(out) == len(hosts) {
		q.fail("limited", "all %d hosts; limited members do not hear one another, so leave some full", len(out))
	}
	return out
}

func (p *parse) render(n *node, r *Render) {
	if n == nil {
		return
	}
	f := p.fields("network.render", n)
	r.Host = f.oneOf("host", HostDialects...)
	r.Leaf = f.oneOf("leaf", SwitchDialects...)
	r.Spine = f.oneOf("spine", SwitchDialects...)
	if s := f.get("scheduler"); s != nil {
		r.Schedules = nil
		for _, item := range p.items(f, "scheduler", s, strings.Join(Schedulers, ", ")) {
			if slices.Contains(r.Schedules, item.text) {
				p.fail(item.line, f.at("scheduler"), "%s comes twice; write it once", item.show())
				continue
			}
			if !slices.Contains(Schedulers, item.text) {
				p.fail(item.line, f.at("scheduler"), "%s; %s", item.show(), suggest(item.text, Schedulers))
				continue
			}
			r.Schedules = append(r.Schedules, item.text)
		}
	}
	f.done()
}

var flowName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

// flows reads which network a kind of flow takes; new kinds may be named.
func (p *parse) flows(n *node, out *Network) {
	if n == nil {
		return
	}
	f := p.fields("network.flows", n)
	known := []string{"frontend", "backend", "storage", "management"}
	for _, e := range f.n.keys {
		if !flowName.MatchString(e.key) {
			p.fail(e.line, f.at(clip(e.key)), "a flow's name has letters, digits and hyphens, such as checkpoint")
			continue
		}
		onBMC := e.key == "bmc" || e.key == "switch-config"
		if slices.Contains(known, e.value.text) && (e.value.text == "management") != onBMC {
			why := "hosts have no interface in management, BMCs and switches have; take another network"
			if onBMC {
				why = "BMCs and management ports of switches are in the management network only; leave it out"
			}
			p.fail(e.line, f.at(e.key), "%s; %s", e.value.show(), why)
			continue
		}
		if !slices.Contains(known, e.value.text) {
			p.fail(e.line, f.at(clip(e.key)), "%s; %s", e.value.show(), suggest(e.value.text, known))
			continue
		}
		i := slices.IndexFunc(out.Flows, func(x FlowNet) bool { return x.Flow == e.key })
		if i < 0 {
			out.Flows = append(out.Flows, FlowNet{Flow: e.key})
			i = len(out.Flows) - 1
		}
		out.Flows[i].Net = e.value.text
	}
}

func deviceOf(columns, cells []string, line int) Device {
	d := Device{Line: line}
	for i, c := range columns {
		*map[string]*string{"host": &d.Host, "part": &d.Part, "mac": &d.MAC, "pci": &d.PCI, "guid": &d.GUID, "serial": &d.Serial}[c] = cells[i]
	}
	return d
}

func (p *parse) openInventory(f *fields, n *node) ([]byte, error) {
	if p.open == nil {
		return nil, fmt.Errorf("%s cannot be read here; leave inventory out", n.show())
	}
	return p.open(f.text("inventory"))
}

// csvCells takes a line apart. Quotes have no meaning: no value that is read here has a comma.
func csvCells(line string) []string {
	cells := strings.Split(line, ",")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	return cells
}

// check says what is wrong with a part, or which line has what only one part can have; seen keeps these lines.
func (d *Device) check(seen map[string]int) string {
	if problem := d.tidy(); problem != "" {
		return problem
	}
	for _, x := range []struct{ what, value, key string }{{"mac", d.MAC, d.MAC}, {"guid", d.GUID, d.GUID},
		{"pci", d.PCI, d.Host + " " + d.PCI}, {"part", d.Part, d.Host + " " + d.Part}} {
		if x.value == "" {
			continue
		}
		if other, twice := seen[x.what+" "+x.key]; twice {
			return fmt.Sprintf("%s %s is already on line %d; every part has its own", x.what, clip(x.key), other)
		}
		seen[x.what+" "+x.key] = d.Line
	}
	return ""
}

// inventory reads the file of real parts: CSV with a head line naming its columns.
func (p *parse) inventory(f *fields, n *node) []Device {
	const columns = "host, part, mac, pci, guid, serial"
	data, err := p.openInventory(f, n)
	if err != nil {
		p.fail(n.line, "inventory", "%v", err)
		return nil
	}
	file := n.text
	bad := func(line int, format string, args ...any) {
		p.errs = append(p.errs, &Error{File: file, Line: line, Msg: fmt.Sprintf(format, args...)})
	}
	var head []string
	var out []Device
	seen := map[string]int{}
	number := 0
	for text := range strings.Lines(string(data)) {
		number++
		text = strings.TrimSpace(strings.TrimPrefix(text, "\ufeff"))
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		cells := csvCells(text)
		if head == nil {
			if problem := checkColumns(cells, columns); problem != "" {
				bad(number, "%s", problem)
				return nil
			}
			head = cells
			continue
		}
		if len(cells) != len(head) {
			bad(number, "%d values under %d columns", len(cells), len(head))
			continue
		}
		d := deviceOf(head, cells, number)
		if problem := d.check(seen); problem != "" {
			bad(number, "%s", problem)
			continue
		}
		out = append(out, d)
	}
	if head == nil {
		bad(1, "the file is empty; its first line names the columns: %s", columns)
	}
	return out
}

// checkColumns says what is wrong with the first line of an inventory.
func checkColumns(head []string, columns string) string {
	for i, c := range head {
		if slices.Contains(head[:i], c) {
			return fmt.Sprintf("column %q comes twice; keep one", clip(c))
		}
		if !slices.Contains(strings.Split(columns, ", "), c) {
			return fmt.Sprintf("column %q; known: %s", clip(c), columns)
		}
	}
	if !slices.Contains(head, "host") || !slices.Contains(head, "part") {
		return "columns host and part are needed; known: " + columns
	}
	return ""
}

// tidy writes addresses in one form, and says what is wrong with them.
func (d *Device) tidy() string {
	if d.Host == "" || d.Part == "" {
		return fmt.Sprintf("host %q, part %q; write both, such as n0,nic0", clip(d.Host), clip(d.Part))
	}
	if d.MAC != "" && !isMAC(d.MAC) {
		return fmt.Sprintf("mac %q; it must be six bytes such as b8:3f:d2:00:00:01", clip(d.MAC))
	}
	d.MAC = strings.ToLower(d.MAC)
	if d.MAC == "00:00:00:00:00:00" || d.MAC != "" && strings.ContainsRune("13579bdf", rune(d.MAC[1])) {
		return fmt.Sprintf("mac %s is nobody's or a group's; write what `ip link` says of the port", d.MAC)
	}
	d.PCI = strings.ToLower(d.PCI)
	if d.PCI != "" && !pciAddress.MatchString(d.PCI) {
		return fmt.Sprintf("pci %q; it must be an address such as 0000:1a:00.0", clip(d.PCI))
	}
	return d.tidyGUID()
}

// tidyGUID writes the GUID as 0x and 16 lower-case digits, and says what is wrong with one that cannot be.
func (d *Device) tidyGUID() string {
	if d.GUID == "" {
		return ""
	}
	d.GUID = strings.ToLower(strings.ReplaceAll(d.GUID, ":", ""))
	if !strings.HasPrefix(d.GUID, "0x") {
		d.GUID = "0x" + d.GUID
	}
	if _, err := strconv.ParseUint(d.GUID, 0, 64); err != nil || len(d.GUID) != 18 {
		return fmt.Sprintf("guid %q; it must be 16 hexadecimal digits such as 0x946dae0300abcdef", clip(d.GUID))
	}
	if d.GUID == "0x0000000000000000" {
		return fmt.Sprintf("guid %s is nobody's; write what `ibstat` says of the port", d.GUID)
	}
	return ""
}

var pciAddress = regexp.MustCompile(`^([0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// isMAC reports whether s is six bytes in hexadecimal with colons between.
func isMAC(s string) bool {
	if len(s) != 17 {
		return false
	}
	for i := range len(s) {
		c := s[i] | 0x20
		if i%3 == 2 {
			if s[i] != ':' {
				return false
			}
		} else if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
