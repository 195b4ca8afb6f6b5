package emit

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
)

// Route is a route of a host that its interface's file holds.
type Route struct {
	To    netip.Prefix // invalid: the default route
	Via   netip.Addr
	Table int // 0: the main table
}

// Rule sends what comes from an address to a table.
type Rule struct {
	From, To netip.Prefix
	Table    int
	Priority int
}

// Routing says what an interface's file holds besides its address. A rail has a
// route to its own prefix, so that a socket without an address takes the rail
// of its peer, and a table of its own for packets that bear its address: these
// leave by no other NIC, wherever they go.
func Routing(p *network.Plan, x *network.Interface) (routes []Route, rules []Rule) {
	if x.Role == network.Frontend && x.Gateway.IsValid() {
		return []Route{{Via: x.Gateway}}, nil
	}
	if x.Net.IsValid() { // routed storage: the same for each of its NICs
		all := p.Intent.Storage.Prefix
		return []Route{{To: x.Net, Via: x.Gateway}, {To: all, Via: x.Gateway, Table: x.Table}},
			[]Rule{{From: netip.PrefixFrom(x.Addr.Addr(), 32), To: all, Table: x.Table, Priority: x.Rule}}
	}
	if x.Role != network.Backend || !x.Gateway.IsValid() {
		return nil, nil
	}
	r := &p.Rails[x.Rail]
	back := p.Intent.Backend.Prefix
	if r.Prefix != x.Addr.Masked() {
		routes = append(routes, Route{To: r.Prefix, Via: x.Gateway})
	}
	routes = append(routes, Route{To: back, Via: x.Gateway, Table: r.Table})
	rules = append(rules, Rule{From: netip.PrefixFrom(x.Addr.Addr(), 32), To: back, Table: r.Table, Priority: r.Rule})
	return routes, rules
}

// Netplan writes a host's file for netplan, renderer networkd.
func Netplan(p *network.Plan) []File {
	var out []File
	for i := range p.Hosts {
		h := &p.Hosts[i]
		var t text
		t.head(p, "#")
		t.line("network:")
		t.line("  version: 2")
		t.line("  renderer: networkd")
		t.line("  ethernets:")
		for j := range h.Interfaces {
			if x := &h.Interfaces[j]; !isBond(h, x) {
				netplanInterface(&t, p, x, x.Bond != "")
			}
		}
		first := true
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			if !isBond(h, x) {
				continue
			}
			if first {
				t.line("  bonds:")
				first = false
			}
			netplanInterface(&t, p, x, false)
			t.line("      interfaces: [%s]", joined(members(h, x), func(n string) string { return n }))
			t.line("      parameters: {mode: 802.3ad, lacp-rate: fast, mii-monitor-interval: 100, transmit-hash-policy: layer3+4}")
		}
		out = append(out, t.file(hostPath(h, "etc/netplan/60-weft.yaml"), 0o600))
	}
	return out
}

// netplanInterface writes an interface. A member of a bond leaves addresses and routes to the bond.
func netplanInterface(t *text, p *network.Plan, x *network.Interface, member bool) {
	t.line("    %s:", x.Name)
	if x.MAC != "" {
		t.line("      match: {macaddress: %q}", x.MAC)
		t.line("      set-name: %s", x.Name)
	} else {
		t.line("      # no MAC in the inventory: the interface must bear this name already")
	}
	t.line("      mtu: %d", x.MTU)
	t.line("      link-local: []")
	t.line("      accept-ra: false")
	if x.Role != network.Frontend {
		t.line("      optional: true")
	}
	if member {
		return
	}
	t.line("      addresses: [%s]", x.Addr)
	if x.Role == network.Frontend && len(p.Intent.Frontend.DNS) > 0 && x.Gateway.IsValid() {
		t.line("      nameservers: {addresses: [%s], search: [%s]}", joined(p.Intent.Frontend.DNS, netip.Addr.String), p.Intent.Domain)
	}
	netplanRouting(t, p, x)
}

