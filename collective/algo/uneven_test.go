package algo_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// Phases over domains of different sizes are proven, whatever the sizes and whichever domain has the root, and each domain sends and
// receives as often as leaders must.
func TestUneven(t *testing.T) {
	for _, sizes := range [][]int{{3, 1}, {1, 3}, {2, 1, 1}, {4, 3, 4, 2}, {1, 1, 5}, {8, 7}} {
		first := 0
		for d, n := range sizes {
			for _, op := range []sched.Collective{sched.AllReduce, sched.Barrier, sched.Broadcast, sched.Reduce} {
				l, err := algo.NewUneven(op, sizes, first, true)
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
		if _, err := algo.NewUneven(x.op, []int{3, 1}, x.root, true); err == nil {
			t.Error(fmt.Sprint(x, " was taken"))
		}
	}
}

// Where every domain has several ranks, as many of each as the smallest has send a part each, and as much.
func TestUnevenParts(t *testing.T) {
	for _, places := range [][]int{{0, 0, 0, 0, 1, 1, 1}, {0, 0, 1, 1, 1}, {0, 0, 0, 1, 1, 2, 2, 2, 2}, {0, 1, 0, 1, 1},
		{0, 1, 1, 2, 0, 2, 1, 0, 0}} {
		sizes, order, err := algo.InDomains(places)
		if err != nil {
			t.Fatal(err)
		}
		make := func() (*algo.Levels, error) { return algo.NewPlaced(sched.AllReduce, places, 0, false) }
		if slices.IsSorted(order) {
			make = func() (*algo.Levels, error) { return algo.NewUneven(sched.AllReduce, sizes, 0, false) }
		}
		l, err := make()
		if err != nil {
			t.Fatal(err)
		}
		p, err := compose(t, "uneven", l)
		if err != nil {
			t.Fatalf("%v: %v", places, err)
		}
		rep, err := verify.Right(p)
		if err != nil {
			t.Fatalf("%v: %+v\n%s", places, err, p)
		}
		sends := map[int]bool{}
		for pair := range rep.Links {
			if places[pair.From] != places[pair.To] {
				sends[int(pair.From)] = true
			}
		}
		if want := slices.Min(sizes) * len(sizes); len(sends) != want {
			t.Errorf("%v: %d ranks send to other domains, want %d", places, len(sends), want)
		}
	}
	for _, x := range []struct {
		op    sched.Collective
		sizes []int
	}{{sched.AllReduce, []int{3, 1}}, {sched.Broadcast, []int{3, 2}}} {
		if _, err := algo.NewUneven(x.op, x.sizes, 0, false); err == nil {
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
