package serve

import (
	"strings"
	"testing"
)

// Requests that come faster than they are answered are named as the limit, however few are simulated; others are not.
func TestMoreRequestsThanAnswers(t *testing.T) {
	e := engine(t, "llama3-8b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 8}, "bf16")
	for rate, want := range map[float64]bool{1: false, 20: false, 1000: true, 300: true} {
		r, err := Run(e, Load{Rate: rate, Input: 2000, Output: 200, Requests: 400, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(r.Limit, "more requests come"); got != want {
			t.Errorf("%g requests a second, %.1f are answered: limit %q, first token %.3g s", rate, r.Total/200, r.Limit, r.TTFT.P99)
		}
	}
}
