package topo

import (
	"errors"
	"fmt"
	"sync"
)

// Flow is one stream of bytes from one endpoint (GPU, NIC or CPU) to another.
type Flow struct {
	From, To NodeID
	Key      uint64 // what switches hash: equal keys take equal ways
	PXN      bool   // reach the destination's rail over the accelerator network first, as NCCL's PXN does
	Valiant  bool   // dragonfly: by way of a group chosen by the key, instead of the shortest way
}

// Use is one link on a flow's way and the share of the flow's bytes it carries:
// 1 on a single path, less where NVSwitches stripe them.
type Use struct {
	Link    LinkID
	Forward bool // from Link.A to Link.B
	Share   float32
}

// ErrUnreachable is returned by Route when no path exists.
var ErrUnreachable = errors.New("no path")

// Route gives the exact links a flow uses, in order, appended to way. It
// computes them from the fabric's structure: no table is kept, and nothing is
// allocated beyond what way needs. A route inside an accelerator network never
// leaves it; else bytes go by PCIe to the NIC nearest the source (or, where that
// is in another fabric than the destination's, to one that is not; or, with PXN,
// to the one on the destination's rail), through the fabric, and up again.
func (g *Graph) Route(f Flow, way []Use) ([]Use, error) {
	if f.From == f.To {
		return way, nil
	}
	r := routers.Get().(*router)
	defer routers.Put(r)
	r.g = g
	a, b := &g.Nodes[f.From], &g.Nodes[f.To]
	if a.Kind == GPU && b.Kind == GPU {
		if next, ok := r.accelerated(f.From, f.To, way); ok {
			return next, nil
		}
	}
	if a.Host != None && a.Host == b.Host {
		next, ok := r.inside(f.From, f.To, way)
		if !ok {
			return way, g.noWay(f)
		}
		return next, nil
	}
	out, in := g.port(f.From), g.port(f.To)
	if out == None || in == None {
		return way, fmt.Errorf("%w: a host at one end has no NIC in a fabric", g.noWay(f))
	}
	if g.Nodes[out].Fabric != g.Nodes[in].Fabric && !f.PXN {
		if nic := g.portIn(f.From, in); nic != None {
			out = nic
		} else if nic := g.portIn(f.To, out); nic != None {
			in = nic
		}
	}
	ok := true
	if f.PXN && g.Nodes[out].Rail != g.Nodes[in].Rail {
		if proxy, nic := g.proxy(f.From, g.Nodes[in].Rail); proxy != None {
			if next, reached := r.accelerated(f.From, proxy, way); reached {
				way, f.From, out = next, proxy, nic
			}
		}
	}
	if way, ok = r.inside(f.From, out, way); !ok {
		return way, g.noWay(f)
	}
	if way, ok = r.across(out, in, f, way); !ok {
		return way, g.noWay(f)
	}
	if way, ok = r.inside(in, f.To, way); !ok {
		return way, g.noWay(f)
	}
	return way, nil
}

func (g *Graph) noWay(f Flow) error {
	return fmt.Errorf("%w from %s to %s", ErrUnreachable, g.NodeName(f.From), g.NodeName(f.To))
}

// port gives the node where an endpoint enters the fabric.
func (g *Graph) port(n NodeID) NodeID {
	switch node := &g.Nodes[n]; node.Kind {
	case NIC, Switch:
		return n
	case GPU:
		return g.near[n]
	default:
		if node.Host == None {
			return None
		}
		first := g.Hosts[node.Host].First
		for i := range g.HostNodes(node.Host) {
			if m := first + NodeID(i); g.Nodes[m].Kind == NIC && g.networked(m) {
				return m
			}
		}
		return None
	}
}

