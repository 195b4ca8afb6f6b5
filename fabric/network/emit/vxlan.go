package emit

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/fabric/network"
)

// segmentMAC is the system address that the leaves of a bonded host show it: to LACP both are one switch. It is the
// same for all hosts, whose segments differ by number.
func segmentMAC(p *network.Plan) string {
	sum := digestOf([]string{"segment", p.Name})
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", sum[0], sum[1], sum[2], sum[3], sum[4])
}

// vnis lists a switch's VLANs that tunnels join with other leaves, with their VXLAN networks.
func vnis(s *network.Switch) map[int]int {
	out := map[int]int{}
	for _, q := range s.Ports {
		if q.VNI != 0 {
			out[q.VLAN] = q.VNI
		}
	}
	return out
}

// vrfsOf lists the VRFs of a switch: those of its host ports.
func vrfsOf(p *network.Plan, s *network.Switch) []*network.VRF {
	seen := map[int]*network.VRF{}
	for _, q := range s.Ports {
		if q.VRF != 0 {
			seen[q.VRF] = &p.VRFs[q.VRF-1]
		}
	}
	var out []*network.VRF
	for _, k := range sortedKeys(seen) {
		out = append(out, seen[k])
	}
	return out
}

// segmented reports whether bonded hosts are plugged into a switch.
func segmented(s *network.Switch) bool {
	return slices.ContainsFunc(s.Ports, func(q network.Port) bool { return q.Segment != 0 })
}

// BondName is the name of the bond of a bonded host's port on its switch; empty for other ports.
func BondName(p *network.Plan, s *network.Switch, q *network.Port) string {
	switch {
	case q.Segment == 0:
		return ""
	case p.Dialect(s) == "sonic":
		return fmt.Sprintf("PortChannel%d", q.Segment)
	}
	return fmt.Sprintf("bond%d", q.Segment)
}

// frrSegments writes the interfaces of bonds: which Ethernet segment each is, and who forwards broadcasts to it.
func (t *text) frrSegments(p *network.Plan, s *network.Switch) {
	for _, q := range s.Ports {
		if q.Segment == 0 {
			continue
		}
		// The leaf with the larger preference forwards what is for everybody. Numbers alternate, so leaves share the work.
		preference := 32767 - (s.Number+q.Segment)%2
		t.line("interface %s\n description %s\n evpn mh es-df-pref %d\n evpn mh es-id %d\n evpn mh es-sys-mac %s\nexit\n!",
			BondName(p, s, &q), peerName(p, &q), preference, q.Segment, segmentMAC(p))
	}
}

// bridgeScript makes the bridges, tunnels and bonds of a Linux switch. FRR only tells them where addresses are.
//
// A switch with bonds has one bridge that knows VLANs, as FRR finds the networks of a segment by them. Others have a plain
// bridge for each VLAN, which every kernel has.
func bridgeScript(p *network.Plan, s *network.Switch) []File {
	list, tables := vnis(s), vrfsOf(p, s)
	if len(list) == 0 && len(tables) == 0 {
		return nil
	}
	var t text
	t.line("#!/bin/sh")
	t.head(p, "#")
	aware := segmented(s)
	t.line("# Bridges, tunnels, bonds and VRFs of the host ports.")
	if aware {
		t.line("# Linux before 6.6 delivers broadcasts to bonded hosts twice, and does not pass packets for a host whose cable here is\n# cut on to its other leaf.")
	}
	t.line("set -e")
	t.vrfs(p, s, tables)
	if aware {
		t.line("ip link del fabric 2>/dev/null || true")
		t.line("ip link add name fabric type bridge vlan_filtering 1 vlan_default_pvid 0 stp_state 0 mcast_snooping 0")
		t.line("ip link set dev fabric mtu %d addrgenmode none up", network.SwitchMTU)
	}
	for _, vlan := range sortedKeys(list) {
		bridge := "fabric"
		if !aware {
			bridge = fmt.Sprintf("br%d", vlan)
			t.line("ip link del %s 2>/dev/null || true", bridge)
			t.line("ip link add name %s type bridge stp_state 0 mcast_snooping 0", bridge)
			t.line("ip link set dev %s mtu %d addrgenmode none up", bridge, network.SwitchMTU)
		}
		tunnel := fmt.Sprintf("vx%d", vlan)
		t.line("ip link del %s 2>/dev/null || true", tunnel)
		t.line("ip link add name %s type vxlan id %d dstport 4789 local %s nolearning ttl 64", tunnel, list[vlan], s.Loopback)
		t.line("ip link set dev %s mtu %d master %s addrgenmode none up", tunnel, network.SwitchMTU-network.TunnelHeader, bridge)
		t.line("bridge link set dev %s neigh_suppress on learning off", tunnel)
		t.member(aware, tunnel, vlan)
	}
	for _, q := range s.Ports {
		if q.VNI != 0 {
			t.hostPort(p, s, &q, aware)
		}
	}
	var u text
	u.head(p, "#")
	u.line("[Unit]\nDescription=Bridges, tunnels, bonds and VRFs of the host ports\nBefore=frr.service network-online.target\nAfter=network.target\n")
	u.line("[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/local/sbin/weft-bridges\n\n[Install]\nWantedBy=multi-user.target")
	return []File{t.file(switchPath(s, "usr/local/sbin/weft-bridges"), 0o755),
		u.file(switchPath(s, "etc/systemd/system/weft-bridges.service"), 0o644)}
}

