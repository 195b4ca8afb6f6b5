package sim

import (
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
)

// outgoing finds the connection by which a thread sends to a rank.
func (w *world) outgoing(r *run, id int32, to sched.Rank) int32 {
	t := &w.threads[id]
	if t.lastOut.rank == to {
		return t.lastOut.conn
	}
	from := w.ranks[t.machine]
	delta := apart(int32(from), int32(to), r.world, r.swaps)
	t.lastOut = peer{to, w.conn(r, id, delta)}
	return t.lastOut.conn
}

// incoming finds the connection by which a thread receives from a rank.
func (w *world) incoming(r *run, id int32, from sched.Rank) int32 {
	t := &w.threads[id]
	if t.lastIn.rank == from {
		return t.lastIn.conn
	}
	me := w.ranks[t.machine]
	delta := apart(int32(from), int32(me), r.world, r.swaps)
	sender := r.first + int32(from)%r.period*r.channels + t.channel
	t.lastIn = peer{from, w.conn(r, sender, delta)}
	return t.lastIn.conn
}

// conn finds or makes a connection by its sending thread and how far it leads.
func (w *world) conn(r *run, from, delta int32) int32 {
	key := connKey{from, delta}
	if c, ok := w.keys[key]; ok {
		return c
	}
	if w.known {
		w.err = fmt.Errorf("%s: a connection of rank %d that was not told of", r.job.Program.Name, w.ranks[w.threads[from].machine])
		return -1
	}
	t := &w.threads[from]
	src := int32(w.ranks[t.machine])
	dst := away(src, delta, r.world, r.swaps)
	c := conn{from: from, to: r.first + dst%r.period*r.channels + t.channel, wide: -1}
	var net bool
	var loads []load
	if w.sym != nil {
		loads, c.wide, c.latency, net = w.sym.flow(src, delta, t.channel)
		if loads == nil {
			w.err = fmt.Errorf("%s: rank %d sends to rank %d on channel %d, which step did not tell", r.job.Program.Name, src, dst, t.channel)
			return -1
		}
		if !w.spend(connBytes+len(loads)*useBytes, r) {
			return -1
		}
	} else {
		var p path
		if a, b := r.job.Place[src], r.job.Place[dst]; a != b {
			if err := w.net.route(a, b, t.channel, &p); err != nil {
				w.err = err
				return -1
			}
		}
		c.path, c.mid, c.latency, net = slices.Clip(p.uses), p.mid, p.latency, p.net
		if !w.spend(connBytes+len(c.path)*useBytes, r) || !w.listing && !w.spend(len(c.mid)*useBytes, r) {
			return -1
		}
		if !w.listing {
			loads = w.loads(append(slices.Clip(c.path), c.mid...))
		}
	}
	if net {
		c.latency += w.o.Costs.Net
	}
	c.flow, c.far = w.share.flow(loads), net
	c.light = c.flow
	if w.o.Processors != nil {
		c.latency += w.workOf(&c).Wake
	}
	id := int32(len(w.conns))
	if w.lame[t.machine] == 0 {
		w.threadOf = append(w.threadOf, ^id)
		w.fold.on = false
	} else {
		w.threadOf = append(w.threadOf, from)
	}
	w.conns = append(w.conns, c)
	w.keys[key] = id
	if w.o.Routing == Flowlets && net && w.threadOf[c.flow] >= 0 {
		if !w.spend(hashes*(len(c.path)+len(c.mid))*useBytes, r) {
			return -1
		}
		if w.err = w.hashAnew(id, r.job.Place[src], r.job.Place[dst], t.channel); w.err != nil {
			return -1
		}
	}
	if w.busy {
		w.chargeFlow(id)
	}
	return id
}

