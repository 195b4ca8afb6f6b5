package plan

import (
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/kernel"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Term is a number with its reason: what it is, how it was found, and the terms it is made of.
type Term struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Why   string  `json:"why,omitempty"`
	Terms []Term  `json:"terms,omitempty"`
	Note  bool    `json:"note,omitempty"` // explains the terms beside it, and is no part of their sum
}

// Habits is how far frameworks are from the plain sum of kernels and transfers: shares and ratios
// fitted once to all measured training steps, not to a model or a machine.
type Habits struct {
	TPShown  float64 // share of tensor parallel traffic that Megatron's overlap leaves visible; without overlap all of it
	TPAsync  float64 // the same with PyTorch's asynchronous tensor parallelism; without it all of it is visible
	EPShown  float64 // share of expert parallel traffic that stays visible
	AttnBack float64 // backward over forward of attention
	AttnA100 float64 // PyTorch's attention over TensorRT-LLM's kernels, on Ampere
	AttnH100 float64 // the same on Hopper, where PyTorch runs FlashAttention-2
	Vector   float64 // bytes of vector work over the least there is
	Launch   float64 // seconds of host time a layer and pass, where kernels are shorter than it
	MoEHost  float64 // seconds a layer with experts and pass more
	Shadow   float64 // how much transfers beside compute slow it down
	Permute  float64 // passes over routed tokens to sort them by expert and back
	Stage    float64 // seconds of host time a layer and pass more, in DeepSpeed's pipelines without overlap
	Eager    float64 // seconds of host time a layer and pass where the framework overlaps nothing: kernels are started one by one
	Bare     float64 // gradients reduced after backward, without overlap: time over NCCL's own
	Slowest  float64 // standard deviation of GPUs' speeds: a step waits for the slowest of them
}

// habits are the fitted values; see docs/reference/plan-accuracy.md.
var habits = Habits{TPShown: .3, TPAsync: .7, EPShown: 1, AttnBack: 2.9, AttnA100: 1.3, AttnH100: 2.2, Vector: 1, Launch: 59e-6,
	MoEHost: 3e-3, Shadow: .2, Permute: 7, Stage: 1.5e-3, Eager: 1.2e-3, Bare: 1.5, Slowest: .02}

// windowBlock is the keys that attention takes at once: a window begins and ends within a block, and both are computed whole.
const windowBlock = 128

// layerTime is what one layer takes for one micro-batch, in seconds.
type layerTime struct {
	f, b, w    float64 // compute: forward, input gradient, weight gradient
	tpF, tpB   float64 // tensor parallel transfers
	epF, epB   float64
	cpF, cpB   float64 // context parallel transfers that attention does not hide
	gemm, attn float64 // of f, for the tree
	vector     float64
	up, mlp    float64 // of gemm: what widens the latent of MLA, and the MLP of a layer without experts
	shared     float64 // of gemm: shared experts
	moe        float64 // of gemm: all that a layer with experts has beside attention
	gathers    float64 // of tpF: gathers of inputs; the rest are scatters of sums
}

// unitTimes is what the parts of a model take for one micro-batch: the same for all layouts of a family.
type unitTimes struct {
	layers [2]layerTime // a dense layer, one with experts
	head   [3]float64   // forward, input gradient, weight gradient
}

// pricer prices one layout.
type pricer struct {
	m  *work.Model
	mc *Machine
	l  Layout
	f  Framework
	h  Habits
	t  kernel.Type
	tc float64 // tokens of a rank and micro-batch

	// Found once, since several terms need them; a search keeps those of a family of layouts.
	times  *unitTimes
	cut    []int // layers of each chunk
	begins []int // the first layer of each chunk
	held   []held
	sends  *sends

	scratch scratch
}

// scratch is memory to use again: a search asks for bounds of many layouts that it drops at once.
type scratch struct {
	chunks []chunkTime
	held   []held
	begins []int
	alive  []float64
}

func gemmType(dtype string) kernel.Type {
	switch dtype {
	case "fp8", "mxfp8":
		return "fp8"
	case "fp8block":
		return "fp8block"
	case "nvfp4":
		return "fp4"
	}
	return "bf16"
}

func newPricer(m *work.Model, mc *Machine, f Framework, l Layout, h Habits) *pricer {
	return &pricer{m: m, mc: mc, l: l, f: f, h: h, t: gemmType(l.Dtype), tc: perMicro(l)}
}

