package sim

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// phase says what a thread is doing.
type phase uint8

const (
	idle    phase = iota // has no action
	waits                // for a message or for room
	pays                 // overhead, before its flow
	flows                // its flow is under way
	settles              // the flow is through, the reduction is not; or an action without a flow
	enters               // an operation, before its first action
)

// thread is one channel of one simulated rank.
type thread struct {
	machine  int32
	channel  int32
	phase    phase
	op       sched.Op
	in, out  int32 // connections, -1 if none
	version  uint32
	lastIn   peer // the connection used last, to be found without searching
	lastOut  peer
	bytes    int64
	again    int64     // how often the same action comes again
	ahead    int64     // how often it was done without telling the machine
	at       unit.Time // when the phase ends, for pays and settles; when the flow ends as things are
	since    unit.Time // when what is left of the flow was last worked out
	left     float64   // bytes of the flow then
	reduced  unit.Time // when the reduction is over
	began    unit.Time // of the action, for traces
	flowed   unit.Time // when its flow began
	critical Critical
}

type peer struct {
	rank sched.Rank
	conn int32
}

// conn is the ordered way of messages between two threads.
type conn struct {
	from, to int32 // threads
	flow     int32 // in sharing
	light    int32 // the same of messages that are handed to the connection, while their sender goes on
	wide     int32 // route index when ranks are folded, -1 else
	under    int32 // slots taken
	ready    int32 // messages there and not taken
	far      bool  // between hosts, where there are processors
	alone    int64 // the rate it always has, if no other flow ever shares a link with it; else 0
	limit    int32 // the resource that sets it
	latency  unit.Time
	arriving []message // on the way, oldest first
	there    []Critical
	bytes    int64 // carried
	messages int64
	path     []use   // nil when ranks are folded
	mid      []use   // more of it, which like ways have in common
	queue    []cargo // messages that are handed to it and have not left yet, the first of them under way
}

type message struct {
	at       unit.Time
	critical Critical
}

type connKey struct {
	from  int32 // thread
	delta int32 // how far the receiver's rank is from the sender's, as apart counts
}

// run is one job under way.
type run struct {
	job      Job
	code     *step.Code
	machines []*step.Machine
	world    int32 // ranks and switches
	period   int32 // how many of them are simulated
	swaps    bool  // and stand for others by exclusive or, not round the ring of all
	channels int32
	waits    bool  // a channel waits for another of its rank
	first    int32 // thread of rank 0, channel 0
	chunk    int64 // bytes
	left     int   // machines that have not ended
	again    []int // by machine: operations that are left, where a job repeats
	end      unit.Time
	last     Critical
}

// world is everything under simulation.
type world struct {
	o        Options
	net      *network
	runs     []*run
	runOf    []int32 // by machine
	machines []*step.Machine
	ranks    []sched.Rank // by machine
	lame     []float64    // by machine: factor of its GPU, 1 if healthy; 0 for a switch, which has no overhead
	threads  []thread
	conns    []conn
	keys     map[connKey]int32
	share    sharing
	threadOf []int32 // by flow in sharing
	wires    []int32 // resource of a wire, less one; for unfolded ranks
	resWire  []wire  // a wire of each resource
	resTier  []Tier
	resBusy  []float64 // picoseconds for which it held a flow back
	events   events
	now      unit.Time
	buf      []step.Action
	sym      *symmetry
	fold     folder
	trace    tracer
	err      error
	versions uint32 // of what switches send
	known    bool   // all connections were made before time began
	listing  bool   // they are being made, and their loads follow when all are known

	pending int // jobs that have not begun
	ended   int // jobs all of whose ranks are through
	actions int64
	folded  int64 // actions skipped
	rounds  int64 // periods skipped
	batches int64
	looks   int64      // at the deadline
	bytes   unit.Bytes // of what is kept, about; see spend
	mixed   bool       // lanes, of which some shared links

	copies *copies // channels that are not simulated; nil if all are
	pace   pace
	times  []int64 // by thread: how many do the same; nil if each does for itself

	cores    []int32             // by machine of Processors: its resource
	own      []int32             // by thread: the core that it has at most
	task     []int32             // by thread: the flow of its work
	flowlets map[int32]*flowlets // by connection; nil unless flows are hashed anew

	busy bool // connections that are made from now on take time of cores
}

