package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// path is the way of a flow.
type path struct {
	uses    []use
	mid     []use     // more of them: the part between switches, which like ways have in common
	latency unit.Time // of the first byte, chips included
	net     bool      // leaves by a NIC
}

// hostPlan says which hosts are alike, so that ways inside them are found once:
// the links of a host are neighbours in the graph, and alike hosts have the same
// links in the same order.
type hostPlan struct {
	base  topo.LinkID // first link of the host
	links int32
	alike uint64
	open  bool // its accelerator network reaches beyond the host
}

type planKey struct {
	alike    uint64
	from, to int32
}

// plan is a way inside one host, links counted from the host's first.
type plan struct {
	uses    []use
	latency unit.Time
	fixed   bool // false if it leaves the host's own links and cannot be moved to another
}

// mix is the finisher of SplitMix64 over two words.
func mix(a, b uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// layout finds each host's links and what it looks like.
func (n *network) layout() {
	g := n.g
	n.hosts = make([]hostPlan, len(g.Hosts))
	models := map[string]uint64{}
	for h := range g.Hosts {
		host := &g.Hosts[h]
		p := &n.hosts[h]
		p.base = -1
		p.alike = uint64(host.Count)
		for i := range host.Count {
			node := &g.Nodes[host.First+topo.NodeID(i)]
			id, ok := models[node.Model]
			if !ok {
				id = uint64(len(models) + 1)
				models[node.Model] = id
			}
			p.alike = mix(p.alike, uint64(node.Kind)<<32|id<<16|uint64(uint16(node.Rail)))
			if node.Kind == topo.GPU || node.Kind == topo.NIC {
				if near := g.Near(host.First + topo.NodeID(i)); near != topo.None {
					p.alike = mix(p.alike, uint64(near-host.First)+1)
				}
			}
		}
	}
	for l := range g.Links {
		link := &g.Links[l]
		h := g.Nodes[link.A].Host
		if h == topo.None {
			continue
		}
		p, first := &n.hosts[h], g.Hosts[h].First
		if p.base < 0 {
			p.base = topo.LinkID(l)
		}
		p.links = int32(topo.LinkID(l)-p.base) + 1
		other := uint64(link.B - first)
		if g.Nodes[link.B].Host != h {
			other = 1<<20 + uint64(g.Nodes[link.B].Kind)
			p.open = p.open || g.Classes[link.Class].Kind.Accelerator()
		}
		p.alike = mix(p.alike, uint64(link.A-first)<<40|other<<8|uint64(link.Class)<<32^uint64(link.Count))
		if f := n.slowness(topo.LinkID(l)); f != 1 {
			p.alike = mix(p.alike, math.Float64bits(f))
		}
	}
}

// route finds the way of a flow. The seed, the ends and the channel make the
// key that switches hash.
func (n *network) route(from, to topo.NodeID, channel int32, p *path) error {
	g := n.g
	p.uses, p.mid, p.latency, p.net = p.uses[:0], nil, 0, false
	if way := n.o.ways[[2]topo.NodeID{from, to}]; way != nil {
		for _, u := range way {
			p.uses = append(p.uses, n.use(u))
		}
		p.latency = n.latency(from, to, way)
		return nil
	}
	a, b := &g.Nodes[from], &g.Nodes[to]
	key := mix(mix(n.o.Seed, uint64(from)<<32|uint64(to)), uint64(channel))
	if n.o.Routing == Adaptive && a.Kind != topo.Switch && b.Kind != topo.Switch {
		key = 0 // spread over all ways in any case, and so the same for all that are alike
	}
	if a.Kind == topo.NVSwitch || b.Kind == topo.NVSwitch {
		return n.striped(from, to, p)
	}
	if a.Host != topo.None && a.Host == b.Host {
		return n.inside(from, to, p, true)
	}
	if a.Kind == topo.GPU && b.Kind == topo.GPU && !n.hosts[a.Host].open && !n.o.PXN {
		out, in := g.Near(from), g.Near(to)
		if out != topo.None && in != topo.None {
			p.net = true
			if err := n.inside(from, out, p, false); err != nil {
				return err
			}
			if err := n.across(out, in, key, p); err != nil {
				return err
			}
			if err := n.inside(in, to, p, false); err != nil {
				return err
			}
			p.latency += n.chip(out, 0) + n.chip(in, 0)
			n.sockets(p, out, in)
			return nil
		}
	}
	var err error
	n.way, err = g.Route(topo.Flow{From: from, To: to, Key: key, PXN: n.o.PXN}, n.way[:0])
	if err != nil {
		return err
	}
	return n.general(from, to, key, p)
}

// striped goes between a GPU and the switches of its accelerator network, which
// compute together: a rank that is one of them stands for all.
func (n *network) striped(from, to topo.NodeID, p *path) error {
	g, gpu, up := n.g, from, true
	if g.Nodes[gpu].Kind == topo.NVSwitch {
		gpu, up = to, false
	}
	total := int64(0)
	member := func(e topo.Edge) bool {
		return g.Nodes[e.Peer].Kind == topo.NVSwitch && g.Class(e.Link).Kind.Accelerator()
	}
	if g.Nodes[gpu].Kind == topo.GPU {
		for _, e := range g.Edges(gpu) {
			if member(e) {
				total += int64(g.Links[e.Link].Count)
			}
		}
	}
	if total == 0 {
		return fmt.Errorf("%w from %s to %s over an accelerator network", topo.ErrUnreachable, g.NodeName(from), g.NodeName(to))
	}
	for _, e := range g.Edges(gpu) {
		if !member(e) {
			continue
		}
		w := n.wire(e.Link, gpu)
		if !up {
			w ^= 1
		}
		p.uses = append(p.uses, use{w, int32(whole * int64(g.Links[e.Link].Count) / total)})
		p.latency = g.Class(e.Link).Latency + nvswitchLatency/2
	}
	return nil
}

// inside goes between two parts of a host; by its accelerator network if one
// may, and by PCIe else. A way found for one host serves all that are like it.
func (n *network) inside(from, to topo.NodeID, p *path, direct bool) error {
	if from == to {
		return nil
	}
	g := n.g
	h := g.Nodes[from].Host
	hp, first := &n.hosts[h], g.Hosts[h].First
	key := planKey{hp.alike, int32(from - first), int32(to - first)}
	pl := n.plans[key]
	if pl == nil || !pl.fixed {
		var err error
		if direct {
			n.way, err = g.Route(topo.Flow{From: from, To: to}, n.way[:0])
		} else {
			var ok bool
			if n.way, ok = g.Inside(from, to, n.way[:0]); !ok {
				err = fmt.Errorf("no path from %s to %s within the host", g.NodeName(from), g.NodeName(to))
			}
		}
		if err != nil {
			return err
		}
		pl = &plan{fixed: true}
		pl.latency = n.latency(from, to, n.way)
		for _, u := range n.way {
			x := n.use(u)
			if u.Link < hp.base || u.Link >= hp.base+topo.LinkID(hp.links) {
				pl.fixed = false
			}
			x.wire -= wire(hp.base) << 1
			pl.uses = append(pl.uses, x)
		}
		n.plans[key] = pl
	}
	for _, u := range pl.uses {
		p.uses = append(p.uses, use{u.wire + wire(hp.base)<<1, u.share})
	}
	p.latency += pl.latency
	return nil
}

// across goes from NIC to NIC through the fabric.
func (n *network) across(out, in topo.NodeID, key uint64, p *path) error {
	g := n.g
	x, y := n.cable(g.Edges(out)), n.cable(g.Edges(in))
	single := x.Link >= 0 && y.Link >= 0
	if single && x.Peer == y.Peer { // under one leaf
		p.uses = append(p.uses, use{n.wire(x.Link, out), whole}, use{n.wire(y.Link, x.Peer), whole})
		kind := g.Class(x.Link).Kind
		p.latency += g.LinkLatency(x.Link) + g.LinkLatency(y.Link) + n.chip(x.Peer, kind)
		return nil
	}
	ends, leaves := unit.Time(0), [2]topo.NodeID{x.Peer, y.Peer}
	if single = single && n.o.Routing == Adaptive && key == 0; single {
		// With no key the ways between two switches are the same for all flows.
		ends = g.LinkLatency(x.Link) + g.LinkLatency(y.Link)
		if mid := n.middle[leaves]; mid.latency > 0 {
			p.uses = append(p.uses, use{n.wire(x.Link, out), whole}, use{n.wire(y.Link, y.Peer), whole})
			p.mid = mid.uses
			p.latency += ends + mid.latency
			return nil
		}
	}
	var ok bool
	if n.way, ok = g.Across(out, in, key, n.way[:0]); !ok {
		return fmt.Errorf("%w from %s to %s", topo.ErrUnreachable, g.NodeName(out), g.NodeName(in))
	}
	if n.o.Routing == ECMP && n.o.QPs > 1 {
		p.latency += n.hashed(out, in, key, p)
		return nil
	}
	latency := n.latency(out, in, n.way)
	p.latency += latency
	n.spread(n.way, p)
	if single && p.mid != nil {
		n.middle[leaves] = middle{p.mid, latency - ends}
	}
	return nil
}

// hashed splits a flow evenly over queue pairs, which switches hash one by one, and gives the latency of the longest path. The first is
// hashed as a flow with one queue pair is.
func (n *network) hashed(out, in topo.NodeID, key uint64, p *path) (longest unit.Time) {
	first, count := len(p.uses), int32(n.o.QPs)
	for q := range count {
		part := whole*(q+1)/count - whole*q/count
		if q > 0 {
			var ok bool
			if n.way, ok = n.g.Across(out, in, mix(key, uint64(q)), n.way[:0]); !ok {
				continue // the first one was found, so that there is a path for all
			}
		}
		longest = max(longest, n.latency(out, in, n.way))
		for _, u := range n.way {
			x := n.use(u)
			x.share = int32(int64(x.share) * int64(part) / whole)
			if at := slices.IndexFunc(p.uses[first:], func(y use) bool { return y.wire == x.wire }); at >= 0 {
				p.uses[first+at].share += x.share
			} else {
				p.uses = append(p.uses, x)
			}
		}
	}
	return longest
}

// cable gives the only network link among edges, None if there are several.
func (n *network) cable(edges []topo.Edge) topo.Edge {
	found := topo.Edge{Peer: topo.None, Link: topo.None}
	for _, e := range edges {
		if n.g.Class(e.Link).Kind.Network() {
			if found.Link != topo.None {
				return topo.Edge{Peer: topo.None, Link: topo.None}
			}
			found = e
		}
	}
	return found
}

// general takes over a way that Route found, with the spreading in the fabric.
func (n *network) general(from, to topo.NodeID, key uint64, p *path) error {
	g := n.g
	p.latency = n.latency(from, to, n.way)
	first, last := -1, -1
	for i, u := range n.way {
		if g.Class(u.Link).Kind.Network() {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	if first < 0 {
		for _, u := range n.way {
			p.uses = append(p.uses, n.use(u))
		}
		return nil
	}
	p.net = true
	for _, u := range n.way[:first] {
		p.uses = append(p.uses, n.use(u))
	}
	out, _ := g.Links[n.way[first].Link].Ends(n.way[first].Forward)
	_, in := g.Links[n.way[last].Link].Ends(n.way[last].Forward)
	rest := slices.Clone(n.way[last+1:])
	if n.way = n.way[first : last+1]; n.o.Routing == ECMP && n.o.QPs > 1 && g.Nodes[out].Kind == topo.NIC && g.Nodes[in].Kind == topo.NIC {
		n.hashed(out, in, key, p)
	} else {
		n.spread(n.way, p)
	}
	for _, u := range rest {
		p.uses = append(p.uses, n.use(u))
	}
	n.sockets(p, out, in)
	return nil
}

// sockets adds the CPU's copies on both sides, where sockets are used.
func (n *network) sockets(p *path, out, in topo.NodeID) {
	if n.o.Transport != TCP {
		return
	}
	p.latency += 2 * kernel
	links := len(n.g.Links)
	p.uses = append(p.uses, use{wire(links+int(out)) << 1, whole}, use{wire(links+int(in))<<1 | 1, whole})
}

func (n *network) use(u topo.Use) use {
	w := wire(u.Link) << 1
	if !u.Forward {
		w |= 1
	}
	return use{w, max(1, int32(math.Round(float64(u.Share)*whole)))}
}

func (n *network) wire(l topo.LinkID, from topo.NodeID) wire {
	w := wire(l) << 1
	if n.g.Links[l].A != from {
		w |= 1
	}
	return w
}

// latency is that of the longest strand of a way: links, and the chips between them.
func (n *network) latency(from, to topo.NodeID, way []topo.Use) unit.Time {
	g := n.g
	type reached struct {
		node topo.NodeID
		at   unit.Time
	}
	var few [16]reached
	seen := append(few[:0], reached{from, 0})
	for _, u := range way {
		a, b := g.Links[u.Link].Ends(u.Forward)
		class := g.Class(u.Link)
		var t unit.Time
		for _, s := range seen {
			if s.node == a {
				t = s.at
			}
		}
		if a != from {
			t += n.chip(a, class.Kind)
		}
		t += g.LinkLatency(u.Link)
		known := false
		for i := range seen {
			if seen[i].node == b {
				seen[i].at, known = max(seen[i].at, t), true
			}
		}
		if !known {
			seen = append(seen, reached{b, t})
		}
	}
	for _, s := range seen {
		if s.node == to {
			return s.at
		}
	}
	return 0
}