// portIn finds another NIC of an endpoint's host, in the fabric of peer and if
// possible on its rail. None if there is none, or the endpoint is a NIC itself.
func (g *Graph) portIn(n, peer NodeID) NodeID {
	node, want := &g.Nodes[n], &g.Nodes[peer]
	best := NodeID(None)
	if node.Kind == NIC || node.Host == None {
		return best
	}
	host := &g.Hosts[node.Host]
	for i := int32(0); i < host.Count; i++ {
		m := host.First + NodeID(i)
		if nic := &g.Nodes[m]; nic.Kind == NIC && nic.Fabric == want.Fabric &&
			(best == None || nic.Rail == want.Rail && g.Nodes[best].Rail != want.Rail) {
			best = m
		}
	}
	return best
}

// proxy finds the GPU of a host that sits at the NIC of a rail.
func (g *Graph) proxy(gpu NodeID, rail int16) (proxy, nic NodeID) {
	host := &g.Hosts[g.Nodes[gpu].Host]
	for i := int32(0); i < host.Count; i++ {
		n := host.First + NodeID(i)
		if g.Nodes[n].Kind == NIC && g.Nodes[n].Rail == rail && g.networked(n) && g.near[n] != None {
			return g.near[n], n
		}
	}
	return None, None
}

// router is the scratch space of one query.
type router struct {
	g     *Graph
	walk  hostWalk
	depth map[NodeID]int32
	share map[NodeID]float32
	queue []NodeID
}

var routers = sync.Pool{New: func() any {
	return &router{depth: map[NodeID]int32{}, share: map[NodeID]float32{}}
}}

func (r *router) use(from NodeID, e Edge, share float32) Use {
	return Use{e.Link, r.g.Links[e.Link].A == from, share}
}

// inside goes from one node of a host to another over its PCIe tree and sockets.
func (r *router) inside(from, to NodeID, way []Use) ([]Use, bool) {
	if from == to {
		return way, true
	}
	if r.g.Nodes[from].Host == None || r.g.Nodes[from].Host != r.g.Nodes[to].Host {
		return way, false
	}
	r.walk.from(r.g, to) // the walk points back to its start, so start at the end
	first := r.g.Hosts[r.g.Nodes[to].Host].First
	if r.walk.dist[from-first] < 0 {
		return way, false
	}
	for n := from; n != to; {
		e := r.walk.via[n-first]
		way = append(way, r.use(n, e, 1))
		n = e.Peer
	}
	return way, true
}

// accelerated goes from GPU to GPU without PCIe: along a torus of chips, over a
// direct link, or through as many NVSwitches as it takes, striped over all
// shortest ways in proportion to what they carry. Where two GPUs meet in switches
// of two networks, in that of their box and in one that joins boxes, they take the
// wider: hardware stripes over the switches of a network, not over networks.
func (r *router) accelerated(from, to NodeID, way []Use) ([]Use, bool) {
	g := r.g
	if a, b := &g.Nodes[from], &g.Nodes[to]; a.Fabric != None && a.Fabric == b.Fabric && g.Fabrics[a.Fabric].Family == Torus {
		return r.torus(from, to, way)
	}
	if e, ok := g.direct(from, to); ok && g.Class(e.Link).Kind.Accelerator() {
		return r.bundle(from, to, way), true
	}
	if !r.depths(from, to) {
		return way, false
	}
	if r.depth[from] == 2 {
		r.widest(from, to)
	}
	return r.stripe(from, to, way), true
}

// bundle takes all direct links between two GPUs, in proportion to their rates.
func (r *router) bundle(from, to NodeID, way []Use) []Use {
	g := r.g
	total := float32(0)
	edges := g.between(from, to)
	for _, e := range edges {
		if g.Class(e.Link).Kind.Accelerator() {
			total += float32(g.Rate(e.Link))
		}
	}
	for _, e := range edges {
		if g.Class(e.Link).Kind.Accelerator() {
			way = append(way, r.use(from, e, float32(g.Rate(e.Link))/total))
		}
	}
	return way
}

