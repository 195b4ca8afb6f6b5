// Package prove says whether a network works, from the files that were emitted
// for it and from nothing else: the routing of every switch (frr.conf, bird.conf, SONiC's
// config_db.json), the netplan and filters of every host, and the cable plan. It
// reads them back, computes what BGP would make of them, and follows packets.
//
//	frr.conf, udev rules ─┐
//	config_db.json       ─┤             ┌─► Follow   one packet, with or without failures: its hops, or where it ends and why
//	netplan, nftables    ─┼─► Load ─► Net ─► Reach   every pair of host addresses in a prefix
//	cables.csv           ─┘             └─► Prove    every property, for every pair and every single failure, or a counterexample
//
// It shares no code with the planner and the emitters: a mistake of theirs shows
// here as a packet that does not arrive. What it does not model is refused
// rather than assumed: a VLAN without a bridge in the files carries nothing, a
// port without a cable neither, and a line that no reader knows is reported.
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
	Slurm   *Slurm   // nil without Slurm's files

	devices  []*Device // by name
	routers  []*Device // by Device.id
	cables   []cable
	sessions [][]edge // of each router, BGP sessions that both ends configure
	trunks   [][]edge // of each router, cables to other routers
	prefixes map[netip.Prefix]*prefix
	lengths  []int // of prefixes, longest first

	ribs      map[string]*rib      // computed for Follow, without failures
	templates map[string]*template // of netplan files
	subnets   map[string]*Subnet   // InfiniBand fabrics
	work      *worker
}

// Device is a host or a router.
type Device struct {
	Name   string
	Router bool
	Ports  map[string]*Port
	Routes []Route   // of its files; BGP's are computed
	Rules  []Rule    // by priority
	Drops  []Drop    // of its filters
	BGP    *BGP      // nil for hosts
	bird   *birdFile // nil where another daemon routes
	VRFs   map[string]*VRF

	id    int32      // in Net.routers
	ports []*Port    // by name
	end   netip.Addr // of its tunnels, where one row says it for all
	hash  string     // by which it spreads flows; empty where no file says
}

// Port is an interface: its addresses, and what its cable leads to.
type Port struct {
	Name    string
	Addrs   []netip.Prefix
	MTU     int        // 0 where no file sets it: Linux then uses 1500
	Peer    *End       // nil without a cable
	Bridge  *Port      // the VLAN interface whose bridge the port is a member of
	Members []*Port    // of a VLAN interface
	Tunnel  *Tunnel    // of a VLAN interface whose bridge tunnels join with others
	VRF     *VRF       // the routing table of the switch that the port is in; nil for its main one
	Bond    *Bond      // what the port, or the port that it is a leg of, is made of
	Local   netip.Addr // by which neighbours on its cable know it; invalid where no file says
	Tracked bool       // bonds of the switch go down with the last port that has it

	// Lossless are the packets for which the port pauses its peer instead of dropping: priorities by DSCP.
	// It is nil where no file says anything of it.
	Lossless map[int]int

	on    *Device
	cable int32 // in Net.cables
}

// End is one end of a cable.
type End struct {
	Device *Device
	Port   *Port
}

func (e *End) String() string { return e.Device.Name + ":" + e.Port.Name }

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

// Drop is a line of a filter: packets that arrive by some ports (or leave, where Out)
// are dropped if their source (or target) is inside a prefix, or where Not outside it.
type Drop struct {
	Out    bool
	Ports  []string
	Prefix netip.Prefix
	Not    bool
}

// BGP is what a router's file says of it.
type BGP struct {
	ASN        uint32
	ID         string   // the router id
	Neighbours []string // ports
	Connected  string   // the route-map by which connected prefixes are advertised; "" if they are not
	Maps       map[string]string
	Lists      map[string][]Permit
	Groups     map[string]string // of neighbours
	EVPN       map[string]bool   // neighbours and groups whose sessions carry where hardware addresses are
	AllVNI     bool              // its own bridges are advertised
	Guards     map[string]string // of neighbours and groups: what both ends of a session must have alike
	Relax      bool              // paths of equal length count as equal, whatever their numbers
	MaxPaths   int
	Sessions   map[string]*birdSession // of bird.conf, by port

	named map[string]bool // Neighbours as a set
}

// Permit is a line of a prefix list: prefixes inside one, of some lengths.
type Permit struct {
	Prefix   netip.Prefix
	Min, Max int
}

func (b *BGP) permits(p netip.Prefix) bool { return b.lets(b.Connected, p) }

