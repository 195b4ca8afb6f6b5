package emit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
)

// panel is where a port is on the front of a switch: which cage, and which leg
// of it where a cage holds several ports.
type panel struct{ cage, leg, legs int }

// splitInto says into how many ports each of a switch's whole ones is split, 1 where the numbers do not go into one another.
func splitInto(ports, whole int) int {
	if whole > 0 && ports > whole && ports%whole == 0 {
		return ports / whole
	}
	return 1
}

// panelOf finds a port's cage. A switch whose ports are split has several legs a
// cage, and so have Quantum-2 switches as sold.
func panelOf(p *network.Plan, s *network.Switch, number int) panel {
	node := &p.Graph.Nodes[s.Node]
	legs := 1
	if sw, ok := p.Catalog.Switches[node.Model]; ok {
		legs = max(1, sw.PerCage) * splitInto(int(node.Ports), sw.Ports)
		if base, split, ok := strings.Cut(node.Model, "-"); ok && split != "" { // "SN5600-400": every port split
			legs *= splitInto(sw.Ports, p.Catalog.Switches[base].Ports)
		}
	}
	return panel{(number-1)/legs + 1, (number - 1) % legs, legs}
}

// swp is the name of a port in Cumulus and FRR: swp1, or swp1s0 for a leg.
func (x panel) swp() string {
	if x.legs == 1 {
		return fmt.Sprintf("swp%d", x.cage)
	}
	return fmt.Sprintf("swp%ds%d", x.cage, x.leg)
}

// PortName is the name of a switch port in the switch's own dialect: swp1, or swp1s0
// for a leg of a split one; in SONiC Ethernet0. InfiniBand ports are named by cage and leg: 1/1.
func PortName(p *network.Plan, s *network.Switch, number int) string {
	x := panelOf(p, s, number)
	switch p.Dialect(s) {
	case "":
	case "sonic":
		return x.sonic()
	default:
		return x.swp()
	}
	if x.legs == 1 {
		return fmt.Sprint(x.cage)
	}
	return fmt.Sprintf("%d/%d", x.cage, x.leg+1)
}

// lanesOf is how many serial lanes a cage has.
const lanesOf = 8

// sonic is the name of a port in SONiC: the number of its first lane, in the order of cages.
func (x panel) sonic() string {
	return fmt.Sprintf("Ethernet%d", lanesOf*(x.cage-1)+lanesOf/x.legs*x.leg)
}

// peerName says in words what is plugged in: "n0:nic0" or "spine3:swp7".
func peerName(p *network.Plan, q *network.Port) string {
	if q.Host != network.None {
		return p.Graph.NodeName(q.Peer)
	}
	sw, port := p.Far(q)
	if sw == nil {
		return p.Graph.NodeName(q.Peer)
	}
	return sw.Name + ":" + PortName(p, sw, port.Number)
}

func switchPath(s *network.Switch, path string) string { return "switches/" + s.Name + "/" + path }

// bridged reports whether the switch's host ports are members of a VLAN, with
// one gateway for all, instead of routed links of their own.
func bridged(p *network.Plan, s *network.Switch) bool {
	return slices.ContainsFunc(s.Ports, func(q network.Port) bool { return q.VLAN != 0 })
}

// gateways lists the addresses of a switch in its VLANs.
func gateways(p *network.Plan, s *network.Switch) map[int][]netip.Prefix {
	out := map[int][]netip.Prefix{}
	for _, q := range s.Ports {
		if q.VLAN != 0 && q.Addr.IsValid() && !slices.Contains(out[q.VLAN], q.Addr) {
			out[q.VLAN] = append(out[q.VLAN], q.Addr)
		}
	}
	return out
}

