package plan

import (
	"fmt"
	"math"
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
	TPPlain  float64 // the same where only the framework's graph overlaps it, as in FSDP with tensor parallelism
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
}

// habits are the fitted values; see docs/reference/plan-accuracy.md.
var habits = Habits{TPShown: .3, TPPlain: .7, EPShown: 1, AttnBack: 2.9, AttnA100: 1.3, AttnH100: 2.2, Vector: 1, Launch: 59e-6,
	MoEHost: 3e-3, Shadow: .2, Permute: 7, Stage: 1.5e-3, Eager: 1.2e-3, Bare: 1.5}

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

// slow is how much slower fp32 products are than bf16's.
func (p *pricer) slow() float64 {
	if p.l.Dtype != "fp32" {
		return 1
	}
	c := p.mc.Chip.Peak
	if c["tf32"] > 0 {
		return c["bf16"] / c["tf32"]
	}
	return max(c["bf16"]/max(c["fp32"], 1), 1)
}

// product is forward, input gradient and weight gradient of a matrix of k x n weights over T tokens.
func (p *pricer) product(tokens, n, k float64) (f, b, w float64) {
	s := p.slow()
	return s * p.mc.gemm(p.t, tokens, n, k), s * p.mc.gemm(p.t, tokens, k, n), s * p.mc.gemm(p.t, k, n, tokens)
}

// grouped is the same for experts: each of local experts gets tokens/local tokens.
func (p *pricer) grouped(local, tokens, n, k float64) (f, b, w float64) {
	each := tokens / local
	if p.l.Looped {
		f, b, w = p.product(each, n, k)
		return local * f, local * b, local * w
	}
	padded := local * math.Ceil(each/128) * 128
	c := p.mc.Chip
	f, b, _ = p.product(padded, n, k)
	// Weights of all experts are read, once each.
	weights := local * n * k * 2 / (c.HBM * .8)
	f, b = max(f, weights), max(b, weights)
	w = local * p.mc.gemm(p.t, k, n, each) * p.slow()
	// Small products of many experts run side by side.
	w = min(w, max(p.mc.gemm(p.t, k, n, tokens)*1.1, local*n*k*4/(c.HBM*.8)))
	starts := p.starting(local)
	return f + starts, b + starts, w + starts
}

// starting is what it takes to start the products of all experts but one. Transformer Engine starts one for each, with a kernel that
// quantises its input where it is narrow; fused layers have one for all.
func (p *pricer) starting(local float64) float64 {
	if p.l.Fused {
		return 0
	}
	return (local - 1) * p.mc.Chip.Launch(p.t)
}

