package prove

import (
	"fmt"
	"slices"
)

// joined looks at what the bridges of several switches need to be one.
func (n *Net) joined() Verdict {
	v := Verdict{Property: "bridges and VRFs are joined", Of: "bridges, VRFs, segments and sessions"}
	segments := map[string]*Device{}
	for _, d := range n.routers {
		for _, p := range d.ports {
			if p.Tunnel == nil {
				continue
			}
			v.Cases++
			switch {
			case d.BGP == nil || !d.BGP.AllVNI:
				v.refute(1, Counterexample{Path: []string{d.Name},
					Why: fmt.Sprintf("%s has VXLAN network %d and tells nobody: advertise-all-vni is missing", d.Name, p.Tunnel.VNI)})
			case !n.learnt(d, p.Tunnel):
				v.refute(1, Counterexample{Path: []string{d.Name},
					Why: fmt.Sprintf("nobody learns the way to %s, the end of its tunnels", p.Tunnel.End)})
			}
			segmented(&v, p, segments)
		}
	}
	n.joinVRFs(&v)
	if v.Cases > 0 {
		n.carried(&v)
	}
	return v
}

// carried looks for cables between switches that do not carry where hardware addresses are.
func (n *Net) carried(v *Verdict) {
	for i := range n.cables {
		c := &n.cables[i]
		if !c.trunk() || c.a.on.BGP == nil || c.b.on.BGP == nil {
			continue
		}
		v.Cases++
		if !c.speaksEVPN() {
			v.refute(1, Counterexample{Why: c.String() + " does not carry where hardware addresses are: both ends need activate in l2vpn evpn"})
		}
	}
}

// segmented looks at the bonds behind a bridge.
func segmented(v *Verdict, svi *Port, seen map[string]*Device) {
	for _, m := range svi.Members {
		if m.Peer == nil || m.Peer.Device.Router || m.Peer.Port.Bond == nil && m.Bond == nil {
			continue
		}
		v.Cases++
		why := m.unlike()
		if why == "" {
			host := m.Peer.Device
			if other := seen[m.Bond.Segment]; other != nil && other != host {
				why = fmt.Sprintf("segment%s is that of %s and of %s", m.Bond.Segment, other.Name, host.Name)
			}
			seen[m.Bond.Segment] = host
		}
		if why != "" {
			v.refute(1, Counterexample{Path: []string{svi.on.Name}, Why: why})
		}
	}
}

// unlike says why a switch port and the others of a bonded host are not one to it, and one to other switches.
func (p *Port) unlike() string {
	host := p.Peer.Port.Bond
	switch {
	case host == nil:
		return fmt.Sprintf("%s:%s is bonded and %s is not", p.on.Name, p.Name, p.Peer)
	case p.Bond == nil:
		return fmt.Sprintf("%s is bonded and %s:%s is not", p.Peer, p.on.Name, p.Name)
	case p.Bond.Segment == "":
		return fmt.Sprintf("%s:%s is in no Ethernet segment, so %s has two switches that are not one",
			p.on.Name, p.Bond.port.Name, host.port.on.Name)
	}
	for _, leg := range host.others(p) {
		switch other := leg.Peer.Port; {
		case other.Bond == nil || other.Bond.Segment != p.Bond.Segment || other.Bond.System != p.Bond.System:
			return fmt.Sprintf("%s:%s and %s of %s are not one segment with one system", p.on.Name, p.Name, leg.Peer, host.port.on.Name)
		case other.network() != p.network():
			return fmt.Sprintf("%s:%s and %s of %s are on two networks", p.on.Name, p.Name, leg.Peer, host.port.on.Name)
		}
	}
	return ""
}

// network is the VXLAN network of a bridge's member, or of a port in a VRF; 0 where no tunnel joins it.
func (p *Port) network() int {
	if t := p.tunnel(); t != nil {
		return t.VNI
	}
	return 0
}

// others are the legs of a host's bond but for the one that is plugged into a port.
func (b *Bond) others(at *Port) (out []*Port) {
	for _, leg := range b.Legs {
		if leg.Peer != nil && leg.Peer.Port != at {
			out = append(out, leg)
		}
	}
	return out
}

// bridge is where a host's NIC is bridged, or in a VRF: its VXLAN network, and the routers that it is plugged into.
type bridge struct {
	vni  int
	legs []int32
	open bool // a VRF that goes on in the main table for what it has no route to
}

