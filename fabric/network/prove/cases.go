package prove

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// prover goes through all cases. Three things make them few:
//
//   - Targets whose networks the same routers advertise are one class: BGP treats them alike, so
//     one computation answers for all of them.
//   - A failure changes nothing for a router that keeps a next hop: it keeps its distance, and so
//     does whoever sends by it. Only routers that lose all their next hops are computed anew.
//   - Classes that a symmetry of the network takes to one another are decided once (symmetry.go).
//
// None is an approximation: every pair and every single failure is decided.
type prover struct {
	n       *Net
	areas   []Area
	o       Options
	places  [][]place         // of each area
	own     []map[*Device]int // of each area, how many each host has
	largest int               // MTU of a host
	legs    []*leg
	classes []*class
	byKey   map[string]*class
	groups  [][]int32 // of routers that fail together
	nics    int       // of hosts, in all areas
	ends    int       // pairs, each as often as it has parts without which it cannot be

	apartBridges bool    // bridges of several switches are not joined as they should be
	narrow       []int32 // cables that carry less than the largest packet

	reach, loops, apart, ecmp, mtu, single, double, cyclic, bridged Verdict
	buffers                                                         *buffers

	base, again rib
	state       []lossState
	epoch       int32
	lost, work  []int32
	known       []int32 // routers with a route to the class at hand
	w           *worker
	cutPairs    map[int]bool
	decided     int // classes that stand for all
}

// leg is from one area to another, or to itself.
type leg struct {
	from, to int
	sources  []source
}

// source is a group of hosts' NICs whose packets enter the fabric at one router.
type source struct {
	router int32
	count  int
	some   place
	mtu    int // the largest

	bridge // of bridged NICs
}

// class is a set of targets that all routers treat alike.
type class struct {
	chain []*prefix
	count []int   // members of each area
	some  []place // one of them

	bridge // of targets on one
}

// lossState is a router under a failure: how many next hops it has, and how many of them are lost.
type lossState struct {
	hops, gone, epoch int32
	lost              bool
}

// newProver names the properties, in the order of the report, and allocates what all cases use.
func newProver(n *Net, areas []Area, o Options) *prover {
	p := &prover{n: n, areas: areas, o: o, byKey: map[string]*class{}, w: newWorker(n),
		reach:  Verdict{Property: "hosts reach one another", Of: "pairs"},
		loops:  Verdict{Property: "no loops, no black holes", Of: "routes"},
		apart:  Verdict{Property: "networks are apart", Of: "pairs"},
		ecmp:   Verdict{Property: "all shortest paths are used", Of: "routes"},
		mtu:    Verdict{Property: "full packets pass", Of: "pairs"},
		single: Verdict{Property: "any one failure is survived", Of: "pairs and failures"},
		double: Verdict{Property: "switches may fail together", Of: "groups of switches", Advice: true},
		cyclic: Verdict{Property: "no buffers wait in a circle", Of: "classes and failures"}}
	p.bridged = n.joined()
	p.apartBridges = p.bridged.Broken > 0
	p.buffers = newBuffers(n)
	size := len(n.routers)
	for _, r := range []*rib{&p.base, &p.again} {
		r.dist, r.path = make([]int32, size), make([]int32, size)
	}
	p.state = make([]lossState, size)
	p.cutPairs = map[int]bool{}
	p.choosePairs()
	return p
}

// classify finds where packets of every address enter, and groups targets. What a host does with
// its own packets, and the last cable to a target, is looked at here, once for each.
func (p *prover) classify() {
	for i := range p.areas {
		p.places = append(p.places, p.n.addresses(p.areas[i].Prefix))
		if only := p.areas[i].Hosts; only != nil {
			p.places[i] = slices.DeleteFunc(p.places[i], func(s place) bool { return !only[s.port.on.Name] })
		}
		p.nics += len(p.places[i])
		own := map[*Device]int{}
		for _, s := range p.places[i] {
			own[s.port.on]++
			p.largest = max(p.largest, s.sent())
			p.nics += max(0, len(s.port.bridgedAt())-1)
		}
		p.own = append(p.own, own)
	}
	p.tooSmall()
	for i := range p.areas {
		for j := range p.areas {
			if p.areas[i].meets(&p.areas[j]) {
				l := &leg{from: i, to: j}
				p.legs = append(p.legs, l)
				p.leave(l)
			}
		}
	}
	for i := range p.areas {
		for _, s := range p.places[i] {
			p.target(i, s)
		}
	}
}

