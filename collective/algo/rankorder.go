package algo

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// rank 0  [a0 b0 c0 d0]      part r of everybody goes to rank r,
// rank 1  [a1 b1 c1 d1]
// rank 2  [a2 b2 c2 d2]      which sums it as a tree over the ranks' numbers:
// rank 3  [a3 b3 c3 d3]
//
//	rank 0: (a0 + a1) + (a2 + a3)
//	rank 1: (b0 + b1) + (b2 + b3)       and sends the sum to everybody
//	...
//
// This is the canonical order of a sum: ranks i 2^k to (i+1) 2^k - 1, as far as they exist, are
// summed for themselves, whatever k and i. The sum of all ranks is that of the first 2^k, the largest
// power of two below their number, and of the rest, and so on. So hosts of 2^k ranks, one after
// another, have sums of their own in it; and recursive-doubling and rabenseifner of
// powers of two sum in it (InTree).
//
// As direct, but the sum of an element is the same expression whichever rank
// computes it: where a buffer is cut, how many channels share it and which rank
// owns the part no longer show in the bits. one-shot computes the same
// expression. A rank begins with its own part, which may be where the result goes,
// and adds the sums of the ranks beside it, twice as many each time, which it computes in scratch.
func init() {
	register(&Algorithm{
		Name: "rank-order", Traits: Traits{Pairs: true}, Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.Reduce},
		Summary:   "results whose bits depend on the ranks' numbers alone; memory that everybody sees",
		Steps:     "2 for all-reduce; 1 for reduce-scatter, reduce",
		Sent:      "2S(n-1)/n; S(n-1)/n for reduce-scatter; S for reduce",
		Reference: "plain exchange; pairwise summation",
		Build:     func(s Spec) (string, error) { return rankOrder(s), nil },
	})
}

func rankOrder(s Spec) string {
	var t text
	at := func(block string) string { return share(block, s.Channels) }
	next, prev := "(r+k+1)%n", "(r-k-1)%n"
	each := func(line string, args ...any) {
		t.block(func() { t.line(line, args...) }, "repeat k < n-1:")
	}
	if s.Op == sched.Reduce {
		t.line("root %d", s.Root)
		t.line("chunks %d", s.Channels)
	} else {
		t.line("chunks %s", times("n", s.Channels))
	}
	levels := treeLevels(s.Ranks)
	t.line("scratch %d", s.Channels*levels)
	t.line("slots %d", orDefault(s.Slots, 1))
	tmp := func(level string) string { return fmt.Sprintf("tmp[%s]", atLevel(level, levels, s.Channels)) }
	t.block(func() {
		switch s.Op {
		case sched.AllReduce:
			each("send in[%s] to %s", at(next), next)
			t.inTree(s.Ranks, "in["+at("r")+"]", "out["+at("r")+"]", tmp)
			each("send out[%s] to %s", at("r"), next)
			each("recv -> out[%s] from %s", at(prev), prev)
		case sched.ReduceScatter:
			each("send in[%s] to %s", at(next), next)
			t.inTree(s.Ranks, "in["+at("r")+"]", "out[c]", tmp)
		case sched.Reduce:
			t.block(func() { t.inTree(s.Ranks, "in[c]", "out[c]", tmp) }, "if r == %d:", s.Root)
			t.block(func() { t.line("send in[c] to %d", s.Root) }, "else:")
		}
	}, "channels %d:", s.Channels)
	return t.String()
}

// treeLevels is how many partial sums inTree has at a time.
func treeLevels(n int) int { return max(bits.Len(uint(n-1))-1, 0) }

// atLevel is the chunk of a level in scratch, where every channel has all levels.
func atLevel(level string, levels, channels int) string {
	if channels == 1 {
		return level
	}
	return fmt.Sprintf("c*%d+%s", levels, level)
}

