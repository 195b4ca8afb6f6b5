package plan

import (
	"math"
	"strings"
	"testing"
)

// Peaks that torchtitan reports, in GiB, are predicted within 8% in the median.
func TestPeaksOfTorchtitan(t *testing.T) {
	var errs []float64
	for _, p := range Points() {
		if p.Memory == 0 || !strings.HasSuffix(p.ID, "-tt") {
			continue
		}
		c, err := price(Question{Model: p.Model, Machine: clusterOf(t, p.GPU, p.GPUs, p.NIC), Framework: p.Framework, Layout: p.Layout}, habits)
		if err != nil {
			t.Fatal(err)
		}
		errs = append(errs, math.Abs(c.Peak/(p.Memory*1.0737)-1))
	}
	m, q := quantiles(errs)
	t.Logf("%d peaks: median %.1f%%, p90 %.1f%%", len(errs), 100*m, 100*q)
	if m > .08 {
		t.Errorf("median %.1f%%, p90 %.1f%%", 100*m, 100*q)
	}
}
