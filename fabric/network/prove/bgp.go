package prove

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// edge leads from a router by a cable to another.
type edge struct {
	to, cable int32
}

// prefix is a network that routers have on a port: those that have it, and those
// of them that advertise it.
type prefix struct {
	netip.Prefix
	connected, origins []int32
	shut               shut   // sessions that it does not pass
	closed             string // the same, to compare with
}

// build makes indices of what the files hold. Nothing of the model changes afterwards.
func (n *Net) build() {
	n.bundle()
	n.birds()
	n.devices = slices.SortedFunc(maps.Values(n.Devices), func(a, b *Device) int { return cmp.Compare(a.Name, b.Name) })
	n.prefixes, n.ribs = map[netip.Prefix]*prefix{}, map[string]*rib{}
	for _, d := range n.devices {
		d.ports = slices.SortedFunc(maps.Values(d.Ports), func(a, b *Port) int { return cmp.Compare(a.Name, b.Name) })
		d.id = -1
		if d.Router {
			d.id = int32(len(n.routers))
			n.routers = append(n.routers, d)
			n.connect(d)
		}
	}
	n.join()
	n.filters()
	seen := map[int]bool{}
	for p := range n.prefixes {
		seen[p.Bits()] = true
	}
	n.lengths = slices.Sorted(maps.Keys(seen))
	slices.Reverse(n.lengths)
	n.work = newWorker(n)
}

// join lists the cables and sessions of every router.
func (n *Net) join() {
	n.sessions, n.trunks = make([][]edge, len(n.routers)), make([][]edge, len(n.routers))
	for _, d := range n.routers {
		for _, p := range d.ports {
			if p.Peer != nil && p.Peer.Device.Router {
				n.trunks[d.id] = append(n.trunks[d.id], edge{p.Peer.Device.id, p.cable})
			}
		}
		if d.BGP == nil {
			continue
		}
		for _, name := range d.BGP.Neighbours {
			if e := d.session(name); e != nil {
				n.sessions[d.id] = append(n.sessions[d.id], edge{e.Device.id, e.Port.cable})
			}
		}
	}
}

// connect notes the networks of a router, and which it advertises.
func (n *Net) connect(d *Device) {
	for _, p := range d.ports {
		if p.dark() || p.VRF != nil {
			continue
		}
		for _, a := range p.Addrs {
			m := a.Masked()
			x := n.prefixes[m]
			if x == nil {
				x = &prefix{Prefix: m}
				n.prefixes[m] = x
			}
			if !slices.Contains(x.connected, d.id) {
				x.connected = append(x.connected, d.id)
			}
			if d.advertises(p.Name, m) && !slices.Contains(x.origins, d.id) {
				x.origins = append(x.origins, d.id)
			}
		}
	}
}

// session finds the other end of a BGP session over a port; nil if there is none.
func (d *Device) session(port string) *End {
	p := d.Ports[port]
	if p == nil || p.Peer == nil {
		return nil
	}
	far := p.Peer.Device
	if far.BGP == nil || !far.BGP.named[p.Peer.Port.Name] || far.BGP.ASN == d.BGP.ASN || far.BGP.guard(p.Peer.Port.Name) != d.BGP.guard(port) {
		return nil
	}
	if d.BGP.refuses(port, p.Peer) != "" || far.BGP.refuses(p.Peer.Port.Name, p.Peer.Port.Peer) != "" {
		return nil
	}
	return p.Peer
}

// guard is what the other end of a session must have alike: its password, and whether packets from afar count.
func (b *BGP) guard(port string) string { return b.Guards[b.Groups[port]] + b.Guards[port] }

// chain lists the networks of routers that an address is in, longest first.
func (n *Net) chain(a netip.Addr) []*prefix {
	var out []*prefix
	for _, length := range n.lengths {
		if x := n.prefixes[netip.PrefixFrom(a, length).Masked()]; x != nil {
			out = append(out, x)
		}
	}
	return out
}

// rib is what BGP makes of a prefix: how far each router is from those that
// advertise it (-1 where it learns nothing), and the AS path that it knows.
type rib struct {
	dist, path []int32
	shut       shut  // sessions that the prefix does not pass
	vague      int32 // a router whose choice among equal paths decides what others learn; -1 if there is none
}

// worker computes ribs. Its paths are shared by the ribs it computed.
type worker struct {
	n      *Net
	paths  []pathNode
	intern map[pathNode]int32
	many   map[uint32]bool // numbers that several routers have
	layer  []int32
	next   []int32
}

// pathNode is an AS path: a number and the rest, 0 for the empty one.
type pathNode struct {
	asn  uint32
	rest int32
}