// inTree sums in dst what every rank sends to this one, and mine: dst may be the same memory.
func (t *text) inTree(n int, mine, dst string, tmp func(level string) string) {
	if n == 1 {
		t.line("copy %s -> %s", mine, dst)
		return
	}
	first := func() { t.line("recv-reduce %s -> %s from r^1", mine, dst) }
	if n%2 == 0 {
		first()
	} else {
		t.block(first, "if (r^1) < n:")
		t.block(func() { t.line("copy %s -> %s", mine, dst) }, "else:")
	}
	levels := treeLevels(n)
	if levels == 0 {
		return
	}
	// A rank adds the sum of the next 2<<s ranks beside those that it has, which come in pairs. Partial sums lie in a stack: before
	// pair k as many as k has bits.
	const base = "(r/(2<<s)^1)*(2<<s)"
	even, power := n%2 == 0, n&(n-1) == 0
	pairs := "1<<s"
	if !power {
		pairs = fmt.Sprintf("1<<s min (n-%s+1)/2", base)
	}
	height := func(k string) string {
		var terms []string
		for i := range levels {
			terms = append(terms, fmt.Sprintf("%s/%d%%2", k, 1<<i))
		}
		return strings.Join(terms, "+")
	}
	merge := func(top string) { t.line("reduce %s -> %s", tmp(top+"-j"), tmp(top+"-j-1")) }
	several := func() {
		t.block(func() {
			at := tmp(height("k"))
			t.line("recv -> %s from %s+2*k", at, base)
			t.ifThere(!even, base+"+2*k+1 < n", func() { t.line("recv-reduce %s -> %s from %s+2*k+1", at, at, base) })
			t.block(func() {
				t.block(func() { merge(height("k")) }, "if (k+1)%%(2<<j) == 0:")
			}, "repeat j < s:")
		}, "repeat k < %s:", pairs)
		if !power {
			all := height("(" + pairs + ")")
			t.block(func() { merge(all + "-1") }, "repeat j < %s-1:", all)
		}
		t.line("reduce %s -> %s", tmp("0"), dst)
	}
	t.block(func() {
		t.ifThere(!power, base+" < n", func() {
			if even {
				several()
				return
			}
			t.block(func() { t.line("recv-reduce %s -> %s from %s", dst, dst, base) }, "if %s == n-1:", base)
			t.block(several, "else:")
		})
	}, "repeat s < %d:", levels)
}

// ifThere writes a body, under a condition if it does not always hold.
func (t *text) ifThere(may bool, cond string, body func()) {
	if may {
		t.block(body, "if %s:", cond)
	} else {
		body()
	}
}

// 0 ◄──► 1      Everybody sends all it has to everybody, and everybody sums all
// ▲ ╲  ╱ ▲      of it as rank-order does, (x0 + x1) + (x2 + x3): one step,
// │  ╲╱  │      and the same expression on every rank.
// │  ╱╲  │
// ▼ ╱  ╲ ▼      What is sent is a copy, so that a rank may write its result
// 3 ◄──► 2      where its input was while others still read.
func init() {
	register(&Algorithm{
		Name: "one-shot", Traits: Traits{Pairs: true}, Ops: []sched.Collective{sched.AllReduce, sched.Barrier},
		Summary:   "smallest messages where everybody reaches everybody: one step",
		Steps:     "1",
		Sent:      "S(n-1)",
		Reference: "plain exchange; TensorRT-LLM's one-shot all-reduce",
		Build: func(s Spec) (string, error) {
			var t text
			t.line("chunks %d", s.Channels)
			levels := treeLevels(s.Ranks)
			t.line("scratch %d", s.Channels*(1+levels))
			t.line("slots %d", orDefault(s.Slots, 1))
			tmp := func(level string) string {
				return fmt.Sprintf("tmp[%d+%s]", s.Channels, atLevel(level, levels, s.Channels))
			}
			t.block(func() {
				t.line("copy in[c] -> tmp[c]")
				t.block(func() { t.line("send tmp[c] to (r+k+1)%%n") }, "repeat k < n-1:")
				t.inTree(s.Ranks, "in[c]", "out[c]", tmp)
			}, "channels %d:", s.Channels)
			return t.String(), nil
		},
	})
}
