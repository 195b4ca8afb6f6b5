package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// A program rotates if renaming every rank r to r+1 around the ring, and every
// block likewise, leaves it as it is. Then all ranks do the same in step, and
// one of them tells it all. If its text asks for r % 8, as where hosts of eight ranks
// are alike, renaming by 8 leaves it as it is, and eight of them tell it all.

// shape says how an expression depends on the rank.
type shape uint8

const (
	wild   shape = iota // in a way that is not understood
	fixed               // not at all
	sloped              // rank + fixed, not yet brought back into 0..n-1
	turned              // (rank + fixed) % n, times scale, plus fixed
)

type form struct {
	shape shape
	scale int64
}

// rotates decides from the text alone by how many ranks the program rotates; 0 if it does not.
func rotates(p *sched.Program) int {
	if p.Switches > 0 || len(p.Orders) > 0 || p.Op.Rooted() || p.Ranks < 2 {
		return 0
	}
	chunks := int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out)))
	if chunks%int64(p.Ranks) != 0 {
		return 0
	}
	t := &turner{p: p, per: chunks / int64(p.Ranks), period: 1}
	for _, g := range p.Groups {
		if !t.body(g.Body) {
			return 0
		}
	}
	return int(t.period)
}

type turner struct {
	p      *sched.Program
	per    int64
	period int64
}

// repeats notes that something is the same again after by ranks.
func (t *turner) repeats(by int64) bool {
	n := int64(t.p.Ranks)
	if by < 1 || n%by != 0 {
		return false
	}
	a, b := t.period, by
	for b != 0 {
		a, b = b, a%b
	}
	t.period *= by / a
	return true // the least common multiple of divisors of n divides it as well
}

// body says whether statements rotate: conditions and counts are the same at every rank, and each step turns with the
// rank.
func (t *turner) body(body []sched.Stmt) bool {
	for _, s := range body {
		ok := true
		switch {
		case s.Step != nil:
			ok = t.step(s.Step)
		case s.Loop != nil:
			ok = t.form(s.Loop.Count).shape == fixed && t.body(s.Loop.Body)
		case s.If != nil:
			ok = t.form(s.If.Cond).shape == fixed && t.body(s.If.Then) && t.body(s.If.Else)
		}
		if !ok {
			return false
		}
	}
	return true
}

// step says whether a step at rank r+1 is the step at rank r, turned by one: peers move with the rank, and chunks move
// with it or stand still, as the collective demands.
func (t *turner) step(s *sched.Step) bool {
	peer := func(e *sched.Expr) bool { f := t.form(e); return f.shape == turned && f.scale == 1 }
	ref := func(r *sched.Ref) bool {
		if r.Count != nil && t.form(r.Count).shape != fixed {
			return false
		}
		f := t.form(r.Index)
		if r.Buf == sched.Tmp || int64(t.p.NumChunks(r.Buf)) < t.per*int64(t.p.Ranks) {
			return f.shape == fixed
		}
		if t.moves() {
			return f.shape == turned && f.scale == t.per
		}
		return f.shape == fixed
	}
	return (!s.Op.Receives() || peer(s.From)) && (!s.Op.Sends() || peer(s.To)) &&
		(!s.Op.Reads() || ref(&s.Src)) && (!s.Op.Stores() || ref(&s.Dst)) &&
		(s.Op != sched.Wait || t.form(s.Channel).shape == fixed && t.form(s.Done).shape == fixed)
}

// moves reports whether the larger buffer turns with the ranks; a barrier's and
// a send-recv's do not.
func (t *turner) moves() bool { return t.p.Op != sched.Barrier && t.p.Op != sched.SendRecv }

// form classifies an expression.
func (t *turner) form(e *sched.Expr) form {
	switch e.Kind {
	case sched.Num:
		return form{fixed, 0}
	case sched.Var:
		if e.Name == "r" {
			return form{turned, 1}
		}
		return form{fixed, 0}
	case sched.Look:
		if t.form(e.L).shape == fixed {
			return form{fixed, 0}
		}
		return form{wild, 0}
	}
	if e.Kind == sched.Mod && e.L.Kind == sched.Var && e.L.Name == "r" && e.R.Kind == sched.Num && t.repeats(e.R.Val) {
		return form{fixed, 0}
	}
	l, r := t.form(e.L), t.form(e.R)
	if l.shape == fixed && r.shape == fixed {
		return form{fixed, 0}
	}
	switch e.Kind {
	case sched.Add:
		if l.shape == fixed {
			l, r = r, l
		}
		return t.plus(l, r)
	case sched.Sub:
		return t.plus(l, r)
	case sched.Mod:
		if (l.shape == sloped || l.shape == turned && l.scale == 1) && t.isRanks(e.R) {
			return form{turned, 1}
		}
	case sched.Mul:
		if l.shape == fixed {
			l, r, e = r, l, &sched.Expr{Kind: sched.Mul, L: e.R, R: e.L}
		}
		if v, ok := t.constant(e.R); ok && l.shape == turned && r.shape == fixed {
			return form{turned, l.scale * v}
		}
	}
	return form{wild, 0}
}