// perMicro is the tokens of a rank and micro-batch.
func perMicro(l Layout) float64 { return float64(l.Micro) * float64(l.Seq) / float64(l.CP) }

// split gives the layers of each chunk, as even as can be when the first and the last are to hold some less than the others; what is
// left over goes to the middle. It is nil where an end would hold less than nothing.
func split(layers, chunks, firstLess, lastLess int) []int {
	return splitInto(nil, layers, chunks, firstLess, lastLess)
}

// splitInto writes over out what split gives.
func splitInto(out []int, layers, chunks, firstLess, lastLess int) []int {
	out = out[:0]
	units := layers + firstLess + lastLess
	even, rest := units/chunks, units%chunks
	for range chunks {
		out = append(out, even)
	}
	from := (chunks - rest + 1) / 2
	for i := range rest {
		out[from+i]++
	}
	out[0] -= firstLess
	out[chunks-1] -= lastLess
	if out[0] < 0 || out[chunks-1] < 0 {
		return nil
	}
	return out
}

// splitEnds gives the layers of the first and of the last of two chunks or more alone; below 0 there is no such split.
func splitEnds(layers, chunks, firstLess, lastLess int) (first, last int) {
	units := layers + firstLess + lastLess
	even, rest := units/chunks, units%chunks
	first, last = even, even
	if rest == chunks-1 { // leftover layers go to the middle; all but one reach the last chunk
		last++
	}
	return first - firstLess, last - lastLess
}

// counts gives the layers of each chunk of the layout.
func (p *pricer) counts() []int {
	if p.cut == nil {
		p.cut = split(p.m.Layers, p.l.PP*p.l.VPP, p.l.FirstLess, p.l.LastLess)
	}
	return p.cut
}

// starts gives the first layer of each chunk.
func (p *pricer) starts() []int {
	if p.begins == nil {
		at := 0
		p.begins = p.scratch.begins[:0]
		for _, n := range p.counts() {
			p.begins = append(p.begins, at)
			at += n
		}
	}
	return p.begins
}

// units prices the parts of the model.
func (p *pricer) units() *unitTimes {
	if p.times == nil {
		p.times = &unitTimes{}
		x := p.times
		if p.m.DenseLayers() > 0 {
			x.layers[0] = p.layer(false)
		}
		if p.m.MoELayers() > 0 || p.m.MTP > 0 && p.m.Experts > 0 {
			x.layers[1] = p.layer(true)
		}
		x.head[0], x.head[1], x.head[2] = p.loss()
	}
	return p.times
}

// chunkTime is the passes of one virtual stage.
type chunkTime struct {
	schedule.Cost
	shown float64 // of F+B+W, transfers that nothing hides
	again float64 // of B, forward passes computed again
}

func (x *chunkTime) add(y chunkTime, n float64) {
	x.F, x.B, x.W, x.shown, x.again = x.F+n*y.F, x.B+n*y.B, x.W+n*y.W, x.shown+n*y.shown, x.again+n*y.again
}

// experts counts the layers with experts from one layer up to another, as Model.IsMoE says of each.
func (p *pricer) experts(from, to int) int {
	m := p.m
	if m.Experts == 0 {
		return 0
	}
	every := max(m.MoEEvery, 1)
	upTo := func(n int) int { return max(n, m.DenseFirst)/every - m.DenseFirst/every }
	return upTo(to) - upTo(from)
}

