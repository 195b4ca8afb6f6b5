package prove

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bridges of several switches are one where tunnels join them: packets of a host go to the switch that has the
// target, in packets from one tunnel's end to the other. So a pair of hosts on such a bridge is reachable where its
// switches reach one another's tunnel ends, with packets that are larger by the tunnel's header, and where BGP tells
// each switch of the others' addresses. Packets of bonded hosts go to any of the switches they are plugged into.

// tunnelHeader is what a tunnel puts around a packet: Ethernet, IPv4, UDP and VXLAN.
const tunnelHeader = 50

// Tunnel joins a bridge with those of other switches that have the same network.
type Tunnel struct {
	VNI int
	End netip.Addr // of this switch
	MTU int        // of the tunnel's device; 0 where there is none
}

// Bond makes one port of several.
type Bond struct {
	Legs    []*Port
	Segment string // the Ethernet segment of a switch's bond: its number and its system
	System  string // what LACP calls the switch

	port *Port
}

// bond is the bond that a port is.
func (d *Device) bond(p *Port) *Bond {
	if p.Bond == nil {
		p.Bond = &Bond{port: p}
	}
	return p.Bond
}

// legs names the ports of a bond.
func (b *Bond) legs(names []string) {
	for _, name := range names {
		if p := b.port.on.port(name); !slices.Contains(b.Legs, p) {
			p.Bond, b.Legs = b, append(b.Legs, p)
		}
	}
}

// alive are the legs of a host's bond that carry something: LACP takes the others out.
func (b *Bond) alive(f *failed) (out []*Port) {
	for _, p := range b.Legs {
		if p.Peer != nil && !f.cable(p.cable) && !f.router(p.Peer.Device.id) && !p.Peer.Device.cutOff(f) {
			out = append(out, p)
		}
	}
	return out
}

// answer asks by every leg: a packet takes any of them.
func (b *Bond) answer(a netip.Addr, f *failed) (out []*End, why string) {
	for _, p := range b.alive(f) {
		ends, why := p.answer(a, f)
		if why != "" {
			return nil, why
		}
		out = append(out, ends...)
	}
	if len(out) == 0 {
		return nil, fmt.Sprintf("%s:%s has no leg left", b.port.on.Name, b.port.Name)
	}
	return out, ""
}

// cutOff reports whether a switch has lost all ports that it watches, and has taken its bonds down.
func (d *Device) cutOff(f *failed) bool {
	watched := false
	for _, p := range d.ports {
		if !p.Tracked {
			continue
		}
		watched = true
		if p.Peer != nil && !f.cable(p.cable) && !(p.Peer.Device.Router && f.router(p.Peer.Device.id)) {
			return false
		}
	}
	return watched
}

// into makes a port a member of a VLAN interface's bridge.
func (p *Port) into(svi *Port) {
	if !slices.Contains(svi.Members, p) {
		p.Bridge, svi.Members = svi, append(svi.Members, p)
	}
}

// overlay reads lines of frr.conf about bridges and segments.
func (f *frrFile) overlay(line string, w []string) (known bool) {
	switch {
	case line == "advertise-all-vni":
		f.d.BGP.AllVNI = f.evpn
		return f.evpn
	case f.port == nil:
	case line == "evpn mh uplink":
		f.port.Tracked = true
		return true
	case len(w) == 4 && (w[2] == "es-id" || w[2] == "es-sys-mac"):
		f.d.bond(f.port).Segment += " " + w[3]
		return true
	}
	return false
}

// scripted is a device that a switch's script makes or puts somewhere.
type scripted struct {
	kind, master, system string
	vni, mtu, vlan       int
	table                string // of a VRF
	end                  netip.Addr
}