// depths numbers switches by their distance from the far end, over switches only and as far as the near end. It says
// whether it came there.
func (r *router) depths(from, to NodeID) bool {
	g := r.g
	clear(r.depth)
	r.queue = append(r.queue[:0], to)
	r.depth[to] = 0
	for q := 0; q < len(r.queue); q++ {
		n := r.queue[q]
		for _, e := range g.Edges(n) {
			if !g.Class(e.Link).Kind.Accelerator() {
				continue
			}
			if e.Peer == from {
				r.depth[from] = r.depth[n] + 1
				return true
			}
			if g.Nodes[e.Peer].Kind != NVSwitch {
				continue
			}
			if _, seen := r.depth[e.Peer]; !seen {
				r.depth[e.Peer] = r.depth[n] + 1
				r.queue = append(r.queue, e.Peer)
			}
		}
	}
	return false
}

// stripe spreads traffic over all ways that come nearer with every hop. What enters a node leaves it in proportion to
// what its links carry.
func (r *router) stripe(from, to NodeID, way []Use) []Use {
	g := r.g
	clear(r.share)
	r.share[from] = 1
	r.queue = append(r.queue[:0], from)
	for q := 0; q < len(r.queue); q++ {
		n := r.queue[q]
		if n == to {
			continue
		}
		down, total := r.depth[n]-1, float32(0)
		edges := g.Edges(n)
		if down == 0 { // of a switch's many links only those to the far end
			edges = g.between(n, to)
		}
		for _, e := range edges {
			if r.nearer(e, down) {
				total += r.carries(e, to)
			}
		}
		for _, e := range edges {
			if !r.nearer(e, down) {
				continue
			}
			part := r.share[n] * r.carries(e, to) / total
			way = append(way, r.use(n, e, part))
			if _, seen := r.share[e.Peer]; !seen {
				r.queue = append(r.queue, e.Peer)
			}
			r.share[e.Peer] += part
		}
	}
	return way
}

// widest keeps, of the switches between two GPUs, those of the network that carries most. Switches are of one network if they have
// links to the same GPUs.
func (r *router) widest(from, to NodeID) {
	if len(r.queue) <= 2 { // the far end and one switch
		return
	}
	rates := map[uint64]float32{} // by network
	networks := map[NodeID]uint64{}
	for _, e := range r.g.Edges(from) {
		if r.nearer(e, 1) {
			networks[e.Peer] = r.network(e.Peer)
			rates[networks[e.Peer]] += r.carries(e, to)
		}
	}
	best := float32(0)
	for _, rate := range rates {
		best = max(best, rate)
	}
	for s, n := range networks {
		if rates[n] < best {
			delete(r.depth, s)
		}
	}
}

// network is a number that switches with links to the same GPUs have in common.
func (r *router) network(s NodeID) (sum uint64) {
	for _, e := range r.g.Edges(s) {
		if r.g.Nodes[e.Peer].Kind == GPU {
			sum += mix(uint64(e.Peer), 1)
		}
	}
	return sum
}

// nearer reports whether an accelerator link leads to a node at a depth.
func (r *router) nearer(e Edge, depth int32) bool {
	d, seen := r.depth[e.Peer]
	return seen && d == depth && r.g.Class(e.Link).Kind.Accelerator()
}

// carries is what a link carries towards the far end, which is what its switch can pass on.
func (r *router) carries(e Edge, to NodeID) float32 {
	rate, depth := float32(r.g.Rate(e.Link)), r.depth[e.Peer]
	if depth == 0 {
		return rate
	}
	on, edges := float32(0), r.g.Edges(e.Peer)
	if depth == 1 {
		edges = r.g.between(e.Peer, to)
	}
	for _, next := range edges {
		if r.nearer(next, depth-1) {
			on += r.carries(next, to)
		}
	}
	return min(rate, on)
}

// direct finds the first link between two nodes.
func (g *Graph) direct(a, b NodeID) (Edge, bool) {
	edges := g.between(a, b)
	if len(edges) == 0 {
		return Edge{None, None}, false
	}
	return edges[0], true
}

