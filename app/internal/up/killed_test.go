package up

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// watched is what the watch of a run says at a path.
func watched(t *testing.T, page, path string, into any) {
	t.Helper()
	res, err := http.Get(strings.TrimSuffix(page, "/") + "/watch/api/" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		t.Fatal(err)
	}
}

// A rank that somebody else kills is named with its signal by the watch of the run, under the number of its slot. The watch
// holds every collective against what the runtime predicts.
func TestKilledFromOutsideIsNamed(t *testing.T) {
	page := make(chan string, 1)
	s := begin(t, Options{Steps: 100_000, Listen: "127.0.0.1:0", Ready: func(p, _ string) { page <- p }})
	at := <-page
	var table struct {
		Rows []struct{ Rank, PID int }
	}
	var ops struct {
		Collectives []struct {
			Op    string
			Took  float64 `json:"took_s"`
			Told  float64 `json:"predicted_s"`
			Ratio float64 `json:"predicted_ratio"`
		}
	}
	predicted := false
	for tick, late := time.Tick(100*time.Millisecond), bounded.After(t, limit); !predicted; {
		select {
		case <-tick:
		case <-late:
			t.Fatalf("%+v is seen, and of collectives %+v", table, ops)
		}
		watched(t, at, "table", &table)
		watched(t, at, "collectives", &ops)
		for _, c := range ops.Collectives {
			predicted = predicted || c.Op == "all-reduce" && c.Told > 0 && c.Ratio == c.Took/c.Told
		}
	}
	k := slices.IndexFunc(table.Rows, func(r struct{ Rank, PID int }) bool { return r.Rank == 1 })
	if k < 0 {
		t.Fatalf("rank 1 is not seen: %+v", table)
	}
	if err := syscall.Kill(table.Rows[k].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.await("verdict", "slot 1", "was killed by SIGKILL, process ")
	s.stop()
	sum, err := s.ends()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(sum.Verdicts, func(v Verdict) bool { return v.Kind == "rank-restarted" && slices.Equal(v.Slots, []int{1}) }) {
		t.Errorf("verdicts: %+v", sum.Verdicts)
	}
	http.DefaultClient.CloseIdleConnections()
}