// tooSmall lists the cables between switches that carry less than hosts send.
func (p *prover) tooSmall() {
	for i := range p.n.cables {
		if c := &p.n.cables[i]; c.trunk() && c.mtu() < p.largest {
			p.narrow = append(p.narrow, int32(i))
		}
	}
}

// leave groups the sources of a leg by the router that their packets enter at.
func (p *prover) leave(l *leg) {
	known := map[string]int{}
	for _, s := range p.places[l.from] {
		pairs := p.others(l.to, s.port.on)
		p.reach.Cases += pairs
		p.mtu.Cases += pairs
		if pairs == 0 {
			continue
		}
		at, routers := p.n.bridgeOf(s.port), []int32{-1}
		switch v := s.port.vrf(); {
		case at.vni == 0 && v == nil || v != nil && !p.apartBridges:
			routers[0] = p.enters(l, s, pairs)
			p.ends += 4 * pairs
			p.inTunnel(s, pairs)
		default:
			routers = p.bridges(l, s, &at, pairs)
		}
		for _, r := range routers {
			if r < 0 {
				continue
			}
			key := fmt.Sprint(r, at)
			k, ok := known[key]
			if !ok {
				k = len(l.sources)
				known[key] = k
				l.sources = append(l.sources, source{router: r, some: s, bridge: at})
			}
			l.sources[k].count++
			l.sources[k].mtu = max(l.sources[k].mtu, s.sent())
		}
	}
}

// others is how many addresses of an area other hosts than one have.
func (p *prover) others(area int, d *Device) int { return len(p.places[area]) - p.own[area][d] }

// another gives an address of another host in an area.
func (p *prover) another(area int, d *Device) netip.Addr {
	for _, s := range p.places[area] {
		if s.port.on != d {
			return s.addr
		}
	}
	return netip.Addr{}
}

// target puts an address into its class, and looks at the way from its router to it.
func (p *prover) target(area int, s place) {
	pairs, size := p.arriving(area, s)
	if size == 0 {
		return // nobody's packets leave for it
	}
	at, v := p.n.bridgeOf(s.port), s.port.vrf()
	if tunnelled := at.vni != 0 || v != nil; tunnelled && p.apartBridges {
		return // packets were followed one by one
	}
	chain := p.chainOf(s, &at)
	if v != nil {
		size -= tunnelHeader
	}
	if len(chain) == 0 {
		p.reach.refute(pairs, Counterexample{Packet: fmt.Sprintf("to %s of %s", s.addr, s.port.on.Name), Why: "no switch has a network with it"})
		return
	}
	key := keyOf(chain, at.vni)
	c := p.byKey[key]
	if c == nil {
		c = &class{chain: chain, bridge: at, count: make([]int, len(p.areas)), some: make([]place, len(p.areas))}
		p.byKey[key] = c
		p.classes = append(p.classes, c)
	}
	c.count[area]++
	c.some[area] = s
	if at.vni == 0 || v != nil {
		p.lastCable(area, s, chain[0], pairs, size)
	}
}

// keyOf tells classes apart.
func keyOf(chain []*prefix, vni int) string {
	var key strings.Builder
	for _, x := range chain {
		fmt.Fprint(&key, x.origins, x.connected, vni, x.closed)
	}
	return key.String()
}

// arriving is from how many places packets leave for one in an area, and the largest of them.
func (p *prover) arriving(area int, s place) (pairs, size int) {
	for _, l := range p.legs {
		if l.to == area {
			pairs += p.others(l.from, s.port.on)
			for _, x := range l.sources {
				size = max(size, x.mtu)
			}
		}
	}
	return pairs, size
}

