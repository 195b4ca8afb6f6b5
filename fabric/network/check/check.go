// Package check holds what hosts and switches say of themselves against the
// network plan, and says what differs: which device, what was wanted, what was
// read, by which command, and what follows from what.
//
// It is pure: readings are texts that something else collected, over ssh, from a
// lab or by hand. A device that said nothing is unknown, never right.
package check

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/model/topo"
)

// Command is something to ask a device; its output is what Compare reads.
type Command struct {
	Name   string   // of the reading, and of its file: "ip-addr.json"
	Args   []string // what to run
	Switch bool     // asked of switches
	Host   bool     // asked of hosts
}

// Daemon is the routing daemon that answers the command: frr, bird, or nothing
// where it is not about routing. A switch runs one of them.
func (c Command) Daemon() string {
	switch c.Args[0] {
	case "vtysh":
		return "frr"
	case "birdc":
		return "bird"
	}
	return ""
}

// Commands lists what to ask. All of it only reads.
func Commands() []Command {
	return []Command{
		{"ip-addr.json", []string{"ip", "-j", "addr"}, true, true},
		{"ip-rule.json", []string{"ip", "-j", "rule"}, false, true},
		{"ip-route.json", []string{"ip", "-j", "route", "show", "table", "all"}, true, true},
		{"lldp.json", []string{"lldpcli", "-f", "json0", "show", "neighbors"}, true, true},
		{"sysctl.txt", []string{"grep", "-rsE", "^[0-9]", "/proc/sys/net/ipv4", "--include=ip_forward", "--include=fib_multipath_hash_policy",
			"--include=fib_multipath_hash_fields", "--include=ignore_routes_with_linkdown", "--include=arp_ignore", "--include=arp_announce",
			"--include=rp_filter"}, true, true},
		{filterFile, []string{"nft", "list", "table", "inet", "weft_networks"}, false, true},
		{"bgp.json", []string{"vtysh", "-d", "bgpd", "-c", "show bgp summary json"}, true, false},
		{"bgp-neighbors.json", []string{"vtysh", "-d", "bgpd", "-c", "show bgp neighbors json"}, true, false},
		{"bfd.json", []string{"vtysh", "-d", "bfdd", "-c", "show bfd peers json"}, true, false},
		{"rib.json", []string{"vtysh", "-d", "zebra", "-c", "show ip route json"}, true, false},
		{"running.txt", []string{"vtysh", "-c", "show running-config"}, true, false},
		{"config_db.json", []string{"cat", "/etc/sonic/config_db.json"}, true, false},
		{"bird-protocols.txt", []string{"birdc", "show", "protocols", "all"}, true, false},
		{"bird-bfd.txt", []string{"birdc", "show", "bfd", "sessions"}, true, false},
	}
}

// Readings holds the outputs of the commands, by device and command.
type Readings map[string]map[string][]byte

// State is how a thing relates to the plan.
type State string

// The states. What matches is not reported.
const (
	Differ  State = "differ"
	Missing State = "missing"
	Extra   State = "extra"
	Unknown State = "unknown"
)

// Kind is what a finding is about. What follows from what is decided by kinds.
type Kind string

// The kinds.
const (
	Device     Kind = "device"     // all of a host or switch
	Reading    Kind = "reading"    // the output of a command
	Daemon     Kind = "daemon"     // the routing daemons of a switch
	NoPort     Kind = "no-port"    // an interface that is not there
	PortOff    Kind = "port-off"   // an interface that is switched off
	NoCarrier  Kind = "no-carrier" // an interface without a carrier
	MTU        Kind = "mtu"        //
	Address    Kind = "address"    //
	Rule       Kind = "rule"       // of a host's routing
	Route      Kind = "route"      // of a host
	Setting    Kind = "setting"    // of a kernel
	ASNumber   Kind = "as-number"  //
	Session    Kind = "session"    // of BGP
	BFD        Kind = "bfd"        //
	Ways       Kind = "ways"       // fewer than planned between leaves
	Forwarding Kind = "forwarding" // the kernel does otherwise than the routing daemon says
	Crossed    Kind = "crossed"    // two cables in one another's ports
	Neighbour  Kind = "neighbour"  // another device at the end of a cable, or none
	Degraded   Kind = "degraded"   // a link that is slower or narrower than planned
	Timer      Kind = "timer"      // of BGP or BFD
	Filter     Kind = "filter"     // of a host: rules that differ, or that drop packets
	InVRF      Kind = "vrf"        // a switch port in the wrong VRF, or routes that a VRF lacks
	Running    Kind = "running"    // configuration that a daemon runs and that is not the emitted one
)