// layer prices a layer.
func (p *pricer) layer(moe bool) layerTime {
	m, l, c := p.m, p.l, p.mc.Chip
	t := float64(l.TP)
	T := p.tc
	h, d := float64(m.Hidden), float64(m.HeadDim)
	heads := float64(m.Heads) / t
	kv := max(float64(m.KVHeads)/t, 1)
	var x layerTime
	add := func(f, b, w float64) float64 {
		x.f, x.b, x.w = x.f+f, x.b+b, x.w+w
		x.gemm += f
		return f
	}
	vd := d
	if a := m.MLA; a != nil {
		qk := float64(a.NoPE + a.RoPE)
		if a.QRank > 0 {
			add(p.product(T, float64(a.QRank), h))
			x.up += add(p.product(T, heads*qk, float64(a.QRank)))
		} else {
			add(p.product(T, heads*qk, h))
		}
		add(p.product(T, float64(a.KVRank+a.RoPE), h))
		x.up += add(p.product(T, heads*float64(a.NoPE+a.V), float64(a.KVRank)))
		add(p.product(T, h, heads*float64(a.V)))
		kv, d, vd = heads, qk, float64(a.V)
	} else {
		add(p.product(T, (heads+2*kv)*d, h))
		add(p.product(T, h, heads*d))
	}
	// Attention: with context parallelism each rank has its share of the pairs.
	seq, docs := float64(l.Seq), 1.0
	if l.Document > 0 && l.Document < l.Seq {
		seq, docs = float64(l.Document), float64(l.Seq)/float64(l.Document)
	}
	at := p.mc.attention(p.scores(), float64(l.Micro)*docs, seq, heads, kv, (d+vd)/2) / float64(l.CP)
	if m.BothWays { // the tables hold causal attention: half of the pairs
		at *= 2
	}
	switch {
	case !l.Flash:
		at = p.unfused(heads, d, false)
	case p.f == FSDP && c.Table == "a100":
		at *= p.h.AttnA100
	case p.f == FSDP && c.Table == "h100":
		at *= p.h.AttnH100
	}
	if m.Windowed > 0 && float64(m.Window) < seq {
		w := min(float64(m.Window)+windowBlock, seq) // kernels skip whole blocks of keys only
		short := at * (w - w*w/(2*seq)) / (seq / 2)
		if m.BothWays {
			short = at * w / seq
		}
		share := float64(m.Windowed) / float64(m.Layers)
		at = at*(1-share) + min(short, at)*share
	}
	x.attn = at
	back := at * p.h.AttnBack
	if !l.Flash {
		back = p.unfused(heads, d, true)
	}
	x.f += at
	x.b += back

	outer := 1.0
	if l.Sequence {
		outer = t
	}
	bytes := T * (16*h/outer + 4*(heads+kv)*d)
	mlp := func(tokens, f float64) float64 {
		if m.Gated {
			return tokens * 6 * f
		}
		return tokens * 4 * f
	}
	g := 1.0
	if m.Gated {
		g = 2
	}
	if !moe {
		f := float64(m.FFN) / t
		x.mlp += add(p.product(T, g*f, h))
		x.mlp += add(p.product(T, h, f))
		bytes += mlp(T, f)
	} else {
		// Tokens of a rank, before routing: with sequence parallelism and whole experts a TP rank
		// holds its share only.
		own := T
		if l.ETP < l.TP {
			own = T * float64(l.ETP) / t
		}
		local := float64(m.Experts) / float64(l.EP)
		routed := own * float64(m.TopK)
		f := float64(m.ExpertFFN) / float64(l.ETP)
		before := x.gemm
		crowd := max(l.Imbalance, 1) // all ranks wait for the fullest
		fuller := func(f, b, w float64) (float64, float64, float64) { return crowd * f, crowd * b, crowd * w }
		add(fuller(p.grouped(local, routed, g*f, h)))
		add(fuller(p.grouped(local, routed, h, f)))
		bytes += crowd * (p.activates(mlp(routed, f)) + routed*h*2*p.permutes())
		if m.SharedFFN > 0 {
			fs := float64(m.SharedFFN) / t
			x.shared += add(p.product(T, g*fs, h))
			x.shared += add(p.product(T, h, fs))
			bytes += mlp(T, fs)
		}
		add(p.product(own, float64(m.Experts), h))
		x.moe = x.gemm - before
		// Dispatch and combine, forward and again backward.
		there, back := p.toExperts(crowd*own*h, p.wire()), p.toExperts(crowd*own*h, 2)
		x.epF, x.epB = there+back, there+back
	}
	x.vector = c.Vector(bytes * p.h.Vector)
	x.f += x.vector
	x.b += 2 * x.vector

	if l.TP > 1 {
		buf := 2 * T * h
		if l.Sequence {
			ag, _ := p.mc.Collective(sched.AllGather, l.TP, 1, buf*p.gathered())
			rs, _ := p.mc.Collective(sched.ReduceScatter, l.TP, 1, buf)
			x.tpF, x.tpB = 2*(ag+rs), 4*ag+2*rs
			if moe && l.ETP < l.TP { // experts take the sequence's share as it is
				x.tpF, x.tpB = ag+rs, 2*ag+rs
			}
		} else {
			ar, _ := p.mc.Collective(sched.AllReduce, l.TP, 1, buf)
			x.tpF, x.tpB = 2*ar, 2*ar
		}
	}
	if l.CP > 1 {
		n := float64(l.CP)
		switch l.Context {
		case "ulysses":
			a2a, _ := p.mc.Collective(sched.AllToAll, l.CP, l.TP, 2*T*(heads+kv)*d)
			x.cpF, x.cpB = 2*a2a, 2*a2a
		case "gather":
			ag, _ := p.mc.Collective(sched.AllGather, l.CP, l.TP, 4*T*n*kv*d)
			x.cpF, x.cpB = ag, 2*ag
		default:
			hop, _ := p.mc.Send(l.TP*(l.CP-1), 4*T*kv*d)
			hop *= p.mc.longer(Transfer{Op: sched.AllGather, Ranks: l.CP, Stride: l.TP, Bytes: 4 * T * kv * d * n})
			x.cpF = max((n-1)*hop-at*(n-1)/n, 0) + hop/2
			x.cpB = max((n-1)*2*hop-at*p.h.AttnBack*(n-1)/n, 0) + hop
		}
	}
	return x
}

