package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// What a search weighs splits with is what the pricer says of each: neither more, so that nothing is lost, nor less by more than what
// the pricer alone knows (DeepSpeed's buckets).
func TestSplitsAreWeighedAsTheyArePriced(t *testing.T) {
	machines := map[int]*Machine{}
	seen := 0
	for seed := range uint64(bounded.Times(300, 3000)) {
		r := rand.New(rand.NewPCG(seed, 31))
		o := small(t, r, machines)
		s := newSearcher(o.m, o.mc, o.f, Wish{Batch: o.batch, Seq: o.seq, Schedules: slices.Concat(o.kinds,
			[]schedule.Kind{schedule.OneFOneB, schedule.Interleaved, schedule.ZBV, schedule.ZBH1})}, habits)
		s.families(func(l Layout) {
			if !s.feasible(l) || !s.placed(l) {
				return
			}
			s.grids(l, func(l Layout) {
				s.states(l, func(l Layout) {
					if r.IntN(3) > 0 {
						return
					}
					base := newPricer(s.m, s.mc, s.f, l, s.h)
					s.scale.set(base, s.factor)
					s.pipelines(l, func(l Layout) {
						s.splits(l, s.m.Layers, func(l Layout, counts []int) {
							if l.PP > 1 && l.Schedule != schedule.DualPipe {
								seen++
								weighed(t, s, l, counts)
							}
						})
					})
				})
			})
		})
	}
	if seen < 1000 {
		t.Fatalf("only %d splits were compared", seen)
	}
	t.Logf("%d splits", seen)
}

func weighed(t *testing.T, s *searcher, l Layout, counts []int) {
	t.Helper()
	p := newPricer(s.m, s.mc, s.f, l, s.h)
	p.cut = slices.Clone(counts)
	opt, _ := p.adam()
	least := p.least(p.stages(s.factor)) - opt
	hops := p.hops().hops
	if !s.scale.quick(&l, hops, counts, least*(1+1e-9)) || s.scale.quick(&l, hops, counts, least*(1-1e-6)) {
		t.Fatalf("%s %v: priced at %.9g s, and weighed otherwise", l, counts, least)
	}
	alive := p.known()
	if alive == nil {
		return
	}
	most := 0.0
	for rank, x := range p.footprints(alive) {
		most = max(most, x.peak-p.buckets(p.holds()[rank]))
	}
	if got := s.scale.bytesOf(&l, alive); math.Abs(got/most-1) > 1e-9 {
		t.Fatalf("%s %v: %.12g B weighed, %.12g priced", l, counts, got, most)
	}
}

// The ends of a split are known before it is made, and tell it from all others with as many chunks.
func TestEndsTellSplitsApart(t *testing.T) {
	for layers := 1; layers < 14; layers++ {
		for chunks := 2; chunks < 9; chunks++ {
			by := map[[2]int][]int{}
			for first := range layers + 3 {
				for last := range layers + 3 {
					a, b := splitEnds(layers, chunks, first, last)
					counts := split(layers, chunks, first, last)
					switch {
					case counts == nil:
						if a >= 0 && b >= 0 {
							t.Fatalf("%d layers, %d chunks, less %d and %d: no such split, but ends %d and %d", layers, chunks, first, last, a, b)
						}
						continue
					case counts[0] != a || counts[chunks-1] != b:
						t.Fatalf("%d layers, %d chunks, less %d and %d: %v, ends %d and %d", layers, chunks, first, last, counts, a, b)
					}
					key := [2]int{a, b}
					if other := by[key]; other != nil && !slices.Equal(other, counts) {
						t.Fatalf("%d layers: %v and %v have equal ends", layers, other, counts)
					}
					by[key] = counts
				}
			}
		}
	}
}
