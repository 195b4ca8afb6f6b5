package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// collnet-chain:
//
//	3 ─► 2 ─► 1 ─► 0 ─►┐            domain 0: a chain to its head
//	7 ─► 6 ─► 5 ─► 4 ─►┼─ switch    domain 1
//	                   ◄┘           the switch sums the heads' pieces, and the
//	                                sums go back along the chains
//
// collnet-direct:
//
//	0 1 2 3   every rank sends slice h to head h of its domain, which sums it;
//	│╲│╱│╱│   switch h sums slice h over the domains; head h sends the result to
//	0 1 2 3   everybody in its domain. There are up to 8 heads a domain, so each
//	│ │ │ │   rail carries an equal share.
//	▼ ▼ ▼ ▼
//	switches
//
// Each copy of a chain has another head, so several copies use several rails.
// Switches are ranks n, n+1, ... of their own kind. Summing climbs on one channel
// and the result comes down on the next.
//
// Demystifying NCCL, arXiv 2507.04786; Graham et al. 2016.
func init() {
	ops := []sched.Collective{sched.AllReduce}
	register(&Algorithm{
		Name: "collnet-chain", Traits: Traits{Adds: FabricSwitch, Vast: true}, Ops: ops,
		Summary:   "large messages over switches that compute, one head a copy",
		Steps:     "2(Local-1) + 2 for a piece: the switch takes a message and gives one",
		Sent:      "2S: S up, S down; the head S to the network",
		Reference: "arXiv 2507.04786",
		Fits:      whole,
		Build:     collnetChain,
	})
	register(&Algorithm{
		Name: "collnet-direct", Traits: Traits{Adds: FabricSwitch, Vast: true, Cut: CutShare}, Ops: ops,
		Summary:   "middle and large messages over switches that compute, every NIC busy",
		Steps:     "4 for a piece: to the heads, to the switch, back, to all",
		Sent:      "2S(H-1)/H to and from heads, S/H to the network, H heads",
		Reference: "arXiv 2507.04786",
		Fits:      whole,
		Build:     collnetDirect,
	})
}

// tally writes what a switch does for one copy: it sums one message from each
// head into tmp and, on the channel after it, sends the sum to each. The head of
// domain d is an expression over d.
func tally(t *text, up bool, domains, channel int, tmp, head string) {
	if up {
		t.line("recv -> %s from %s", tmp, swap(head, "d", "0"))
		t.block(func() { t.line("recv-reduce %s -> %s from %s", tmp, tmp, swap(head, "d", "(d+1)")) }, "repeat d < %d:", domains-1)
		return
	}
	t.line("wait channel %d done (p+1)*%d", channel, domains)
	t.block(func() { t.line("send %s to %s", tmp, head) }, "repeat d < %d:", domains)
}

func collnetChain(s Spec) (string, error) {
	var t text
	local := s.domain()
	domains := s.Ranks / local
	pieces := s.cut(4)
	t.line("switches 1")
	t.line("chunks %d", s.Channels*pieces)
	t.line("scratch %d", s.Channels*pieces)
	t.line("slots %d", orDefault(s.Slots, 2))
	for ch := range s.Channels {
		lead := ch % local
		at := itoa(ch*pieces) + "+p"
		pos := shifted(fmt.Sprintf("r%%%d", local), lead, local)
		step := func(d string) string {
			return fmt.Sprintf("r/%d*%d+(r%s1)%%%d", local, local, d, local) // Local ranks a domain: r%Local turns as r does
		}
		toHead, fromHead := step("-"), step("+")
		head := fmt.Sprintf("d*%d+%d", local, lead)
		tmp := "tmp[" + at + "]"
		both := func(ranks, network func()) {
			t.block(func() {
				t.each(pieces, func() {
					t.block(network, "if n <= r:")
					t.block(ranks, "else:")
				})
			}, "channels 1:")
		}
		three := func(first, middle, last string) {
			t.block(func() { t.line("%s", first) }, "if %s == 0:", pos)
			t.block(func() { t.line("%s", middle) }, "if 0 < %s && %s < %d:", pos, pos, local-1)
			t.block(func() { t.line("%s", last) }, "if %s == %d:", pos, local-1)
		}
		in, out := "in["+at+"]", "out["+at+"]"
		both(func() {
			if local == 1 {
				t.line("send %s to n", in)
				return
			}
			three("recv-reduce-send "+in+" from "+fromHead+" to n", "recv-reduce-send "+in+" from "+fromHead+" to "+toHead, "send "+in+" to "+toHead)
		}, func() { tally(&t, true, domains, ch*2, tmp, head) })
		both(func() {
			if local == 1 {
				t.line("recv -> %s from n", out)
				return
			}
			three("recv-copy-send -> "+out+" from n to "+fromHead, "recv-copy-send -> "+out+" from "+toHead+" to "+fromHead,
				"recv -> "+out+" from "+toHead)
		}, func() { tally(&t, false, domains, ch*2, tmp, head) })
	}
	return t.String(), nil
}

