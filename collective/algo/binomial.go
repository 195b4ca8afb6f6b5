package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

//	       0              Distances from the root. A rank's parent is itself
//	 ┌───┬─┴─┐            without its lowest set bit; below it are as many ranks
//	 4   2   1            as that bit says, its neighbours, so what goes to or
//	┌┴┐  │                comes from all of them is one message.
//	6 5  3
//	│
//	7
//
// A reduce sums in the canonical order: ranks i 2^k to (i+1) 2^k - 1 are summed by the first of them, or by the root if it is
// one of them, whatever the root is.
//
// Thakur, Rabenseifner and Gropp 2005.
func init() {
	register(&Algorithm{
		Name: "binomial", Traits: Traits{Vast: true, Long: 12, Short: 8},
		Ops:       []sched.Collective{sched.Gather, sched.Scatter, sched.Broadcast, sched.Reduce},
		Summary:   "small messages from or to one rank",
		Steps:     "ceil(log2 n)",
		Sent:      "S(n-1)/n at the root of a scatter, at most S/2 by others; S ceil(log2 n) at the root of a broadcast",
		Reference: "Thakur, Rabenseifner, Gropp 2005",
		Build:     func(s Spec) (string, error) { return binomial(s), nil },
	})
}

func binomial(s Spec) string {
	var t text
	steps := log2(s.Ranks)
	p := turn(s.Root)
	d := p.to
	t.line("root %d", s.Root)
	switch s.Op {
	case sched.Gather, sched.Scatter:
		t.line("chunks %s", times("n", s.Channels))
		t.line("scratch %s", times("n", s.Channels))
	case sched.Broadcast, sched.Reduce:
		t.line("chunks %d", s.Channels)
		t.line("scratch %d", s.Channels)
	}
	t.line("slots %d", orDefault(s.Slots, 1))
	// At the step of bit k, ranks at a distance with no bit up to k meet their
	// child k, those whose lowest bit is k their parent.
	meet := func(k string, above, below func(peer, count string)) {
		one := "(1<<" + k + ")"
		t.block(func() { above(p.from(d+"+"+one), fmt.Sprintf("%s min n-%s-%s", one, d, one)) },
			"if %s%%(2<<%s) == 0 && %s+%s < n:", d, k, d, one)
		t.block(func() { below(p.from(d+"-"+one), fmt.Sprintf("%s min n-%s", one, d)) }, "if %s%%(2<<%s) == 1<<%s:", d, k, k)
	}
	up, down := "k", fmt.Sprintf("(%d-k)", steps-1)
	at := func(b string) string { return share(fmt.Sprintf("(%d+%s)%%n", s.Root, b), s.Channels) }
	root := fmt.Sprintf("if r == %d:", s.Root)
	t.block(func() {
		switch s.Op {
		case sched.Gather:
			t.line("copy in[c] -> tmp[c*n]")
			t.block(func() {
				meet(up, func(peer, count string) { t.line("recv -> tmp[c*n+(1<<k) +: %s] from %s", count, peer) },
					func(peer, count string) { t.line("send tmp[c*n +: %s] to %s", count, peer) })
			}, "repeat k < %d:", steps)
			t.block(func() {
				t.block(func() { t.line("copy tmp[c*n+b] -> out[%s]", at("b")) }, "repeat b < n:")
			}, "%s", root)
		case sched.Scatter:
			t.block(func() {
				t.block(func() { t.line("copy in[%s] -> tmp[c*n+b]", at("b")) }, "repeat b < n:")
			}, "%s", root)
			t.block(func() {
				meet(down, func(peer, count string) { t.line("send tmp[c*n+(1<<%s) +: %s] to %s", down, count, peer) },
					func(peer, count string) { t.line("recv -> tmp[c*n +: %s] from %s", count, peer) })
			}, "repeat k < %d:", steps)
			t.line("copy tmp[c*n] -> out[c]")
		case sched.Broadcast:
			t.block(func() { t.line("copy in[c] -> out[c]") }, "%s", root)
			t.block(func() {
				meet(down, func(peer, _ string) { t.line("send out[c] to %s", peer) },
					func(peer, _ string) { t.line("recv -> out[c] from %s", peer) })
			}, "repeat k < %d:", steps)
		case sched.Reduce:
			t.line("copy in[c] -> tmp[c]")
			t.block(func() { t.halves(s.Root) }, "repeat k < %d:", steps)
			t.block(func() { t.line("copy tmp[c] -> out[c]") }, "%s", root)
		}
	}, "channels %d:", s.Channels)
	return t.String()
}

// halves writes step k of a reduce in the canonical order: the two that hold the sums of neighbouring 2^k ranks meet.
func (t *text) halves(root int) {
	within := func(r string) string { return fmt.Sprintf("(%s == %d/(1<<k))*(%d%%(1<<k))", r, root, root) }
	beside := "(r/(1<<k)^1)"
	peer := fmt.Sprintf("%s*(1<<k)+%s", beside, within(beside))
	t.block(func() {
		t.block(func() {
			t.block(func() { t.line("recv-reduce tmp[c] -> tmp[c] from %s", peer) }, "if %s*(1<<k) < n:", beside)
		}, "if r == %d || r/(2<<k) != %d/(2<<k) && r/(1<<k)%%2 == 0:", root, root)
		t.block(func() { t.line("send tmp[c] to %s", peer) }, "else:")
	}, "if r%%(1<<k) == %s:", within("r/(1<<k)"))
}
