package check

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// timers are the times of a session, as texts to compare; empty where nobody said.
type timers struct {
	bfd    string // receive, transmit and multiplier
	detect string // BIRD: seconds until a neighbour counts as dead
	bgp    string // keepalive and hold time
}

func (d *device) timed(port string, f func(*timers)) {
	if d.timers == nil {
		d.timers = map[string]timers{}
	}
	t := d.timers[port]
	f(&t)
	d.timers[port] = t
}

// parseNeighbours reads "show bgp neighbors json": the times that both ends agreed on.
func (d *device) parseNeighbours(data []byte) error {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return err
	}
	for name, raw := range top {
		var x struct {
			State     string `json:"bgpState"`
			Hold      int    `json:"bgpTimerHoldTimeMsecs"`
			Keepalive int    `json:"bgpTimerKeepAliveIntervalMsecs"`
		}
		if json.Unmarshal(raw, &x) == nil && x.State == "Established" { // some keys are words of the daemon's own
			d.timed(name, func(t *timers) { t.bgp = fmt.Sprintf("%d/%d ms", x.Keepalive, x.Hold) })
		}
	}
	return nil
}

// parseRunning reads "show running-config".
func (d *device) parseRunning(data []byte) error {
	if !strings.Contains(string(data), "frr version") {
		return fmt.Errorf("no running configuration of FRR")
	}
	d.conf = configuration(string(data))
	return nil
}

// passed are lines that FRR adds by itself, or that do not change what a switch does.
var passed = []string{"Building configuration", "Current configuration", "frr version", "frr defaults", "hostname", "service ", "log ",
	"exit", "end", "!", "#", "description "}

// configuration lists the lines of a frr.conf with their contexts, so that two can be
// compared whatever their order.
func configuration(text string) []string {
	var out, context []string
	for line := range strings.Lines(text) {
		depth := len(line) - len(strings.TrimLeft(line, " "))
		line = strings.TrimSpace(line)
		if line == "" || slices.ContainsFunc(passed, func(p string) bool { return strings.HasPrefix(line, p) }) {
			continue
		}
		context = append(context[:min(depth, len(context))], line)
		out = append(out, strings.Join(context, " / "))
	}
	return out
}

// usual are lines that FRR leaves out of its running configuration where they are its
// defaults, and words that it puts in. Times of BFD and BGP are compared as sessions have them.
func usual(line string) bool {
	last := line[strings.LastIndex(line, " / ")+1:]
	for _, p := range []string{"detect-multiplier", "receive-interval", "transmit-interval", "maximum-paths 64", "advertisement-interval 0",
		"multipath-relax", "timers connect 1", "address-family", "no zebra nexthop kernel enable"} {
		if strings.Contains(last, p) {
			return true
		}
	}
	return strings.HasSuffix(line, " bfd") || !strings.Contains(line, " / ") && (strings.HasPrefix(line, "interface ") || line == "bfd") ||
		strings.HasSuffix(line, "profile fabric") && strings.HasPrefix(line, "bfd / ")
}

// running compares the configuration that FRR runs with the emitted one.
func (c *comparer) running(s *network.Switch, d *device) {
	if d.conf == nil {
		return
	}
	path := "switches/" + s.Name + map[string]string{"frr": "/etc/frr/frr.conf", "sonic": "/etc/sonic/frr/frr.conf"}[c.p.Dialect(s)]
	want := configuration(string(c.emitted(path)))
	if len(want) == 0 {
		return // Cumulus writes its own
	}
	missing, extra := difference(want, d.conf)
	missing, extra = slices.DeleteFunc(missing, usual), slices.DeleteFunc(extra, usual)
	if d.sysctl["net.ipv4.ip_forward"] != "" { // FRR shows the kernel's setting, which is told as such
		extra = slices.DeleteFunc(extra, func(line string) bool { return line == "no ip forwarding" })
	}
	if len(missing)+len(extra) == 0 {
		return
	}
	c.add(Finding{State: Differ, Kind: Running, Device: s.Name, Part: "running configuration",
		What: "the routing daemon does not run the emitted frr.conf", Want: hidden(missing), Got: hidden(extra),
		Command: "vtysh -c 'show running-config'", Intent: "routing", Fix: "load the emitted frr.conf: vtysh -f, or frr-reload.py"})
}

var password = regexp.MustCompile(`password \S+`)

// hidden puts lines behind one another, without their passwords.
func hidden(lines []string) string {
	return password.ReplaceAllString(strings.Join(lines, "; "), "password (secret)")
}

