package engine

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"testing"
)

// run simulates on a sample and gives the answer as the engine has it.
func run(t *testing.T, q Collective) *answer {
	t.Helper()
	body, err := json.Marshal(q)
	must(t, err)
	got, err := New(Default()).Do(context.Background(), "simulate", body, nil)
	must(t, err)
	return got.(*answer)
}

// The load of a link over time has the mean that the simulation counted. It is idle before its first message and after its
// last, and links of a ring are busy at other times than a mean over all of them tells.
func TestLinksHaveLoadOverTime(t *testing.T) {
	for _, q := range []Collective{
		{File: File{text(t, "two-hosts")}, Op: "all-reduce", Bytes: 1 << 28, Algo: "ring"},
		{File: File{text(t, "two-hosts")}, Op: "broadcast", Bytes: 1 << 20, Algo: "binomial"},
		{File: File{text(t, "rail-1k")}, Op: "all-reduce", Bytes: 1 << 26, Algo: "hierarchical", GPUs: 256},
	} {
		a := run(t, q)
		if len(a.Trace.LinkLoad)%linkSteps != 0 || len(a.Busy) == 0 || a.Links != len(a.Busy) {
			t.Fatalf("%s: %d bytes of load for %d of %d links", q.Algo, len(a.Trace.LinkLoad), len(a.Busy), a.Links)
		}
		for _, b := range a.Busy {
			row := a.Trace.LinkLoad[b.Row*linkSteps : (b.Row+1)*linkSteps]
			sum, full := 0.0, false
			for _, v := range row {
				sum += float64(v) / 255 / linkSteps
				full = full || v == 255
			}
			if off := math.Abs(sum - b.Share); off > .5/255 && !full { // what would be above its rate is cut off
				t.Errorf("%s: %s has a load of %.4f over time, and was busy for %.4f", q.Algo, b.name, sum, b.Share)
			}
		}
	}
	// A link of a ring begins when its first chunk arrives, the first link before the last.
	a := run(t, Collective{File: File{text(t, "dgx-1v")}, Op: "broadcast", Bytes: 1 << 22, Algo: "ring"})
	first, last := linkSteps, 0
	for _, b := range a.Busy {
		begin := slices.IndexFunc(a.Trace.LinkLoad[b.Row*linkSteps:(b.Row+1)*linkSteps], func(v uint8) bool { return v > 0 })
		if begin >= 0 {
			first, last = min(first, begin), max(last, begin)
		}
	}
	if first >= last {
		t.Errorf("all links of a chain begin at step %d", first)
	}
}

// The limiting link is one of those drawn, and the one that the sentence names.
func TestLimitIsALink(t *testing.T) {
	a := run(t, Collective{File: File{text(t, "two-hosts")}, Faults: []Fault{{"n0:nic2", .25}}, Op: "all-reduce", Bytes: 1 << 28,
		Algo: "ring"})
	if a.LimitAt < 0 || a.Busy[a.LimitAt].Name != "n0:nic2 - leaf2:p1" {
		t.Errorf("limited by %q, link %d", a.Limit, a.LimitAt)
	}
}

// A critical path goes from message to message: here from rank 0 by way of rank 1 to rank 2, while rank 3 is early.
func TestCriticalPath(t *testing.T) {
	x := &trace{Period: 4, Ranks: 4, Latency: longs{5, 5, 5},
		Rank:    ints{0, 1, 2, 3, 0},
		Channel: ints{0, 0, 0, 0, 0},
		From:    ints{-1, 0, 1, 0, -1},
		To:      ints{1, 2, -1, -1, 3},
		Begin:   longs{0, 105, 210, 165, 100},
		Flow:    longs{0, 105, 210, 165, 100},
		End:     longs{100, 205, 300, 170, 160},
		Pair:    ints{0, 1, -1, -1, 2}}
	if got := x.chain(); !slices.Equal(got, ints{0, 1, 2}) {
		t.Errorf("the path is %v", got)
	}
}

// The path of a simulated run fills its time: every span begins when the one before it is there, but for what software takes,
// and the last one ends with the run. Its ranks are neighbours of the ring.
func TestCriticalPathOfARing(t *testing.T) {
	a := run(t, Collective{File: File{text(t, "two-hosts")}, Op: "all-reduce", Bytes: 1 << 26, Algo: "ring"})
	x := a.Trace
	if n := len(x.Chain); n < 16 {
		t.Fatalf("a path of %d spans through a ring of 16 ranks", n)
	}
	idle := int64(0)
	for k, i := range x.Chain[1:] {
		before := x.Chain[k]
		if x.Begin[before] >= x.Begin[i] {
			t.Fatalf("span %d begins at %d, the one before it at %d", i, x.Begin[i], x.Begin[before])
		}
		if x.Rank[before] != x.Rank[i] && x.From[i] != x.Rank[before] {
			t.Errorf("rank %d waits for rank %d, and receives from %d", x.Rank[i], x.Rank[before], x.From[i])
		}
		idle += max(0, x.Begin[i]-x.there(int(before)))
	}
	end := x.End[x.Chain[len(x.Chain)-1]]
	if end != slices.Max(x.End) || idle > end/4 {
		t.Errorf("the path ends at %d of %d and is idle for %d", end, a.Time, idle)
	}
}
