package comm

import (
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// A rank is killed while all are in the middle of a large operation: every
// survivor has its input as it was, or the whole result, in place as well. Where
// sums are stored straight into the outputs of others, somebody else must finish
// what the dead rank began.
func TestKilledInTheMiddle(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		var y tally
		for _, round := range bounded.First(1, 0, 1, 2) {
			list := startProcs(t, 9, transport, "serve")
			for i, op := range []string{"all-reduce", "reduce", "all-reduce", "gather", "reduce-scatter", "all-to-all"} {
				f := &faultCase{fault: "kill -9 in the middle", transport: transport, op: op,
					count:      []int{1 << 20, 3 << 20, 300001, 200000, 100000, 90000}[i] >> (round % 2),
					registered: (round+i)%4 != 3, inPlace: (round+i)%3 != 2, k: round + i}
				victim := f.k % len(list)
				list.all(order{Do: "dup"})
				o := f.order()
				o.Limit = longTime
				rest := list.without(victim)
				for p, x := range list {
					own := o
					own.Tell = p == victim
					x.order(own)
				}
				list[victim].await("inside")
				list[victim].kill()
				y.judge(f, "the operation", rest.await("op"), victim, longTime, Dead)
				y.after(f, rest, victim, longTime, Dead)
				rest.all(order{Do: "shrink"})
				list = rest
				for r, e := range list.all(order{Do: "dup"}) {
					if e.Err != "" {
						t.Fatalf("rank %d after shrinking: %s", r, e.Err)
					}
				}
				for r, e := range list.all(order{Do: "op", Op: "all-reduce,all-gather,barrier", Count: 1000}) {
					if e.Err != "" || e.Data != "complete" {
						y.problems = append(y.problems, fmt.Sprintf("rank %d after shrinking to %d: %s %s", r, len(list), e.Err, e.Data))
					}
				}
			}
			list.finish()
		}
		for _, p := range y.problems {
			t.Error(p)
		}
		t.Logf("%s: %d errors, all name the dead rank", transport, y.errors)
	}
}