// gathered is the bytes of what tensor parallel ranks gather, over those of bf16. Transformer Engine quantises the inputs of products before
// it gathers them; sums are scattered in bf16.
func (p *pricer) gathered() float64 {
	if p.f != Megatron {
		return 1
	}
	switch p.t {
	case "fp8", "fp8block":
		return .5
	case "fp4":
		return .28
	}
	return 1
}

// unfused is attention that writes its scores: two batches of whole products, and passes over the scores. Forward writes them,
// softmax reads and writes them, dropout does the same and keeps a mask, and the second product reads them. Backward has
// twice the products, and does not compute the scores again, as flash attention has to. Where a head's size is no
// multiple of 8 numbers the tensor cores cannot be fed in whole lines, and products take several times as long.
func (p *pricer) unfused(heads, d float64, backward bool) float64 {
	c, l := p.mc.Chip, p.l
	seq, n := float64(l.Seq), float64(l.Micro)*heads
	rate := c.Peak["bf16"] * c.Reach("bf16") * .42
	if math.Mod(d, 8) != 0 {
		rate = c.Peak["bf16"] * .055
	}
	products, bytes := 1.0, 8.0
	if backward {
		products, bytes = 2, 14
	}
	if l.Dropout {
		bytes += 5
	}
	return (products*(10e-6+4*n*seq*seq*d/rate) + n*seq*seq*bytes/(c.HBM*.85)) / float64(l.CP)
}

// toExperts is the time to bring the numbers of a rank's tokens, of the given bytes each, to their experts, or back. Each of a token's K
// copies crosses NVLink once, unless its expert lies on the same rank. Where experts lie in several domains a token also crosses the NIC
// once for each other domain that has one of them, and is copied there; both go on at once once the first tokens have come, and the slower
// one counts.
//
//	rank ──NIC, once a domain──► a rank of the other domain ──NVLink, once an expert──► rank
func (p *pricer) toExperts(tokens, bytes float64) float64 {
	n := p.l.EP * p.l.ETP
	if n == 1 {
		return 0
	}
	size, k := tokens*bytes, float64(p.m.TopK)
	if !p.l.copiesOnce() {
		plain, _ := p.mc.Collective(sched.AllToAll, n, 1, size*k)
		return plain
	}
	t := dispatching + size*k*float64(n-1)/float64(n)/(p.mc.Inside()*dispatched)
	if n > p.mc.Domain {
		across, _ := p.mc.Collective(sched.AllToAll, n, 1, size*p.copies())
		t = max(t, across) + forwarding
	}
	if p.mc.stretch != nil { // what is simulated is what is sent
		return t
	}
	plain, _ := p.mc.Collective(sched.AllToAll, n, 1, size*k)
	return min(t, plain) // of short messages the start counts alone
}

// What kernels made for expert traffic reach of a GPU's NVLink, and how long they take to start. DeepEP's README has 153 to 158 of H800's
// 200 GB/s, and on B200 643 to 675 of 900 with 24 multiprocessors and 726 to 740 with 64.
const (
	dispatched  = .76
	dispatching = 20e-6
)

// permutes is the passes over routed tokens beside their products. Before they are sent tokens are sorted by rank, and there by expert;
// results go back through both. Kernels made for it write tokens where their expert reads them, and read results there: one copy each way
// is left.
func (p *pricer) permutes() float64 {
	if p.l.copiesOnce() && p.l.EP > 1 {
		return min(p.h.Permute, 4)
	}
	return p.h.Permute
}

// activates is the bytes that experts' activation functions move: none where the products apply them.
func (p *pricer) activates(bytes float64) float64 {
	if p.l.Fused {
		return 0
	}
	return bytes
}

// scores is the type that attention multiplies in.
func (p *pricer) scores() kernel.Type {
	if p.l.FP8Scores {
		return "fp8"
	}
	return "bf16"
}

