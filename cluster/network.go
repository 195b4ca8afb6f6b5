package cluster

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/unit"
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
	Slurm      Slurm
	Render     Render
	Flows      []FlowNet
	Inventory  []Device // what the inventory file says of parts, in its order

	lines map[string]int // "frontend.prefix" to its line
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
}

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
	Limited bool // members may talk to full members only
	Line    int
}

// Slurm says what the scheduler's files need besides the graph.
type Slurm struct {
	Topology string // "tree" or "block"
	Block    int    // hosts of the base block; 0: the pods of the graph
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

// Given reports whether the file itself has a field.
func (n *Network) Given(field string) bool { return n.lines[field] > 0 }

// Flows that users know, and the network each takes unless the file says otherwise.
var defaultFlows = []FlowNet{
	{"collective", "backend"}, {"pipeline", "backend"}, {"kv-cache", "backend"},
	{"data", "storage"}, {"checkpoint", "storage"},
	{"login", "frontend"}, {"api", "frontend"}, {"code", "frontend"}, {"metrics", "frontend"}, {"scheduler", "frontend"}, {"rendezvous", "frontend"},
	{"bmc", "management"}, {"switch-config", "management"},
}

// DefaultNetwork is the plan of a file that says nothing: four networks, as most
// guides number them, and RoCE lossless in priority 3.
func DefaultNetwork() Network {
	p := netip.MustParsePrefix
	return Network{
		Domain:     "cluster.local",
		Frontend:   Net{Prefix: p("10.0.0.0/16"), NICs: []string{"svc0"}, VLAN: 10, MTU: 1500, Bond: "none"},
		Backend:    Net{Prefix: p("192.168.0.0/16"), Links: "/31", VLAN: 20, MTU: 9000, Bond: "none", Table: 101, Rule: 1010},
		Storage:    Net{Prefix: p("10.1.0.0/16"), NICs: []string{"stor0", "stor1"}, VLAN: 40, MTU: 9000, Bond: "none"},
		Management: Net{Prefix: p("172.16.0.0/16"), VLAN: 30, MTU: 1500, Bond: "none"},
		Loopbacks:  p("10.255.0.0/16"),
		Routing:    Routing{Protocol: "bgp-unnumbered", ASN: 4200000000, BFD: 300 * time.Millisecond, Multiplier: 3},
		RoCE: RoCE{Mode: "lossless", DSCP: 26, Priority: 3, CNPDSCP: 48, CNPPriority: 6,
			ECNMin: 150e3, ECNMax: 1500e3, Probability: 100},
		Slurm:  Slurm{Topology: "tree"},
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
		if s := q.get("slurm"); s != nil {
			r := p.fields("network.slurm", s)
			out.Slurm.Topology = r.oneOf("topology", "tree", "block")
			out.Slurm.Block = r.integer("block", 1, 1<<16)
			r.done()
		}
		p.render(q.get("render"), &out.Render)
		p.flows(q.get("flows"), &out)
		q.done()
	}
	if inventory != nil {
		out.Inventory = p.inventory(f, inventory)
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
		items := d.list
		if d.kind == scalar {
			items = []*node{d}
		}
		for _, item := range items {
			into.DNS = append(into.DNS, p.addr(f, "dns", item))
		}
	}
	if f.has("vlan") {
		into.VLAN = f.integer("vlan", 1, 4094)
	}
	if f.has("mtu") {
		into.MTU = f.integer("mtu", 1280, 9216)
	}
	if f.has("nics") {
		into.NICs = f.names("nics")
	}
	if f.has("bond") {
		into.Bond = f.oneOf("bond", "none", "lacp")
	}
	if name == "backend" {
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
	f.done()
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
	items := n.list
	if n.kind == scalar {
		items = []*node{n}
	}
	var out []netip.Prefix
	for _, item := range items {
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
				p.fail(s.line, q.at(clip(s.key)), "unknown network; pins are for frontend, storage and management, backend addresses follow from rail and host")
				continue
			}
			out = append(out, Pin{Host: e.key, Net: s.key, Addr: p.addr(q, s.key, s.value), Line: s.line})
		}
	}
	return out
}

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
			f.fail("asn", "%q; it must be the first private number to use, 4200000000 to 4294967294 (or 64512 to 65534, which are 1,023)", clip(f.text("asn")))
		} else {
			r.ASN = uint32(v)
		}
	}
	if f.has("bfd") {
		text := f.text("bfd")
		r.BFD, r.Multiplier = 0, 0
		if text != "off" && text != "false" {
			every, times, ok := strings.Cut(text, "x")
			d, err := time.ParseDuration(strings.TrimSpace(every))
			m, err2 := strconv.Atoi(strings.TrimSpace(times))
			if !ok || err != nil || err2 != nil || d < 10*time.Millisecond || d > time.Minute || m < 2 || m > 255 {
				f.fail("bfd", "%q; it must be an interval of 10ms to 1m and how many may be lost (2 to 255), such as 300ms x3, or off", clip(text))
			} else {
				r.BFD, r.Multiplier = d, m
			}
		}
	}
	f.done()
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
		hosts := q.names("hosts")
		if len(hosts) == 0 {
			q.fail("hosts", "missing; write the hosts of the partition, such as \"n[0-3]\"")
		}
		out = append(out, Partition{Name: e.key, PKey: int(key), Hosts: hosts, Limited: q.bool("limited"), Line: e.line})
		q.done()
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
		items := s.list
		if s.kind == scalar {
			items = []*node{s}
		}
		for _, item := range items {
			if !slices.Contains(Schedulers, item.text) {
				p.fail(item.line, f.at("scheduler"), "%s; %s", item.show(), suggest(item.text, Schedulers))
				continue
			}
			r.Schedules = append(r.Schedules, item.text)
		}
	}
	f.done()
}

