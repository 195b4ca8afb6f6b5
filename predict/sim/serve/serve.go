// Package serve says how a model answers requests on a cluster: time to the first token, time a token,
// tokens a second, and what limits them.
//
// An engine runs in steps. Each step gives every running request its next token and takes up to a chunk of
// waiting prompts with it, as long as the KV cache has room.
//
//	arrivals ─► queue ─► prompts, a chunk a step ─┐
//	                     running requests ────────┴─► one step: products over all tokens, attention, all-reduces
//
// With prefill and decode apart, prompts run on workers of their own and the KV cache crosses the fabric, link by link, while
// they run; transfers that go on at once share links. Kernels are those of predict/internal/kernel; one factor for each engine stands
// between them and a server.
package serve

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim"
)

// Layout is how one copy of the model is cut, and how many copies there are.
type Layout struct {
	TP       int `json:"tp"`
	PP       int `json:"pp"`
	DP       int `json:"dp"` // groups of TP ranks inside a copy that attend to different requests and share the experts; 0 for 1
	EP       int `json:"ep"` // ranks of a copy that whole experts are spread over; the rest of the ranks cut each expert; 0 for 1
	Replicas int `json:"replicas"`
	Prefill  int `json:"prefill_workers,omitempty"` // with prefill and decode apart: copies for prompts; Replicas decode
}

// GPUs is how many it takes.
func (l Layout) GPUs() int { return l.Ranks() * l.PP * (l.Replicas + l.Prefill) }

// Ranks is how many GPUs compute a layer of one copy.
func (l Layout) Ranks() int { return l.TP * max(l.DP, 1) }

// Engine is one copy of a model on a machine.
type Engine struct {
	Model   *work.Model
	Machine *plan.Machine
	Layout  Layout
	Weights string  // bf16, fp8, fp4, int4: of the matrices; int4 only of the routed experts where there are any
	KV      string  // bf16 or fp8
	Chunk   int     // tokens of prompts a step takes at most
	Most    int     // requests that run at once at most; 0 for what memory allows
	Memory  float64 // share of the GPU's memory that the engine takes
	Reuse   float64 // share of prompts found in the cache of earlier ones, where the requests do not say
	Tier    float64 // bytes a second at which a GPU loads what is found there; 0: it is in the GPU's own memory
	Drafts  int     // tokens guessed ahead in a step, by the model's own MTP layer; 0 for none
	Accept  float64 // how likely a draft is right, given that those before it are; 0 for Accepted
	Factor  float64 // decode steps of a server over the sum of their kernels, which wait for memory; 0 for 1
	Compute float64 // the same of what prompts add to a step, which computes; 0 for 1
	Habits  Habits
	Fabric  sim.Options // bad parts and routing that KV transfers meet; the rest of it is filled in

	steps    map[Work]float64
	products map[product]float64
}

// Habits is how an engine runs, whatever the model and the GPU.
type Habits struct {
	Eager        float64 // seconds of host time a layer, where prompts run: their steps are in no graph
	EagerNew     float64 // seconds more of a layer on Blackwell, where the engine's recipe keeps graphs for steps without prompts
	EagerExperts float64 // seconds more of a layer with experts
	TurnExperts  float64 // seconds more of Turn where there are experts
	Turn         float64 // seconds from sending a request to its place in the queue: network, tokeniser, scheduler; half more or less from one to the next
	PromptsFirst bool    // a step has prompts or new tokens, not both, and prompts go first
	Shared       bool    // groups of a copy that attend to different requests share the prompt tokens of a step; else each has its own
	Poll         int     // decode steps from one look for new requests to the next; 0 for 1
	WideCache    bool    // on Hopper, attention over a cache in fp8 takes as long as in bf16
	Wait         int     // steps for which prompts wait for others to run with, while there are answers under way
	Enough       float64 // share of a chunk in waiting prompts that ends the wait at once; with several groups, a prompt for each does
	Whole        bool    // prompts are not cut: one that is not the first of a step waits until there is room for all of it
}

// Kind is an engine by name: its habits, the prompt tokens of a step, and how its steps lie to the sum of their kernels.
type Kind struct {
	Name            string
	Habits          Habits
	Chunk           int
	Factor, Compute float64
}

