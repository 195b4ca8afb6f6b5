package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// 0 ◄──► 1      Everybody sends straight to everybody, each its part: rank r
// ▲ ╲  ╱ ▲      sums part r of all in the order x[r+1] + x[r], then x[r+2], ...,
// │  ╲╱  │      and sends the sum to everybody. Of rooted collectives the root
// │  ╱╲  │      sends to everybody or everybody to the root.
// ▼ ╱  ╲ ▼
// 3 ◄──► 2
func init() {
	register(&Algorithm{
		Name: "direct", Traits: Traits{Pairs: true, Vast: true}, Nests: true,
		Ops: []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast, sched.Reduce,
			sched.AllToAll, sched.Gather, sched.Scatter, sched.SendRecv, sched.Barrier},
		Summary:   "small messages where everybody reaches everybody at full rate",
		Steps:     "2 for all-reduce; 1 for the others",
		Sent:      "2S(n-1)/n; S(n-1)/n for blocks; S(n-1) at the root of a broadcast",
		Reference: "plain exchange",
		Build:     func(s Spec) (string, error) { return direct(s), nil },
	})
}

func direct(s Spec) string {
	var t text
	at := func(block string) string { return share(block, s.Channels) }
	next, prev := "(r+k+1)%n", "(r-k-1)%n"
	root := fmt.Sprintf("r == %d", s.Root)
	others := fmt.Sprintf("(%d+k+1)%%n", s.Root) // the others, from the root on
	each := func(body func()) { t.block(body, "repeat k < n-1:") }
	if s.Op.Rooted() {
		t.line("root %d", s.Root)
	}
	switch {
	case s.Op == sched.AllReduce || s.Op.Blocks():
		t.line("chunks %s", times("n", s.Channels))
	default:
		t.line("chunks %d", s.Channels)
	}
	t.line("slots %d", orDefault(s.Slots, 1))
	// rootElse writes what the root does and what the others do.
	rootElse := func(a, b func()) {
		t.block(a, "if %s:", root)
		t.block(b, "else:")
	}
	// sum adds up what the n-1 ranks in the order of from send to mine, in dst.
	sum := func(mine, dst, first, from string) {
		t.line("recv-reduce %s -> %s from %s", mine, dst, first)
		t.block(func() { t.line("recv-reduce %s -> %s from %s", dst, dst, from) }, "repeat k < n-2:")
	}
	t.block(func() {
		switch s.Op {
		case sched.AllReduce:
			each(func() { t.line("send in[%s] to %s", at(next), next) })
			sum("in["+at("r")+"]", "out["+at("r")+"]", "(r+1)%n", "(r+k+2)%n")
			each(func() { t.line("send out[%s] to %s", at("r"), next) })
			each(func() { t.line("recv -> out[%s] from %s", at(prev), prev) })
		case sched.ReduceScatter:
			each(func() { t.line("send in[%s] to %s", at(next), next) })
			sum("in["+at("r")+"]", "out[c]", "(r+1)%n", "(r+k+2)%n")
		case sched.AllGather:
			t.line("copy in[c] -> out[%s]", at("r"))
			each(func() { t.line("send in[c] to %s", next) })
			each(func() { t.line("recv -> out[%s] from %s", at(prev), prev) })
		case sched.AllToAll:
			t.line("copy in[%s] -> out[%s]", at("r"), at("r"))
			each(func() { t.line("send in[%s] to %s", at(next), next) })
			each(func() { t.line("recv -> out[%s] from %s", at(prev), prev) })
		case sched.Barrier:
			each(func() { t.line("send in[c] to %s", next) })
			sum("in[c]", "out[c]", "(r+1)%n", "(r+k+2)%n")
		case sched.SendRecv:
			t.line("send in[c] to (r+1)%%n")
			t.line("recv -> out[c] from (r-1)%%n")
		case sched.Broadcast:
			rootElse(func() {
				t.line("copy in[c] -> out[c]")
				each(func() { t.line("send in[c] to %s", others) })
			}, func() { t.line("recv -> out[c] from %d", s.Root) })
		case sched.Reduce:
			rootElse(func() {
				sum("in[c]", "out[c]", fmt.Sprintf("(%d+1)%%n", s.Root), fmt.Sprintf("(%d+k+2)%%n", s.Root))
			}, func() { t.line("send in[c] to %d", s.Root) })
		case sched.Gather:
			rootElse(func() {
				t.line("copy in[c] -> out[%s]", at("r"))
				each(func() { t.line("recv -> out[%s] from %s", at(others), others) })
			}, func() { t.line("send in[c] to %d", s.Root) })
		case sched.Scatter:
			rootElse(func() {
				t.line("copy in[%s] -> out[c]", at("r"))
				each(func() { t.line("send in[%s] to %s", at(others), others) })
			}, func() { t.line("recv -> out[c] from %d", s.Root) })
		}
	}, "channels %d:", s.Channels)
	return t.String()
}