// script reads what a Linux switch makes of its ports: lines of ip and bridge.
func (n *Net) script(name string, data []byte) error {
	d := n.device(name, true)
	made := map[string]*scripted{}
	var order []string
	closed := map[string]bool{} // tables
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		w := strings.Fields(line)
		if idle(line) {
			continue
		}
		if table := ending.FindStringSubmatch(line); table != nil {
			closed[table[1]] = true
			continue
		}
		dev := after(w, "name") + after(w, "dev")
		if made[dev] == nil {
			made[dev] = &scripted{}
			order = append(order, dev)
		}
		known, err := made[dev].line(line, w)
		if err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		if !known {
			n.Unread = append(n.Unread, fmt.Sprintf("%s bridges: %s", name, line))
		}
	}
	for _, dev := range order {
		made[dev].put(d, dev, made)
		if made[dev].kind == "vrf" {
			d.vrf(dev).Closed = closed[made[dev].table]
		}
	}
	return nil
}

// idle reports whether a line of a script makes nothing.
func idle(line string) bool {
	return line == "" || line[0] == '#' || line == "set -e" || strings.HasPrefix(line, "ip link del ")
}

// ending is the line that ends the table of a VRF.
var ending = regexp.MustCompile(`^ip route add table (\d+) unreachable default( |$)`)

// after is the word behind another.
func after(w []string, key string) string {
	if i := slices.Index(w, key); i >= 0 && i+1 < len(w) {
		return w[i+1]
	}
	return ""
}

// line reads a line about a device.
func (x *scripted) line(line string, w []string) (known bool, err error) {
	number := func(key string, into *int) {
		if text := after(w, key); text != "" && err == nil {
			*into, err = strconv.Atoi(text)
		}
	}
	switch {
	case strings.HasPrefix(line, "ip link add name "):
		x.kind, x.system, x.table = after(w, "type"), after(w, "ad_actor_system"), after(w, "table")
		if x.kind == "vxlan" {
			number("id", &x.vni)
			if err == nil {
				x.end, err = netip.ParseAddr(after(w, "local"))
			}
		}
		return slices.Contains([]string{"bridge", "vxlan", "bond", "vrf"}, x.kind), err
	case strings.HasPrefix(line, "ip link set dev "):
		number("mtu", &x.mtu)
		if m := after(w, "master"); m != "" {
			x.master = m
		}
		return true, err
	case strings.HasPrefix(line, "bridge vlan add vid "):
		number("vid", &x.vlan)
		return strings.Contains(line, " pvid untagged "), err
	}
	return strings.HasPrefix(line, "bridge link set dev ") && strings.HasSuffix(line, " learning off"), nil
}

// put makes ports of what a script makes.
func (x *scripted) put(d *Device, name string, made map[string]*scripted) {
	master := made[x.master]
	if master == nil {
		master = &scripted{}
	}
	switch {
	case x.kind == "bond":
		d.bond(d.port(name)).System = x.system
	case master.kind == "bond":
		d.bond(d.port(x.master)).legs([]string{name})
	case master.kind == "vrf" && x.kind == "":
		d.port(name).VRF = d.vrf(x.master)
	}
	if master.kind != "bridge" || x.forVRF(d, master, made) {
		return
	}
	svi := d.port(fmt.Sprintf("%s vlan %d", x.master, x.vlan))
	if svi.Members == nil {
		svi.Members = []*Port{}
	}
	if x.kind == "vxlan" {
		svi.Tunnel = &Tunnel{VNI: x.vni, End: x.end, MTU: x.mtu}
		return
	}
	d.port(name).into(svi)
}

// forVRF makes a tunnel a VRF's, if its bridge is in one.
func (x *scripted) forVRF(d *Device, bridge *scripted, made map[string]*scripted) bool {
	above := made[bridge.master]
	if above == nil || above.kind != "vrf" || x.kind != "vxlan" {
		return false
	}
	d.vrf(bridge.master).Tunnel = &Tunnel{VNI: x.vni, End: x.end, MTU: x.mtu}
	return true
}