// loads turns the wires of a path into resources, each once. Ranks that stand
// on the same node exchange messages through one that never fills.
func (w *world) loads(uses []use) []load {
	if len(uses) == 0 {
		res := w.resource(noWire, maxRate)
		return []load{{res: res, share: whole}}
	}
	loads := make([]load, 0, len(uses))
next:
	for _, u := range uses {
		if w.wires[u.wire] <= 0 {
			w.wires[u.wire] = w.resource(u.wire, w.net.capacity(u.wire)) + 1
		}
		res := w.wires[u.wire] - 1
		if len(uses) <= 16 {
			for i := range loads {
				if loads[i].res == res {
					loads[i].share += int64(u.share)
					continue next
				}
			}
		}
		loads = append(loads, load{res: res, share: int64(u.share)})
	}
	return loads
}

// resource adds one that stands for a wire.
func (w *world) resource(x wire, capacity int64) int32 {
	w.resWire, w.resTier, w.resBusy = append(w.resWire, x), append(w.resTier, w.net.tier(x)), append(w.resBusy, 0)
	return w.share.resource(capacity)
}

// maxKnown bounds the connections that are made before time begins.
const maxKnown = 1 << 22

// connect makes every connection that the programs may use, if that can be
// told, and finds those whose flows are alone on their links.
func (w *world) connect() error {
	w.listing = w.sym == nil && !w.o.plain()
	w.expect(len(w.threads) / 2)
	if w.sym != nil {
		w.expect(int(w.sym.first[w.sym.period]))
	}
	for _, r := range w.runs {
		if !r.code.Sends(int(r.period), func(from, to sched.Rank, channel int32) bool {
			w.conn(r, r.first+int32(from)*r.channels+channel, apart(int32(from), int32(to), r.world, r.swaps))
			return w.err == nil && len(w.conns) < maxKnown
		}) {
			if w.err != nil {
				return w.err
			}
			if w.listing {
				w.listing = false
				for i := range w.conns {
					c := &w.conns[i]
					if !w.spend(len(c.mid)*useBytes, r) {
						return w.err
					}
					w.share.flows[c.flow].loads = w.loads(append(slices.Clip(c.path), c.mid...))
				}
			}
			w.chargeFlows()
			return w.unknown()
		}
	}
	w.known = true
	if w.listing {
		w.listing = false
		w.bundle()
	}
	if w.o.Congestion != FairShares {
		w.hold(w.o.Congestion)
		return nil
	}
	if w.chargeFlows() || w.o.Routing == Flowlets {
		w.share.apart()
		return nil
	}
	w.dropCopies()
	w.prune()
	w.share.apart()
	users := make([]int32, len(w.share.res))
	for i := range w.conns {
		for _, l := range w.share.flows[w.conns[i].flow].loads {
			users[l.res]++
		}
	}
	for i := range w.conns {
		c := &w.conns[i]
		for j, l := range w.share.flows[c.flow].loads {
			if users[l.res] > 1 || w.threadOf[c.flow] < 0 {
				c.alone = 0
				break
			}
			if v := rate(w.share.res[l.res].cap, l.share); j == 0 || v < c.alone {
				c.alone, c.limit = v, l.res
			}
		}
	}
	return nil
}

// expect makes room for connections: among a million of them, tables that double whenever they are full take more memory than all else.
func (w *world) expect(conns int) {
	conns = min(conns, maxKnown)
	w.conns, w.threadOf = slices.Grow(w.conns, conns), slices.Grow(w.threadOf, conns)
	w.share.flows = slices.Grow(w.share.flows, conns)
	if len(w.keys) == 0 {
		w.keys = make(map[connKey]int32, conns)
	}
}

// unknown refuses what needs all connections, which are too many to list or cannot be told before time begins.
func (w *world) unknown() error {
	if w.err == nil && w.o.Congestion != FairShares {
		return fmt.Errorf("%s: pauses are worked out where all connections can be told beforehand, and they are at most %d; use fewer GPUs",
			w.runs[0].job.Program.Name, maxKnown)
	}
	return w.err
}

