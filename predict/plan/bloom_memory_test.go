package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/work"
)

// bloomRun is a layout that the BLOOM team tried on 384 A100: its peak as nvidia-smi showed it, or that it ran out of memory.
type bloomRun struct {
	name     string
	measured float64 // bytes; 0 if it ran out
	cost     *Cost
	whole    float64 // predicted for the whole process
}

// bloomRuns prices testdata/bloom_memory.csv: sizes from the prequel of BLOOM's chronicles that are in no fit.
func bloomRuns(t testing.TB) (runs []bloomRun) {
	t.Helper()
	rows := rowsIn(t, "testdata/bloom_memory.csv")
	mc := clusterOf(t, "A100-80G", 384, 50)
	for _, row := range rows[1:] {
		n := func(i int) int {
			v, err := strconv.Atoi(row[i])
			if err != nil {
				t.Fatal(row, err)
			}
			return v
		}
		h := n(0)
		m := &work.Model{Name: "bloom", Layers: n(1), Hidden: h, FFN: 4 * h, Heads: n(2), KVHeads: n(2), HeadDim: h / n(2), Vocab: 250880,
			Tied: true, LayerNorm: true, Bias: true}
		text := fmt.Sprintf("dp=%d,tp=%d,pp=%d,micro=%d,batch=%d,seq=2048,zero=1,recompute=full,flash=off,overlap=off,dtype=%s",
			n(3), n(4), n(5), n(6), n(7), row[8])
		if row[8] == "bf16" { // since then gradients are summed in fp32, and the embeddings count as layers
			text += ",grad=fp32,first-less=1,last-less=1"
		}
		l, err := ParseLayout(text, DeepSpeed, 0)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Price(Question{Model: m, Machine: mc, Framework: DeepSpeed, Layout: l})
		if err != nil {
			t.Fatal(text, err)
		}
		gb, _ := strconv.ParseFloat(row[9], 64)
		out := newPricer(m, mc, DeepSpeed, l, habits).outside()
		runs = append(runs, bloomRun{fmt.Sprintf("%d x %d, %d heads, %s", h, n(1), n(2), text), gb * 1e9, c, c.Peak + out})
	}
	return runs
}

// unexplained is the one report that the others speak against: 70 layers of the same width on the same GPUs take 60 GB, so that 82, seven a
// stage instead of six, take 70. It is not said to fit for sure.
const unexplained = "14336 x 82"

// Peaks of layouts that no fit has seen are within 4% in the median and 10% at p90; 97% of the verdicts are right, and no run that
// ran out of memory is said to fit for sure.
func TestBloomMemory(t *testing.T) {
	var errs []float64
	right, all := 0, 0
	for _, r := range bloomRuns(t) {
		all++
		right += b2i(r.cost.Fits == (r.measured > 0))
		switch {
		case r.measured > 0:
			errs = append(errs, math.Abs(r.whole/r.measured-1))
			if r.cost.Verdict == VerdictNot {
				t.Errorf("%s ran and is said not to fit: %.0f GB measured, %.1f GB predicted", r.name, r.measured/1e9, r.whole/1e9)
			}
		case r.cost.Verdict == VerdictFits || r.cost.Fits && !strings.HasPrefix(r.name, unexplained):
			t.Errorf("%s ran out of memory and is said to fit: %.1f GB predicted, %.1f%% of the memory",
				r.name, r.whole/1e9, 100*r.cost.least/(r.cost.least-r.cost.Over))
		}
	}
	m, q := quantiles(errs)
	t.Logf("%d peaks: median %.1f%%, p90 %.1f%%; %d of %d verdicts are right", len(errs), 100*m, 100*q, right, all)
	if m > .04 || q > .10 || float64(right) < .97*float64(all) {
		t.Errorf("%d peaks: median %.1f%%, p90 %.1f%%; %d of %d verdicts are right", len(errs), 100*m, 100*q, right, all)
	}
}
