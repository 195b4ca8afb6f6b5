package step

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// Turns and Sends look at all rounds of loops to learn what an expression does in
// all of them: at most maxRounds, and more where ranks are few enough for rounds
// times ranks to stay within maxLooks.
const (
	maxRounds = 64
	maxLooks  = 1 << 22
)

// Turns reports whether the program stays what it is when every rank r is
// renamed to (r+by) mod n: the same operations of the same size in the same
// order, with peers renamed likewise. Which chunks they move is not asked. A
// false answer may also mean that this is too hard to tell.
func (k *Code) Turns(by int) bool {
	n := k.prog.Ranks
	if k.prog.Switches > 0 || n%by != 0 {
		return false
	}
	return k.turns(by, nil) && k.turns(by, make([]int64, by))
}

// turns is Turns at a few ranks; at all with room for the values of the first ones.
func (k *Code) turns(by int, vals []int64) bool {
	n := k.prog.Ranks
	return k.each(func(c int, e *sched.Expr, peer bool, loops []*sched.Loop) bool {
		if !e.Uses(sched.RankSlot) {
			return !peer
		}
		if c >= len(k.at) && (peer && e.Turning(by) || !peer && e.Repeats(by)) {
			return true
		}
		return k.rounds(e, c, n, loops, func(env *sched.Env) bool {
			return repeats(vals, by, n, func(r int) int64 {
				env[sched.RankSlot] = k.pos(c, sched.Rank(r))
				v := e.Eval(env)
				if peer { // how far away it is
					if v = (int64(k.prog.At(c, v)) - int64(r)) % int64(n); v < 0 {
						v += int64(n)
					}
				}
				return v
			})
		})
	})
}

// repeats reports whether the values of n ranks are the same again after a number of them: of a few ranks, or of all where vals has
// room for the first ones. A program that does not repeat itself mostly differs at its root.
func repeats(vals []int64, by, n int, value func(r int) int64) bool {
	if vals == nil {
		for i := range 32 {
			r := i // the first ones, then some of all
			if i >= 4 {
				r = i * 2654435761 % n
			}
			if r+by < n && value(r) != value(r+by) {
				return false
			}
		}
		return true
	}
	for r := range n {
		v := value(r)
		if r < by {
			vals[r] = v
		} else if vals[r%by] != v {
			return false
		}
	}
	return true
}

// Swaps reports whether the program stays what it is when every rank r is renamed to
// r xor m, for all multiples m of by: halving and doubling do so, which exchange with
// ranks at distances of 1, 2, 4 and so on. Ranks must be by times a power of two, and by
// a power of two. What stays the same is what Turns asks for.
func (k *Code) Swaps(by int) bool {
	n := k.prog.Ranks
	if k.prog.Switches > 0 || n%by != 0 || n&(n-1) != 0 { // what divides a power of two is one
		return false
	}
	return k.swaps(by, nil) && k.swaps(by, make([]int64, by))
}

// swaps is to Swaps what turns is to Turns.
func (k *Code) swaps(by int, vals []int64) bool {
	n := k.prog.Ranks
	return k.each(func(c int, e *sched.Expr, peer bool, loops []*sched.Loop) bool {
		if !e.Uses(sched.RankSlot) {
			return !peer
		}
		if k.reads(c, e, peer, by) {
			return true
		}
		return k.rounds(e, c, n, loops, func(env *sched.Env) bool {
			return repeats(vals, by, n, func(r int) int64 {
				env[sched.RankSlot] = k.pos(c, sched.Rank(r))
				v := e.Eval(env)
				if peer {
					v = int64(k.prog.At(c, v)) ^ int64(r)
				}
				return v
			})
		})
	})
}

// reads reports whether the text of an expression shows that it keeps to an exclusive or of ranks, without looking at values.
func (k *Code) reads(c int, e *sched.Expr, peer bool, by int) bool {
	if c < len(k.at) {
		return false
	}
	if peer {
		return e.Swapping(by)
	}
	return e.Repeats(by)
}

// inner reports whether an expression uses a loop's variable.
func (k *Code) inner(e *sched.Expr, loops []*sched.Loop) bool {
	for _, l := range loops {
		if e.Uses(l.Slot()) {
			return true
		}
	}
	return false
}

