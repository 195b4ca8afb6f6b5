package serve

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
)

// many is an engine on hosts of one kind, joined by rails.
func many(t testing.TB, model, preset string, gpus int, l Layout, weights string) Engine {
	t.Helper()
	c, err := cluster.Preset(preset, nil)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := plan.NewMachine(c, gpus)
	if err != nil {
		t.Fatal(err)
	}
	m, err := work.Named(model)
	if err != nil {
		t.Fatal(err)
	}
	return Engine{Model: m, Machine: mc, Layout: l, Weights: weights, KV: "fp8", Chunk: 8192, Memory: .9, steps: map[Work]float64{},
		products: map[product]float64{}}
}

// DeepEP measures its kernels for few tokens on H800 with 400G NICs: 128 tokens of 7,168 numbers to eight experts each in fp8, and back
// in bf16. H800 has 200 of H100's 450 GB/s of NVLink, so that groups inside a host are left out.
func TestExchangeAsDeepEPMeasures(t *testing.T) {
	for _, x := range []struct {
		ep          int
		there, back float64 // microseconds
	}{{16, 118, 195}, {32, 155, 273}, {64, 173, 314}, {128, 192, 369}} {
		e := many(t, "deepseek-v3", "superpod-h100", x.ep, Layout{TP: 1, DP: x.ep, EP: x.ep, PP: 1, Replicas: 1}, "fp8")
		there, back := 1e6*e.exchange(128*7168, 1.03), 1e6*e.exchange(128*7168, 2)
		t.Logf("ep %d: there %.0f us, measured %.0f; back %.0f us, measured %.0f", x.ep, there, x.there, back, x.back)
		if math.Abs(there/x.there-1) > .2 || math.Abs(back/x.back-1) > .2 {
			t.Errorf("ep %d: %.0f and %.0f us, measured %.0f and %.0f", x.ep, there, back, x.there, x.back)
		}
	}
}

// DeepSeek's profile of decoding on 128 H800, 128 requests with 4,096 tokens on each: 18,598 tokens/s on a host, with two batches
// overlapping, which gives them up to a quarter. Ours does not overlap them.
func TestWideExpertsDecode(t *testing.T) {
	e := many(t, "deepseek-v3", "superpod-h100", 128, Layout{TP: 1, DP: 128, EP: 128, PP: 1, Replicas: 1}, "fp8")
	e.KV = "bf16"
	perHost := 8 * 128 / e.Step(Work{Decode: 128 * 128, Context: 4096})
	t.Logf("%.0f tokens/s on a host", perHost)
	if perHost < 18598/1.5 || perHost > 18598*1.1 {
		t.Errorf("%.0f tokens/s on a host, measured 18,598", perHost)
	}
}

// More distance never makes traffic to experts cheaper, nor do more tokens.
func TestExchangeGrows(t *testing.T) {
	last := 0.0
	for _, ep := range []int{2, 4, 8, 16, 32, 64, 128} {
		e := many(t, "deepseek-v3", "superpod-h100", 128, Layout{TP: 1, DP: ep, EP: ep, PP: 1, Replicas: 1}, "fp8")
		before := 0.0
		for tokens := 1.0; tokens <= 1<<15; tokens *= 4 {
			v := e.exchange(tokens*7168, 2)
			if v < before {
				t.Errorf("ep %d: %.0f tokens take %.1f us, fewer %.1f", ep, tokens, 1e6*v, 1e6*before)
			}
			before = v
		}
		if before < last*.999 {
			t.Errorf("ep %d: %.1f us, narrower %.1f us", ep, 1e6*before, 1e6*last)
		}
		last = before
	}
}

// Where 72 ranks do not divide 256 experts, 32 of them have a copy: each rank holds four.
func TestRedundantExperts(t *testing.T) {
	wide := many(t, "deepseek-v3", "gb200-su", 72, Layout{TP: 1, DP: 72, EP: 72, PP: 1, Replicas: 1}, "fp8")
	even := many(t, "deepseek-v3", "gb200-su", 72, Layout{TP: 1, DP: 64, EP: 64, PP: 1, Replicas: 1}, "fp8")
	if wide.slots() != 4 || wide.WeightBytes() != even.WeightBytes() {
		t.Errorf("%.0f experts, %.1f GB; on 64 ranks %.1f GB", wide.slots(), wide.WeightBytes()/1e9, even.WeightBytes()/1e9)
	}
	if _, err := Run(wide, Load{Concurrency: 72, Input: 100, Output: 4, Requests: 72}); err != nil {
		t.Error(err)
	}
}

