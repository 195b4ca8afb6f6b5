package lab

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// mac is a locally administered address made of a name.
func mac(node, iface string) net.HardwareAddr {
	var h uint64 = 14695981039346656037
	for _, c := range []byte(node + ":" + iface) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return net.HardwareAddr{2, byte(h >> 32), byte(h >> 24), byte(h >> 16), byte(h >> 8), byte(h)}
}

// linkLocal is the IPv6 address that the kernel gives an interface by its hardware address.
func linkLocal(node, iface string) netip.Addr {
	m := mac(node, iface)
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// addresses gives a switch the addresses that FRR would give it.
func addresses(p *network.Plan, sw *network.Switch, hosts bool) []string {
	out := []string{fmt.Sprintf("addr add %s/32 dev lo", sw.Loopback)}
	for i := range sw.Ports {
		if q := &sw.Ports[i]; q.Addr.IsValid() && q.VLAN == 0 && hosts {
			out = append(out, fmt.Sprintf("addr add %s dev %s", q.Addr, emit.PortName(p, sw, q.Number)))
		}
	}
	return out
}

// birds writes what BIRD reads: the sessions, numbers and filters of the emitted frr.conf. BIRD wants to know its neighbours'
// addresses; in a lab they follow from names.
func birds(p *network.Plan, s *Spec) error {
	in := p.Intent
	for i := range p.Switches {
		sw, n := &p.Switches[i], &s.Nodes[i]
		var b strings.Builder
		fmt.Fprintf(&b, "log \"/run/weft/%s/bird.log\" all;\nrouter id %s;\n", sw.Name, sw.Loopback)
		b.WriteString("debug protocols { states };\nprotocol device { scan time 2; }\nprotocol direct { ipv4; }\n")
		b.WriteString("protocol kernel { merge paths on limit 64; ipv4 { import none; export where source = RTS_BGP; }; }\n")
		if in.Routing.Multiplier > 0 {
			ms := in.Routing.BFD.Milliseconds()
			fmt.Fprintf(&b, "protocol bfd { interface \"*\" { min rx interval %d ms; min tx interval %d ms; multiplier %d; }; }\n",
				ms, ms, in.Routing.Multiplier)
		}
		fmt.Fprintf(&b, "filter ours { if net ~ [ %s+, %s+, %s+ ] then accept; reject; }\n", in.Loopbacks, in.Backend.Prefix, in.Storage.Prefix)
		fmt.Fprintf(&b,
			"template bgp fabric { local as %d; hold time 9; keepalive time 3; connect retry time 1; connect delay time 1; error wait time 1, 4;",
			sw.ASN)
		if in.Routing.Multiplier > 0 {
			b.WriteString(" bfd on;")
		}
		b.WriteString(" ipv4 { import all; export filter ours; extended next hop on; next hop self; }; }\n")
		for j := range sw.Ports {
			q := &sw.Ports[j]
			far, port := p.Far(q)
			if q.Host != network.None || far == nil {
				continue
			}
			here := emit.PortName(p, sw, q.Number)
			fmt.Fprintf(&b, "protocol bgp %s from fabric { neighbor %s%%%s as %d; }\n",
				here, linkLocal(far.Name, emit.PortName(p, far, port.Number)), here, far.ASN)
		}
		n.Files = append(n.Files, emit.File{Path: "etc/bird.conf", Mode: 0o644, Data: []byte(b.String())})
		n.Script = addresses(p, sw, s.Setup != "none")
	}
	return nil
}

// static computes the routes of every switch: to each other switch and the hosts behind it by all ports that a shortest
// way begins with. Nothing changes them but the kernel, which passes over ports without carrier.
func static(p *network.Plan, s *Spec) {
	index := map[string]int{}
	for i := range p.Switches {
		index[p.Switches[i].Name] = i
		s.Nodes[i].Script = addresses(p, &p.Switches[i], s.Setup != "none")
	}
	type hop struct {
		to        int
		here, far string // ports
	}
	near := make([][]hop, len(p.Switches))
	for i := range p.Switches {
		sw := &p.Switches[i]
		for j := range sw.Ports {
			if far, port := p.Far(&sw.Ports[j]); sw.Ports[j].Host == network.None && far != nil {
				near[i] = append(near[i], hop{index[far.Name], emit.PortName(p, sw, sw.Ports[j].Number), emit.PortName(p, far, port.Number)})
			}
		}
	}
	for d := range p.Switches {
		dst := &p.Switches[d]
		prefixes := []string{dst.Loopback.String() + "/32"}
		for j := range dst.Ports {
			if q := &dst.Ports[j]; q.Addr.IsValid() && q.VLAN == 0 && s.Setup != "none" {
				prefixes = append(prefixes, q.Addr.Masked().String())
			}
		}
		far := make([]int, len(p.Switches)) // distance and 1; 0: not reached
		far[d] = 1
		for queue := []int{d}; len(queue) > 0; queue = queue[1:] {
			for _, h := range near[queue[0]] {
				if far[h.to] == 0 {
					far[h.to] = far[queue[0]] + 1
					queue = append(queue, h.to)
				}
			}
		}
		for i := range p.Switches {
			if i == d || far[i] == 0 {
				continue
			}
			way, ways := "", 0
			for _, h := range near[i] {
				if far[h.to] == far[i]-1 && ways < 64 { // as many as FRR is told to use
					ways++
					way += fmt.Sprintf(" nexthop via inet6 %s dev %s", linkLocal(p.Switches[h.to].Name, h.far), h.here)
				}
			}
			for _, x := range prefixes {
				s.Nodes[i].Script = append(s.Nodes[i].Script, "route add "+x+way)
			}
		}
	}
}