func newWorker(n *Net) *worker {
	w := &worker{n: n, paths: make([]pathNode, 1), intern: map[pathNode]int32{}, many: map[uint32]bool{}}
	seen := map[uint32]bool{}
	for _, d := range n.routers {
		if d.BGP != nil {
			w.many[d.BGP.ASN] = seen[d.BGP.ASN]
			seen[d.BGP.ASN] = true
		}
	}
	return w
}

func (w *worker) longer(asn uint32, rest int32) int32 {
	key := pathNode{asn, rest}
	id, ok := w.intern[key]
	if !ok {
		id = int32(len(w.paths))
		w.paths, w.intern[key] = append(w.paths, key), id
	}
	return id
}

func (w *worker) contains(path int32, asn uint32) bool {
	for ; path != 0; path = w.paths[path].rest {
		if w.paths[path].asn == asn {
			return true
		}
	}
	return false
}

// alike reports whether the same routers refuse two paths: those numbers count that several routers have.
func (w *worker) alike(a, b int32) bool {
	for _, x := range [][2]int32{{a, b}, {b, a}} {
		for p := x[0]; p != 0; p = w.paths[p].rest {
			if asn := w.paths[p].asn; w.many[asn] && !w.contains(x[1], asn) {
				return false
			}
		}
	}
	return true
}

// rib computes what routers learn of a prefix that some advertise. Every hop adds one
// number, so the shortest paths come layer by layer; a router refuses paths with its own number.
func (w *worker) rib(origins []int32, closed shut, f *failed, into *rib) *rib {
	n := w.n
	if into == nil {
		into = &rib{dist: make([]int32, len(n.routers)), path: make([]int32, len(n.routers))}
	}
	into.vague, into.shut = -1, closed
	for i := range into.dist {
		into.dist[i] = -1
	}
	w.layer = w.layer[:0]
	for _, o := range origins {
		if !f.router(o) {
			into.dist[o], into.path[o] = 0, 0
			w.layer = append(w.layer, o)
		}
	}
	for far := int32(1); len(w.layer) > 0; far++ {
		w.next = w.next[:0]
		for _, u := range w.layer {
			w.advertise(into, u, far, f)
		}
		w.layer, w.next = w.next, w.layer
	}
	return into
}

// advertise sends what a router knows to those it has sessions with.
func (w *worker) advertise(r *rib, u, far int32, f *failed) {
	n := w.n
	sent := w.longer(n.routers[u].BGP.ASN, r.path[u])
	for _, e := range n.sessions[u] {
		if d := r.dist[e.to]; d >= 0 && d < far || f != nil && (f.cable(e.cable) || f.router(e.to)) {
			continue
		}
		if r.shut[[2]int32{u, e.cable}] || w.contains(sent, n.routers[e.to].BGP.ASN) {
			continue
		}
		if r.dist[e.to] < 0 {
			r.dist[e.to], r.path[e.to] = far, sent
			w.next = append(w.next, e.to)
		} else if r.path[e.to] != sent && r.vague < 0 && (!n.routers[e.to].BGP.Relax || !w.alike(r.path[e.to], sent)) {
			r.vague = e.to
		}
	}
}

// hops calls f for the sessions by which a router sends, as far as the rib allows more than MaxPaths.
func (w *worker) hops(r *rib, u int32, broken *failed, f func(edge)) {
	if r.dist[u] <= 0 {
		return
	}
	d := w.n.routers[u].BGP
	for _, e := range w.n.sessions[u] {
		if r.dist[e.to] != r.dist[u]-1 || broken != nil && (broken.cable(e.cable) || broken.router(e.to)) {
			continue
		}
		if r.shut[[2]int32{e.to, e.cable}] || w.contains(r.path[e.to], d.ASN) {
			continue
		}
		f(e)
	}
}

// ways lists where a router sends packets to a network that others advertise.
func (n *Net) ways(d *Device, x *prefix, f *failed) []*End {
	if len(x.origins) == 0 || d.BGP == nil {
		return nil
	}
	origins := n.advertisers(x, f)
	key := fmt.Sprint(origins, x.closed)
	r := n.ribs[key]
	if r == nil || f != nil {
		r = n.work.rib(origins, x.shut, f, nil)
		if f == nil {
			n.ribs[key] = r
		}
	}
	var out []*End
	n.work.hops(r, d.id, f, func(e edge) {
		c := &n.cables[e.cable]
		p := c.a
		if c.a.on == d {
			p = c.b
		}
		if len(out) < d.BGP.MaxPaths {
			out = append(out, &End{p.on, p})
		}
	})
	return out
}

// advertisers are the routers that advertise a network while something is broken:
// a network goes with the last cable of its port.
func (n *Net) advertisers(x *prefix, f *failed) []int32 {
	if f == nil {
		return x.origins
	}
	return slices.DeleteFunc(slices.Clone(x.origins), func(o int32) bool { return n.routers[o].connected(x.Prefix, nil, f) == nil })
}
