package wait

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"
)

// Backoff is what the waits of a process have learnt from earlier ones, in shared
// memory and over sockets alike: how long to look before sleeping, and whether to
// yield meanwhile. The zero value knows nothing yet.
//
//	nothing else wants the core      look, yield for long, sleep
//	ranks share the core             yield to one another, sleep
//	the host takes the core away     look for long, sleep: what is yielded comes back late
//	other processes want the core    look for a moment, sleep: a rank that is woken runs
//	                                 soon, and one that looks uses up the time that it
//	                                 needs once there is something to do
type Backoff struct {
	Ranks int // of this host; set before it is used

	beside   atomic.Int32 // threads of all ranks that may look at once, if they are more than the ranks
	patience atomic.Int32 // how often the time of looking is doubled
	until    atomic.Int64 // no yields before, in ns after start
	span     atomic.Int64 // how long that was
	wanted   atomic.Bool  // other processes want the core, as far as is known until then
	long     atomic.Int64 // when the last long yield ended
	lost     atomic.Int64 // how long that one took, and those right before it
	seen     atomic.Int64 // when yields were last found to take long
}

// Slept takes note of a sleep. After a short one, waits look twice as long before they
// sleep, up to some 6 ms; after a long one, as long as at first. A rank that is woken
// late makes the others wait, so they sleep and are woken late, too, and so on for ever
// unless they look for longer than waking takes. On a virtual machine, whose host gives
// sleeping processors to others, waking takes long.
func (t *Backoff) Slept(d time.Duration) {
	switch more := t.patience.Load(); {
	case t.crowded() || t.Wanted():
	case d >= Slice:
		t.patience.Store(0)
	case more < mostPatience:
		t.patience.Store(more + 1)
	}
}

const mostPatience = 6

// Beside says how many threads of all ranks of this machine may look at once.
func (t *Backoff) Beside(threads int) {
	for was := t.beside.Load(); int(was) < threads && !t.beside.CompareAndSwap(was, int32(threads)); was = t.beside.Load() {
	}
}

// threads is how many may look at once.
func (t *Backoff) threads() int { return max(t.Ranks, int(t.beside.Load())) }

// crowded reports whether ranks outnumber cores.
func (t *Backoff) crowded() bool { return t.Ranks > runtime.NumCPU() }

// LookFor is how long a wait over sockets looks before it sleeps, where usual is as long
// as at first.
func (t *Backoff) LookFor(usual time.Duration) time.Duration {
	switch {
	case !t.Wanted():
		return usual << t.patience.Load()
	case t.crowded():
		return 0
	}
	return moment
}

// moment is how long a rank looks that has a core which other processes want. Most
// work of another rank that runs takes less, and time slices take more.
const moment = 100 * time.Microsecond

// A core that other processes want may be gone for 4 ms once it is yielded, and for longer
// if they are many. So yields stop for a while where they took long. A long yield does not
// tell why: a rank that shares the core may have computed, or the host of a virtual
// machine may have taken the core. So the system is asked whether more wants to run than
// the ranks, and asked again before the next yield.
//
// The system counts what runs on other cores, in other containers and at a lower
// priority, too. So one long yield by itself says nothing: some must follow one another
// closely, as they do beside a process that never waits. And what the system says is
// believed for a second; then a yield is tried. Four ranks on two cores that lost 5% of
// their time to a load of 20 took 11 us for 8 bytes before, and 6.6 since; 8 took 55 and
// 8.8 (medians of single operations, 2026-11-17).
//
// Beside a busy process on each of 16 cores, 8 ranks take 0.9 us for an all-reduce of 8
// bytes, and took 8 ms without this; 4 ranks on two cores beside several busy processes
// take 0.09 ms and took 7 (medians of single operations, 2026-11-16).
const (
	longYield = 500 * time.Microsecond
	firstSpan = 100 * time.Millisecond
	lastSpan  = 800 * time.Millisecond
	soonAfter = time.Second
	closeBy   = 2 * time.Millisecond
	enough    = 10 * time.Millisecond
	believed  = time.Second
)

var start = time.Now()

// Wanted reports whether other processes want the core that this one is on.
func (t *Backoff) Wanted() bool {
	return t.wanted.Load() && time.Since(start) < time.Duration(t.until.Load())
}

// Yield gives the processor away, unless that took long before, and says for how long.
func (t *Backoff) Yield() time.Duration {
	from := time.Since(start)
	if from < time.Duration(t.until.Load()) || t.wanted.Load() && t.stillWanted(from, othersRun(t.threads())) {
		return 0
	}
	osYield()
	to := time.Since(start)
	if to-from >= longYield && t.again(from, to) {
		t.yielded(to, othersRun(t.threads()))
	}
	return to - from
}

// again reports whether long yields follow closely upon one another and took enough time
// together, or whether one follows closely upon the end of a pause.
func (t *Backoff) again(from, to time.Duration) bool {
	lost := to - from
	if from-time.Duration(t.long.Swap(int64(to))) < closeBy {
		lost += time.Duration(t.lost.Load())
	}
	t.lost.Store(int64(lost))
	paused := time.Duration(t.until.Load())
	return lost >= enough || paused > 0 && from-paused < closeBy
}

// stillWanted takes note of whether other processes still want to run, so far as that
// can be believed without another yield.
func (t *Backoff) stillWanted(now time.Duration, others bool) bool {
	others = others && now-time.Duration(t.seen.Load()) < believed
	if others {
		t.until.Store(int64(now + firstSpan))
	} else {
		t.until.Store(int64(now)) // the pause ends
	}
	t.wanted.Store(others)
	return others
}

// yielded notes that a yield took long, and whether other processes want to run. Ranks
// that share cores go on yielding to one another if none do.
func (t *Backoff) yielded(now time.Duration, others bool) {
	if t.crowded() && !others {
		return
	}
	span, last := firstSpan, time.Duration(t.span.Load())
	if last > 0 && now-time.Duration(t.until.Load()) < max(last, soonAfter) {
		span = min(2*last, lastSpan)
	}
	t.span.Store(int64(span))
	t.seen.Store(int64(now))
	t.wanted.Store(others)
	t.until.Store(int64(now + span))
}

// othersRun asks the system whether more processes want to run than the ranks of this
// host: one for every four cores, as the system's own come and go.
func othersRun(ranks int) bool {
	b, err := os.ReadFile("/proc/loadavg")
	return err == nil && running(b)-ranks >= max(1, runtime.NumCPU()/4)
}

// running is how many threads run or could, of what /proc/loadavg says:
//
//	0.20 0.18 0.12 3/201 11206
func running(loadavg []byte) int {
	f := bytes.Fields(loadavg)
	if len(f) < 4 {
		return 0
	}
	now, _, _ := bytes.Cut(f[3], []byte("/"))
	n, _ := strconv.Atoi(string(now))
	return n
}

// Yield gives the processor to another process that wants it.
func Yield() { osYield() }
