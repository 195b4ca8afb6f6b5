package algo

import (
	"fmt"
	"math/bits"

	"github.com/weft-fabric/weft/sched"
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
		Name: "rank-order", Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.Reduce},
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
	tmp := func(level int) string { return fmt.Sprintf("tmp[%s]", at2(level, levels, s.Channels)) }
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

// at2 is the chunk of a level in scratch, where every channel has all levels.
func at2(level, levels, channels int) string {
	if channels == 1 {
		return itoa(level)
	}
	return fmt.Sprintf("c*%d+%d", levels, level)
}

// inTree sums in dst what every rank sends to this one, and mine: dst may be the same memory.
func (t *text) inTree(n int, mine, dst string, tmp func(level int) string) {
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
	for size := 2; size < n; size *= 2 {
		base := fmt.Sprintf("(r/%d^1)*%d", size, size)
		several := func() {
			t.subtree(n, base, 0, size, 0, tmp)
			t.line("reduce %s -> %s", tmp(0), dst)
		}
		t.ifThere(n%(2*size) != 0 && n%(2*size) <= size, base+" < n", func() {
			if n%size != 1 {
				several()
				return
			}
			t.block(func() { t.line("recv-reduce %s -> %s from %s", dst, dst, base) }, "if %s == n-1:", base)
			t.block(several, "else:")
		})
	}
}

// ifThere writes a body, under a condition if it does not always hold.
func (t *text) ifThere(may bool, cond string, body func()) {
	if may {
		t.block(body, "if %s:", cond)
	} else {
		body()
	}
}

// subtree sums what size ranks from base+at on send, those of them that exist, in scratch from a level on.
func (t *text) subtree(n int, base string, at, size, level int, tmp func(level int) string) {
	if size == 1 {
		t.line("recv -> %s from %s+%d", tmp(level), base, at)
		return
	}
	half := size / 2
	t.subtree(n, base, at, half, level, tmp)
	t.ifThere(n%size != 0 && n%size <= half, fmt.Sprintf("%s+%d < n", base, at+half), func() {
		if half == 1 {
			t.line("recv-reduce %s -> %s from %s+%d", tmp(level), tmp(level), base, at+1)
			return
		}
		t.subtree(n, base, at+half, half, level+1, tmp)
		t.line("reduce %s -> %s", tmp(level+1), tmp(level))
	})
}

// 0 ◄──► 1      Everybody sends all it has to everybody, and everybody sums all
// ▲ ╲  ╱ ▲      of it as rank-order does, (x0 + x1) + (x2 + x3): one step,
// │  ╲╱  │      and the same expression on every rank.
// │  ╱╲  │
// ▼ ╱  ╲ ▼      What is sent is a copy, so that a rank may write its result
// 3 ◄──► 2      where its input was while others still read.
func init() {
	register(&Algorithm{
		Name: "one-shot", Ops: []sched.Collective{sched.AllReduce, sched.Barrier},
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
			tmp := func(level int) string { return fmt.Sprintf("tmp[%d+%s]", s.Channels, at2(level, levels, s.Channels)) }
			t.block(func() {
				t.line("copy in[c] -> tmp[c]")
				t.block(func() { t.line("send tmp[c] to (r+k+1)%%n") }, "repeat k < n-1:")
				t.inTree(s.Ranks, "in[c]", "out[c]", tmp)
			}, "channels %d:", s.Channels)
			return t.String(), nil
		},
	})
}
