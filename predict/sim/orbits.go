package sim

import (
	"slices"

	"github.com/weft-fabric/weft/model/sets"
	"github.com/weft-fabric/weft/model/topo"
)

// orbits is a group of renamings of hosts that leave the fabric as it is. Where every host is like every other and every switch
// has its counterpart, a flow goes the way of any flow that it is renamed to. So the flows of a few ranks stand for those of all,
// and a cluster of 131,072 GPUs is known by looking at each switch once per generator, without listing a single route.
//
//	hosts     0  1  2  3 | 4  5  6  7        one generator: host h becomes h xor 4
//	leaves    a  a  a  a | b  b  b  b        so leaf a becomes b and b becomes a,
//	spines       s     t (a and b both)      s stays, t stays; links a-s and b-s are one orbit
//
// What a generator does to the switches follows from what it does to the hosts, tier by tier, and is then checked link by link:
// rate, count, latency, chip and tier must be those of the counterpart.
type orbits struct {
	net    *network
	blocks []topo.HostID // the hosts, in the order of their ranks
	gpus   int32         // ranks per host
	few    int32         // hosts that stand for all: host b stands for b+few, b+2*few, ...
	block  []int32       // by host: its index in blocks; -1 if no rank is there
	cables []topo.Edge   // by host and position: the NIC's cable; Peer is the leaf

	above []topo.NodeID         // switches from the leaves upwards, by tier
	index map[topo.NodeID]int32 // of a switch in above
	links []topo.LinkID         // between them
	of    []int32               // by link of the graph: its index in links; -1
	attr  []uint64              // by link: what must be equal
	root  sets.Sets[int32]      // by link: union-find of the orbits
	size  []int32               // by root: links of the orbit
	sizes map[wire]int64        // of the orbits that flows use, by the wire that stands for each
	times int64                 // ranks for which each listed one stands
}

// findOrbits looks for the smallest number of ranks, a multiple of base, that stand for all n under renamings by their multiples:
// rank r becomes r + few, round the ring of all, or r xor few with swaps. Nil if this fabric, or this placement, has none.
func findOrbits(net *network, place []topo.NodeID, base int32, swaps bool) *orbits {
	if net.o.Routing != Adaptive || net.o.PXN || net.o.ways != nil || net.o.listed {
		return nil // flows that correspond may be told apart by their hash, or by which way was found first
	}
	o := &orbits{net: net}
	if !o.lay(place) {
		return nil
	}
	o.wire()
	n := int32(len(place))
	step := lcm(base, o.gpus*int32(net.every()))
	if step >= n || n%step != 0 {
		return nil
	}
	hosts := n / o.gpus
	if swaps {
		o.few = o.swapping(hosts, step/o.gpus)
	} else {
		o.few = o.turning(hosts, step/o.gpus)
	}
	if o.few == hosts {
		return nil
	}
	o.count(hosts)
	return o
}

// count joins what more belongs together, and counts the links of every orbit.
func (o *orbits) count(hosts int32) {
	// Switches that have the same links downwards may take turns as well, the others of each tier with them: then all links of
	// a tier are one orbit, and not one for each of a leaf's uplinks.
	stay := func(b int32) int32 { return b }
	for tier := o.tier(0) + 1; tier <= o.tier(len(o.above)-1); tier++ {
		o.accept(stay, tier)
	}
	o.times, o.sizes = int64(hosts/o.few), map[wire]int64{}
	o.size = make([]int32, len(o.links))
	for i := range o.links {
		o.size[o.root.Find(int32(i))]++
	}
}

// swapping gives the smallest power of two, at least least, by whose multiples hosts may be renamed with an exclusive or.
func (o *orbits) swapping(hosts, least int32) int32 {
	few := hosts
	for few > least && o.accept(func(b int32) int32 { return b ^ few/2 }, 0) {
		few /= 2
	}
	return few
}

// turning gives the smallest multiple of least by which hosts may be renamed round the ring of all.
func (o *orbits) turning(hosts, least int32) int32 {
	for few := least; few < hosts; few += least {
		if hosts%few == 0 && o.accept(func(b int32) int32 { return (b + few) % hosts }, 0) {
			return few
		}
	}
	return hosts
}

