package design

import (
	"errors"
	"os"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
)

// An analysis that is stopped before any of its stages ends there, with ErrStopped, and does nothing more.
func TestAnalysisStops(t *testing.T) {
	text, err := os.ReadFile("../../examples/dragonfly.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Parse("dragonfly.yaml", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	if _, err := (Run{Tell: func(_ string, _, n int) { all = n }}).Analyze(c); err != nil || all < 10 {
		t.Fatalf("%d stages, %v", all, err)
	}
	for last := range all {
		asked, told := 0, 0
		r, err := Run{Stop: func() bool { asked++; return asked > last }, Tell: func(string, int, int) { told++ }}.Analyze(c)
		if r != nil || !errors.Is(err, ErrStopped) || told != last {
			t.Errorf("stopped before stage %d: it began %d, error %v", last, told, err)
		}
	}
}
