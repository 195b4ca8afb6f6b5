// Package plan predicts what a model's layout costs on a cluster: step time and memory, with reasons. It also
// searches for the best layout.
//
//	work.Model ─┐
//	Machine    ─┼─► Price ─┬─► step time        kernels x one factor, the pipeline run as a schedule,
//	Layout     ─┘          │                    transfers by NCCL's model, what hides them
//	                       ├─► bytes per GPU    state and peak, by component and stage
//	                       └─► a tree of terms  every number with its reason
//
// One factor per framework, GPU and data type covers the difference between isolated kernels and a real step:
// power-capped clocks, launch gaps, unfused work. It is fitted to measured steps (points.csv) and can be refitted
// to a user's own.
package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Question is what is asked.
type Question struct {
	Model     *work.Model
	Machine   *Machine
	Framework Framework
	Layout    Layout
	Factor    float64 // of kernels in a running step over kernels alone; 0 for the fitted one
	Release   string  // of Megatron-Bridge or NeMo, such as 25.09; "" for the middle of those measured
	Why       bool    // also give the tree of terms and the passes
}

// Cost is what a layout costs. Its JSON keys are stable.
type Cost struct {
	Step       float64            `json:"step_s"`
	TokensPerS float64            `json:"tokens_per_s_per_gpu"`
	TFLOPS     float64            `json:"tflops_per_gpu"`
	Convention work.Convention    `json:"flops_convention"`
	MFU        float64            `json:"mfu"`
	MFUs       map[string]float64 `json:"mfu_by_convention"`
	State      float64            `json:"memory_state_bytes"`
	Peak       float64            `json:"memory_peak_bytes"`
	Capacity   float64            `json:"memory_capacity_bytes"`
	Fits       bool               `json:"fits"`
	Over       float64            `json:"memory_over_bytes,omitempty"` // by how much it does not fit
	Verdict    string             `json:"memory_verdict,omitempty"`    // fits, unsure, does not fit: with the error of predicted peaks
	Stage      int                `json:"memory_worst_stage"`
	Memory     []Term             `json:"memory,omitempty"`
	Layout     Layout             `json:"layout"`
	LayoutText string             `json:"layout_text"`
	Framework  Framework          `json:"framework"`
	GPUs       int                `json:"gpus"`
	Factor     float64            `json:"factor"`
	FactorFrom string             `json:"factor_source"`
	Bubble     float64            `json:"bubble"` // share of the step
	Shown      float64            `json:"communication_shown"`
	EnergyJ    float64            `json:"energy_j_per_step"`
	USDPerStep float64            `json:"usd_per_step"`
	Reduce     float64            `json:"gradient_reduction_s"` // of the slowest stage, all sister groups at once, by NCCL\'s model
	Hide       float64            `json:"gradient_hidden_s"`    // what the last backward can hide of it
	Stages     []StageMemory      `json:"memory_by_stage,omitempty"`
	Nearest    *Nearest           `json:"nearest"`
	Interval   *Interval          `json:"step_interval_90,omitempty"`

	MemoryInterval *MemoryInterval `json:"memory_interval_90,omitempty"`

	Notes      []string         `json:"notes,omitempty"`
	Why        *Term            `json:"why,omitempty"`
	Pipe       *schedule.Result `json:"-"`
	stageTimes []chunkTime
	class      string  // whose errors its step shares
	least      float64 // bytes of the framework when the allocator has given its slack back
}

// Price prices a layout. It may leave GPUs of the machine idle.
func Price(q Question) (*Cost, error) {
	gpus := 0
	if q.Layout.GPUs() > q.Machine.GPUs {
		gpus = q.Machine.GPUs
	}
	if err := q.Layout.Check(q.Model, gpus); err != nil {
		return nil, err
	}
	c, err := price(q, habits, math.Inf(1))
	if err != nil {
		return nil, err
	}
	c.Nearest, c.Interval = nearestPoint(q), q.interval(c.Step)
	c.judge()
	if q.Model.CNN != nil { // no peak of a convolutional network was measured
		c.MemoryInterval = nil
	}
	c.assume(q)
	return c, nil
}

