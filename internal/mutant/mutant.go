// Package mutant breaks programs, for tests of what must not be accepted, or must
// still be run right: in one step of one rank, or in the text for all ranks.
package mutant

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// Explicit is a program written out: by channel and rank, every step with numbers.
type Explicit struct {
	Head  *sched.Program   // of which the groups and orders do not count
	Steps [][][]sched.Step // by channel and rank
}

// WriteOut writes a program out.
func WriteOut(p *sched.Program) (*Explicit, error) {
	e := &Explicit{Head: p, Steps: make([][][]sched.Step, p.Channels())}
	for c := range e.Steps {
		e.Steps[c] = make([][]sched.Step, p.Ranks+p.Switches)
	}
	err := step.Run(p, func(r sched.Rank, a *step.Action, m int) (int, error) {
		s := sched.Step{Op: a.Op}
		ref := func(c step.Chunks) sched.Ref {
			return sched.Ref{Buf: c.Buf, Index: sched.N(int(c.Index)), Count: sched.N(int(c.Count))}
		}
		if a.Op.Reads() {
			s.Src = ref(a.Src)
		}
		if a.Op.Stores() {
			s.Dst = ref(a.Dst)
		}
		if a.Op.Receives() {
			s.From = sched.N(int(a.From))
		}
		if a.Op.Sends() {
			s.To = sched.N(int(a.To))
		}
		if a.Op == sched.Wait {
			s.Channel, s.Done = sched.N(int(a.On)), sched.N(int(a.Done))
		}
		e.Steps[a.Channel][r] = append(e.Steps[a.Channel][r], s)
		return 0, nil
	})
	return e, err
}

// Program puts the steps together again.
func (e *Explicit) Program() *sched.Program {
	q := *e.Head
	q.Groups, q.Orders = nil, nil
	r := &sched.Expr{Kind: sched.Var, Name: "r"}
	for _, ranks := range e.Steps {
		var body []sched.Stmt
		for rank, list := range ranks {
			var then []sched.Stmt
			for i := range list {
				s := list[i]
				then = append(then, sched.Stmt{Step: &s})
			}
			if len(then) > 0 {
				body = append(body, sched.Stmt{If: &sched.If{Cond: &sched.Expr{Kind: sched.Eq, L: r, R: sched.N(rank)}, Then: then}})
			}
		}
		q.Groups = append(q.Groups, sched.Group{Count: 1, Body: body})
	}
	return &q
}

func (e *Explicit) clone() *Explicit {
	out := &Explicit{Head: e.Head, Steps: make([][][]sched.Step, len(e.Steps))}
	for c := range e.Steps {
		out.Steps[c] = make([][]sched.Step, len(e.Steps[c]))
		for r := range e.Steps[c] {
			out.Steps[c][r] = slices.Clone(e.Steps[c][r])
		}
	}
	return out
}