// end is the index after the last switch of the same tier.
func (o *orbits) end(s int) int {
	end := s
	for end < len(o.above) && o.tier(end) == o.tier(s) {
		end++
	}
	return end
}

// tier is that of a switch, by index.
func (o *orbits) tier(i int) uint8 { return o.net.g.Nodes[o.above[i]].Tier }

func lcm(a, b int32) int32 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// lay takes the placement apart into hosts that all have their ranks at the same positions, and are like the first; where bad parts
// were repeated, like one of the first.
func (o *orbits) lay(place []topo.NodeID) bool {
	g := o.net.g
	first := g.Nodes[place[0]].Host
	next := slices.IndexFunc(place, func(n topo.NodeID) bool { return g.Nodes[n].Host != first })
	if first == topo.None || next < 0 || len(place)%next != 0 {
		return false
	}
	o.gpus = int32(next)
	o.block = slices.Repeat([]int32{-1}, len(g.Hosts))
	for k := 0; k < len(place); k += int(o.gpus) {
		h, model := g.Nodes[place[k]].Host, k%(o.net.every()*int(o.gpus))
		if h == topo.None || !o.like(h, g.Nodes[place[model]].Host) {
			return false
		}
		o.block[h] = int32(len(o.blocks))
		o.blocks = append(o.blocks, h)
		for i, node := range place[k : k+int(o.gpus)] {
			if g.Nodes[node].Host != h || !o.rank(model+i, node, place[model+i]) {
				return false
			}
		}
	}
	return true
}

// like reports whether a host is a copy of another, with an accelerator network of its own, and has no ranks yet.
func (o *orbits) like(h, first topo.HostID) bool {
	p := &o.net.hosts[h]
	return o.block[h] < 0 && !p.open && p.base >= 0 && p.alike == o.net.hosts[first].alike
}

// rank takes in the GPU of a host's rank, which must be in the position of the i-th rank, with the same cable.
func (o *orbits) rank(i int, node, first topo.NodeID) bool {
	g := o.net.g
	host, hp := &g.Hosts[g.Nodes[node].Host], &o.net.hosts[g.Nodes[node].Host]
	if g.Nodes[node].Kind != topo.GPU || node-host.First != first-g.Hosts[g.Nodes[first].Host].First || o.net.lame[node] != o.net.lame[first] {
		return false
	}
	nic := g.Near(node)
	if nic == topo.None {
		return false
	}
	c := o.net.cable(g.Edges(nic))
	if c.Link < hp.base || c.Link >= hp.base+topo.LinkID(hp.links) || g.Nodes[c.Peer].Tier == 0 {
		return false
	}
	o.cables = append(o.cables, c)
	return g.LinkLatency(c.Link) == g.LinkLatency(o.cables[i].Link)
}

// wire collects the switches that flows may pass, and the links between them.
func (o *orbits) wire() {
	g := o.net.g
	o.index = map[topo.NodeID]int32{}
	add := func(s topo.NodeID) {
		if _, known := o.index[s]; !known {
			o.index[s] = int32(len(o.above))
			o.above = append(o.above, s)
		}
	}
	for _, c := range o.cables {
		add(c.Peer)
	}
	o.of = slices.Repeat([]int32{-1}, len(g.Links))
	for i := 0; i < len(o.above); i++ {
		s := o.above[i]
		for _, e := range g.Edges(s) {
			if !o.net.upward(s, e) {
				continue
			}
			add(e.Peer)
			if o.of[e.Link] < 0 {
				o.of[e.Link] = int32(len(o.links))
				o.links = append(o.links, e.Link)
			}
		}
	}
	// From the leaves upwards, so that what is below a switch is renamed before it is.
	slices.SortStableFunc(o.above, func(a, b topo.NodeID) int { return int(g.Nodes[a].Tier) - int(g.Nodes[b].Tier) })
	for i, s := range o.above {
		o.index[s] = int32(i)
	}
	o.attr, o.root = make([]uint64, len(o.links)), sets.New[int32](len(o.links))
	for i, l := range o.links {
		link := &g.Links[l]
		up := o.net.wire(l, link.A)
		if g.Nodes[link.A].Tier > g.Nodes[link.B].Tier {
			up ^= 1
		}
		o.attr[i] = mix(mix(uint64(link.Class)<<32|uint64(link.Count), uint64(g.LinkLatency(l))),
			mix(uint64(o.net.capacity(up)), uint64(o.net.capacity(up^1))))
	}
}

