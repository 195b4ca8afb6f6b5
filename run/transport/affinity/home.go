// Package affinity spreads a host's ranks over its CPUs.
//
// The kernel tends to put ranks that one process wakes on its core, and takes 10 ms and
// more to spread them, because a waiting rank yields and all of them look busy. Two
// bare processes exchange 112 bytes in 6.3 us on one core, and in 3.7 to 5.4 us on two.
//
// So a rank moves itself, to a CPU with fewer ranks (Allowed, MoveTo) or to its Home. It
// is not pinned there: the kernel may move it on when the CPU is needed.
package affinity

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/transport/wait"
)

// Home is the processor that a rank goes to when it finds that it shares one.
//
// Where every rank of a host can have a core, each has its own home. A rank whose
// yields take longer than they do on a core of its own goes home.
//
// Where ranks outnumber cores, homes are dealt out evenly, and a rank goes home when
// it begins an operation: the system wakes ranks wherever it likes. Eight ranks on
// two cores take 0.78 of the time for 64 KiB to 1 MiB so after a sleep (the median of
// 14 pairs of runs, 0.51 to 1.18, 2026-11-16).
type Home struct {
	wait.Backoff
	Cores bool // every rank of this host can have a core, and there are several ranks

	cpu   uint32
	moves bool         // the ranks of this host outnumber its cores, of which there are several
	moved atomic.Int64 // when the rank went home last, after start
	start time.Time
}

const (
	sharedYield = 1500 * time.Nanosecond // on a core of its own a yield takes 0.3 us
	moveEvery   = 2 * time.Millisecond
)

// Settle finds the home of a rank: ranks is how many are on its host, and before how
// many of those have a lower number. It reports whether each of them can have a core.
func (h *Home) Settle(ranks, before int) (fits bool) {
	cores := Allowed()
	h.start, h.Ranks = time.Now(), ranks
	if ranks <= min(len(cores), runtime.NumCPU()) {
		h.cpu, h.Cores = cores[before], ranks > 1
		return true
	}
	if len(cores) > 1 {
		h.cpu, h.moves = cores[before*len(cores)/ranks], true
	}
	return false
}

// Yield gives the processor to whoever else is on it, unless that takes long.
func (h *Home) Yield() {
	if took := h.Backoff.Yield(); h.Cores && (took == 0 || took >= sharedYield) {
		h.move(time.Since(h.start))
	}
}

// Begin is called when a rank begins an operation.
func (h *Home) Begin() {
	if h.moves {
		h.move(time.Since(h.start))
	}
}

// move sends the rank home.
func (h *Home) move(now time.Duration) {
	last := h.moved.Load()
	if now-time.Duration(last) >= moveEvery && h.moved.CompareAndSwap(last, int64(now)) && processor() != h.cpu {
		MoveTo(h.cpu)
	}
}
