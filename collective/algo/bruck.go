package algo

import (
	"github.com/weft-fabric/weft/collective/sched"
)

//	rank 0 of 5, blocks it holds     All-gather: every step doubles the blocks in
//	0                                scratch, the next ones on the ring, by what
//	0 1            from 1            the rank twice as far on holds. All-to-all:
//	0 1 2 3        from 2            the block for the rank i places on travels
//	0 1 2 3 4      from 4            the bits of i, one a step, packed together
//	                                 with all others that go the same way.
//
// Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms for all-to-all
// communications in multiport message-passing systems, 1997.
func init() {
	register(&Algorithm{
		Name: "bruck", Traits: Traits{Vast: true, Long: 13, Short: 9}, Nests: true, Ops: []sched.Collective{sched.AllGather, sched.AllToAll},
		Summary:   "small messages, any count",
		Steps:     "ceil(log2 n)",
		Sent:      "S(n-1)/n; about S/2 log2 n for all-to-all",
		Reference: "Bruck et al. 1997",
		Build: func(s Spec) (string, error) {
			if s.Op == sched.AllToAll {
				return bruckAllToAll(s), nil
			}
			return bruckGather(s), nil
		},
	})
}

func bruckGather(s Spec) string {
	var t text
	t.line("chunks %s", times("n", s.Channels))
	t.line("scratch %s", times("n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	t.block(func() {
		t.line("copy in[c] -> tmp[c*n]")
		t.block(func() {
			t.line("send tmp[c*n +: 1<<k min n-(1<<k)] to (r-(1<<k))%%n")
			t.line("recv -> tmp[c*n+(1<<k) +: 1<<k min n-(1<<k)] from (r+(1<<k))%%n")
		}, "repeat k < %d:", log2(s.Ranks))
		t.block(func() { t.line("copy tmp[c*n+b] -> out[%s]", share("(r+b)%n", s.Channels)) }, "repeat b < n:")
	}, "channels %d:", s.Channels)
	return t.String()
}

func bruckAllToAll(s Spec) string {
	var t text
	t.line("chunks %s", times("n", s.Channels))
	t.line("scratch %s", times("2*n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	// Of the n blocks, those with bit k in their number: the q-th of them, and how many there are.
	const block = "q/(1<<k)*(2<<k)+(1<<k)+q%(1<<k)"
	const count = "n/(2<<k)*(1<<k)+n%(2<<k)-(n%(2<<k) min 1<<k)"
	t.block(func() {
		t.block(func() { t.line("copy in[%s] -> tmp[c*2*n+b]", share("(r+b)%n", s.Channels)) }, "repeat b < n:")
		t.block(func() {
			t.block(func() { t.line("copy tmp[c*2*n+%s] -> tmp[c*2*n+n+q]", block) }, "repeat q < %s:", count)
			t.line("send tmp[c*2*n+n +: %s] to (r+(1<<k))%%n", count)
			t.line("recv -> tmp[c*2*n+n +: %s] from (r-(1<<k))%%n", count)
			t.block(func() { t.line("copy tmp[c*2*n+n+q] -> tmp[c*2*n+%s]", block) }, "repeat q < %s:", count)
		}, "repeat k < %d:", log2(s.Ranks))
		t.block(func() { t.line("copy tmp[c*2*n+b] -> out[%s]", share("(r-b)%n", s.Channels)) }, "repeat b < n:")
	}, "channels %d:", s.Channels)
	return t.String()
}