func netplanRouting(t *text, p *network.Plan, x *network.Interface) {
	routes, rules := Routing(p, x)
	if len(routes) > 0 {
		t.line("      routes:")
	}
	for _, r := range routes {
		to, table := "default", ""
		if r.To.IsValid() {
			to = r.To.String()
		}
		if r.Table > 0 {
			table = fmt.Sprintf(", table: %d", r.Table)
		}
		t.line("        - {to: %s, via: %s%s}", to, r.Via, table)
	}
	if len(rules) > 0 {
		t.line("      routing-policy:")
	}
	for _, r := range rules {
		t.line("        - {from: %s, to: %s, table: %d, priority: %d}", r.From, r.To, r.Table, r.Priority)
	}
}

// isBond reports whether an interface is made of others.
func isBond(h *network.Host, x *network.Interface) bool { return len(members(h, x)) > 0 }

// members lists the interfaces of a bond.
func members(h *network.Host, x *network.Interface) []string {
	var out []string
	for i := range h.Interfaces {
		if h.Interfaces[i].Bond == x.Name {
			out = append(out, h.Interfaces[i].Name)
		}
	}
	return out
}

func hostPath(h *network.Host, path string) string { return "hosts/" + h.Name + "/" + path }

// Networkd writes a host's files for systemd-networkd.
func Networkd(p *network.Plan) []File {
	var out []File
	for i := range p.Hosts {
		h := &p.Hosts[i]
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			base := "etc/systemd/network/10-" + x.Name
			if x.MAC != "" && !isBond(h, x) {
				var l text
				l.head(p, "#")
				l.line("[Match]\nPermanentMACAddress=%s\n\n[Link]\nName=%s", x.MAC, x.Name)
				out = append(out, l.file(hostPath(h, base+".link"), 0o644))
			}
			if isBond(h, x) {
				var d text
				d.head(p, "#")
				d.line("[NetDev]\nName=%s\nKind=bond\nMTUBytes=%d\n\n[Bond]\nMode=802.3ad\nLACPTransmitRate=fast\nMIIMonitorSec=100ms\nTransmitHashPolicy=layer3+4",
					x.Name, x.MTU)
				out = append(out, d.file(hostPath(h, base+".netdev"), 0o644))
			}
			out = append(out, networkdNetwork(p, x).file(hostPath(h, base+".network"), 0o644))
		}
		var k text
		k.head(p, "#")
		k.line("# Rules and routes that something else made stay when the service restarts.")
		k.line("[Network]\nManageForeignRoutingPolicyRules=no\nManageForeignRoutes=no")
		out = append(out, k.file(hostPath(h, "etc/systemd/networkd.conf.d/60-weft.conf"), 0o644))
	}
	return out
}

// networkdNetwork writes a .network file. Only the front end is waited for at boot: a host whose rail is down must
// still come up.
func networkdNetwork(p *network.Plan, x *network.Interface) *text {
	var t text
	t.head(p, "#")
	t.line("[Match]\nName=%s\n", x.Name)
	t.line("[Link]\nMTUBytes=%d", x.MTU)
	if x.Role != network.Frontend {
		t.line("RequiredForOnline=no")
	}
	t.line("\n[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no")
	if x.Bond != "" {
		t.line("Bond=%s", x.Bond)
		return &t
	}
	t.line("Address=%s", x.Addr)
	if x.Role == network.Frontend && x.Gateway.IsValid() {
		for _, d := range p.Intent.Frontend.DNS {
			t.line("DNS=%s", d)
		}
		t.line("Domains=%s", p.Intent.Domain)
	}
	routes, rules := Routing(p, x)
	for _, r := range routes {
		t.line("\n[Route]")
		if r.To.IsValid() {
			t.line("Destination=%s", r.To)
		}
		t.line("Gateway=%s", r.Via)
		if r.Table > 0 {
			t.line("Table=%d", r.Table)
		}
	}
	for _, r := range rules {
		t.line("\n[RoutingPolicyRule]\nFrom=%s\nTo=%s\nTable=%d\nPriority=%d", r.From, r.To, r.Table, r.Priority)
	}
	return &t
}

// NetworkManager writes a host's connections as keyfiles.
func NetworkManager(p *network.Plan) []File {
	var out []File
	for i := range p.Hosts {
		h := &p.Hosts[i]
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			out = append(out, nmConnection(p, h, x).file(hostPath(h, "etc/NetworkManager/system-connections/"+x.Name+".nmconnection"), 0o600))
		}
	}
	return out
}