// without notes what a step takes if something is not there that many runs do not have.
func (c *Cost) without(q Question, what string, change func(*Layout)) {
	if q.Machine.stretch != nil { // it would be asked for transfers that nobody sends
		return
	}
	q.Why = false
	change(&q.Layout)
	if other, err := price(q, habits, math.Inf(1)); err == nil && other.Step > c.Step*1.03 {
		c.Notes = append(c.Notes, fmt.Sprintf("%s a step takes %.4g s, %.0f%% more", what, other.Step, 100*(other.Step/c.Step-1)))
	}
}

// settled is x, or 0 where it is what rounding leaves of a sum.
func settled(x, sum float64) float64 {
	if math.Abs(x) < 1e-9*sum {
		return 0
	}
	return x
}

// assume names what the figures take for granted and many runs do not have.
func (c *Cost) assume(q Question) {
	l := q.Layout
	if n := q.Model.Positions; n > 0 && l.Seq > n {
		c.Notes = append(c.Notes, fmt.Sprintf("%s learned positions for %d tokens; sequences of %d need it with more", q.Model.Name, n, l.Seq))
	}
	if q.Framework == Megatron && l.Overlap && l.TPOverlap && l.Sequence && l.TP > 1 {
		c.without(q, "tensor parallel transfers run beside their products, as with Megatron's --tp-comm-overlap; without it (tp-overlap=off)",
			func(l *Layout) { l.TPOverlap = false })
	}
	if q.Framework == FSDP && l.Overlap && l.TPOverlap && l.TP > 1 {
		c.without(q, "tensor parallel transfers run beside their products, as with torchtitan's enable_async_tensor_parallel; "+
			"without it (tp-overlap=off)", func(l *Layout) { l.TPOverlap = false })
	}
	if l.copiesOnce() {
		c.without(q, "tokens travel by the kernels of "+l.Sender+", which has to be installed; without it (dispatcher=alltoall)",
			func(l *Layout) { l.Sender = "" })
	}
	if n := q.Machine.GPU.Compute; n > 0 && n < 80 && l.Flash && q.Model.CNN == nil {
		c.Notes = append(c.Notes,
			fmt.Sprintf("FlashAttention needs Ampere or later, and %s is older: flash=off prices attention that writes its scores",
				q.Machine.GPU.Name))
	}
}

// factors is the factor of kernels, where it comes from, and the habits of the release that is asked for.
func (q Question) factors(h Habits) (float64, string, Habits) {
	factor, from := q.Factor, "given"
	if factor == 0 {
		factor, from = FactorFor(q.Framework, q.Machine.GPU.Name, q.Layout.Dtype, q.Model.Experts > 0, q.Layout.Flash)
	}
	if host := hostOf(q); host != 1 {
		h.MoEHost *= host
		from += fmt.Sprintf("; release %s: host time x %g", q.Release, host)
	}
	return factor, from, h
}

// price prices a layout, and gives nil where its pipeline and its optimizer alone take longer than limit: what data
// parallelism adds is not looked at then.
func price(q Question, h Habits, limit float64) (*Cost, error) {
	factor, from, h := q.factors(h)
	return newPricer(q.Model, q.Machine, q.Framework, q.Layout, h).price(q, factor, from, nil, limit)
}

// price does so with stages that are priced already, or nil.
func (p *pricer) price(q Question, factor float64, from string, stages []chunkTime, limit float64) (*Cost, error) {
	l := q.Layout
	c := &Cost{Layout: l, LayoutText: l.String(), Framework: q.Framework, GPUs: l.GPUs(), Factor: factor, FactorFrom: from,
		Convention: work.Causal, class: errorClass(q.Framework, q.Model)}
	if q.Model.CNN != nil {
		p.convolution(c, factor)
	} else {
		if stages == nil {
			stages = p.stages(factor)
		}
		if done, err := p.transformer(c, stages, factor, q.Why, limit); err != nil || !done {
			return nil, err
		}
	}
	p.memory(c)
	c.settle(q)
	return c, nil
}

// pipe is the pipeline of a layout.
func (p *pricer) pipe(stages []chunkTime, trace bool) schedule.Pipe {
	l := p.l
	pipe := schedule.Pipe{Kind: l.Schedule, Ranks: l.PP, Chunks: l.VPP, Micro: l.MicroBatches(), Sync: !l.Overlap || l.Blocking, Trace: trace}
	for _, s := range stages {
		pipe.Cost = append(pipe.Cost, s.Cost)
	}
	return pipe
}

