package sim

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// A program whose text repeats itself after a few ranks may still differ from rank to rank in time, as a ring does that leaves hosts,
// leaves and pods by different ways, or that passes a bad part. What it takes at least is found from one rank of each kind:
//
//	rank   0  1  2 | 3  4  5 | 6  7  8 | ...      the text repeats after three: 1, 4, 7 are of a kind
//	least  0  1  2                                each with the fastest GPU and the quickest ways that any of its kind has
//
// Times are maxima of sums, so with quicker ways, and none of them shared, nothing happens later. But then ranks of a kind do the same at
// the same time, and their rounds recur, so this takes next to nothing however many ranks and steps there are. It counts what bound
// does not: that a step of a ring begins with the message of the step before. TestNoTimeIsBelowThatOfKinds holds it to simulations.

// kindKey is the way of messages from a rank of a kind.
type kindKey struct {
	from, delta, channel int32
}

// kindWay is the best that connections of a kind have.
type kindWay struct {
	rate    int64
	latency unit.Time
}

// inTime is ErrLate if a job takes longer than a deadline even with the best that each kind of its ranks has.
func (w *world) inTime(deadline unit.Time) error {
	if deadline == 0 {
		return nil
	}
	k := w.kinds(deadline)
	if k == nil {
		return nil
	}
	err := k.run()
	w.net.work += k.actions - k.folded
	return err
}

// canHaveKinds reports whether ranks may be of a kind, and depend on each other alone.
func (w *world) canHaveKinds() bool {
	r := w.runs[0]
	return len(w.runs) == 1 && r.job.Program.Switches == 0 && r.again == nil && w.known && w.o.Processors == nil && !w.o.plain()
}

// kinds is the world with one rank of each kind; nil where ranks have none, or where they are all there is.
func (w *world) kinds(deadline unit.Time) *world {
	r := w.runs[0]
	if !w.canHaveKinds() {
		return nil
	}
	base, swaps := w.net.base(r.code, r.job.Program)
	if base == 0 || base >= r.period {
		return nil
	}
	return w.ofKinds(base, swaps, deadline, w.quickest(base, swaps))
}

// ofKinds is the world with one rank of each kind and the given ways; nil if a message takes none of them.
func (w *world) ofKinds(base int32, swaps bool, deadline unit.Time, ways map[kindKey]kindWay) *world {
	r := w.runs[0]
	k := w.one(base, swaps, deadline)
	q := k.runs[0]
	limit := k.resource(noWire, maxRate)
	if !r.code.Sends(int(base), func(from, to sched.Rank, channel int32) bool {
		key := kindKey{int32(from), apart(int32(from), int32(to), r.world, swaps), channel}
		way, known := ways[key]
		if known {
			k.join(q, connKey{key.from*r.channels + channel, key.delta}, way, limit)
		}
		return known
	}) {
		return nil
	}
	k.events.push(r.job.Start+k.o.Costs.Launch, begins, 0, 0)
	k.pending = 1
	return k
}

// one is a world with one rank of each kind and no connections. Its GPU is the fastest of the kind.
func (w *world) one(base int32, swaps bool, deadline unit.Time) *world {
	r := w.runs[0]
	o := w.o
	o.Trace, o.Progress, o.Deadline = 0, nil, deadline
	k := &world{o: o, net: w.net, keys: map[connKey]int32{}, known: true, lame: make([]float64, base), runOf: make([]int32, base)}
	k.fold.on = !o.Unfolded
	for i, f := range w.lame {
		kind := int32(w.ranks[i]) % base
		k.lame[kind] = max(k.lame[kind], f)
	}
	none := peer{-1, -1}
	for i := range base {
		k.machines, k.ranks = append(k.machines, r.code.Machine(sched.Rank(i))), append(k.ranks, sched.Rank(i))
		for c := range r.channels {
			k.threads = append(k.threads, thread{machine: i, channel: c, in: -1, out: -1, lastIn: none, lastOut: none})
		}
	}
	k.runs = []*run{{job: r.job, code: r.code, machines: k.machines, world: r.world, period: base, swaps: swaps, channels: r.channels,
		waits: r.waits, chunk: r.chunk, left: int(base)}}
	return k
}

// join makes a connection that shares no link.
func (w *world) join(r *run, at connKey, way kindWay, limit int32) {
	if _, known := w.keys[at]; known {
		return
	}
	t := &w.threads[at.from]
	to := away(int32(w.ranks[t.machine]), at.delta, r.world, r.swaps) % r.period
	w.keys[at] = int32(len(w.conns))
	w.conns = append(w.conns, conn{from: at.from, to: to*r.channels + t.channel, flow: w.share.flow(nil), wide: -1, latency: way.latency,
		alone: way.rate, limit: limit})
	w.threadOf = append(w.threadOf, at.from)
}

// quickest finds the best of the connections of each kind.
func (w *world) quickest(base int32, swaps bool) map[kindKey]kindWay {
	r := w.runs[0]
	ways := map[kindKey]kindWay{}
	for at, id := range w.keys {
		t := &w.threads[at.from]
		from := int32(w.ranks[t.machine])
		key := kindKey{from % base, apart(from, away(from, at.delta, r.world, r.swaps), r.world, swaps), t.channel}
		rate, latency := w.alone(id), w.conns[id].latency
		if b, known := ways[key]; known {
			rate, latency = max(rate, b.rate), min(latency, b.latency)
		}
		ways[key] = kindWay{rate, latency}
	}
	return ways
}

// alone is the rate of a connection that nobody else disturbs.
func (w *world) alone(id int32) int64 {
	if w.copies != nil {
		id = w.copies.conn[id]
	}
	most := int64(maxRate)
	for _, l := range w.share.flows[w.conns[id].flow].loads {
		most = min(most, rate(w.share.res[l.res].cap, l.share))
	}
	return max(most, 1)
}
