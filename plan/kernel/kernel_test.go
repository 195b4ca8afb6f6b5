package kernel

import (
	"math"
	"slices"
	"testing"
)

// errors leaves every measured point out in turn and predicts it from the others.
func leaveOneOut(t *table, column string, form func(i int) float64, s smooth) (median, p90 float64) {
	var errs []float64
	for i := range t.at {
		us := t.us[column][i]
		if us == 0 {
			continue
		}
		f, _, _ := t.correct(column, t.at[i], s, i)
		errs = append(errs, math.Abs(form(i)*f*1e6/us-1))
	}
	slices.Sort(errs)
	return errs[len(errs)/2], errs[len(errs)*9/10]
}

func TestKernels(t *testing.T) {
	tab := tables()
	for _, col := range []string{"a100/bf16", "h100/bf16", "h100/fp8", "h100/fp8block", "b200/bf16", "b200/fp8", "b200/fp4"} {
		c, ty := split(col)
		m, p := leaveOneOut(tab.gemm, col, func(i int) float64 { s := tab.gemm.raw[i]; return c.gemmForm(ty, s[0], s[1], s[2]) }, gemmSmooth)
		t.Logf("gemm %s: median %.1f%%, p90 %.1f%%", col, 100*m, 100*p)
	}
	for _, col := range []string{"a100/bf16", "h100/bf16", "h100/fp8", "b200/bf16", "b200/fp8"} {
		c, ty := split(col)
		m, p := leaveOneOut(tab.prefill, col, func(i int) float64 { s := tab.prefill.raw[i]; return c.prefillForm(ty, s[0], s[1], s[2], s[3], 128) }, prefillSmooth)
		t.Logf("prefill %s: median %.1f%%, p90 %.1f%%", col, 100*m, 100*p)
		m, p = leaveOneOut(tab.decode, col, func(i int) float64 { s := tab.decode.raw[i]; return c.decodeForm(ty, s[0], s[2], s[3], s[4], 128) }, decodeSmooth)
		t.Logf("decode %s: median %.1f%%, p90 %.1f%%", col, 100*m, 100*p)
	}
}
