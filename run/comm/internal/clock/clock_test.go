package clock

import "testing"

// Calls that follow close upon one another look at the clock once in a while, and say
// so; after a pause each has its own time.
func TestTimesOfSwiftCalls(t *testing.T) {
	var c Stopwatch
	exact := 0
	for range 64 {
		if c.About()&Loose == 0 {
			exact++
		}
	}
	if exact < 64/8 {
		t.Errorf("%d of 64 calls looked at the clock", exact)
	}
	for range 3 {
		c.free = 0
		c.last -= closeBy
		if c.About()&Loose != 0 || c.free != 0 {
			t.Error("a call that does not follow close upon the one before has no time of its own")
		}
	}
}