// FRR writes the routing of every Ethernet switch: BGP without numbered links,
// every path of equal length used, BFD where the plan wants it.
func FRR(p *network.Plan) []File {
	var out []File
	for _, s := range switchesIn(p, "frr") {
		t := frrConf(p, s, func(number int) string { return panelOf(p, s, number).swp() })
		out = append(out, t.file(switchPath(s, "etc/frr/frr.conf"), 0o640))
		var d text
		d.head(p, "#")
		d.line("zebra=yes\nbgpd=yes\nbfdd=%s\nvtysh_enable=yes", map[bool]string{true: "yes", false: "no"}[p.Intent.Routing.Multiplier > 0])
		out = append(out, d.file(switchPath(s, "etc/frr/daemons"), 0o640))
		var k text
		k.head(p, "#")
		k.line("net.ipv4.ip_forward = 1\nnet.ipv6.conf.all.forwarding = 1")
		k.line("# Flows are spread by addresses and ports; by addresses alone a pair of hosts has one path.")
		k.line("net.ipv4.fib_multipath_hash_policy = 1")
		k.line("# A link without carrier carries nothing, whatever its route says.")
		k.line("net.ipv4.conf.all.ignore_routes_with_linkdown = 1\nnet.ipv4.conf.default.ignore_routes_with_linkdown = 1\nnet.ipv6.conf.all.ignore_routes_with_linkdown = 1\nnet.ipv6.conf.default.ignore_routes_with_linkdown = 1")
		out = append(out, k.file(switchPath(s, "etc/sysctl.d/60-weft.conf"), 0o644))
		var u text
		u.head(p, "#")
		u.line("# FRR does not set MTUs. Ports carry hosts' frames whole, and what tunnels put around them.")
		for _, q := range s.Ports {
			u.line("SUBSYSTEM==\"net\", ACTION==\"add|move\", KERNEL==%q, ATTR{mtu}=\"%d\"", PortName(p, s, q.Number), q.MTU)
		}
		out = append(out, u.file(switchPath(s, "etc/udev/rules.d/60-weft-mtu.rules"), 0o644))
		out = append(out, bridgeScript(p, s)...)
	}
	return out
}

// frrConf writes the routing of a switch with ports named by name.
func frrConf(p *network.Plan, s *network.Switch, name func(int) string) *text {
	var t text
	in := p.Intent
	t.head(p, "!")
	t.line("frr defaults datacenter\nhostname %s\nservice integrated-vtysh-config", s.Name)
	t.line("! FRR 8 with next-hop groups of the kernel does not take a repaired path back.")
	t.line("no zebra nexthop kernel enable\n!")
	if segmented(s) {
		t.line("! Bonds stay down until a switch that boots has learnt where addresses are.\nevpn mh startup-delay 60\n!")
	}
	for _, v := range vrfsOf(p, s) {
		t.line("vrf %s\n vni %d\nexit-vrf\n!", v.Name, v.VNI)
	}
	t.line("interface lo\n ip address %s/32\nexit\n!", s.Loopback)
	for _, q := range s.Ports {
		t.line("interface %s\n description %s", name(q.Number), peerName(p, &q))
		if q.Addr.IsValid() && q.VLAN == 0 {
			t.line(" ip address %s", q.Addr)
		}
		if q.Host == network.None { // neighbours find one another by advertisements: often, so that a repaired link is used at once
			t.line(" ipv6 nd ra-interval 1\n no ipv6 nd suppress-ra")
			if segmented(s) { // a leaf that lost all of these takes its bonds down, so that hosts use their other leaf
				t.line(" evpn mh uplink")
			}
		}
		t.line("exit\n!")
	}
	t.frrSegments(p, s)
	g := gateways(p, s)
	for _, vlan := range sortedKeys(g) {
		t.line("interface %s%d", map[bool]string{true: "Vlan", false: "vlan"}[p.Dialect(s) == "sonic"], vlan)
		for _, a := range g[vlan] {
			t.line(" ip address %s", a)
		}
		t.line("exit\n!")
	}
	t.line("ip prefix-list OURS seq 5 permit %s ge 32", in.Loopbacks)
	t.line("ip prefix-list OURS seq 10 permit %s le 32", in.Backend.Prefix)
	t.line("ip prefix-list OURS seq 15 permit %s le 32\n!", in.Storage.Prefix)
	t.line("route-map OURS permit 10\n match ip address prefix-list OURS\nexit\n!")
	if in.Routing.Multiplier > 0 {
		ms := in.Routing.BFD.Milliseconds()
		t.line("bfd\n profile fabric\n  detect-multiplier %d\n  receive-interval %d\n  transmit-interval %d\n exit\n !\nexit\n!",
			in.Routing.Multiplier, ms, ms)
	}
	t.line("router bgp %d\n bgp router-id %s\n bgp bestpath as-path multipath-relax", s.ASN, s.Loopback)
	t.line(" neighbor FABRIC peer-group\n neighbor FABRIC remote-as external\n neighbor FABRIC advertisement-interval 0\n neighbor FABRIC timers connect 1")
	if in.Routing.Multiplier > 0 {
		t.line(" neighbor FABRIC bfd profile fabric")
	}
	if in.Routing.Password != "" {
		t.line(" neighbor FABRIC password %s", string(in.Routing.Password))
	}
	if in.Routing.TTLSecurity {
		t.line(" neighbor FABRIC ttl-security hops 1")
	}
	for _, q := range s.Ports {
		if q.Host == network.None {
			t.line(" neighbor %s interface v6only peer-group FABRIC", name(q.Number))
		}
	}
	t.line(" !\n address-family ipv4 unicast\n  redistribute connected route-map OURS\n  maximum-paths 64\n exit-address-family")
	if p.Bridged {
		t.line(" !\n address-family l2vpn evpn\n  neighbor FABRIC activate")
		if len(vnis(s)) > 0 || len(vrfsOf(p, s)) > 0 {
			t.line("  advertise-all-vni")
		}
		t.line(" exit-address-family")
	}
	t.line("exit\n!")
	t.frrVRFs(p, s)
	t.line("end")
	return &t
}

