package watch

import (
	"math"
	"slices"
)

// offset is how far the clock of a host is ahead of the server's, by its last reports. What a report says of the time is older
// by its way here, so a clock looks further behind the slower the report was: the fastest report is the nearest to the truth. A
// mean would take a busy host for one whose clock is behind.
type offset struct {
	last []float64
}

// offsets is how many reports tell: a clock that is set is believed after that many.
const offsets = 16

// add takes how far ahead a report's time is, and gives the estimate.
func (o *offset) add(ahead float64) float64 {
	if len(o.last) == offsets {
		o.last = slices.Delete(o.last, 0, 1)
	}
	o.last = append(o.last, ahead)
	return slices.Max(o.last)
}

// off is what times of the host must be corrected by, 0 where they are as good as the estimate.
func (o *offset) off() float64 {
	if len(o.last) == 0 {
		return 0
	}
	limit := clocksAgree
	if len(o.last) < 4 {
		limit = clocksAgreeFirst
	}
	if most := slices.Max(o.last); math.Abs(most) > limit {
		return most
	}
	return 0
}
