package prove

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A VRF is a routing table of its own on a switch, for the ports that are in it. EVPN carries its routes to other switches that
// have a VRF with the same number, and a tunnel its packets: to the prover such VRFs are one network of tunnels, as bridges
// are, whose hosts are told apart by routes instead of hardware addresses.

// VRF is a routing table of a switch.
type VRF struct {
	Name      string
	VNI       int     // by which EVPN and the tunnel know it; 0 where no line says
	Tunnel    *Tunnel // nil without one
	Connected string  // the route-map by which its networks are advertised; "" if they are not
	Advertise bool    // its routes go to other switches
	ASN       uint32  // 0 where BGP does not know it
	Closed    bool    // what it has no route to ends there; on Linux it otherwise goes on in the main table

	on *Device
}

// vrf is a VRF of a switch by its name.
func (d *Device) vrf(name string) *VRF {
	if d.VRFs == nil {
		d.VRFs = map[string]*VRF{}
	}
	if d.VRFs[name] == nil {
		d.VRFs[name] = &VRF{Name: name, on: d}
	}
	return d.VRFs[name]
}

// table reads lines about VRFs. mine says whether the line is about one, known whether the model uses it.
func (f *frrFile) table(line string, w []string) (mine, known bool, err error) {
	switch w[0] {
	case "vrf":
		f.vrf = f.d.vrf(w[len(w)-1])
		return true, len(w) == 2, nil
	case "router":
		f.vrf = nil
		if len(w) != 5 || w[3] != "vrf" {
			return false, false, nil
		}
		f.vrf = f.d.vrf(w[4])
		asn, err := strconv.ParseUint(w[2], 10, 32)
		f.vrf.ASN = uint32(asn)
		return true, true, err
	case "exit-vrf", "interface":
		f.vrf = nil
	}
	if f.vrf == nil || w[0] == "address-family" || strings.HasPrefix(w[0], "exit") {
		return false, false, nil
	}
	known, err = f.vrf.line(line, w)
	return true, known, err
}

// inVRF reads what stands behind the name of an interface: nothing, or its VRF.
func (f *frrFile) inVRF(w []string) (known bool) {
	if len(w) == 4 && w[2] == "vrf" {
		f.port.VRF = f.d.vrf(w[3])
		return true
	}
	return len(w) == 2
}

// line reads a line inside a VRF.
func (v *VRF) line(line string, w []string) (known bool, err error) {
	switch {
	case w[0] == "vni" && len(w) == 2:
		return true, v.number(w[1])
	case strings.HasPrefix(line, "redistribute connected route-map ") && len(w) == 4:
		v.Connected = w[3]
		return true, nil
	case line == "advertise ipv4 unicast":
		v.Advertise = true
		return true, nil
	}
	return w[0] == "maximum-paths" || strings.HasPrefix(line, "bgp router-id ") || line == "bgp bestpath as-path multipath-relax", nil
}

// sonicVRF reads which VRF a row of config_db.json is about; it makes no difference to the row's other fields.
func (d *Device) sonicVRF(table, first string, row map[string]any) (known bool, err error) {
	text := func(key string) string { s, _ := row[key].(string); return s }
	if name := text("vrf_name"); name != "" {
		d.port(first).VRF = d.vrf(name)
	}
	if table != "VRF" {
		return false, nil
	}
	d.vrf(first).Closed = true // switches' hardware has nothing like Linux' rules
	return true, d.vrf(first).number(text("vni"))
}

// number sets the number of a VRF. Where two files disagree it has none that a tunnel could have.
func (v *VRF) number(text string) error {
	vni, err := strconv.Atoi(text)
	if v.VNI != 0 && v.VNI != vni {
		vni = -1
	}
	v.VNI = vni
	return err
}

// parted says why a VRF of a switch and those of others are not one; nothing if they are.
func (n *Net) parted(v *VRF) string {
	switch b := v.on.BGP; {
	case v.VNI == 0 || v.Tunnel == nil || v.Tunnel.VNI != v.VNI:
		return fmt.Sprintf("no tunnel of %s carries packets of %s", v.on.Name, v.Name)
	case b == nil || !b.AllVNI || !v.Advertise:
		return fmt.Sprintf("%s tells nobody of %s: advertise-all-vni or advertise ipv4 unicast is missing", v.on.Name, v.Name)
	case v.ASN != b.ASN:
		return fmt.Sprintf("the AS number of %s on %s is %d, and the switch's %d", v.Name, v.on.Name, v.ASN, b.ASN)
	case !n.learnt(v.on, v.Tunnel):
		return fmt.Sprintf("nobody learns the way to %s, the end of the tunnel of %s", v.Tunnel.End, v.Name)
	}
	return ""
}

// route finds the longest network of a VRF that has an address: its port, and whether others learn of it.
func (v *VRF) route(a netip.Addr, f *failed) (on *Port, told bool) {
	bits := -1
	for _, p := range v.on.ports {
		if p.VRF != v || p.down(f) {
			continue
		}
		for _, x := range p.Addrs {
			if x.Contains(a) && x.Bits() > bits {
				on, bits = p, x.Bits()
				told = v.on.BGP != nil && v.on.BGP.lets(v.Connected, x.Masked())
			}
		}
	}
	return on, told
}

// elsewhere is the port of another switch behind which an address is, in a VRF that EVPN and a tunnel join with this one; nil if
// there is none, or if the switch does not tell of it.
func (n *Net) elsewhere(v *VRF, d *Device, a netip.Addr, f *failed) *Port {
	for _, name := range slices.Sorted(maps.Keys(d.VRFs)) {
		x := d.VRFs[name]
		if x.VNI != v.VNI || n.parted(x) != "" {
			continue
		}
		if p, told := x.route(a, f); p != nil && told {
			return p
		}
	}
	return nil
}