func sortedKeys[V any](m map[int]V) []int {
	var out []int
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// SONiC writes config_db.json with ports, addresses, VLANs and the queues of
// RoCE, and frr.conf for the routing (mode split-unified).
func SONiC(p *network.Plan) []File {
	var out []File
	for _, s := range switchesIn(p, "sonic") {
		db, err := configDB(p, s)
		if err != nil {
			continue // Make refuses the plan
		}
		data, err := json.MarshalIndent(db, "", "  ")
		if err != nil {
			continue // maps of strings always marshal
		}
		out = append(out, File{switchPath(s, "etc/sonic/config_db.json"), 0o644, append(data, '\n')})
		t := frrConf(p, s, func(number int) string { return panelOf(p, s, number).sonic() })
		out = append(out, t.file(switchPath(s, "etc/sonic/frr/frr.conf"), 0o640))
	}
	return out
}

type table = map[string]map[string]any

// configDB makes the tables. All values are strings, as SONiC has them.
func configDB(p *network.Plan, s *network.Switch) (map[string]table, error) {
	in := p.Intent
	kind, sku, err := platformOf(p, s)
	if err != nil {
		return nil, err
	}
	// SONiC takes the offset of its hash from the type: 10 for LeafRouter, 0 for the others. Neighbouring tiers
	// must differ, or the upper one leaves paths unused. These are SONiC's own names for tiers 0, 1 and 2.
	role := []string{"ToRRouter", "LeafRouter", "SpineRouter"}[min(max(s.Tier, 1), 3)-1]
	meta := map[string]any{"hostname": s.Name, "type": role, "bgp_asn": fmt.Sprint(s.ASN), "docker_routing_config_mode": "split-unified",
		"mac":   standInMAC(s.Name),
		"hwsku": sku, "platform": kind.name}
	buffers := kind.dynamic && in.RoCE.Mode == "lossless"
	if buffers {
		meta["buffer_model"] = "dynamic"
	}
	db := map[string]table{
		"DEVICE_METADATA":    {"localhost": meta},
		"LOOPBACK_INTERFACE": {"Loopback0": {}, "Loopback0|" + s.Loopback.String() + "/32": {}},
		"MGMT_PORT":          {"eth0": {"alias": "eth0", "admin_status": "up"}},
		"MGMT_INTERFACE":     {"eth0|" + s.Mgmt.String(): {"gwaddr": managementGateway(p).String()}},
		"PORT":               {}, "INTERFACE": {}, "DEVICE_NEIGHBOR": {}, "CABLE_LENGTH": {"AZURE": {}},
		"LLDP":        {"GLOBAL": {"enabled": "true", "hello_time": "30"}},
		"SWITCH_HASH": {"GLOBAL": {"ecmp_hash": []string{"SRC_IP", "DST_IP", "IP_PROTOCOL", "L4_SRC_PORT", "L4_DST_PORT"}}},
	}
	for _, q := range s.Ports {
		x := panelOf(p, s, q.Number)
		name := x.sonic()
		rate := int(float64(p.Graph.Class(q.Link).Rate) * 8 / 1e6)
		db["PORT"][name] = map[string]any{"lanes": kind.lanes(x), "alias": kind.alias(x), "index": fmt.Sprint(x.cage),
			"speed": fmt.Sprint(nearestSpeed(rate)),
			"mtu":   "9216", "admin_status": "up", "fec": "rs", "description": peerName(p, &q)}
		if m, ok := kind.length(p.Graph.Metres(q.Link)); ok {
			db["CABLE_LENGTH"]["AZURE"][name] = fmt.Sprintf("%dm", m)
		}
		neighbour, port, _ := strings.Cut(peerName(p, &q), ":")
		db["DEVICE_NEIGHBOR"][name] = map[string]any{"name": neighbour, "port": port}
		switch {
		case q.VLAN != 0:
			put(db, "VLAN", fmt.Sprintf("Vlan%d", q.VLAN), map[string]any{"vlanid": fmt.Sprint(q.VLAN)})
			put(db, "VLAN_MEMBER", fmt.Sprintf("Vlan%d|%s", q.VLAN, cmp.Or(BondName(p, s, &q), name)), map[string]any{"tagging_mode": "untagged"})
		case q.Host == network.None:
			db["INTERFACE"][name] = map[string]any{"ipv6_use_link_local_only": "enable"}
		case q.Addr.IsValid():
			db["INTERFACE"][name] = map[string]any{}
			if q.VRF != 0 {
				db["INTERFACE"][name]["vrf_name"] = p.VRFs[q.VRF-1].Name
			}
			db["INTERFACE"][name+"|"+q.Addr.String()] = map[string]any{}
		}
		if in.RoCE.Mode == "lossless" {
			sonicQueues(db, in.RoCE.Priority, in.RoCE.CNPPriority, name)
		}
		if buffers {
			sonicPortBuffers(db, name, in.RoCE.Priority, in.RoCE.CNPPriority)
		}
	}
	sonicOverlay(p, s, db)
	g := gateways(p, s)
	for _, vlan := range sortedKeys(g) {
		name := fmt.Sprintf("Vlan%d", vlan)
		put(db, "VLAN_INTERFACE", name, map[string]any{})
		for _, a := range g[vlan] {
			put(db, "VLAN_INTERFACE", name+"|"+a.String(), map[string]any{})
		}
	}
	if in.RoCE.Mode == "lossless" {
		r := in.RoCE
		prio, cnp := fmt.Sprint(r.Priority), fmt.Sprint(r.CNPPriority)
		db["DSCP_TO_TC_MAP"] = table{"AZURE": {"0": "0", fmt.Sprint(r.DSCP): prio, fmt.Sprint(r.CNPDSCP): cnp}}
		db["TC_TO_QUEUE_MAP"] = table{"AZURE": {"0": "0", prio: prio, cnp: cnp}}
		db["TC_TO_PRIORITY_GROUP_MAP"] = table{"AZURE": {"0": "0", prio: prio, cnp: "0"}}
		db["MAP_PFC_PRIORITY_TO_QUEUE"] = table{"AZURE": {prio: prio}}
		db["WRED_PROFILE"] = table{"ROCE": {"ecn": "ecn_all", "wred_green_enable": "true", "green_min_threshold": fmt.Sprint(int64(r.ECNMin)),
			"green_max_threshold": fmt.Sprint(int64(r.ECNMax)), "green_drop_probability": fmt.Sprint(r.Probability)}}
		db["SCHEDULER"] = table{"roce": {"type": "DWRR", "weight": "50"}, "cnp": {"type": "STRICT"}}
	}
	if buffers {
		sonicBuffers(db)
	}
	for name, rows := range db {
		if len(rows) == 0 {
			delete(db, name)
		}
	}
	return db, nil
}

// managementGateway is the gateway of the management network: the one that is stated, or the first address.
func managementGateway(p *network.Plan) netip.Addr {
	if m := &p.Intent.Management; m.Gateway.IsValid() {
		return m.Gateway
	}
	return p.Intent.Management.Prefix.Addr().Next()
}

func put(db map[string]table, name, key string, row map[string]any) {
	if db[name] == nil {
		db[name] = table{}
	}
	db[name][key] = row
}

// sonicQueues binds a port to the maps, marks, schedulers and watchdog of RoCE.
func sonicQueues(db map[string]table, prio, cnp int, port string) {
	put(db, "PORT_QOS_MAP", port, map[string]any{"dscp_to_tc_map": "AZURE", "tc_to_queue_map": "AZURE", "tc_to_pg_map": "AZURE",
		"pfc_to_queue_map": "AZURE",
		"pfc_enable":       fmt.Sprint(prio), "pfcwd_sw_enable": fmt.Sprint(prio)})
	put(db, "QUEUE", fmt.Sprintf("%s|%d", port, prio), map[string]any{"scheduler": "roce", "wred_profile": "ROCE"})
	put(db, "QUEUE", fmt.Sprintf("%s|%d", port, cnp), map[string]any{"scheduler": "cnp"})
	put(db, "PFC_WD", port, map[string]any{"action": "drop", "detection_time": "400", "restoration_time": "400"})
	put(db, "PFC_WD", "GLOBAL", map[string]any{"POLL_INTERVAL": "200"})
}

// nearestSpeed is the speed in Mb/s that a port is sold with.
func nearestSpeed(mbit int) int {
	speeds := []int{1000, 10000, 25000, 40000, 50000, 100000, 200000, 400000, 800000}
	best := speeds[0]
	for _, s := range speeds {
		if abs(s-mbit) < abs(best-mbit) {
			best = s
		}
	}
	return best
}

func abs(x int) int { return max(x, -x) }

// standInMAC makes a locally administered address of a name.
func standInMAC(name string) string {
	sum := digestOf([]string{"mac", name})
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

// nvuePorts writes the ports, the VLANs' interfaces and the bridge that joins them.
func nvuePorts(t *text, p *network.Plan, s *network.Switch) {
	for _, q := range s.Ports {
		t.line("      %s:\n        type: swp\n        description: %q\n        link:\n          mtu: %d\n          state:\n            up: {}",
			panelOf(p, s, q.Number).swp(), peerName(p, &q), q.MTU)
		switch {
		case q.VLAN != 0:
			t.line("        bridge:\n          domain:\n            br_default:\n              access: %d", q.VLAN)
		case q.Addr.IsValid():
			t.line("        ipv4:\n          address:\n            %s: {}", q.Addr)
		}
	}
	g := gateways(p, s)
	for _, vlan := range sortedKeys(g) {
		t.line("      vlan%d:\n        type: svi\n        vlan: %d\n        ipv4:\n          address:", vlan, vlan)
		for _, a := range g[vlan] {
			t.line("            %s: {}", a)
		}
	}
	if len(g) > 0 || bridged(p, s) {
		t.line("    bridge:\n      domain:\n        br_default:\n          vlan:")
		for _, vlan := range vlansOf(s) {
			t.line("            '%d': {}", vlan)
		}
	}
}

// NVUE writes startup.yaml for Cumulus Linux 5.15 and later, whose tree differs
// from that of earlier ones.
func NVUE(p *network.Plan) []File {
	var out []File
	in := p.Intent
	for _, s := range switchesIn(p, "nvue") {
		var t text
		t.head(p, "#")
		t.line("# For Cumulus Linux 5.15 and later. No program here reads it: look at `nv config diff` before `nv config apply`.")
		t.line("- set:\n    system:\n      hostname: %s", s.Name)
		t.line("    interface:")
		t.line("      lo:\n        type: loopback\n        ipv4:\n          address:\n            %s/32: {}", s.Loopback)
		t.line("      eth0:\n        type: eth\n        ipv4:\n          address:\n            %s: {}", s.Mgmt)
		nvuePorts(&t, p, s)
		if in.RoCE.Mode == "lossless" {
			t.line("    qos:\n      roce:\n        mode: lossless\n        state: enabled")
		}
		t.line("    router:\n      bgp:\n        state: enabled\n        autonomous-system: %d\n        router-id: %s", s.ASN, s.Loopback)
		if in.Routing.Multiplier > 0 {
			t.line("      bfd:\n        state: enabled\n        profile:\n          fabric:\n            detect-multiplier: %d\n            min-rx-interval: %d\n            min-tx-interval: %d",
				in.Routing.Multiplier, in.Routing.BFD.Milliseconds(), in.Routing.BFD.Milliseconds())
		}
		t.line("      adaptive-routing:\n        state: enabled")
		t.line("      policy:\n        prefix-list:\n          OURS:\n            rule:")
		for k, pre := range []string{in.Loopbacks.String(), in.Backend.Prefix.String(), in.Storage.Prefix.String()} {
			t.line("              '%d':\n                action: permit\n                match:\n                  %s:\n                    max-prefix-len: 32",
				5*(k+1), pre)
		}
		t.line("        route-map:\n          OURS:\n            rule:\n              '10':\n                action:\n                  permit: {}\n                match:\n                  ip-prefix-list: OURS")
		t.line("    vrf:\n      default:\n        router:\n          bgp:\n            state: enabled\n            path-selection:\n              multipath:\n                aspath-ignore: enabled")
		t.line("            address-family:\n              ipv4-unicast:\n                state: enabled\n                multipaths:\n                  ebgp: 64\n                redistribute:\n                  connected:\n                    state: enabled\n                    route-map: OURS")
		t.line("            peer-group:\n              FABRIC:\n                remote-as: external")
		if in.Routing.Multiplier > 0 {
			t.line("                bfd:\n                  state: enabled\n                  profile: fabric")
		}
		t.line("            neighbor:")
		for _, q := range s.Ports {
			if q.Host == network.None {
				t.line("              %s:\n                type: unnumbered\n                peer-group: FABRIC", panelOf(p, s, q.Number).swp())
			}
		}
		out = append(out, t.file(switchPath(s, "etc/nvue.d/startup.yaml"), 0o644))
	}
	return out
}

func vlansOf(s *network.Switch) []int {
	seen := map[int]bool{}
	for _, q := range s.Ports {
		if q.VLAN != 0 {
			seen[q.VLAN] = true
		}
	}
	return sortedKeys(seen)
}

// PTM writes the wiring for Cumulus' topology check: one file for all switches.
func PTM(p *network.Plan) []File {
	var t text
	t.head(p, "//")
	t.line("graph %q {", p.Name)
	for i := range p.Switches {
		s := &p.Switches[i]
		if s.IB {
			continue
		}
		for _, q := range s.Ports {
			far, port, _ := strings.Cut(peerName(p, &q), ":")
			if q.Host == network.None && far < s.Name { // once a cable
				continue
			}
			if q.Host != network.None && q.Iface != network.None {
				port = p.Hosts[q.Host].Interfaces[q.Iface].Name
			}
			t.line("  %q:%q -- %q:%q;", s.Name, PortName(p, s, q.Number), far, port)
		}
	}
	t.line("}")
	return []File{t.file("fabric/etc/ptm.d/topology.dot", 0o644)}
}
