package comm

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/choice"
)

// A kept program that takes far longer than when it was made is doubted after three looks:
// the choice runs in its place for the calls of one more, and then the faster one. All ranks
// change at the same call, results are right all the time, and it is said once.
func TestKeptProgramIsDoubted(t *testing.T) {
	const n, calls = 4, 60
	ring, err := algo.Find("ring")
	if err != nil {
		t.Fatal(err)
	}
	program, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
	if err != nil {
		t.Fatal(err)
	}
	program.Name = "kept"
	for name, c := range map[string]struct {
		took    float64
		changes bool
	}{"links have changed": {1e-3, true}, "links are as they were": {1e9, false}} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var said sync.Mutex
		var text strings.Builder
		comms, err := LocalWith(n, Config{Explain: lockedWriter{&said, &text}})
		if err != nil {
			t.Fatal(err)
		}
		list := []choice.Made{{Op: sched.AllReduce, From: 1 << 10, To: 1 << 20, Form: "a ring", Program: program.String(), Took: c.took,
			Instead: "direct", Would: 2 * c.took}}
		ran := make([][]string, n)
		var all sync.WaitGroup
		for r, comm := range comms {
			comm.library.world.made = choice.NewPrograms(list)
			all.Go(func() {
				buf := make([]float32, 1<<10)
				for i := range calls {
					for k := range buf {
						buf[k] = float32(r + k%5)
					}
					if err := AllReduce(ctx, comm, buf, Sum); err != nil {
						t.Errorf("%s: rank %d, call %d: %v", name, r, i, err)
						return
					}
					for k, v := range buf {
						if v != float32(n*(n-1)/2+n*(k%5)) {
							t.Errorf("%s: rank %d, call %d, element %d: %g", name, r, i, k, v)
							return
						}
					}
				}
				for _, x := range comm.Flight().Records() {
					if x.Bytes == 4<<10 {
						ran[r] = append(ran[r], x.Program)
					}
				}
			})
		}
		all.Wait()
		for _, comm := range comms {
			_ = comm.Close()
		}
		for r := range ran {
			if !slices.Equal(ran[r], ran[0]) {
				t.Errorf("%s: rank %d ran %v, rank 0 %v", name, r, ran[r], ran[0])
			}
		}
		other := slices.IndexFunc(ran[0], func(p string) bool { return p != "kept" })
		if len(ran[0]) != calls || (other == 24) != c.changes || !c.changes && other >= 0 {
			t.Errorf("%s: %d calls ran %v; the choice first in call %d", name, len(ran[0]), ran[0], other)
		}
		if got := strings.Count(text.String(), "links have changed"); (got == 1) != c.changes || got > 1 {
			t.Errorf("%s: said %d times: %q", name, got, text.String())
		}
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *strings.Builder
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}
