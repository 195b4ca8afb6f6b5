// Package clock tells the time: by the host's clock, and by the processor's counter where looking at the clock would take too
// long.
package clock

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the host started, in nanoseconds: the same for all processes of a host.
func Now() int64 { return base + int64(time.Since(start)) }

var start, base = func() (time.Time, int64) {
	var t unix.Timespec
	start := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return start, 0
	}
	return start, t.Nano()
}()

// Loose marks a time in ticks as that of an earlier look at the clock: what has it happened then or later.
const Loose = 1

// Exact is the time in ticks, not marked as loose.
func Exact() int64 { return Ticks() &^ Loose }

// Stopwatch gives times to operations that follow close upon one another and wait for nobody. Looking at the clock would be a
// sixth of their time, so only one of eight looks; the others have the time of the last look, marked as loose.
type Stopwatch struct {
	last int64
	free int // looks that may be left out
}

// closeBy, in ticks, is some 3 us: what eight operations take that wait for nobody.
const closeBy = 1 << 13

// About is the time, or that of a look just before.
func (s *Stopwatch) About() int64 {
	if s.free > 0 {
		s.free--
		return s.last | Loose
	}
	now := Exact()
	if now-s.last < closeBy {
		s.free = 7
	}
	s.last = now
	return now
}

// Look is the time now.
func (s *Stopwatch) Look() int64 {
	s.last = Exact()
	return s.last
}

// The first tick, when the process started, gives the rate of ticks when somebody asks for it: the longer the process ran,
// the better.
var firstTick, firstClock = Ticks(), Now()

var (
	rateMu sync.Mutex
	rate   float64 // nanoseconds a tick
	rateAt int64   // the clock when it was found
)

// Since is how long ago a time in ticks was.
func Since(ticks int64) time.Duration { return time.Duration(Now() - NewAnchor().Time(ticks)) }

// Anchor is a moment in ticks and by the clock. Times that are compared with one another must be turned by the same anchor, as
// the rate gets better with time.
type Anchor struct {
	now, at int64
	rate    float64
}

// NewAnchor is this moment.
func NewAnchor() Anchor {
	now, at := Now(), Ticks()
	rateMu.Lock()
	defer rateMu.Unlock()
	if rate == 0 || now-rateAt > int64(time.Second) {
		if at > firstTick {
			rate = float64(now-firstClock) / float64(at-firstTick)
		}
		rateAt = now
	}
	return Anchor{now, at, rate}
}

// Time turns ticks into the time of the clock; 0 stays 0.
func (a Anchor) Time(t int64) int64 {
	if t == 0 {
		return 0
	}
	return a.now - int64(float64(a.at-t)*a.rate)
}