// transformer fills in the time of a step, unless it is above limit.
func (p *pricer) transformer(c *Cost, stages []chunkTime, factor float64, why bool, limit float64) (bool, error) {
	l := p.l
	send := p.hops()
	pipe := p.pipe(stages, why)
	pipe.Hops = send.hops
	r, err := pipe.Run()
	if err != nil {
		return false, err
	}
	if opt, _ := p.adam(); r.Period+opt > limit {
		return false, nil
	}
	opt, optWhy := p.optimizer()
	c.Pipe, c.stageTimes = r, stages
	hide, forward := math.Inf(1), math.Inf(1)
	for i, last := range r.LastB {
		hide = min(hide, r.Time-last)
		forward = min(forward, stages[i].F)
	}
	if l.PP > 1 { // ranks that end early reduce while the others still compute
		hide = max(hide, stages[0].B+stages[0].W)
	}
	data, reduction, dataTerms := p.data(hide*.9, forward*.9)
	c.Hide, c.Reduce = hide*.9, reduction
	c.Step = (r.Period + data + opt) * p.h.waits(l.GPUs())
	c.Bubble = r.Bubble * r.Period / c.Step
	m := float64(l.MicroBatches())
	shown := data
	for _, s := range stages {
		shown += m * s.shown / float64(l.PP)
	}
	c.Shown = shown / c.Step
	if why {
		c.Why = p.tree(c, stages, r, send.longest, send.how, data, dataTerms, opt, optWhy, factor)
	}
	return true, nil
}

// waits is how many times as long a step takes as GPUs wait for the slowest of them: the largest of n normal figures lies sqrt(2 ln n)
// standard deviations above their mean. What the GPUs of a host wait for is in the factor of kernels.
func (h Habits) waits(gpus int) float64 {
	const host = 8
	if gpus <= host {
		return 1
	}
	return 1 + h.Slowest*(math.Sqrt(2*math.Log(float64(gpus)))-math.Sqrt(2*math.Log(host)))
}

// part is a virtual stage that a rank runs, and the share of the micro-batches that it runs of it.
type part struct {
	chunk int
	share float64
}

// chunk is the v-th chunk of a rank: every pp-th one, or in a V one and its mirror image.
func (l Layout) chunk(rank, v int) int {
	if l.Schedule == schedule.ZBV && v == 1 {
		return 2*l.PP - 1 - rank
	}
	return v*l.PP + rank
}

// chunksOf lists the chunks of a rank; with dualpipe it runs half of the micro-batches of two.
func (l Layout) chunksOf(rank int) []part {
	if l.Schedule == schedule.DualPipe && l.PP > 1 {
		return []part{{rank, .5}, {l.PP - 1 - rank, .5}}
	}
	var out []part
	for v := range l.VPP {
		out = append(out, part{l.chunk(rank, v), 1})
	}
	return out
}

// hops is the time of an activation from each stage to the next, and the longest with its reason. Stages lie one after the
// other: those of a few GPUs share a domain with their neighbour, or do not.
func (p *pricer) hops() *sends {
	if p.sends == nil {
		p.sends = p.sending()
	}
	return p.sends
}

// sends is those times, which all layouts with the same numbers of ranks of each kind share.
type sends struct {
	hops    []float64
	longest float64
	how     string
}

// shortest is the least of the hops; 0 where there is one stage.
func (s *sends) shortest() float64 {
	if len(s.hops) == 0 {
		return 0
	}
	return slices.Min(s.hops)
}

func (p *pricer) sending() *sends {
	l, x := p.l, &sends{}
	if l.PP == 1 {
		return x
	}
	bytes := 2 * p.tc * float64(p.m.Hidden)
	if l.Sequence {
		bytes /= float64(l.TP)
	}
	stride, domain := l.TP*l.CP*l.DP, p.mc.Domain
	near, nearHow := p.mc.Send(0, bytes)
	far, farHow := p.mc.Send(domain, bytes)
	far *= p.mc.longer(Transfer{Op: sched.SendRecv, Ranks: l.PP, Stride: stride, Bytes: bytes})
	for i := range l.PP {
		from, to := i*stride, (i+1)%l.PP*stride
		t, why := near, nearHow
		for k := range min(stride, domain) {
			if (from+k)/domain != (to+k)/domain { // the sender and the receiver lie in different domains
				t, why = far, farHow
				break
			}
		}
		x.hops = append(x.hops, t)
		if t > x.longest {
			x.longest, x.how = t, why
		}
	}
	return x
}

