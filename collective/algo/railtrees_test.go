package algo_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// Rail trees are proven for random ranks, domains, roots, pieces, copies and slots. A rank of a full domain sends no more than its slice to
// other domains, and takes no more, and none sends more than the buffer to its mates.
func TestRailTreesAreProven(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	a := find(t, "rail-trees")
	count := 150
	if *long {
		count = 3000
	}
	for range count {
		s := algo.Spec{Op: sched.Broadcast, Ranks: 1 + r.IntN(48), Local: r.IntN(10), Channels: 1 + r.IntN(3), Pieces: 1 + r.IntN(4),
			Slots: []int{0, 1, 2, 8}[r.IntN(4)]}
		s.Root = r.IntN(s.Ranks)
		if r.IntN(3) == 0 {
			s.Root = s.Ranks - 1
		}
		if r.IntN(2) == 0 {
			s.Op = sched.Reduce
		}
		p, rep := prove(t, a, s)
		if p == nil {
			t.Fatalf("%+v does not fit", s)
		}
		if s.Local > 0 && s.Local < s.Ranks {
			checkRails(t, s, rep)
		}
	}
}

// checkRails counts what ranks send to other domains.
func checkRails(t *testing.T, s algo.Spec, rep *verify.Report) {
	t.Helper()
	full := s.Ranks / s.Local * s.Local
	out, in := make([]int64, s.Ranks), make([]int64, s.Ranks)
	for pair, chunks := range rep.Links {
		if from, to := int(pair.From), int(pair.To); from/s.Local != to/s.Local {
			out[from] += chunks
			in[to] += chunks
		}
	}
	slice := rep.Chunks / int64(s.Local)
	for k := range full {
		if max(out[k], in[k]) > slice {
			t.Errorf("%+v: rank %d sends %d chunks to other domains and takes %d; a slice has %d", s, k, out[k], in[k], slice)
		}
	}
	if full == s.Ranks && rep.MaxSent > rep.Chunks+slice {
		t.Errorf("%+v: a rank sends %d chunks of %d", s, rep.MaxSent, rep.Chunks)
	}
}
