// Package prove says whether a network works, from the files that were emitted
// for it and from nothing else: the frr.conf of every switch, the netplan of
// every host, and the cable plan. It reads them back, computes what BGP would
// make of them, and follows packets hop by hop.
//
//	frr.conf  ─┐
//	netplan   ─┼─► Load ──► Net ──► Follow   one packet: its hops, or where it ends and why
//	cables.csv ┘                └─► Reach    every pair of host addresses in a prefix
//
// It shares no code with the planner and the emitters: a mistake of theirs shows
// here as a packet that does not arrive. What it does not model is refused
// rather than assumed: a VLAN without a bridge in the files carries nothing, and
// neither does a port without a cable.
package prove

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Net is a network as its files describe it.
type Net struct {
	Devices map[string]*Device
	Unread  []string // lines that the model does not know, with their files

	origins map[netip.Prefix][]*Device          // routers that advertise a prefix
	learned map[netip.Prefix]map[*Device][]*End // what BGP makes of it: ports towards it
}

// Device is a host or a router.
type Device struct {
	Name   string
	Router bool
	Ports  map[string]*Port
	Routes []Route // of its files; BGP's are computed
	Rules  []Rule  // by priority
	BGP    *BGP    // nil for hosts
}

// Port is an interface: its addresses, and what its cable leads to.
type Port struct {
	Name  string
	Addrs []netip.Prefix
	Peer  *End // nil without a cable
}

// End is one end of a cable.
type End struct {
	Device *Device
	Port   *Port
}

// Route is a route of a host's file. It holds for packets that a rule sends to
// its table, or for all where Table is 0.
type Route struct {
	To    netip.Prefix
	Via   netip.Addr
	Port  *Port
	Table int
}

// Rule sends packets between two prefixes to a table.
type Rule struct {
	From, To        netip.Prefix
	Table, Priority int
}

// BGP is what a router's file says of it.
type BGP struct {
	ASN        uint32
	Neighbours []string // ports
	Connected  string   // the route-map by which connected prefixes are advertised; "" if they are not
	Maps       map[string]string
	Lists      map[string][]Permit
}

// Permit is a line of a prefix list: prefixes inside one, of some lengths.
type Permit struct {
	Prefix   netip.Prefix
	Min, Max int
}

// Trip is the way of a packet.
type Trip struct {
	From    string
	Source  netip.Addr
	Target  netip.Addr
	Reached bool
	Hops    []string // devices, of the first path; up to where it ended
	Why     string   // where and why it ended, if it did not arrive
}

func (t Trip) String() string {
	if t.Reached {
		return fmt.Sprintf("%s %s -> %s: %s", t.From, t.Source, t.Target, strings.Join(t.Hops, ", "))
	}
	return fmt.Sprintf("%s %s -> %s: lost: %s", t.From, t.Source, t.Target, t.Why)
}

