package read

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Clocks of different zones. Most logs have times without a zone. Ranks give up an operation that all wait in at the same
// moment, so if two files tell of one operation at times that differ by a multiple of 15 minutes, the difference is their
// zones:
//
//	a.log  [rank0]:[E603 12:41:09 ...] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=14728
//	b.log  [rank4]:[E603 07:41:09 ...] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=14728     5 h behind
//
// What remains of a difference is the error of a clock, or the time between the two.

const (
	zone     = 900.0 // seconds between zones
	atOnce   = 60.0  // how far apart the ranks give up
	farthest = 14 * 3600.0
)

// zones moves the times of files to the clock of the one that has most of the operations.
func zones(c *doctor.Case) {
	times := givenUp(c)
	if len(times) < 2 {
		return
	}
	files := slices.SortedFunc(maps.Keys(times), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(times[b]), len(times[a])), cmp.Compare(a, b))
	})
	shift := map[string]float64{}
	for _, f := range files[1:] {
		if d, ok := zoneBetween(times[files[0]], times[f]); ok {
			shift[f] = d
		}
	}
	for i := range c.Lines {
		if l := &c.Lines[i]; l.Time != 0 {
			l.Time += shift[l.At.File]
		}
	}
}

// givenUp is when ranks gave up operations first, by file and operation.
func givenUp(c *doctor.Case) map[string]map[string]float64 {
	times := map[string]map[string]float64{}
	for i := range c.Lines {
		l := &c.Lines[i]
		if l.Kind != "watchdog" || l.Time == 0 {
			continue
		}
		of := times[l.At.File]
		if of == nil {
			of = map[string]float64{}
			times[l.At.File] = of
		}
		key := l.F["group"] + " " + l.F["seq"] + " " + l.F["op"]
		if at, ok := of[key]; !ok || l.Time < at {
			of[key] = l.Time
		}
	}
	return times
}

// zoneBetween is what must be added to the times of b to be those of a, if they differ by a zone.
func zoneBetween(a, b map[string]float64) (float64, bool) {
	var d []float64
	for key, at := range b {
		if other, ok := a[key]; ok {
			d = append(d, other-at)
		}
	}
	if len(d) == 0 {
		return 0, false
	}
	slices.Sort(d)
	mid := d[len(d)/2]
	whole := math.Round(mid/zone) * zone
	return whole, whole != 0 && math.Abs(whole) <= farthest && math.Abs(mid-whole) <= atOnce
}
