// Package step defines what a sched.Program means. It is the only code that knows;
// collective/verify, sim and comm are worlds that execute its actions.
//
// A Machine interprets one rank of a program. Ready returns the actions that may start
// now. The world executes each of them, with symbols, time or bytes, and calls Complete.
// The contract:
//
//   - A channel has at most one action in progress. Actions of different channels are
//     independent unless a Wait orders them.
//   - The k-th message from rank a to rank b on a channel is the k-th that b receives.
//     A world can hold at least Program.Slots of them in flight. It delays a sending
//     action while no slot is free, and a receiving one while no message is there
//     (Held). No result depends on how many more slots a world has.
//   - A message without chunks is a signal: its sender has come this far.
//   - A Wait is returned once its condition holds. There is nothing to execute, but it
//     counts as an action of its channel.
//   - Effect is what an action computes, element by element: src, the message,
//     src + message, or src + dst (LocalReduce). Reductions give the same bits in
//     either operand order.
//   - An action reads its operands, then stores. It may store to exactly the chunks it
//     reads, so a world may process a message piece by piece. Any other overlap of
//     source and destination is a Fault.
//
// Do executes an action for worlds that hold whole chunks; Exchange stores the messages
// of worlds that run all ranks in one process.
package step

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// Machine interprets one rank of a program. It allocates only in New.
type Machine struct {
	prog   *sched.Program
	rank   sched.Rank
	size   [4]int64 // chunks of each buffer
	per    int64    // chunks of a block, 0 where the collective has none
	chans  []channel
	look   []int32 // channels that may have something new
	left   int     // channels that have not ended
	err    error
	worlds int32 // ranks and switches together
}

type channel struct {
	code    []instr
	pc      int
	env     sched.Env
	limit   sched.Env // of the loop whose variable has that slot
	done    int64     // actions completed
	order   []sched.Rank
	out     bool // an action is handed out
	ended   bool
	waiting bool // at a Wait
}

// instr is one instruction of a channel, its loops and choices made into jumps.
type instr struct {
	step *sched.Step
	loop *sched.Loop // with back false: enter; else: next round
	back bool
	cond *sched.Expr
	line int32 // of the condition
	jump int   // where to go on: past a loop, to its start, past a choice
}

// over reports whether an instruction only jumps over the other side of a choice.
func (in *instr) over() bool { return in.step == nil && in.loop == nil && in.cond == nil }

// compile flattens statements into instructions with jumps: the machine then needs no stack for them, only one counter
// per loop.
func compile(code []instr, body []sched.Stmt) []instr {
	for _, s := range body {
		switch {
		case s.Step != nil:
			code = append(code, instr{step: s.Step})
		case s.Loop != nil:
			start := len(code)
			code = append(code, instr{loop: s.Loop})
			code = compile(code, s.Loop.Body)
			code = append(code, instr{loop: s.Loop, back: true, jump: start + 1})
			code[start].jump = len(code)
		case s.If != nil:
			at := len(code)
			code = append(code, instr{cond: s.If.Cond, line: s.If.Line})
			code = compile(code, s.If.Then)
			if len(s.If.Else) > 0 {
				over := len(code)
				code = append(code, instr{})
				code[at].jump = len(code)
				code = compile(code, s.If.Else)
				code[over].jump = len(code)
			} else {
				code[at].jump = len(code)
			}
		}
	}
	return code
}

// Ready appends the actions that may start now and were not handed out before.
func (m *Machine) Ready(buf []Action) []Action {
	for len(m.look) > 0 && m.err == nil {
		c := m.look[len(m.look)-1]
		m.look = m.look[:len(m.look)-1]
		if a, ok := m.next(c); ok {
			buf = append(buf, a)
		}
	}
	return buf
}

// maxIdle is how many jumps a channel may take between two actions, about a
// second's worth: loops around choices that never hold are mistakes.
const maxIdle = 1 << 27

