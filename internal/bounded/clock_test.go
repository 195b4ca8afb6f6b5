package bounded

import (
	"testing"
	"testing/synctest"
	"time"
)

// A gap in the ticks counts as little as a busy machine makes of it; the rest is time in which it stood still.
func TestTheClockLeavesGapsOut(t *testing.T) {
	var c clock
	at := time.Now()
	for _, x := range []struct{ passed, ran, stood time.Duration }{
		{0, 0, 0},
		{tick, tick, 0},
		{3 * tick, 4 * tick, 0}, // busy
		{9 * time.Second, 4*tick + most, 9*time.Second - most},
		{tick, 5*tick + most, 9*time.Second - most},
	} {
		at = at.Add(x.passed)
		if ran := c.at(at); ran != x.ran || c.stood != x.stood {
			t.Errorf("after another %v it ran for %v and stood for %v, want %v and %v", x.passed, ran, c.stood, x.ran, x.stood)
		}
	}
}

// On a machine that runs, the limit is that of the clock on the wall.
func TestAfterIsAsLongAsItSays(t *testing.T) {
	for _, limit := range []time.Duration{0, time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			still := StoodStill(t)
			<-After(t, limit)
			if took := time.Since(began); took < limit || took > limit+tick || still() > 0 {
				t.Errorf("%v took %v, of which it stood still for %v", limit, took, still())
			}
		})
	}
}