// order says which kinds are causes of others: what comes first is told first.
func (k Kind) order(s State) int {
	switch {
	case s == Unknown:
		return 0
	case k == Neighbour && s != Missing:
		return 3
	case k == InVRF && s == Missing:
		return 9
	}
	if n, ok := orders[k]; ok {
		return n
	}
	return 5
}

// orders are the kinds that come before or after most others.
var orders = map[Kind]int{Crossed: 1, Daemon: 1, NoPort: 2, PortOff: 2, NoCarrier: 4, Session: 6, BFD: 7, Neighbour: 8, Ways: 9, Running: 10}

// Finding is one thing that is not as planned.
type Finding struct {
	State        State    `json:"state"`
	Kind         Kind     `json:"kind"`
	Device       string   `json:"device"`
	Part         string   `json:"part"` // interface, port, rule, route
	What         string   `json:"what"`
	Want         string   `json:"want"`
	Got          string   `json:"got"`
	Command      string   `json:"command"`
	Intent       string   `json:"intent"` // the field of the cluster file that says so
	Line         int      `json:"line"`   // of that field; 0 where the file leaves it to the default
	Fix          string   `json:"fix"`
	Consequences []string `json:"consequences,omitempty"`

	links []string // cables that the finding concerns, for folding
	wide  bool     // a consequence of any lost link
}

func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s: %s, want %s (%s)", f.Device, f.Part, f.State, orNothing(f.Got), orNothing(f.Want), f.What)
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// comparer collects findings.
type comparer struct {
	p     *network.Plan
	said  map[string]*device
	found []Finding
	files map[string][]byte   // of switches, as emitted; nil until somebody asks
	rules map[string][]string // of hosts' filters, as emitted; nil until somebody asks

	near   [][]int32 // neighbours of each switch, one for each cable
	widths [][]int32 // cables on shortest paths, by target and source
}

// Compare says what differs between the plan and the readings.
func Compare(p *network.Plan, r Readings) []Finding {
	c := &comparer{p: p, said: map[string]*device{}}
	names := map[string]bool{}
	for i := range p.Hosts {
		names[p.Hosts[i].Name] = true
		c.read(p.Hosts[i].Name, r[p.Hosts[i].Name], false)
	}
	for i := range p.Switches {
		if p.Switches[i].IB {
			continue
		}
		names[p.Switches[i].Name] = true
		c.read(p.Switches[i].Name, r[p.Switches[i].Name], true)
	}
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if !names[name] && !c.service(name, r[name]) {
			c.add(Finding{State: Extra, Kind: Device, Device: name, Part: "device", What: "the plan has no such host or switch", Got: name,
				Fix: "add it to the cluster file, or leave its readings out"})
		}
	}
	for i := range p.Hosts {
		c.host(&p.Hosts[i])
	}
	for i := range p.Switches {
		if !p.Switches[i].IB {
			c.sw(&p.Switches[i])
		}
	}
	c.cables()
	c.extraRoutes()
	return c.folded()
}

func (c *comparer) add(f Finding) {
	if f.Intent != "" {
		f.Line = c.p.Intent.Line(f.Intent)
		f.Intent = "network." + f.Intent
	}
	c.found = append(c.found, f)
}