// lets reports whether a route-map lets a prefix pass.
func (b *BGP) lets(name string, p netip.Prefix) bool {
	return name != "" && slices.ContainsFunc(b.Lists[b.Maps[name]], func(l Permit) bool { return l.permits(p) })
}

func (l *Permit) permits(p netip.Prefix) bool {
	return l.Prefix.Contains(p.Addr()) && p.Bits() >= l.Prefix.Bits() && p.Bits() >= l.Min && p.Bits() <= l.Max
}

// cable joins two ports.
type cable struct {
	a, b *Port
}

func (c *cable) trunk() bool { return c.a.on.Router && c.b.on.Router }
func (c *cable) String() string {
	return c.a.on.Name + ":" + c.a.Name + " - " + c.b.on.Name + ":" + c.b.Name
}

// mtu is what a cable carries: the less of its two ends.
func (c *cable) mtu() int { return min(c.a.mtu(), c.b.mtu()) }

// defaultMTU is what Linux gives an Ethernet port that nobody configures.
const defaultMTU = 1500

func (p *Port) mtu() int {
	if p.MTU == 0 {
		return defaultMTU
	}
	return p.MTU
}

func (p *Port) owns(a netip.Addr) bool {
	return slices.ContainsFunc(p.Addrs, func(x netip.Prefix) bool { return x.Addr() == a })
}

// Failure is what is broken: switches by name, and cables by one of their ends.
// The NIC of a host is its cable.
type Failure struct {
	Switches []string
	Cables   []string // "n0:nic0", "leaf0:swp1"
}

func (f Failure) String() string {
	return strings.Join(append(slices.Clone(f.Switches), f.Cables...), " and ")
}

// failed is a failure by indices.
type failed struct {
	routers []int32
	cables  []int32
}

func (f *failed) cable(c int32) bool  { return f != nil && slices.Contains(f.cables, c) }
func (f *failed) router(r int32) bool { return f != nil && slices.Contains(f.routers, r) }

// failure finds the parts that a failure names.
func (n *Net) failure(f Failure) (*failed, error) {
	out := &failed{}
	for _, name := range f.Switches {
		d := n.Devices[name]
		if d == nil || !d.Router {
			return nil, fmt.Errorf("there are no files of a switch %s", name)
		}
		out.routers = append(out.routers, d.id)
	}
	for _, name := range f.Cables {
		dev, port, _ := strings.Cut(name, ":")
		d := n.Devices[dev]
		if d == nil || d.Ports[port] == nil || d.Ports[port].Peer == nil {
			return nil, fmt.Errorf("there is no cable at %s", name)
		}
		out.cables = append(out.cables, d.Ports[port].cable)
	}
	return out, nil
}

// Trip is the way of a packet.
type Trip struct {
	From    string     `json:"from"`
	Source  netip.Addr `json:"source"`
	Target  netip.Addr `json:"target"`
	Failure string     `json:"failure,omitempty"`
	Reached bool       `json:"reached"`
	Hops    []string   `json:"path"`            // devices, of the first path; up to where it ended
	Paths   int        `json:"paths,omitempty"` // of equal cost, if it arrived
	Why     string     `json:"why,omitempty"`   // where and why it ended, if it did not arrive
}

func (t Trip) String() string {
	with := ""
	if t.Failure != "" {
		with = " without " + t.Failure
	}
	if t.Reached {
		return fmt.Sprintf("%s %s -> %s%s: %s", t.From, t.Source, t.Target, with, strings.Join(t.Hops, ", "))
	}
	return fmt.Sprintf("%s %s -> %s%s: lost: %s", t.From, t.Source, t.Target, with, t.Why)
}

// Follow follows a packet from a device. It arrives only if it does on every
// path of equal cost: a flow is hashed onto any of them.
func (n *Net) Follow(from string, src, dst netip.Addr) Trip { return n.follow(from, src, dst, nil) }

// FollowWithout follows a packet while something is broken.
func (n *Net) FollowWithout(f Failure, from string, src, dst netip.Addr) (Trip, error) {
	x, err := n.failure(f)
	if err != nil {
		return Trip{}, err
	}
	t := n.follow(from, src, dst, x)
	t.Failure = f.String()
	return t, nil
}

