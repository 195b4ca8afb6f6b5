package plan

import (
	"fmt"
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
		c, err := price(Question{Model: p.Model, Machine: clusterOf(t, p.GPU, p.GPUs, p.NIC), Framework: p.Framework, Layout: p.Layout}, habits,
			math.Inf(1))
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

// Every measured step ran, so it must fit. Where what is computed again is stated with the measurement, 97% of the verdicts
// are right; elsewhere it may be anything, and the steps must fit with full recompute at least.
func TestMeasuredStepsFit(t *testing.T) {
	machines := map[string]*Machine{}
	all, right := map[bool]int{}, map[bool]int{}
	for _, p := range Points() {
		l := p.Layout
		if l.Batch%(l.Micro*l.DP) != 0 || l.Check(p.Model, 0) != nil {
			continue
		}
		if l.VPP > 1 && l.MicroBatches()%l.PP != 0 {
			l.VPP, l.Schedule = 1, "1f1b"
		}
		key := fmt.Sprint(p.GPU, p.GPUs, p.NIC)
		if machines[key] == nil {
			machines[key] = clusterOf(t, p.GPU, p.GPUs, p.NIC)
		}
		_, group, _ := strings.Cut(p.ID, "-")
		stated := group != "dgxc" && group != "mb"
		if !stated {
			l.Recompute.Full = true
		}
		c, err := price(Question{Model: p.Model, Machine: machines[key], Framework: p.Framework, Layout: l}, habits, math.Inf(1))
		if err != nil {
			t.Fatal(p.ID, err)
		}
		all[stated]++
		if c.Fits {
			right[stated]++
		} else {
			t.Logf("%s %s on %s is said to need %.1f GB more: %s", p.ID, p.Model.Name, p.GPU, c.Over/1e9, l)
		}
	}
	for stated, n := range all {
		t.Logf("recompute stated %v: %d of %d fit", stated, right[stated], n)
		if float64(right[stated]) < .97*float64(n) {
			t.Errorf("recompute stated %v: %d of %d are said to fit", stated, right[stated], n)
		}
	}
}
