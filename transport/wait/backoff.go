package wait

import (
	"sync/atomic"
	"time"
)

// Backoff is what the waits of a process have learnt from earlier ones, in shared
// memory and over sockets alike: how long to look before sleeping, and whether to
// yield meanwhile. The zero value knows nothing yet.
type Backoff struct {
	patience atomic.Int32 // how often the time of looking is doubled
	until    atomic.Int64 // no yields before, in ns after start
	span     atomic.Int64 // how long that was
	sleepy   atomic.Int32 // waits that are to sleep at once
}

// Slept takes note of a sleep. After a short one, waits look twice as long before they
// sleep, up to some 6 ms; after a long one, as long as at first. A rank that is woken
// late makes the others wait, so they sleep and are woken late, too, and so on for ever
// unless they look for longer than waking takes. On a virtual machine, whose host gives
// sleeping processors to others, waking takes long.
func (t *Backoff) Slept(d time.Duration) {
	if d >= Slice {
		t.patience.Store(0)
	} else if more := t.patience.Load(); more < mostPatience {
		t.patience.Store(more + 1)
	}
}

const mostPatience = 6

// Patience is how often the time of looking is to be doubled.
func (t *Backoff) Patience() int32 { return t.patience.Load() }

// A core that other processes want may be gone for 4 ms once it is yielded. It is best to
// keep it: beside a busy process on each of two cores two ranks take 0.5 to 1.6 us for an
// all-reduce of 8 bytes, and took 0.1 to 1.2 ms with yields (2026-11-16). So ranks stop
// yielding where that took long, and try again from time to time: the host may have taken
// the core away meanwhile.
const (
	longYield = 500 * time.Microsecond
	firstSpan = 100 * time.Millisecond
	lastSpan  = 3200 * time.Millisecond
	soonAfter = time.Second
)

var start = time.Now()

// Yield gives the processor away, unless that took long before, and says for how long.
func (t *Backoff) Yield() time.Duration {
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
func (t *Backoff) yielded(now time.Duration) {
	span := firstSpan
	if last := time.Duration(t.span.Load()); last > 0 && now-time.Duration(t.until.Load()) < max(last, soonAfter) {
		span = min(2*last, lastSpan)
	}
	t.span.Store(int64(span))
	t.until.Store(int64(now + span))
}

// Where ranks outnumber cores, a yield that takes as long as LongYield gave the processor
// to something that never waits. The next waits then sleep at once, because a process
// that is woken runs soon.
const (
	LongYield   = time.Millisecond
	sleepyWaits = 256
)

// YieldedLong says that a yield took longer than LongYield where ranks outnumber cores.
func (t *Backoff) YieldedLong() { t.sleepy.Store(sleepyWaits) }

// SleepsAtOnce reports whether waits are to sleep instead of yielding.
func (t *Backoff) SleepsAtOnce() bool { return t.sleepy.Load() > 0 }

// SleptAtOnce counts a wait that slept.
func (t *Backoff) SleptAtOnce() { t.sleepy.Add(-1) }

// Yield gives the processor to another process that wants it.
func Yield() { osYield() }
