package sim

import (
	"errors"
	"runtime"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// allocated is what a function allocates in all, which is more than it ever holds.
func allocated(f func()) unit.Bytes {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return unit.Bytes(after.TotalAlloc - before.TotalAlloc)
}

// An all-to-all of 2,048 ranks has four million connections. With 64 MiB to spend it ends before it has made them.
func TestMemoryIsBounded(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 256})
	const limit = 64 * unit.MiB
	for _, unfolded := range []bool{false, true} {
		p := program(t, "pairwise", algo.Spec{Op: sched.AllToAll, Ranks: 2048})
		var err error
		used := allocated(func() { _, err = Collective(g, p, unit.GiB, Options{Memory: limit, Unfolded: unfolded}) })
		if much, ok := errors.AsType[*MemoryError](err); !ok || much.Limit != limit || much.Ranks != 2048 {
			t.Errorf("unfolded %v: %v", unfolded, err)
		}
		if used > 8*limit { // lists that grow are copied, and the graph's tables are made
			t.Errorf("unfolded %v: %s were allocated with a limit of %s", unfolded, used, limit)
		}
	}
}

// What records are charged is no less than what the heap holds of them.
func TestMemoryIsChargedInFull(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 64})
	p := program(t, "pairwise", algo.Spec{Op: sched.AllToAll, Ranks: 512})
	j, err := Job{Program: p, Size: unit.MiB}.placed(g)
	if err != nil {
		t.Fatal(err)
	}
	net, err := networkOf(g, Options{Unfolded: true})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	w, err := newWorld(net, []Job{j}, net.o)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	held := unit.Bytes(after.HeapAlloc) - unit.Bytes(before.HeapAlloc)
	t.Logf("%d connections: charged %s, held %s", len(w.conns), w.bytes, held)
	if held > w.bytes*5/4 {
		t.Errorf("%d connections hold %s and were charged %s", len(w.conns), held, w.bytes)
	}
	runtime.KeepAlive(w)
}

// Best leaves out what is too large where hashed routes fold nothing, says so, and keeps the fastest of the rest.
func TestBestKeepsToItsBudget(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 128})
	f, err := Best(g, sched.AllToAll, 1024, unit.GiB, Options{Memory: 24 * unit.MiB, Routing: ECMP, Slow: []Slow{{"n3:nic2", 0.5}}}, Wish{})
	if err != nil {
		t.Fatal(err)
	}
	cost := 0
	for _, x := range f.Tried {
		if x.Cost {
			cost++
			if x.Time != 0 || x.Why == "" {
				t.Errorf("%+v", x)
			}
		}
	}
	if f.Result == nil || cost == 0 {
		t.Errorf("%d algorithms were left out for their cost: %+v", cost, f.Tried)
	}
}

// Stop ends the search: with what was found, or with ErrBudget.
func TestBestStops(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	if _, err := Best(g, sched.AllReduce, 32, unit.MiB, Options{Stop: func() bool { return true }}, Wish{Plain: true}); !errors.Is(err,
		ErrBudget) {
		t.Errorf("stopped at once: %v", err)
	}
	asked := 0
	f, err := Best(g, sched.AllReduce, 32, unit.MiB, Options{Stop: func() bool { asked++; return asked > 4 }}, Wish{Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	late := 0
	for _, x := range f.Tried {
		if x.Why == ErrBudget.Error() {
			late++
		}
	}
	if f.Result == nil || late == 0 {
		t.Errorf("stopped after four: %s, %d left out", f.Algo, late)
	}
}

// Stop is asked by how much is done, and not by how often: where each moment changes the rates of thousands of flows, few moments
// take long. Here all ranks begin at once and share a fabric that is far too narrow.
func TestStopIsAskedByTheWork(t *testing.T) {
	g := preset(t, "fat-tree", map[string]int{"hosts": 64, "tiers": 2, "down": 7, "up": 1})
	p := program(t, "pairwise-xor", algo.Spec{Op: sched.AllToAll, Ranks: 512})
	asked := 0
	o := Options{Slow: []Slow{{"n3:nic2", 0.5}}, Stop: func() bool { asked++; return asked > 200 }}
	r, err := Collective(g, p, unit.GiB, o)
	if !errors.Is(err, ErrLate) {
		t.Fatalf("%v %v after being asked %d times", r, err, asked)
	}
}
