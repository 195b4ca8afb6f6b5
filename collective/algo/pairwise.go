package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

//	step   0   1   2   3     to whom, 4 ranks: every step is a permutation, so
//	 1     1   2   3   0     no two ranks send to the same one. The xor order
//	 2     2   3   0   1     pairs ranks up, each exchanging with one peer a step.
//	 3     3   0   1   2     NCCL's order takes the distances 1, 3, 6, 10, ...,
//	                         the triangular numbers modulo the next power of two.
//
// pairwise-hosts, 3 hosts of 2 ranks, what rank 0 does on its two channels:
//
//	inside     0─►1                            the other ranks of its host
//	between    0─►2  0─►3   0─►4  0─►5         host by host, rank by rank
//	             next host    the one after
//
// All ranks change hosts together, so that messages over fast links never put
// some of them ahead of the others: every step is a permutation of the NICs.
// Where the last host has fewer ranks, steps to those it lacks are left out.
//
// Triangular numbers x(x+1)/2 modulo a power of two are a permutation; those
// beyond the count are left out.
func init() {
	ops := []sched.Collective{sched.AllToAll}
	register(&Algorithm{
		Name: "pairwise", Traits: Traits{Pairs: true, Long: 8}, Ops: ops,
		Summary:   "large all-to-all: one peer a step, nobody overrun",
		Steps:     "n-1",
		Sent:      "S(n-1)/n",
		Reference: "Thakur, Rabenseifner, Gropp 2005",
		Build: func(s Spec) (string, error) {
			return pairwise(s, "(r+k+1)%n", "(r-k-1)%n", "repeat k < n-1:"), nil
		},
	})
	register(&Algorithm{
		Name: "pairwise-xor", Traits: Traits{Pairs: true, Long: 6, Staged: true}, Ops: ops,
		Summary:   "large all-to-all on powers of two: both directions of one link a step",
		Steps:     "n-1",
		Sent:      "S(n-1)/n",
		Reference: "Thakur, Rabenseifner, Gropp 2005",
		Fits: func(s Spec) error {
			if s.Ranks&(s.Ranks-1) != 0 {
				return fmt.Errorf("%d ranks are not a power of two, so r xor k is not always a rank; use pairwise", s.Ranks)
			}
			return nil
		},
		Build: func(s Spec) (string, error) {
			return pairwise(s, "(r^k+1)", "(r^k+1)", "repeat k < n-1:"), nil
		},
	})
	register(&Algorithm{
		Name: "pairwise-hosts", Traits: Traits{Pairs: true, Long: 7, Staged: true, Twin: "pairwise-xor"}, Ops: ops,
		Summary:   "large all-to-all over hosts: inside and between hosts at once, nobody overrun",
		Steps:     "n-Local between hosts, beside Local-1 inside",
		Sent:      "S(n-1)/n",
		Reference: "pairwise exchange of Thakur, Rabenseifner, Gropp 2005, by two levels",
		Build:     func(s Spec) (string, error) { return pairwiseHosts(s), nil },
	})
	register(&Algorithm{
		Name: "pairwise-delta", Traits: Traits{Pairs: true}, Ops: ops,
		Summary:   "large all-to-all in NCCL's order: near and far peers mixed",
		Steps:     "n-1",
		Sent:      "S(n-1)/n",
		Reference: "point-to-point order of NCCL",
		Build: func(s Spec) (string, error) {
			p := 1 << log2(s.Ranks)
			delta := fmt.Sprintf("(x+1)*(x+2)/2%%%d", p)
			return pairwise(s, "(r+"+delta+")%n", "(r-"+delta+")%n",
				fmt.Sprintf("repeat x < %d:", p-1), "if "+delta+" < n:"), nil
		},
	})
}

func pairwise(s Spec, to, from string, heads ...string) string {
	var t text
	at := func(rank string) string { return share(rank, s.Channels) }
	t.line("chunks %s", times("n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	var nest func(i int)
	nest = func(i int) {
		if i < len(heads) {
			t.block(func() { nest(i + 1) }, "%s", heads[i])
			return
		}
		t.line("send in[%s] to %s", at(to), to)
		t.line("recv -> out[%s] from %s", at(from), from)
	}
	t.block(func() {
		t.line("copy in[%s] -> out[%s]", at("r"), at("r"))
		nest(0)
	}, "channels %d:", s.Channels)
	return t.String()
}

func pairwiseHosts(s Spec) string {
	var t text
	local := s.domain()
	hosts := (s.Ranks + local - 1) / local
	uneven := s.Ranks%local > 0
	at := func(rank string, ch int) string {
		if s.Channels == 1 {
			return rank
		}
		return fmt.Sprintf("(%s)*%d+%d", rank, s.Channels, ch)
	}
	// peer is the rank a number of hosts and a number of local ranks on, or back.
	peer := func(host, own string) string {
		return fmt.Sprintf("(r/%d%s)%%%d*%d+(r%s)%%%d", local, host, hosts, local, own, local)
	}
	t.line("chunks %s", times("n", s.Channels))
	t.line("slots %d", orDefault(s.Slots, 1))
	for ch := range s.Channels {
		exchange := func(to, from string) {
			t.ifThere(uneven, to+" < n", func() { t.line("send in[%s] to %s", at(to, ch), to) })
			t.ifThere(uneven, from+" < n", func() { t.line("recv -> out[%s] from %s", at(from, ch), from) })
		}
		t.block(func() {
			t.line("copy in[%s] -> out[%s]", at("r", ch), at("r", ch))
			if local > 1 {
				t.block(func() { exchange(peer("", "+j+1"), peer("", "-j-1")) }, "repeat j < %d:", local-1)
			}
		}, "channels 1:")
		switch {
		case uneven:
			staggered(&t, local, hosts, peer, exchange)
		case hosts > 1:
			t.block(func() {
				t.block(func() {
					t.block(func() { exchange(peer("+d+1", "+j"), peer("-d-1", "-j")) }, "repeat j < %d:", local)
				}, "repeat d < %d:", hosts-1)
			}, "channels 1:")
		}
	}
	return t.String()
}

// lanes is how many messages a rank sends at a time where hosts have different numbers of ranks.
const lanes = 16

// staggered writes the steps between hosts for several channels that take turns. Some ranks have no partner in some steps and get ahead
// of the others. With one message at a time every rank would then wait for its NIC or its partner's half of the time.
func staggered(t *text, local, hosts int, peer func(host, own string) string, exchange func(to, from string)) {
	steps := (hosts - 1) * local
	count := min(lanes, steps)
	for w := range count {
		x := fmt.Sprintf("(x*%d+%d)", count, w)
		t.block(func() {
			t.block(func() {
				host, own := fmt.Sprintf("%s/%d", x, local), fmt.Sprintf("%s%%%d", x, local)
				exchange(peer("+"+host+"+1", "+"+own), peer("-"+host+"-1", "-"+own))
			}, "repeat x < %d:", (steps-w+count-1)/count)
		}, "channels 1:")
	}
}
