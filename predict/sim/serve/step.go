package serve

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/internal/kernel"
)

// Work is what one step does: Decode requests with Context tokens each get a token, and Prompts pieces of prompts,
// Prompt tokens together, run beside them; Before is how many tokens a piece finds in the cache, on average.
type Work struct {
	Decode, Context, Prompts, Prompt, Before int
}

// inStages is the work of one pass through the stages of a pipeline, while each stage is at a part of its own: requests
// are dealt out over as many batches as there are stages, and prompts that are longer than a chunk over as many passes.
// In the time of one pass all of the batches pass.
func (w Work) inStages(stages, chunk int) Work {
	if stages == 1 {
		return w
	}
	up := func(n, parts int) int { return (n + parts - 1) / parts }
	w.Decode = up(w.Decode, stages)
	if passes := min(stages, up(w.Prompt, chunk)); passes > 1 {
		w.Prompt, w.Prompts = up(w.Prompt, passes), up(w.Prompts, passes)
	}
	return w
}

// spent is what the steps of a run took, and for what.
type spent struct {
	all, sums, prompts float64
	steps, tokens      float64
	prefill            float64 // of prefill workers
}

func (s *spent) add(e *Engine, w Work, step float64) { s.repeat(e, w, step, 1) }

func (s *spent) repeat(e *Engine, w Work, step float64, times int) {
	n := float64(times)
	s.all += n * step
	tokens := math.Ceil(float64(w.Decode+w.Prompt) / float64(max(e.Layout.DP, 1)))
	s.sums += n * min(2*float64(e.Model.Layers)*e.reduce(2*tokens*float64(e.Model.Hidden)), step)
	if w.Prompt > 0 {
		s.prompts += n * max(step-e.Step(Work{Decode: w.Decode, Context: w.Context}), 0)
	}
	if w.Decode > 0 {
		s.steps += n
		s.tokens += n * float64(w.Decode*e.Layout.PP)
	}
}

// tell says what a run's time went into, and what limits it.
func (s *spent) tell(r *Result, time float64) {
	if s.all == 0 || time == 0 {
		return
	}
	r.SumsShare, r.Prompts, r.Idle = s.sums/s.all, s.prompts/s.all, max(1-s.all/time, 0)
	if s.steps > 0 {
		r.Batch = s.tokens / s.steps
	}
	busy := 0.0
	if n := r.Layout.Prefill * max(r.Layout.DP, 1); n > 0 {
		busy = s.prefill / float64(n) / (time / float64(max(r.Layout.Replicas, 1)))
	}
	switch {
	case r.Limit != "": // the KV cache
	case busy > .8:
		r.Limit = fmt.Sprintf("prompts: their copies are busy %.0f%% of the time", 100*min(busy, 1))
	case r.Idle > .5:
		r.Limit = fmt.Sprintf("arrivals: copies stand idle %.0f%% of the time", 100*r.Idle)
	case r.Prompts > .5:
		r.Limit = fmt.Sprintf("compute of prompts: %.0f%% of the steps' time", 100*r.Prompts)
	case r.SumsShare > .3:
		r.Limit = fmt.Sprintf("sums over ranks: %.0f%% of the steps' time", 100*r.SumsShare)
	default:
		r.Limit = "weights and KV cache read from memory"
	}
}

// round keeps 32 steps a doubling: a step's time is smooth in its tokens.
func round(n int) int {
	if n < 64 {
		return n
	}
	unit := 1 << max(int(math.Log2(float64(n)))-5, 0)
	return (n + unit/2) / unit * unit
}

// Step is the seconds of one step.
func (e *Engine) Step(w Work) float64 {
	if w.Decode+w.Prompt == 0 {
		return 0
	}
	w.Context, w.Prompt, w.Before, w.Prompts = round(w.Context), round(w.Prompt), round(w.Before), max(w.Prompts, min(w.Prompt, 1))
	or1 := func(v float64) float64 {
		if v == 0 {
			return 1
		}
		return v
	}
	t := e.kernels(Work{Decode: w.Decode, Context: w.Context}) // what the new tokens alone take
	layers := float64(e.Model.Layers)
	if w.Prompt > 0 {
		t = max(t*or1(e.Factor)+(e.kernels(w)-t)*or1(e.Compute), e.Habits.Eager*layers+e.Habits.EagerExperts*float64(e.Model.MoELayers()))
	} else {
		t *= or1(e.Factor)
	}
	return t + hostStep + hostLayer*layers
}

// kernels is the time of the kernels and transfers of a step, remembered.
func (e *Engine) kernels(w Work) float64 {
	if w.Decode+w.Prompt == 0 {
		return 0
	}
	if t, ok := e.steps[w]; ok {
		return t
	}
	t := e.sum(w)
	e.steps[w] = t
	return t
}

// gemm is a product, remembered: steps of one copy have the same few shapes.
func (e *Engine) gemm(t kernel.Type, m, n, k float64) float64 {
	m = float64(round(int(math.Ceil(m))))
	if t == "bf16" { // kept apart from the weights' own type by its sign
		n = -n
	}
	key := [3]float64{m, n, k}
	if v, ok := e.products[key]; ok {
		return v
	}
	c := e.Machine.Chip
	v := c.GEMM(t, m, math.Abs(n), k) - c.Launch(t) + graphed
	e.products[key] = v
	return v
}

// Engines add up partial sums with kernels of their own: each rank reads all others' (one shot), or a share of them and
// gathers the sums (two shots), whichever is sooner; long buffers go by NCCL.
const (
	oneShot = 7e-6
	twoShot = 13e-6
)

