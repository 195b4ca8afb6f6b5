package plan

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// What Megatron-LM's own functional tests on eight GPUs print: bytes allocated after a
// step, which is the state, and the most that was, in testdata/memory.csv with the
// arguments they ran with. They are read as a user's script would be.
func TestMemoryOfMegatron(t *testing.T) {
	runs, refused := megatronRuns(t)
	states, peaks := map[string][]float64{}, map[string][]float64{}
	for _, r := range runs {
		kind := strings.TrimPrefix(r.class, "Megatron, ")
		states[kind] = append(states[kind], math.Abs(r.stateSaid/r.state-1))
		peaks[kind] = append(peaks[kind], math.Abs(r.predicted/r.measured-1))
	}
	if n := len(runs) + refused; refused > n/10 {
		t.Errorf("%d of %d are refused", refused, n)
	}
	most := map[string][4]float64{"gpt": {.02, .02, .10, .13}, "moe": {.02, .04, .08, .10}} // medians of state and peak, p90
	for kind, want := range most {
		for i, list := range [][]float64{states[kind], peaks[kind]} {
			slices.Sort(list)
			what := []string{"state", "peak"}[i]
			t.Logf("%s, %s: %d runs, median %.1f%%, p90 %.1f%%", kind, what, len(list), 100*list[len(list)/2], 100*list[len(list)*9/10])
			if m, q := list[len(list)/2], list[len(list)*9/10]; m > want[i] || q > want[i+2] {
				t.Errorf("%s, %s: the errors' median is %.1f%%, p90 %.1f%%; want at most %.0f and %.0f%%",
					kind, what, 100*m, 100*q, 100*want[i], 100*want[i+2])
			}
		}
	}
}