// Break breaks a copy in one place and says how, or gives nil if that place
// cannot be broken that way.
func (e *Explicit) Break(rng *rand.Rand) (*Explicit, string) {
	m := e.clone()
	c, r := rng.IntN(len(m.Steps)), rng.IntN(len(m.Steps[0]))
	list := m.Steps[c][r]
	if len(list) == 0 {
		return nil, ""
	}
	i := rng.IntN(len(list))
	s := list[i]
	world := e.Head.Ranks + e.Head.Switches
	bump := func(x *sched.Expr) *sched.Expr {
		d := 1 + rng.IntN(2)
		if rng.IntN(2) == 0 {
			d = -d
		}
		return sched.N(int(x.Val) + d)
	}
	where := fmt.Sprintf("channel %d rank %d step %d (%s): ", c, r, i, &s)
	switch rng.IntN(14) {
	case 0:
		m.Steps[c][r] = slices.Delete(list, i, i+1)
		return m, where + "dropped"
	case 1:
		m.Steps[c][r] = slices.Insert(list, i, s)
		return m, where + "twice"
	case 2:
		j := rng.IntN(len(list))
		if list[i].String() == list[j].String() {
			return nil, ""
		}
		list[i], list[j] = list[j], list[i]
		return m, where + fmt.Sprintf("swapped with step %d", j)
	case 3:
		if s.To == nil {
			return nil, ""
		}
		if s.To = sched.N(rng.IntN(world)); s.To.Val == list[i].To.Val {
			return nil, ""
		}
		where += "sends to " + s.To.String()
	case 4:
		if s.From == nil {
			return nil, ""
		}
		if s.From = sched.N(rng.IntN(world)); s.From.Val == list[i].From.Val {
			return nil, ""
		}
		where += "receives from " + s.From.String()
	case 5:
		if !s.Op.Reads() {
			return nil, ""
		}
		s.Src.Index = bump(s.Src.Index)
		where += "reads " + s.Src.String()
	case 6:
		if !s.Op.Stores() {
			return nil, ""
		}
		s.Dst.Index = bump(s.Dst.Index)
		where += "stores to " + s.Dst.String()
	case 7:
		swap := map[sched.Op]sched.Op{sched.RecvReduce: sched.Recv, sched.RecvReduceCopySend: sched.RecvSend, sched.LocalReduce: sched.Copy,
			sched.Copy: sched.LocalReduce}
		op, ok := swap[s.Op]
		if s.Op == sched.Recv { // reduces into where it stored
			op, ok, s.Src = sched.RecvReduce, true, s.Dst
		}
		if s.Op == sched.RecvReduceSend { // passes on without adding
			op, ok, s.Dst = sched.RecvSend, true, sched.Ref{Buf: sched.Out, Index: sched.N(0), Count: s.Src.Count}
		}
		if !ok {
			return nil, ""
		}
		s.Op = op
		where += "does " + op.String()
	case 8: // to another place in the list
		list = slices.Delete(list, i, i+1)
		j := rng.IntN(len(list) + 1)
		if j == i {
			return nil, ""
		}
		m.Steps[c][r] = slices.Insert(list, j, s)
		return m, where + fmt.Sprintf("moved to %d", j)
	case 9: // to another rank or channel
		m.Steps[c][r] = slices.Delete(list, i, i+1)
		c2, r2 := rng.IntN(len(m.Steps)), rng.IntN(world)
		if c2 == c && r2 == r {
			return nil, ""
		}
		m.Steps[c2][r2] = append(m.Steps[c2][r2], s)
		return m, where + fmt.Sprintf("moved to channel %d rank %d", c2, r2)
	case 10:
		if s.Op != sched.Wait || s.Done.Val == 0 {
			return nil, ""
		}
		s.Done = sched.N(int(s.Done.Val) - 1)
		where += "waits for one step less"
	case 11: // another buffer
		if !s.Op.Stores() {
			return nil, ""
		}
		s.Dst.Buf = sched.Out + sched.Tmp - s.Dst.Buf
		where += "stores to " + s.Dst.String()
	case 13: // fewer slots
		if e.Head.Slots == 1 {
			return nil, ""
		}
		p := *e.Head
		p.Slots--
		m.Head = &p
		return m, "one slot less"
	case 12: // one chunk more or less
		ref := &s.Src
		if s.Op.Stores() && (rng.IntN(2) == 0 || !s.Op.Reads()) {
			ref = &s.Dst
		}
		if ref.Count == nil {
			return nil, ""
		}
		ref.Count = bump(ref.Count)
		where += "takes " + ref.Count.String() + " chunks"
	}
	list[i] = s
	return m, where
}

// BreakText changes one thing in a body.
func BreakText(body []sched.Stmt, rng *rand.Rand) {
	if len(body) == 0 {
		return
	}
	i := rng.IntN(len(body))
	switch s := body[i]; {
	case s.Loop != nil && rng.IntN(4) > 0:
		BreakText(s.Loop.Body, rng)
	case s.Loop != nil:
		s.Loop.Count = nudge(s.Loop.Count, rng)
	case s.If != nil && rng.IntN(4) == 0:
		s.If.Cond = nudge(s.If.Cond, rng)
	case s.If != nil && rng.IntN(2) == 0:
		BreakText(s.If.Else, rng)
	case s.If != nil:
		BreakText(s.If.Then, rng)
	default:
		j := rng.IntN(len(body))
		st := *s.Step
		switch rng.IntN(6) {
		case 0:
			body[i], body[j] = body[j], body[i]
			return
		case 1:
			body[i] = body[j]
			return
		case 2:
			if st.To != nil {
				st.To = nudge(st.To, rng)
			}
		case 3:
			if st.From != nil {
				st.From = nudge(st.From, rng)
			}
		case 4:
			if st.Src.Index != nil {
				st.Src.Index = nudge(st.Src.Index, rng)
			}
		default:
			if st.Dst.Index != nil {
				st.Dst.Index = nudge(st.Dst.Index, rng)
			}
		}
		body[i].Step = &st
	}
}

// nudge changes a constant of an expression by one, in a copy.
func nudge(e *sched.Expr, rng *rand.Rand) *sched.Expr {
	out := *e
	switch e.Kind {
	case sched.Num:
		out.Val += int64(1 - 2*rng.IntN(2))
		if out.Val < 0 {
			out.Val = 1
		}
	case sched.Var:
	case sched.Look:
		out.L = nudge(e.L, rng)
	default:
		if rng.IntN(2) == 0 {
			out.L = nudge(e.L, rng)
		} else {
			out.R = nudge(e.R, rng)
		}
	}
	return &out
}
