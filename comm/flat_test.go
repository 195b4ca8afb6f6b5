package comm

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
			f, err := newFlat(p)
			if (err == nil) != x.flat {
				t.Errorf("%s %s of %d ranks: %v", x.algo, x.op, n, err)
				continue
			}
			if f != nil && x.op != sched.Barrier && f.inPlace != x.inPlace {
				t.Errorf("%s %s of %d ranks: in place %t", x.algo, x.op, n, f.inPlace)
			}
		}
	}
}

// Chunks tile their buffers, whatever the counts.
func TestShapeTiles(t *testing.T) {
	for _, op := range []sched.Collective{sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.AllToAll, sched.Scatter} {
		a, _ := algo.Find("direct")
		p, err := a.Program(algo.Spec{Op: op, Ranks: 3, Channels: 4})
		if err != nil {
			// direct does every collective here.
			t.Fatal(err)
		}
		for _, count := range []int{0, 1, 2, 7, 63, 64, 100, 1000} {
			for _, counts := range [][]int{nil, {count, 0, 5}} {
				if counts != nil && !op.Blocks() {
					continue
				}
				s := newShape(p, 4, count, counts)
				for r := range 3 {
					for _, b := range []sched.Buffer{sched.In, sched.Out} {
						at := 0
						for c := range p.NumChunks(b) {
							lo, hi := s.span(op, b, r, c)
							if lo != at && hi > lo || hi < lo {
								t.Fatalf("%s %s rank %d chunk %d of %d/%v: %d to %d after %d", op, b, r, c, count, counts, lo, hi, at)
							}
							at = max(at, hi)
						}
						if want := s.bytes(op, b, r, 3); at != want {
							t.Fatalf("%s %s rank %d, %d/%v: %d bytes of %d", op, b, r, count, counts, at, want)
						}
					}
				}
			}
		}
	}
}