// prune takes the resources off flows that can hold none of them back: those
// that carry every flow on them at the rate it would have all alone. Such a
// link is not full before another link of each of its flows is, so max-min
// rates are the same without it; in a fabric that does not block these are all
// links between switches.
func (w *world) prune() {
	most := make([]int64, len(w.conns))
	need := make([]float64, len(w.share.res)) // roughly, and exactly where that is near enough
	exact := make([]int64, len(w.share.res))
	for i := range w.conns {
		for j, l := range w.share.flows[w.conns[i].flow].loads {
			if v := rate(w.share.res[l.res].cap, l.share); j == 0 || v < most[i] {
				most[i] = v
			}
		}
	}
	for i := range w.conns {
		for _, l := range w.share.flows[w.conns[i].flow].loads {
			need[l.res] += float64(l.share) * float64(most[i])
			exact[l.res] += l.share * most[i] // may overflow; then the rough sum is far too large
		}
	}
	for i := range w.conns {
		x := &w.share.flows[w.conns[i].flow]
		x.loads = slices.DeleteFunc(x.loads, func(l load) bool {
			// A flow's own tightest link stays: with company it needs more than there is.
			full := w.share.res[l.res].cap * whole
			return rate(w.share.res[l.res].cap, l.share) > most[i] && need[l.res] < 1.1*float64(full) && exact[l.res] <= full
		})
	}
}

// bundle gives all flows their loads. Of wires that the same flows cross with the
// same shares and that carry the same, one stands for all: they are full together.
// So the links that a flow is striped over become one resource, and so do the ways
// between two switches, of which there may be thousands.
func (w *world) bundle() {
	type crossing struct{ own, mid uint64 } // sums over the flows that cross a wire
	var crossings []crossing
	// A cluster has millions of wires and most runs cross few of them. Until a wire has a resource, w.wires has its crossing's
	// number, negated.
	crossed := func(x wire) *crossing {
		if w.wires[x] == 0 {
			crossings = append(crossings, crossing{})
			w.wires[x] = -int32(len(crossings))
		}
		return &crossings[-w.wires[x]-1]
	}
	mids := map[*use]int{}
	for i := range w.conns {
		c := &w.conns[i]
		for _, u := range c.path {
			crossed(u.wire).own += mix(uint64(i)+1, uint64(u.share))
		}
		if len(c.mid) > 0 {
			if _, known := mids[&c.mid[0]]; !known {
				mids[&c.mid[0]] = len(mids)
			}
		}
	}
	seen := make([]bool, len(mids))
	for i := range w.conns {
		if mid := w.conns[i].mid; len(mid) > 0 && !seen[mids[&mid[0]]] {
			id := mids[&mid[0]]
			seen[id] = true
			for _, u := range mid {
				crossed(u.wire).mid += mix(uint64(id)+1, uint64(u.share))
			}
		}
	}
	type key struct {
		crossing
		capacity int64
	}
	known, said := map[key]bool{}, make([]int8, len(crossings))
	stands := func(x wire) bool { // the wire is the one that stands for its like
		if w.wires[x] > 0 { // only those that stand for others have resources
			return true
		}
		i := -w.wires[x] - 1
		if said[i] == 0 {
			k := key{crossings[i], w.net.capacity(x)}
			said[i] = 1
			if known[k] {
				said[i] = -1
			}
			known[k] = true
		}
		return said[i] > 0
	}
	short := make([][]use, len(mids))
	var uses []use
	for i := range w.conns {
		c := &w.conns[i]
		uses = uses[:0]
		for _, u := range c.path {
			if stands(u.wire) {
				uses = append(uses, u)
			}
		}
		if len(c.mid) > 0 {
			id := mids[&c.mid[0]]
			if short[id] == nil {
				for _, u := range c.mid {
					if stands(u.wire) {
						short[id] = append(short[id], u)
					}
				}
			}
			uses = append(uses, short[id]...)
		}
		if len(c.path)+len(c.mid) == 0 {
			uses = nil
		}
		w.share.flows[c.flow].loads = w.loads(uses)
	}
}

// noWire marks a resource that is no link.
const noWire wire = -1

// coreWire marks cores of a machine.
const coreWire wire = math.MinInt32
