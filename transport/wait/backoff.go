package wait

import (
	"sync/atomic"
	"time"
)

// Backoff is what the waits of a process have learnt from earlier ones, in shared
// memory and over sockets alike: how long to look before sleeping, and whether to
// yield meanwhile. The zero value knows nothing yet.
//
//	nobody else wants the core     look, yield for long, sleep
//	ranks share the core           yield to one another, sleep
//	something else wants the core  look for a moment, sleep: a rank that is woken
//	                               runs soon, and one that looks uses up the time
//	                               that it needs once there is something to do
type Backoff struct {
	Crowded bool // ranks outnumber cores; set before it is used

	patience atomic.Int32 // how often the time of looking is doubled
	until    atomic.Int64 // something else wants the core until then, in ns after start
	span     atomic.Int64 // how long that was taken to last
	long     atomic.Int64 // when a yield last took long
}

// Slept takes note of a sleep. After a short one, waits look twice as long before they
// sleep, up to some 6 ms; after a long one, as long as at first. A rank that is woken
// late makes the others wait, so they sleep and are woken late, too, and so on for ever
// unless they look for longer than waking takes. On a virtual machine, whose host gives
// sleeping processors to others, waking takes long.
func (t *Backoff) Slept(d time.Duration) {
	switch more := t.patience.Load(); {
	case t.Crowded || t.Wanted():
	case d >= Slice:
		t.patience.Store(0)
	case more < mostPatience:
		t.patience.Store(more + 1)
	}
}

const mostPatience = 6

// LookFor is how long a wait over sockets looks before it sleeps, where usual is as long
// as at first.
func (t *Backoff) LookFor(usual time.Duration) time.Duration {
	switch {
	case !t.Wanted():
		return usual << t.patience.Load()
	case t.Crowded:
		return 0
	}
	return moment
}

// moment is how long a rank looks that has a core which something else wants. Most
// work of another rank that runs takes less, and time slices take more.
const moment = 100 * time.Microsecond

// A yield that takes long gave the processor to something that never waits: it may be
// gone for 4 ms. So yields stop for a while and are then tried again. Where ranks share
// cores, one that computes looks the same, now and then: it takes two long yields in a
// row to tell, and the while is shorter.
const (
	longYield   = 500 * time.Microsecond
	longSharing = 2 * time.Millisecond // where ranks outnumber cores
	inARow      = 20 * time.Millisecond
	firstSpan   = 100 * time.Millisecond
	lastSpan    = 800 * time.Millisecond
	lastSharing = 200 * time.Millisecond // where ranks outnumber cores
	soonAfter   = time.Second
)

var start = time.Now()

// Wanted reports whether something else wants the core that this process is on.
func (t *Backoff) Wanted() bool {
	until := t.until.Load()
	return until != 0 && time.Since(start) < time.Duration(until)
}

// Yield gives the processor away, unless something else wants it, and says for how long.
func (t *Backoff) Yield() time.Duration {
	from := time.Since(start)
	if from < time.Duration(t.until.Load()) {
		return 0
	}
	osYield()
	to := time.Since(start)
	if took := to - from; took >= longSharing || took >= longYield && !t.Crowded {
		t.yielded(to)
	}
	return to - from
}

// yielded notes that a yield took long, which is over now.
func (t *Backoff) yielded(now time.Duration) {
	last := time.Duration(t.span.Load())
	if before := time.Duration(t.long.Swap(int64(now))); t.Crowded && (before == 0 || now-before > inARow) {
		return
	}
	span := firstSpan
	if last > 0 && now-time.Duration(t.until.Load()) < max(last, soonAfter) {
		span = min(2*last, lastSpan)
	}
	if t.Crowded {
		span = min(span, lastSharing)
	}
	t.span.Store(int64(span))
	t.until.Store(int64(now + span))
}

// Yield gives the processor to another process that wants it.
func Yield() { osYield() }
