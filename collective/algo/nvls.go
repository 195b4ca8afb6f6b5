package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

// nvls, slice h of rank 0:
//
//	0 ─┐                  The head h, the owner of slice h, loads it: the switch
//	1 ─┼─ switch ─► h     sums it over all on the way. Then it stores the sum:
//	2 ─┘                  the switch copies it to all. A load-reduce and a
//	h ──► switch ─► all   multicast store are two messages each.
//
// nvls-tree has a switch in every domain; heads of one slice in all domains sum
// theirs over a tree, the second of a pair of trees for every second copy.
//
// Demystifying NCCL, arXiv 2507.04786.
func init() {
	register(&Algorithm{
		Name: "nvls", Traits: Traits{Adds: NVSwitch, Cut: CutNone, Long: 1, Short: 2},
		Ops:       []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllGather},
		Summary:   "one NVSwitch domain whose switches compute",
		Steps:     "4 for a piece: two passes through the switch; 2 for reduce-scatter, all-gather",
		Sent:      "S + S/n; S for reduce-scatter, S/n for all-gather",
		Reference: "arXiv 2507.04786",
		Fits: func(s Spec) error {
			if s.domain() != s.Ranks {
				return fmt.Errorf("%d ranks in domains of %d: one switch serves one domain; nvls-tree serves several", s.Ranks, s.Local)
			}
			return nil
		},
		Build: nvls,
	})
	register(&Algorithm{
		Name: "nvls-tree", Traits: Traits{Adds: NVSwitch, Vast: true, Copies: 2, Cut: CutEach, Long: 5, Short: 3},
		Ops:       []sched.Collective{sched.AllReduce},
		Summary:   "several NVSwitch domains whose switches compute",
		Steps:     "4 + 2 ceil(log2 domains) for a piece",
		Sent:      "S + S/H in the domain, up to 3S/H between domains, H ranks a domain",
		Reference: "arXiv 2507.04786",
		Fits:      whole,
		Build:     nvlsTree,
	})
}

func nvls(s Spec) (string, error) {
	var t text
	// How far up and down overlap depends on the pieces: 1, 4, 8 and 16 of them
	// simulate to 323, 449, 479 and 494 GB/s bus on a DGX H100 at 1 GiB, where 480
	// is published, and to 611, 847, 902 and 927 on a DGX B200, where 850 is. Eight
	// is a choice made with these figures in view, not a prediction of them.
	pieces := s.cut(8)
	k := s.Channels * pieces // chunks a block
	t.line("switches 1")
	t.line("chunks %s", times("n", k))
	t.line("scratch %d", 2*s.Channels)
	t.line("slots %d", orDefault(s.Slots, 2))
	for ch := range s.Channels {
		own := fmt.Sprintf("%d+p", ch*pieces)
		at := func(h string) string { return fmt.Sprintf("%s*%d+%s", h, k, own) }
		load, store := fmt.Sprintf("tmp[%d]", 2*ch), fmt.Sprintf("tmp[%d]", 2*ch+1)
		result := at("r")
		if s.Op == sched.ReduceScatter {
			result = own
		}
		both := func(ranks, network func()) {
			t.block(func() {
				t.each(pieces, func() {
					t.block(network, "if r == n:")
					t.block(ranks, "else:")
				})
			}, "channels 1:")
		}
		if s.Op != sched.AllGather {
			both(func() {
				t.block(func() { t.line("send in[%s] to n", at("h")) }, "repeat h < n:")
				t.line("recv -> out[%s] from n", result)
			}, func() {
				t.block(func() {
					t.line("recv -> %s from 0", load)
					t.block(func() { t.line("recv-reduce %s -> %s from k+1", load, load) }, "repeat k < n-2:")
					t.line("recv-reduce-send %s from n-1 to h", load)
				}, "repeat h < n:")
			})
		}
		if s.Op == sched.ReduceScatter {
			continue
		}
		both(func() {
			if s.Op == sched.AllGather {
				t.line("copy in[%s] -> out[%s]", own, at("r"))
				t.line("send in[%s] to n", own)
			} else {
				t.line("wait channel %d done (p+1)*(n+1)", 2*ch)
				t.line("send out[%s] to n", at("r"))
			}
			t.block(func() {
				t.block(func() { t.line("recv -> out[%s] from n", at("h")) }, "if h != r:")
			}, "repeat h < n:")
		}, func() {
			t.block(func() {
				t.line("recv-copy-send -> %s from h to (h+1)%%n", store)
				t.block(func() { t.line("send %s to (h+k+2)%%n", store) }, "repeat k < n-2:")
			}, "repeat h < n:")
		})
	}
	return t.String(), nil
}