func newWorld(net *network, jobs []Job, o Options) (*world, error) {
	w := &world{o: o, net: net, keys: map[connKey]int32{}}
	w.fold.on = !o.Unfolded
	for i, j := range jobs {
		p := j.Program
		r := &run{job: j, code: step.Compile(p), world: int32(p.Ranks + p.Switches), channels: int32(p.Channels()), first: int32(len(w.threads))}
		r.chunk, r.waits = j.chunk(), r.code.Waits()
		r.period = r.world
		if j.Repeat > 1 {
			r.again = slices.Repeat([]int{j.Repeat - 1}, int(r.period))
			w.fold.on = false
		}
		if len(jobs) == 1 && !o.Unfolded && j.Repeat <= 1 {
			sym, err := findSymmetry(net, r)
			if err != nil {
				return nil, err
			}
			if sym != nil {
				w.sym, r.period, r.swaps = sym, sym.period, sym.swaps
			}
		}
		w.runs = append(w.runs, r)
		if !w.spend(int(r.period)*int(r.channels)*threadBytes, r) {
			return nil, w.err
		}
		r.left = int(r.period)
		w.fold.brief = w.fold.brief || r.isBrief()
		w.threads = slices.Grow(w.threads, int(r.period)*int(r.channels))
		for k := range r.period {
			m := r.code.Machine(sched.Rank(k))
			id := int32(len(w.machines))
			w.machines = append(w.machines, m)
			w.ranks = append(w.ranks, sched.Rank(k))
			w.runOf = append(w.runOf, int32(i))
			factor := 1.0
			if f, ok := net.lame[j.Place[k]]; ok {
				factor = f
			}
			if int(k) >= p.Ranks {
				factor = 0
			}
			w.lame = append(w.lame, factor)
			for c := range r.channels {
				none := peer{-1, -1}
				w.threads = append(w.threads, thread{machine: id, channel: c, in: -1, out: -1, lastIn: none, lastOut: none})
			}
		}
		r.machines = w.machines[len(w.machines)-int(r.period):]
		w.events.push(j.Start+o.Costs.Launch, begins, int32(i), 0)
		w.pending++
	}
	if w.sym == nil {
		w.wires = make([]int32, 2*(len(net.g.Links)+len(net.g.Nodes)))
	} else {
		w.sym.resources(w)
	}
	w.makeCores()
	if err := w.connect(); err != nil {
		return nil, err
	}
	w.trace.init(w)
	return w, nil
}

// run lets time pass until nothing is left to happen.
func (w *world) run() error {
	if l := newLanes(w); l != nil {
		return l.run()
	}
	for w.goesOn() {
		if w.now = w.events.next(); w.now >= 1<<61 {
			return fmt.Errorf("the simulated time exceeds %s", unit.Time(1<<61))
		}
		if w.givenUp() {
			return ErrLate
		}
		w.batches++
		w.share.pause.at(w.now)
		for w.events.count > 0 && w.events.next() == w.now {
			w.handle(w.events.pop())
			if w.err != nil {
				return w.err
			}
		}
		w.rates()
		w.fold.look(w)
		if w.o.Progress != nil && w.batches%4096 == 0 {
			w.o.Progress(w.now, w.actions)
		}
	}
	return w.finished()
}

// goesOn reports whether a job has ranks that are not through. What events are left then are ends that were put off.
func (w *world) goesOn() bool { return w.events.count > 0 && w.ended < len(w.runs) }

// givenUp reports whether the deadline has passed or cannot be met.
func (w *world) givenUp() bool { return w.late(w.now) || w.hopeless() }

// late reports whether a time lies after the deadline, or the simulation is to stop. One moment may change the rates of a hundred
// thousand flows, so these count.
func (w *world) late(t unit.Time) bool {
	by := 1 + w.share.work
	w.share.work = 0
	return w.o.stopped(&w.looks, by) || w.o.Deadline > 0 && t > w.o.Deadline
}

func (w *world) handle(e event) {
	switch e.kind {
	case begins:
		w.pending--
		r := w.runs[e.id]
		var c Critical
		c[Overhead] = w.o.Costs.Launch
		c[Before] = w.now - w.o.Costs.Launch
		first := w.threads[r.first].machine
		for k := range r.period {
			w.enter(first+k, &c)
		}
	case starts:
		w.begin(e.id)
	case ends:
		switch t := &w.threads[e.id]; {
		case t.version != e.version:
		case t.phase == flows:
			w.through(e.id)
		case t.phase == pays || t.phase == settles || t.phase == enters:
			w.leftCore(e.id)
		}
	case done:
		w.done(e.id)
	case calms:
		w.share.touch(e.id)
	case carries:
		if q := w.conns[e.id].queue; len(q) > 0 && q[0].version == e.version {
			w.carriedOn(e.id)
		}
	case arrives:
		c := &w.conns[e.id]
		m := c.arriving[0]
		c.arriving = c.arriving[:copy(c.arriving, c.arriving[1:])]
		c.there = append(c.there, m.critical)
		c.ready++
		if t := &w.threads[c.to]; t.phase == waits && t.in == e.id {
			w.try(c.to, &c.there[0])
		}
	}
}