// sonicOverlay reads rows about tunnels, bonds and segments.
func (d *Device) sonicOverlay(table, first, second string, row map[string]any) (known bool, err error) {
	text := func(key string) string { s, _ := row[key].(string); return s }
	switch table {
	case "VXLAN_EVPN_NVO", "VXLAN_TUNNEL":
		if end := text("src_ip"); end != "" {
			d.end, err = netip.ParseAddr(end)
		}
		return true, err
	case "VXLAN_TUNNEL_MAP":
		svi := d.port(text("vlan"))
		svi.Tunnel = &Tunnel{}
		svi.Tunnel.VNI, err = strconv.Atoi(text("vni"))
		return true, err
	case "PORTCHANNEL":
		d.bond(d.port(first)).System = text("system_mac")
		return true, nil
	case "PORTCHANNEL_MEMBER":
		d.bond(d.port(first)).legs([]string{second})
		return true, nil
	case "EVPN_ETHERNET_SEGMENT": // frr.conf has its number
		return text("esi") == "AUTO" && text("type") == "TYPE_3_MAC_BASED", nil
	}
	return false, nil
}

// bundle puts the legs of switches' bonds into the bridges that the bonds are in.
func (n *Net) bundle() {
	for _, d := range n.Devices {
		if !d.Router {
			continue
		}
		for _, svi := range d.Ports {
			if svi.Tunnel != nil && !svi.Tunnel.End.IsValid() {
				svi.Tunnel.End = d.end // SONiC has one for all
			}
			svi.tunnelOfVRF()
			for _, m := range slices.Clone(svi.Members) {
				if m.Bond == nil || m.Bond.port != m {
					continue
				}
				svi.Members = slices.DeleteFunc(svi.Members, func(p *Port) bool { return p == m })
				for _, leg := range m.Bond.Legs {
					leg.into(svi)
				}
			}
		}
	}
}

// bridgedAt lists the switch ports by which a host's port is on a bridge that tunnels join; none where it is not.
func (p *Port) bridgedAt() (out []*Port) {
	list := []*Port{p}
	if p.Bond != nil {
		list = p.Bond.Legs
	}
	for _, leg := range list {
		if leg.Peer != nil && leg.Peer.Port.network() != 0 {
			out = append(out, leg.Peer.Port)
		}
	}
	return out
}

// holder is the host port behind a member of a bridge that has an address; nil if it does not.
func (p *Port) holder(a netip.Addr, f *failed) *Port {
	switch {
	case p.Peer == nil || f.cable(p.cable):
		return nil
	case p.Peer.Port.owns(a):
		return p.Peer.Port
	case p.Peer.Port.Bond != nil && p.Peer.Port.Bond.port.owns(a):
		return p.Peer.Port.Bond.port
	}
	return nil
}

// local finds the host with an address behind a bridge.
func (p *Port) local(a netip.Addr, f *failed) *Port {
	if p.on.cutOff(f) && slices.ContainsFunc(p.Members, func(m *Port) bool { return m.Bond != nil }) {
		return nil
	}
	for _, m := range p.Members {
		if h := m.holder(a, f); h != nil {
			return h
		}
	}
	return nil
}

// bridged follows a packet that a switch got by a bridge.
func (w *walker) bridged(d *Device, svi *Port) (hops []string, why string) {
	if w.failed.router(d.id) {
		return []string{d.Name}, d.Name + " is down"
	}
	if h := svi.local(w.dst, w.failed); h != nil {
		hops, why = w.from(h.on, h)
		w.good[d] = 1
		return append([]string{d.Name}, hops...), why
	}
	ends, why := w.net.tunnelEnds(d, svi, w.dst, w.failed)
	if why != "" {
		return []string{d.Name}, why
	}
	t := tunnelling{w: w, ends: ends, good: map[int32]int{}, arrive: func(r *Device) ([]string, string) {
		h := r.bridgeTo(svi.Tunnel.VNI).local(w.dst, w.failed)
		return w.from(h.on, h)
	}}
	t.rib = w.net.work.rib(ends, nil, w.failed, nil)
	hops, why = t.from(d)
	w.good[d] = t.good[d.id]
	return hops, why
}

// has says whether an address is behind one of the bridge's own ports. A switch without the bridge has none.
func (p *Port) has(dst netip.Addr, f *failed) bool { return p != nil && p.local(dst, f) != nil }

