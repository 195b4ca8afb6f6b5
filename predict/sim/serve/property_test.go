package serve

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// drawn is a small load on a random layout of a random model.
func drawn(t *testing.T, seed uint64) (Engine, Load, string) {
	r := rand.New(rand.NewPCG(seed, 17))
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	model, host := one("llama3-8b", "qwen3-32b", "llama3-70b", "deepseek-v3"), one("dgx-h100", "dgx-h200", "dgx-b200")
	weights := one("bf16", "fp8", "fp8")
	l := Layout{TP: 1 << r.IntN(4), PP: 1, Replicas: 1}
	switch model {
	case "llama3-70b":
		l.TP = max(l.TP, 4)
	case "deepseek-v3":
		host, weights, l = one("dgx-h200", "dgx-b200"), "fp8", Layout{TP: 8, PP: 1, Replicas: 1}
		if r.IntN(2) > 0 {
			l = Layout{TP: 1, DP: 8, EP: 8, PP: 1, Replicas: 1}
		}
	}
	if l.Ranks() < 8 && r.IntN(3) == 0 {
		l.PP = 2
	}
	if n := l.Ranks() * l.PP; 2*n <= 8 && r.IntN(2) == 0 {
		l.Prefill = r.IntN(2)
		l.Replicas = 8/n - l.Prefill
	}
	e := engine(t, model, host, l, weights)
	e.Take(Kinds[r.IntN(len(Kinds))])
	load := Load{Concurrency: 1 + r.IntN(24), Input: 16 + r.IntN(6000), Output: 2 + r.IntN(60), Spread: r.Float64() / 2, Seed: seed}
	load.Requests = 3 * load.Concurrency
	if r.IntN(3) == 0 {
		load.Rate, load.Concurrency = .5+4*r.Float64(), 0
	}
	return e, load, fmt.Sprintf("seed %d: %s %s on %s, %s, %+v", seed, model, weights, host, l, load)
}

