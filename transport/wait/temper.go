package wait

import (
	"sync/atomic"
	"time"
)

// Temper is what a process has learnt about waiting on a host that has a core for every
// rank: how long to look before sleeping, and whether to yield meanwhile. The zero value
// knows nothing yet.
type Temper struct {
	patience atomic.Int32 // how often the time of looking is doubled
	until    atomic.Int64 // no yields before, in ns after start
	span     atomic.Int64 // how long that was
}

// Slept draws the conclusion from a sleep: after a short one waits are to look twice as
// long before they sleep, up to some 6 ms, and after a long one as long as ever. Who is
// woken late is late for the others, which sleep then, and so on for ever if that is
// later than they look. On a virtual machine whose host gives processors that sleep to
// others, waking takes longer than that.
func (t *Temper) Slept(d time.Duration) {
	if d >= Slice {
		t.patience.Store(0)
	} else if more := t.patience.Load(); more < mostPatience {
		t.patience.Store(more + 1)
	}
}

const mostPatience = 6

// Patience is how often the time of looking is to be doubled.
func (t *Temper) Patience() int32 { return t.patience.Load() }

// A core that others want, too, may be gone for 4 ms once it is yielded. Who sleeps has it
// back when it is woken, but best is to keep it: beside a busy process on each of two
// cores two ranks take 0.5 to 1.6 us for an all-reduce of 8 bytes so, and took 0.1 to
// 1.2 ms with yields (2026-11-16). So ranks stop yielding where that took long, and try
// again from time to time: it may have been the host that took the core away meanwhile.
const (
	longYield = 500 * time.Microsecond
	firstSpan = 100 * time.Millisecond
	lastSpan  = 3200 * time.Millisecond
	soonAfter = time.Second
)

var start = time.Now()

// Yield gives the processor away, unless that took long before, and says for how long.
func (t *Temper) Yield() time.Duration {
	from := time.Since(start)
	if from < time.Duration(t.until.Load()) {
		return 0
	}
	osYield()
	to := time.Since(start)
	if to-from >= longYield {
		t.yielded(to)
	}
	return to - from
}

// yielded notes that a yield took long, which is over now.
func (t *Temper) yielded(now time.Duration) {
	span := firstSpan
	if last := time.Duration(t.span.Load()); last > 0 && now-time.Duration(t.until.Load()) < max(last, soonAfter) {
		span = min(2*last, lastSpan)
	}
	t.span.Store(int64(span))
	t.until.Store(int64(now + span))
}
