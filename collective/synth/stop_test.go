package synth

import (
	"errors"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
)

// A search for the tightest cut ends wherever it is told to, for every collective, and gives no bound then. What is never told
// to end gives the bound that it gives without being asked.
func TestBoundsStop(t *testing.T) {
	for _, hosts := range []int{4, 36} { // few ranks, of which pairs are looked at, and many
		g, gpus := preset(t, "rail", map[string]int{"hosts": hosts})
		n, err := FromGraph(g, gpus, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []sched.Collective{sched.AllGather, sched.ReduceScatter, sched.Broadcast, sched.Scatter, sched.AllReduce,
			sched.AllToAll} {
			n.Stop = nil
			want, err := n.Bounds(op, 0, false)
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			n.Stop = func() bool { asked++; return false }
			if got, err := n.Bounds(op, 0, false); err != nil || got.Exact.Cmp(want.Exact) != 0 {
				t.Errorf("%s, asked and not stopped: %v, %v", op, got, err)
			}
			if asked < 2 {
				t.Errorf("%s on %d ranks asked %d times", op, n.Ranks, asked)
			}
			for _, after := range []int{0, 1, asked / 2, asked - 1} {
				left := after
				n.Stop = func() bool { left--; return left < 0 }
				if got, err := n.Bounds(op, 0, false); !errors.Is(err, ErrStopped) {
					t.Errorf("%s, stopped after %d of %d: %v, %v", op, after, asked, got, err)
				}
			}
		}
	}
}