func (n *Net) follow(from string, src, dst netip.Addr, f *failed) Trip {
	t := Trip{From: from, Source: src, Target: dst}
	d := n.Devices[from]
	if d == nil {
		t.Why = "there are no files of " + from
		return t
	}
	w := walker{net: n, src: src, dst: dst, failed: f, good: map[*Device]int{}, on: map[*Device]bool{}}
	t.Hops, t.Why = w.from(d, nil)
	if t.Reached = t.Why == ""; t.Reached {
		t.Paths = max(1, w.good[d])
	}
	return t
}

// walker follows one packet over all its paths.
type walker struct {
	net      *Net
	src, dst netip.Addr
	failed   *failed
	good     map[*Device]int  // how many paths lead on from here, if all arrive
	on       map[*Device]bool // devices of the path so far
}

// from gives the hops of the first path from a device on, or why one of the paths ends.
func (w *walker) from(d *Device, in *Port) (hops []string, why string) {
	hops = []string{d.Name}
	if d.owner(w.dst) != nil {
		if in != nil && d.drops(false, in.Name, w.src) {
			return hops, fmt.Sprintf("the filter of %s drops packets from %s that arrive by %s", d.Name, w.src, in.Name)
		}
		return hops, ""
	}
	switch {
	case w.on[d]:
		return hops, "the packet runs in a circle at " + d.Name
	case len(w.on) > 0 && !d.Router:
		return hops, fmt.Sprintf("%s does not have %s and passes nothing on", d.Name, w.dst)
	case w.good[d] > 0:
		return hops, ""
	}
	if d.Router && in != nil && in.VRF != nil {
		if hops, why, found := w.inside(d, in.VRF); found {
			return hops, why
		}
	}
	if d.Router && in != nil && in.Bridge != nil && in.Bridge.Tunnel != nil {
		return w.bridged(d, in.Bridge)
	}
	next, why := w.net.next(d, w.src, w.dst, w.failed)
	if why != "" {
		return hops, why
	}
	w.on[d] = true
	defer delete(w.on, d)
	paths := 0
	for i, e := range next {
		more, why := w.from(e.Device, e.Port)
		if i == 0 || why != "" {
			hops = append([]string{d.Name}, more...)
		}
		if why != "" {
			return hops, why
		}
		paths += max(1, w.good[e.Device])
	}
	w.good[d] = paths
	return hops, ""
}

// owner is the port that has an address; nil if the device does not have it.
func (d *Device) owner(a netip.Addr) *Port {
	for _, p := range d.ports {
		if p.owns(a) {
			return p
		}
	}
	return nil
}

// drops reports whether a filter drops a packet that arrives by a port from an
// address, or leaves by it to one.
func (d *Device) drops(out bool, port string, a netip.Addr) bool {
	return slices.ContainsFunc(d.Drops, func(x Drop) bool {
		return x.Out == out && slices.Contains(x.Ports, port) && x.Prefix.Contains(a) != x.Not
	})
}

// next lists where a device sends a packet: the far ends of the cables it leaves by.
func (n *Net) next(d *Device, src, dst netip.Addr, f *failed) ([]*End, string) {
	if !d.Router {
		p, via := d.exit(src, dst, f)
		switch {
		case p == nil:
			return nil, fmt.Sprintf("%s has no route to %s", d.Name, dst)
		case d.drops(true, p.Name, dst):
			return nil, fmt.Sprintf("the filter of %s drops packets to %s that leave by %s", d.Name, dst, p.Name)
		}
		return p.answer(via, f)
	}
	if f.router(d.id) {
		return nil, d.Name + " is down"
	}
	for _, x := range n.chain(dst) {
		if p := d.connected(x.Prefix, nil, f); p != nil {
			return p.answer(dst, f)
		}
		if ways := n.ways(d, x, f); len(ways) > 0 {
			return ways, ""
		}
	}
	return nil, fmt.Sprintf("%s has no route to %s", d.Name, dst)
}

// exit is the port by which a host sends a packet, and whom it looks for there:
// a gateway, or the target itself on a network of its own.
func (d *Device) exit(src, dst netip.Addr, f *failed) (*Port, netip.Addr) {
	for _, r := range d.Rules {
		if r.From.Contains(src) && r.To.Contains(dst) {
			if p, via := d.lookup(r.Table, dst, f); p != nil {
				return p, via
			}
		}
	}
	return d.lookup(0, dst, f)
}