// timers compares the times of a session between switches.
func (c *comparer) timers(s *network.Switch, q *network.Port, name, cable string) {
	d, r := c.said[s.Name], &c.p.Intent.Routing
	t, ok := d.timers[name]
	if !ok {
		return
	}
	ms := r.BFD.Milliseconds()
	compare := func(what, want, got, command string) {
		if got != "" && got != want {
			c.add(Finding{State: Differ, Kind: Timer, Device: s.Name, Part: what + " " + name,
				What: "times of the session with " + c.p.Graph.NodeName(q.Peer), Want: want, Got: got, Command: command, Intent: "routing.bfd",
				Fix: "load the emitted frr.conf", links: []string{"timer " + what + " " + cable, "timer " + what + " of " + s.Name}})
		}
	}
	if r.Multiplier > 0 {
		compare("bfd", fmt.Sprintf("%d/%d ms x%d", ms, ms, r.Multiplier), t.bfd, "vtysh -c 'show bfd peers json'")
		detect, err := strconv.ParseFloat(t.detect, 64)
		if want := float64(ms) * float64(r.Multiplier) / 1000; err == nil && (detect < want*0.99 || detect > want*1.01) {
			compare("bfd", fmt.Sprintf("%.3f s", want), t.detect+" s", "birdc show bfd sessions")
		}
	}
	compare("bgp", "3000/9000 ms", t.bgp, "vtysh -c 'show bgp neighbors json'") // of frr defaults datacenter
}

// interfaceOf is the interface that a kernel setting is of; empty for others.
func interfaceOf(key string) string {
	rest, ok := strings.CutPrefix(key, "net.ipv4.conf.")
	if !ok {
		return ""
	}
	return rest[:max(0, strings.LastIndexByte(rest, '.'))]
}

// reversePath compares what the kernel does with packets whose way back is another: of the
// settings for all and for the interface the larger one holds, and 1 drops them.
func (c *comparer) reversePath(dev, nic string) {
	d := c.said[dev]
	key := "net.ipv4.conf." + nic + ".rp_filter"
	all, okAll := d.sysctl["net.ipv4.conf.all.rp_filter"]
	own, okOwn := d.sysctl[key]
	if !okAll || !okOwn || d.sysctl == nil {
		c.setting(dev, key, "0", "2")
		if d.sysctl != nil && !okAll {
			c.setting(dev, "net.ipv4.conf.all.rp_filter", "0", "2")
		}
		return
	}
	if max(all, own) == "1" {
		c.add(Finding{State: Differ, Kind: Setting, Device: dev, Part: key, What: "kernel setting, the larger of all and " + nic, Want: "0 or 2",
			Got: fmt.Sprintf("1 (all %s, %s %s)", all, nic, own), Command: "cat /proc/sys/net/ipv4/conf/{all," + nic + "}/rp_filter",
			Fix: "sysctl -w " + key + "=2"})
	}
}

// crowd looks for a second neighbour on a port: something with several ports is in
// between. The planned one counts, if it is among them.
func (c *comparer) crowd(dev, port string, want neighbour, choose func(neighbour)) {
	list := c.said[dev].lldp[port]
	if len(list) < 2 {
		return
	}
	var others []string
	for _, n := range list {
		if n == want {
			choose(n)
		} else if text := n.device + ":" + n.port; !slices.Contains(others, text) {
			others = append(others, text)
		}
	}
	if len(others) == 0 {
		return
	}
	c.add(Finding{State: Extra, Kind: Neighbour, Device: dev, Part: port, What: fmt.Sprintf("%d neighbours on one cable", len(list)),
		Want: want.device + ":" + want.port, Got: strings.Join(others, ", "), Command: "lldpcli show neighbors",
		Fix: "look for a hub or a switch between the two ends", links: []string{"crowd " + dev + ":" + port}})
}

// owned are the networks of the plan by the switch that has them, in its main table or in that of a VRF; loopbacks among them.
func (c *comparer) owned() map[routed]string {
	out := map[routed]string{}
	for i := range c.p.Switches {
		s := &c.p.Switches[i]
		if s.IB {
			continue
		}
		out[routed{"main", netip.PrefixFrom(s.Loopback, 32)}] = s.Name
		for _, q := range s.Ports {
			if q.Addr.IsValid() {
				out[routed{c.table(&q), q.Addr.Masked()}] = s.Name
			}
		}
	}
	return out
}

// extra is a route that the plan does not have, on one device.
type extra struct {
	device string
	route
	why string
}

