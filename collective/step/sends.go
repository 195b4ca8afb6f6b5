package step

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// Sends calls f for every way that messages of the first ranks may take, for some of
// them more than once. Of choices that depend on a loop whose variable the peer does not
// use, both sides count as taken. It reports false if there are too many to tell, or once f returns false, which
// ends it.
func (k *Code) Sends(ranks int, f func(from, to sched.Rank, channel int32) bool) bool {
	seen := map[string]bool{}
	known := &terms{code: k, ranks: ranks, values: map[string][]int64{}}
	return k.all(func(c int, in *instr, loops []*sched.Loop, conds []choice) bool {
		if in.step == nil || !in.step.Op.Sends() {
			return true
		}
		key := fmt.Sprint(c, conds, in.step.To)
		if seen[key] && !k.inner(in.step.To, loops) {
			return true
		}
		seen[key] = true
		// Loops whose variable the peer does not use are not gone through, and
		// choices that depend on them cannot be decided.
		var free []*sched.Loop
		for _, l := range loops {
			if !in.step.To.Uses(l.Slot()) {
				free = append(free, l)
			}
		}
		var ifs []func(r int, env *sched.Env) bool
		for _, x := range conds {
			if !k.inner(x.cond, free) {
				ifs = append(ifs, known.holds(c, x, loops))
			}
		}
		return k.rounds(in.step.To, c, ranks, loops, func(env *sched.Env) bool {
			return k.senders(c, ranks, env, ifs, in.step.To, f)
		})
	})
}

// senders calls f for the ways of the ranks for which all conditions hold.
func (k *Code) senders(c, ranks int, env *sched.Env, ifs []func(int, *sched.Env) bool, peer *sched.Expr,
	f func(from, to sched.Rank, channel int32) bool) bool {
	world := int64(k.prog.Ranks + k.prog.Switches)
next:
	for r := range ranks {
		env[sched.RankSlot] = k.pos(c, sched.Rank(r))
		for _, holds := range ifs {
			if !holds(r, env) {
				continue next
			}
		}
		to := int64(k.prog.At(c, peer.Eval(env)))
		if to >= 0 && to < world && to != int64(r) && !f(sched.Rank(r), sched.Rank(to), int32(c)) {
			return false
		}
	}
	return true
}

// terms are the values, by rank, of what the choices of a program compare with numbers: a tree asks each of 131,072 ranks on which of
// its levels they are, as "x%4 == 1", "x%8 == 2" and so on of one x, which is worked out once.
type terms struct {
	code   *Code
	ranks  int
	values map[string][]int64
}

// maxTerms bounds the terms whose values are kept.
const maxTerms = 8

// holds decides one side of a choice for a rank, whose environment is at hand.
func (t *terms) holds(c int, x choice, loops []*sched.Loop) func(r int, env *sched.Env) bool {
	if test := t.test(c, x.cond, loops); test != nil {
		return func(r int, _ *sched.Env) bool { return test(r) != x.not }
	}
	return func(_ int, env *sched.Env) bool { return (x.cond.Eval(env) != 0) != x.not }
}

// test is a condition over terms alone; nil if it is of another kind.
func (t *terms) test(c int, e *sched.Expr, loops []*sched.Loop) func(r int) bool {
	switch {
	case e.Kind == sched.And:
		a := t.test(c, e.L, loops)
		if a == nil {
			return nil
		}
		b := t.test(c, e.R, loops)
		if b == nil {
			return nil
		}
		return func(r int) bool { return a(r) && b(r) }
	case e.Kind != sched.Eq && e.Kind != sched.Ne || e.R.Kind != sched.Num || t.code.inner(e, loops):
		return nil
	}
	term, by := e.L, int64(0)
	if term.Kind == sched.Mod && term.R.Kind == sched.Num && term.R.Val > 0 {
		term, by = term.L, term.R.Val
	}
	values := t.of(c, term)
	if values == nil {
		return nil
	}
	want, equal := e.R.Val, e.Kind == sched.Eq
	if by == 0 {
		return func(r int) bool { return (values[r] == want) == equal }
	}
	return func(r int) bool { return ((values[r]%by+by)%by == want) == equal }
}

// of gives a term's values; nil if there are too many terms to keep.
func (t *terms) of(c int, term *sched.Expr) []int64 {
	key := fmt.Sprint(c, " ", term)
	if values, known := t.values[key]; known || len(t.values) == maxTerms {
		return values
	}
	values := make([]int64, t.ranks)
	env := t.code.prog.Env(0, c)
	for r := range values {
		env[sched.RankSlot] = t.code.pos(c, sched.Rank(r))
		values[r] = term.Eval(&env)
	}
	t.values[key] = values
	return values
}
