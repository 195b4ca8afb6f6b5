package step_test

import (
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"pgregory.net/rapid"
)

// alone runs one rank as if everything it waits for were there, and lists what it does.
func alone(m *step.Machine, limit int) []step.Action {
	var all, buf []step.Action
	for len(all) < limit {
		buf = m.Ready(buf[:0])
		if len(buf) == 0 {
			return all
		}
		for _, a := range buf {
			all = append(all, a)
			m.Complete(a.Channel)
		}
	}
	return all
}

// timing is what of an action matters to a world of time.
type timing struct {
	op       sched.Op
	from, to sched.Rank
	count    int64
	channel  int32
}

func timings(list []step.Action) []timing {
	var out []timing
	for _, a := range list {
		out = append(out, timing{a.Op, a.From, a.To, a.Count, a.Channel})
	}
	return out
}

// byChannel sorts actions by channel: only there does their order mean anything.
func byChannel(list []timing) []timing {
	slices.SortStableFunc(list, func(a, b timing) int { return int(a.channel - b.channel) })
	return list
}

func drawProgram(t *rapid.T) *sched.Program {
	a := rapid.SampledFrom(algo.All()).Draw(t, "algorithm")
	op := rapid.SampledFrom(a.Ops).Draw(t, "op")
	n := rapid.IntRange(2, 24).Draw(t, "ranks")
	spec := algo.Spec{Op: op, Ranks: n, Channels: 1, Pieces: rapid.SampledFrom([]int{0, 1, 3, 16}).Draw(t, "pieces")}
	if n%4 == 0 {
		spec.Local = 4
	}
	p, err := a.Program(spec)
	if err != nil {
		t.Skip(err)
	}
	return p
}

// A machine that skips the rounds it says it can ends where one that does them
// all ends, and does the same afterwards.
func TestSkippingIsRepeating(t *testing.T) {
	skipped := 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		code := step.Compile(p)
		r := sched.Rank(rapid.IntRange(0, p.Ranks+p.Switches-1).Draw(t, "rank"))
		whole := alone(code.Machine(r), 1<<20)
		m := code.Machine(r)
		before := alone(m, rapid.IntRange(0, len(whole)).Draw(t, "before"))
		marks := m.Mark(nil)
		span := alone(m, rapid.IntRange(1, 4).Draw(t, "span"))
		room := m.Room(marks)
		if len(span) == 0 || room < 1 || room > 1<<40 {
			return
		}
		skipped++
		times := rapid.Int64Range(1, room).Draw(t, "times")
		m.Skip(marks, times)
		rest := alone(m, 1<<20)
		got := append(timings(before), timings(span)...)
		for range times {
			got = append(got, timings(span)...)
		}
		got = byChannel(append(got, timings(rest)...))
		if want := byChannel(timings(whole)); len(got) != len(want) {
			t.Fatalf("%s: %d actions with %d spans of %d skipped, %d without", p.Name, len(got), times, len(span), len(want))
		} else {
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("%s: action %d is %v with rounds skipped, %v without", p.Name, i, got[i], want[i])
				}
			}
		}
	})
	if skipped == 0 && !testing.Short() {
		t.Error("nothing was ever skipped")
	}
}

// What a machine says will come again does come again, and Repeat leads past it.
func TestAgainComesAgain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		if p.Channels() > 1 {
			t.Skip("one channel is enough")
		}
		code := step.Compile(p)
		r := sched.Rank(rapid.IntRange(0, p.Ranks+p.Switches-1).Draw(t, "rank"))
		want := timings(alone(code.Machine(r), 1<<20))
		m := code.Machine(r)
		var got []timing
		var buf []step.Action
		for {
			if buf = m.Ready(buf[:0]); len(buf) == 0 {
				break
			}
			again := rapid.Int64Range(0, max(m.Again(0), 0)).Draw(t, "again")
			for range again + 1 {
				got = append(got, timings(buf)...)
			}
			m.Repeat(0, again)
			m.Complete(0)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %d actions, want %d", p.Name, len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%s: action %d is %v, want %v", p.Name, i, got[i], want[i])
			}
		}
	})
}