// tunnelEnds lists the switches to which a switch sends packets for an address of a bridge.
func (n *Net) tunnelEnds(d *Device, svi *Port, dst netip.Addr, f *failed) (ends []int32, why string) {
	if d.BGP == nil || !d.BGP.AllVNI {
		return nil, fmt.Sprintf("%s tells nobody of its bridges: advertise-all-vni is missing", d.Name)
	}
	found := false
	for _, r := range n.routers {
		p := r.bridgeTo(svi.Tunnel.VNI)
		if r == d || f.router(r.id) || !p.has(dst, f) {
			continue
		}
		found = true
		if n.told(r, d, p, f) {
			ends = append(ends, r.id)
		}
	}
	switch {
	case !found:
		return nil, fmt.Sprintf("nobody has %s on VXLAN network %d, which %s asks", dst, svi.Tunnel.VNI, d.Name)
	case len(ends) == 0:
		return nil, fmt.Sprintf("%s does not learn who has %s on VXLAN network %d", d.Name, dst, svi.Tunnel.VNI)
	}
	return ends, ""
}

// bridgeTo is the VLAN interface of a switch on a VXLAN network; nil if it has none.
func (d *Device) bridgeTo(vni int) *Port {
	for _, p := range d.ports {
		if p.Tunnel != nil && p.Tunnel.VNI == vni {
			return p
		}
	}
	return nil
}

// told reports whether a switch learns what is behind another's bridge, and the way to it.
func (n *Net) told(from, to *Device, svi *Port, f *failed) bool {
	return from.BGP != nil && from.BGP.AllVNI && n.tells(from, to, f) && n.learnt(from, svi.Tunnel)
}

// learnt reports whether others learn the way to the end of a switch's tunnel.
func (n *Net) learnt(d *Device, t *Tunnel) bool {
	x := n.prefixes[netip.PrefixFrom(t.End, 32)]
	return x != nil && slices.Contains(x.origins, d.id)
}

// tells reports whether what a switch says of its bridges comes to another.
func (n *Net) tells(from, to *Device, f *failed) bool {
	seen := map[int32]bool{from.id: true}
	for queue := []int32{from.id}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == to.id {
			return true
		}
		for _, e := range n.sessions[queue[0]] {
			if !seen[e.to] && !f.cable(e.cable) && !f.router(e.to) && n.cables[e.cable].speaksEVPN() {
				seen[e.to] = true
				queue = append(queue, e.to)
			}
		}
	}
	return false
}

// speaksEVPN reports whether both ends of a session carry where hardware addresses are.
func (c *cable) speaksEVPN() bool {
	for _, p := range []*Port{c.a, c.b} {
		if b := p.on.BGP; !b.EVPN[p.Name] && !b.EVPN[b.Groups[p.Name]] {
			return false
		}
	}
	return true
}

// tunnelling follows a packet inside a tunnel, over all paths.
type tunnelling struct {
	w      *walker
	ends   []int32
	rib    *rib
	good   map[int32]int
	arrive func(*Device) (hops []string, why string) // what the switch at the tunnel's end does with the packet
}

func (t *tunnelling) from(d *Device) (hops []string, why string) {
	hops = []string{d.Name}
	if slices.Contains(t.ends, d.id) {
		t.good[d.id] = 1
		more, why := t.arrive(d)
		return append(hops, more...), why
	}
	if t.good[d.id] > 0 {
		return hops, ""
	}
	var next []int32
	t.w.net.work.hops(t.rib, d.id, t.w.failed, func(e edge) { next = append(next, e.to) })
	if len(next) == 0 {
		return hops, fmt.Sprintf("%s has no route to the tunnel's end", d.Name)
	}
	for i, to := range next[:min(len(next), d.BGP.MaxPaths)] {
		more, why := t.from(t.w.net.routers[to])
		if i == 0 || why != "" {
			hops = append([]string{d.Name}, more...)
		}
		if why != "" {
			return hops, why
		}
		t.good[d.id] += max(1, t.good[to])
	}
	return hops, ""
}