// lastCable looks at the way from the routers that have a target's network to the target.
func (p *prover) lastCable(area int, s place, x *prefix, pairs, size int) {
	packet := fmt.Sprintf("%s -> %s of %s", p.another(area, s.port.on), s.addr, s.port.on.Name)
	for _, r := range x.connected {
		d := p.n.routers[r]
		port := d.connected(x.Prefix, s.port.vrf(), nil)
		ends, why := port.answer(s.addr, nil)
		if why != "" {
			p.reach.refute(pairs, Counterexample{Packet: packet, Path: []string{d.Name}, Why: why})
			return
		}
		to := ends[0]
		for _, other := range []netip.Addr{p.areas[area].Prefix.Addr(), p.another(area, s.port.on)} {
			if to.Device.drops(false, to.Port.Name, other) {
				p.reach.refute(pairs, Counterexample{Packet: packet, Path: []string{d.Name, to.Device.Name},
					Why: fmt.Sprintf("the filter of %s drops packets from %s that arrive by %s", to.Device.Name, other, to.Port.Name)})
				return
			}
		}
		if to.Port.Peer != nil {
			p.size(to.Port, size, pairs, packet, []string{d.Name, s.port.on.Name})
		}
	}
}

// size looks at whether the cable of a host's port carries packets of a size.
func (p *prover) size(port *Port, size, pairs int, packet string, path []string) {
	c := &p.n.cables[port.cable]
	if c.mtu() >= size {
		return
	}
	p.mtu.refute(pairs, Counterexample{Packet: fmt.Sprintf("%d bytes %s", size, packet), Path: path, Why: tooNarrow(c)})
}

// tooNarrow says which port carries too little.
func tooNarrow(c *cable) string {
	x := c.a
	if c.b.mtu() < c.a.mtu() {
		x = c.b
	}
	if x.MTU == 0 {
		return fmt.Sprintf("%s:%s carries %d bytes, as Linux does where no file sets an MTU", x.on.Name, x.Name, x.mtu())
	}
	return fmt.Sprintf("%s:%s carries %d bytes", x.on.Name, x.Name, x.MTU)
}

// enters gives the router at which packets of an address to others of its area enter the
// fabric; -1 where they do not all do so in one place.
func (p *prover) enters(l *leg, s place, pairs int) int32 {
	d := s.port.on
	dst := p.another(l.to, d)
	packet := fmt.Sprintf("%s %s -> %s", d.Name, s.addr, dst)
	if !d.alike(s.addr, p.areas[l.to].Prefix) {
		return p.byTarget(l.to, s)
	}
	next, why := p.n.next(d, s.addr, dst, nil)
	if why != "" {
		p.reach.refute(pairs, Counterexample{Packet: packet, Path: []string{d.Name}, Why: why})
		return -1
	}
	to := next[0]
	port, _ := d.exit(s.addr, dst, nil)
	p.size(port, s.port.mtu(), pairs, packet, []string{d.Name, to.Device.Name})
	if !to.Device.Router {
		return p.byTarget(l.to, s)
	}
	return to.Device.id
}

// byTarget follows packets of one address to all others, where its host does not treat them alike.
func (p *prover) byTarget(area int, s place) int32 {
	for _, t := range p.places[area] {
		if t.port.on == s.port.on {
			continue
		}
		if trip := p.n.Follow(s.port.on.Name, s.addr, t.addr); !trip.Reached {
			p.reach.refute(1, Counterexample{Packet: fmt.Sprintf("%s %s -> %s", trip.From, trip.Source, trip.Target), Path: trip.Hops,
				Why: trip.Why})
		} else {
			p.whole(s, t, &trip)
		}
	}
	return -1
}

