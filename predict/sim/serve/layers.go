package serve

import (
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/internal/kernel"
)

// graphed is what a kernel's start takes in a graph. Kernels were measured one by one, with a launch and, for narrow types,
// with the quantising of their input, which engines fuse into the norm before.
const graphed = 2e-6

// Kernels of a layer that compute next to nothing and still start one after the other: norms, rotations and the cache's update of
// latent attention; router, sorting, activation, quantising and summing of experts; convolution, gates and norm of a state.
const (
	smallLatent  = 5
	smallExperts = 6
	smallState   = 4
	smallBlocks  = 5 // inputs of products with weights scaled by blocks are quantised by kernels of their own
)

// gemm is a product with weights of a type, remembered: steps of one copy have the same few shapes. A GPU that does not compute in
// the type of its weights reads them narrow and computes in bf16.
func (e *Engine) gemm(weights string, m, n, k float64) float64 {
	if m <= 0 {
		return 0
	}
	m = float64(round(int(math.Ceil(m))))
	key := product{weights, m, n, k}
	if v, ok := e.products[key]; ok {
		return v
	}
	c, b := e.Machine.Chip, bytesOf(weights)
	floor := (b*n*k + 2*m*(n+k)) / (c.HBM * .85)
	var v float64
	if weights == "int4" || weights != "bf16" && c.Peak[weights] == 0 {
		compute := 2 * m * n * k / (c.Peak["bf16"] * c.Reach("bf16") * .7)
		v = graphed + math.Sqrt(math.Sqrt(math.Pow(compute, 4)+math.Pow(floor, 4)))
	} else {
		t := kernel.Type(weights)
		if weights == "fp8" && e.Model.MLA != nil { // DeepSeek's checkpoints scale blocks of 128
			t = "fp8block"
		}
		v = max(c.GEMM(t, m, n, k)-c.Launch(t)+graphed, graphed+floor)
		if t == "fp8block" && c.Table == "b200" {
			v = max(v, graphed+2*m*n*k/(c.Peak["fp8"]*blocksOnBlackwell))
		}
	}
	e.products[key] = v
	return v
}

// blocksOnBlackwell is what products with weights scaled by blocks of 128 reach there of the fp8 peak. Its tensor cores scale blocks of 32;
// no table has these products, and DeepSeek's prompts take as long in SGLang and TensorRT-LLM as if they ran at this rate.
const blocksOnBlackwell = .3

// product is a matrix product's type and shape.
type product struct {
	weights string
	m, n, k float64
}

// Engines add up partial sums with kernels of their own: each rank reads all others' (one shot), or a share of them and
// gathers the sums (two shots), whichever is sooner; long buffers go by NCCL.
const (
	oneShot = 7e-6
	twoShot = 13e-6
)

func (e *Engine) reduce(bytes float64) float64 {
	n := e.Layout.TP
	if n == 1 {
		return 0
	}
	t, _ := e.Machine.Collective(sched.AllReduce, n, 1, bytes)
	if n > e.Machine.Domain {
		return t
	}
	rate, k := e.Machine.Inside()*.7, float64(n)
	return min(t, oneShot+(k-1)*bytes/rate, twoShot+2*(k-1)/k*bytes/rate)
}

// Kernels that bring tokens to experts and back, as DeepEP measures them on H800: the start inside a domain and beyond it, and what
// they reach of a link.
const (
	exchangeInside = 30e-6
	exchangeBeyond = 40e-6
	exchangeRelay  = 250e-6
	exchangeRate   = .95
)

// exchange is the time in which every rank sends tokens of some bytes to their experts' ranks, or has them back. Few tokens go straight
// to each expert; many go once to each domain and are copied there.
func (e *Engine) exchange(tokens, bytes float64) float64 {
	n, domain := float64(e.Layout.Ranks()), float64(e.Machine.Domain)
	k := min(float64(e.Model.TopK), n)
	all := tokens * bytes * k
	inside := all * (min(n, domain) - 1) / min(n, domain) / (e.Machine.Inside() * .8)
	if n <= domain {
		return exchangeInside + inside
	}
	straight := exchangeBeyond + all*(n-domain)/n/(e.Machine.NIC*exchangeRate)
	d := math.Ceil(n / domain)
	copies := d * (1 - math.Pow(1-1/d, k)) * (d - 1) / d
	return min(straight, exchangeRelay+max(inside, tokens*bytes*copies/(e.Machine.NIC*exchangeRate)))
}

