package sim

import (
	"slices"

	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// Where no two flows ever share a link and no channel waits for another of its
// rank, nothing has to happen in order of time: a program is a network of
// processes with ordered queues (Kahn 1974), and the time of an action follows
// from those of the actions it waits for, whichever is worked out first:
//
//	start = max(own last action done, message there, slot free)
//	done  = start + overhead + max(bytes at the flow's rate, reduction)
//
// So lanes need no events. An action that a loop repeats is not asked for again
// (step.Machine.Again). An action takes some 40 ns here, against 800 with events, a
// fifth of which is the interpreter's (2026-11).
//
// Where few flows share links, as around a part that failed, only these need events.
// All lanes go on until each waits for a message, for a slot or for its own shared
// flow. Whatever happens from then on is caused by a shared flow, so the first event
// of these is the next thing to happen at all; lanes go on from there.

// lane is a thread without events.
type lane struct {
	clock    unit.Time // when its last action was done
	critical Critical  // what led there
	in, out  int32     // connections of the action at hand, -1 if none
	cost     unit.Time // its overhead
	flow     unit.Time // its flow at the rate it has
	work     unit.Time // its copies and sums
	bytes    int64
	limit    int32 // the resource that sets the flow's rate
	held     bool  // there is an action at hand
	queued   bool
	shared   bool  // its flow is under way, and others may slow it
	again    int64 // how often the same comes again
	ahead    int64 // how often it was done without telling the machine
}

// pipe is a connection without events. Slot i of a pipe is for messages i, i+slots, ...
type pipe struct {
	sent, taken, freed int64
	latency            unit.Time
	first              int32 // of its slots, in arrive and free
	slots              int32
	from, to           int32 // lanes
}

// moment is a time and what led there.
type moment struct {
	at       unit.Time
	critical Critical
}

type lanes struct {
	w      *world
	lanes  []lane
	pipes  []pipe
	arrive []moment // by slot: when its message is there
	free   []moment // by slot: when its last message was taken
	queue  []int32  // a ring of lanes that may go on
	head   int
	count  int
	mixed  bool // some flows share links
	fold   laneFolder
}

// maxSlots bounds the slots of all pipes together, 176 bytes each.
const maxSlots = 1 << 21

// maxShared: of all connections one in four may share links in lanes.
const maxShared = 4

// newLanes prepares lanes, nil if the world needs events.
func newLanes(w *world) *lanes {
	if !w.known || w.o.ordered || w.trace.trace != nil || w.o.Processors != nil ||
		slices.ContainsFunc(w.runs, func(r *run) bool { return r.again != nil }) {
		return nil
	}
	slots, shared := 0, 0
	for _, r := range w.runs {
		if r.code.Waits() || r.job.Program.Switches > 0 {
			return nil
		}
	}
	for i := range w.conns {
		c := &w.conns[i]
		if c.alone == 0 {
			shared++
		}
		slots += w.runs[w.runOf[w.threads[c.from].machine]].job.Program.Slots
	}
	// Rounds are not folded where flows share: with many of them events fold more than lanes save.
	if slots > maxSlots || shared > 0 && (w.sym != nil || shared > len(w.conns)/maxShared) {
		return nil
	}
	l := &lanes{w: w, mixed: shared > 0, lanes: make([]lane, len(w.threads)), pipes: make([]pipe, len(w.conns)), arrive: make([]moment, slots),
		free:  make([]moment, slots),
		queue: make([]int32, len(w.threads))}
	at := int32(0)
	for i := range w.conns {
		c := &w.conns[i]
		n := int32(w.runs[w.runOf[w.threads[c.from].machine]].job.Program.Slots)
		l.pipes[i] = pipe{latency: c.latency, first: at, slots: n, from: c.from, to: c.to}
		at += n
	}
	return l
}

// run carries out everything.
func (l *lanes) run() error {
	w := l.w
	for i := range w.threads {
		t := &w.threads[i]
		r := w.runs[w.runOf[t.machine]]
		x := &l.lanes[i]
		x.clock = r.job.Start + w.o.Costs.Launch
		x.critical[Overhead], x.critical[Before] = w.o.Costs.Launch, r.job.Start
	}
	for m := range w.machines {
		l.collect(int32(m))
	}
	if err := l.drain(); err != nil {
		return err
	}
	if l.mixed {
		if err := l.share(); err != nil {
			return err
		}
	}
	return l.finish()
}

// drain carries out what lanes can do without another event.
func (l *lanes) drain() error {
	w := l.w
	for l.count > 0 {
		id := l.queue[l.head]
		if l.head++; l.head == len(l.queue) {
			l.head = 0
		}
		l.count--
		x := &l.lanes[id]
		x.queued = false
		if !l.step(id, x) {
			continue
		}
		if err := l.next(id, x); err != nil {
			return err
		}
		if w.o.Progress != nil && w.actions&0xffff == 0 {
			w.o.Progress(x.clock, w.actions)
		}
	}
	return nil
}

// next asks for a lane's next action when one is done.
func (l *lanes) next(id int32, x *lane) error {
	w := l.w
	if x.again > 0 {
		x.again--
		x.ahead++
		l.enqueue(id)
	} else {
		t := &w.threads[id]
		mach := w.machines[t.machine]
		mach.Repeat(t.channel, x.ahead)
		x.ahead, x.held = 0, false
		mach.Complete(t.channel)
		l.collect(t.machine)
	}
	if w.err != nil {
		return w.err
	}
	if !l.mixed && w.fold.on && !w.fold.brief {
		l.fold.moved(l, id)
	}
	if w.late(x.clock) {
		return ErrLate
	}
	w.acted(id, 1)
	return nil
}

// share lets the flows that share links pass, in the order of time.
func (l *lanes) share() error {
	w := l.w
	w.mixed = true
	for w.events.count > 0 {
		if w.now = w.events.next(); w.late(w.now) {
			return ErrLate
		}
		w.batches++
		for w.events.count > 0 && w.events.next() == w.now {
			switch e := w.events.pop(); e.kind {
			case starts:
				w.begin(e.id)
			case ends:
				if t := &w.threads[e.id]; t.phase != flows || t.version != e.version {
					continue
				}
				x := &l.lanes[e.id]
				l.through(e.id, x)
				if err := l.next(e.id, x); err != nil {
					return err
				}
				if err := l.drain(); err != nil {
					return err
				}
			}
		}
		w.rates()
	}
	return nil
}

// through ends a shared flow, and with it its lane's action.
func (l *lanes) through(id int32, x *lane) {
	w := l.w
	t := &w.threads[id]
	c := &w.conns[x.out]
	t.phase = idle
	w.share.stop(c.flow)
	w.carriedBy(c, x.bytes, w.now-t.flowed, w.share.flows[c.flow].limit, &x.critical)
	x.shared = false
	l.done(x, w.now, t.flowed+x.work)
}

func (l *lanes) enqueue(id int32) {
	if x := &l.lanes[id]; x.held && !x.queued && !x.shared {
		x.queued = true
		at := l.head + l.count
		if at >= len(l.queue) {
			at -= len(l.queue)
		}
		l.queue[at] = id
		l.count++
	}
}

// collect takes the new actions of a machine.
func (l *lanes) collect(m int32) {
	w := l.w
	mach := w.machines[m]
	r := w.runs[w.runOf[m]]
	base := r.first + (m-w.threads[r.first].machine)*r.channels
	w.buf = mach.Ready(w.buf[:0])
	for i := range w.buf {
		a := &w.buf[i]
		id := base + a.Channel
		x, t := &l.lanes[id], &w.threads[id]
		x.in, x.out, x.held = -1, -1, true
		x.bytes = a.Count * r.chunk
		x.cost, x.work = w.net.charges(a.Op, x.bytes, w.lame[m])
		if a.Op.Receives() {
			x.in = w.incoming(r, id, a.From)
		}
		if a.Op.Sends() {
			x.out = w.outgoing(r, id, a.To)
			if w.err != nil {
				return
			}
			c := &w.conns[x.out]
			if c.alone > 0 {
				x.flow, x.limit = max(1, span(float64(x.bytes), c.alone)), c.limit
			}
		} else {
			x.cost, x.flow = 0, 0
		}
		if w.err != nil {
			return
		}
		x.again = mach.Again(a.Channel)
		if x.in < 0 && x.out < 0 && x.again > 0 { // nobody takes part in these but this lane: all at once
			x.work *= unit.Time(1 + x.again)
			w.acted(id, x.again)
			w.folded += x.again
			x.ahead, x.again = x.again, 0
		}
		t.op = a.Op
		l.enqueue(id)
	}
	if err := mach.Err(); err != nil {
		w.err = err
	}
	if mach.Done() {
		r.left--
	}
}

// step carries out a lane's action if it can be.
func (l *lanes) step(id int32, x *lane) bool {
	w := l.w
	start, why := x.clock, &x.critical
	var in, out *pipe
	var come, ahead, slots int64
	if x.in >= 0 {
		in = &l.pipes[x.in]
		come = in.sent - in.taken
	}
	if x.out >= 0 {
		out = &l.pipes[x.out]
		ahead, slots = out.sent-out.freed, int64(out.slots)
	}
	if step.Held(w.threads[id].op, come, ahead, slots) != step.Free {
		return false
	}
	if out != nil {
		if out.sent >= int64(out.slots) {
			if f := &l.free[out.first+int32(out.sent%int64(out.slots))]; f.at > start {
				start, why = f.at, &f.critical
			}
		}
	}
	if in != nil {
		if a := &l.arrive[in.first+int32(in.taken%int64(in.slots))]; a.at > start {
			start, why = a.at, &a.critical
		}
	}
	if why != &x.critical {
		x.critical = *why
	}
	x.critical[Overhead] += x.cost
	flowed := start + x.cost
	if out == nil {
		l.done(x, flowed, flowed+x.work)
		return true
	}
	c := &w.conns[x.out]
	if c.alone == 0 {
		x.shared = true
		t := &w.threads[id]
		t.phase, t.out, t.bytes = pays, x.out, x.bytes
		w.events.push(flowed, starts, id, 0)
		return false
	}
	w.carriedBy(c, x.bytes, x.flow, x.limit, &x.critical)
	l.done(x, flowed+x.flow, flowed+x.work)
	return true
}

// done ends a lane's action: its flow is through at one time, its copies and sums at another.
func (l *lanes) done(x *lane, end, worked unit.Time) {
	if worked > end {
		x.critical[Reduction] += worked - end
		end = worked
	}
	x.clock = end
	if x.out >= 0 {
		out := &l.pipes[x.out]
		m := &l.arrive[out.first+int32(out.sent%int64(out.slots))]
		m.at, m.critical = end+out.latency, x.critical
		m.critical[Latency] += out.latency
		out.sent++
		l.enqueue(out.to)
	}
	if x.in >= 0 {
		in := &l.pipes[x.in]
		f := &l.free[in.first+int32(in.taken%int64(in.slots))]
		f.at, f.critical = end, x.critical
		in.taken++
		in.freed++
		l.enqueue(in.from)
	}
}

// finish says when jobs ended, or who is stuck.
func (l *lanes) finish() error {
	w := l.w
	if w.copies != nil {
		for a, list := range w.copies.lane {
			for _, b := range list {
				l.lanes[b].clock, l.lanes[b].critical = l.lanes[a].clock, l.lanes[a].critical
			}
		}
	}
	for i := range l.lanes {
		x, t := &l.lanes[i], &w.threads[i]
		r := w.runs[w.runOf[t.machine]]
		if x.clock >= r.end {
			r.end, r.last = x.clock, x.critical
		}
		if x.held {
			t.phase, t.in, t.out = waits, x.in, x.out
		}
	}
	for i := range l.pipes {
		p := &l.pipes[i]
		w.conns[i].ready = int32(p.sent - p.taken)
	}
	return w.finished()
}
