package flat

import (
	"testing"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/sched/algo"
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