// collect takes the new actions of a machine; why is the way that led here.
func (w *world) collect(m int32, why *Critical) {
	mach := w.machines[m]
	r := w.runs[w.runOf[m]]
	base := r.first + (m-w.threads[r.first].machine)*r.channels
	for again := true; again; {
		again = false
		w.buf = mach.Ready(w.buf[:0])
		for i := range w.buf {
			a := &w.buf[i]
			if a.Op == sched.Wait {
				w.actions++
				mach.Complete(a.Channel)
				again = true
				continue
			}
			id := base + a.Channel
			t := &w.threads[id]
			t.op, t.phase, t.in, t.out = a.Op, waits, -1, -1
			t.bytes = a.Count * r.chunk
			if a.Op.Receives() {
				t.in = w.incoming(r, id, a.From)
			}
			if a.Op.Sends() {
				t.out = w.outgoing(r, id, a.To)
			}
			if w.err != nil {
				return
			}
			if !r.waits {
				t.again = mach.Again(a.Channel)
			}
			t.critical = *why
			w.try(id, why)
		}
	}
	if err := mach.Err(); err != nil {
		w.err = err
		return
	}
	if mach.Done() && w.repeat(m, r) {
		w.enter(m, why)
		return
	}
	if mach.Done() {
		if r.left--; r.left == 0 {
			r.end, r.last = w.now, *why
			w.ended++
		}
	}
}

// repeat begins a rank's next operation, if there is one.
func (w *world) repeat(m int32, r *run) bool {
	k := m - w.threads[r.first].machine
	if r.again == nil || r.again[k] == 0 {
		return false
	}
	r.again[k]--
	w.machines[m] = r.code.Machine(w.ranks[m])
	return true
}

// try starts a thread's action if its message is there and there is room.
func (w *world) try(id int32, why *Critical) {
	t := &w.threads[id]
	var come, ahead int64
	if t.in >= 0 {
		come = int64(w.conns[t.in].ready)
	}
	if t.out >= 0 {
		ahead = int64(w.conns[t.out].under)
	}
	if step.Held(t.op, come, ahead, int64(w.runs[w.runOf[t.machine]].job.Program.Slots)) != step.Free {
		return
	}
	t.critical = *why
	t.began = w.now
	if t.in >= 0 {
		c := &w.conns[t.in]
		c.ready--
		c.there = c.there[:copy(c.there, c.there[1:])]
	}
	factor := w.lame[t.machine]
	if w.o.Processors != nil && factor > 0 {
		ph := settles
		if t.out >= 0 {
			w.conns[t.out].under++
			ph = pays
		}
		t.reduced = 0
		w.runOnCore(id, ph, w.coreTime(t))
		return
	}
	cost, work := w.net.charges(t.op, t.bytes, factor)
	if t.out < 0 {
		if t.in < 0 && t.again > 0 && w.trace.trace == nil { // nobody takes part in these but this thread: all at once
			work *= unit.Time(1 + t.again)
			w.acted(id, t.again)
			w.folded += t.again
			t.ahead, t.again = t.ahead+t.again, 0
		}
		t.phase, t.at = settles, w.now+work
		t.critical[Reduction] += work
		w.events.push(t.at, done, id, 0)
		return
	}
	c := &w.conns[t.out]
	c.under++
	if factor == 0 {
		w.forward(t.out, t)
		t.phase, t.at = settles, w.now
		w.events.push(t.at, done, id, 0)
		return
	}
	t.phase, t.at = pays, w.now+cost
	t.reduced = t.at + work
	t.critical[Overhead] += cost
	if c.alone == 0 {
		w.events.push(t.at, starts, id, 0)
		return
	}
	// Nobody can change this flow's rate: its end is known.
	t.flowed = t.at
	took := max(1, span(float64(t.bytes), c.alone))
	w.carriedBy(c, t.bytes, took, c.limit, &t.critical)
	t.at += took
	if t.reduced > t.at {
		t.critical[Reduction] += t.reduced - t.at
		t.at = t.reduced
	}
	t.phase = settles
	w.events.push(t.at, done, id, 0)
}

// carriedBy books a flow that is through.
func (w *world) carriedBy(c *conn, bytes int64, took unit.Time, limit int32, why *Critical) {
	c.bytes += bytes
	c.messages++
	w.resBusy[limit] += float64(took)
	why[w.resTier[limit]] += took
}

// acted counts actions of a thread, and as folded those of the threads that do the same.
func (w *world) acted(id int32, actions int64) {
	w.actions += actions
	if w.times != nil {
		more := actions * (w.times[id] - 1)
		w.actions, w.folded = w.actions+more, w.folded+more
	}
}