// forwarding is how long the first tokens take through the NIC before they go on over NVLink, in seconds.
const forwarding = 15e-6

// copies is in how many NVLink domains a token has experts. Routing that is limited to some groups of experts reaches fewer.
func (p *pricer) copies() float64 {
	m := p.m
	k := float64(m.TopK)
	domains := math.Ceil(float64(p.l.EP*p.l.ETP) / float64(p.mc.Domain))
	missed := math.Pow(1-1/domains, k) // of a domain: none of the K experts lies in it
	if g := float64(m.Groups); m.TopGroups > 0 && g >= domains {
		none := 1.0 // none of its groups is among those chosen
		for i := range m.TopGroups {
			none *= max(g-g/domains-float64(i), 0) / (g - float64(i))
		}
		missed = max(missed, none)
	}
	return min(k, domains*(1-missed))
}

// wire is the bytes of a number that experts are sent.
func (p *pricer) wire() float64 {
	switch p.l.Dtype {
	case "fp8block":
		return 1.03
	}
	return 2
}

// head is the time of the logits and the loss, and of the embedding.
func (p *pricer) head() (f, b, w float64) {
	h := p.units().head
	return h[0], h[1], h[2]
}

func (p *pricer) loss() (f, b, w float64) {
	v := float64(p.m.Vocab) / float64(p.l.TP)
	c := p.mc.Chip
	s := p.slow()
	h := float64(p.m.Hidden)
	f = s*p.mc.gemm("bf16", p.tc, v, h) + c.Vector(p.tc*v*8)
	b = s*p.mc.gemm("bf16", p.tc, h, v) + c.Vector(p.tc*v*6)
	w = s * p.mc.gemm("bf16", h, v, p.tc)
	return f, b, w
}

// memo of products: a search prices the same shapes over and over.
type shape struct {
	t       kernel.Type
	m, n, k float64
}

func (m *Machine) gemm(t kernel.Type, a, b, c float64) float64 {
	s := shape{t, a, b, c}
	if m.products == nil {
		m.products = map[shape]float64{}
	}
	v, ok := m.products[s]
	if !ok {
		v = m.Chip.GEMM(t, a, b, c)
		m.products[s] = v
	}
	return v
}

// prompts is attention over whole sequences.
type prompts struct {
	t                          kernel.Type
	batch, seq, heads, kv, dim float64
}

func (m *Machine) attention(t kernel.Type, batch, seq, heads, kv, dim float64) float64 {
	s := prompts{t, batch, seq, heads, kv, dim}
	if m.attentions == nil {
		m.attentions = map[prompts]float64{}
	}
	v, ok := m.attentions[s]
	if !ok {
		v = m.Chip.Prefill(t, batch, seq, seq, heads, kv, dim)
		m.attentions[s] = v
	}
	return v
}

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

