package bench_test

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/bench"
	"github.com/weft-fabric/weft/sched"
)

// Every peer that is installed does every operation right.
func TestPeersVerify(t *testing.T) {
	cache := t.TempDir()
	for _, transport := range []string{"shm", "tcp"} {
		table, err := bench.Compare(t.Context(), bench.Comparison{
			Ops: bench.Ops()[:len(sched.Collectives())], Transport: transport, Ranks: []int{3}, Sizes: []int64{4, 100_000},
			Rounds: 1, Batch: 100 * time.Microsecond, Cache: cache,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range table.Missing {
			t.Logf("without %s: %s", m.Name, m.Why)
		}
		for _, f := range table.Failed {
			t.Errorf("%s: %s: %s", transport, f.Name, f.Why)
		}
		for _, r := range table.Rows {
			for _, c := range r.All {
				if c.Wrong != 0 || c.Micros <= 0 {
					t.Errorf("%s %s of %d bytes: %+v", transport, r.Op, r.Bytes, c)
				}
			}
		}
	}
}