// ShownOf is what of a gradient reduction stays visible.
func (c *Cost) ShownOf(reduce float64) float64 {
	if !c.Layout.Overlap || !c.Layout.DPOverlap {
		return reduce
	}
	return max(reduce-c.Hide, reduce*.04)
}

// GradientBytes is what a rank of each pipeline stage reduces with its data parallel group, dense parameters only.
func GradientBytes(q Question) []float64 {
	p := newPricer(q.Model, q.Machine, q.Framework, q.Layout, habits)
	var out []float64
	for _, o := range p.holds() {
		out = append(out, o.dense*p.gradBytes())
	}
	return out
}

// convolution prices a convolutional network by its operations: no kernels of it were measured.
func (p *pricer) convolution(c *Cost, factor float64) {
	l := p.l
	flops := 3 * p.m.Forward(0).Matrix * float64(l.Micro)
	one := flops / (p.mc.Chip.Peak["bf16"] * .35) * factor
	data, _, _ := p.data(one*.6, one*.3)
	opt, _ := p.optimizer()
	c.Step = (float64(l.MicroBatches())*one + data + opt) * p.h.waits(l.GPUs())
	c.Shown = data / c.Step
	c.Notes = append(c.Notes, "no measured step of a convolutional network stands behind this; 35% of the peak is assumed")
}

// settle derives what follows from time and memory.
func (c *Cost) settle(q Question) {
	l := q.Layout
	n := float64(c.GPUs)
	tokens := float64(l.Batch) * float64(l.Seq)
	if q.Model.CNN != nil {
		tokens = float64(l.Batch)
	}
	c.TokensPerS = tokens / c.Step / n
	peak, _ := peakOf(q.Machine, l.Dtype)
	c.MFUs = map[string]float64{}
	for _, conv := range work.Conventions() {
		f := l.flops(q.Model, conv)
		c.MFUs[string(conv)] = f * c.TokensPerS / peak
		if conv == c.Convention {
			c.TFLOPS, c.MFU = f*c.TokensPerS/1e12, f*c.TokensPerS/peak
		}
	}
	c.EnergyJ = q.Machine.Watts * n * c.Step
	c.USDPerStep = q.Machine.Hour * n * c.Step / 3600
	c.Fits = c.Over <= 0
	if q.Machine.Chip.Far {
		c.Notes = append(c.Notes, q.Machine.Chip.Near("bf16", 4096, 4096, 4096))
	}
	if l.Phase == "lora" {
		c.Notes = append(c.Notes, "LoRA: no weight gradients but the adapters', which count as 0.5% of the parameters")
	}
}

// peakOf is the FLOP/s that MFU is measured against: of the type that matrices are multiplied in.
func peakOf(m *Machine, dtype string) (float64, string) {
	t := map[string]string{"fp8": "fp8", "mxfp8": "fp8", "fp8block": "fp8", "nvfp4": "fp4", "fp32": "tf32"}[dtype]
	if v := m.GPU.Dense[t]; v > 0 {
		return v, t
	}
	return m.Chip.Peak["bf16"], "bf16"
}

