package chunks

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
)

// Chunks tile their buffers, whatever the counts.
func TestChunksTile(t *testing.T) {
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
				s := New(p, 4, count, counts)
				for r := range 3 {
					for _, b := range []sched.Buffer{sched.In, sched.Out} {
						at := 0
						for c := range p.NumChunks(b) {
							lo, hi := s.Span(op, b, r, c)
							if lo != at && hi > lo || hi < lo {
								t.Fatalf("%s %s rank %d chunk %d of %d/%v: %d to %d after %d", op, b, r, c, count, counts, lo, hi, at)
							}
							at = max(at, hi)
						}
						if want := s.Bytes(op, b, r, 3); at != want {
							t.Fatalf("%s %s rank %d, %d/%v: %d bytes of %d", op, b, r, count, counts, at, want)
						}
					}
				}
			}
		}
	}
}