// With drafts a step gives 1 + p + p² + ... tokens and takes longer. SGLang's documents have 1.8 times the tokens for one user on eight
// H200, and 1.5 times for 32.
func TestDrafts(t *testing.T) {
	e := engine(t, "deepseek-v3", "dgx-h200", Layout{TP: 8, PP: 1, Replicas: 1}, "fp8")
	e.Take(Kinds[1])
	gain := func(users int) float64 {
		load := Load{Concurrency: users, Input: 1000, Output: 400, Requests: 2 * users, Seed: 1}
		plain := serve(t, e, load)
		x := e
		x.Drafts = 3
		return plain.TPOT.Mean / serve(t, x, load).TPOT.Mean
	}
	one, many := gain(1), gain(32)
	t.Logf("%.2f times the tokens for one user, %.2f for 32", one, many)
	if one < 1.5 || one > 2.3 || many < 1.1 || many > one {
		t.Errorf("three drafts give %.2f times the tokens for one user, %.2f for 32", one, many)
	}
	e.Drafts, e.Accept = 2, .5
	if g := e.gain(); g != 1.75 {
		t.Errorf("two drafts, each right in half of the cases: %g tokens in a step", g)
	}
	e.Drafts, e.Accept = 40, .5
	if _, err := Run(e, Load{Concurrency: 1, Input: 10, Output: 4, Requests: 1}); err == nil {
		t.Error("40 drafts are accepted")
	}
}

// Routed experts in int4 take a quarter of the bytes and their scales, everything else stays bf16; prompts run no faster than in bf16.
func TestInt4Experts(t *testing.T) {
	l := Layout{TP: 8, PP: 1, Replicas: 1}
	narrow, wide := engine(t, "deepseek-v3", "dgx-b300", l, "int4"), engine(t, "deepseek-v3", "dgx-b300", l, "bf16")
	p := wide.Model.Params()
	if saved, want := wide.WeightBytes()-narrow.WeightBytes(), p.Experts/8*(2-.5625); math.Abs(saved/want-1) > 1e-9 {
		t.Errorf("%.1f GB saved, want %.1f", saved/1e9, want/1e9)
	}
	for _, e := range []*Engine{&narrow, &wide} {
		e.steps, e.products = map[Work]float64{}, map[product]float64{}
	}
	few := Work{Decode: 8, Context: 1000}
	if a, b := narrow.Step(few), wide.Step(few); a >= b {
		t.Errorf("eight tokens: %.2f ms in int4, %.2f ms in bf16", 1e3*a, 1e3*b)
	}
	prompt := Work{Prompts: 4, Prompt: 32768}
	if a, b := narrow.Step(prompt), wide.Step(prompt); a < b*.8 {
		t.Errorf("a long prompt: %.0f ms in int4, %.0f ms in bf16", 1e3*a, 1e3*b)
	}
}

// A state does not grow: among models of similar size a hybrid one slows down less with its context, and each request costs its state.
func TestHybridStates(t *testing.T) {
	l := Layout{TP: 2, PP: 1, Replicas: 1} // each has a KV head
	hybrid, full := engine(t, "qwen3-next-80b-a3b", "dgx-h100", l, "bf16"), engine(t, "qwen3-30b-a3b", "dgx-h100", l, "bf16")
	slower := func(e Engine) float64 {
		e.steps, e.products = map[Work]float64{}, map[product]float64{}
		return e.Step(Work{Decode: 32, Context: 65536}) - e.Step(Work{Decode: 32, Context: 1024})
	}
	if a, b := slower(hybrid), slower(full); a > b/3 {
		t.Errorf("64K tokens take %.2f ms more in a hybrid model, %.2f ms in one that attends in every layer", 1e3*a, 1e3*b)
	}
	state := hybrid.Holds(1000) - 1000*hybrid.KVBytes()
	if want := hybrid.Model.StateBytes() / 2; math.Abs(state/want-1) > 1e-9 {
		t.Errorf("a request keeps %.1f MB beside its tokens, want %.1f", state/1e6, want/1e6)
	}
}

// Layers with a window keep no more than it.
func TestWindowsKeepTheirWindow(t *testing.T) {
	e := engine(t, "gpt-oss-120b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "fp4")
	long := e.Holds(100000) - e.Holds(50000)
	if want := e.Model.KVBytesPerToken(1) / 2 * 50000; math.Abs(long/want-1) > 1e-9 {
		t.Errorf("50,000 tokens more take %.1f MB, half of the layers' are %.1f MB", long/1e6, want/1e6)
	}
}