// next runs a channel up to its next action.
func (m *Machine) next(c int32) (Action, bool) {
	ch := &m.chans[c]
	if ch.out || ch.ended {
		return Action{}, false
	}
	for idle := 0; ch.pc < len(ch.code); idle++ {
		in := &ch.code[ch.pc]
		if idle > maxIdle {
			m.fault(c, 0, "repeat", "%d rounds without a step", idle)
			return Action{}, false
		}
		switch {
		case in.step != nil && in.step.Op == sched.Wait:
			other, done := in.step.Channel.Eval(&ch.env), in.step.Done.Eval(&ch.env)
			if m.undefined(c, in.step.Line, in.step) {
				return Action{}, false
			}
			if other < 0 || other >= int64(len(m.chans)) {
				m.fail(c, in.step, "there is no channel %d", other)
				return Action{}, false
			}
			if m.chans[other].done < done {
				ch.waiting = true
				return Action{}, false
			}
			ch.out = true
			return Action{Op: sched.Wait, Channel: c, Step: ch.done, From: -1, To: -1, On: int32(other), Line: in.step.Line, Done: done}, true
		case in.step != nil:
			a, ok := m.action(c, in.step)
			ch.out = ok
			return a, ok
		case in.loop != nil && !in.back:
			slot := in.loop.Slot()
			ch.env[slot], ch.limit[slot] = 0, in.loop.Count.Eval(&ch.env)
			if m.undefined(c, in.loop.Line, in.loop) {
				return Action{}, false
			}
			ch.pc++
			if ch.limit[slot] <= 0 {
				ch.pc = in.jump
			}
		case in.loop != nil:
			slot := in.loop.Slot()
			ch.env[slot]++
			ch.pc++
			if ch.env[slot] < ch.limit[slot] {
				ch.pc = in.jump
			}
		case in.cond != nil:
			ch.pc++
			if in.cond.Eval(&ch.env) == 0 {
				ch.pc = in.jump
			}
			if m.undefined(c, in.line, in.cond) {
				return Action{}, false
			}
		default:
			ch.pc = in.jump
		}
	}
	ch.ended = true
	m.left--
	return Action{}, false
}

// action computes the operands of a step.
func (m *Machine) action(c int32, s *sched.Step) (Action, bool) {
	ch := &m.chans[c]
	a := Action{Op: s.Op, Channel: c, Step: ch.done, From: -1, To: -1, Count: 1, Line: s.Line}
	if s.Op.Receives() && !m.peer(&a.From, c, s, s.From) || s.Op.Sends() && !m.peer(&a.To, c, s, s.To) ||
		s.Op.Reads() && !m.chunks(&a.Src, c, s, &s.Src) || s.Op.Stores() && !m.chunks(&a.Dst, c, s, &s.Dst) {
		return a, false
	}
	switch {
	case s.Op.Stores():
		a.Count = a.Dst.Count
	default:
		a.Count = a.Src.Count
	}
	if s.Op.Stores() && s.Op.Reads() && a.Src.Count != a.Dst.Count {
		m.fail(c, s, "it reads %d chunks and stores %d", a.Src.Count, a.Dst.Count)
		return a, false
	}
	if s.Op.Stores() && s.Op.Reads() && a.Src.Shifted(a.Dst) {
		m.fail(c, s,
			"it reads %s and stores %s, which overlap; read and store the same chunks, or chunks that share none (through other scratch, if need be)",
			a.Src, a.Dst)
		return a, false
	}
	return a, true
}

// peer computes whom a step exchanges with, by the channel's order of ranks if it has one. It returns false after a
// failure, which the machine keeps.
func (m *Machine) peer(r *sched.Rank, c int32, s *sched.Step, e *sched.Expr) bool {
	ch := &m.chans[c]
	v := e.Eval(&ch.env)
	if m.undefined(c, s.Line, s) {
		return false
	}
	if v < 0 || v >= int64(m.worlds) {
		m.fail(c, s, "peer %d is outside 0 to %d", v, m.worlds-1)
		return false
	}
	*r = sched.Rank(v)
	if v < int64(len(ch.order)) {
		*r = ch.order[v]
	}
	if *r == m.rank {
		m.fail(c, s, "a rank cannot exchange messages with itself")
		return false
	}
	return true
}

