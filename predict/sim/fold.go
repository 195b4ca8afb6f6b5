package sim

import (
	"math"

	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// folder looks for the moment when everything is as it was before but for loop
// counters, and skips the rounds ahead.
//
// It keeps states of moments 1, 2, 4, 8, ... at which one thread, the trigger,
// ended an action, and compares the present state with them whenever it ends one
// again. A state that comes back after r moments, t moments into the run, is so
// found within 2t + r. A comparison mostly ends at the first threads; a copy is
// taken a logarithmic number of times.
type folder struct {
	on      bool
	brief   bool  // threads are very many and have few actions each: states cost more to keep than rounds to simulate
	trigger int32 // thread
	last    int32 // thread that ended an action most recently
	fired   bool
	any     bool
	count   int   // moments since the first state was kept
	next    int   // when to keep another
	resume  int64 // actions before which no other trigger is chosen, so that copies cost no more than actions
	kept    []*state
	free    []*state
}

// state is everything that the future depends on, and what is counted besides.
type state struct {
	at      unit.Time
	threads []threadState
	conns   []connState
	arrive  []message
	there   []Critical
	marks   []step.Mark
	actions int64
	busy    []float64
}

// maxStates bounds the memory that kept states may take, 256 MiB.
const maxStates = 256 << 20

type threadState struct {
	phase       phase
	in, out     int32
	bytes       int64
	at          unit.Time // less now; 0 where it does not matter
	since       unit.Time
	left        uint64 // bits
	rate        int64
	reduced     unit.Time
	criticalNow Critical
}

type connState struct {
	under, ready, arriving int32
	bytes, messages        int64
}

// isBrief reports whether a program's rounds are not worth looking for: among more than 16,384 threads a state takes longer to
// keep than a few rounds to simulate.
func (r *run) isBrief() bool {
	const many, few = 1 << 14, 64
	return int64(r.period)*int64(r.channels) > many && r.job.actions() < few*int64(r.job.Program.Ranks)*int64(r.channels)
}

// completed hears of every action that ends.
func (f *folder) completed(id int32) {
	f.any = true
	f.last = id
	if id == f.trigger {
		f.fired = true
	}
}

// look is called when all that happens at one moment has happened.
func (f *folder) look(w *world) {
	if !f.on || f.brief || !f.any || w.pending > 0 { // a job that begins later would be put off with the rest
		return
	}
	f.any = false
	if len(f.kept) == 0 {
		if w.actions < f.resume {
			return
		}
		f.trigger, f.fired, f.count, f.next = f.last, false, 0, 1
		f.keep(w)
		return
	}
	if !f.fired {
		// A trigger that has ended fires no more: choose another.
		if w.machines[w.threads[f.trigger].machine].Done() {
			f.forget()
			f.resume = w.actions + int64(len(w.threads))
		}
		return
	}
	f.fired = false
	f.count++
	for i := len(f.kept) - 1; i >= 0; i-- {
		if s := f.kept[i]; s.same(w, f.trigger) && s.skip(w) {
			f.forget()
			return
		}
	}
	if f.count == f.next {
		f.next *= 2
		f.keep(w)
	}
}

func (f *folder) forget() {
	f.free = append(f.free, f.kept...)
	f.kept = f.kept[:0]
}

// threadState gives what matters of a thread, relative to now.
func (w *world) threadState(t *thread) threadState {
	s := threadState{phase: t.phase}
	if t.phase == idle {
		return s
	}
	s.in, s.out, s.bytes = t.in, t.out, t.bytes
	switch t.phase {
	case pays:
		s.at, s.reduced = t.at-w.now, t.reduced-w.now
	case settles:
		s.at = t.at - w.now
	case flows:
		s.at, s.since, s.reduced = t.at-w.now, t.since-w.now, max(t.reduced-w.now, 0)
		s.left, s.rate = math.Float64bits(t.left), w.share.flows[w.conns[t.out].flow].rate
	}
	return s
}

// keep remembers the present state.
func (f *folder) keep(w *world) {
	size := len(w.threads)*400 + len(w.conns)*120 // bytes, roughly
	if len(f.kept) > 0 && (len(f.kept)+1)*size > maxStates {
		f.free = append(f.free, f.kept[0])
		f.kept = append(f.kept[:0], f.kept[1:]...)
	}
	s := &state{}
	if n := len(f.free); n > 0 {
		s, f.free = f.free[n-1], f.free[:n-1]
	}
	f.kept = append(f.kept, s)
	s.take(w)
}

func (f *state) take(w *world) {
	w.tell()
	f.at = w.now
	f.threads, f.conns, f.marks = f.threads[:0], f.conns[:0], f.marks[:0]
	f.arrive, f.there = f.arrive[:0], f.there[:0]
	for i := range w.threads {
		t := &w.threads[i]
		s := w.threadState(t)
		s.criticalNow = t.critical
		f.threads = append(f.threads, s)
	}
	for i := range w.conns {
		c := &w.conns[i]
		f.conns = append(f.conns, connState{c.under, c.ready, int32(len(c.arriving)), c.bytes, c.messages})
		f.arrive = append(f.arrive, c.arriving...)
		f.there = append(f.there, c.there...)
	}
	for _, m := range w.machines {
		f.marks = m.Mark(f.marks)
	}
	f.actions = w.actions
	f.busy = append(f.busy[:0], w.resBusy...)
}

// same compares the present state with the one kept.
func (f *state) same(w *world, trigger int32) bool {
	if len(f.conns) != len(w.conns) {
		return false
	}
	shift := w.now - f.at
	// The trigger first: it is the likeliest to differ in its place.
	t := &w.threads[trigger]
	r := w.runs[w.runOf[t.machine]]
	base := f.mark(w, t.machine, r)
	if !w.machines[t.machine].Same(f.marks[base:], t.channel) {
		return false
	}
	for i := range w.threads {
		s := w.threadState(&w.threads[i])
		k := &f.threads[i]
		s.criticalNow = k.criticalNow
		if s != *k {
			return false
		}
	}
	a := 0
	for i := range w.conns {
		c, k := &w.conns[i], &f.conns[i]
		if c.under != k.under || c.ready != k.ready || int32(len(c.arriving)) != k.arriving {
			return false
		}
		for j := range c.arriving {
			if c.arriving[j].at-shift != f.arrive[a].at {
				return false
			}
			a++
		}
	}
	return true
}

// mark is where a machine's marks begin.
func (f *state) mark(w *world, m int32, r *run) int32 {
	// Threads and marks are laid out alike.
	return r.first + (m-w.threads[r.first].machine)*r.channels
}

// skip jumps over the rounds that can be skipped; false if there are none.
func (f *state) skip(w *world) bool {
	w.tell()
	times := int64(math.MaxInt64)
	for m, mach := range w.machines {
		r := w.runs[w.runOf[m]]
		base := f.mark(w, int32(m), r)
		times = min(times, mach.Room(f.marks[base:base+r.channels]))
		if times == 0 {
			return false
		}
	}
	span := w.now - f.at
	if times == math.MaxInt64 || span <= 0 {
		return false
	}
	if times = min(times, int64((1<<60)/span)); times == 0 {
		return false
	}
	by := span * unit.Time(times)
	for m, mach := range w.machines {
		r := w.runs[w.runOf[m]]
		base := f.mark(w, int32(m), r)
		mach.Skip(f.marks[base:base+r.channels], times)
	}
	ahead := func(now, was *Critical) {
		for k := range now {
			now[k] += (now[k] - was[k]) * unit.Time(times)
		}
	}
	for i := range w.threads {
		t := &w.threads[i]
		t.at, t.since, t.reduced, t.began, t.flowed = t.at+by, t.since+by, t.reduced+by, t.began+by, t.flowed+by
		ahead(&t.critical, &f.threads[i].criticalNow)
		if t.phase != idle && t.again > 0 {
			t.again = w.machines[t.machine].Again(t.channel)
		}
	}
	a, b := 0, 0
	for i := range w.conns {
		c, k := &w.conns[i], &f.conns[i]
		c.bytes += (c.bytes - k.bytes) * times
		c.messages += (c.messages - k.messages) * times
		for j := range c.arriving {
			c.arriving[j].at += by
			ahead(&c.arriving[j].critical, &f.arrive[a].critical)
			a++
		}
		for j := range c.there {
			ahead(&c.there[j], &f.there[b])
			b++
		}
	}
	for i := range f.busy {
		w.resBusy[i] += (w.resBusy[i] - f.busy[i]) * float64(times)
	}
	more := (w.actions - f.actions) * times
	w.actions += more
	w.folded += more
	w.rounds += times
	w.trace.gap(w, w.now, w.now+by, times)
	w.events.shift(by)
	w.now += by
	return true
}