// nmConnection writes a NetworkManager profile. The UUID follows from the names, so that the same plan gives the same
// file.
func nmConnection(p *network.Plan, h *network.Host, x *network.Interface) *text {
	var t text
	t.head(p, "#")
	kind := "ethernet"
	switch {
	case isBond(h, x):
		kind = "bond"
	case x.IB:
		kind = "infiniband"
	}
	t.line("[connection]\nid=%s\nuuid=%s\ntype=%s\ninterface-name=%s", x.Name, uuid(p.Name, h.Name, x.Name), kind, x.Name)
	if x.Bond != "" {
		t.line("master=%s\nslave-type=bond", x.Bond)
	}
	switch {
	case kind == "bond":
		t.line("\n[bond]\nmode=802.3ad\nlacp_rate=fast\nmiimon=100\nxmit_hash_policy=layer3+4")
		t.line("\n[ethernet]\nmtu=%d", x.MTU)
	case kind == "infiniband":
		t.line("\n[infiniband]\nmtu=%d\ntransport-mode=datagram", x.MTU)
	default:
		t.line("\n[ethernet]")
		if x.MAC != "" {
			t.line("mac-address=%s", x.MAC)
		}
		t.line("mtu=%d", x.MTU)
	}
	if x.Bond != "" {
		return &t
	}
	nmIPv4(&t, p, x)
	t.line("\n[ipv6]\nmethod=disabled")
	return &t
}

// nmIPv4 writes addresses, routes and rules. Only the front end may bring a default route.
func nmIPv4(t *text, p *network.Plan, x *network.Interface) {
	t.line("\n[ipv4]\nmethod=manual\naddress1=%s", x.Addr)
	routes, rules := Routing(p, x)
	if x.Role == network.Frontend && x.Gateway.IsValid() {
		t.line("gateway=%s", x.Gateway)
		for _, d := range p.Intent.Frontend.DNS {
			t.line("dns=%s;", d)
		}
		t.line("dns-search=%s;", p.Intent.Domain)
	} else {
		t.line("never-default=true")
	}
	n := 0
	for _, r := range routes {
		if !r.To.IsValid() {
			continue
		}
		n++
		t.line("route%d=%s,%s", n, r.To, r.Via)
		if r.Table > 0 {
			t.line("route%d_options=table=%d", n, r.Table)
		}
	}
	for k, r := range rules {
		t.line("routing-rule%d=priority %d from %s to %s table %d", k+1, r.Priority, r.From, r.To, r.Table)
	}
}

