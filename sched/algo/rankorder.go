package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/sched"
)

// rank 0  [a0 b0 c0]      part r of everybody goes to rank r,
// rank 1  [a1 b1 c1]
// rank 2  [a2 b2 c2]      which sums it in the order of ranks, its own at its place:
//
//	rank 0: c  ...         (a0 + a1) + a2
//	rank 1:                (b0 + b1) + b2       and sends the sum to everybody
//	rank 2:                (c0 + c1) + c2
//
// As direct, but the sum of an element is the same expression whichever rank
// computes it: where a buffer is cut, how many channels share it and which rank
// owns the part no longer show in the bits. one-shot computes the same
// expression. The newer operand always stands first, so that even the payload of
// a NaN does not depend on the owner. A rank's own part may be where the result
// goes, so what comes before it is summed in scratch.
func init() {
	register(&Algorithm{
		Name: "rank-order", Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.Reduce},
		Summary:   "results whose bits depend on the ranks' numbers alone; memory that everybody sees",
		Steps:     "2 for all-reduce; 1 for reduce-scatter, reduce",
		Sent:      "2S(n-1)/n; S(n-1)/n for reduce-scatter; S for reduce",
		Reference: "plain exchange; summed as one process would",
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
	t.line("scratch %d", s.Channels)
	t.line("slots %d", orDefault(s.Slots, 1))
	t.block(func() {
		switch s.Op {
		case sched.AllReduce:
			each("send in[%s] to %s", at(next), next)
			t.inRankOrder("in["+at("r")+"]", "out["+at("r")+"]", "tmp[c]")
			each("send out[%s] to %s", at("r"), next)
			each("recv -> out[%s] from %s", at(prev), prev)
		case sched.ReduceScatter:
			each("send in[%s] to %s", at(next), next)
			t.inRankOrder("in["+at("r")+"]", "out[c]", "tmp[c]")
		case sched.Reduce:
			t.block(func() { t.inRankOrder("in[c]", "out[c]", "tmp[c]") }, "if r == %d:", s.Root)
			t.block(func() { t.line("send in[c] to %d", s.Root) }, "else:")
		}
	}, "channels %d:", s.Channels)
	return t.String()
}

// inRankOrder sums in dst what every rank sends to this one, and mine at its
// place: mine and dst may be the same memory, partial is another. Every sum is
// of the newer operand and what there is, in this order.
func (t *text) inRankOrder(mine, dst, partial string) {
	t.block(func() {
		t.line("recv-reduce %s -> %s from 1", mine, dst)
		t.block(func() { t.line("recv-reduce %s -> %s from k+2", dst, dst) }, "repeat k < n-2:")
	}, "if r == 0:")
	t.block(func() {
		t.line("recv -> %s from 0", partial)
		t.block(func() { t.line("recv-reduce %s -> %s from k+1", partial, partial) }, "repeat k < r-1:")
		t.line("copy %s -> %s", mine, dst)
		t.line("reduce %s -> %s", partial, dst)
		t.block(func() { t.line("recv-reduce %s -> %s from r+k+1", dst, dst) }, "repeat k < n-1-r:")
	}, "else:")
}

// 0 ◄──► 1      Everybody sends all it has to everybody, and everybody sums all
// ▲ ╲  ╱ ▲      of it in the order of ranks, ((x0 + x1) + x2) + ...: one step,
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
			t.line("scratch %d", 2*s.Channels)
			t.line("slots %d", orDefault(s.Slots, 1))
			partial := "tmp[" + fmt.Sprint(s.Channels) + "+c]"
			t.block(func() {
				t.line("copy in[c] -> tmp[c]")
				t.block(func() { t.line("send tmp[c] to (r+k+1)%%n") }, "repeat k < n-1:")
				t.inRankOrder("in[c]", "out[c]", partial)
			}, "channels %d:", s.Channels)
			return t.String(), nil
		},
	})
}
