package read

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Programs that catch many exceptions are read as fast as others: of the lines that follow each only those are looked at that may
// be a step. A line that is looked at is copied, so copies count them.
func TestManyCaughtExceptions(t *testing.T) {
	const raised, after = 300, 100
	lines := strings.Repeat("INFO the loader got a shard of many from the store and checked it\n", after)
	trace := "Traceback (most recent call last):\n  File \"m.py\", line 12, in push\nrequests.HTTPError: 503\n"
	text := strings.Repeat(lines+trace, raised)
	copies := testing.AllocsPerRun(1, func() {
		if err := File(&doctor.Case{}, "log", "", strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	})
	if each := copies / raised; each > after/2 {
		t.Errorf("%.0f copies for each exception, which %d other lines follow", each, after)
	} else {
		t.Logf("%.0f copies for each exception", each)
	}
}