// whole looks at whether a packet that was followed one by one passes at full size: at its two ends, and between switches anywhere.
func (p *prover) whole(s, t place, trip *Trip) {
	packet := fmt.Sprintf("%s -> %s of %s", s.addr, t.addr, t.port.on.Name)
	for _, port := range []*Port{s.port, t.port} {
		legs := []*Port{port}
		if port.Bond != nil {
			legs = port.Bond.Legs
		}
		for _, leg := range legs {
			if leg.Peer != nil && p.n.cables[leg.cable].mtu() < s.port.mtu() {
				p.size(leg, s.port.mtu(), 1, packet, trip.Hops)
				return
			}
		}
	}
	if len(p.narrow) > 0 {
		p.mtu.refute(1, Counterexample{Packet: fmt.Sprintf("%d bytes %s", s.sent(), packet), Path: trip.Hops,
			Why: tooNarrow(&p.n.cables[p.narrow[0]]) + ", and may be on its way"})
	}
}

// alike reports whether a host treats packets of an address to all of a prefix alike: no rule,
// route or filter tells parts of it apart, but for networks of its own ports.
func (d *Device) alike(src netip.Addr, net netip.Prefix) bool {
	splits := func(x netip.Prefix) bool { return x.Bits() > net.Bits() && net.Contains(x.Addr()) }
	return !slices.ContainsFunc(d.Rules, func(r Rule) bool { return r.From.Contains(src) && splits(r.To) }) &&
		!slices.ContainsFunc(d.Routes, func(r Route) bool { return splits(r.To) }) &&
		!slices.ContainsFunc(d.Drops, func(x Drop) bool { return splits(x.Prefix) }) &&
		!slices.ContainsFunc(d.ports, func(q *Port) bool {
			return slices.ContainsFunc(q.Addrs, func(a netip.Prefix) bool { return splits(a) && a.Bits() < 31 })
		})
}

// run decides all classes.
func (p *prover) run() {
	cables := 0
	for i := range p.n.cables {
		if p.n.cables[i].trunk() {
			cables++
		}
	}
	// A pair does not survive its own two NICs and two switches, unless it is bonded.
	p.single.Cases = max(0, p.reach.Cases*(cables+len(p.n.routers)+p.nics)-p.ends)
	p.double.Cases = len(p.groups)
	if p.buffers.any {
		p.cyclic.Cases = len(p.classes)
		if p.o.Failures {
			p.cyclic.Cases *= 1 + cables + len(p.n.routers)
		}
	}
	p.single.Note = fmt.Sprintf("%d switches, %d cables, %d NICs", len(p.n.routers), cables, p.nics)
	dirty := p.representatives()
	for i, c := range p.classes {
		if dirty[i] {
			p.decide(c)
		}
	}
	p.double.Broken = len(p.cutPairs)
}

// representatives decides one class of each orbit, and gives the classes that must be decided one by one.
func (p *prover) representatives() (dirty []bool) {
	dirty = make([]bool, len(p.classes))
	if p.o.Each || len(p.groups) > 0 { // groups are drawn or named, and have no images
		p.decided = len(p.classes)
		return slices.Repeat([]bool{true}, len(p.classes))
	}
	first := p.orbits()
	size := map[int]int{}
	for _, k := range first {
		size[k]++
	}
	p.decided = len(size)
	all := []*Verdict{&p.loops, &p.apart, &p.ecmp, &p.reach, &p.mtu, &p.single, &p.cyclic}
	for i := range p.classes {
		if first[i] != i {
			dirty[i] = dirty[first[i]]
			continue
		}
		dirty[i] = !p.forAll(p.classes[i], size[i], all)
	}
	return dirty
}

// forAll decides a class for all of its orbit. If something does not hold it leaves the verdicts as they were.
func (p *prover) forAll(c *class, size int, all []*Verdict) bool {
	before, holds := make([]Verdict, len(all)), true
	for k, v := range all {
		before[k] = *v
	}
	p.decide(c)
	for k, v := range all {
		holds = holds && v.Broken == before[k].Broken
	}
	for k, v := range all {
		if holds {
			v.Cases += (size - 1) * (v.Cases - before[k].Cases)
		} else {
			*v = before[k]
		}
	}
	return holds
}

