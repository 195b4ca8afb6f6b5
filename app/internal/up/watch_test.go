package up

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// A rank that takes no step is named while it hangs, and the run goes on afterwards.
func TestDrillHangIsNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("a hang takes its time")
	}
	s := begin(t, Options{Steps: 100_000, For: time.Second, Drill: Drill{{"hang", 1}}, Seed: 3, lasting: limit})
	s.await("verdict", "slot ", " hangs in ") // however long the machine takes
	s.stop()
	sum, err := s.ends()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(sum.Verdicts, func(v Verdict) bool { return v.Kind == "hang" && len(v.Slots) == 1 }) {
		t.Errorf("verdicts: %+v", sum.Verdicts)
	}
}

// Links are throttled where there are connections.
func TestDrillLinkNeedsTCP(t *testing.T) {
	s := begin(t, Options{Drill: Drill{{"link", 1}}})
	if _, err := s.ends(); !isUse(err) || !strings.Contains(err.Error(), "--transport tcp") {
		t.Error(err)
	}
}