// plus adds something fixed: to a bare rank it makes a slope that must be
// brought back; to a scaled block it picks a chunk in it, which the run checks
// to stay inside.
func (t *turner) plus(l, r form) form {
	if r.shape != fixed {
		return form{wild, 0}
	}
	switch {
	case l.shape == sloped || l.shape == turned && l.scale == 1:
		return form{sloped, 1}
	case l.shape == turned:
		return l
	}
	return form{wild, 0}
}

func (t *turner) isRanks(e *sched.Expr) bool { return e.Kind == sched.Var && e.Name == "n" }

// constant evaluates an expression of numbers, lets and n.
func (t *turner) constant(e *sched.Expr) (int64, bool) {
	if !plain(e, t.p) {
		return 0, false
	}
	env := t.p.Env(0, 0)
	return e.Eval(&env), true
}

func plain(e *sched.Expr, p *sched.Program) bool {
	switch e.Kind {
	case sched.Num:
		return true
	case sched.Var:
		if e.Name == "n" {
			return true
		}
		for _, l := range p.Lets {
			if l.Name == e.Name {
				return true
			}
		}
		return false
	case sched.Look:
		return plain(e.L, p)
	}
	return plain(e.L, p) && plain(e.R, p)
}

// turn is a way of messages as every rank of a kind sees it: so far ahead around the
// ring, on a channel.
type turn struct {
	kind    int64 // the sender, less whole periods
	ahead   int64
	channel int32
}

// rotated proves a program that rotates by following its first ranks. Blocks of chunks
// must not be crossed by a step; if one is, or channels share chunks in an order that is
// not the rank's own, it falls back to unrolling.
func rotated(ctx context.Context, p *sched.Program, period int, modes bool) (*Report, error) {
	w := newRotation(ctx, p, period)
	for progress := true; progress; {
		var crossed bool
		var err error
		if progress, crossed, err = w.round(); err != nil {
			return nil, err
		}
		if crossed {
			return unrolled(ctx, p, modes)
		}
	}
	if list := w.sharing(); len(list) > 0 {
		return unrolled(ctx, p, modes)
	}
	if err := w.over(); err != nil {
		return nil, err
	}
	rep := newReport(p, "rotation")
	w.report(rep)
	rep.Canonical = w.canonical()
	rep.Actions *= w.n / w.kinds
	took := make([]int64, period)
	for pair, chunks := range rep.Links { // what one sends, one of the receiver's kind takes
		took[int64(pair.To)%w.kinds] += chunks
	}
	rep.MaxRecv = slices.Max(took)
	rep.Sent, rep.Links = nil, nil
	return rep, nil
}

// rotation is a world of one rank of each kind, which receives what those of its kind send, renamed.
type rotation struct {
	*world
	n, kinds int64
	per      int64 // chunks of a rank
	labels   int64 // how far input chunk numbers move when ranks move by one
	machines []*step.Machine
	held     [][]step.Action // handed out and not carried out, by channel
	queues   map[turn][]message
}

func newRotation(ctx context.Context, p *sched.Program, period int) *rotation {
	w := &rotation{world: newWorld(ctx, p, period, false), n: int64(p.Ranks), kinds: int64(period), queues: map[turn][]message{},
		machines: make([]*step.Machine, period), held: make([][]step.Action, period)}
	w.per = int64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out))) / w.n
	if p.Op == sched.AllReduce || p.Op == sched.ReduceScatter || p.Op == sched.AllToAll {
		w.labels = w.per
	}
	code := step.Compile(p)
	for r := range w.machines {
		w.machines[r], w.held[r] = code.Machine(sched.Rank(r)), make([]step.Action, p.Channels())
	}
	return w
}

// from is the way of the message that an action receives, to that of the one it sends.
func (w *rotation) from(r int64, a *step.Action) turn {
	return turn{int64(a.From) % w.kinds, (r - int64(a.From) + w.n) % w.n, a.Channel}
}

