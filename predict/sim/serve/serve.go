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
// they run; transfers that go on at once share links. Kernels are those of predict/internal/kernel; one factor for each engine stands between them
// and a server.
package serve

import (
	"cmp"
	"fmt"
	"math"
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
	Weights string  // bf16, fp8, fp4: of the matrices
	KV      string  // bf16 or fp8
	Chunk   int     // tokens of prompts a step takes at most
	Most    int     // requests that run at once at most; 0 for what memory allows
	Memory  float64 // share of the GPU's memory that the engine takes
	Reuse   float64 // share of prompts found in the cache of earlier ones, where the requests do not say
	Tier    float64 // bytes a second at which a GPU loads what is found there; 0: it is in the GPU's own memory
	Factor  float64 // decode steps of a server over the sum of their kernels, which wait for memory; 0 for 1
	Compute float64 // the same of what prompts add to a step, which computes; 0 for 1
	Habits  Habits
	Fabric  sim.Options // bad parts and routing that KV transfers meet; the rest of it is filled in

	steps    map[Work]float64
	products map[[3]float64]float64
}

// Habits is how an engine runs, whatever the model and the GPU.
type Habits struct {
	Eager        float64 // seconds of host time a layer, where prompts run: their steps are in no graph
	EagerExperts float64 // seconds more of a layer with experts
	Turn         float64 // seconds from sending a request to its place in the queue: network, tokeniser, scheduler; half more or less from one to the next
	PromptsFirst bool    // a step has prompts or new tokens, not both, and prompts go first
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
	{"vllm", Habits{Eager: .4e-3, EagerExperts: 1e-3, Turn: turn}, 8192, 1.05, 1.2},
	{"sglang", Habits{Eager: .4e-3, EagerExperts: 1e-3, Turn: turn, PromptsFirst: true}, 8192, 1, 1.2},
	{"trtllm", Habits{Eager: .4e-3, EagerExperts: 1e-3, Turn: turn, Whole: true}, 8192, 1, 1.15},
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

func bytesOf(t string) float64 {
	switch t {
	case "fp8":
		return 1
	case "fp4":
		return .5625
	}
	return 2
}

// WeightBytes is what one GPU holds of the model.
func (e *Engine) WeightBytes() float64 {
	p := e.Model.Params()
	tp, ranks, pp := float64(e.Layout.TP), float64(e.Layout.Ranks()), float64(e.Layout.PP)
	experts := 0.0
	for i := range e.Model.Layers {
		experts += e.Model.Layer(e.Model.IsMoE(i)).Experts
	}
	inner := (p.Total-p.Embedding-p.Head-experts)/tp + experts/ranks
	return (inner*bytesOf(e.Weights) + (p.Embedding+p.Head)*2/tp) / pp
}

// KVBytes is what one GPU keeps of a token. With more ranks than KV heads, heads are copied.
func (e *Engine) KVBytes() float64 {
	all := e.Model.KVBytesPerToken(bytesOf(e.KV)) / float64(e.Layout.PP)
	if e.Model.MLA != nil {
		return all
	}
	return all / float64(min(e.Layout.TP, e.Model.KVHeads))
}

// Tokens is how many tokens the KV cache of a copy holds; 0 if the model does not fit.
func (e *Engine) Tokens() int {
	free := e.Machine.Usable()*e.Memory - e.WeightBytes() - 3.5e9
	return max(int(free/e.KVBytes()*float64(max(e.Layout.DP, 1))), 0)
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

	spent spent
}

type running struct {
	r      int // index of the request
	ctx    int
	left   int // tokens to make
	prompt int // tokens of the prompt not yet taken
	first  float64
}

// Run serves a load.
func Run(e Engine, load Load) (*Result, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	if e.steps == nil {
		e.steps, e.products = map[Work]float64{}, map[[3]float64]float64{}
	}
	reqs, closed, err := load.requests()
	if err != nil {
		return nil, err
	}
	capacity := e.Tokens()
	longest := 0
	for _, r := range reqs {
		longest = max(longest, r.Input+r.Output)
	}
	if capacity < longest {
		return nil, fmt.Errorf("the KV cache holds %d tokens of %d GB; a request needs %d: use more GPUs a copy, or narrower weights", capacity, int(e.Machine.GPU.Memory/1e9), longest)
	}
	res := &Result{GPUs: e.Layout.GPUs(), Layout: e.Layout, KVTokens: capacity, Weights: e.WeightBytes(), Requests: len(reqs), Seed: load.Seed}
	copies := max(e.Layout.Replicas, 1)
	var ttft, tpot, speed, moved []float64
	out, end := 0, 0.0
	count := func(start, first, done, transfer float64, r Request) {
		ttft = append(ttft, first-start)
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
	res.TTFT, res.TPOT, res.TokensPerS, res.Transfer = quantiles(ttft), quantiles(tpot), quantiles(speed), quantiles(moved)
	if end > 0 {
		res.Total = float64(out) / end
		res.PerGPU = res.Total / float64(res.GPUs)
		res.USD = e.Machine.Hour * float64(res.GPUs) / 3600 / res.Total * 1e6
	}
	return res, nil
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
	return float64(tokens) * e.KVBytes() / e.Tier
}

// serve runs one copy.
func (e *Engine) serve(reqs []Request, users, capacity int, done func(start, first, end, transfer float64, r Request), res *Result) {
	starts := make([]float64, len(reqs))
	var queue []int
	next := 0
	now := 0.0
	turn := e.Habits.Turn
	var asked []int // requests of users that are on their way
	due := make([]float64, len(reqs))
	away := rand.New(rand.NewPCG(7, 7))
	arrive := func() {
		for next < len(reqs) && reqs[next].At+turn <= now && users == 0 {
			starts[next] = reqs[next].At
			queue = append(queue, next)
			next++
		}
		slices.SortFunc(asked, func(a, b int) int { return cmp.Compare(due[a], due[b]) })
		for len(asked) > 0 && due[asked[0]] <= now {
			queue = append(queue, asked[0])
			asked = asked[1:]
		}
	}
	for i := 0; i < users && next < len(reqs); i++ {
		queue = append(queue, next)
		next++
	}
	var run []running
	used, loading := 0, 0.0
	for next < len(reqs) || len(queue) > 0 || len(asked) > 0 || len(run) > 0 {
		arrive()
		for len(queue) > 0 && (e.Most == 0 || len(run) < e.Most) {
			i := queue[0]
			need := reqs[i].Input + reqs[i].Output
			if used+need > capacity {
				res.Limit = "KV cache: requests wait for space"
				break
			}
			used += need
			queue = queue[1:]
			left := e.fresh(reqs[i])
			old := reqs[i].Input - left
			loading += e.load(old)
			run = append(run, running{i, old, reqs[i].Output, left, 0})
		}
		if len(run) == 0 {
			switch {
			case len(asked) > 0:
				now = max(now, due[asked[0]])
			case next < len(reqs) && users == 0:
				now = max(now, reqs[next].At+turn)
			default:
				return
			}
			continue
		}
		var w Work
		budget := e.Chunk * e.Layout.PP // of prompt tokens and new ones together, as engines count; stages have a chunk each under way
		if !e.Habits.PromptsFirst {
			for k := range run {
				if run[k].prompt == 0 {
					budget--
				}
			}
			budget = max(budget, 1)
		}
		for k := range run {
			if run[k].prompt == 0 {
				w.Decode++
				w.Context += run[k].ctx
			} else if budget > 0 {
				take := min(run[k].prompt, budget)
				if e.Habits.Whole && take < run[k].prompt && w.Prompt > 0 {
					budget = 0 // it waits for a step that has room for all of it
					continue
				}
				budget -= take
				w.Prompts++
				w.Prompt += take
				w.Before += run[k].ctx
				run[k].prompt -= take
				run[k].ctx += take
			}
		}
		if w.Decode > 0 {
			w.Context /= w.Decode
		}
		if w.Prompts > 0 && e.Habits.PromptsFirst {
			w.Decode, w.Context = 0, 0
		}
		if w.Prompts > 0 {
			w.Before /= w.Prompts
		}
		w = w.inStages(e.Layout.PP, e.Chunk)
		step := max(e.Step(w), loading) // blocks come layer by layer, beside the compute
		loading = 0
		res.spent.add(e, w, step)
		// As long as nothing changes, steps are alike: many at once.
		many := 1
		if w.Prompt == 0 {
			many = 1 << 30
			for k := range run {
				many = min(many, run[k].left)
			}
			limit := math.Inf(1)
			if users == 0 && next < len(reqs) {
				limit = reqs[next].At + turn
			}
			if len(asked) > 0 {
				limit = max(due[asked[0]], now+step)
			}
			if !math.IsInf(limit, 1) {
				many = min(many, max(int((limit-now)/step), 1))
			}
			many = max(min(many, 16), 1)
		}
		now += step * float64(many)
		res.spent.repeat(e, w, step, many-1)
		for k := 0; k < len(run); {
			x := &run[k]
			if x.prompt > 0 || x.first > 0 && w.Decode == 0 {
				k++
				continue
			}
			if x.first == 0 { // its prompt is done: the first token
				x.first = now
				x.left--
			} else {
				x.left -= many
				x.ctx += many
			}
			if x.left > 0 {
				k++
				continue
			}
			done(starts[x.r], x.first, now, 0, reqs[x.r])
			used -= reqs[x.r].Input + reqs[x.r].Output
			if users > 0 && next < len(reqs) { // the user asks again
				starts[next] = now
				due[next] = now + turn*(.5+away.Float64())
				asked = append(asked, next)
				next++
			}
			run = slices.Delete(run, k, k+1)
		}
	}
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
	case l.EP > 1 && (l.Ranks()%l.EP != 0 || m.Experts%l.EP != 0):
		return fmt.Errorf("ep %d must divide tp %d x dp %d = %d ranks and %d experts", l.EP, l.TP, max(l.DP, 1), l.Ranks(), m.Experts)
	case m.Heads%l.TP != 0:
		return fmt.Errorf("tp %d does not divide %d heads", l.TP, m.Heads)
	case l.GPUs() > e.Machine.GPUs:
		return fmt.Errorf("tp %d x dp %d x pp %d x %d copies is %d GPUs; there are %d", l.TP, max(l.DP, 1), l.PP, l.Replicas+l.Prefill, l.GPUs(), e.Machine.GPUs)
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