// decide looks at all properties of a class.
func (p *prover) decide(c *class) {
	if len(c.chain) > 1 {
		p.overlapping(c)
		return
	}
	p.w.rib(c.chain[0].origins, c.chain[0].shut, nil, &p.base)
	if r := p.base.vague; r >= 0 {
		p.loops.refute(1, Counterexample{Packet: "to " + c.chain[0].String(), Path: []string{p.n.routers[r].Name},
			Why: "which of its equal paths the switch advertises on is not modelled, and others depend on it"})
	}
	p.turns(&p.base, nil, p.sourcesOf(c)...)
	p.count()
	p.arrivals(c, func(r int32) bool { return p.base.dist[r] >= 0 })
	p.narrowest(c)
	p.failures(c)
	p.oneLeg(c)
}

// overlapping decides a class whose addresses are in several networks: a router takes the
// longest that it knows, and the next router may know another.
func (p *prover) overlapping(c *class) {
	var some place
	for i := range p.areas {
		if c.count[i] > 0 {
			some = c.some[i]
		}
	}
	reached := make([]bool, len(p.n.routers))
	for i, d := range p.n.routers {
		trip := p.n.Follow(d.Name, netip.Addr{}, some.addr)
		p.loops.Cases++
		if reached[i] = trip.Reached; !trip.Reached && !strings.Contains(trip.Why, "has no route") {
			p.loops.refute(1, Counterexample{Packet: "to " + some.addr.String(), Path: trip.Hops, Why: trip.Why})
		}
	}
	p.arrivals(c, func(r int32) bool { return reached[r] })
	p.single.refute(1, Counterexample{Packet: "to " + some.addr.String(),
		Why: fmt.Sprintf("%s and %s overlap: failures are not modelled for it", c.chain[0].Prefix, c.chain[1].Prefix)})
}

// arrivals looks at who reaches a class, and who should not.
func (p *prover) arrivals(c *class, reaches func(int32) bool) {
	for _, l := range p.legs {
		for i := range p.areas {
			if c.count[i] == 0 {
				continue
			}
			for _, s := range l.sources {
				arrives := s.meets(c) && reaches(s.router)
				switch cases := s.count * c.count[i]; {
				case l.to == i && !arrives:
					trip := p.n.Follow(s.some.port.on.Name, s.some.addr, p.far(c, i, s.some.port.on))
					p.reach.refute(cases, Counterexample{Packet: fmt.Sprintf("%s %s -> %s", trip.From, trip.Source, trip.Target), Path: trip.Hops,
						Why: trip.Why})
				case l.to == l.from && p.areas[i].Group != p.areas[l.from].Group:
					p.leak(c, i, l.from, s, cases, arrives)
				}
			}
		}
	}
}

// leak looks at whether packets of one group arrive in another: those that a host sends out of a NIC
// of its own area, whatever its own routes say.
func (p *prover) leak(c *class, to, from int, s source, cases int, reaches bool) {
	p.apart.Cases += cases
	x := c.some[to]
	if !reaches || x.port.on.drops(false, x.port.Name, s.some.addr) {
		return
	}
	trip := p.n.enter(p.n.routers[s.router], s.some, x.addr)
	p.apart.refute(cases, Counterexample{Packet: fmt.Sprintf("%s -> %s", s.some.addr, x.addr), Path: trip.Hops,
		Why: fmt.Sprintf("it arrives from %s in %s", p.areas[from].Name, p.areas[to].Name)})
}

// far is a target of a class that is not on a host.
func (p *prover) far(c *class, area int, d *Device) netip.Addr {
	if c.some[area].port.on != d {
		return c.some[area].addr
	}
	for _, t := range p.places[area] {
		if t.port.on == d {
			continue
		}
		if c.vni != 0 {
			if at := p.n.bridgeOf(t.port); at.vni == c.vni && slices.Equal(at.legs, c.legs) {
				return t.addr
			}
			continue
		}
		if p.n.chain(t.addr)[0].connected[0] == c.chain[0].connected[0] {
			return t.addr
		}
	}
	return c.some[area].addr
}