// uuid makes a stable identifier of names: version 5 in form, from our own space.
func uuid(names ...string) string {
	var b [16]byte
	sum := digestOf(names)
	copy(b[:], sum[:])
	b[6], b[8] = b[6]&0x0f|0x50, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Sysctl writes the kernel settings that hosts with several NICs need.
func Sysctl(p *network.Plan) []File {
	var out []File
	for i := range p.Hosts {
		h := &p.Hosts[i]
		var t text
		t.head(p, "#")
		t.line("# Each NIC answers for its own address only, and speaks with it: without this every")
		t.line("# rail of one subnet answers for all (ARP flux), and traffic piles up on one.")
		t.line("net.ipv4.conf.all.arp_ignore = 1\nnet.ipv4.conf.all.arp_announce = 2\nnet.ipv4.conf.default.arp_ignore = 1\nnet.ipv4.conf.default.arp_announce = 2")
		t.line("# Loose reverse path check: a strict one drops everything where a rule is missing.")
		t.line("net.ipv4.conf.all.rp_filter = 2\nnet.ipv4.conf.default.rp_filter = 2")
		for j := range h.Interfaces {
			if x := &h.Interfaces[j]; x.Role == network.Backend || x.Net.IsValid() {
				t.line("net.ipv4.conf.%s.arp_ignore = 1\nnet.ipv4.conf.%s.arp_announce = 2\nnet.ipv4.conf.%s.rp_filter = 2", x.Name, x.Name, x.Name)
			}
		}
		t.line("# Room for thousands of connections of a collective.")
		t.line("net.ipv4.ip_local_port_range = 10240 65535\nnet.core.somaxconn = 4096")
		out = append(out, t.file(hostPath(h, "etc/sysctl.d/60-weft.conf"), 0o644))
	}
	return out
}

// LLDP writes what hosts and Linux switches tell their neighbours: their name, and
// the name of the port. Without it hosts tell a hardware address, which no cable plan has.
func LLDP(p *network.Plan) []File {
	conf := func(name string) []byte {
		var t text
		t.head(p, "#")
		t.line("configure system hostname %s\nconfigure lldp portidsubtype ifname\nconfigure lldp tx-interval 30", name)
		return t.Bytes()
	}
	var out []File
	for i := range p.Hosts {
		out = append(out, File{hostPath(&p.Hosts[i], "etc/lldpd.d/60-weft.conf"), 0o644, conf(p.Hosts[i].Name)})
	}
	for i := range p.Switches {
		if s := &p.Switches[i]; !s.IB {
			out = append(out, File{switchPath(s, "etc/lldpd.d/60-weft.conf"), 0o644, conf(s.Name)})
		}
	}
	return out
}

// RoCE writes a unit that sets priorities, flow control and marks on each RoCE
// NIC at boot; NICs forget them.
func RoCE(p *network.Plan) []File {
	r := p.Intent.RoCE
	var out []File
	for i := range p.Hosts {
		h := &p.Hosts[i]
		var t text
		t.line("#!/bin/sh")
		t.head(p, "#")
		t.line("set -eu")
		some := false
		for j := range h.Interfaces {
			x := &h.Interfaces[j]
			if x.Role != network.Backend || x.IB {
				continue
			}
			some = true
			pfc := [8]byte{'0', '0', '0', '0', '0', '0', '0', '0'}
			if r.Mode == "lossless" {
				pfc[r.Priority] = '1'
			}
			t.line("\n# %s: rail %d", x.Name, x.Rail)
			t.line("mlnx_qos -i %s --trust dscp", x.Name)
			t.line("mlnx_qos -i %s --dscp2prio set,%d,%d", x.Name, r.DSCP, r.Priority)
			t.line("mlnx_qos -i %s --dscp2prio set,%d,%d", x.Name, r.CNPDSCP, r.CNPPriority)
			t.line("mlnx_qos -i %s --pfc %s --cable_len %d # each alone would clear the other", x.Name, commas(pfc[:]), cableLength(p, x))
			t.line("echo 1 > /sys/class/net/%s/ecn/roce_np/enable/%d", x.Name, r.Priority)
			t.line("echo 1 > /sys/class/net/%s/ecn/roce_rp/enable/%d", x.Name, r.Priority)
			t.line("echo %d > /sys/class/net/%s/ecn/roce_np/cnp_dscp", r.CNPDSCP, x.Name)
			t.line("echo %d > /sys/class/net/%s/ecn/roce_np/cnp_802p_prio", r.CNPPriority, x.Name)
			t.line("dev=$(basename /sys/class/net/%s/device/infiniband/*)", x.Name)
			t.line("cma_roce_tos -d \"$dev\" -t %d # RDMA-CM only; NCCL takes NCCL_IB_TC", r.DSCP<<2|2)
		}
		if !some {
			continue
		}
		out = append(out, t.file(hostPath(h, "usr/local/sbin/weft-roce"), 0o755))
		var u text
		u.head(p, "#")
		u.line("[Unit]\nDescription=RoCE priorities and congestion control of the rails\nAfter=network-online.target\nWants=network-online.target\nConflicts=lldpad.service\n")
		u.line("[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/sbin/weft-roce\n")
		u.line("[Install]\nWantedBy=multi-user.target")
		out = append(out, u.file(hostPath(h, "etc/systemd/system/weft-roce.service"), 0o644))
	}
	return out
}

// cableLength is the length of an interface's cable in whole metres, at least 1.
func cableLength(p *network.Plan, x *network.Interface) int {
	if x.Link == network.None {
		return 5
	}
	return max(1, int(p.Graph.Metres(x.Link)+0.5))
}

func commas(b []byte) string {
	var out []string
	for _, c := range b {
		out = append(out, string(c))
	}
	return strings.Join(out, ",")
}