func collnetDirect(s Spec) (string, error) {
	var t text
	local := s.domain()
	domains := s.Ranks / local
	heads := min(local, 8)
	pieces := s.cut(4)
	t.line("switches %d", heads)
	t.line("chunks %d", s.Channels*heads*pieces)
	t.line("scratch %d", s.Channels*pieces)
	t.line("slots %d", orDefault(s.Slots, 2))
	l := fmt.Sprintf("r%%%d", local)
	mate := func(l string) string { return fmt.Sprintf("r/%d*%d+(%s)%%%d", local, local, l, local) }
	head := fmt.Sprintf("d*%d+r-n", local)
	for ch := range s.Channels {
		slice := func(h string) string { return fmt.Sprintf("(%d+(%s))*%d+p", ch*heads, h, pieces) }
		own := slice(l)
		in, out := "in["+own+"]", "out["+own+"]"
		tmp := fmt.Sprintf("tmp[%d+p]", ch*pieces)
		acc := fmt.Sprintf("tmp[%d]", ch*pieces)
		both := func(ranks, network func()) {
			t.block(func() {
				t.each(pieces, func() {
					t.block(network, "if n <= r:")
					t.block(ranks, "else:")
				})
			}, "channels 1:")
		}
		isHead := func(body func()) {
			if heads == local {
				body()
				return
			}
			t.block(body, "if %s < %d:", l, heads)
		}
		// The other heads, shifted by the rank's own number so that not all meet at the first.
		h := fmt.Sprintf("(%s+k)%%%d", l, heads)
		others := func(format string, args ...any) {
			if heads == local {
				t.block(func() { t.line(format, args...) }, "repeat k < %d:", heads-1)
				return
			}
			t.block(func() {
				t.block(func() { t.line(format, args...) }, "if %s != %s:", h, l)
			}, "repeat k < %d:", heads)
		}
		if heads == local {
			h = fmt.Sprintf("(%s+k+1)%%%d", l, heads)
		}
		both(func() {
			others("send in[%s] to %s", slice(h), mate(h))
			isHead(func() {
				nd := node{up: "n+" + l}
				if local > 1 {
					nd.kids = []string{mate(l + "+1")}
				}
				if local > 2 {
					t.line("recv-reduce %s -> %s from %s", in, acc, mate(l+"+1"))
					t.block(func() { t.line("recv-reduce %s -> %s from %s", acc, acc, mate(l+"+k+2")) }, "repeat k < %d:", local-3)
					in, nd.kids = acc, []string{mate(l + "-1")}
				}
				nd.climb(&t, in, acc, "")
			})
		}, func() { tally(&t, true, domains, ch*2, tmp, head) })
		both(func() {
			isHead(func() {
				t.line("recv -> %s from n+%s", out, l)
				t.block(func() { t.line("send %s to %s", out, mate(l+"+k+1")) }, "repeat k < %d:", local-1)
			})
			others("recv -> out[%s] from %s", slice(h), mate(h))
		}, func() { tally(&t, false, domains, ch*2, tmp, head) })
	}
	return t.String(), nil
}