func nvlsTree(s Spec) (string, error) {
	var t text
	local := s.domain()
	domains := s.Ranks / local
	pieces := s.cut(2)
	t.line("switches %d", domains)
	t.line("chunks %d", s.Channels*local*pieces)
	t.line("scratch %d", 2*s.Channels)
	t.line("slots %d", orDefault(s.Slots, 2))
	rank := fmt.Sprintf("(r-n)*%d+", local) // the rank with a local number, as the switch sees it
	net := fmt.Sprintf("n+r/%d", local)
	g, l := fmt.Sprintf("(r/%d)", local), fmt.Sprintf("r%%%d", local)
	for ch := range s.Channels {
		at := func(h string) string { return fmt.Sprintf("(%d+%s)*%d+p", ch*local, h, pieces) }
		load, store := fmt.Sprintf("tmp[%d]", 2*ch), fmt.Sprintf("tmp[%d]", 2*ch+1)
		place := position{to: g, from: func(p string) string { return fmt.Sprintf("(%s)*%d+%s", p, local, l) }}
		if ch%2 == 1 { // the second tree of the pair: mirrored or shifted
			if domains%2 == 0 {
				place = position{to: fmt.Sprintf("(%d-%s)", domains-1, g),
					from: func(p string) string { return fmt.Sprintf("(%d-(%s))*%d+%s", domains-1, p, local, l) }}
			} else {
				place = position{to: shifted(g, 1, domains),
					from: func(p string) string { return fmt.Sprintf("(%s+1)%%%d*%d+%s", p, domains, local, l) }}
			}
		}
		nodes := binary(domains, place)
		both := func(ranks, network func()) {
			t.block(func() {
				t.each(pieces, func() {
					t.block(network, "if n <= r:")
					t.block(ranks, "else:")
				})
			}, "channels 1:")
		}
		out := "out[" + at(l) + "]"
		both(func() {
			t.block(func() { t.line("send in[%s] to %s", at("h"), net) }, "repeat h < %d:", local)
			t.line("recv -> %s from %s", load, net)
			for _, nd := range nodes {
				t.block(func() { nd.climb(&t, load, load, out) }, "if %s:", nd.cond)
			}
		}, func() {
			t.block(func() {
				if local == 1 {
					t.line("recv-copy-send -> %s from %sh to %sh", load, rank, rank)
					return
				}
				t.line("recv -> %s from %s0", load, rank)
				t.block(func() { t.line("recv-reduce %s -> %s from %sk+1", load, load, rank) }, "repeat k < %d:", local-2)
				t.line("recv-reduce-send %s from %s%d to %sh", load, rank, local-1, rank)
			}, "repeat h < %d:", local)
		})
		both(func() {
			for _, nd := range nodes {
				t.block(func() {
					if nd.up == "" {
						t.line("wait channel %d done (p+1)*%d", 2*ch, local+1+max(len(nd.kids), 1))
					}
					nd.descend(&t, out)
				}, "if %s:", nd.cond)
			}
			if local > 1 {
				t.line("send %s to %s", out, net)
				t.block(func() {
					t.block(func() { t.line("recv -> out[%s] from %s", at("h"), net) }, "if h != %s:", l)
				}, "repeat h < %d:", local)
			}
		}, func() {
			if local > 1 {
				t.block(func() {
					t.line("recv-copy-send -> %s from %sh to %s(h+1)%%%d", store, rank, rank, local)
					t.block(func() { t.line("send %s to %s(h+k+2)%%%d", store, rank, local) }, "repeat k < %d:", local-2)
				}, "repeat h < %d:", local)
			}
		})
	}
	return t.String(), nil
}