// inside follows a packet that a switch got by a port of a VRF. found says whether the VRF decides where it goes.
func (w *walker) inside(d *Device, v *VRF) (hops []string, why string, found bool) {
	hops = []string{d.Name}
	if w.failed.router(d.id) {
		return hops, d.Name + " is down", true
	}
	if p, _ := v.route(w.dst, w.failed); p != nil {
		more, why := w.behind(p)
		w.good[d] = 1
		return append(hops, more...), why, true
	}
	if why := w.net.parted(v); why != "" {
		return hops, why, v.Closed
	}
	var ends []int32
	far := map[*Device]*Port{} // where the packet leaves again
	for _, r := range w.net.routers {
		if r == d || w.failed.router(r.id) {
			continue
		}
		if p := w.net.elsewhere(v, r, w.dst, w.failed); p != nil && w.net.tells(r, d, w.failed) {
			ends, far[r] = append(ends, r.id), p
		}
	}
	if len(ends) == 0 {
		return hops, fmt.Sprintf("%s has no route to %s in %s", d.Name, w.dst, v.Name), v.Closed
	}
	t := tunnelling{w: w, ends: ends, good: map[int32]int{}, arrive: func(r *Device) ([]string, string) { return w.behind(far[r]) }}
	t.rib = w.net.work.rib(ends, nil, w.failed, nil)
	hops, why = t.from(d)
	w.good[d] = t.good[d.id]
	return hops, why, true
}

// enter follows a packet from the switch port that a host's NIC is plugged into.
func (n *Net) enter(d *Device, s place, dst netip.Addr) Trip {
	v := s.port.vrf()
	if v == nil {
		return n.Follow(d.Name, s.addr, dst)
	}
	t := Trip{From: d.Name, Source: s.addr, Target: dst}
	w := walker{net: n, src: s.addr, dst: dst, good: map[*Device]int{}, on: map[*Device]bool{}}
	t.Hops, t.Why = w.from(d, s.port.Peer.Port)
	t.Reached = t.Why == ""
	return t
}

// behind follows a packet to the host behind a port.
func (w *walker) behind(p *Port) (hops []string, why string) {
	ends, why := p.answer(w.dst, w.failed)
	if why != "" {
		return nil, why
	}
	return w.from(ends[0].Device, ends[0].Port)
}

// chainOf lists the networks that a target is in: of one on a bridge or in a VRF the switches that it is plugged into.
func (p *prover) chainOf(s place, at *bridge) []*prefix {
	v := s.port.vrf()
	if at.vni == 0 && v == nil {
		return p.n.chain(s.addr)
	}
	x := &prefix{Prefix: netip.PrefixFrom(s.addr, 32), connected: at.legs, origins: at.legs}
	if v != nil {
		x.Prefix = s.port.Peer.Port.networkOf(s.addr)
	}
	return []*prefix{x}
}

// meets reports whether the packets of a source are on a class's network.
func (s *source) meets(c *class) bool { return s.vni == c.vni || s.open && c.vni == 0 }

// joinVRFs looks at what VRFs of several switches need to be one.
func (n *Net) joinVRFs(v *Verdict) {
	type network struct {
		vni int
		netip.Prefix
	}
	owner := map[network]*Device{}
	for _, d := range n.routers {
		for _, x := range d.VRFs {
			v.Cases++
			if why := n.parted(x); why != "" {
				v.refute(1, Counterexample{Path: []string{d.Name}, Why: why})
			}
		}
		for _, p := range d.ports {
			if p.VRF == nil {
				continue
			}
			for _, a := range p.Addrs {
				key := network{p.VRF.VNI, a.Masked()}
				v.Cases++
				switch other := owner[key]; {
				case other != nil:
					v.refute(1, Counterexample{Path: []string{d.Name},
						Why: fmt.Sprintf("%s is in %s on %s and on %s", key.Prefix, p.VRF.Name, other.Name, d.Name)})
				case d.BGP == nil || !d.BGP.lets(p.VRF.Connected, key.Prefix):
					v.refute(1, Counterexample{Path: []string{d.Name}, Why: fmt.Sprintf("%s tells nobody of %s in %s", d.Name, key.Prefix, p.VRF.Name)})
				}
				owner[key] = d
			}
		}
	}
}

// tunnelOfVRF makes the tunnel of a VLAN that is in a VRF the VRF's: so SONiC writes it.
func (p *Port) tunnelOfVRF() {
	if p.VRF != nil && p.Tunnel != nil {
		p.VRF.Tunnel, p.Tunnel, p.Members = p.Tunnel, nil, nil
	}
}

// vrf is the VRF that the switch behind a host's port has it in; nil where it has none.
func (p *Port) vrf() *VRF {
	if p.Peer == nil {
		return nil
	}
	return p.Peer.Port.VRF
}

// tunnel is what carries the packets of hosts behind a switch port to other switches; nil where nothing does.
func (p *Port) tunnel() *Tunnel {
	switch {
	case p.Bridge != nil:
		return p.Bridge.Tunnel
	case p.VRF != nil && p.VRF.Tunnel != nil && p.VRF.Tunnel.VNI == p.VRF.VNI:
		return p.VRF.Tunnel
	}
	return nil
}

// networkOf is the network of a switch port that has an address.
func (p *Port) networkOf(a netip.Addr) netip.Prefix {
	if i := slices.IndexFunc(p.Addrs, func(x netip.Prefix) bool { return x.Contains(a) }); i >= 0 {
		return p.Addrs[i].Masked()
	}
	return netip.PrefixFrom(a, a.BitLen())
}