// lookup finds the longest prefix in a table of a host, its own networks among the
// main one's. A port whose cable is down has no routes.
func (d *Device) lookup(table int, dst netip.Addr, f *failed) (*Port, netip.Addr) {
	var on *Port
	var via netip.Addr
	bits := -1
	for _, r := range d.Routes {
		if r.Table == table && r.To.Contains(dst) && r.To.Bits() > bits && !r.Port.down(f) {
			on, via, bits = r.Port, r.Via, r.To.Bits()
		}
	}
	if p := d.onLink(dst, bits, f); table == 0 && p != nil {
		return p, dst
	}
	return on, via
}

// onLink finds the port with the longest network of its own that has an address, of a length or more.
func (d *Device) onLink(dst netip.Addr, bits int, f *failed) (on *Port) {
	for _, p := range d.ports {
		for _, x := range p.Addrs {
			if x.Contains(dst) && x.Bits() >= bits && !p.down(f) {
				on, bits = p, x.Bits()
			}
		}
	}
	return on
}

func (p *Port) down(f *failed) bool {
	if p.Bond != nil && p.Bond.port == p && !p.on.Router {
		return len(p.Bond.alive(f)) == 0
	}
	if p.Peer == nil {
		return p.on.Router && p.dark()
	}
	return f.cable(p.cable)
}

// dark reports whether a router's port has no carrier: nothing is plugged in, and it is neither a loopback
// nor a VLAN's. Its networks are not connected then, and nobody hears of them.
func (p *Port) dark() bool { return p.Peer == nil && p.Name != "lo" && p.Members == nil }

// connected finds the port of a router with a network of its own, in its main table or in a VRF.
func (d *Device) connected(x netip.Prefix, v *VRF, f *failed) *Port {
	for _, p := range d.ports {
		if p.VRF != v {
			continue
		}
		for _, a := range p.Addrs {
			if a.Masked() == x && !p.down(f) {
				return p
			}
		}
	}
	return nil
}

// answer finds who answers for an address behind a port: the other end of its
// cable, or a member of the VLAN that it is in.
func (p *Port) answer(a netip.Addr, f *failed) ([]*End, string) {
	if p.Members != nil { // a VLAN interface asks all ports of its bridge
		for _, m := range p.Members {
			if m.Peer != nil && !m.down(f) && m.Peer.Port.owns(a) {
				return []*End{m.Peer}, ""
			}
		}
		return nil, fmt.Sprintf("%s asks for %s on %s, and no host of that VLAN has it", p.on.Name, a, p.Name)
	}
	if p.Bond != nil && p.Bond.port == p {
		return p.Bond.answer(a, f)
	}
	switch {
	case p.Peer == nil:
		return nil, fmt.Sprintf("%s asks for %s on %s, which has no cable", p.on.Name, a, p.Name)
	case p.down(f):
		return nil, fmt.Sprintf("%s:%s is down", p.on.Name, p.Name)
	case p.Peer.Device.Router && f.router(p.Peer.Device.id):
		return nil, p.Peer.Device.Name + " is down"
	case p.Peer.Port.owns(a):
		return []*End{p.Peer}, ""
	}
	if svi := p.Peer.Port.Bridge; svi != nil {
		if svi.Tunnel != nil {
			return []*End{p.Peer}, "" // the switch finds out
		}
		if svi.owns(a) {
			return []*End{{p.Peer.Device, svi}}, ""
		}
		if ends, why := svi.answer(a, f); why == "" {
			return ends, ""
		}
	}
	return nil, fmt.Sprintf("%s asks for %s on %s, and %s at the other end does not have it", p.on.Name, a, p.Name, p.Peer)
}

// Reach follows packets between all addresses that hosts have in a prefix, of two
// hosts each, and gives those that are lost. pairs is how many were followed.
func (n *Net) Reach(prefix netip.Prefix) (pairs int, lost []Trip) {
	all := n.addresses(prefix)
	for _, a := range all {
		for _, b := range all {
			if a.port.on == b.port.on {
				continue
			}
			pairs++
			if t := n.Follow(a.port.on.Name, a.addr, b.addr); !t.Reached {
				lost = append(lost, t)
			}
		}
	}
	return pairs, lost
}

// place is an address of a host.
type place struct {
	port *Port
	addr netip.Addr
}

// addresses lists what hosts have in a prefix.
func (n *Net) addresses(prefix netip.Prefix) (out []place) {
	for _, d := range n.devices {
		if d.Router {
			continue
		}
		for _, p := range d.ports {
			for _, a := range p.Addrs {
				if prefix.Contains(a.Addr()) {
					out = append(out, place{p, a.Addr()})
				}
			}
		}
	}
	return out
}