func (p *pricer) addLayer(x *chunkTime, k layerTime, moe bool, factor, gather, reduce float64) {
	l := p.l
	tpF, tpB, epF, epB := k.tpF, k.tpB, k.epF, k.epB
	if l.Overlap {
		switch {
		case p.f == FSDP:
			tpF, tpB = tpF*p.h.TPPlain, tpB*p.h.TPPlain
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
	fTime := max(p.beside(f+shownF, gather+hidF), host)
	b, w, passes := k.b*factor, k.w*factor, 2.0
	if l.Phase == "lora" {
		w, passes = 0, 1
	}
	again := 0.0
	switch {
	case l.Recompute.Full:
		again = max(f+shownF, host)
	case len(l.Recompute.Modules) > 0:
		again = p.again(k, factor)
	}
	bTime := max(p.beside(b+w+shownB+again, gather+reduce+hidB), passes*host) - w
	x.F += fTime
	x.B += bTime
	x.W += w
	x.again += again
	x.shown += max(fTime-f, 0) + max(bTime-b-again, 0)
}

// plainBack is the share of tensor parallel traffic that stays visible in backward without --tp-comm-overlap. Megatron then starts the
// gather of a column's input beside its input gradient, and the scatter of that gradient beside the weight gradient: four
// of the six transfers. The gathers of the two rows' gradients, and all of forward, have nothing beside them.
func (p *pricer) plainBack() float64 { return 2.0/6 + p.h.Shadow*4/6 }

// again is the time of what selective recompute computes once more.
func (p *pricer) again(k layerTime, factor float64) float64 {
	t := 0.0
	r := p.l.Recompute
	if r.Has("core_attn") && !p.l.Flash {
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
		return (t+k.moe)*factor + k.epF
	case r.Has("shared_experts"):
		t += k.shared
	}
	return t * factor
}

// held is the parameters of a rank's stage, by how they are shared.
type held struct {
	dense   float64 // on this rank, replicated over data ranks
	experts float64
	layers  int
}

func (o *held) put(x held, n int) {
	o.dense += float64(n) * x.dense
	o.experts += float64(n) * x.experts
}

// parts gives the parameters of a layer of each kind, of the embedding, and of what follows the last layer. A tied head needs a copy of
// the embedding, unless both lie on the same rank.
func (p *pricer) parts() (each [2]held, first, last, tied held) {
	m, l := p.m, p.l
	for i := range each {
		lp := m.Layer(i == 1)
		each[i].dense, each[i].experts = (lp.Attention+lp.MLP)/float64(l.TP)+lp.Replicated, lp.Experts/float64(l.ETP*l.EP)
	}
	v := float64(m.Hidden) * p.vocab() / float64(l.TP)
	first.dense = v + float64(m.Hidden*m.Positions)
	if m.Tied {
		tied.dense = v
	} else {
		last.dense = v
	}
	last.put(each[b2i(m.Experts > 0)], m.MTP)
	last.dense += 2 * float64(m.MTP) * float64(m.Hidden) * float64(m.Hidden)
	return each, first, last, tied
}

// holds gives what each pipeline rank holds.
func (p *pricer) holds() []held {
	if p.held == nil {
		p.held = p.holding()
	}
	return p.held
}

func (p *pricer) holding() []held {
	m, l := p.m, p.l
	out := append(p.scratch.held[:0], make([]held, l.PP)...)
	if m.CNN != nil {
		out[0].dense = m.Params().Total
		return out
	}
	n := l.PP * l.VPP
	counts := p.counts()
	at := 0
	each, first, last, tied := p.parts()
	for i, c := range counts {
		r := i % l.PP
		if l.Schedule == schedule.ZBV && i >= l.PP {
			r = 2*l.PP - 1 - i
		}
		o := &out[r]
		o.layers += c
		moe := p.experts(at, at+c)
		o.put(each[0], c-moe)
		o.put(each[1], moe)
		at += c
		if i == 0 {
			o.put(first, 1)
		}
		if i == n-1 {
			o.put(last, 1)
			if l.PP > 1 && r != 0 {
				o.put(tied, 1)
			}
		}
	}
	if l.Schedule == schedule.DualPipe {
		both := make([]held, l.PP)
		for i := range out {
			j := l.PP - 1 - i
			both[i] = held{out[i].dense + out[j].dense, out[i].experts + out[j].experts, out[i].layers + out[j].layers}
		}
		out = both
	}
	return out
}

// vocab is the vocabulary as frameworks pad it: to a multiple of 128 tp.
func (p *pricer) vocab() float64 {
	if p.f == FSDP {
		return float64(p.m.Vocab)
	}
	unit := 128 * p.l.TP
	return float64((p.m.Vocab + unit - 1) / unit * unit)
}

// data is what data parallelism adds to a step: seconds that nothing hides, the time of the whole reduction, and the reasons.
func (p *pricer) data(hide, forward float64) (shown, reduction float64, terms []Term) {
	l := p.l
	if l.ZeRO >= 3 {
		// Every micro-batch has gathered and reduced already; the first gather and the last
		// reduction have nothing beside them.
		g, r := p.zero3()
		v := max(g[0], g[1]) + max(r[0], r[1])
		return v, 0, []Term{{Name: "first gather and last reduction", Value: v, Unit: "s", Why: "nothing runs beside them"}}
	}
	var worst exchange
	var at held
	for i, o := range p.holds() {
		if i > 0 && o == p.holds()[i-1] {
			continue
		}
		x := p.exchange(o)
		x.show(p, hide, forward)
		if x.shown() >= worst.shown() {
			worst, at = x, o
		}
	}
	hidden, behind := "nothing runs beside them", "nothing runs beside them"
	if l.Overlap && l.DPOverlap {
		hidden, behind = fmt.Sprintf("hidden behind %.3g s of the last backward", hide),
			fmt.Sprintf("hidden behind %.3g s of the first forward", forward)
	}
	terms = []Term{{Name: "gradients", Value: worst.shownR, Unit: "s",
		Why: fmt.Sprintf("%.3g GB take %.3g s; %s; %s", (at.dense+at.experts)*p.gradBytes()/1e9, worst.reduce, worst.how, hidden)}}
	if worst.gather > 0 {
		terms = append(terms, Term{Name: "parameters", Value: worst.shownG, Unit: "s",
			Why: fmt.Sprintf("gathering them takes %.3g s; %s", worst.gather, behind)})
	}
	return worst.shown(), worst.reduce, terms
}

// exchange is what data ranks send one another in a step: gradients, and parameters that one of them has changed.
type exchange struct {
	reduce, gather float64
	shownR, shownG float64 // of these, what nothing hides
	how            string
}

func (x *exchange) shown() float64 { return x.shownR + x.shownG }

// exchange is that of a rank.
func (p *pricer) exchange(o held) (x exchange) {
	l := p.l
	one := func(params float64, n, stride int) {
		if l.Phase == "lora" {
			params *= .005
		}
		if l.ZeRO == 0 {
			t, why := p.mc.Collective(sched.AllReduce, n, stride, params*p.gradBytes())
			x.reduce += t
			x.how = why
			return
		}
		t, why := p.mc.Collective(sched.ReduceScatter, n, stride, params*p.gradBytes())
		a, _ := p.mc.Collective(sched.AllGather, n, stride, params*2)
		x.reduce += t
		x.gather += a
		x.how = why
	}
	one(o.dense, l.DP*l.CP, l.TP)
	if o.experts > 0 {
		one(o.experts, l.ExpertData(), l.EP*l.ETP)
	}
	return x
}

// show finds what nothing hides.
func (x *exchange) show(p *pricer, hide, forward float64) {
	if !p.l.Overlap || !p.l.DPOverlap {
		x.shownR, x.shownG = x.reduce*p.h.Bare, x.gather*p.h.Bare
		return
	}
	// Buckets: the last one has nothing left to hide behind.
	x.shownR, x.shownG = max(x.reduce-hide, x.reduce*.04), max(x.gather-forward, x.gather*.04)
}

// exchangeLeast is the least that data parallelism adds to a step. What a reduction hides behind is known before a run where the last pass
// of all is the first rank's backward; elsewhere all of it may be hidden but the last bucket.
func (p *pricer) exchangeLeast(stages []chunkTime) (worst float64) {
	l := p.l
	if l.ZeRO >= 3 {
		g, r := p.zero3()
		return max(g[0], g[1]) + max(r[0], r[1])
	}
	hide, forward := math.Inf(1), math.Inf(1)
	if l.VPP == 1 && !l.Schedule.Splits() {
		hide = (stages[0].B + stages[0].W) * .9
	}
	for _, s := range stages[:l.PP] {
		forward = min(forward, s.F*.9)
	}
	for i, o := range p.holds() {
		if i > 0 && o == p.holds()[i-1] {
			continue
		}
		x := p.exchange(o)
		x.show(p, hide, forward)
		worst = max(worst, x.shown())
	}
	return worst * (1 - 1e-9)
}

// optimizer is the time of Adam: about 30 bytes a parameter of memory traffic.
func (p *pricer) optimizer() (float64, string) {
	t, worst := p.adam()
	return t, fmt.Sprintf("30 bytes of memory traffic for each of %.3g parameters", worst)
}

// adam is its time, and the parameters of the rank that has most of them.
func (p *pricer) adam() (seconds, worst float64) {
	l := p.l
	for _, o := range p.holds() {
		dense, experts := o.dense, o.experts
		if l.ZeRO >= 1 {
			dense /= float64(l.Sharded())
			experts /= float64(l.ExpertData())
		}
		worst = max(worst, dense+experts)
	}
	if l.Phase == "lora" {
		worst *= .005
	}
	rate := p.mc.Chip.HBM * .8
	if l.Offload {
		rate = 40e9
	}
	return 30 * worst / rate, worst
}