// A program that turns has ranks that do the same with peers moved along.
func TestTurningRanksDoAlike(t *testing.T) {
	turns := 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		code := step.Compile(p)
		n := p.Ranks
		by := rapid.IntRange(1, n).Filter(func(d int) bool { return n%d == 0 && d < n }).Draw(t, "by")
		if !code.Turns(by) {
			return
		}
		turns++
		for r := range n {
			a := byChannel(timings(alone(code.Machine(sched.Rank(r)), 1<<20)))
			b := byChannel(timings(alone(code.Machine(sched.Rank((r+by)%n)), 1<<20)))
			if len(a) != len(b) {
				t.Fatalf("%s: rank %d does %d actions, its like %d", p.Name, r, len(a), len(b))
			}
			move := func(p sched.Rank) sched.Rank {
				if p < 0 {
					return p
				}
				return (p + sched.Rank(by)) % sched.Rank(n)
			}
			for i := range a {
				if want := (timing{a[i].op, move(a[i].from), move(a[i].to), a[i].count, a[i].channel}); want != b[i] {
					t.Fatalf("%s turned by %d: rank %d does %v, its like %v", p.Name, by, r, a[i], b[i])
				}
			}
		}
	})
	if turns == 0 && !testing.Short() {
		t.Error("nothing ever turned")
	}
}

// Every way that a message takes was told of before.
func TestSendsTellsOfEveryWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		code := step.Compile(p)
		told := map[step.Conn]bool{}
		if !code.Sends(p.Ranks+p.Switches, func(from, to sched.Rank, channel int32) bool {
			told[step.Conn{From: from, To: to, Channel: channel}] = true
			return true
		}) {
			return
		}
		for r := range p.Ranks + p.Switches {
			for _, a := range alone(code.Machine(sched.Rank(r)), 1<<20) {
				if c := (step.Conn{From: sched.Rank(r), To: a.To, Channel: a.Channel}); a.Op.Sends() && !told[c] {
					t.Fatalf("%s: rank %d sends to %d on channel %d, which was not told", p.Name, r, a.To, a.Channel)
				}
			}
		}
	})
}

// Sends tells only of ways that messages take: what stands after else is told of
// for those ranks alone that go there. Built-in algorithms have no choice that
// depends on a loop which the peer does not use.
func TestSendsTellsOfNoOtherWay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawProgram(t)
		code := step.Compile(p)
		taken := map[step.Conn]bool{}
		for r := range p.Ranks + p.Switches {
			for _, a := range alone(code.Machine(sched.Rank(r)), 1<<20) {
				if a.Op.Sends() {
					taken[step.Conn{From: sched.Rank(r), To: a.To, Channel: a.Channel}] = true
				}
			}
		}
		code.Sends(p.Ranks+p.Switches, func(from, to sched.Rank, channel int32) bool {
			if !taken[step.Conn{From: from, To: to, Channel: channel}] {
				t.Errorf("%s: told that rank %d sends to %d on channel %d, which it never does", p.Name, from, to, channel)
			}
			return true
		})
	})
}

// A program that swaps has ranks that do the same with peers at the same exclusive or.
func TestSwappingRanksDoAlike(t *testing.T) {
	for _, c := range []struct {
		name, outer string
		by          int
	}{{"halving-doubling", "", 1}, {"rabenseifner", "", 1}, {"recursive-doubling", "", 1}, {"hierarchical", "rabenseifner", 4}} {
		a, err := algo.Find(c.name)
		if err != nil {
			t.Fatal(err)
		}
		op := sched.AllReduce
		if !a.Serves(op) {
			op = sched.AllGather
		}
		p, err := a.Program(algo.Spec{Op: op, Ranks: 32, Local: 8, Outer: c.outer, Channels: 2})
		if err != nil {
			t.Fatal(err)
		}
		code, least := step.Compile(p), 0
		for d := 16; d >= 1; d /= 2 {
			if code.Swaps(d) {
				least = d
			}
		}
		if least != c.by {
			t.Errorf("%s/%s swaps by %d, want %d", c.name, c.outer, least, c.by)
			continue
		}
		for r := range 32 {
			me, like := byChannel(timings(alone(code.Machine(sched.Rank(r)), 1<<20))),
				byChannel(timings(alone(code.Machine(sched.Rank(r%least)), 1<<20)))
			if len(me) != len(like) {
				t.Fatalf("%s: rank %d does %d actions, rank %d does %d", c.name, r, len(me), r%least, len(like))
			}
			swap := func(p sched.Rank) sched.Rank {
				if p < 0 {
					return p
				}
				return p ^ sched.Rank(r-r%least)
			}
			for i, x := range like {
				if want := (timing{x.op, swap(x.from), swap(x.to), x.count, x.channel}); want != me[i] {
					t.Fatalf("%s: rank %d does %v, rank %d does %v", c.name, r, me[i], r%least, x)
				}
			}
		}
	}
}
