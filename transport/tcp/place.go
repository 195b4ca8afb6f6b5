//go:build linux

package tcp

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/transport/wait"
)

// Ranks that are woken by one process tend to be put on its core, and the system takes
// 10 ms and more to spread them, as all are always busy: who waits yields to the other.
// Two bare processes exchange 112 bytes in 6.3 us so, and in 3.7 to 5.4 on two cores.
// Where every rank of a host can have a core, each has one for a home: a rank whose yields take
// longer than they do on a core of its own goes home, if it is not there. It is not kept
// there: the system may move it, and who binds ranks to cores leaves it nowhere to go.
// Ranks that outnumber the cores have homes, too, as many on each core, and go there when
// they begin an operation: those that were asleep are woken wherever the system likes, and
// eight of them on two cores take 0.78 of the time for 64 KiB to 1 MiB so after a sleep
// (the median of 14 pairs of runs, 0.51 to 1.18, 2026-11-16).
type quarters struct {
	home   uint32
	roomy  bool         // every rank of this host can have a core
	crowd  bool         // the ranks of this host outnumber its cores
	looks  int          // of one that waits for a short message, before it yields
	parted atomic.Int64 // when the rank went home last, after the start of the endpoint
	since  time.Time    // that start
	temper wait.Temper  // of a roomy one
}

const (
	sharedYield = 1500 * time.Nanosecond // on a core of its own a yield takes 0.3 us
	partEvery   = 2 * time.Millisecond
)

// settle finds the home of a rank among those of its host.
func (q *quarters) settle(all []facts, rank int) {
	cores := wait.Allowed()
	here, before := 0, 0
	for i, f := range all {
		if f.host == all[rank].host {
			if here++; i < rank {
				before++
			}
		}
	}
	q.since, q.looks = time.Now(), tries
	if here <= min(len(cores), runtime.NumCPU()) {
		q.home, q.roomy, q.looks = cores[before], here > 1, alone
	} else if len(cores) > 1 {
		q.home, q.crowd = cores[before*len(cores)/here], true
	}
}

// yield gives the processor to whoever else is on it, unless that takes long.
func (q *quarters) yield() {
	if !q.roomy {
		yield()
	} else if took := q.temper.Yield(); took == 0 || took >= sharedYield {
		q.part(time.Since(q.since))
	}
}

// spread is called when a rank begins an operation.
func (q *quarters) spread() {
	if q.crowd {
		q.part(time.Since(q.since))
	}
}

// part sends the rank home, as its core is another's, too.
func (q *quarters) part(now time.Duration) {
	last := q.parted.Load()
	if now-time.Duration(last) >= partEvery && q.parted.CompareAndSwap(last, int64(now)) && processor() != q.home {
		wait.MoveTo(q.home)
	}
}

// processor is the number of the one that this runs on.
func processor() uint32 {
	var cpu uint32
	_, _, _ = syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return cpu
}