// pass is what one group of ranks does in a step.
type pass struct {
	e                       *Engine
	decode, queries         float64 // requests that get tokens, and the tokens that each has attend: one and its drafts
	prompt, prompts         float64 // tokens of prompts, and how many pieces they are
	context, before         float64
	tokens                  float64 // of a group
	all                     float64 // of all groups: what experts see
	reduce                  float64 // a sum over the group's ranks
	hidden, heads, kv, size float64
	wide                    float64 // matrices of an MLP that read the hidden state: two if gated
}

// pass deals a step's work out to the groups. A prompt runs in one group: fewer prompts than groups leave groups without any, and the
// others wait for it.
func (e *Engine) pass(w Work) *pass {
	m, dp, t := e.Model, float64(e.groups()), float64(e.Layout.TP)
	p := &pass{e: e, queries: float64(1 + e.Drafts), context: float64(w.Context), before: float64(w.Before), hidden: float64(m.Hidden),
		size: float64(m.HeadDim), wide: 1}
	p.decode = math.Ceil(float64(w.Decode) / dp)
	p.prompt = math.Ceil(float64(w.Prompt) / min(dp, max(float64(w.Prompts), 1)))
	p.prompts = math.Ceil(float64(w.Prompts) / dp)
	p.tokens, p.all = p.decode*p.queries+p.prompt, float64(w.Decode)*p.queries+float64(w.Prompt)
	p.heads, p.kv = float64(m.Heads)/t, max(float64(m.KVHeads)/t, 1)
	if m.Gated {
		p.wide = 2
	}
	p.reduce = e.reduce(2 * p.tokens * p.hidden)
	return p
}

// drafting is the pass of a draft layer: one token of each request.
func (e *Engine) drafting(w Work) *pass {
	one := *e
	one.Drafts = 0
	return one.pass(Work{Decode: w.Decode, Context: w.Context})
}

// attend is attention over prompts and for new tokens.
func (p *pass) attend(window float64) float64 {
	c, m := p.e.Machine.Chip, p.e.Model
	cache := kernel.Type("bf16")
	if p.e.KV == "fp8" && !(p.e.Habits.WideCache && c.Table == "h100") {
		cache = "fp8"
	}
	s, kv, d := 0.0, p.kv, p.size
	context, before := p.context, p.before
	if window > 0 {
		context, before = min(context, window), min(before, window)
	}
	shared, latent := kv, d
	if a := m.MLA; a != nil { // the latent vector is one KV head for all
		shared, latent = 1, float64(a.KVRank+a.RoPE)/2
		d, kv = float64(a.NoPE+a.RoPE+a.V)/2, p.heads
	}
	if p.decode > 0 {
		s += c.Decode(cache, p.decode, context, p.heads*p.queries, shared, latent)
	}
	if p.prompt > 0 {
		prompts, q := p.prompts, p.prompt/p.prompts
		if window > 0 && q > window { // a piece attends to no more than its window
			prompts, q = prompts*q/window, window
		}
		s += c.Prefill("bf16", prompts, q, q+before, p.heads, kv, d)
	}
	return s
}

// project is the products before and after attention.
func (p *pass) project() float64 {
	e, t := p.e, p.e.plain()
	a := e.Model.MLA
	if a == nil {
		q := p.heads
		if e.Model.QGate {
			q *= 2
		}
		return e.gemm(t, p.tokens, (q+2*p.kv)*p.size, p.hidden) + e.gemm(t, p.tokens, p.hidden, p.heads*p.size)
	}
	s := smallLatent * graphed
	if t == "fp8" {
		s += smallBlocks * graphed
	}
	if a.QRank > 0 {
		s += e.gemm(t, p.tokens, float64(a.QRank+a.KVRank+a.RoPE), p.hidden) + e.gemm(t, p.tokens, p.heads*float64(a.NoPE+a.RoPE),
			float64(a.QRank))
	} else {
		s += e.gemm(t, p.tokens, p.heads*float64(a.NoPE+a.RoPE)+float64(a.KVRank+a.RoPE), p.hidden)
	}
	return s + e.gemm(t, p.tokens, p.heads*float64(a.V), float64(a.KVRank)) + e.gemm(t, p.tokens, p.hidden, p.heads*float64(a.V))
}

// state is a layer that keeps a state: its projections, and each request's state read and written once per step. Prompts go through it
// in chunks, as products of twice the operations that one token after the other takes.
func (p *pass) state() float64 {
	e, l, c := p.e, p.e.Model.Linear, p.e.Machine.Chip
	cut := float64(min(e.Layout.TP, l.ValueHeads))
	s := smallState*graphed + e.gemm(e.plain(), p.tokens, l.In()/cut, p.hidden) + e.gemm(e.plain(), p.tokens, p.hidden, l.Out()/cut)
	s += 2 * (p.decode + p.prompts) * l.StateBytes() / cut / (c.HBM * .8)
	return s + 2*p.prompt*l.CoreFLOPs()/cut/(c.Peak["bf16"]*.35)
}

