package bench_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
)

// Every peer that is installed, and we, do every operation right.
func TestPeersVerify(t *testing.T) {
	cache := t.TempDir()
	for _, transport := range []string{"shm", "tcp"} {
		table, err := bench.Compare(t.Context(), bench.Comparison{
			Ops: bench.Ops()[:len(sched.Collectives())], Transport: transport, Ranks: []int{2}, Sizes: []int64{20_000},
			Rounds: 1, Batch: 100 * time.Microsecond, Cache: cache, Self: self,
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

// Peers that are missing are named with the way to get them, and we go on alone.
func TestPeersThatAreMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	table, err := bench.Compare(t.Context(), bench.Comparison{
		Ops: bench.Ops()[:1], Transport: "shm", Ranks: []int{2}, Sizes: []int64{8}, Rounds: 3,
		Batch: 100 * time.Microsecond, Cache: t.TempDir(), Self: self,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Missing) != len(bench.Peers("shm")) || len(table.Failed) != 0 {
		t.Errorf("missing %+v, failed %+v", table.Missing, table.Failed)
	}
	for _, m := range table.Missing {
		if m.Install == "" || !strings.Contains(m.Why, "is not installed") {
			t.Errorf("%+v", m)
		}
	}
	row := table.Rows[0]
	for _, f := range []string{bench.Registered, bench.Plain} {
		if c := row.Cells[f]; c == nil || c.Wrong != 0 || c.Low > c.Micros || c.Micros > c.High {
			t.Errorf("%s: %+v", f, c)
		}
	}
	var out bytes.Buffer
	table.Absent(&out)
	if err := table.Markdown(&out); err != nil || !strings.Contains(out.String(), "on Debian: apt-get install mpich libmpich-dev gcc") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// A competitor that dies is dropped, with its last words, and the others go on.
func TestPeerThatDies(t *testing.T) {
	for what, script := range map[string]string{
		"at start":   "echo I am not well >&2; exit 3",
		"in silence": "exit 0",
	} {
		table, err := bench.Compare(t.Context(), bench.Comparison{
			Ops: bench.Ops()[:1], Transport: "shm", Ranks: []int{2}, Sizes: []int64{8}, Rounds: 1, Batch: 100 * time.Microsecond,
			Peers: []*bench.Peer{bench.Own(bench.MPI, "shm", []string{"sh", "-c", script})}, Cache: t.TempDir(), Self: self,
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(table.Failed) != 1 || table.Rows[0].Cells[bench.Registered] == nil || table.Rows[0].Cells[bench.MPI] != nil {
			t.Fatalf("%s: %+v", what, table)
		}
		if why := table.Failed[0].Why; strings.Contains(script, "well") && !strings.Contains(why, "I am not well") {
			t.Errorf("%s: %s", what, why)
		}
	}
}

// Operations are timed one by one, beside processes that never wait, which are gone afterwards.
func TestSpreadBesideHogs(t *testing.T) {
	table, err := bench.Compare(t.Context(), bench.Comparison{
		Ops: bench.Ops()[:1], Transport: "tcp", Ranks: []int{2}, Sizes: []int64{8, 4096}, Rounds: 2, Batch: time.Millisecond,
		Peers: bench.Peers("tcp")[:1], Cache: t.TempDir(), Self: self, Spread: true, Busy: bench.Busy{Hogs: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range table.Rows {
		for _, f := range table.Families {
			if c := r.Cells[f]; c == nil || c.Wrong != 0 || c.P50 <= 0 || c.P99 < c.P50 || c.Micros != c.P50 {
				t.Errorf("%s of %d bytes: %+v", f, r.Bytes, c)
			}
		}
	}
	var out bytes.Buffer
	if err := table.Markdown(&out); err != nil || !strings.Contains(out.String(), "registered p50 us") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
