package plan

import (
	"math"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/model/work"
)

// Nanotron published the best layout of each cell of its sweep. With the same habits, no overlap, how much longer does the model
// think that layout takes than the one it would choose?
func TestNanotronsBestLayouts(t *testing.T) {
	var regret []float64
	for _, p := range Points() {
		if len(p.ID) < 5 || p.ID[len(p.ID)-5:] != "-nano" {
			continue
		}
		mc := clusterOf(t, p.GPU, p.GPUs, p.NIC)
		q := Question{Model: p.Model, Machine: mc, Framework: p.Framework, Layout: p.Layout}
		theirs, err := price(q, habits, math.Inf(1))
		if err != nil {
			t.Fatal(err)
		}
		best := theirs
		all := newSpace(p.Model, clusterOf(t, p.GPU, p.GPUs, p.NIC), p.Framework,
			Wish{Batch: p.Layout.Batch, Seq: p.Layout.Seq, Dtype: p.Layout.Dtype})
		all.base.Overlap, all.base.Grad = p.Layout.Overlap, p.Layout.Grad
		all.again = []work.Recompute{p.Layout.Recompute}
		factor, _, h := q.factors(habits)
		try := func(l Layout) { // nanotron neither interleaves nor cuts sequences, and shares the optimizer at most
			if l.ZeRO > 1 || l.Check(p.Model, p.GPUs) != nil || leastOf(newPricer(p.Model, mc, p.Framework, l, h), factor) > best.Step {
				return
			}
			q.Layout = l
			if c, err := price(q, habits, best.Step); err == nil && c != nil && c.Fits && c.Step < best.Step {
				best = c
			}
		}
		all.families(func(l Layout) {
			if l.CP == 1 && l.TP <= mc.Domain && l.Sequence == p.Layout.Sequence {
				all.grids(l, func(l Layout) { all.states(l, try) })
			}
		})
		t.Logf("%s %s on %d: measured %.3g s; theirs %.3g s %s; ours %.3g s %s",
			p.ID, p.Model.Name, p.GPUs, p.Step, theirs.Step, theirs.LayoutText, best.Step, best.LayoutText)
		regret = append(regret, theirs.Step/best.Step-1)
	}
	slices.Sort(regret)
	t.Logf("%d cells: the published layout is priced %.0f to %.0f%% above the model's own choice, median %.0f%%",
		len(regret), 100*regret[0], 100*regret[len(regret)-1], 100*median(regret))
	if len(regret) != 14 {
		t.Errorf("%d cells", len(regret))
	}
}

func leastOf(p *pricer, factor float64) float64 {
	e := p.estimate(factor)
	return e.seconds(p.l)
}