// turn is what passes between a client and an engine's queue, in seconds.
const turn = 14e-3

// Kinds are the engines that points.csv has measurements of. Compute stands for clocks under a power cap and work that is
// not in the kernels' table, as the factors of training steps do; docs/reference/serve-accuracy.md says how well they predict.
var Kinds = []Kind{
	{"vllm", Habits{Eager: .4e-3, EagerNew: .5e-3, EagerExperts: .6e-3, TurnExperts: .12, Turn: turn, WideCache: true}, 8192, 1.05, 1.2},
	{"sglang", Habits{Eager: .4e-3, EagerExperts: .6e-3, TurnExperts: .12, Turn: turn, PromptsFirst: true, Shared: true}, 8192, 1, 1.2},
	{"trtllm", Habits{Eager: .4e-3, EagerExperts: .6e-3, TurnExperts: .12, Turn: turn, Whole: true}, 8192, 1, 1.15},
}

// KindNamed finds an engine.
func KindNamed(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, fmt.Errorf("unknown engine %q; known: %s", name, strings.Join(names, ", "))
}

// Take gives an engine the habits and factors of a kind.
func (e *Engine) Take(k Kind) {
	e.Habits, e.Chunk, e.Factor, e.Compute = k.Habits, k.Chunk, k.Factor, k.Compute
}

// Request is one request.
type Request struct {
	At     float64 // seconds
	Input  int
	Output int
	Cached int // tokens of the prompt that earlier ones left in the cache
}

// Load is what is asked: a closed loop of Concurrency users, or arrivals at a Rate, or a trace.
type Load struct {
	Concurrency   int
	Rate          float64
	Input, Output int
	Requests      int
	Spread        float64 // lengths lie evenly between this share below Input and Output, and these
	Trace         []Request
	Seed          uint64
}

// Quantiles of a time or a rate.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
}

func quantiles(v []float64) Quantiles {
	if len(v) == 0 {
		return Quantiles{}
	}
	slices.Sort(v)
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	at := func(p float64) float64 { return v[min(int(p*float64(len(v))), len(v)-1)] }
	return Quantiles{sum / float64(len(v)), at(.5), at(.9), at(.99)}
}

// Result is what a run gave. Its JSON keys are stable.
type Result struct {
	TTFT       Quantiles `json:"ttft_s"`
	TPOT       Quantiles `json:"tpot_s"`
	TokensPerS Quantiles `json:"tokens_per_s"` // of a request, by its percentile
	Total      float64   `json:"total_tokens_per_s"`
	PerGPU     float64   `json:"tokens_per_s_per_gpu"`
	Transfer   Quantiles `json:"kv_transfer_s"`      // with prefill and decode apart: what a prompt's KV cache takes longer than the prompt
	KVLimit    string    `json:"kv_limit,omitempty"` // the link that held these transfers back for the longest
	GPUs       int       `json:"gpus"`
	Layout     Layout    `json:"layout"`
	KVTokens   int       `json:"kv_tokens"`
	Weights    float64   `json:"weight_bytes"`
	Requests   int       `json:"requests"`
	USD        float64   `json:"usd_per_million_tokens"`
	Limit      string    `json:"limit"`
	Misses     string    `json:"misses,omitempty"`      // the time limit that it does not keep
	SumsShare  float64   `json:"sums_over_ranks_share"` // of the time of steps
	Prompts    float64   `json:"prompts_share"`         // what prompts add to steps, of their time
	Idle       float64   `json:"idle_share"`            // of the copies' time, without a step
	Batch      float64   `json:"mean_batch"`            // requests that get a token in a step
	Seed       uint64    `json:"seed"`

	FirstInterval *Interval `json:"ttft_interval,omitempty"` // of the means, where such a load was measured
	TokenInterval *Interval `json:"tpot_interval,omitempty"`

	spent spent
}

type running struct {
	r      int // index of the request
	ctx    int
	left   int // tokens to make
	prompt int // tokens of the prompt not yet taken
	first  float64
	part   float64 // of a token: what accepted drafts add up to beyond whole ones
}

