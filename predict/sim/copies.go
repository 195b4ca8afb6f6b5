package sim

import (
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
)

// Channels often do the same in different places: eight rings over eight rails have one text and an order of ranks each.
//
//	ring 0    0 ── 1 ── 2 ══ 5 ── 4 ── 3 ══     position p of ring 0 has a link like that of position p of ring 1,
//	ring 1    1 ── 2 ── 0 ══ 3 ── 5 ── 4 ══     and so it has all its actions at the same times
//
// Threads at the same position of such channels are one class if their ranks are equally fast, and so are the connections
// between the same positions, with the same latency. Links are one class if they have the same capacity and get the same
// shares from the same classes of connections. If in turn the connections of every class load the same classes of links
// with the same shares, this partition is equitable: max-min rates are equal in it. One channel is then simulated, and each
// of its connections loads a link of a class with what all those of its own class put there.
type copies struct {
	lane map[int32][]int32 // by thread that is simulated: those that do the same
	conn []int32           // by connection: the one that stands for it, often itself
}

// between is a connection by the positions of its ends.
type between struct{ from, to int64 }

// chart is what a channel looks like by positions.
type chart struct {
	threads map[int64]int32
	conns   map[between]int32
}

// dropCopies finds channels that need not be simulated, and drops them.
func (w *world) dropCopies() {
	if w.o.Unfolded || !w.fold.on || w.o.Trace > 0 {
		return
	}
	k := &copies{lane: map[int32][]int32{}}
	for i, r := range w.runs {
		if !k.find(w, int32(i), r) {
			return
		}
	}
	if len(k.lane) == 0 || !k.quotient(w) {
		return
	}
	w.copies, w.times = k, slices.Repeat([]int64{1}, len(w.threads))
	for a, list := range k.lane {
		w.times[a] += int64(len(list))
		for _, b := range list {
			w.machines[w.threads[b].machine].Drop(w.threads[b].channel)
		}
	}
}

// find takes in the copies among a job's channels; false if channels that might be are not.
func (k *copies) find(w *world, at int32, r *run) bool {
	if r.channels < 2 || r.waits || r.job.Program.Switches > 0 {
		return true
	}
	var charts []chart
	for c, first := range r.code.Alike() {
		if c == first {
			continue
		}
		if charts == nil {
			charts = w.charts(at, r)
		}
		if !w.pairs(r, charts[first], charts[c]) {
			return false
		}
		k.take(w, charts[first], charts[c])
	}
	return true
}

// charts draws the channels of a job.
func (w *world) charts(run int32, r *run) []chart {
	list := make([]chart, r.channels)
	for c := range list {
		list[c] = chart{map[int64]int32{}, map[between]int32{}}
		for k := range r.period {
			list[c].threads[r.code.Position(c, sched.Rank(k))] = r.first + k*r.channels + int32(c)
		}
	}
	for key, id := range w.keys {
		t := &w.threads[key.from]
		if w.runOf[t.machine] != run {
			continue
		}
		src := int32(w.ranks[t.machine])
		dst := away(src, key.delta, r.world, r.swaps)
		at := func(rank int32) int64 { return r.code.Position(int(t.channel), sched.Rank(rank)) }
		list[t.channel].conns[between{at(src), at(dst)}] = id
	}
	return list
}

// pairs reports whether two channels have the same threads and connections, links aside.
func (w *world) pairs(r *run, model, other chart) bool {
	if len(model.conns) != len(other.conns) {
		return false
	}
	for at, a := range model.threads {
		b, ok := other.threads[at]
		if !ok || w.lame[w.threads[a].machine] != w.lame[w.threads[b].machine] {
			return false
		}
	}
	position := func(thread int32) int64 {
		t := &w.threads[thread]
		return r.code.Position(int(t.channel), w.ranks[t.machine])
	}
	for key, a := range model.conns {
		b, ok := other.conns[key]
		if !ok || w.conns[a].latency != w.conns[b].latency || position(w.conns[a].to) != position(w.conns[b].to) {
			return false
		}
	}
	return true
}

// take notes that one channel is a copy of another.
func (k *copies) take(w *world, model, other chart) {
	if k.conn == nil {
		k.conn = make([]int32, len(w.conns))
		for i := range k.conn {
			k.conn[i] = int32(i)
		}
	}
	for at, a := range model.threads {
		k.lane[a] = append(k.lane[a], other.threads[at])
	}
	for key, a := range model.conns {
		k.conn[other.conns[key]] = a
	}
}

// quotient gives the connections that are simulated the loads of their classes; false, and nothing is changed, if the classes
// are not equitable.
func (k *copies) quotient(w *world) bool {
	class, stands := k.links(w)
	sum := make([]uint64, len(w.conns)) // what a connection sees of the links' classes
	for i := range w.conns {
		for _, l := range w.share.flows[w.conns[i].flow].loads {
			sum[i] += mix(class[l.res], uint64(l.share))
		}
	}
	for i, model := range k.conn {
		if sum[i] != sum[model] {
			return false
		}
	}
	k.join(w, class, stands)
	return true
}

// join makes the loads: what a link that stands for its class gets of each connection class.
func (k *copies) join(w *world, class []uint64, stands map[uint64]int32) {
	type part struct{ conn, res int32 }
	parts := map[part]int64{}
	var order []part
	for i := range w.conns {
		for _, l := range w.share.flows[w.conns[i].flow].loads {
			if l.res != stands[class[l.res]] {
				continue
			}
			at := part{k.conn[i], l.res}
			if _, known := parts[at]; !known {
				order = append(order, at)
			}
			parts[at] += l.share
		}
	}
	for i := range w.conns {
		w.share.flows[w.conns[i].flow].loads = nil
	}
	for _, at := range order {
		x := &w.share.flows[w.conns[at.conn].flow]
		x.loads = append(x.loads, load{res: at.res, share: parts[at]})
	}
}

// links gives every link its class: its capacity and what it gets of each connection class; and a link of each class.
func (k *copies) links(w *world) (class []uint64, stands map[uint64]int32) {
	class, stands = make([]uint64, len(w.share.res)), map[uint64]int32{}
	for i := range w.conns {
		for _, l := range w.share.flows[w.conns[i].flow].loads {
			class[l.res] += mix(uint64(k.conn[i])+1, uint64(l.share))
		}
	}
	for r := range class {
		class[r] = mix(class[r], uint64(w.share.res[r].cap))
		if _, known := stands[class[r]]; !known {
			stands[class[r]] = int32(r)
		}
	}
	return class, stands
}

// fill gives the connections that were not simulated what their models carried.
func (k *copies) fill(w *world) {
	for i, model := range k.conn {
		if x, y := &w.conns[model], &w.conns[i]; x != y {
			y.bytes, y.messages = x.bytes, x.messages
		}
	}
}
