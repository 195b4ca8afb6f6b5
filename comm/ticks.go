package comm

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// clock is the time since the host started, in nanoseconds: the same for all
// processes of a host.
func clock() int64 { return clockBase + int64(time.Since(clockStart)) }

var clockStart, clockBase = func() (time.Time, int64) {
	var t unix.Timespec
	start := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return start, 0
	}
	return start, t.Nano()
}()

// loose marks a time in ticks as that of an earlier look at the clock: what has it
// happened then or later.
const loose = 1

// The first tick, when the process started, gives the rate of ticks when
// somebody asks for it: the longer the process ran, the better.
var ticksStart, ticksClock = ticks(), clock()

var (
	rateMu sync.Mutex
	rate   float64 // nanoseconds a tick
	rateAt int64   // the clock when it was found
)

// toClock turns ticks into the time of the clock.
func toClock(t int64) int64 { return newAnchor().clock(t) }

// anchor is a moment in ticks and by the clock. Times that are compared with one
// another must be turned by the same one, as the rate gets better with time.
type anchor struct {
	now, at int64
	rate    float64
}

func newAnchor() anchor {
	now, at := clock(), ticks()
	rateMu.Lock()
	defer rateMu.Unlock()
	if rate == 0 || now-rateAt > int64(time.Second) {
		if at > ticksStart {
			rate = float64(now-ticksClock) / float64(at-ticksStart)
		}
		rateAt = now
	}
	return anchor{now, at, rate}
}

// clock turns ticks into the time of the clock; none stay none.
func (a anchor) clock(t int64) int64 {
	if t == 0 {
		return 0
	}
	return a.now - int64(float64(a.at-t)*a.rate)
}