// tree says where a step's time goes.
func (p *pricer) tree(c *Cost, stages []chunkTime, r *schedule.Result, send float64, sendHow string, data float64, dataTerms []Term,
	opt float64, optWhy string, factor float64) *Term {
	l := p.l
	m := float64(l.MicroBatches())
	busiest := 0
	for i := range r.Busy {
		if r.Busy[i] > r.Busy[busiest] {
			busiest = i
		}
	}
	pipe := Term{Name: "pipeline", Value: r.Period, Unit: "s",
		Why: fmt.Sprintf("%s run pass by pass: %d stages, %d chunks each, %d micro-batches", l.Schedule, l.PP, l.VPP, l.MicroBatches())}
	busy := Term{Name: "busy", Value: r.Busy[busiest], Unit: "s", Why: fmt.Sprintf("of stage %d, the busiest", busiest)}
	var f, b, w, shown, again float64
	for _, x := range l.chunksOf(busiest) {
		s := stages[x.chunk]
		f, b, w, shown, again = f+x.share*s.F, b+x.share*s.B, w+x.share*s.W, shown+x.share*s.shown, again+x.share*s.again
	}
	busy.Terms = []Term{
		{Name: "forward", Value: m * f, Unit: "s"}, {Name: "input gradients", Value: m * b, Unit: "s"},
		{Name: "weight gradients", Value: m * w, Unit: "s"},
	}
	if rest := busy.Value - m*(f+b+w); math.Abs(rest) > 1e-9*busy.Value {
		busy.Terms = append(busy.Terms, Term{Name: "sends that block", Value: rest, Unit: "s",
			Why: "a rank computes nothing while it sends to another stage"})
	}
	busy.Terms = append(busy.Terms,
		Term{Name: "of these computed again", Value: m * again, Unit: "s", Why: "recompute " + l.Recompute.String(), Note: true},
		Term{Name: "of these transfers that nothing hides", Value: m * settled(shown, f+b+w), Unit: "s", Note: true,
			Why: fmt.Sprintf("tensor parallel traffic counts %.2f, expert parallel traffic %.2f times where the framework overlaps it",
				p.h.TPShown, p.h.EPShown)})
	for i, name := range []string{"dense layer", "layer with experts"} {
		if i == 0 && p.m.DenseLayers() == 0 || i == 1 && p.m.MoELayers() == 0 {
			continue
		}
		k := p.layer(i == 1)
		T := p.tc
		width := float64(p.m.FFN) / float64(l.TP)
		if i == 1 {
			width = float64(p.m.ExpertFFN) / float64(l.ETP)
		}
		t := Term{Name: "one " + name, Note: true, Value: (k.f + k.b + k.w) * factor, Unit: "s",
			Why: fmt.Sprintf("one micro-batch, kernels alone %.3g s x %.3f (%s)", k.f+k.b+k.w, factor, c.FactorFrom), Terms: []Term{
				{Name: "matrix products, forward", Value: k.gemm * factor, Unit: "s", Why: p.mc.Chip.Near(p.t, T, width, float64(p.m.Hidden))},
				{Name: "attention, forward", Value: k.attn * factor, Unit: "s", Why: "fitted to measured attention over prompts"},
				{Name: "vector work, forward", Value: k.vector * factor, Unit: "s", Why: "bytes over 85% of the memory's rate"},
				{Name: "backward", Value: (k.b + k.w) * factor, Unit: "s"},
			}}
		if l.TP > 1 {
			t.Terms = append(t.Terms, Term{Name: "tensor parallel transfers", Note: true, Value: k.tpF + k.tpB, Unit: "s",
				Why: "as NCCL would, before overlap"})
		}
		if k.epF > 0 {
			t.Terms = append(t.Terms, Term{Name: "expert parallel transfers", Note: true, Value: k.epF + k.epB, Unit: "s",
				Why: "dispatch and combine, forward and backward, before overlap"})
		}
		if k.cpF > 0 {
			t.Terms = append(t.Terms, Term{Name: "context parallel transfers", Note: true, Value: k.cpF + k.cpB, Unit: "s",
				Why: "what attention does not hide"})
		}
		busy.Terms = append(busy.Terms, t)
	}
	hf, hb, hw := p.head()
	busy.Terms = append(busy.Terms, Term{Name: "head and loss", Note: true, Value: (hf + hb + hw) * factor, Unit: "s",
		Why: "one micro-batch, on the last stage"})
	pipe.Terms = []Term{busy, {Name: "idle", Value: r.Period - r.Busy[busiest], Unit: "s",
		Why: fmt.Sprintf("bubble, %.1f%% of the pipeline's time", 100*r.Bubble)}}
	if l.PP > 1 {
		pipe.Terms = append(pipe.Terms, Term{Name: "one transfer between stages", Note: true, Value: send, Unit: "s", Why: sendHow})
	}
	terms := []Term{
		pipe,
		{Name: "data parallel transfers that nothing hides", Value: data, Unit: "s", Terms: dataTerms},
		{Name: "optimizer", Value: opt, Unit: "s", Why: optWhy},
	}
	if times := p.h.waits(l.GPUs()); times > 1 {
		terms = append(terms, Term{Name: "waiting for the slowest GPU", Value: c.Step * (1 - 1/times), Unit: "s",
			Why: fmt.Sprintf("%.1f%%: speeds of %d GPUs vary by %.1f%%", 100*(times-1), l.GPUs(), 100*p.h.Slowest)})
	}
	return &Term{Name: "step", Value: c.Step, Unit: "s", Why: "pipeline + data parallel transfers + optimizer + waiting", Terms: terms}
}