// channelsOf is how many channels a machine has.
func (w *world) channelsOf(m int) int32 { return w.runs[w.runOf[m]].channels }

// begin lets a thread's flow start.
func (w *world) begin(id int32) {
	t := &w.threads[id]
	t.phase, t.left, t.since, t.flowed = flows, float64(t.bytes), w.now, w.now
	c := &w.conns[t.out]
	if x := w.flowlets[t.out]; x != nil {
		c.flow = x.next(w.now)
	}
	w.share.start(c.flow)
}

// rates gives flows their rates after what happened now.
func (w *world) rates() {
	if len(w.share.dirty) == 0 {
		return
	}
	for _, f := range w.share.solve() {
		id := w.threadOf[f]
		x := &w.share.flows[f]
		if id < 0 {
			w.recarry(^id, x)
			continue
		}
		t := &w.threads[id]
		w.lose(f, t.since)
		t.left -= float64(x.was) * float64(w.now-t.since) / 1e12
		t.since, x.was = w.now, x.rate
		t.version++
		t.at = w.now + max(1, span(t.left, x.rate))
		w.events.push(t.at, ends, id, t.version)
	}
	if p := w.share.pause; p != nil {
		for _, res := range p.wake {
			w.events.push(p.asked[res], calms, res, 0)
		}
		p.wake = p.wake[:0]
	}
}

// through is a flow's last byte leaving.
func (w *world) through(id int32) {
	t := &w.threads[id]
	c := &w.conns[t.out]
	limit := w.share.flows[c.flow].limit
	w.lose(c.flow, t.since)
	w.share.stop(c.flow)
	w.carriedBy(c, t.bytes, w.now-t.flowed, limit, &t.critical)
	if x := w.flowlets[t.out]; x != nil {
		x.left(w.now, t.bytes)
	}
	if t.reduced > w.now { // the memory is slower than the wire
		t.critical[Reduction] += t.reduced - w.now
		t.phase, t.at = settles, t.reduced
		w.events.push(t.at, done, id, 0)
		return
	}
	w.done(id)
}

// done ends an action: its message goes on its way, the slot it took is free.
func (w *world) done(id int32) {
	t := &w.threads[id]
	w.acted(id, 1)
	w.trace.span(w, id)
	t.phase = idle
	if t.out >= 0 && w.lame[t.machine] > 0 && !(w.o.Processors != nil && w.keeps(t)) {
		w.deliver(t.out, &t.critical)
	}
	in := t.in
	mach := t.machine
	why := t.critical
	if in >= 0 {
		c := &w.conns[in]
		c.under--
		if s := &w.threads[c.from]; s.phase == waits && s.out == in {
			w.try(c.from, &why)
		}
	}
	w.fold.completed(id)
	if t.again > 0 { // the machine need not be asked
		t.again--
		t.ahead++
		t.phase = waits
		t.critical = why
		w.try(id, &why)
		return
	}
	w.machines[mach].Repeat(t.channel, t.ahead)
	t.ahead = 0
	w.machines[mach].Complete(t.channel)
	w.collect(mach, &why)
}

// tell lets the machines know of repeated actions that are done.
func (w *world) tell() {
	for i := range w.threads {
		if t := &w.threads[i]; t.ahead > 0 {
			w.machines[t.machine].Repeat(t.channel, t.ahead)
			t.ahead = 0
		}
	}
}

// deliver puts a message whose last byte has left on its way.
func (w *world) deliver(id int32, why *Critical) {
	c := &w.conns[id]
	m := message{w.now + c.latency, *why}
	m.critical[Latency] += c.latency
	c.arriving = append(c.arriving, m)
	w.events.push(m.at, arrives, id, 0)
}

// finished says who is stuck, if anybody is.
func (w *world) finished() error {
	for _, r := range w.runs {
		if r.left == 0 {
			continue
		}
		for i := range w.threads {
			t := &w.threads[i]
			if t.phase != waits {
				continue
			}
			for1, what := int32(-1), "room at"
			if t.in >= 0 && w.conns[t.in].ready == 0 {
				for1, what = w.conns[t.in].from, "a message of"
			} else if t.out >= 0 {
				for1 = w.conns[t.out].to
			}
			if for1 >= 0 {
				return fmt.Errorf("%s: deadlock: rank %d channel %d waits for %s rank %d, and nothing moves", r.job.Program.Name,
					w.ranks[t.machine], t.channel, what, w.ranks[w.threads[for1].machine])
			}
		}
		return fmt.Errorf("%s: deadlock: a channel waits for another of its own rank", r.job.Program.Name)
	}
	return nil
}