// Whatever is served: no token comes sooner than a GPU reads its weights once, no first token sooner than its prompt's
// operations at the chip's peak, every request is answered, tokens are counted once, and requests under way are their rate times
// their stay (Little's law).
func TestServingIsPossible(t *testing.T) {
	for seed := range uint64(60) {
		e, load, name := drawn(t, seed)
		reqs, closed, err := load.requests()
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(e, load)
		if err != nil {
			if !strings.Contains(err.Error(), "KV cache") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		least := e.WeightBytes() * float64(e.Layout.PP) / e.Machine.Chip.HBM // all stages' weights, one after the other
		if e.Model.Experts > 0 {
			least /= 20 // few tokens touch few experts
		}
		if r.TPOT.P50 < least {
			t.Errorf("%s: a token after %.2f ms; its weights take %.2f ms to read", name, 1e3*r.TPOT.P50, 1e3*least)
		}
		shortest := math.MaxInt
		tokens := 0
		for _, x := range reqs {
			shortest = min(shortest, x.Input)
			tokens += x.Output
		}
		inner := e.Model.Params()
		active := inner.Active - inner.Embedding
		peak := e.Machine.Chip.Peak[e.Weights]
		if first := 2 * active * float64(shortest) / (peak * float64(e.Layout.Ranks())); r.TTFT.P50 < first {
			t.Errorf("%s: the first token after %.2f ms; the shortest prompt takes %.2f ms at the peak", name, 1e3*r.TTFT.P50, 1e3*first)
		}
		if r.Requests != len(reqs) {
			t.Errorf("%s: %d of %d requests", name, r.Requests, len(reqs))
		}
		if r.TTFT.P50 > r.TTFT.P99 || r.TPOT.P50 > r.TPOT.P99 || r.Idle < 0 || r.Idle > 1 || r.SumsShare < 0 || r.SumsShare > 1 ||
			r.Prompts < 0 || r.Prompts > 1 {
			t.Errorf("%s: %+v", name, r)
		}
		if closed > 0 { // no more requests than users are under way
			wall := float64(tokens) / r.Total
			stay := r.TTFT.Mean + r.TPOT.Mean*(float64(tokens)/float64(len(reqs))-1)
			if under := stay * float64(len(reqs)) / wall; under > float64(closed)*1.05 {
				t.Errorf("%s: %.1f requests are under way in the mean, of %d users", name, under, closed)
			}
		}
	}
}

// More users give more tokens a second until the copies are full, and a token is never sooner among more users.
func TestMoreUsers(t *testing.T) {
	for _, l := range []Layout{{TP: 1, PP: 1, Replicas: 1}, {TP: 2, PP: 2, Replicas: 2}, {TP: 2, PP: 1, Replicas: 2, Prefill: 2}} {
		e := engine(t, "llama3-8b", "dgx-h100", l, "bf16")
		e.Take(Kinds[0])
		last, token := 0.0, 0.0
		for users := 1; users <= 256; users *= 4 {
			r := serve(t, e, Load{Concurrency: users, Input: 200, Output: 100, Requests: 4 * users, Seed: 1})
			if r.Total < last*.98 || r.TPOT.P50 < token*.98 {
				t.Errorf("%s: %d users get %.0f tokens/s and %.2f ms a token, fewer got %.0f and %.2f",
					l, users, r.Total, 1e3*r.TPOT.P50, last, 1e3*token)
			}
			last, token = r.Total, r.TPOT.P50
		}
	}
}

// Stages of a pipeline work on different requests: with many users two stages give more than one stage's half of the GPUs
// and less than twice as much; one request passes both and gains nothing.
func TestStagesWorkAtOnce(t *testing.T) {
	load := Load{Concurrency: 128, Input: 500, Output: 100, Requests: 256, Seed: 1}
	run := func(pp int, l Load) *Result {
		e := engine(t, "qwen3-32b", "dgx-h100", Layout{TP: 2, PP: pp, Replicas: 1}, "bf16")
		e.Take(Kinds[0])
		return serve(t, e, l)
	}
	one, two := run(1, load), run(2, load)
	if x := two.Total / one.Total; x < 1.15 || x > 2 {
		t.Errorf("two stages give %.2f times the tokens of one", x)
	}
	load.Concurrency, load.Requests = 1, 4
	one, two = run(1, load), run(2, load)
	if x := two.TPOT.Mean / one.TPOT.Mean; x < .99 || x > 1.2 {
		t.Errorf("one request: a token takes %.2f times as long through two stages", x)
	}
}

// One prompt runs in one group of those that attend to different requests: it gains nothing from the others.
func TestOnePromptIsInOneGroup(t *testing.T) {
	e := engine(t, "deepseek-v3", "dgx-h200", Layout{TP: 1, DP: 8, EP: 8, PP: 1, Replicas: 1}, "fp8")
	e.steps, e.products = map[Work]float64{}, map[product]float64{}
	one, eight := e.kernels(Work{Prompts: 1, Prompt: 4096}), e.kernels(Work{Prompts: 8, Prompt: 8 * 4096})
	if one < eight/8*1.5 {
		t.Errorf("one prompt takes %.1f ms, eight at once %.1f ms", 1e3*one, 1e3*eight)
	}
}

// A request that is handed over while a decode step is under way has no part in it: with answers of two tokens, the
// second comes a whole step after the first at the earliest.
func TestHandedOverInAStep(t *testing.T) {
	e := engine(t, "llama3-8b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1, Prefill: 4}, "bf16")
	e.Take(Kinds[0])
	e.steps, e.products = map[Work]float64{}, map[product]float64{}
	least := e.Step(Work{Decode: 1, Context: 1})
	r := serve(t, e, Load{Rate: 60, Input: 300, Output: 2, Requests: 200, Seed: 3})
	if r.TPOT.P50 < .95*least { // kernels of other shapes are a little quicker
		t.Errorf("a token after %.3f ms; a step takes %.3f ms", 1e3*r.TPOT.P50, 1e3*least)
	}
}

// Prompts that are not cut wait for a step with room for all of them; a chunk counts new tokens, too.
func TestWholePrompts(t *testing.T) {
	first := func(whole bool) float64 {
		e := engine(t, "llama3-8b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "bf16")
		e.Take(Kinds[0])
		e.Habits.Whole, e.Chunk = whole, 5000
		return serve(t, e, Load{Concurrency: 2, Input: 4000, Output: 2, Requests: 2, Seed: 1}).TTFT.P50
	}
	if cut, whole := first(false), first(true); cut <= 0 || whole <= 0 || cut == whole {
		t.Errorf("first token %.4f s with prompts cut, %.4f s whole", cut, whole)
	}
}