// dense is an MLP without experts.
func (p *pass) dense() float64 {
	return p.mlp(p.e.plain(), p.tokens, float64(p.e.Model.FFN)/float64(p.e.Layout.TP)) + p.reduce
}

func (p *pass) mlp(t string, tokens, f float64) float64 {
	return p.e.gemm(t, tokens, p.wide*f, p.hidden) + p.e.gemm(t, tokens, p.hidden, f)
}

// experts is an MLP of experts. A batch touches E (1 - (1 - K/E)^B) of them, whose weights are read whole. Routing deals tokens out at
// random: the rank with the most of them is the one that all wait for.
func (p *pass) experts() float64 {
	e, m, l, c := p.e, p.e.Model, p.e.Layout, p.e.Machine.Chip
	ranks, ep := float64(l.Ranks()), float64(max(l.EP, 1))
	E, K := float64(m.Experts), float64(m.TopK)
	share := 1 - math.Pow(1-K/E, p.all) // of the experts
	touched := min(max(E*share/ep+most(ep, E/ep*share*(1-share)), 1), e.slots())
	f := float64(m.ExpertFFN) * ep / ranks
	rows := max(min(p.all*K/ep+most(ep, p.all*K/ep), p.all*K), touched)
	read := touched * (p.wide + 1) * p.hidden * f * bytesOf(e.Weights) / (c.HBM * .8)
	s := smallExperts*graphed + max(read, p.mlp(e.Weights, rows, f)) + c.Vector(rows*(4*p.hidden+6*f))
	if m.SharedFFN > 0 {
		s += p.mlp(e.plain(), p.tokens, float64(m.SharedFFN)/float64(l.TP))
	}
	if e.groups() == 1 {
		return s + p.reduce
	}
	return s + e.toExpertsAndBack(p.tokens)
}

// toExpertsAndBack is both exchanges of a layer, for the tokens of one group: there in fp8 with scales, where the weights are narrow, and
// back in bf16.
func (e *Engine) toExpertsAndBack(tokens float64) float64 {
	there := 2.0
	if e.Weights == "fp8" || e.Weights == "fp4" {
		there = 1.03
	}
	mine := tokens / float64(e.Layout.TP) * float64(e.Model.Hidden)
	return e.exchange(mine, there) + e.exchange(mine, 2)
}

// most is how far the largest of n random counts with some variance lies above their mean.
func most(n, variance float64) float64 {
	if n <= 1 {
		return 0
	}
	return math.Sqrt(2 * math.Log(n) * variance)
}

// head gives the next tokens' logits.
func (p *pass) head() float64 {
	return p.e.gemm("bf16", max(p.decode*p.queries+p.prompts, 1), float64(p.e.Model.Vocab)/float64(p.e.Layout.TP), p.hidden)
}

// sum adds the kernels and transfers of a step up.
func (e *Engine) sum(w Work) float64 {
	m, p := e.Model, e.pass(w)
	around := e.Machine.Chip.Vector(p.tokens*p.hidden*2*8) + p.reduce
	kernels := float64(m.Layers)*around + float64(m.Attending())*p.project() + p.head()
	for _, x := range []struct {
		layers int
		time   func() float64
	}{
		{m.Attending() - m.Windowed, func() float64 { return p.attend(0) }},
		{m.Windowed, func() float64 { return p.attend(float64(m.Window)) }},
		{m.Layers - m.Attending(), p.state},
		{m.DenseLayers(), p.dense},
		{m.MoELayers(), p.experts},
	} {
		if x.layers > 0 {
			kernels += float64(x.layers) * x.time()
		}
	}
	if e.Drafts > 0 && w.Decode > 0 {
		kernels += float64(e.Drafts) * e.draft(w)
	}
	if l := e.Layout; l.PP > 1 { // a token passes all stages; they work on different requests meanwhile
		hop, _ := e.Machine.Send(l.Ranks(), 2*p.tokens*p.hidden)
		kernels += hop * float64(l.PP-1)
	}
	return kernels
}

// draft is one pass through the draft layer: the last hidden state and the new token's embedding are joined, one layer and the head follow.
func (e *Engine) draft(w Work) float64 {
	p := e.drafting(w)
	s := e.gemm(e.plain(), p.tokens, p.hidden,
		2*p.hidden) + e.Machine.Chip.Vector(p.tokens*p.hidden*2*8) + p.reduce + p.project() + p.attend(0) + p.head()
	if e.Model.MoELayers() > 0 {
		return s + p.experts()
	}
	return s + p.dense()
}