// bridgeOf finds the bridge or VRF of a host's port; its network is 0 where the port is routed in the main table.
func (n *Net) bridgeOf(p *Port) (b bridge) {
	for _, q := range p.bridgedAt() {
		b.vni, b.open = q.network(), q.VRF != nil && !q.VRF.Closed
		b.legs = append(b.legs, q.on.id)
	}
	slices.Sort(b.legs)
	return b
}

// sent is the size of the packets that an address sends, as the fabric carries them.
func (s place) sent() int {
	if len(s.port.bridgedAt()) > 0 {
		return s.port.mtu() + tunnelHeader
	}
	return s.port.mtu()
}

// bridges gives the routers at which packets of a bridged address enter: each that it is plugged into. Where bridges are not
// joined as they should be, packets are followed one by one instead.
func (p *prover) bridges(l *leg, s place, at *bridge, pairs int) []int32 {
	if p.apartBridges {
		p.byTarget(l.to, s)
		return nil
	}
	d := s.port.on
	packet := fmt.Sprintf("%s %s -> %s", d.Name, s.addr, p.another(l.to, d))
	if on := d.onLink(p.another(l.to, d), 0, nil); on != s.port && l.from == l.to {
		p.reach.refute(pairs, Counterexample{Packet: packet, Path: []string{d.Name}, Why: "it does not leave by " + s.port.Name})
		return nil
	}
	for _, q := range s.port.bridgedAt() {
		path := []string{d.Name, q.on.Name}
		p.size(q.Peer.Port, s.port.mtu(), pairs, packet, path)
	}
	p.inTunnel(s, pairs)
	if len(at.legs) == 1 { // a bonded host survives the loss of any of its parts
		p.ends += 4 * pairs
	}
	return at.legs
}

// inTunnel looks at whether packets of an address fit into the tunnels that they enter.
func (p *prover) inTunnel(s place, pairs int) {
	for _, q := range s.port.bridgedAt() {
		if mtu := q.tunnel().MTU; mtu > 0 && mtu < s.port.mtu() {
			p.mtu.refute(pairs, Counterexample{Packet: fmt.Sprintf("%s %s", s.port.on.Name, s.addr), Path: []string{s.port.on.Name, q.on.Name},
				Why: fmt.Sprintf("the tunnel of VXLAN network %d on %s carries %d bytes", q.network(), q.on.Name, mtu)})
		}
	}
}

// oneLeg looks at what is left to a class of bonded targets when all but one of their cables are down.
func (p *prover) oneLeg(c *class) {
	if len(c.legs) < 2 || !p.o.Failures {
		return
	}
	for _, leg := range c.legs {
		p.w.rib([]int32{leg}, nil, nil, &p.again)
		for _, l := range p.legs {
			for _, s := range l.sources {
				if c.count[l.to] == 0 || s.vni != c.vni || p.again.dist[s.router] >= 0 {
					continue
				}
				p.single.refute(s.count*c.count[l.to],
					Counterexample{Packet: fmt.Sprintf("%s %s -> %s", s.some.port.on.Name, s.some.addr, p.far(c, l.to, s.some.port.on)),
						Failure: "the target's cables but for that to " + p.n.routers[leg].Name, Path: []string{p.n.routers[s.router].Name},
						Why: "no route leads to the end of that switch's tunnels"})
			}
		}
	}
}

// elsewhere reports whether a bonded source sends by another switch because this one has taken its bonds down.
func (p *prover) elsewhere(s *source, f *failed) bool {
	if len(s.legs) < 2 || !p.n.routers[s.router].cutOff(f) {
		return false
	}
	return slices.ContainsFunc(s.legs, func(r int32) bool { return r != s.router && !f.router(r) && !p.n.routers[r].cutOff(f) })
}

// webNets draws the VXLAN networks of sources and classes.
func (p *prover) webNets(w *web) map[int]int32 {
	nets := map[int]int32{}
	draw := func(b *bridge) {
		if _, ok := nets[b.vni]; !ok && b.vni != 0 {
			nets[b.vni] = w.node("network of tunnels")
		}
	}
	for _, l := range p.legs {
		for i := range l.sources {
			draw(&l.sources[i].bridge)
		}
	}
	for _, c := range p.classes {
		draw(&c.bridge)
	}
	return nets
}

// bridge joins a source or a class with its network of tunnels and its switches.
func (w *web) bridge(x int32, b *bridge, nets map[int]int32) {
	if b.vni == 0 {
		return
	}
	w.join(x, nets[b.vni], "on")
	for _, leg := range b.legs {
		w.join(x, leg, "leg")
	}
}
