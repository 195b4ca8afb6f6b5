package web

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/view/report"
)

// Collectives of the page say what they take against what was predicted; those without a prediction say nothing.
func TestCollectivesAgainstPrediction(t *testing.T) {
	b := NewBoard()
	defer b.Close()
	x := newTally()
	x.set([]report.Collective{{Op: "all-reduce", Bytes: 1 << 20, Count: 4, Time: 40 * time.Millisecond, BusFactor: 1.5},
		{Op: "barrier", Count: 1, Time: time.Millisecond}})
	b.tallies[0] = x
	b.Against([]Against{{"all-reduce", 1 << 20, 3 * time.Millisecond, 2 * time.Millisecond}, {"all-gather", 8, time.Second, time.Second}})
	list := b.collectives()
	if len(list) != 2 {
		t.Fatalf("%d operations: %+v", len(list), list)
	}
	if c := list[0]; c.Op != "all-reduce" || c.Took != 3e6 || c.Predicted != 2e6 || c.Ratio != 1.5 || c.Mean != 1e7 {
		t.Errorf("%+v", c)
	}
	if c := list[1]; c.Predicted != 0 || c.Took != 0 || c.Ratio != 0 {
		t.Errorf("a barrier without a prediction: %+v", c)
	}
}