// accept checks a renaming of hosts. If the fabric has one of switches that goes with it, links that become one another are joined.
// Switches of tier turn become the next one of those that could take their place; 0 for none.
func (o *orbits) accept(rename func(int32) int32, turn uint8) bool {
	to := o.switches(rename, turn)
	if to == nil {
		return false
	}
	image := o.images(to)
	if image == nil {
		return false
	}
	for i, j := range image {
		o.root.Join(int32(i), j)
	}
	return true
}

// switches says which switch each becomes, by index; nil if there is no such renaming.
func (o *orbits) switches(rename func(int32) int32, turn uint8) []int32 {
	to, from := slices.Repeat([]int32{-1}, len(o.above)), slices.Repeat([]int32{-1}, len(o.above))
	pair := func(a, b int32) bool {
		if to[a] < 0 && from[b] < 0 {
			to[a], from[b] = b, a
		}
		return to[a] == b && from[b] == a
	}
	for k, c := range o.cables {
		b, i := int32(k)/o.gpus, int32(k)%o.gpus
		if !pair(o.index[c.Peer], o.index[o.cables[rename(b)*o.gpus+i].Peer]) {
			return nil
		}
	}
	// A switch above becomes one whose links go to what those of the first become. Among several, they keep their order.
	have, want := make([]uint64, len(o.above)), make([]uint64, len(o.above))
	for s := 0; s < len(o.above); {
		end := o.end(s)
		if !o.fill(s, end, o.tier(s) == turn, to, have, want, pair) {
			return nil
		}
		for i := s; i < end; i++ {
			if !o.same(i, int(to[i])) {
				return nil
			}
			o.lift(i, int(to[i]), have, want)
		}
		s = end
	}
	return to
}

// lift tells the switches above one what links they have to it, and which they want once it has become another.
func (o *orbits) lift(i, becomes int, have, want []uint64) {
	for _, e := range o.net.g.Edges(o.above[i]) {
		if o.net.upward(o.above[i], e) {
			at, a := o.index[e.Peer], o.attr[o.of[e.Link]]
			have[at] += mix(uint64(i)+1, a)
			want[at] += mix(uint64(becomes)+1, a)
		}
	}
}

// fill pairs the switches of a tier that are not paired yet, each with one that has the links it wants: the next one of those with turn.
func (o *orbits) fill(from, end int, turn bool, to []int32, have, want []uint64, pair func(a, b int32) bool) bool {
	byLinks, taken, next := map[uint64][]int32{}, map[uint64]int{}, 0
	if turn {
		next = 1
	}
	for i := from; i < end; i++ {
		if to[i] < 0 {
			byLinks[have[i]] = append(byLinks[have[i]], int32(i))
		}
	}
	for i := from; i < end; i++ {
		if to[i] >= 0 {
			continue
		}
		list, at := byLinks[want[i]], taken[want[i]]
		if at >= len(list) || !pair(int32(i), list[(at+next)%len(list)]) {
			return false
		}
		taken[want[i]]++
	}
	return true
}

// same reports whether two switches are of one tier and kind.
func (o *orbits) same(i, j int) bool {
	a, b := &o.net.g.Nodes[o.above[i]], &o.net.g.Nodes[o.above[j]]
	return a.Tier == b.Tier && a.Kind == b.Kind && a.Model == b.Model
}

