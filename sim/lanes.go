package sim

import (
	"github.com/weft-fabric/weft/sched/step"
	"github.com/weft-fabric/weft/unit"
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
	fold   laneFolder
}

// maxSlots bounds the slots of all pipes together, 176 bytes each.
const maxSlots = 1 << 21

// newLanes prepares lanes, nil if the world needs events.
func newLanes(w *world) *lanes {
	if !w.known || !w.fold.on || w.trace.trace != nil {
		return nil
	}
	slots := 0
	for _, r := range w.runs {
		if r.code.Waits() {
			return nil
		}
	}
	for i := range w.conns {
		c := &w.conns[i]
		if c.alone == 0 {
			return nil
		}
		slots += w.runs[w.runOf[w.threads[c.from].machine]].job.Program.Slots
	}
	if slots > maxSlots {
		return nil
	}
	l := &lanes{w: w, lanes: make([]lane, len(w.threads)), pipes: make([]pipe, len(w.conns)), arrive: make([]moment, slots), free: make([]moment, slots),
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
		l.fold.moved(l, id)
		if w.late(x.clock) {
			return ErrLate
		}
		if w.actions++; w.o.Progress != nil && w.actions&0xffff == 0 {
			w.o.Progress(x.clock, w.actions)
		}
	}
	return l.finish()
}

func (l *lanes) enqueue(id int32) {
	if x := &l.lanes[id]; x.held && !x.queued {
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
			x.flow, x.limit = max(1, span(float64(x.bytes), c.alone)), c.limit
		} else {
			x.cost, x.flow = 0, 0
		}
		if w.err != nil {
			return
		}
		x.again = mach.Again(a.Channel)
		if x.in < 0 && x.out < 0 && x.again > 0 { // nobody takes part in these but this lane: all at once
			x.work *= unit.Time(1 + x.again)
			w.actions, w.folded = w.actions+x.again, w.folded+x.again
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
	end := start + x.cost + x.flow
	x.critical[Overhead] += x.cost
	if out != nil {
		c := &w.conns[x.out]
		w.carriedBy(c, x.bytes, x.flow, x.limit, &x.critical)
	}
	if by := start + x.cost + x.work; by > end {
		x.critical[Reduction] += by - end
		end = by
	}
	x.clock = end
	if out != nil {
		m := &l.arrive[out.first+int32(out.sent%int64(out.slots))]
		m.at, m.critical = end+out.latency, x.critical
		m.critical[Latency] += out.latency
		out.sent++
		l.enqueue(out.to)
	}
	if in != nil {
		f := &l.free[in.first+int32(in.taken%int64(in.slots))]
		f.at, f.critical = end, x.critical
		in.taken++
		in.freed++
		l.enqueue(in.from)
	}
	return true
}

// finish says when jobs ended, or who is stuck.
func (l *lanes) finish() error {
	w := l.w
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
