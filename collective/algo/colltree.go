package algo

import (
	"fmt"

	"github.com/weft-fabric/weft/collective/sched"
)

//	        ┌─────[0]─────┐          leaders: a tree between domains
//	       [4]           [8]
//	0       4             8          members: a tree in every domain,
//	└2      └6            └10        Local = 4 ranks each
//	┌┴┐     ┌┴┐           ┌┴─┐
//	1 3     5 7           9  11
//
// Pieces climb the tree of a domain to its leader, the leaders' tree to the top,
// and come down the same way on a second channel, so that fast links inside and
// slow links between domains are busy at once and every slow link carries the
// data once each way. The leader is the first rank of a domain, or the one that
// stands in it where the root does in its own.
//
// A two-level pipelined tree as weft defines it.
func init() {
	register(&Algorithm{
		Name: "colltree", Traits: Traits{Layers: true, Vast: true, Long: 11, Short: 4},
		Ops:       []sched.Collective{sched.AllReduce, sched.Broadcast, sched.Reduce, sched.Barrier},
		Summary:   "small to middle messages where links inside a domain are faster than between",
		Steps:     "2 (ceil(log2 Local) + ceil(log2 domains)) for a piece; half for broadcast, reduce",
		Sent:      "up to 3S inside a tree, up to 4S at leaders, S at leaves",
		Reference: "two-level tree, weft's own definition",
		Fits:      whole,
		Build:     colltree,
	})
}

func colltree(s Spec) (string, error) {
	var t text
	pieces := s.cut(4)
	t.line("root %d", s.Root)
	t.line("chunks %d", s.Channels*pieces)
	t.line("scratch %d", s.Channels)
	t.line("slots %d", orDefault(s.Slots, 2))
	for ch := range s.Channels {
		branch{
			op: s.Op, nodes: twoLevels(s), pieces: pieces, at: itoa(ch*pieces) + "+p",
			acc: "tmp[" + itoa(ch) + "]", up: ch * 2, flat: s.flat,
		}.write(&t)
	}
	return t.String(), nil
}

// twoLevels is the tree of leaders with the trees of their domains below.
func twoLevels(s Spec) []node {
	local := s.domain()
	domains := s.Ranks / local
	lead := s.Root % local
	member := position{
		to:   shifted(fmt.Sprintf("r%%%d", local), lead, local),
		from: func(p string) string { return fmt.Sprintf("r/%d*%d+(%s+%d)%%%d", local, local, p, lead, local) },
	}
	leader := position{
		to:   shifted(fmt.Sprintf("r/%d", local), s.Root/local, domains),
		from: func(p string) string { return fmt.Sprintf("(%s+%d)%%%d*%d+%d", p, s.Root/local, domains, local, lead) },
	}
	inside := binary(local, member)
	top := inside[len(inside)-1] // the leader as its domain sees it
	nodes := inside[:len(inside)-1]
	for _, nd := range binary(domains, leader) {
		nd.cond = top.cond + " && " + nd.cond
		nd.kids = append(append([]string{}, top.kids...), nd.kids...)
		nodes = append(nodes, nd)
	}
	return nodes
}

// shifted numbers positions of a group of n from the one at shift on.
func shifted(pos string, shift, n int) string {
	if shift == 0 {
		return "(" + pos + ")"
	}
	return fmt.Sprintf("((%s-%d)%%%d)", pos, shift, n)
}