// extraRoutes looks for routes that the plan does not have, and for those that are not how
// they should be: of a switch all of its main table and of VRFs, of a host what leads into rails or storage.
// A prefix that one switch leaks is one finding, told from where it begins.
func (c *comparer) extraRoutes() {
	owned := c.owned()
	var order []routed
	found := map[routed][]extra{}
	note := func(dev string, r route, dst netip.Prefix, why string) {
		key := routed{r.table, dst}
		if found[key] == nil {
			order = append(order, key)
		}
		found[key] = append(found[key], extra{dev, r, why})
	}
	for i := range c.p.Switches {
		s := &c.p.Switches[i]
		if s.IB {
			continue // it routes nothing
		}
		for _, r := range c.said[s.Name].routes {
			if dst, ok := destination(r.dst); ok && (r.table == "main" || c.isVRF(r.table)) && !ownDevice(r.dev) {
				if why := c.strange(s, r, dst, owned); why != "" {
					note(s.Name, r, dst, why)
				}
			}
		}
	}
	for i := range c.p.Hosts {
		h := &c.p.Hosts[i]
		for _, r := range c.said[h.Name].routes {
			if dst, ok := destination(r.dst); ok && c.hijacks(h, r, dst) {
				note(h.Name, r, dst, "a route that the plan does not have")
			}
		}
	}
	for _, key := range order {
		list := found[key]
		slices.SortStableFunc(list, func(a, b extra) int { return origin(a.proto) - origin(b.proto) })
		for _, x := range list {
			state := Extra
			want := ""
			if owner := owned[key]; owner != "" {
				state, want = Differ, "by BGP towards "+owner
			}
			c.add(Finding{State: state, Kind: Route, Device: x.device, Part: "route to " + x.dst, What: x.why, Want: want, Got: x.text(),
				Command: "ip -j route show table all", Intent: "routing",
				Fix: fmt.Sprintf("find who configured it: vtysh -c 'show ip route %s'", x.dst), links: []string{ofRoute(key.dst.String())}})
		}
	}
}

// text is a route in words.
func (x *extra) text() string {
	out := strings.TrimSpace(x.via + " on " + strings.Join(x.devs, ", "))
	if x.table != "main" {
		out += " in table " + x.table
	}
	if x.proto != "" {
		out += " (" + x.proto + ")"
	}
	return strings.TrimSuffix(strings.TrimPrefix(out, "on "), " on")
}

// ofRoute names what an address or a route brings along: the route to its network.
func ofRoute(prefix string) string {
	if p, err := netip.ParsePrefix(prefix); err == nil {
		return "route " + p.Masked().String()
	}
	return "route " + prefix
}

// origin orders routes: what was configured comes before what was learned.
func origin(proto string) int {
	if learned(proto) {
		return 1
	}
	return 0
}

func learned(proto string) bool { return proto == "bgp" || proto == "bird" }

// destination reads the destination of an IPv4 route.
func destination(s string) (netip.Prefix, bool) {
	if s == "default" {
		return netip.MustParsePrefix("0.0.0.0/0"), true
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), a.Is4()
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil && p.Addr().Is4()
}

// ownDevice reports whether a device is a switch's own business: its management port, its containers.
func ownDevice(dev string) bool {
	return dev == "eth0" || dev == "lo" || dev == "docker0" || strings.HasPrefix(dev, "mgmt")
}

// strange says what is wrong with a route of a switch; nothing if it is as planned.
func (c *comparer) strange(s *network.Switch, r route, dst netip.Prefix, owned map[routed]string) string {
	if c.endsVRF(&r, dst) {
		return ""
	}
	owner, ours := owned[routed{r.table, dst}]
	switch {
	case !ours:
		return "a route that the plan does not have"
	case c.said[s.Name].peers == nil: // nobody said what routes here
		return ""
	case owner == s.Name && learned(r.proto):
		return "somebody else advertises a network of this switch"
	case owner != s.Name && !learned(r.proto) && !learned(c.proto(s.Name, r.table, dst)):
		return "a route that was configured by hand"
	}
	return ""
}

// proto is the protocol of the best route of a switch to a network, where several are there.
func (c *comparer) proto(dev, table string, dst netip.Prefix) string {
	for _, r := range c.said[dev].routes {
		if d, ok := destination(r.dst); ok && d == dst && r.table == table {
			return r.proto // the kernel lists them by metric
		}
	}
	return ""
}

// hijacks reports whether a route of a host leads packets for rails or storage elsewhere.
func (c *comparer) hijacks(h *network.Host, r route, dst netip.Prefix) bool {
	in := c.p.Intent
	inside := func(net netip.Prefix) bool { return net.Overlaps(dst) && dst.Bits() >= net.Bits() }
	if !inside(in.Backend.Prefix) && !inside(in.Storage.Prefix) {
		return false
	}
	for j := range h.Interfaces {
		x := &h.Interfaces[j]
		if x.Addr.IsValid() && x.Addr.Masked() == dst && r.dev == x.Name {
			return false
		}
		if c.plans(x, r.table, dst) {
			return false // another gateway is told as a route that differs
		}
	}
	return true
}

// plans reports whether an interface has a route to a prefix in a table.
func (c *comparer) plans(x *network.Interface, table string, dst netip.Prefix) bool {
	routes, _ := emit.Routing(c.p, x)
	return slices.ContainsFunc(routes, func(w emit.Route) bool {
		return w.To == dst && (w.Table == 0 && table == "main" || w.Table > 0 && table == fmt.Sprint(w.Table))
	})
}