// chunks computes which chunks a step touches, and checks that the buffer has them. Messages may be empty: those are
// signals.
func (m *Machine) chunks(out *Chunks, c int32, s *sched.Step, ref *sched.Ref) bool {
	ch := &m.chans[c]
	*out = Chunks{ref.Buf, ref.Index.Eval(&ch.env), 1}
	if ref.Count != nil {
		out.Count = ref.Count.Eval(&ch.env)
	}
	if m.undefined(c, s.Line, s) {
		return false
	}
	size := m.size[ref.Buf]
	least := int64(1)
	if s.Op == sched.Send || s.Op == sched.Recv {
		least = 0 // a signal
	}
	if out.Count < least || out.Index < 0 || out.Count > size || out.Index > size-out.Count {
		m.fail(c, s, "%s is outside the %d chunks of %s", *out, size, ref.Buf)
		return false
	}
	// On a channel with an order, blocks are numbered by position like ranks.
	if ch.order != nil && m.per > 0 && ref.Buf != sched.Tmp && size > m.per {
		block, within := out.Index/m.per, out.Index%m.per
		if within+out.Count > m.per {
			m.fail(c, s, "%s crosses blocks, which a channel with an order cannot", *out)
			return false
		}
		out.Index = int64(ch.order[block])*m.per + within
	}
	return true
}

// Complete says that the action handed out for a channel has been carried out.
func (m *Machine) Complete(c int32) {
	ch := &m.chans[c]
	ch.out = false
	ch.done++
	ch.pc++
	m.look = append(m.look, c)
	if len(m.chans) == 1 {
		return
	}
	for i := range m.chans {
		if m.chans[i].waiting {
			m.chans[i].waiting = false
			m.look = append(m.look, int32(i))
		}
	}
}

// Done reports whether every channel has run to its end.
func (m *Machine) Done() bool { return m.left == 0 }

// Err is the first thing the program asked for that does not exist.
func (m *Machine) Err() error { return m.err }

// Waiting tells, for a machine that is stuck, which channels are at a Wait.
func (m *Machine) Waiting() []int32 {
	var list []int32
	for i := range m.chans {
		if m.chans[i].waiting {
			list = append(list, int32(i))
		}
	}
	return list
}

// undefined ends the machine if an expression that was just evaluated has no value.
func (m *Machine) undefined(c, line int32, text fmt.Stringer) bool {
	why := m.chans[c].env.Undefined()
	if why == "" {
		return false
	}
	m.fault(c, line, text.String(), "an expression of it %s", why)
	return true
}

func (m *Machine) fail(c int32, s *sched.Step, format string, args ...any) {
	m.fault(c, s.Line, s.String(), format, args...)
}

func (m *Machine) fault(c, line int32, text, format string, args ...any) {
	if m.err == nil {
		m.err = &Fault{Program: m.prog.Name, Rank: m.rank, Channel: c, Step: m.chans[c].done, Line: line, Text: text,
			What: fmt.Sprintf(format, args...)}
	}
}

// Fault is a step that cannot be carried out in any world.
type Fault struct {
	Program string
	Rank    sched.Rank
	Channel int32
	Step    int64
	Line    int32 // of the program's text; 0 if it was made in Go
	Text    string
	What    string
}

func (f *Fault) Error() string {
	text := f.Text
	if f.Line > 0 {
		text = fmt.Sprintf("line %d: %s", f.Line, text)
	}
	return fmt.Sprintf("%s: rank %d channel %d step %d (%s): %s", f.Program, f.Rank, f.Channel, f.Step, text, f.What)
}
