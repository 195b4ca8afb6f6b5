package verify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sched/mem"
	"github.com/weft-fabric/weft/sched/step"
	"github.com/weft-fabric/weft/sched/verify"
)

// explicit is a program written out: by channel and rank, every step with numbers.
type explicit struct {
	p     *sched.Program
	steps [][][]sched.Step
}

func writeOut(t *testing.T, p *sched.Program) *explicit {
	t.Helper()
	e := &explicit{p: p, steps: make([][][]sched.Step, p.Channels())}
	for c := range e.steps {
		e.steps[c] = make([][]sched.Step, p.Ranks+p.Switches)
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
		e.steps[a.Channel][r] = append(e.steps[a.Channel][r], s)
		return 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// program puts the steps together again.
func (e *explicit) program() *sched.Program {
	q := *e.p
	q.Groups, q.Orders = nil, nil
	r := &sched.Expr{Kind: sched.Var, Name: "r"}
	for _, ranks := range e.steps {
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

func (e *explicit) clone() *explicit {
	out := &explicit{p: e.p, steps: make([][][]sched.Step, len(e.steps))}
	for c := range e.steps {
		out.steps[c] = make([][]sched.Step, len(e.steps[c]))
		for r := range e.steps[c] {
			out.steps[c][r] = slices.Clone(e.steps[c][r])
		}
	}
	return out
}

// mutate breaks a copy in one place and says how, or gives nil if that place
// cannot be broken that way.
func (e *explicit) mutate(rng *rand.Rand) (*explicit, string) {
	m := e.clone()
	c, r := rng.IntN(len(m.steps)), rng.IntN(len(m.steps[0]))
	list := m.steps[c][r]
	if len(list) == 0 {
		return nil, ""
	}
	i := rng.IntN(len(list))
	s := list[i]
	world := e.p.Ranks + e.p.Switches
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
		m.steps[c][r] = slices.Delete(list, i, i+1)
		return m, where + "dropped"
	case 1:
		m.steps[c][r] = slices.Insert(list, i, s)
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
		swap := map[sched.Op]sched.Op{sched.RecvReduce: sched.Recv, sched.RecvReduceCopySend: sched.RecvSend, sched.LocalReduce: sched.Copy, sched.Copy: sched.LocalReduce}
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
		m.steps[c][r] = slices.Insert(list, j, s)
		return m, where + fmt.Sprintf("moved to %d", j)
	case 9: // to another rank or channel
		m.steps[c][r] = slices.Delete(list, i, i+1)
		c2, r2 := rng.IntN(len(m.steps)), rng.IntN(world)
		if c2 == c && r2 == r {
			return nil, ""
		}
		m.steps[c2][r2] = append(m.steps[c2][r2], s)
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
		if e.p.Slots == 1 {
			return nil, ""
		}
		p := *e.p
		p.Slots--
		m.p = &p
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

// right runs a program in several orders on integers and compares with what the
// collective promises. The n-th rank's contribution to a barrier is one in the
// n-th digit, which must not be missing.
func right(p *sched.Program, rng *rand.Rand) error {
	in := make([][]int64, p.Ranks)
	for r := range in {
		for range p.NumChunks(sched.In) * 2 {
			v := rng.Int64N(1 << 30)
			if p.Op == sched.Barrier {
				v = 1 << (8 * r)
			}
			in[r] = append(in[r], v)
		}
	}
	want := mem.Reference(p.Op, p.Root, in)
	for try := range 6 {
		pick := rng.IntN
		if try == 0 {
			pick = nil
		}
		out, err := mem.Run(p, in, pick)
		if err != nil {
			return err
		}
		for r := range want {
			if want[r] != nil && !slices.Equal(out[r], want[r]) {
				return fmt.Errorf("rank %d ends with %v, not %v", r, out[r], want[r])
			}
			for digit := 0; p.Op == sched.Barrier && digit < p.Ranks; digit++ {
				for _, v := range out[r] {
					if v>>(8*digit)&255 == 0 {
						return fmt.Errorf("rank %d does not know that rank %d began", r, digit)
					}
				}
			}
		}
	}
	return nil
}

// No broken program is accepted. Every algorithm is written out for 3 to 6
// ranks and broken in hundreds of places: steps dropped, doubled, swapped,
// moved, sent elsewhere, turned to other chunks, counts, buffers and operations.
// What is still accepted must be right whatever the order of steps: those are
// the swaps and moves of steps that do not depend on one another, scratch moved
// to chunks nobody uses, and slots, copies and waits that something else makes
// unnecessary.
func TestNoBrokenProgramIsAccepted(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	tried, equivalent := 0, 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			count := 0
			for n := 3; n <= 6; n++ {
				s := algo.Spec{Op: op, Ranks: n, Channels: 1 + n%2, Pieces: 2, Local: 3 * (n % 2), Aggregate: 1 + n%2}
				if s.Root = 0; op.Rooted() {
					s.Root = n - 1
				}
				if a.Fits != nil && a.Fits(s) != nil {
					s.Local = 0
					if a.Fits(s) != nil {
						continue
					}
				}
				p, err := a.Program(s)
				if err != nil {
					t.Fatal(err)
				}
				e := writeOut(t, p)
				if _, err := verify.Program(e.program()); err != nil {
					t.Fatalf("%s %s written out: %v", a.Name, op, err)
				}
				for count < 100*(n-2) {
					m, how := e.mutate(rng)
					if m == nil {
						continue
					}
					count++
					q := m.program()
					if _, err := verify.Program(q); err != nil {
						continue
					}
					if err := right(q, rng); err != nil {
						t.Fatalf("%s %s, %d ranks, %s: accepted, but %v\n%s", a.Name, op, n, how, err, q)
					}
					equivalent++
				}
			}
			tried += count
		}
	}
	t.Logf("%d broken programs of %d algorithms: %d rejected, %d accepted, all of which are right in every order tried", tried, len(algo.All()), tried-equivalent, equivalent)
	if tried < 10000 || equivalent > tried/5 {
		t.Errorf("%d tried, %d accepted", tried, equivalent)
	}
}

// The same with the texts themselves, in which one change breaks every rank: a
// constant off by one, a statement dropped, doubled or swapped.
func TestNoBrokenTextIsAccepted(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	tried, equivalent := 0, 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			for n := 3; n <= 6; n++ {
				for range 15 {
					s := algo.Spec{Op: op, Ranks: n, Channels: 1 + n%2, Root: n / 2, Local: n / (1 + n%3)}
					p, err := a.Program(s)
					if err != nil {
						s.Local = 0
						if p, err = a.Program(s); err != nil {
							break
						}
					}
					whole := p.String()
					for p.String() == whole {
						breakText(p.Groups[rng.IntN(len(p.Groups))].Body, rng)
					}
					tried++
					if _, err := verify.Program(p); err != nil {
						continue
					}
					if err := right(p, rng); err != nil {
						t.Fatalf("accepted, but %v\n%s\nmade of\n%s", err, p, whole)
					}
					equivalent++
				}
			}
		}
	}
	t.Logf("%d broken texts: %d rejected, %d accepted, all of which are right in every order tried", tried, tried-equivalent, equivalent)
}

// Proof by rotation and proof by unrolling agree on broken texts, too: constants
// in them changed by one, steps dropped, doubled or swapped for all ranks alike.
func TestRotationRejectsWhatUnrollingRejects(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 4))
	tried, accepted := 0, 0
	for _, c := range []struct {
		name string
		op   sched.Collective
	}{{"ring", sched.AllReduce}, {"ring", sched.ReduceScatter}, {"ring", sched.AllGather}, {"ring", sched.SendRecv}, {"bidirectional-ring", sched.AllGather},
		{"pat", sched.AllGather}, {"bruck", sched.AllGather}, {"dissemination", sched.Barrier}, {"pairwise", sched.AllToAll}} {
		a, err := algo.Find(c.name)
		if err != nil {
			t.Fatal(err)
		}
		for range 25 {
			p, err := a.Program(algo.Spec{Op: c.op, Ranks: 65})
			if err != nil {
				t.Fatal(err)
			}
			for whole := p.String(); p.String() == whole; {
				breakText(p.Groups[0].Body, rng)
			}
			fast, errFast := verify.Program(p)
			_, errSlow := verify.Unrolled(p)
			if (errFast == nil) != (errSlow == nil) {
				t.Fatalf("rotation says %v, unrolling says %v\n%s", errFast, errSlow, p)
			}
			if fast != nil && fast.Method == "rotation" {
				accepted++
			}
			tried++
		}
	}
	t.Logf("%d broken texts, %d of them accepted by rotation and by unrolling", tried, accepted)
}

// breakText changes one thing in a body.
func breakText(body []sched.Stmt, rng *rand.Rand) {
	if len(body) == 0 {
		return
	}
	i := rng.IntN(len(body))
	switch s := body[i]; {
	case s.Loop != nil && rng.IntN(4) > 0:
		breakText(s.Loop.Body, rng)
	case s.Loop != nil:
		s.Loop.Count = nudge(s.Loop.Count, rng)
	case s.If != nil && rng.IntN(4) == 0:
		s.If.Cond = nudge(s.If.Cond, rng)
	case s.If != nil && rng.IntN(2) == 0:
		breakText(s.If.Else, rng)
	case s.If != nil:
		breakText(s.If.Then, rng)
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
	default:
		if rng.IntN(2) == 0 {
			out.L = nudge(e.L, rng)
		} else {
			out.R = nudge(e.R, rng)
		}
	}
	return &out
}