// images says which link each becomes; nil if one has no counterpart. Of parallel links the first becomes the first.
func (o *orbits) images(to []int32) []int32 {
	g := o.net.g
	image := slices.Repeat([]int32{-1}, len(o.links))
	type key struct {
		peer int32
		attr uint64
	}
	counterparts := map[key][]int32{}
	for i, s := range o.above {
		clear(counterparts)
		for _, e := range g.Edges(o.above[to[i]]) {
			if o.net.upward(o.above[to[i]], e) {
				k := key{o.index[e.Peer], o.attr[o.of[e.Link]]}
				counterparts[k] = append(counterparts[k], o.of[e.Link])
			}
		}
		for _, e := range g.Edges(s) {
			if !o.net.upward(s, e) {
				continue
			}
			k := key{to[o.index[e.Peer]], o.attr[o.of[e.Link]]}
			list := counterparts[k]
			if len(list) == 0 {
				return nil
			}
			image[o.of[e.Link]], counterparts[k] = list[0], list[1:]
		}
		for _, list := range counterparts {
			if len(list) > 0 {
				return nil
			}
		}
	}
	return image
}

// stands is the wire that stands for another's orbit, and how many there are in it; false if a wire belongs to none.
func (o *orbits) stands(w wire) (wire, int64, bool) {
	g := o.net.g
	l := topo.LinkID(w >> 1)
	if int(l) >= len(g.Links) { // the CPU's copies for a NIC
		node := topo.NodeID(int(l) - len(g.Links))
		h := g.Nodes[node].Host
		if h == topo.None || o.block[h] < 0 {
			return w, 1, false
		}
		rep := o.blocks[o.block[h]%o.few]
		at := int(node-g.Hosts[h].First+g.Hosts[rep].First) + len(g.Links)
		return wire(at)<<1 | w&1, int64(len(o.blocks)) / int64(o.few), true
	}
	if at := o.of[l]; at >= 0 {
		root := o.root.Find(at)
		rep := o.links[root]
		return o.turned(l, rep, w), int64(o.size[root]), true
	}
	h := g.Nodes[g.Links[l].A].Host
	if h == topo.None || o.block[h] < 0 {
		return w, 1, false
	}
	rep := o.blocks[o.block[h]%o.few]
	return w - wire(o.net.hosts[h].base)<<1 + wire(o.net.hosts[rep].base)<<1, int64(len(o.blocks)) / int64(o.few), true
}

// turned is the wire of link rep that goes up where w of link l does, and down where it goes down.
func (o *orbits) turned(l, rep topo.LinkID, w wire) wire {
	g := o.net.g
	down := func(x topo.LinkID) bool { return g.Nodes[g.Links[x].A].Tier > g.Nodes[g.Links[x].B].Tier }
	x := wire(rep)<<1 | w&1
	if down(l) != down(rep) {
		x ^= 1
	}
	return x
}

// own gathers the uses of a flow that are not in its middle. They must be those of hosts: a way between switches that is not laid
// over all ways was found by looking for any, and a flow that corresponds may take another.
func (o *orbits) own(uses []use) ([]use, bool) {
	for _, u := range uses {
		if l := int(u.wire >> 1); l < len(o.of) && o.of[l] >= 0 {
			return nil, false
		}
	}
	return o.gather(uses)
}

// gather adds up the uses of each orbit at the wire that stands for it; false if one is in none.
func (o *orbits) gather(uses []use) ([]use, bool) {
	var sum []use
next:
	for _, u := range uses {
		x, size, ok := o.stands(u.wire)
		if !ok {
			return nil, false
		}
		o.sizes[x] = size
		for i := range sum {
			if sum[i].wire == x {
				sum[i].share += u.share
				continue next
			}
		}
		sum = append(sum, use{x, u.share})
	}
	for _, u := range sum {
		if int64(u.share)*o.times%o.sizes[u.wire] != 0 {
			return nil, false // every wire of an orbit gets the same whole number: this would be none
		}
	}
	return sum, true
}

// load is what each wire of an orbit gets of a flow and of all that correspond to it.
func (o *orbits) load(u use) int64 { return int64(u.share) * o.times / o.sizes[u.wire] }

// expand adds to every wire what the one that stands for it carries.
func (o *orbits) expand(few, all []float64) {
	for i := range all {
		if x, _, ok := o.stands(wire(i)); ok {
			all[i] += few[x]
		}
	}
}