// advance gives a request the tokens of some steps.
func (x *running) advance(steps int, gain float64) {
	x.part += float64(steps) * gain
	n := int(x.part + 1e-9)
	x.part -= float64(n)
	x.left -= n
	x.ctx += n
}

// Run serves a load.
func Run(e Engine, load Load) (*Result, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	if e.steps == nil {
		e.steps, e.products = map[Work]float64{}, map[product]float64{}
	}
	reqs, closed, err := load.requests()
	if err != nil {
		return nil, err
	}
	capacity, tokens := e.free(), e.Tokens()
	longest := 0
	for _, r := range reqs {
		longest = max(longest, r.Input+r.Output)
	}
	if capacity < e.Holds(longest)*float64(e.groups()) {
		return nil, fmt.Errorf("the KV cache holds %d tokens of %d GB; a request needs %d: use more GPUs per copy, or narrower weights",
			tokens, int(e.Machine.GPU.Memory/1e9), longest)
	}
	res := &Result{GPUs: e.Layout.GPUs(), Layout: e.Layout, KVTokens: tokens, Weights: e.WeightBytes(), Requests: len(reqs), Seed: load.Seed}
	copies := max(e.Layout.Replicas, 1)
	var ttft, tpot, speed, moved []float64
	out, end := 0, 0.0
	var waits []waited
	count := func(start, first, done, transfer float64, r Request) {
		ttft, waits = append(ttft, first-start), append(waits, waited{start, first - start})
		if r.Output > 1 {
			t := (done - first) / float64(r.Output-1)
			tpot = append(tpot, t)
			speed = append(speed, 1/max(t, 1e-9))
		}
		moved = append(moved, transfer)
		out += r.Output
		end = max(end, done)
	}
	if e.Layout.Prefill > 0 {
		if err := e.serveApart(reqs, closed, capacity, count, res); err != nil {
			return nil, err
		}
		copies = 0
	}
	for c := range copies { // requests go round the copies
		var mine []Request
		for i := c; i < len(reqs); i += copies {
			mine = append(mine, reqs[i])
		}
		users := 0
		if closed > 0 {
			users = closed / copies
			if c < closed%copies {
				users++
			}
			if users == 0 {
				continue
			}
		}
		e.serve(mine, users, capacity, count, res)
	}
	res.spent.tell(res, end*float64(max(e.Layout.Replicas, 1)))
	if closed == 0 && behind(waits) {
		res.Limit = "more requests come than are answered: first tokens come later and later"
	}
	res.TTFT, res.TPOT, res.TokensPerS, res.Transfer = quantiles(ttft), quantiles(tpot), quantiles(speed), quantiles(moved)
	if end > 0 {
		res.Total = float64(out) / end
		res.PerGPU = res.Total / float64(res.GPUs)
		res.USD = e.Machine.Hour * float64(res.GPUs) / 3600 / res.Total * 1e6
	}
	return res, nil
}

// waited is when a request came, and how long its first token took.
type waited struct{ at, first float64 }

// behind reports whether requests come faster than they are answered: the first tokens of the last tenth take longer than those of the
// first tenth by a fifth of the time in between.
func behind(all []waited) bool {
	tenth := len(all) / 10
	if tenth < 5 {
		return false
	}
	slices.SortFunc(all, func(a, b waited) int { return cmp.Compare(a.at, b.at) })
	mean := func(list []waited) (s float64) {
		for _, x := range list {
			s += x.first / float64(len(list))
		}
		return s
	}
	return mean(all[len(all)-tenth:])-mean(all[:tenth]) > .2*(all[len(all)-1].at-all[0].at)
}

// Notes say what an answer rests on that its figures do not show.
func (e *Engine) Notes(l Load) (notes []string) {
	if l.Concurrency > 1 && l.Spread == 0 && len(l.Trace) == 0 {
		notes = append(notes, "note: answers of one length end together, so users ask together and prompts queue; --spread draws lengths")
	}
	if e.Drafts > 0 && (e.Accept == 0 || e.Accept == Accepted) {
		notes = append(notes, fmt.Sprintf(
			"note: drafts are taken to be right %.0f%% of the time, as DeepSeek-V3's are; --accept gives another share", 100*Accepted))
	}
	if e.Drafts > 0 && e.Model.MTP == 0 && e.Model.Experts == 0 { // models with experts have one that the catalogue leaves out
		notes = append(notes, fmt.Sprintf("note: %s is not known to have a layer that predicts further tokens; "+
			"drafts are priced as one more of its layers, which has to be trained for it", e.Model.Name))
	}
	return notes
}

