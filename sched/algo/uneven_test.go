package algo_test

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
	"github.com/weft-fabric/weft/sched/verify"
)

// Phases over domains of different sizes are proven, whatever the sizes and whichever domain has the root, and each domain sends and
// receives as often as leaders must.
func TestUneven(t *testing.T) {
	for _, sizes := range [][]int{{3, 1}, {1, 3}, {2, 1, 1}, {4, 3, 4, 2}, {1, 1, 5}, {8, 7}} {
		first := 0
		for d, n := range sizes {
			for _, op := range []sched.Collective{sched.AllReduce, sched.Barrier, sched.Broadcast, sched.Reduce} {
				l, err := algo.NewUneven(op, sizes, first)
				if err != nil {
					t.Fatal(err)
				}
				p, err := compose(t, "uneven", l)
				if err != nil {
					t.Fatalf("%v, %s: %v", sizes, op, err)
				}
				rep, err := verify.Right(p)
				if err != nil {
					t.Fatalf("%v, %s, root %d: %+v\n%s", sizes, op, first, err, p)
				}
				leader := map[int]bool{}
				for at, d := 0, 0; d < len(sizes); d++ {
					leader[at] = true
					at += sizes[d]
				}
				home := func(r sched.Rank) (d int) {
					for at := 0; int(r) >= at+sizes[d]; d++ {
						at += sizes[d]
					}
					return d
				}
				for pair := range rep.Links {
					if home(pair.From) != home(pair.To) && !(leader[int(pair.From)] && leader[int(pair.To)]) {
						t.Errorf("%v, %s: rank %d sends to rank %d of another domain", sizes, op, pair.From, pair.To)
					}
				}
			}
			first += n
			_ = d
		}
	}
	for _, x := range []struct {
		op   sched.Collective
		root int
	}{{sched.Broadcast, 1}, {sched.AllToAll, 0}} {
		if _, err := algo.NewUneven(x.op, []int{3, 1}, x.root); err == nil {
			t.Error(fmt.Sprint(x, " was taken"))
		}
	}
}

// compose makes the program of some phases: reductions inside a domain by rank-order, everything else by direct.
func compose(t *testing.T, name string, l *algo.Levels) (*sched.Program, error) {
	t.Helper()
	return l.Compose(name, func(phase, size int) *sched.Program {
		ph := &l.Phases[phase]
		by := "direct"
		if ph.Op.Reduces() && ph.Op != sched.Barrier && !ph.Across {
			by = "rank-order"
		}
		p, err := find(t, by).Program(algo.Spec{Op: ph.Op, Ranks: size, Root: ph.Root})
		if err != nil {
			t.Fatalf("%s of %d: %v", ph.Op, size, err)
		}
		return p
	})
}
