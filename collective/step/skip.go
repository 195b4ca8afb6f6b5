package step

import (
	"math"

	"github.com/weft-fabric/weft/collective/sched"
)

// A world that has seen its whole state come back, with only loop counters
// higher, may skip the rounds in which nothing else would change. What can be
// skipped is a matter of what a program means, and so it is said here: Mark
// remembers where a machine stands, Room says how many more spans like the one
// since then stay inside the same loops and do the same, Skip jumps over them.

// Mark is where one channel of a machine stood.
type Mark struct {
	pc      int
	done    int64
	env     sched.Env
	out     bool
	ended   bool
	waiting bool
}

// Mark appends where every channel stands.
func (m *Machine) Mark(buf []Mark) []Mark {
	for i := range m.chans {
		ch := &m.chans[i]
		buf = append(buf, Mark{ch.pc, ch.done, ch.env, ch.out, ch.ended, ch.waiting})
	}
	return buf
}

// Same reports whether a channel is at the place of a mark, loop counters aside.
// It is quick: worlds ask it often.
func (m *Machine) Same(since []Mark, c int32) bool {
	ch, mk := &m.chans[c], &since[c]
	return ch.pc == mk.pc && ch.out == mk.out && ch.ended == mk.ended && ch.waiting == mk.waiting
}

// Room says how often what happened since the marks can happen again with the
// same operations, peers and sizes: MaxInt64 for a machine that did not move, 0
// if it is elsewhere or if the loop it is in does not repeat itself.
func (m *Machine) Room(since []Mark) int64 {
	room := int64(math.MaxInt64)
	for i := range m.chans {
		ch, mk := &m.chans[i], &since[i]
		if !m.Same(since, int32(i)) {
			return 0
		}
		if ch.waiting && m.moved(since, ch.code[ch.pc].step, ch, mk) {
			return 0
		}
		slot, ok := ch.advanced(mk)
		if !ok {
			return 0
		}
		if slot < 0 {
			continue
		}
		body, ok := ch.around(slot)
		if !ok || !m.steady(since, body, slot, ch, mk) {
			return 0
		}
		step := ch.env[slot] - mk.env[slot]
		if step <= 0 {
			return 0
		}
		room = min(room, (ch.limit[slot]-1-ch.env[slot])/step)
	}
	return room
}

// Skip repeats what happened since the marks the given number of times at once, at most Room.
func (m *Machine) Skip(since []Mark, times int64) {
	for i := range m.chans {
		ch, mk := &m.chans[i], &since[i]
		for s := range ch.env {
			ch.env[s] += (ch.env[s] - mk.env[s]) * times
		}
		ch.done += (ch.done - mk.done) * times
	}
}

// advanced gives the slot of the one loop variable that differs from a mark's, -1 if the channel did nothing; false if
// several differ, or none though something was done.
func (ch *channel) advanced(mk *Mark) (slot int, ok bool) {
	slot = -1
	for s := range ch.env {
		if ch.env[s] == mk.env[s] {
			continue
		}
		if slot >= 0 {
			return slot, false
		}
		slot = s
	}
	return slot, slot >= 0 || ch.done == mk.done
}

// around gives the body of the loop around the current place whose variable has a slot.
func (ch *channel) around(slot int) ([]instr, bool) {
	for i := ch.pc; i < len(ch.code); i++ {
		in := &ch.code[i]
		if in.loop != nil && in.back && in.jump <= ch.pc && in.loop.Slot() == slot {
			return ch.code[in.jump:i], true
		}
	}
	return nil, false
}

// steady reports whether every round of a loop does the same: no operation,
// peer, size, choice or inner loop in it depends on its variable, and what it
// waits for keeps its distance.
func (m *Machine) steady(since []Mark, body []instr, slot int, ch *channel, mk *Mark) bool {
	for i := range body {
		in := &body[i]
		switch {
		case in.step != nil && in.step.Op == sched.Wait:
			if in.step.Channel.Uses(slot) || !in.step.Done.Affine(slot) || m.moved(since, in.step, ch, mk) {
				return false
			}
		case in.step != nil:
			for _, e := range []*sched.Expr{in.step.From, in.step.To, in.step.Src.Count, in.step.Dst.Count} {
				if e != nil && e.Uses(slot) {
					return false
				}
			}
		case in.loop != nil:
			if in.loop.Count.Uses(slot) {
				return false
			}
		case in.cond != nil && in.cond.Uses(slot):
			return false
		}
	}
	return true
}

// moved reports whether the distance between what a Wait asks for and what is
// done has changed since the marks, unless it was and stays fulfilled.
func (m *Machine) moved(since []Mark, s *sched.Step, ch *channel, mk *Mark) bool {
	other := s.Channel.Eval(&ch.env)
	if other < 0 || other >= int64(len(m.chans)) {
		return true
	}
	was, is := s.Done.Eval(&mk.env), s.Done.Eval(&ch.env)
	if was == is && was <= since[other].done {
		return false
	}
	return is-was != m.chans[other].done-since[other].done
}

// Again says how many more times in a row a channel will do the action that it
// has handed out, with the same operation, peers and size.
func (m *Machine) Again(c int32) int64 {
	ch := &m.chans[c]
	if !ch.out || ch.pc+1 >= len(ch.code) {
		return 0
	}
	s, back := ch.code[ch.pc].step, &ch.code[ch.pc+1]
	if back.loop == nil || !back.back || back.jump != ch.pc || s.Op == sched.Wait {
		return 0
	}
	slot := back.loop.Slot()
	for _, e := range []*sched.Expr{s.From, s.To, s.Src.Count, s.Dst.Count} {
		if e != nil && e.Uses(slot) {
			return 0
		}
	}
	return ch.limit[slot] - 1 - ch.env[slot]
}

// Repeat says that the action handed out for a channel has been carried out and
// handed out again the given number of times, at most Again.
func (m *Machine) Repeat(c int32, times int64) {
	if times == 0 {
		return
	}
	ch := &m.chans[c]
	ch.env[ch.code[ch.pc+1].loop.Slot()] += times
	ch.done += times
}
