//go:build linux

package tcp

import (
	"runtime"
	"testing"
	"time"

	"github.com/weft-fabric/weft/transport/wait"
)

// Where every rank of a host can have a core, each has a home of its own; where they
// cannot, cores have as many ranks each, or one more.
func TestQuarters(t *testing.T) {
	cores := wait.Allowed()
	all := []facts{{host: "a"}}
	for range cores {
		all = append(all, facts{host: "b"})
	}
	var q quarters
	if q.settle(all, 0); q.roomy || q.looks != alone {
		t.Errorf("a rank that is alone on its host: %v, %d looks", q.roomy, q.looks)
	}
	homes := map[uint32]bool{}
	for rank := 1; rank < len(all); rank++ {
		var q quarters
		q.settle(all, rank)
		if q.roomy != (len(cores) > 1) || q.looks != alone {
			t.Errorf("rank %d of %d on %d cores: %v, %d looks", rank, len(cores), len(cores), q.roomy, q.looks)
		}
		homes[q.home] = true
	}
	if len(homes) != len(cores) {
		t.Errorf("%d ranks have homes %v", len(cores), homes)
	}
	all[0].host = "b"
	on := map[uint32]int{}
	for rank := range all {
		var q quarters
		q.settle(all, rank)
		on[q.home]++
		if q.roomy || q.crowd != (len(cores) > 1) || q.looks != tries {
			t.Errorf("rank %d of %d on %d cores: %v, %d looks", rank, len(all), len(cores), q.roomy, q.looks)
		}
	}
	for _, cpu := range cores {
		if n := on[cpu]; len(cores) > 1 && n != 1 && n != 2 {
			t.Errorf("%d of %d ranks are at home on core %d of %d", n, len(all), cpu, len(cores))
		}
	}
}

// A rank that shares its core goes home, but not too often.
func TestQuartersHome(t *testing.T) {
	cores := wait.Allowed()
	if len(cores) < 2 {
		t.Skip("there is one core")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	goes := func(parted, now time.Duration) bool {
		for range 100 { // the system may move it meanwhile
			var q quarters
			q.settle([]facts{{host: "a"}, {host: "a"}}, 1)
			q.parted.Store(int64(parted))
			wait.MoveTo(cores[0])
			q.part(now)
			if q.parted.Load() == int64(now) != (processor() == cores[1]) {
				continue
			}
			return q.parted.Load() == int64(now)
		}
		t.Error("it never was where it went")
		return false
	}
	const at = time.Second
	if !goes(0, at) {
		t.Error("it stays")
	}
	if goes(at, at+partEvery/2) {
		t.Error("it goes twice in a row")
	}
}