// vrfs makes the VRFs of a switch, their tunnels, and puts host ports into them. The bridge of a tunnel is where the VRF's packets enter
// it; its hardware address is what other leaves send them to.
func (t *text) vrfs(p *network.Plan, s *network.Switch, list []*network.VRF) {
	for _, v := range list {
		bridge, tunnel := fmt.Sprintf("br%d", v.VLAN), fmt.Sprintf("vx%d", v.VLAN)
		for _, dev := range []string{tunnel, bridge, v.Name} {
			t.line("ip link del %s 2>/dev/null || true", dev)
		}
		t.line("ip link add name %s type vrf table %d", v.Name, v.Table)
		t.line("ip link set dev %s up", v.Name)
		t.line("# Without it Linux would go on in the main table for what the VRF has no route to.")
		t.line("ip route add table %d unreachable default metric %d", v.Table, network.LastMetric)
		t.line("ip link add name %s address %s type bridge stp_state 0 mcast_snooping 0", bridge, standInMAC(s.Name))
		t.line("ip link set dev %s mtu %d addrgenmode none master %s up", bridge, network.SwitchMTU-network.TunnelHeader, v.Name)
		t.line("ip link add name %s type vxlan id %d dstport 4789 local %s nolearning ttl 64", tunnel, v.VNI, s.Loopback)
		t.line("ip link set dev %s mtu %d master %s addrgenmode none up", tunnel, network.SwitchMTU-network.TunnelHeader, bridge)
		t.line("bridge link set dev %s neigh_suppress on learning off", tunnel)
	}
	for _, q := range s.Ports {
		if q.VRF != 0 {
			t.line("ip link set dev %s master %s", PortName(p, s, q.Number), p.VRFs[q.VRF-1].Name)
		}
	}
}

// frrVRFs writes the routing of VRFs: routes to their host links go to the other leaves by EVPN.
func (t *text) frrVRFs(p *network.Plan, s *network.Switch) {
	for _, v := range vrfsOf(p, s) {
		t.line("router bgp %d vrf %s\n bgp router-id %s\n bgp bestpath as-path multipath-relax", s.ASN, v.Name, s.Loopback)
		t.line(" !\n address-family ipv4 unicast\n  redistribute connected route-map OURS\n  maximum-paths 64\n exit-address-family")
		t.line(" !\n address-family l2vpn evpn\n  advertise ipv4 unicast\n exit-address-family\nexit\n!")
	}
}

// hostPort puts a port, or the bond that it is in, into its bridge.
func (t *text) hostPort(p *network.Plan, s *network.Switch, q *network.Port, aware bool) {
	port := PortName(p, s, q.Number)
	name := port
	if bond := BondName(p, s, q); bond != "" {
		name = bond
		t.line("ip link del %s 2>/dev/null || true", bond)
		t.line("ip link add name %s type bond mode 802.3ad lacp_rate fast miimon 100 min_links 1 xmit_hash_policy layer3+4 ad_actor_system %s",
			bond, segmentMAC(p))
		t.line("ip link set dev %s mtu %d addrgenmode none", bond, q.MTU)
		t.line("ip link set dev %s down\nip link set dev %s master %s\nip link set dev %s up", port, port, bond, port)
	}
	bridge := fmt.Sprintf("br%d", q.VLAN)
	if aware {
		bridge = "fabric"
	}
	t.line("ip link set dev %s master %s up", name, bridge)
	t.member(aware, name, q.VLAN)
}

// member puts a device of a bridge that knows VLANs into one of them.
func (t *text) member(aware bool, name string, vlan int) {
	if aware {
		t.line("bridge vlan add vid %d pvid untagged dev %s", vlan, name)
	}
}

// sonicOverlay writes the tables of tunnels, bonds and Ethernet segments.
func sonicOverlay(p *network.Plan, s *network.Switch, db map[string]table) {
	list, tables := vnis(s), vrfsOf(p, s)
	if len(list) == 0 && len(tables) == 0 {
		return
	}
	for _, v := range tables {
		name := fmt.Sprintf("Vlan%d", v.VLAN)
		put(db, "VRF", v.Name, map[string]any{"vni": fmt.Sprint(v.VNI)})
		put(db, "VLAN", name, map[string]any{"vlanid": fmt.Sprint(v.VLAN)})
		put(db, "VLAN_INTERFACE", name, map[string]any{"vrf_name": v.Name})
		put(db, "VXLAN_TUNNEL_MAP", fmt.Sprintf("vtep|map_%d_%s", v.VNI, name), map[string]any{"vlan": name, "vni": fmt.Sprint(v.VNI)})
	}
	put(db, "VXLAN_TUNNEL", "vtep", map[string]any{"src_ip": s.Loopback.String()})
	put(db, "VXLAN_EVPN_NVO", "nvo", map[string]any{"source_vtep": "vtep"})
	for _, vlan := range sortedKeys(list) {
		name := fmt.Sprintf("Vlan%d", vlan)
		put(db, "VXLAN_TUNNEL_MAP", fmt.Sprintf("vtep|map_%d_%s", list[vlan], name), map[string]any{"vlan": name, "vni": fmt.Sprint(list[vlan])})
	}
	for _, q := range s.Ports {
		if bond := BondName(p, s, &q); bond != "" {
			put(db, "PORTCHANNEL", bond, map[string]any{"admin_status": "up", "mtu": fmt.Sprint(q.MTU), "lacp_key": "auto", "fast_rate": "true",
				"min_links": "1", "system_mac": segmentMAC(p), "description": peerName(p, &q)})
			put(db, "PORTCHANNEL_MEMBER", bond+"|"+PortName(p, s, q.Number), map[string]any{})
			put(db, "EVPN_ETHERNET_SEGMENT", bond, map[string]any{"esi": "AUTO", "type": "TYPE_3_MAC_BASED",
				"df_pref": fmt.Sprint(32767 - (s.Number+q.Segment)%2)})
		}
	}
}
