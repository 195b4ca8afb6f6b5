package serve

import (
	"fmt"
	"math"
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
	tokens := math.Ceil(float64(w.Decode*(1+e.Drafts)+w.Prompt) / float64(e.groups()))
	s.sums += n * min(e.between(tokens), step)
	if w.Prompt > 0 {
		s.prompts += n * max(step-e.Step(Work{Decode: w.Decode, Context: w.Context}), 0)
	}
	if w.Decode > 0 {
		s.steps += n
		s.tokens += n * float64(w.Decode*e.Layout.PP)
	}
}

// between is what the sums over ranks of a step and the transfers to experts and back take, for some tokens of each group.
func (e *Engine) between(tokens float64) float64 {
	h := float64(e.Model.Hidden)
	t := 2 * float64(e.Model.Layers) * e.reduce(2*tokens*h)
	if e.groups() > 1 {
		t += float64(e.Model.MoELayers()) * e.toExpertsAndBack(tokens)
	}
	return t
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
	case r.Limit != "": // the KV cache, or how many may run
	case busy > .8:
		r.Limit = fmt.Sprintf("prompts: their copies are busy %.0f%% of the time", 100*min(busy, 1))
	case r.Idle > .5:
		r.Limit = fmt.Sprintf("arrivals: copies stand idle %.0f%% of the time", 100*r.Idle)
	case r.Prompts > .5:
		r.Limit = fmt.Sprintf("compute of prompts: %.0f%% of the steps' time", 100*r.Prompts)
	case r.SumsShare > .3:
		r.Limit = fmt.Sprintf("transfers between ranks: %.0f%% of the steps' time", 100*r.SumsShare)
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
		t = max(t*or1(e.Factor)+(e.kernels(w)-t)*or1(e.Compute), e.eager())
	} else {
		t *= or1(e.Factor)
	}
	return t + hostStep + hostLayer*layers + float64(e.Drafts)*hostDraft
}

// eager is the host time of a step with prompts, which is in no graph.
func (e *Engine) eager() float64 {
	layer := e.Habits.Eager
	if e.Machine.Chip.Table == "b200" {
		layer += e.Habits.EagerNew
	}
	return layer*float64(e.Model.Layers) + e.Habits.EagerExperts*float64(e.Model.MoELayers())
}

// Host time that nothing hides: of a step, of a layer, and of a draft, whose token the next one waits for.
const (
	hostStep  = .8e-3
	hostLayer = 6e-6
	hostDraft = .1e-3
)

// Accepted is how often DeepSeek-V3's own draft layer is right about the next token, given that it was about those before. DeepSeek
// reports 85 to 90% for the first draft, SGLang 2.18 tokens in a step with three, which is 62% each.
const Accepted = .7

// gain is how many tokens a step gives a request: one, and those drafts that are right up to the first wrong one.
func (e *Engine) gain() float64 {
	p := e.Accept
	if p == 0 {
		p = Accepted
	}
	sum, all := 1.0, 1.0
	for range e.Drafts {
		all *= p
		sum += all
	}
	return sum
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