// choice is a condition under which an instruction is reached; not means that
// it stands on the other side, after else.
type choice struct {
	cond *sched.Expr
	not  bool
}

func (c choice) String() string {
	if c.not {
		return "not " + c.cond.String()
	}
	return c.cond.String()
}

// all calls f for every instruction of every channel, with the loops around it
// and the conditions under which it is reached.
func (k *Code) all(f func(c int, in *instr, loops []*sched.Loop, conds []choice) bool) bool {
	c := 0
	for i, g := range k.prog.Groups {
		for range g.Count {
			var loops []*sched.Loop
			var conds []choice
			var until []int
			for j := range k.groups[i] {
				in := &k.groups[i][j]
				for len(until) > 0 && until[len(until)-1] <= j {
					last := len(until) - 1
					if over := &k.groups[i][j-1]; !conds[last].not && over.over() {
						conds[last].not, until[last] = true, over.jump // the other side begins
						break
					}
					conds, until = conds[:last], until[:last]
				}
				if in.loop != nil && in.back {
					loops = loops[:len(loops)-1]
					continue
				}
				if !f(c, in, loops, conds) {
					return false
				}
				switch {
				case in.loop != nil:
					loops = append(loops, in.loop)
				case in.cond != nil:
					conds, until = append(conds, choice{in.cond, false}), append(until, in.jump)
				}
			}
			c++
		}
	}
	return true
}

// each calls f for every expression that decides which rank does what with which
// peer, how often and how much; peers are told apart. Equal ones are asked once.
func (k *Code) each(f func(c int, e *sched.Expr, peer bool, loops []*sched.Loop) bool) bool {
	seen := map[string]bool{}
	ask := func(c int, e *sched.Expr, peer bool, loops []*sched.Loop) bool {
		if e == nil {
			return true
		}
		which := c
		if c >= len(k.at) && !e.Uses(sched.ChannelSlot) {
			which = -1 // it has the same value on all channels without an order
		}
		key := fmt.Sprint(which, peer, e)
		for _, l := range loops { // the same loop of another channel goes through the same rounds
			if e.Uses(l.Slot()) {
				if l.Count.Uses(sched.ChannelSlot) || k.inner(l.Count, loops) {
					return f(c, e, peer, loops)
				}
				key += fmt.Sprint(" ", l.Slot(), l.Count)
			}
		}
		if seen[key] {
			return true
		}
		seen[key] = true
		return f(c, e, peer, loops)
	}
	return k.all(func(c int, in *instr, loops []*sched.Loop, _ []choice) bool {
		switch {
		case in.step != nil:
			s := in.step
			return (!s.Op.Receives() || ask(c, s.From, true, loops)) && (!s.Op.Sends() || ask(c, s.To, true, loops)) &&
				ask(c, s.Src.Count, false, loops) && ask(c, s.Dst.Count, false, loops) &&
				(s.Op != sched.Wait || ask(c, s.Channel, false, loops) && ask(c, s.Done, false, loops))
		case in.loop != nil:
			return ask(c, in.loop.Count, false, loops)
		case in.cond != nil:
			return ask(c, in.cond, false, loops)
		}
		return true
	})
}

// rounds calls f once for every combination of the loop variables that an
// expression uses, and reports false if there are too many or f does.
func (k *Code) rounds(e *sched.Expr, c, ranks int, loops []*sched.Loop, f func(env *sched.Env) bool) bool {
	env := k.prog.Env(0, c)
	most := int64(max(maxRounds, maxLooks/ranks))
	var walk func(i int, total int64) bool
	walk = func(i int, total int64) bool {
		if i == len(loops) {
			return f(&env)
		}
		l := loops[i]
		if !e.Uses(l.Slot()) {
			return walk(i+1, total)
		}
		if l.Count.Uses(sched.RankSlot) || k.inner(l.Count, loops[:i]) {
			return false
		}
		count := l.Count.Eval(&env)
		if total *= max(count, 1); total > most {
			return false
		}
		for v := range count {
			env[l.Slot()] = v
			if !walk(i+1, total) {
				return false
			}
		}
		return true
	}
	return walk(0, 1)
}