// count counts the next hops of every router, and compares them with the cables that a
// shortest path could take.
func (p *prover) count() {
	n, r := p.n, &p.base
	p.epoch++
	p.known = p.known[:0]
	for u := range n.routers {
		if r.dist[u] < 0 {
			continue
		}
		p.known = append(p.known, int32(u))
		p.loops.Cases++ // distances fall with every hop, so the packet arrives where it is 0
		if r.dist[u] == 0 {
			continue
		}
		hops := int32(0)
		p.w.hops(r, int32(u), nil, func(edge) { hops++ })
		p.state[u] = lossState{hops: hops, epoch: p.epoch}
		p.ecmp.Cases++
		cables := 0
		for _, e := range n.trunks[u] {
			if r.dist[e.to] == r.dist[u]-1 {
				cables++
			}
		}
		if used := min(int(hops), n.routers[u].BGP.MaxPaths); used < cables {
			p.ecmp.refute(1, Counterexample{Path: []string{n.routers[u].Name},
				Why: fmt.Sprintf("%s uses %d of %d cables on shortest paths to %s", n.routers[u].Name, used, cables, p.target0())})
		}
	}
}

// target0 names what the routes at hand lead to.
func (p *prover) target0() string {
	return p.n.routers[slices.Index(p.base.dist, 0)].Name
}

// narrowest looks for cables on the way to a class that carry less than its sources send.
func (p *prover) narrowest(c *class) {
	for _, k := range p.narrow {
		x := &p.n.cables[k]
		for _, ends := range [][2]*Port{{x.a, x.b}, {x.b, x.a}} {
			from, to := ends[0].on.id, ends[1].on.id
			if p.base.dist[from] < 1 || p.base.dist[to] != p.base.dist[from]-1 || !slices.Contains(p.n.sessions[from], edge{to, k}) {
				continue
			}
			p.senders(c, from, x)
		}
	}
}

// senders finds the sources of a class whose packets may cross a router, and are too large for a cable.
func (p *prover) senders(c *class, at int32, x *cable) {
	seen := p.behind(at)
	for _, l := range p.legs {
		for _, s := range l.sources {
			if c.count[l.to] > 0 && s.vni == c.vni && seen[s.router] && s.mtu > x.mtu() {
				p.mtu.refute(s.count*c.count[l.to],
					Counterexample{Packet: fmt.Sprintf("%d bytes %s %s -> %s", s.mtu, s.some.port.on.Name, s.some.addr, p.far(c, l.to, s.some.port.on)),
						Path: p.path(s.router, at, s.some.port.on.Name), Why: tooNarrow(x)})
			}
		}
	}
}

// behind are the routers whose shortest ways lead through one, itself among them.
func (p *prover) behind(at int32) map[int32]bool {
	seen := map[int32]bool{at: true}
	for queue := []int32{at}; len(queue) > 0; queue = queue[1:] {
		for _, e := range p.n.sessions[queue[0]] {
			if p.base.dist[e.to] == p.base.dist[queue[0]]+1 && !seen[e.to] {
				seen[e.to] = true
				queue = append(queue, e.to)
			}
		}
	}
	return seen
}

// path lists the devices of one shortest path from a source to a router on the way.
func (p *prover) path(from, to int32, host string) []string {
	// Towards the target: from each router by a next hop that is as far from it as "to" lets it be.
	seen := map[int32]int32{from: -1}
	for queue := []int32{from}; len(queue) > 0; queue = queue[1:] {
		if queue[0] == to {
			break
		}
		p.w.hops(&p.base, queue[0], nil, func(e edge) {
			if _, known := seen[e.to]; !known {
				seen[e.to] = queue[0]
				queue = append(queue, e.to)
			}
		})
	}
	var out []string
	for at := to; at >= 0; at = seen[at] {
		out = append(out, p.n.routers[at].Name)
		if _, known := seen[at]; !known {
			break
		}
	}
	slices.Reverse(out)
	return append([]string{host}, out...)
}
