package algo_test

import (
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// Phases over ranks that are not numbered domain by domain are proven in the ranks' own numbers, and only ranks that may talk to other
// domains do: those of one number, or the leaders.
func TestPlaced(t *testing.T) {
	for _, places := range [][]int{{0, 1, 0, 1}, {0, 1, 1, 0}, {0, 1, 2, 0, 1, 2}, {0, 1, 0, 1, 0, 1, 0, 1}, {0, 1, 1, 2, 0, 2, 2, 1, 0},
		{0, 1, 0, 0}, {0, 1, 1, 0, 2, 1}} {
		sizes, order, err := algo.InDomains(places)
		if err != nil {
			t.Fatal(err)
		}
		seat := make([]int, len(places))
		for d, first := 0, 0; d < len(sizes); d++ {
			for s := range sizes[d] {
				seat[order[first+s]] = s
			}
			first += sizes[d]
		}
		even := slices.Min(sizes) == slices.Max(sizes)
		proven := 0
		for _, op := range sched.Collectives() {
			for _, leader := range []bool{false, true} {
				for root := range places {
					if root > 0 && !op.Rooted() {
						break
					}
					l, err := algo.NewPlaced(op, places, root, leader)
					if err != nil {
						continue // no phases, or none for that root
					}
					p, err := compose(t, "placed", l)
					if err != nil {
						t.Fatalf("%v, %s: %v", places, op, err)
					}
					rep, err := verify.Right(p)
					if err != nil {
						t.Fatalf("%v, %s, root %d, leader %t: %+v\n%s", places, op, root, leader, err, p)
					}
					proven++
					for pair := range rep.Links {
						if places[pair.From] != places[pair.To] && seat[pair.From] != seat[pair.To] {
							t.Errorf("%v, %s: rank %d sends to rank %d of another domain and number", places, op, pair.From, pair.To)
						}
					}
				}
			}
		}
		if want := 10; even && proven < want || proven == 0 {
			t.Errorf("%v: %d programs were proven", places, proven)
		}
	}
	for _, places := range [][]int{nil, {1, 0}, {0, 2, 1}, {0, -1}} {
		if _, err := algo.NewPlaced(sched.AllReduce, places, 0, true); err == nil {
			t.Errorf("%v was taken", places)
		}
	}
}
