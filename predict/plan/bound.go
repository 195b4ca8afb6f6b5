package plan

import (
	"math"

	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Bounds of a search: what no layout below a branch can undercut. Each says why it holds.

// logitsLeast is the logits of one micro-batch: some rank computes the loss.
func (p *pricer) logitsLeast() float64 {
	l := p.l
	l.PP, l.Schedule = 1, schedule.OneFOneB
	q := *p
	q.l = l
	return q.logits(0)
}

// one is the passes of one layer.
func (p *pricer) one(moe bool, factor float64, gather, reduce [2]float64) chunkTime {
	var x chunkTime
	p.addLayer(&x, p.units().layers[b2i(moe)], moe, factor, gather[b2i(moe)], reduce[b2i(moe)])
	return x
}

func (x chunkTime) sum() float64 { return x.F + x.B + x.W }

// layers is the least time of one layer of each kind in any layout of a family: nothing is computed again or gathered, and expert
// traffic is hidden where some schedule hides it.
func (p *pricer) layers(factor float64) (out [2]float64) {
	q := *p
	q.l.Recompute.Full, q.l.Recompute.Modules = false, nil
	for i := range out {
		out[i] = math.Inf(1)
		for _, vpp := range []int{1, 2} {
			q.l.PP, q.l.VPP, q.l.EPOverlap = 2, vpp, vpp == 2 && q.l.EP > 1
			out[i] = min(out[i], q.one(i == 1, factor, [2]float64{}, [2]float64{}).sum())
		}
	}
	return out
}

// chain is the least time of one micro-batch through all layers and the head, one after the other. A step is no shorter than the
// work of all micro-batches over the stages, since some rank does no less than its share.
func (p *pricer) chain(factor float64) float64 {
	t := p.layers(factor)
	return p.through(t, factor)
}

// through sums layers of so much each, the layers that predict further tokens, and the head.
func (p *pricer) through(each [2]float64, factor float64) float64 {
	m := p.m
	sum := 0.0
	if n := m.DenseLayers(); n > 0 {
		sum += float64(n) * each[0]
	}
	if n := m.MoELayers(); n > 0 {
		sum += float64(n) * each[1]
	}
	if m.MTP > 0 {
		sum += float64(m.MTP) * each[b2i(m.Experts > 0)]
	}
	f, b, w := p.head()
	if p.l.Phase == "lora" {
		w = 0
	}
	return sum + (f+b+w)*factor*float64(1+m.MTP)
}

// estimate is what no schedule and no split of a layout can undercut, found once for all of them.
type estimate struct {
	layers int
	work   [2]passes // with expert traffic that is shown, and that is hidden
	fixed  float64   // bytes that every rank holds besides state and activations
	state  float64   // bytes of all layers' state
	layer  float64   // bytes of the smallest kind of layer's state
	larger least     // bytes of the other kind's, and how many layers are of the smallest
	act    float64   // bytes that one micro-batch leaves in a layer, at least
	hop    float64   // seconds of an activation from a stage to the next, at least
	tail   float64   // seconds of the first gather and the last reduction of ZeRO 3, beside which nothing runs
}

// passes is the time of one micro-batch.
type passes struct {
	all    float64 // seconds through everything
	light  float64 // seconds of the fastest kind of layer
	slower least   // seconds of the other kind, and how many layers are of the fastest
}

// least is a larger amount that layers take but for a few, which take a smaller one.
type least struct {
	few    int
	others float64
}

// of is what n layers take at least, whichever they are.
func (x least) of(n int, small float64) float64 {
	few := min(n, x.few)
	return float64(few)*small + float64(n-few)*x.others
}

// between orders two kinds of layers, of which there are n each, by what one takes.
func between(n [2]int, each [2]float64) (small float64, x least) {
	switch {
	case n[0] == 0:
		return each[1], least{n[1], each[1]}
	case n[1] == 0:
		return each[0], least{n[0], each[0]}
	case each[0] < each[1]:
		return each[0], least{n[0], each[1]}
	}
	return each[1], least{n[1], each[0]}
}

// holdsLeast is the part of an estimate that does not depend on what is computed again.
func (p *pricer) holdsLeast() estimate {
	m, l := p.m, p.l
	e := estimate{layers: m.Layers, fixed: p.passing() + p.workspace() + p.live()}
	b := p.bytesPer()
	share := float64(l.Sharded())
	shareE := max(float64(l.ExpertData())*share/float64(l.DP*l.CP), 1)
	if l.ZeRO == 0 {
		share, shareE = 1, 1
	}
	held, shared := b.weights+b.gradients+b.optimizer, b.sharedW+b.sharedG+b.sharedO
	var states [2]float64
	kinds := [2]int{m.DenseLayers(), m.MoELayers()}
	for i, n := range kinds {
		if n == 0 {
			continue
		}
		lp := m.Layer(i == 1)
		states[i] = ((lp.Attention+lp.MLP)/float64(l.TP)+lp.Replicated)*(held+shared/share) + lp.Experts/float64(l.ETP*l.EP)*(held+shared/shareE)
		e.state += float64(n) * states[i]
	}
	e.layer, e.larger = between(kinds, states)
	return e
}

// keptLeast is what one micro-batch leaves in a layer, at least.
func (p *pricer) keptLeast() float64 {
	kept := p.keptBy()
	switch {
	case p.m.DenseLayers() == 0:
		return kept[1]
	case p.m.MoELayers() == 0:
		return kept[0]
	}
	return min(kept[0], kept[1])
}

// passes is the time of one micro-batch, with expert traffic that is shown and hidden.
func (p *pricer) passes(factor float64, gather, reduce [2]float64) (out [2]passes) {
	kinds := [2]int{p.m.DenseLayers(), p.m.MoELayers()}
	was := p.l.EPOverlap
	for hidden := range out {
		p.l.EPOverlap = hidden == 1
		var each [2]float64
		for i, n := range kinds {
			if n > 0 {
				each[i] = p.one(i == 1, factor, gather, reduce).sum()
			}
		}
		x := &out[hidden]
		x.light, x.slower = between(kinds, each)
		if p.m.MTP > 0 { // gathers nothing of its own
			each[b2i(p.m.Experts > 0)] = p.one(p.m.Experts > 0, factor, [2]float64{}, [2]float64{}).sum()
		}
		x.all = p.through(each, factor)
		if p.m.Experts == 0 {
			out[1] = out[0]
			break
		}
	}
	p.l.EPOverlap = was
	return out
}

// seconds is the least time of a layout whatever its split: of the ranks' waits for the first micro-batch, their work and the way back of
// the last gradient, the longest is no less than the mean. Chunks but the first and the last hold no less than an even share,
// rounded down; and some rank holds no less than an even share of the layers, rounded up. Of any layers only a few are of the fastest
// kind, and no layer is waited for by more than all ranks but two.
func (e *estimate) seconds(l Layout) float64 {
	pp, m := float64(l.PP), float64(l.MicroBatches())
	w := &e.work[b2i(l.EPOverlap)]
	mean := m*w.all/pp + e.tail
	if !l.Schedule.Splits() { // rank r is r hops away, there and back
		mean += (pp - 1) * e.hop
	}
	if !l.Schedule.Splits() && l.PP > 2 {
		waits := (pp - 1) * (pp - 2) / 2 * float64(e.layers/(l.PP*l.VPP))
		mean += max(waits*w.light, waits*w.slower.others-float64(w.slower.few)*(pp-2)*(w.slower.others-w.light)) / pp
	}
	if l.Schedule == schedule.DualPipe { // half of two stages
		return mean
	}
	return max(mean, m*w.slower.of((e.layers+l.PP-1)/l.PP, w.light)+e.tail)
}

// bytes is the least memory of a layout whatever its split: the mean of the ranks' state; and where there are three stages, what the
// second one holds, whose chunks are neither the first nor the last.
func (e *estimate) bytes(l Layout) float64 {
	mean := e.fixed + e.state/float64(l.PP)
	if l.PP < 3 {
		return mean
	}
	alive, ok := schedule.Pipe{Kind: l.Schedule, Ranks: l.PP, Chunks: l.VPP, Micro: l.MicroBatches()}.Holds(1)
	if !ok {
		return mean
	}
	chunk := float64(e.layers / (l.PP * l.VPP))
	return max(mean, e.fixed+e.larger.of(l.VPP*(e.layers/(l.PP*l.VPP)), e.layer)+e.act*chunk*float64(alive))
}

// least is the least time of a layout with its split: for every rank its own passes of all micro-batches. Where input and weight gradients
// are one pass, a rank's first pass waits for the first micro-batch to come through the stages before, and after
// its last pass, a backward one, the gradient goes back through the same stages.
func (p *pricer) least(stages []chunkTime) float64 {
	l := p.l
	opt, _ := p.adam()
	hops := p.hops().hops
	m := float64(l.MicroBatches())
	wait, most := 0.0, 0.0
	for r := range l.PP {
		if r > 0 && !l.Schedule.Splits() {
			wait += stages[r-1].sum() + 2*hops[r-1]
		}
		busy := 0.0
		for v := range l.VPP {
			busy += stages[l.chunk(r, v)].sum()
		}
		if l.Schedule == schedule.DualPipe {
			busy = (stages[r].sum() + stages[l.PP-1-r].sum()) / 2
		}
		most = max(most, wait+m*busy)
	}
	return most*(1-1e-12) + opt // sums in another order differ in their last digits
}