// read parses what a device said; what cannot be read is unknown.
func (c *comparer) read(name string, r map[string][]byte, sw bool) {
	d := &device{}
	c.said[name] = d
	if len(r) == 0 {
		c.add(Finding{State: Unknown, Kind: Device, Device: name, Part: "device", What: "nothing was read from it", Want: "answers",
			Fix: "collect again: weft net collect --print shows the commands"})
		return
	}
	for _, file := range slices.Sorted(maps.Keys(r)) {
		if !slices.ContainsFunc(Commands(), func(cmd Command) bool { return cmd.Name == file }) {
			c.add(Finding{State: Unknown, Kind: Reading, Device: name, Part: file, What: "not checked: no reader knows this file",
				Got: clip(string(r[file])), Fix: "leave it out, or look at it by hand"})
		}
	}
	daemon := daemonOf(r)
	silent := false // vtysh says nothing, and no error, where no daemon answers it
	for _, cmd := range Commands() {
		if sw && !cmd.Switch || !sw && !cmd.Host || cmd.Daemon() != "" && cmd.Daemon() != daemon || !c.needs(name, cmd) {
			continue
		}
		data, ok := r[cmd.Name]
		if string(bytes.TrimSpace(data)) == late {
			c.add(Finding{State: Unknown, Kind: Reading, Device: name, Part: cmd.Name, What: fmt.Sprintf("not checked: no answer within %v", Limit),
				Want: "its output", Command: strings.Join(cmd.Args, " "), Fix: "look whether the daemon hangs, and restart it",
				links: []string{"late " + name, "daemon " + name}, wide: true})
			continue
		}
		if ok && cmd.Args[0] == "vtysh" && len(bytes.TrimSpace(data)) == 0 {
			if !silent {
				c.add(Finding{State: Missing, Kind: Daemon, Device: name, Part: "routing", What: "the routing daemon does not answer",
					Want: "an answer", Command: strings.Join(cmd.Args, " "), Intent: "routing", Fix: "systemctl restart frr",
					links: []string{"daemon " + name}})
			}
			silent = true
			continue
		}
		if !ok && cmd.Name != filterFile { // filters are written on request
			c.add(Finding{State: Unknown, Kind: Reading, Device: name, Part: cmd.Name, What: "the command was not run", Want: "its output",
				Command: strings.Join(cmd.Args, " "), Fix: "run it and keep its output as " + cmd.Name})
		}
		if !ok {
			continue
		}
		if err := d.parse(cmd.Name, data); err != nil {
			c.add(Finding{State: Unknown, Kind: Reading, Device: name, Part: cmd.Name, What: "the output cannot be read: " + err.Error(),
				Got: clip(string(data)), Command: strings.Join(cmd.Args, " "), Fix: "run the command by hand and look"})
		}
	}
}

// daemonOf says which routing daemon a device runs. A device with the readings of both runs FRR.
func daemonOf(r map[string][]byte) string {
	_, bird := r["bird-protocols.txt"]
	_, frr := r["bgp.json"]
	if bird && !frr {
		return "bird"
	}
	return "frr"
}

// needs reports whether a device must answer a command: SONiC's database is SONiC's
// alone, and BFD runs where it was asked for.
func (c *comparer) needs(name string, cmd Command) bool {
	switch cmd.Name {
	case "config_db.json":
		s := c.p.Switch(name)
		return s != nil && c.p.Dialect(s) == "sonic"
	case "bfd.json", "bird-bfd.txt":
		return c.p.Intent.Routing.Multiplier > 0
	}
	return true
}