// flows reads which network a kind of flow takes; new kinds may be named.
func (p *parse) flows(n *node, out *Network) {
	if n == nil {
		return
	}
	f := p.fields("network.flows", n)
	known := []string{"frontend", "backend", "storage", "management"}
	for _, e := range f.n.keys {
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

// inventory reads the file of real parts: CSV with a head line naming its columns.
func (p *parse) inventory(f *fields, n *node) []Device {
	const columns = "host, part, mac, pci, guid, serial"
	if p.open == nil {
		p.fail(n.line, "inventory", "%s cannot be read here; leave inventory out", n.show())
		return nil
	}
	data, err := p.open(f.text("inventory"))
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
		cells := strings.Split(text, ",")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if head == nil {
			head = cells
			for _, c := range head {
				if !slices.Contains(strings.Split(columns, ", "), c) {
					bad(number, "column %q; known: %s", clip(c), columns)
					return nil
				}
			}
			if !slices.Contains(head, "host") || !slices.Contains(head, "part") {
				bad(number, "columns host and part are needed; known: %s", columns)
				return nil
			}
			continue
		}
		if len(cells) != len(head) {
			bad(number, "%d values under %d columns", len(cells), len(head))
			continue
		}
		d := Device{Line: number}
		for i, c := range head {
			*map[string]*string{"host": &d.Host, "part": &d.Part, "mac": &d.MAC, "pci": &d.PCI, "guid": &d.GUID, "serial": &d.Serial}[c] = cells[i]
		}
		if d.MAC != "" && !isMAC(d.MAC) {
			bad(number, "mac %q; it must be six bytes such as b8:3f:d2:00:00:01", clip(d.MAC))
			continue
		}
		d.MAC = strings.ToLower(d.MAC)
		if d.MAC != "" {
			if other, twice := seen[d.MAC]; twice {
				bad(number, "mac %s is already on line %d", d.MAC, other)
				continue
			}
			seen[d.MAC] = number
		}
		if d.GUID != "" {
			d.GUID = strings.ToLower(strings.ReplaceAll(d.GUID, ":", ""))
			if !strings.HasPrefix(d.GUID, "0x") {
				d.GUID = "0x" + d.GUID
			}
			if _, err := strconv.ParseUint(d.GUID, 0, 64); err != nil || len(d.GUID) != 18 {
				bad(number, "guid %q; it must be 16 hexadecimal digits such as 0x946dae0300abcdef", clip(d.GUID))
				continue
			}
		}
		out = append(out, d)
	}
	return out
}

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