// turn is the seconds from sending a request to its place in the queue.
func (e *Engine) turn() float64 {
	if e.Model.Experts > 0 {
		return e.Habits.Turn + e.Habits.TurnExperts
	}
	return e.Habits.Turn
}

// fresh is the tokens of a prompt that are not in the cache; the last one is always computed.
func (e *Engine) fresh(r Request) int {
	if r.Cached > 0 {
		return max(r.Input-r.Cached, 1)
	}
	return max(int(float64(r.Input)*(1-e.Reuse)), 1)
}

// load is the seconds in which cached tokens come from their tier.
func (e *Engine) load(tokens int) float64 {
	if e.Tier == 0 {
		return 0
	}
	return e.Holds(tokens) / e.Tier
}

func (e *Engine) check() error {
	l, m := e.Layout, e.Model
	switch {
	case m.CNN != nil:
		return fmt.Errorf("%s is not a language model", m.Name)
	case l.TP < 1 || l.PP < 1 || l.Replicas < 1 || l.Prefill < 0 || l.DP < 0 || l.EP < 0:
		return fmt.Errorf("tp %d, pp %d and %d copies must be at least 1", l.TP, l.PP, l.Replicas)
	case m.Experts == 0 && (l.DP > 1 || l.EP > 1):
		return fmt.Errorf("%s has no experts: dp and ep share them out; more copies are what it can have", m.Name)
	case l.EP > 1 && (l.Ranks()%l.EP != 0 || l.EP > m.Experts):
		return fmt.Errorf("ep %d must divide tp %d x dp %d = %d ranks, and each has at least one of %d experts",
			l.EP, l.TP, max(l.DP, 1), l.Ranks(), m.Experts)
	case e.Drafts < 0 || e.Drafts > 16 || e.Accept < 0 || e.Accept > 1:
		return fmt.Errorf("%d drafts with an acceptance of %g: want 0 to 16, and a share", e.Drafts, e.Accept)
	case m.Heads%l.TP != 0:
		return fmt.Errorf("tp %d does not divide %d heads", l.TP, m.Heads)
	case l.GPUs() > e.Machine.GPUs:
		return fmt.Errorf("tp %d x dp %d x pp %d x %d copies is %d GPUs; there are %d",
			l.TP, max(l.DP, 1), l.PP, l.Replicas+l.Prefill, l.GPUs(), e.Machine.GPUs)
	case e.Chunk < 1:
		return fmt.Errorf("a chunk of %d tokens", e.Chunk)
	case e.Memory <= 0 || e.Memory > 1:
		return fmt.Errorf("a share of %g of the memory", e.Memory)
	}
	return nil
}

// requests makes the load's requests, and says how many users a closed loop has.
func (l Load) requests() ([]Request, int, error) {
	if len(l.Trace) > 0 {
		return l.Trace, 0, nil
	}
	if l.Input < 1 || l.Output < 1 || l.Requests < 1 || l.Concurrency < 1 && !(l.Rate > 0) {
		return nil, 0, fmt.Errorf("a load needs prompts and answers of at least one token, requests, and users or a rate")
	}
	out := make([]Request, l.Requests)
	r := rand.New(rand.NewPCG(l.Seed, 5))
	at := 0.0
	length := func(n int) int { return max(n-int(r.Float64()*l.Spread*float64(n)), 1) }
	for i := range out {
		out[i] = Request{Input: length(l.Input), Output: length(l.Output)}
		if l.Rate > 0 {
			at += r.ExpFloat64() / l.Rate
			out[i].At = at
		}
	}
	if l.Rate > 0 {
		return out, 0, nil
	}
	return out, l.Concurrency, nil
}
