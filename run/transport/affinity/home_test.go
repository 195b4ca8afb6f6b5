//go:build linux

package affinity

import (
	"runtime"
	"testing"
	"time"
)

// Where every rank of a host can have a core, each has a home of its own; where they
// cannot, cores have as many ranks each, or one more.
func TestHomes(t *testing.T) {
	cores := Allowed()
	n := len(cores)
	var h Home
	if !h.Settle(1, 0) || h.Cores {
		t.Errorf("a rank that is alone on its host: %v", h.Cores)
	}
	homes := map[uint32]bool{}
	for rank := range n {
		var h Home
		if !h.Settle(n, rank) || h.Cores != (n > 1) {
			t.Errorf("rank %d of %d on %d cores: %v", rank, n, n, h.Cores)
		}
		homes[h.cpu] = true
	}
	if len(homes) != n {
		t.Errorf("%d ranks have homes %v", n, homes)
	}
	on := map[uint32]int{}
	for rank := range n + 1 {
		var h Home
		if h.Settle(n+1, rank) || h.Cores || h.moves != (n > 1) {
			t.Errorf("rank %d of %d on %d cores: %v", rank, n+1, n, h.Cores)
		}
		on[h.cpu]++
	}
	for _, cpu := range cores {
		if k := on[cpu]; n > 1 && k != 1 && k != 2 {
			t.Errorf("%d of %d ranks are at home on core %d of %d", k, n+1, cpu, n)
		}
	}
}

// A rank that shares its core goes home, but not too often.
func TestGoesHome(t *testing.T) {
	cores := Allowed()
	if len(cores) < 2 {
		t.Skip("there is one core")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	goes := func(moved, now time.Duration) bool {
		for range 100 { // the system may move it meanwhile
			var h Home
			h.Settle(2, 1)
			h.moved.Store(int64(moved))
			MoveTo(cores[0])
			h.move(now)
			if h.moved.Load() == int64(now) != (processor() == cores[1]) {
				continue
			}
			return h.moved.Load() == int64(now)
		}
		t.Error("it never was where it went")
		return false
	}
	const at = time.Second
	if !goes(0, at) {
		t.Error("it stays")
	}
	if goes(at, at+moveEvery/2) {
		t.Error("it goes twice in a row")
	}
}