// between lists the links from a to b as seen from a.
func (g *Graph) between(a, b NodeID) []Edge {
	edges := g.Edges(a)
	lo, hi := 0, len(edges)
	for lo < hi {
		if mid := (lo + hi) / 2; edges[mid].Peer < b {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	end := lo
	for end < len(edges) && edges[end].Peer == b {
		end++
	}
	return edges[lo:end]
}

// across goes from one port of a fabric to another.
func (r *router) across(from, to NodeID, f Flow, way []Use) ([]Use, bool) {
	g := r.g
	fabric := g.Nodes[from].Fabric
	if from == to {
		return way, true
	}
	if fabric == None || fabric != g.Nodes[to].Fabric {
		return way, false
	}
	switch g.Fabrics[fabric].Family {
	case Torus:
		return r.attached(from, to, f.Key, way, r.torus)
	case Dragonfly:
		return r.attached(from, to, f.Key, way, func(a, b NodeID, way []Use) ([]Use, bool) {
			return r.dragonfly(a, b, f, way)
		})
	}
	if g.Peered(fabric) {
		return r.fewestHops(from, to, f.Key, way)
	}
	return r.upDown(from, to, f.Key, way)
}

// attached takes the hop from a NIC to its switch and back around a route between switches.
func (r *router) attached(from, to NodeID, key uint64, way []Use, between func(a, b NodeID, way []Use) ([]Use, bool)) ([]Use, bool) {
	all := func(Edge) bool { return true }
	last := Edge{None, None}
	if r.g.Nodes[from].Kind == NIC {
		e, ok := r.pick(from, key, all)
		if !ok {
			return way, false
		}
		way = append(way, r.use(from, e, 1))
		from = e.Peer
	}
	if r.g.Nodes[to].Kind == NIC {
		e, ok := r.pick(to, key, all)
		if !ok {
			return way, false
		}
		last, to = Edge{to, e.Link}, e.Peer
	}
	way, ok := between(from, to, way)
	if ok && last.Link != None {
		way = append(way, r.use(to, last, 1))
	}
	return way, ok
}

// pick chooses among a node's links to switches by the key: each link gets a
// number from key and link, and the highest allowed one wins. So every allowed
// link is equally likely, and losing a link moves only the flows that used it.
func (r *router) pick(n NodeID, key uint64, allowed func(Edge) bool) (Edge, bool) {
	return r.choose(r.g.Edges(n), key, func(e Edge) bool { return r.g.Nodes[e.Peer].Kind == Switch && allowed(e) })
}

func (r *router) choose(edges []Edge, key uint64, allowed func(Edge) bool) (Edge, bool) {
	best, score := Edge{None, None}, uint64(0)
	for _, e := range edges {
		if s := mix(key, uint64(e.Link)+1) | 1; s > score && (allowed == nil || allowed(e)) {
			best, score = e, s
		}
	}
	return best, best.Link != None
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

// upDown climbs from a port to the lowest tier that has a common switch, by
// hashing among the links that still lead there, and descends.
func (r *router) upDown(from, to NodeID, key uint64, way []Use) ([]Use, bool) {
	g := r.g
	if e, ok := g.direct(from, to); ok {
		return append(way, r.use(from, e, 1)), true
	}
	low := max(g.Nodes[from].Tier, g.Nodes[to].Tier)
	for top := max(low, 1); top <= low+8; top++ {
		start := len(way)
		at, ok := from, true
		for g.Nodes[at].Tier < top && ok {
			var e Edge
			e, ok = r.pick(at, mix(key, uint64(g.Nodes[at].Tier)), func(e Edge) bool {
				return g.Nodes[e.Peer].Tier > g.Nodes[at].Tier && g.Nodes[e.Peer].Tier <= top && r.leadsTo(e.Peer, to, top)
			})
			if ok {
				way = append(way, r.use(at, e, 1))
				at = e.Peer
			}
		}
		for at != to && ok {
			hash := mix(key, uint64(g.Nodes[at].Tier)+16)
			e, last := r.choose(g.between(at, to), hash, nil)
			if !last {
				e, ok = r.pick(at, hash, func(e Edge) bool { return g.Nodes[e.Peer].Tier < g.Nodes[at].Tier && r.above(e.Peer, to) })
			}
			if ok {
				way = append(way, r.use(at, e, 1))
				at = e.Peer
			}
		}
		if ok && at == to {
			return way, true
		}
		way = way[:start]
	}
	return way, false
}

// fewestHops takes a shortest way through a fabric in which switches of one tier
// are joined, so that up and down alone do not lead everywhere: chains, rings,
// pairs of leaves. Among equally short ways the key decides, hop by hop.
func (r *router) fewestHops(from, to NodeID, key uint64, way []Use) ([]Use, bool) {
	g := r.g
	clear(r.depth)
	r.depth[to] = 0
	r.queue = append(r.queue[:0], to)
	for q := 0; q < len(r.queue); q++ {
		n := r.queue[q]
		if n == from {
			break
		}
		if n != to && g.Nodes[n].Kind != Switch {
			continue // a NIC ends a way, it passes nothing on
		}
		for _, e := range g.Edges(n) {
			if _, seen := r.depth[e.Peer]; seen || !g.Class(e.Link).Kind.Network() {
				continue
			}
			r.depth[e.Peer] = r.depth[n] + 1
			r.queue = append(r.queue, e.Peer)
		}
	}
	hops, ok := r.depth[from]
	if !ok {
		return way, false
	}
	for at := from; at != to; {
		hops--
		e, ok := r.choose(g.Edges(at), mix(key, uint64(hops)), func(e Edge) bool {
			d, seen := r.depth[e.Peer]
			return seen && d == hops && (e.Peer == to || g.Nodes[e.Peer].Kind == Switch) && g.Class(e.Link).Kind.Network()
		})
		if !ok {
			return way, false
		}
		way = append(way, r.use(at, e, 1))
		at = e.Peer
	}
	return way, true
}

// leadsTo reports whether going on upwards from n, no higher than top, still
// finds a switch above the destination.
func (r *router) leadsTo(n, to NodeID, top uint8) bool {
	g := r.g
	if g.Nodes[n].Tier == top {
		return r.above(n, to)
	}
	edges := g.Edges(n)
	for i := len(edges) - 1; i >= 0; i-- { // higher tiers have higher ids
		p := edges[i].Peer
		if i+1 < len(edges) && edges[i+1].Peer == p {
			continue
		}
		if g.Nodes[p].Tier <= g.Nodes[n].Tier {
			break
		}
		if r.leadsTo(p, to, top) {
			return true
		}
	}
	return false
}

// above reports whether a way leads down from n to the destination port.
func (r *router) above(n, to NodeID) bool {
	g := r.g
	if n == to || len(g.between(to, n)) > 0 {
		return true
	}
	switch {
	case g.Nodes[n].Tier <= g.Nodes[to].Tier+1:
		return false
	case g.Nodes[n].Tier == 2 || g.Nodes[to].Kind == Switch && g.Nodes[n].Tier == g.Nodes[to].Tier+2:
		for _, e := range g.Edges(to) { // the leaves of the destination are few
			if g.Nodes[e.Peer].Tier > g.Nodes[to].Tier && len(g.between(e.Peer, n)) > 0 {
				return true
			}
		}
		return false
	default:
		for _, e := range g.Edges(to) {
			if g.Nodes[e.Peer].Tier > g.Nodes[to].Tier && r.meet(e.Peer, n) {
				return true
			}
		}
		return false
	}
}

// meet reports whether some node between low and high, one tier or more apart
// from each, is joined to both: it walks the two sorted lists side by side.
func (r *router) meet(low, high NodeID) bool {
	g := r.g
	a, b := g.Edges(low), g.Edges(high)
	for i, j := 0, 0; i < len(a) && j < len(b); {
		switch {
		case a[i].Peer < b[j].Peer:
			i++
		case a[i].Peer > b[j].Peer:
			j++
		default:
			if t := g.Nodes[a[i].Peer].Tier; t > g.Nodes[low].Tier && t < g.Nodes[high].Tier {
				return true
			}
			i++
		}
	}
	return g.Nodes[high].Tier > g.Nodes[low].Tier+2 && r.meetAbove(low, high)
}

// meetAbove is meet for four tiers and more: it goes one step up and asks the same question.
func (r *router) meetAbove(low, high NodeID) bool {
	for _, e := range r.g.Edges(low) {
		if r.g.Nodes[e.Peer].Tier > r.g.Nodes[low].Tier && r.meet(e.Peer, high) {
			return true
		}
	}
	return false
}

// torus goes dimension by dimension, x first, the shorter way round; at half
// way round an even ring it goes up.
func (r *router) torus(from, to NodeID, way []Use) ([]Use, bool) {
	g := r.g
	fabric := int(g.Nodes[from].Fabric)
	dims := g.Fabrics[fabric].Dims
	at, goal := int(g.Nodes[from].Pos), int(g.Nodes[to].Pos)
	if at < 0 || goal < 0 {
		return way, false
	}
	stride := 1
	for _, d := range dims {
		x, y := at/stride%d, goal/stride%d
		for x != y {
			step := 1
			if (y-x+d)%d > d/2 {
				step = -1
			}
			next := at + ((x+step+d)%d-x)*stride
			e, ok := g.direct(g.At(fabric, at), g.At(fabric, next))
			if !ok {
				// A mesh has no wrap-around: go the long way.
				step = -step
				next = at + ((x+step+d)%d-x)*stride
				if e, ok = g.direct(g.At(fabric, at), g.At(fabric, next)); !ok {
					return way, false
				}
			}
			way = append(way, r.use(g.At(fabric, at), e, 1))
			at = next
			x = at / stride % d
		}
		stride *= d
	}
	return way, true
}

// dragonfly takes at most one local, one global and one local hop; Valiant goes
// to a group chosen by the key first.
func (r *router) dragonfly(from, to NodeID, f Flow, way []Use) ([]Use, bool) {
	g := r.g
	src, dst := g.Nodes[from].Pod, g.Nodes[to].Pod
	if !f.Valiant || src == dst {
		return r.minimal(from, to, f.Key, way)
	}
	a := g.Fabrics[g.Nodes[from].Fabric].Dims[0]
	groups := int32(len(g.byPos[g.Nodes[from].Fabric]) / a)
	if groups < 3 {
		return r.minimal(from, to, f.Key, way)
	}
	mid := int32(mix(f.Key, 77) % uint64(groups))
	for mid == src || mid == dst {
		mid = (mid + 1) % groups
	}
	gate, way, ok := r.toGroup(from, mid, f.Key, way)
	if !ok {
		return way, false
	}
	return r.minimal(gate, to, f.Key, way)
}

// minimal is the shortest way through a dragonfly: at most one hop to the router with the link to the other group, that
// link, and one hop there. key chooses among equals.
func (r *router) minimal(from, to NodeID, key uint64, way []Use) ([]Use, bool) {
	g := r.g
	ok := true
	if g.Nodes[from].Pod != g.Nodes[to].Pod {
		if from, way, ok = r.toGroup(from, g.Nodes[to].Pod, key, way); !ok {
			return way, false
		}
	}
	if from == to {
		return way, true
	}
	e, ok := g.direct(from, to)
	if !ok {
		return way, false
	}
	return append(way, r.use(from, e, 1)), true
}

// toGroup goes to another group over one of the global links into it, its own
// router's if it has one, and says where it arrives.
func (r *router) toGroup(from NodeID, group int32, key uint64, way []Use) (NodeID, []Use, bool) {
	g := r.g
	into := func(e Edge) bool { return g.Nodes[e.Peer].Kind == Switch && g.Nodes[e.Peer].Pod == group }
	if e, ok := r.pick(from, key, into); ok {
		return e.Peer, append(way, r.use(from, e, 1)), true
	}
	e, ok := r.pick(from, key, func(e Edge) bool {
		if g.Nodes[e.Peer].Kind != Switch || g.Nodes[e.Peer].Pod != g.Nodes[from].Pod {
			return false
		}
		_, ok := r.pick(e.Peer, key, into)
		return ok
	})
	if !ok {
		return None, way, false
	}
	way = append(way, r.use(from, e, 1))
	hop, _ := r.pick(e.Peer, key, into)
	return hop.Peer, append(way, r.use(e.Peer, hop, 1)), true
}
