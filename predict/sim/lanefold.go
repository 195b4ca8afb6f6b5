package sim

import (
	"math"

	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/model/unit"
)

// laneFolder is folder for lanes: the same idea, with the trigger's clock for
// the time that all else is relative to.
type laneFolder struct {
	trigger int32
	have    bool
	count   int
	next    int
	resume  int64 // actions before which no other trigger is chosen, so that copies cost no more than actions
	kept    []*laneState
	free    []*laneState
}

// laneState is everything that the future of lanes depends on.
type laneState struct {
	at      unit.Time // the trigger's clock
	lanes   []lane
	pipes   []pipe
	arrive  []moment
	free    []moment
	marks   []step.Mark
	actions int64
	busy    []float64
	bytes   []int64
	msgs    []int64
}

// moved hears of every action.
func (f *laneFolder) moved(l *lanes, id int32) {
	if !f.have {
		if l.w.actions >= f.resume {
			f.have, f.trigger, f.count, f.next = true, id, 0, 1
			f.keep(l)
		}
		return
	}
	if id != f.trigger {
		if !l.lanes[f.trigger].held { // it has ended and fires no more
			f.forget()
			f.resume = l.w.actions + int64(len(l.lanes))
		}
		return
	}
	f.count++
	for i := len(f.kept) - 1; i >= 0; i-- {
		if s := f.kept[i]; s.same(l, f.trigger) && s.skip(l, f.trigger) {
			f.forget()
			return
		}
	}
	if f.count == f.next {
		f.next *= 2
		f.keep(l)
	}
}

func (f *laneFolder) forget() {
	f.free = append(f.free, f.kept...)
	f.kept, f.have = f.kept[:0], false
}

// tell lets the machines know of what lanes did without them.
func (l *lanes) tell() {
	for i := range l.lanes {
		if x := &l.lanes[i]; x.ahead > 0 {
			t := &l.w.threads[i]
			l.w.machines[t.machine].Repeat(t.channel, x.ahead)
			x.ahead = 0
		}
	}
}

func (f *laneFolder) keep(l *lanes) {
	w := l.w
	size := len(l.lanes)*400 + len(l.pipes)*64 + len(l.arrive)*176 // bytes, roughly
	if len(f.kept) > 0 && (len(f.kept)+1)*size > maxStates {
		f.free = append(f.free, f.kept[0])
		f.kept = append(f.kept[:0], f.kept[1:]...)
	}
	s := &laneState{}
	if n := len(f.free); n > 0 {
		s, f.free = f.free[n-1], f.free[:n-1]
	}
	f.kept = append(f.kept, s)
	l.tell()
	s.at = l.lanes[f.trigger].clock
	s.lanes = append(s.lanes[:0], l.lanes...)
	s.pipes = append(s.pipes[:0], l.pipes...)
	s.arrive = append(s.arrive[:0], l.arrive...)
	s.free = append(s.free[:0], l.free...)
	s.marks, s.bytes, s.msgs = s.marks[:0], s.bytes[:0], s.msgs[:0]
	for _, m := range w.machines {
		s.marks = m.Mark(s.marks)
	}
	for i := range w.conns {
		s.bytes, s.msgs = append(s.bytes, w.conns[i].bytes), append(s.msgs, w.conns[i].messages)
	}
	s.actions = w.actions
	s.busy = append(s.busy[:0], w.resBusy...)
}

// same compares the present state with the one kept, the times of lanes, of
// messages not taken and of slots not used again relative to the trigger's clock.
// A time that lies before the clock of the lane that will look at it counts as
// that clock: it can hold nothing back.
func (s *laneState) same(l *lanes, trigger int32) bool {
	shift := l.lanes[trigger].clock - s.at
	for i := range l.lanes {
		x, k := &l.lanes[i], &s.lanes[i]
		if x.clock-shift != k.clock || x.held != k.held || x.in != k.in || x.out != k.out || x.bytes != k.bytes || x.cost != k.cost ||
			x.work != k.work {
			return false
		}
	}
	for i := range l.pipes {
		p, k := &l.pipes[i], &s.pipes[i]
		if p.sent-p.taken != k.sent-k.taken || p.sent-p.freed != k.sent-k.freed {
			return false
		}
		to, from := l.lanes[p.to].clock, l.lanes[p.from].clock
		for j := range p.sent - p.taken {
			now := max(l.arrive[p.first+int32((p.taken+j)%int64(p.slots))].at, to)
			was := max(s.arrive[p.first+int32((k.taken+j)%int64(p.slots))].at, to-shift)
			if now-shift != was {
				return false
			}
		}
		for j := range int64(p.slots) - (p.sent - p.freed) {
			now, was := from, from-shift
			if n := p.sent + j; n >= int64(p.slots) {
				now = max(now, l.free[p.first+int32(n%int64(p.slots))].at)
			}
			if n := k.sent + j; n >= int64(p.slots) {
				was = max(was, s.free[p.first+int32(n%int64(p.slots))].at)
			}
			if now-shift != was {
				return false
			}
		}
	}
	return true
}

// skip jumps over the rounds that can be skipped; false if there are none.
func (s *laneState) skip(l *lanes, trigger int32) bool {
	w := l.w
	l.tell()
	times := int64(math.MaxInt64)
	at := 0
	for i, m := range w.machines {
		n := int(w.channelsOf(i))
		if times = min(times, m.Room(s.marks[at:at+n])); times == 0 {
			return false
		}
		at += n
	}
	span := l.lanes[trigger].clock - s.at
	if times == math.MaxInt64 || span <= 0 {
		return false
	}
	if times = min(times, int64((1<<60)/span)); times == 0 {
		return false
	}
	by := span * unit.Time(times)
	at = 0
	for i, m := range w.machines {
		n := int(w.channelsOf(i))
		m.Skip(s.marks[at:at+n], times)
		at += n
	}
	ahead := func(now, was *Critical) {
		for k := range now {
			now[k] += (now[k] - was[k]) * unit.Time(times)
		}
	}
	for i := range l.lanes {
		x := &l.lanes[i]
		x.clock += by
		ahead(&x.critical, &s.lanes[i].critical)
		if x.held {
			t := &w.threads[i]
			x.again = w.machines[t.machine].Again(t.channel)
		}
	}
	for i := range l.pipes {
		p, k := &l.pipes[i], &s.pipes[i]
		for j := range p.sent - p.taken {
			m := &l.arrive[p.first+int32((p.taken+j)%int64(p.slots))]
			m.at += by
			ahead(&m.critical, &s.arrive[p.first+int32((k.taken+j)%int64(p.slots))].critical)
		}
		for j := range int64(p.slots) - (p.sent - p.freed) {
			if n, o := p.sent+j, k.sent+j; n >= int64(p.slots) && o >= int64(p.slots) {
				m := &l.free[p.first+int32(n%int64(p.slots))]
				m.at += by
				ahead(&m.critical, &s.free[p.first+int32(o%int64(p.slots))].critical)
			}
		}
		c := &w.conns[i]
		c.bytes += (c.bytes - s.bytes[i]) * times
		c.messages += (c.messages - s.msgs[i]) * times
	}
	for i := range s.busy {
		w.resBusy[i] += (w.resBusy[i] - s.busy[i]) * float64(times)
	}
	more := (w.actions - s.actions) * times
	w.actions += more
	w.folded += more
	w.rounds += times
	return true
}