// graphed is what a kernel's start takes in a graph. Kernels were measured one by one, with a launch and, for narrow types,
// with the quantising of their input, which engines fuse into the norm before.
const graphed = 2e-6

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

// sum adds the kernels and transfers of a step up.
func (e *Engine) sum(w Work) float64 {
	m, c, l := e.Model, e.Machine.Chip, e.Layout
	t, dp, ranks := float64(l.TP), float64(max(l.DP, 1)), float64(l.Ranks())
	// A prompt runs in one group: fewer prompts than groups leave groups without any, and the others wait for it.
	decode, prompt := math.Ceil(float64(w.Decode)/dp), math.Ceil(float64(w.Prompt)/min(dp, max(float64(w.Prompts), 1)))
	prompts := math.Ceil(float64(w.Prompts) / dp)
	tokens, all := decode+prompt, float64(w.Decode+w.Prompt)
	ty := kernel.Type(e.Weights)
	kvType := kernel.Type("bf16")
	if e.KV == "fp8" {
		kvType = "fp8"
	}
	h, d := float64(m.Hidden), float64(m.HeadDim)
	heads, kv := float64(m.Heads)/t, max(float64(m.KVHeads)/t, 1)
	g := 1.0
	if m.Gated {
		g = 2
	}
	attend := func(window float64) float64 { // over prompts and of new tokens
		s, kv, d := 0.0, kv, d
		ctx, before := float64(w.Context), float64(w.Before)
		if window > 0 {
			ctx, before = min(ctx, window), min(before, window)
		}
		if a := m.MLA; a != nil {
			if decode > 0 { // the latent vector is one KV head for all
				s += c.Decode(kvType, decode, ctx, heads, 1, float64(a.KVRank+a.RoPE)/2)
			}
			d, kv = float64(a.NoPE+a.RoPE+a.V)/2, heads
		} else if decode > 0 {
			s += c.Decode(kvType, decode, ctx, heads, kv, d)
		}
		if prompt > 0 {
			q := prompt / prompts
			if window > 0 && q > window { // a piece attends to no more than its window
				prompts, q := prompts*q/window, window
				return s + c.Prefill("bf16", prompts, q, q+before, heads, kv, d)
			}
			s += c.Prefill("bf16", prompts, q, q+before, heads, kv, d)
		}
		return s
	}
	project := 0.0
	if a := m.MLA; a != nil {
		if a.QRank > 0 {
			project += e.gemm(ty, tokens, float64(a.QRank+a.KVRank+a.RoPE), h) + e.gemm(ty, tokens, heads*float64(a.NoPE+a.RoPE), float64(a.QRank))
		} else {
			project += e.gemm(ty, tokens, heads*float64(a.NoPE+a.RoPE)+float64(a.KVRank+a.RoPE), h)
		}
		project += e.gemm(ty, tokens, heads*float64(a.V), float64(a.KVRank)) + e.gemm(ty, tokens, h, heads*float64(a.V))
	} else {
		project += e.gemm(ty, tokens, (heads+2*kv)*d, h) + e.gemm(ty, tokens, h, heads*d)
	}
	reduce := e.reduce(2 * tokens * h)
	layer := project + c.Vector(tokens*h*2*8) + reduce
	dense := func() float64 {
		f := float64(m.FFN) / t
		return e.gemm(ty, tokens, g*f, h) + e.gemm(ty, tokens, h, f) + reduce
	}
	experts := func() float64 {
		// A batch touches E (1 - (1 - K/E)^B) experts; their weights are read whole.
		E, K, ep := float64(m.Experts), float64(m.TopK), float64(max(l.EP, 1))
		touched := max(E*(1-math.Pow(1-K/E, all))/ep, 1)
		f := float64(m.ExpertFFN) * ep / ranks
		rows := max(all*K/ep, touched)
		read := touched * (g + 1) * h * f * bytesOf(e.Weights) / (c.HBM * .8)
		s := max(read, e.gemm(ty, rows, g*f, h)+e.gemm(ty, rows, h, f))
		if m.SharedFFN > 0 {
			fs := float64(m.SharedFFN) / t
			s += e.gemm(ty, tokens, g*fs, h) + e.gemm(ty, tokens, h, fs)
		}
		s += c.Vector(rows * h * 2 * 6)
		if dp == 1 {
			return s + reduce
		}
		// Every rank sends its tokens to the ranks of their experts and has the sums back.
		size := tokens / t * h * min(K, ranks) * 2
		out, _ := e.Machine.Collective(sched.AllToAll, l.Ranks(), 1, size)
		return s + 2*out
	}
	kernels := float64(m.Layers) * layer
	if full := m.Layers - m.Windowed; full > 0 {
		kernels += float64(full) * attend(0)
	}
	if m.Windowed > 0 {
		kernels += float64(m.Windowed) * attend(float64(m.Window))
	}
	if n := m.DenseLayers(); n > 0 {
		kernels += float64(n) * dense()
	}
	if n := m.MoELayers(); n > 0 {
		kernels += float64(n) * experts()
	}
	kernels += e.gemm("bf16", max(decode+prompts, 1), float64(m.Vocab)/t, h)
	if l.PP > 1 { // a token passes all stages; they work on different requests meanwhile
		hop, _ := e.Machine.Send(l.Ranks(), 2*tokens*h)
		kernels += hop * float64(l.PP-1)
	}
	return kernels
}

// Host time that nothing hides: of a step, and of a layer.
const (
	hostStep  = .8e-3
	hostLayer = 6e-6
)
