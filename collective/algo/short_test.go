package algo_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
)

// Where the last domain has fewer ranks than the others, or several have, an all-reduce over two levels and an all-to-all by hosts are
// proven, for random ranks, domains and copies.
func TestShortDomainsAreProven(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	a := find(t, "hierarchical")
	count := 60
	if *long {
		count = 600
	}
	for range count {
		local := 2 + r.IntN(8)
		s := algo.Spec{Op: sched.AllReduce, Local: local, Ranks: local * (1 + r.IntN(5)), Channels: 1 + r.IntN(5), Slots: []int{0, 2, 8}[r.IntN(3)]}
		for range 1 + r.IntN(3) {
			s.Short = append(s.Short, 1+r.IntN(local-1))
			s.Ranks += s.Short[len(s.Short)-1]
		}
		if len(s.Short) == 1 && r.IntN(2) == 0 {
			s.Short = nil
		}
		if r.IntN(2) == 0 {
			s.Outer = []string{"rabenseifner", "direct", "tree", "recursive-doubling"}[r.IntN(4)]
		}
		if p, _ := prove(t, a, s); p == nil {
			t.Errorf("%+v does not fit", s)
		}
		if s.Short == nil {
			prove(t, find(t, "pairwise-hosts"), algo.Spec{Op: sched.AllToAll, Ranks: s.Ranks, Local: local, Channels: s.Channels % 3})
		}
	}
}
