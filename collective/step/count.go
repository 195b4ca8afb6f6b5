package step

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// Count gives how many steps, choices and rounds of loops the given ranks of a program
// take together, and stops counting beyond most. Loops whose rounds are alike are not
// gone through, so this is quick whatever their number. Where there are more than most,
// why names the longest loop.
func (k *Code) Count(ranks []sched.Rank, most int64) (n int64, why string) {
	t := &counter{most: most}
	for i, r := range ranks {
		c := 0
		before, uses := t.n, false
		for g := range k.prog.Groups {
			group := &k.prog.Groups[g]
			uses = uses || depends(group.Body, sched.RankSlot) || len(k.at) > 0
			k.countGroup(t, group, r, c)
			c += group.Count
			if t.n > most {
				return t.n, t.why()
			}
		}
		if i == 0 && !uses { // all ranks do the same
			t.add(t.n-before, int64(len(ranks)-1))
			break
		}
	}
	return t.n, t.why()
}

// countGroup counts what a rank does in a group of channels, the first of which is c. Where nothing tells the channels
// apart, one stands for all.
func (k *Code) countGroup(t *counter, group *sched.Group, r sched.Rank, c int) {
	alike := !depends(group.Body, sched.ChannelSlot) && len(k.at) == 0
	for j := range group.Count {
		env := k.prog.Env(k.pos(c+j, r), c+j)
		before := t.n
		t.body(group.Body, &env, 1)
		if alike {
			t.add(t.n-before, int64(group.Count-1))
			return
		}
	}
}

type counter struct {
	n, most int64
	loop    *sched.Loop // the one with the most rounds
	rounds  int64
}

func (t *counter) why() string {
	switch {
	case t.n <= t.most:
		return ""
	case t.loop == nil:
		return "its steps"
	case t.loop.Line > 0:
		return fmt.Sprintf("line %d: %s, %d rounds", t.loop.Line, t.loop, t.rounds)
	}
	return fmt.Sprintf("%s, %d rounds", t.loop, t.rounds)
}

// add counts something that is done a number of times.
func (t *counter) add(each, times int64) {
	switch {
	case each <= 0 || times <= 0 || t.n > t.most:
	case each > (t.most-t.n)/times:
		t.n = t.most + 1
	default:
		t.n += each * times
	}
}

// repeat counts the rounds of a loop, as one where they are alike.
func (t *counter) repeat(l *sched.Loop, env *sched.Env, times int64) {
	rounds := l.Count.Eval(env)
	if rounds > t.rounds {
		t.loop, t.rounds = l, rounds
	}
	t.add(times, rounds)
	if rounds <= 0 || t.n > t.most {
		return
	}
	if !depends(l.Body, l.Slot()) {
		env[l.Slot()] = 0
		t.body(l.Body, env, times*rounds)
		return
	}
	for v := int64(0); v < rounds && t.n <= t.most; v++ {
		env[l.Slot()] = v
		t.body(l.Body, env, times)
	}
}

// body counts what a body does, times times.
func (t *counter) body(body []sched.Stmt, env *sched.Env, times int64) {
	for _, s := range body {
		if t.n > t.most {
			return
		}
		t.add(1, times)
		switch {
		case s.Loop != nil:
			t.repeat(s.Loop, env, times)
		case s.If != nil && s.If.Cond.Eval(env) != 0:
			t.body(s.If.Then, env, times)
		case s.If != nil:
			t.body(s.If.Else, env, times)
		}
	}
}

// depends reports whether what a body does, and how often, depends on a slot.
func depends(body []sched.Stmt, slot int) bool {
	for _, s := range body {
		if s.Loop != nil && (s.Loop.Count.Uses(slot) || depends(s.Loop.Body, slot)) ||
			s.If != nil && (s.If.Cond.Uses(slot) || depends(s.If.Then, slot) || depends(s.If.Else, slot)) {
			return true
		}
	}
	return false
}