func (w *rotation) to(r int64, a *step.Action) turn {
	return turn{r, (int64(a.To) - r + w.n) % w.n, a.Channel}
}

// hold is what keeps an action from being carried out.
func (w *rotation) hold(r int64, a *step.Action) step.Hold {
	var in, out int64
	if a.Op.Receives() {
		in = int64(len(w.queues[w.from(r, a)]))
	}
	if a.Op.Sends() {
		out = int64(len(w.queues[w.to(r, a)]))
	}
	return step.Held(a.Op, in, out, int64(w.p.Slots))
}

// round lets all ranks look at their channels at once and act at once: a message sent in this round is taken in the next at the
// earliest. crossed says that an action moves chunks of several ranks, which cannot be renamed.
func (w *rotation) round() (progress, crossed bool, err error) {
	var buf []step.Action
	for r, m := range w.machines {
		buf = m.Ready(buf[:0])
		if m.Err() != nil {
			return false, false, m.Err()
		}
		for _, a := range buf {
			if w.p.Op != sched.Barrier && (crosses(w.p, a.Src, w.per) || crosses(w.p, a.Dst, w.per)) {
				return false, true, nil
			}
			w.held[r][a.Channel] = a
		}
		progress = progress || len(buf) > 0
	}
	acted, err := w.act()
	return progress || acted, false, err
}

// act carries out what nothing holds.
func (w *rotation) act() (progress bool, err error) {
	type done struct {
		way turn
		msg message
	}
	var sent []done
	took := map[turn]int{}
	for r, m := range w.machines {
		for c := range w.held[r] {
			a := &w.held[r][c]
			if a.Op == 0 || w.hold(int64(r), a) != step.Free {
				continue
			}
			var in message
			if a.Op.Receives() {
				way := w.from(int64(r), a)
				in = rotate(w.queues[way][took[way]], int64(a.From)-way.kind, w.n, w.labels)
				took[way]++
			}
			out, err := w.do(sched.Rank(r), a, in)
			if err != nil {
				return false, err
			}
			if a.Op.Sends() {
				sent = append(sent, done{w.to(int64(r), a), out})
			}
			m.Complete(a.Channel)
			*a = step.Action{}
			progress = true
		}
	}
	for way, k := range took {
		w.queues[way] = w.queues[way][k:]
	}
	for _, s := range sent {
		w.queues[s.way] = append(w.queues[s.way], s.msg)
	}
	return progress, nil
}

// over says what is wrong with the end: ranks that are stuck, messages that nobody took, results that are not what was promised.
func (w *rotation) over() error {
	for r, m := range w.machines {
		if !m.Done() {
			return stuckRotated(w.p, sched.Rank(r), w.held[r], func(a *step.Action) step.Hold { return w.hold(int64(r), a) })
		}
	}
	left := 0
	for _, q := range w.queues {
		left += len(q)
	}
	if left > 0 {
		return fmt.Errorf("%s: ranks send %d messages that are never taken", w.p.Name, left)
	}
	for r := range w.machines {
		if err := w.promised(sched.Rank(r)); err != nil {
			return err
		}
	}
	return nil
}

// crosses reports whether a step touches two blocks of the larger buffer at once.
func crosses(p *sched.Program, c step.Chunks, per int64) bool {
	return (c.Buf == sched.In || c.Buf == sched.Out) && int64(p.NumChunks(c.Buf)) > per && c.Index%per+c.Count > per
}

// rotate renames what a message holds by d ranks.
func rotate(m message, d, n, labels int64) message {
	out := make([]run, len(m.runs))
	total := n * labels
	for i, r := range m.runs {
		r.set = r.set.shift(int32(d), int32(n))
		if labels > 0 {
			at := ((r.lo+r.label+d*labels)%total + total) % total
			r.label = at - r.lo
		}
		out[i] = r
	}
	return message{out, m.depth}
}

func stuckRotated(p *sched.Program, r sched.Rank, held []step.Action, why func(*step.Action) step.Hold) error {
	s := &step.Stuck{Program: p.Name}
	for _, a := range held {
		if a.Op != 0 {
			b := step.Blocked{Rank: r, Action: a, For: a.From}
			if why(&a) == step.NoRoom {
				b.For, b.Room = a.To, true
			}
			s.Blocked = append(s.Blocked, b)
		}
	}
	if len(s.Blocked) == 0 {
		s.Blocked = []step.Blocked{{Rank: r, Wait: true}}
	}
	return s
}