// stages prices every virtual stage. factor scales compute.
func (p *pricer) stages(factor float64) []chunkTime {
	m, l := p.m, p.l
	n := l.PP * l.VPP
	counts := p.counts()
	kinds := p.units().layers
	gatherF, gatherB := p.zero3()
	var each [2]chunkTime
	for i := range each {
		p.addLayer(&each[i], kinds[i], i == 1, factor, gatherF[i], gatherB[i])
	}
	out := append(p.scratch.chunks[:0], make([]chunkTime, n)...)
	at := 0
	for i, c := range counts {
		moe := p.experts(at, at+c)
		out[i].add(each[0], float64(c-moe))
		out[i].add(each[1], float64(moe))
		at += c
	}
	for range m.MTP {
		p.addLayer(&out[n-1], kinds[b2i(m.Experts > 0)], m.Experts > 0, factor, 0, 0)
	}
	if !l.Overlap && l.PP > 1 && p.f == DeepSpeed {
		for i := range out {
			out[i].F += p.h.Stage * float64(counts[i])
			out[i].B += p.h.Stage * float64(counts[i])
		}
	}
	f, b, w := p.head()
	last := &out[n-1]
	heads := float64(1 + m.MTP)
	last.F += f * factor * heads
	last.B += b * factor * heads
	if l.Phase != "lora" {
		last.W += w * factor * heads
	}
	emb := p.mc.Chip.Vector(p.tc * float64(m.Hidden) * 6)
	out[0].F += emb
	out[0].W += 2 * emb
	return out
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// zero3 is the time to gather and to reduce the parameters of one layer where every micro-batch does
// so, by kind of layer.
func (p *pricer) zero3() (gather, reduce [2]float64) {
	l := p.l
	if l.ZeRO < 3 {
		return
	}
	n := l.Sharded()
	for i := range 2 {
		if i == 1 && p.m.Experts == 0 || i == 0 && p.m.DenseLayers() == 0 {
			continue
		}
		lp := p.m.Layer(i == 1)
		size := (lp.Attention+lp.MLP)/float64(l.TP) + lp.Replicated
		w := 2.0
		g := p.gradBytes()
		ag, _ := p.mc.Collective(sched.AllGather, n, l.TP, size*w)
		rs, _ := p.mc.Collective(sched.ReduceScatter, n, l.TP, size*g)
		if l.Shard > 0 && l.Shard < l.DP*l.CP {
			ar, _ := p.mc.Collective(sched.AllReduce, l.DP*l.CP/l.Shard, l.TP*l.Shard, size*g/float64(l.Shard))
			rs += ar / float64(l.MicroBatches())
		}
		if i == 1 && lp.Experts > 0 {
			e := lp.Experts / float64(l.EP*l.ETP)
			x, _ := p.mc.Collective(sched.AllGather, l.ExpertData(), l.EP*l.ETP, e*w)
			y, _ := p.mc.Collective(sched.ReduceScatter, l.ExpertData(), l.EP*l.ETP, e*g)
			ag, rs = ag+x, rs+y
		}
		gather[i] = ag
		reduce[i] = rs
		if l.Phase == "lora" {
			reduce[i] = 0
		}
	}
	return gather, reduce
}

// gradBytes is what a gradient takes on the wire.
func (p *pricer) gradBytes() float64 {
	if p.l.Grad == "bf16" {
		return 2
	}
	return 4
}

// beside is the time of compute and of a transfer that runs beside it, n of n+1 layers through.
func (p *pricer) beside(compute, transfer float64) float64 {
	if transfer <= 0 {
		return compute
	}
	if !p.l.Overlap {
		return compute + transfer
	}
	return max(compute+p.h.Shadow*min(transfer, compute), transfer)
}

// best is the time of compute beside the transfers of parameters and those of experts, where the latter may also run by themselves:
// where parameters already take longer than compute, nothing is left to hide experts' behind.
func (p *pricer) best(compute, parameters, experts float64) float64 {
	if experts == 0 {
		return p.beside(compute, parameters)
	}
	return min(p.beside(compute, parameters+experts), p.beside(compute+experts, parameters))
}

func (p *pricer) addLayer(x *chunkTime, k layerTime, moe bool, factor, gather, reduce float64) {
	l := p.l
	tpF, tpB, epF, epB := k.tpF, k.tpB, k.epF, k.epB
	if l.Overlap {
		switch {
		case p.f == FSDP && !l.TPOverlap: // one after the other
		case p.f == FSDP:
			tpF, tpB = tpF*p.h.TPAsync, tpB*p.h.TPAsync
		case l.Sequence && l.TPOverlap:
			tpF, tpB = tpF*p.h.TPShown, tpB*p.h.TPShown
		case l.Sequence:
			tpB *= p.plainBack()
		}
		epF, epB = epF*p.h.EPShown, epB*p.h.EPShown
	}
	var hidF, hidB float64 // expert traffic that runs beside the compute of another micro-batch
	if moe && l.Overlap && l.EPOverlap {
		hidF, hidB, epF, epB = k.epF, k.epB, 0, 0
	}
	// Kernels and transfers of a pass wait for the host that starts them, not one after the other.
	host := p.h.Launch
	if !l.Overlap {
		host = p.h.Eager
	}
	if moe {
		host += p.h.MoEHost
	}
	f := k.f * factor
	shownF, shownB := tpF+epF+k.cpF, tpB+epB+k.cpB
	copiedF, copiedB := p.copied(moe, gather)
	copiedF, copiedB = copiedF*factor, copiedB*factor
	fTime := max(p.best(f+copiedF+shownF, gather, hidF), host)
	b, w, passes := k.b*factor, k.w*factor, 2.0
	if l.Phase == "lora" {
		w, passes = 0, 1
	}
	again := 0.0
	switch {
	case l.Recompute.Full:
		again = max(f+shownF, host)
	case len(l.Recompute.Modules) > 0:
		again = p.again(k, factor, tpF)
	}
	b += copiedB
	bTime := max(p.best(b+w+shownB+again, gather+reduce, hidB), passes*host) - w
	if l.Schedule.Splits() && w > 0 { // weight gradients run later, beside nothing
		bTime, w = max(p.best(b+shownB+again, gather+reduce, hidB), host), max(w, host)
	}
	x.F += fTime
	x.B += bTime
	x.W += w
	x.again += again
	x.shown += max(fTime-f-copiedF, 0) + max(bTime-b-again, 0)
}

// copied is the time in which PyTorch's FSDP copies a layer's parameters and gradients between tensors and the buffers of its collectives,
// for each micro-batch that gathers them. It takes the mean of what both versions move, in bytes of a parameter:
//
//	          forward   backward
//	FSDP 1    0         gradients into one flat tensor 4, into the type that is summed 2+g, divided by the ranks 2g
//	FSDP 2    out 4     out 4, gradients into the buffer and the type that is summed 2+g
func (p *pricer) copied(moe bool, gather float64) (forward, backward float64) {
	if p.f != FSDP || gather == 0 {
		return 0, 0
	}
	l, x := p.l, p.m.Layer(moe)
	n := (x.Attention+x.MLP)/float64(l.TP) + x.Replicated + x.Experts/float64(l.EP*l.ETP)
	g := p.gradBytes()
	bytes := 4 + 2 + g + g
	if g == 2 { // nothing to cast in FSDP 1
		bytes -= 2
	}
	if l.Phase == "lora" { // adapters alone have gradients
		bytes = 2
	}
	return p.mc.Chip.Vector(2 * n), p.mc.Chip.Vector(bytes * n)
}

// plainBack is the share of tensor parallel traffic that stays visible in backward without --tp-comm-overlap. Megatron then starts the
// gather of a column's input beside its input gradient, and the scatter of that gradient beside the weight gradient: four
// of the six transfers. The gathers of the two rows' gradients, and all of forward, have nothing beside them.
func (p *pricer) plainBack() float64 { return 2.0/6 + p.h.Shadow*4/6 }

// sentAgain is what selective recompute sends once more, of the tensor parallel transfers of a forward pass that nothing hides: an MLP has
// half of them, and torchtitan's operators keep the sums that they scattered but gather inputs again.
func (p *pricer) sentAgain(k layerTime, shown float64) float64 {
	switch r := p.l.Recompute; {
	case k.tpF == 0:
		return 0
	case r.Has("op"):
		return shown * k.gathers / k.tpF
	case r.Has("mlp") && k.mlp > 0:
		return shown / 2
	}
	return 0
}

// again is the time of what selective recompute computes once more.
func (p *pricer) again(k layerTime, factor, shown float64) float64 {
	t, sent := 0.0, p.sentAgain(k, shown)
	r := p.l.Recompute
	if r.Has("core_attn") {
		t += k.attn
	}
	if r.Has("layernorm") || r.Has("mlp_act") || r.Has("moe_act") {
		t += k.vector * .4
	}
	if r.Has("mla_up_proj") {
		t += k.up
	}
	if r.Has("mlp") {
		t += k.mlp
	}
	if slices.Contains(r.Modules, "op") {
		t += k.gemm*.5 + k.vector*.8
	}
	switch {
	case r.Has("moe"):
		return (t+k.moe)*factor + k.epF + sent
	case r.Has("shared_experts"):
		t += k.shared
	}
	return t*factor + sent
}
