package comm

import (
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

// Two processes on plain memory, around the lengths at which they change how they
// go about it, in place and not, and with one of them on registered memory: the
// plain sum each time.
func TestTwoOnPlainMemory(t *testing.T) {
	list := startProcs(t, 2, "shm", "bits")
	for i, count := range []int{1, 1024, 1025, 5000, 8191, 70001, plan.PiecesFrom/4 - 1, plan.PiecesFrom / 4,
		plan.PiecesFrom/4 + plan.PieceSize/4 + 3, plan.PullSumsFrom/4 + 1} {
		for round := range 4 {
			if !bounded.Long() && round%2 != i%2 {
				continue
			}
			op := []reduce.Op{Sum, Avg, Prod, Max, PreMulSum}[(i+round)%5]
			o := order{Do: "bits", Op: op.String(), Count: count, Seed: uint64(10*i + round), InPlace: round%2 == 0}
			want := canonicalBits(op, o.Seed, 2, count)
			for r, p := range list {
				own := o
				own.Registered = round == 2 && r == i%2
				p.order(own)
			}
			for r, e := range list.await("bits") {
				if e.Data != want {
					t.Errorf("%s of %d floats, in place %t, round %d: rank %d has %s, a plain sum %s", op, count, o.InPlace, round, r, e.Data, want)
				}
			}
		}
	}
	list.finish()
}

// One of two ranks is killed in the middle: the other has its input as it was, or
// the whole result.
func TestOneOfTwoKilledInTheMiddle(t *testing.T) {
	var y tally
	for k := range 10 {
		list := startProcs(t, 2, "shm", "serve")
		f := &faultCase{fault: "kill -9 in the middle", transport: "shm", op: "all-reduce", count: []int{300001, 500000, 3 << 20}[k%3],
			inPlace: k < 4, k: k}
		if k >= 6 { // sums of parts from the back
			f.registered, f.inPlace, f.count = true, true, 1<<20<<(k%2)+7
		}
		victim := k % 2
		list.all(order{Do: "dup"})
		o := f.order()
		o.Limit = longTime
		for r, p := range list {
			own := o
			own.Tell = r == victim
			p.order(own)
		}
		list[victim].await("inside")
		list[victim].kill()
		rest := list.without(victim)
		y.judge(f, "the operation", rest.await("op"), victim, longTime, Dead)
		y.after(f, rest, victim, longTime, Dead)
		rest.finish()
	}
	for _, p := range y.problems {
		t.Error(p)
	}
	t.Logf("%d errors, all name the dead rank", y.errors)
}
