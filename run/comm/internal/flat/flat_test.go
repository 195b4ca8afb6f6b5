package flat

import (
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/reduce"
)

// Which programs are flat, and which of those run in place.
func TestFlatForms(t *testing.T) {
	for _, x := range []struct {
		algo          string
		op            sched.Collective
		flat, inPlace bool
	}{
		{"rank-order", sched.AllReduce, true, true},
		{"rank-order", sched.ReduceScatter, true, true},
		{"rank-order", sched.Reduce, true, true},
		{"one-shot", sched.AllReduce, true, false},
		{"direct", sched.AllReduce, true, true},
		{"direct", sched.ReduceScatter, true, true},
		{"direct", sched.AllGather, true, true},
		{"direct", sched.AllToAll, true, false},
		{"direct", sched.Broadcast, true, true},
		{"direct", sched.Gather, true, true},
		{"direct", sched.Scatter, true, true},
		{"direct", sched.Barrier, true, true},
		{"ring", sched.AllGather, true, true}, // it only moves, so its receivers may read at the source
		{"ring", sched.AllReduce, false, false},
		{"tree", sched.AllReduce, false, false},
	} {
		for _, n := range []int{3, 4, 5, 8} { // of two ranks a ring is flat, too
			a, err := algo.Find(x.algo)
			if err != nil {
				t.Fatal(err)
			}
			p, err := a.Program(algo.Spec{Op: x.op, Ranks: n, Channels: 2})
			if err != nil {
				t.Fatal(err)
			}
			f, err := New(p)
			if (err == nil) != x.flat {
				t.Errorf("%s %s of %d ranks: %v", x.algo, x.op, n, err)
				continue
			}
			if f != nil && x.op != sched.Barrier && f.InPlace != x.inPlace {
				t.Errorf("%s %s of %d ranks: in place %t", x.algo, x.op, n, f.InPlace)
			}
		}
	}
}

// Sums of a flat form are in the program's association: those of rank-order in that of a tree over the ranks, those of direct one
// rank after the other from the rank that sums.
func TestFlatFormsKeepTheOrder(t *testing.T) {
	for n := 2; n <= 20; n++ {
		for _, name := range []string{"rank-order", "direct"} {
			a, err := algo.Find(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := a.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
			if err != nil {
				t.Fatal(err)
			}
			f, err := New(p)
			if err != nil {
				t.Fatal(err)
			}
			for r, rank := range f.parts {
				for _, k := range rank.Sums {
					for i, s := range k.Srcs {
						want := int32(i)
						if name == "direct" {
							if want = int32((r + i) % n); i < 2 && r == n-1 {
								want = []int32{0, int32(n - 1)}[i] // of two the lower rank is told first
							}
						}
						if s.Rank != want {
							t.Errorf("%s of %d ranks: rank %d sums %v", name, n, r, k.Srcs)
							break
						}
					}
					tree := slices.Equal(k.Order.Merges(n), reduce.TreeMerges(n))
					if (name == "rank-order" || n <= 3) != tree || name == "direct" && k.Order != nil {
						t.Errorf("%s of %d ranks: rank %d combines %v", name, n, r, k.Order.Merges(n))
					}
				}
			}
		}
	}
}