func clip(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

// link names a cable by its switch end, which is unique.
func link(sw, port string) string { return sw + ":" + port }

// iface compares one interface of a device: there, up, MTU, addresses.
func (c *comparer) iface(dev, name string, mtu int, addrs []string, cable, field string) {
	d := c.said[dev]
	if d.ifaces == nil {
		return
	}
	cmd := "ip -j addr"
	x, ok := d.ifaces[name]
	if !ok {
		c.add(Finding{State: Missing, Kind: NoPort, Device: dev, Part: name, What: "there is no such interface", Want: name, Command: cmd,
			Fix: "look for the NIC with lspci; check its name in the .link file", links: []string{cable}})
		return
	}
	if !x.up {
		c.add(Finding{State: Differ, Kind: PortOff, Device: dev, Part: name, What: "the interface is switched off", Want: "up", Got: "down",
			Command: cmd, Fix: "ip link set " + name + " up", links: []string{cable}})
	} else if !x.carrier {
		c.add(Finding{State: Differ, Kind: NoCarrier, Device: dev, Part: name, What: "no carrier: the cable or the other end is dead",
			Want: "carrier", Got: "no carrier", Command: cmd, Fix: "look at the other end, then at the cable", links: []string{cable}, wide: true})
	}
	if mtu > 0 && x.mtu != mtu {
		c.add(Finding{State: Differ, Kind: MTU, Device: dev, Part: name, What: "MTU", Want: fmt.Sprint(mtu), Got: fmt.Sprint(x.mtu), Command: cmd,
			Intent: field + ".mtu", Fix: fmt.Sprintf("ip link set %s mtu %d", name, mtu)})
	}
	missing, extra := difference(addrs, x.addrs)
	c.addresses(Finding{Kind: Address, Device: dev, Part: name, What: "address", Command: cmd, Intent: field + ".prefix"}, missing, extra, cable)
}

// addresses compares an interface's addresses; f is what all findings have in common. One that is missing while another one is
// there is a wrong address.
func (c *comparer) addresses(f Finding, missing, extra []string, cable string) {
	dev, name := f.Device, f.Part
	if len(missing) == 1 && len(extra) == 1 {
		f.State, f.Want, f.Got, f.Fix = Differ, missing[0], extra[0], "apply the emitted file again"
		f.links = []string{"address " + dev + " " + name, cable, ofRoute(extra[0])}
		c.add(f)
		return
	}
	for _, a := range missing {
		m := f
		m.State, m.Want, m.Fix = Missing, a, fmt.Sprintf("ip addr add %s dev %s", a, name)
		m.links = []string{"address " + dev + " " + name, cable}
		c.add(m)
	}
	for _, a := range extra {
		x := f
		x.State, x.Got, x.Fix = Extra, a, fmt.Sprintf("ip addr del %s dev %s", a, name)
		x.links = []string{ofRoute(a)}
		c.add(x)
	}
}

// difference gives what only one of two lists has.
func difference(want, got []string) (missing, extra []string) {
	for _, w := range want {
		if !slices.Contains(got, w) {
			missing = append(missing, w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			extra = append(extra, g)
		}
	}
	return missing, extra
}

// host compares a host's interfaces, rules, routes and settings.
func (c *comparer) host(h *network.Host) {
	d := c.said[h.Name]
	for i := range h.Interfaces {
		x := &h.Interfaces[i]
		if x.Bond != "" {
			continue
		}
		c.iface(h.Name, x.Name, x.MTU, []string{x.Addr.String()}, c.cableOf(h, x), x.Role.String())
		c.hostRouting(h, x, d)
	}
	if d.rules != nil {
		for _, r := range d.rules {
			if r.used || r.table == "local" || r.table == "main" || r.table == "default" {
				continue
			}
			c.add(Finding{State: Extra, Kind: Rule, Device: h.Name, Part: fmt.Sprintf("rule %d", r.priority), What: "routing rule", Got: r.String(),
				Command: "ip -j rule", Intent: "backend.rule", Fix: fmt.Sprintf("ip rule del priority %d", r.priority)})
		}
	}
	if d.routes != nil {
		defaults := 0
		for _, r := range d.routes {
			if r.dst == "default" && r.table == "main" {
				defaults++
				if front := h.First(network.Frontend); r.dev != front.Name {
					c.add(Finding{State: Extra, Kind: Route, Device: h.Name, Part: "default route", What: "a second default route",
						Got: "by " + r.via + " on " + r.dev, Command: "ip -j route", Intent: "frontend.gateway", Fix: "ip route del default dev " + r.dev})
				}
			}
		}
	}
	c.filters(h, d)
	for _, x := range h.Interfaces {
		if (x.Role == network.Backend || x.Net.IsValid()) && !x.IB {
			c.setting(h.Name, "net.ipv4.conf."+x.Name+".arp_announce", "2")
			c.setting(h.Name, "net.ipv4.conf."+x.Name+".arp_ignore", "1")
			c.reversePath(h.Name, x.Name)
		}
	}
}

// hostRouting compares the rules and routes that an interface needs.
func (c *comparer) hostRouting(h *network.Host, x *network.Interface, d *device) {
	routes, rules := emit.Routing(c.p, x)
	lost := []string{"address " + h.Name + " " + x.Name}
	if d.rules != nil {
		for _, want := range rules {
			w := rule{priority: want.Priority, from: want.From.Addr().String(), to: want.To.String(), table: fmt.Sprint(want.Table)}
			same := -1
			for i := range d.rules {
				if d.rules[i].equal(w) {
					d.rules[i].used = true
					same = -2
					break
				}
				if d.rules[i].from == w.from && same == -1 && !d.rules[i].used {
					same = i
				}
			}
			switch {
			case same == -2:
			case same >= 0:
				d.rules[same].used = true
				c.add(Finding{State: Differ, Kind: Rule, Device: h.Name, Part: fmt.Sprintf("rule %d", w.priority), What: "routing rule of " + x.Name,
					Want: w.String(), Got: d.rules[same].String(), Command: "ip -j rule", Intent: "backend.rule", Fix: "apply the emitted file again"})
			default:
				c.add(Finding{State: Missing, Kind: Rule, Device: h.Name, Part: fmt.Sprintf("rule %d", w.priority), What: "routing rule of " + x.Name,
					Want: w.String(), Command: "ip -j rule", Intent: "backend.rule",
					Fix: fmt.Sprintf("ip rule add priority %d from %s to %s table %s", w.priority, w.from, w.to, w.table)})
			}
		}
	}
	if d.routes == nil {
		return
	}
	for _, want := range routes {
		dst, table := "default", "main"
		if want.To.IsValid() {
			dst = want.To.String()
		}
		if want.Table > 0 {
			table = fmt.Sprint(want.Table)
		}
		got := ""
		for _, r := range d.routes {
			if r.dst == dst && r.table == table && (table != "main" || dst != "default" || r.dev == x.Name) {
				got = r.via + " on " + r.dev
			}
		}
		if w := want.Via.String() + " on " + x.Name; got != w {
			state := Differ
			if got == "" {
				state = Missing
			}
			c.add(Finding{State: state, Kind: Route, Device: h.Name, Part: "route to " + dst, What: "route in table " + table, Want: w, Got: got,
				Command: "ip -j route show table all", Intent: x.Role.String() + ".prefix",
				Fix: fmt.Sprintf("ip route replace %s via %s dev %s table %s", dst, want.Via, x.Name, table), links: append(lost, c.cableOf(h, x))})
		}
	}
}

// cableOf names the cable of a host's interface.
func (c *comparer) cableOf(h *network.Host, x *network.Interface) string {
	if sw, port := c.p.PeerPort(x); sw != nil {
		return link(sw.Name, emit.PortName(c.p, sw, port.Number))
	}
	return h.Name + ":" + x.Name
}

// setting compares a kernel setting.
func (c *comparer) setting(dev, key string, want ...string) {
	d := c.said[dev]
	if d.sysctl == nil {
		return
	}
	got, ok := d.sysctl[key]
	if _, nic := d.ifaces[interfaceOf(key)]; !ok && interfaceOf(key) != "all" && d.ifaces != nil && interfaceOf(key) != "" && !nic {
		return // the interface is missing as a whole
	}
	if !ok {
		c.add(Finding{State: Unknown, Kind: Setting, Device: dev, Part: key, What: "not checked: the setting was not read",
			Want: strings.Join(want, " or "), Command: "cat /proc/sys/" + strings.ReplaceAll(key, ".", "/"),
			Fix: "collect again: weft net collect --print shows the commands"})
		return
	}
	if !slices.Contains(want, got) {
		c.add(Finding{State: Differ, Kind: Setting, Device: dev, Part: key, What: "kernel setting", Want: strings.Join(want, " or "), Got: got,
			Command: "cat /proc/sys/" + strings.ReplaceAll(key, ".", "/"), Fix: fmt.Sprintf("sysctl -w %s=%s", key, want[0])})
	}
}

// loopback compares the addresses of a switch's loopback: its own one, and no other.
func (c *comparer) loopback(s *network.Switch, addrs []string) {
	own := s.Loopback.String() + "/32"
	if !slices.Contains(addrs, own) {
		c.add(Finding{State: Missing, Kind: Address, Device: s.Name, Part: "lo", What: "address", Want: own,
			Got: strings.Join(addrs, ", "), Command: "ip -j addr", Intent: "loopbacks", Fix: "apply frr.conf again"})
	}
	for _, a := range addrs {
		if a != own {
			c.add(Finding{State: Extra, Kind: Address, Device: s.Name, Part: "lo", What: "address", Got: a, Command: "ip -j addr",
				Intent: "loopbacks", Fix: fmt.Sprintf("ip addr del %s dev lo", a), links: []string{ofRoute(a)}})
		}
	}
}

// extraSessions finds BGP sessions over ports that do not lead to switches.
func (c *comparer) extraSessions(s *network.Switch, d *device) {
	for name := range d.peers {
		if !slices.ContainsFunc(s.Ports, func(q network.Port) bool { return q.Host == network.None && emit.PortName(c.p, s, q.Number) == name }) {
			c.add(Finding{State: Extra, Kind: Session, Device: s.Name, Part: "bgp " + name, What: "a session that the plan does not have",
				Got: d.peers[name].state, Command: "vtysh -c 'show bgp summary json'", Fix: "no neighbor " + name})
		}
	}
}

// sw compares a switch's ports, addresses, sessions and settings.
func (c *comparer) sw(s *network.Switch) {
	p, d := c.p, c.said[s.Name]
	for i := range s.Ports {
		q := &s.Ports[i]
		name := emit.PortName(p, s, q.Number)
		var addrs []string
		if q.Addr.IsValid() {
			addrs = []string{q.Addr.String()}
		}
		cable := link(s.Name, name)
		if q.Host == network.None {
			cable = c.trunk(s, q)
		}
		c.iface(s.Name, name, q.MTU, addrs, cable, "backend")
		if q.Host == network.None {
			c.timers(s, q, name, cable)
			if d.peers != nil {
				c.session(s, q, name, cable)
			}
		}
	}
	if d.ifaces != nil {
		c.loopback(s, d.ifaces["lo"].addrs)
	}
	if d.asn != 0 && d.asn != s.ASN {
		c.add(Finding{State: Differ, Kind: ASNumber, Device: s.Name, Part: "bgp", What: "AS number", Want: fmt.Sprint(s.ASN),
			Got: fmt.Sprint(d.asn), Command: "vtysh -c 'show bgp summary json'", Intent: "routing.asn", Fix: "load the emitted frr.conf"})
	}
	c.extraSessions(s, d)
	c.setting(s.Name, "net.ipv4.ip_forward", "1")
	// 1 hashes addresses and ports; so does 3 if its fields say so.
	if policy := []string{"1"}; d.sysctl["net.ipv4.fib_multipath_hash_fields"] == "55" {
		c.setting(s.Name, "net.ipv4.fib_multipath_hash_policy", append(policy, "3")...)
	} else {
		c.setting(s.Name, "net.ipv4.fib_multipath_hash_policy", policy...)
	}
	c.setting(s.Name, "net.ipv4.conf.all.ignore_routes_with_linkdown", "1")
	c.paths(s, d)
	c.vrfs(s, d)
	c.running(s, d)
	c.database(s, d)
}

// trunk names a cable between switches by the end that comes first in the plan.
func (c *comparer) trunk(s *network.Switch, q *network.Port) string {
	if far, port := c.p.Far(q); far != nil && far.Node < s.Node {
		return link(far.Name, emit.PortName(c.p, far, port.Number))
	}
	return link(s.Name, emit.PortName(c.p, s, q.Number))
}

// session compares the BGP session of a port between switches, and its BFD.
func (c *comparer) session(s *network.Switch, q *network.Port, name, cable string) {
	d := c.said[s.Name]
	cmd := "vtysh -c 'show bgp summary json'"
	if d.bird {
		cmd = "birdc show protocols all"
	}
	peer, ok := d.peers[name]
	switch {
	case !ok:
		c.add(Finding{State: Missing, Kind: Session, Device: s.Name, Part: "bgp " + name, What: "session with " + c.p.Graph.NodeName(q.Peer),
			Want: "Established", Command: cmd, Intent: "routing", Fix: fmt.Sprintf("neighbor %s interface v6only peer-group FABRIC", name),
			links: []string{"session " + cable}})
	case peer.state != "Established":
		c.add(Finding{State: Differ, Kind: Session, Device: s.Name, Part: "bgp " + name, What: "session with " + c.p.Graph.NodeName(q.Peer),
			Want: "Established", Got: peer.state, Command: cmd, Intent: "routing", Fix: "look at the link, then at bgpd on the other end",
			links: []string{cable, "session " + cable, "daemon " + c.p.Graph.NodeName(q.Peer)}, wide: true})
	}
	if d.bfd != nil && c.p.Intent.Routing.Multiplier != 0 && ok && peer.state == "Established" {
		c.bfd(s, q, name, cable)
	}
}

// bfd compares the BFD of a session that is established.
func (c *comparer) bfd(s *network.Switch, q *network.Port, name, cable string) {
	d := c.said[s.Name]
	watch := "vtysh -c 'show bfd peers json'"
	if d.bird {
		watch = "birdc show bfd sessions"
	}
	if status, ok := d.bfd[name]; !ok || status != "up" {
		state := Differ
		if !ok {
			state = Missing
		}
		c.add(Finding{State: state, Kind: BFD, Device: s.Name, Part: "bfd " + name, What: "BFD with " + c.p.Graph.NodeName(q.Peer), Want: "up",
			Got: status, Command: watch, Intent: "routing.bfd", Fix: "neighbor FABRIC bfd profile fabric",
			links: []string{"bfd " + cable, "bfd of " + s.Name}, wide: true})
	}
}

// width is how many cables of a switch are on shortest paths to another, both by their
// index; 0 where none leads there.
func (c *comparer) width(from, to int) int {
	n := len(c.p.Switches)
	if c.near == nil {
		c.near, c.widths = make([][]int32, n), make([][]int32, n)
		for i := range c.p.Switches {
			for j := range c.p.Switches[i].Ports {
				if far, _ := c.p.Far(&c.p.Switches[i].Ports[j]); far != nil {
					k, _ := slices.BinarySearchFunc(c.p.Switches, far.Node, func(s network.Switch, n topo.NodeID) int { return int(s.Node) - int(n) })
					c.near[i] = append(c.near[i], int32(k))
				}
			}
		}
	}
	if c.widths[to] == nil {
		w, far := make([]int32, n), make([]int32, n) // far: distance and 1
		far[to] = 1
		for queue := []int32{int32(to)}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			for _, next := range c.near[at] {
				if far[next] == 0 {
					far[next] = far[at] + 1
					queue = append(queue, next)
				}
				if far[next] == far[at]+1 {
					w[next]++
				}
			}
		}
		c.widths[to] = w
	}
	return int(c.widths[to][from])
}

// paths compares how many ways a leaf has to the loopbacks of other leaves, as
// the routing daemon has them and as the kernel has them.
func (c *comparer) paths(s *network.Switch, d *device) {
	if d.routes == nil || s.Tier != 1 {
		return
	}
	ways := map[string]int{}
	for _, r := range d.routes {
		if r.table == "main" {
			ways[strings.TrimSuffix(r.dst, "/32")] = r.ways
		}
	}
	own := slices.IndexFunc(c.p.Switches, func(x network.Switch) bool { return x.Node == s.Node })
	narrow, worst, planned, apart := 0, 0, 0, ""
	for i := range c.p.Switches {
		other := &c.p.Switches[i]
		if other == s || other.Tier != 1 || other.IB {
			continue
		}
		want := c.width(own, i)
		if want == 0 {
			continue // no cables lead there
		}
		dst := other.Loopback.String()
		kernel := ways[dst]
		if kernel < want && (narrow == 0 || want-kernel > planned-worst) {
			worst, planned = kernel, want
		}
		if kernel < want {
			narrow++
		}
		if d.rib != nil && d.rib[dst+"/32"] != kernel && apart == "" {
			apart = fmt.Sprintf("%s: %d ways in the routing daemon, %d in the kernel", dst, d.rib[dst+"/32"], kernel)
		}
	}
	if apart != "" {
		c.add(Finding{State: Differ, Kind: Forwarding, Device: s.Name, Part: "routes",
			What: "the kernel forwards otherwise than the routing daemon says", Want: "the same ways", Got: apart,
			Command: "ip -j route; vtysh -c 'show ip route json'", Fix: "no zebra nexthop kernel enable, then restart FRR"})
		return
	}
	if narrow > 0 {
		c.add(Finding{State: Differ, Kind: Ways, Device: s.Name, Part: "routes", What: fmt.Sprintf("ways to %d leaves", narrow),
			Want: fmt.Sprint(planned), Got: fmt.Sprint(worst), Command: "ip -j route", Intent: "routing", Fix: "find the lost session or link",
			links: []string{"paths"}, wide: true})
	}
}

// jack is one end of a cable; the zero value is no jack.
type jack struct{ dev, port string }

func (x jack) String() string {
	if x.dev == "" {
		return ""
	}
	return x.dev + ":" + x.port
}

// cabling is the cable plan and what was read, from either end.
type cabling struct {
	*comparer
	far  map[jack]jack // as read
	want map[jack]jack // as planned, both directions
	done map[jack]bool // ends that a finding has named already
}

// cables compares neighbours, as LLDP has them, with the cable plan. Two cables
// that are plugged into one another's ports are one finding.
func (c *comparer) cables() {
	k := cabling{c, map[jack]jack{}, map[jack]jack{}, map[jack]bool{}}
	for dev, d := range c.said {
		for port, list := range d.lldp {
			k.far[jack{dev, port}] = jack{list[0].device, list[0].port}
		}
	}
	order := k.planned()
	for e, w := range k.want {
		c.crowd(e.dev, e.port, neighbour{w.dev, w.port}, func(n neighbour) { k.far[e] = jack{n.device, n.port} })
	}
	slices.SortFunc(order, func(a, b jack) int { return cmp.Or(strings.Compare(a.dev, b.dev), strings.Compare(a.port, b.port)) })
	for _, e := range order {
		switch w, got := k.want[e], k.far[e]; {
		case k.done[e] || got == w:
		case got.dev == "":
			k.missing(e)
		default:
			k.wrong(e)
		}
	}
}

// planned fills in the plan, and lists the ends at switches whose neighbours were read.
func (k *cabling) planned() (order []jack) {
	for i := range k.p.Switches {
		s := &k.p.Switches[i]
		if s.IB || k.said[s.Name].lldp == nil {
			continue
		}
		for j := range s.Ports {
			q := &s.Ports[j]
			e := jack{s.Name, emit.PortName(k.p, s, q.Number)}
			if q.Host != network.None && q.Iface != network.None {
				k.want[e] = jack{k.p.Hosts[q.Host].Name, k.p.Hosts[q.Host].Interfaces[q.Iface].Name}
			} else if sw, port := k.p.Far(q); sw != nil {
				k.want[e] = jack{sw.Name, emit.PortName(k.p, sw, port.Number)}
			} else {
				continue
			}
			order = append(order, e)
		}
	}
	return order
}

// cable names the link at an end. A trunk is told from its first end.
func (k *cabling) cable(e jack) string {
	w := k.want[e]
	if back := k.want[w]; back == e && w.dev < e.dev {
		return link(w.dev, w.port)
	}
	return link(e.dev, e.port)
}

// missing reports an end at which nothing is plugged in, and the empty port that the cable went to instead.
func (k *cabling) missing(e jack) {
	w := k.want[e]
	k.done[w] = true
	f := Finding{State: Missing, Kind: Neighbour, Device: e.dev, Part: e.port, What: "neighbour", Want: w.String(),
		Command: "lldpcli show neighbors", Fix: "look for the cable", links: []string{k.cable(e), link(e.dev, e.port), link(w.dev, w.port)},
		wide: true}
	for x, seen := range k.far { // a port that should be empty
		if _, planned := k.want[x]; seen == w && !planned && x.dev != w.dev {
			f.State, f.What = Differ, "the cable is in another port"
			f.Got, f.Fix = fmt.Sprintf("%s at %s", w, x), fmt.Sprintf("move the cable of %s from %s to %s", w, x, e)
		}
	}
	k.add(f)
}

// wrong reports an end with the wrong neighbour: crossed with the cable that belongs here, or just misplaced.
func (k *cabling) wrong(e jack) {
	w, got := k.want[e], k.far[e]
	other := jack{} // where the one that is plugged in here belongs
	for x, y := range k.want {
		if y == got && x != e {
			other = x
		}
	}
	k.done[w], k.done[got] = true, true
	if other.dev != "" && k.far[other] == w {
		k.done[other] = true
		k.add(Finding{State: Differ, Kind: Crossed, Device: e.dev, Part: e.port, What: "two cables are crossed",
			Want:    fmt.Sprintf("%s at %s and %s at %s", w, e, got, other),
			Got:     fmt.Sprintf("%s at %s and %s at %s", got, e, w, other),
			Command: "lldpcli show neighbors", Fix: fmt.Sprintf("swap the cables of %s and %s", e, other),
			links: []string{k.cable(e), link(other.dev, other.port)}})
		return
	}
	fix := fmt.Sprintf("plug %s in here", w)
	if other.dev != "" {
		fix = fmt.Sprintf("move the cable of %s to %s, where it belongs, and plug %s in here", got, other, w)
	}
	k.add(Finding{State: Differ, Kind: Neighbour, Device: e.dev, Part: e.port, What: "neighbour", Want: w.String(), Got: got.String(),
		Command: "lldpcli show neighbors", Fix: fix, links: []string{k.cable(e)}})
}

// folded puts consequences under their causes. A lost carrier, session or
// neighbour follows from what concerns the same cable; fewer ways follow from
// any of them.
func (c *comparer) folded() []Finding {
	rank := func(f *Finding) int { return f.Kind.order(f.State) }
	slices.SortStableFunc(c.found, func(a, b Finding) int { return rank(&a) - rank(&b) })
	var out []Finding
	for _, f := range c.found {
		cause := -1
		for i := range out {
			if follows(&out[i], &f) {
				cause = i
				break
			}
		}
		if cause < 0 {
			out = append(out, f)
			continue
		}
		out[cause].Consequences = append(out[cause].Consequences, f.String())
		out[cause].links = append(out[cause].links, f.links...)
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(rank(&a)-rank(&b), strings.Compare(a.Device, b.Device), strings.Compare(a.Part, b.Part))
	})
	return out
}

// follows reports whether b is a consequence of a.
func follows(a, b *Finding) bool {
	for _, l := range b.links {
		if l != "" && slices.Contains(a.links, l) {
			return true
		}
	}
	if b.Kind == Running && a.Device == b.Device {
		return slices.Contains([]Kind{Session, BFD, ASNumber, Address, Daemon, Forwarding, Route, Timer}, a.Kind)
	}
	if !b.wide {
		return false
	}
	switch b.Kind {
	case Session: // it needs the right AS number at both ends
		return a.Kind == ASNumber
	case Ways, InVRF: // any lost link, session or loopback makes fewer
		switch a.Kind {
		case Session, Daemon, NoCarrier, PortOff, NoPort, Neighbour, ASNumber, Crossed:
			return true
		}
		return a.Part == "lo"
	}
	return false
}