func (n *Net) names() []string {
	var out []string
	for name := range n.Devices {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (d *Device) ports() []*Port {
	var out []*Port
	for _, p := range d.Ports {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Port) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (p *Port) owns(a netip.Addr) bool {
	return slices.ContainsFunc(p.Addrs, func(x netip.Prefix) bool { return x.Addr() == a })
}

// Follow follows a packet from a device. It arrives only if it does on every
// path of equal cost: a flow is hashed onto any of them.
func (n *Net) Follow(from string, src, dst netip.Addr) Trip {
	t := Trip{From: from, Source: src, Target: dst}
	d := n.Devices[from]
	if d == nil {
		t.Why = "there are no files of " + from
		return t
	}
	w := walker{net: n, src: src, dst: dst, good: map[*Device]bool{}, on: map[*Device]bool{}}
	t.Hops, t.Why = w.from(d)
	t.Reached = t.Why == ""
	return t
}

// walker follows one packet over all its paths.
type walker struct {
	net      *Net
	src, dst netip.Addr
	good     map[*Device]bool // every path on from here arrives
	on       map[*Device]bool // devices of the path so far
}

// from gives the hops of the first path from a device on, or why one of the paths ends.
func (w *walker) from(d *Device) (hops []string, why string) {
	hops = []string{d.Name}
	for _, p := range d.Ports {
		if p.owns(w.dst) {
			return hops, ""
		}
	}
	switch {
	case w.on[d]:
		return hops, "the packet runs in a circle at " + d.Name
	case len(w.on) > 0 && !d.Router:
		return hops, fmt.Sprintf("%s does not have %s and passes nothing on", d.Name, w.dst)
	case w.good[d]:
		return hops, ""
	}
	next, why := w.net.next(d, w.src, w.dst)
	if why != "" {
		return hops, why
	}
	w.on[d] = true
	defer delete(w.on, d)
	for i, e := range next {
		more, why := w.from(e.Device)
		if i == 0 || why != "" {
			hops = append([]string{d.Name}, more...)
		}
		if why != "" {
			return hops, why
		}
	}
	w.good[d] = true
	return hops, ""
}

// next lists where a device sends a packet: the far ends of the cables it leaves by.
func (n *Net) next(d *Device, src, dst netip.Addr) ([]*End, string) {
	if !d.Router {
		for _, r := range d.Rules {
			if r.From.Contains(src) && r.To.Contains(dst) {
				if e, why, ok := d.lookup(r.Table, dst); ok {
					return e, why
				}
			}
		}
		e, why, ok := d.lookup(0, dst)
		if !ok {
			why = fmt.Sprintf("%s has no route to %s", d.Name, dst)
		}
		return e, why
	}
	on, bits := d.connected(dst)
	for length := 32; length >= 0; length-- {
		if on != nil && bits == length {
			e, why := d.neighbour(on, dst)
			return e, why
		}
		prefix := netip.PrefixFrom(dst, length).Masked()
		if ways := n.route(prefix)[d]; len(ways) > 0 {
			return ways, ""
		}
	}
	return nil, fmt.Sprintf("%s has no route to %s", d.Name, dst)
}

// lookup finds the longest prefix in a table of a host, its own networks among the main one's.
func (d *Device) lookup(table int, dst netip.Addr) (to []*End, why string, ok bool) {
	best := Route{To: netip.Prefix{}}
	bits := -1
	for _, r := range d.Routes {
		if r.Table == table && r.To.Contains(dst) && r.To.Bits() > bits {
			best, bits = r, r.To.Bits()
		}
	}
	if on, length := d.connected(dst); table == 0 && on != nil && length >= bits {
		to, why = d.neighbour(on, dst)
		return to, why, true
	}
	if bits < 0 {
		return nil, "", false
	}
	to, why = d.neighbour(best.Port, best.Via)
	return to, why, true
}

// connected finds the port whose own network has an address, and the length of that network.
func (d *Device) connected(a netip.Addr) (*Port, int) {
	var on *Port
	bits := -1
	for _, p := range d.ports() {
		for _, x := range p.Addrs {
			if x.Masked().Contains(a) && x.Bits() > bits {
				on, bits = p, x.Bits()
			}
		}
	}
	return on, bits
}

// neighbour finds who answers for an address behind a port: the other end of its
// cable or nobody, as the files make no bridges.
func (d *Device) neighbour(p *Port, a netip.Addr) ([]*End, string) {
	switch {
	case p.Peer == nil:
		return nil, fmt.Sprintf("%s asks for %s on %s, which has no cable", d.Name, a, p.Name)
	case !p.Peer.Port.owns(a):
		return nil, fmt.Sprintf("%s asks for %s on %s, and %s at the other end does not have it", d.Name, a, p.Name, p.Peer)
	}
	return []*End{p.Peer}, ""
}

func (e *End) String() string { return e.Device.Name + ":" + e.Port.Name }

// route computes what BGP makes of a prefix: the ports by which each router sends to it.
func (n *Net) route(prefix netip.Prefix) map[*Device][]*End {
	if known, ok := n.learned[prefix]; ok {
		return known
	}
	out := map[*Device][]*End{}
	if n.learned == nil {
		n.learned = map[netip.Prefix]map[*Device][]*End{}
	}
	n.learned[prefix] = out
	path := map[*Device][]uint32{} // as it is advertised, without the router's own number
	var layer []*Device
	for _, d := range n.origins[prefix] {
		path[d] = nil
		layer = append(layer, d)
	}
	// Every hop adds one number, so the shortest paths come layer by layer.
	for len(layer) > 0 {
		found := map[*Device][]*End{}
		via := map[*Device][]uint32{}
		var order []*Device
		for _, d := range layer {
			advertised := append([]uint32{d.BGP.ASN}, path[d]...)
			for _, name := range d.BGP.Neighbours {
				e := d.session(name)
				if e == nil || slices.Contains(advertised, e.Device.BGP.ASN) {
					continue
				}
				if _, shorter := path[e.Device]; shorter {
					continue
				}
				if found[e.Device] == nil {
					order = append(order, e.Device)
					via[e.Device] = advertised
				}
				found[e.Device] = append(found[e.Device], &End{d, d.Ports[name]})
			}
		}
		for _, d := range order {
			path[d], out[d] = via[d], found[d]
		}
		layer = order
	}
	return out
}

// session finds the other end of a BGP session over a port; nil if there is none.
func (d *Device) session(port string) *End {
	p := d.Ports[port]
	if p == nil || p.Peer == nil {
		return nil
	}
	far := p.Peer.Device
	if far.BGP == nil || !slices.Contains(far.BGP.Neighbours, p.Peer.Port.Name) || far.BGP.ASN == d.BGP.ASN {
		return nil
	}
	return p.Peer
}

// advertise lists who advertises which of its own networks.
func (n *Net) advertise() {
	n.origins = map[netip.Prefix][]*Device{}
	for _, name := range n.names() {
		d := n.Devices[name]
		if d.BGP == nil || d.BGP.Connected == "" {
			continue
		}
		list := d.BGP.Lists[d.BGP.Maps[d.BGP.Connected]]
		for _, p := range d.ports() {
			for _, a := range p.Addrs {
				x := a.Masked()
				if slices.ContainsFunc(list, func(l Permit) bool {
					return l.Prefix.Contains(x.Addr()) && x.Bits() >= l.Prefix.Bits() && x.Bits() >= l.Min && x.Bits() <= l.Max
				}) && !slices.Contains(n.origins[x], d) {
					n.origins[x] = append(n.origins[x], d)
				}
			}
		}
	}
}

// Reach follows packets between all addresses that hosts have in a prefix, of two
// hosts each, and gives those that are lost. pairs is how many were followed.
func (n *Net) Reach(prefix netip.Prefix) (pairs int, lost []Trip) {
	type at struct {
		host string
		addr netip.Addr
	}
	var all []at
	for _, name := range n.names() {
		d := n.Devices[name]
		if d.Router {
			continue
		}
		for _, p := range d.ports() {
			for _, a := range p.Addrs {
				if prefix.Contains(a.Addr()) {
					all = append(all, at{name, a.Addr()})
				}
			}
		}
	}
	for _, a := range all {
		for _, b := range all {
			if a.host == b.host {
				continue
			}
			pairs++
			if t := n.Follow(a.host, a.addr, b.addr); !t.Reached {
				lost = append(lost, t)
			}
		}
	}
	return pairs, lost
}
