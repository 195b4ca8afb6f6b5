package serve

import (
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
)

func engine(t testing.TB, model, host string, l Layout, weights string) Engine {
	t.Helper()
	c, err := cluster.Preset(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := plan.NewMachine(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	m, err := work.Named(model)
	if err != nil {
		t.Fatal(err)
	}
	return Engine{Model: m, Machine: mc, Layout: l, Weights: weights, KV: "fp8", Chunk: 8192, Memory: .9}
}

func serve(t testing.TB, e Engine, l Load) *Result {
	t.Helper()
	r, err := Run(e, l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// NVIDIA's NIM 1.8 with Llama 70B in fp8 on two H100, 5,000 tokens in, 500 out: one user waits 0.41 s for the first
// token and 18.6 ms for each of the others, 25 users 38.8 ms.
func TestNIMSweep(t *testing.T) {
	e := engine(t, "llama3-70b", "dgx-h100", Layout{TP: 2, PP: 1, Replicas: 1}, "fp8")
	for _, x := range []struct {
		users      int
		ttft, tpot float64
	}{{1, .407, .01858}, {25, 0, .03875}} {
		r := serve(t, e, Load{Concurrency: x.users, Input: 5000, Output: 500, Requests: 3 * x.users, Seed: 1})
		if math.Abs(r.TPOT.Mean/x.tpot-1) > .35 || x.ttft > 0 && math.Abs(r.TTFT.Mean/x.ttft-1) > .35 {
			t.Errorf("%d users: first token %.3f s, then %.4f s; measured %.3f, %.4f", x.users, r.TTFT.Mean, r.TPOT.Mean, x.ttft, x.tpot)
		}
	}
	// Past the KV cache's limit requests wait.
	few, many := serve(t, e, Load{Concurrency: 25, Input: 5000, Output: 500, Requests: 50, Seed: 1}),
		serve(t, e, Load{Concurrency: 200, Input: 5000, Output: 500, Requests: 400, Seed: 1})
	if many.TTFT.P50 < 4*few.TTFT.P50 || !strings.Contains(many.Limit, "KV cache") {
		t.Errorf("200 users wait %.2f s, 25 wait %.2f s, %s", many.TTFT.P50, few.TTFT.P50, many.Limit)
	}
}

// On eight GPUs copies of two GPUs give more tokens than one copy of eight, which answers sooner.
func TestCopiesAgainstTensorParallel(t *testing.T) {
	e := engine(t, "llama3-70b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "fp8")
	load := Load{Concurrency: 256, Input: 1000, Output: 200, Requests: 512, Seed: 1}
	wide := e
	wide.Layout = Layout{TP: 8, PP: 1, Replicas: 1}
	narrow := e
	narrow.Layout = Layout{TP: 2, PP: 1, Replicas: 4}
	a, b := serve(t, wide, load), serve(t, narrow, load)
	if b.Total < a.Total {
		t.Errorf("4 x TP2 gives %.0f tokens/s, TP8 %.0f", b.Total, a.Total)
	}
	load.Concurrency, load.Requests = 4, 16
	a, b = serve(t, wide, load), serve(t, narrow, load)
	if a.TPOT.Mean > b.TPOT.Mean {
		t.Errorf("with 4 users TP8 takes %.4f s a token, TP2 %.4f", a.TPOT.Mean, b.TPOT.Mean)
	}
	found := Layouts(e, Load{Concurrency: 64, Input: 1000, Output: 100, Requests: 128, Seed: 1}, 0, 0, true)
	if len(found) < 4 || found[0].Result == nil || found[0].Result.Layout.GPUs() > 8 {
		t.Errorf("%+v", found)
	}
}

// Narrower weights help a small batch by the bytes they save, at most.
func TestQuantisedWeights(t *testing.T) {
	load := Load{Concurrency: 1, Input: 512, Output: 128, Requests: 2, Seed: 1}
	wide := serve(t, engine(t, "llama3-8b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "bf16"), load)
	narrow := serve(t, engine(t, "llama3-8b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "fp8"), load)
	if r := wide.TPOT.Mean / narrow.TPOT.Mean; r < 1.1 || r > 2.05 {
		t.Errorf("fp8 is %.2f times as fast", r)
	}
	if _, err := Run(engine(t, "llama3-70b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "bf16"), load); err == nil ||
		!strings.Contains(err.Error(), "KV cache holds") {
		t.Errorf("a model that does not fit: %v", err)
	}
}

func TestTraces(t *testing.T) {
	a, err := ReadTrace([]byte("{\"timestamp\": 500, \"input_length\": 7, \"output_length\": 3}\n{\"timestamp\": 1000, \"input_length\": 5, \"output_length\": 2}\n"))
	if err != nil || len(a) != 2 || a[0].Input != 7 || a[1].At != .5 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := ReadTrace([]byte("{\"timestamp\": 1000, \"input_length\": 5, \"output_length\": 2}\n{\"timestamp\": 500, \"input_length\": 7, \"output_length\": 3}\n")); err == nil {
		t.Error("times that go back pass")
	}
	b, err := ReadTrace([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"))
	if err != nil || len(b) != 2 || b[1].Output != 8 || math.Abs(b[1].At-.052) > 1e-3 {
		t.Errorf("%+v, %v", b, err)
	}
	// Mooncake's third prompt begins with two blocks of the first.
	c, err := ReadTrace([]byte("{\"timestamp\": 0, \"input_length\": 1500, \"output_length\": 2, \"hash_ids\": [1, 2, 3]}\n{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 2, \"hash_ids\": [4, 2]}\n{\"timestamp\": 9, \"input_length\": 1400, \"output_length\": 2, \"hash_ids\": [1, 2, 9]}\n"))
	if err != nil || c[0].Cached != 0 || c[1].Cached != 0 || c[2].Cached != 1024 {
		t.Errorf("%+v, %v", c, err)
	}
	d, err := ReadTrace([]byte("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"))
	if err != nil || len(d) != 2 || d[1].At != 40 || d[1].Output != 230 {
		t.Errorf("%+v, %v", d, err)
	}
	for _, bad := range []string{"", "a,b\n1,2\n", "{\"x\": 1}", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n"} {
		if _, err := ReadTrace([]byte(bad)); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

// What is in the cache already is not computed, but loaded from its tier.
func TestTiers(t *testing.T) {
	e := engine(t, "llama3-8b", "dgx-h100", Layout{TP: 1, PP: 1, Replicas: 1}, "bf16")
	load := Load{Concurrency: 1, Input: 16000, Output: 16, Requests: 4, Seed: 1}
	whole := serve(t, e, load)
	e.Reuse = .9
	near := serve(t, e, load)
	e.Tier = 1e9 // a slow store
	far := serve(t, e, load)
	if near.TTFT.Mean > whole.TTFT.Mean/3 || far.TTFT.Mean < 2*near.TTFT.Mean {
		t.Errorf("nothing cached %.3f s, cached %.3f s, loaded at 1 GB/s %.3f s", whole.TTFT.Mean, near.TTFT.Mean, far.TTFT.Mean)
	}
}

// Ranks with requests of their own keep the latent cache of DeepSeek apart; ranks that cut heads all hold it.
func TestExpertsAreSharedOut(t *testing.T) {
	load := Load{Concurrency: 256, Input: 1000, Output: 100, Requests: 512, Seed: 1}
	cut := engine(t, "deepseek-v3", "dgx-h200", Layout{TP: 8, PP: 1, Replicas: 1}, "fp8")
	apart := engine(t, "deepseek-v3", "dgx-h200", Layout{TP: 1, DP: 8, EP: 8, PP: 1, Replicas: 1}, "fp8")
	if a, b := cut.Tokens(), apart.Tokens(); b < 4*a {
		t.Errorf("the cache holds %d tokens with heads cut, %d with requests apart", a, b)
	}
	if a, b := serve(t, cut, load), serve(t, apart, load); b.GPUs != 8 || a.GPUs != 8 || b.Total <= 0 {
		t.Errorf("%+v %+v", a, b)
	}
	for _, x := range []struct {
		model string
		l     Layout
		want  string
	}{{"llama3-8b", Layout{TP: 1, DP: 2, PP: 1, Replicas: 1}, "no experts"},
		{"deepseek-v3", Layout{TP: 8, EP: 3, PP: 1, Replicas: 1}, "must divide"},
		{"deepseek-v3", Layout{TP: 8, DP: 2, PP: 1, Replicas: 1}, "16 GPUs; there are 8"}} {
		if _, err := Run(engine(t, x.model, "dgx-h200", x.l, "fp8"), load); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.l, err)
		}
	}
	if _, err := KindNamed("tgi"); err == nil || !strings.Contains(err.Error(), "known: vllm") {
		t.Error(err)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add([]byte("{\"timestamp\": 1000, \"input_length\": 5, \"output_length\": 2}\n"))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n"))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = ReadTrace(data) })
}

// Published forms and their near relations give the same requests.
func TestTraceForms(t *testing.T) {
	want := []Request{{0, 100, 10, 0}, {1.5, 200, 20, 0}}
	for name, text := range map[string]string{
		"Azure 2024": "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,100,10\n2024-05-10 00:00:01.509930+00:00,200,20\n",
		"Azure 2025": "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2024-10-15 12:00:00.500000,1,100,10\n2024-10-15 12:00:02.000000,0,200,20\n",
		"Windows":    "\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.0,100,10\r\n2023-11-16 18:17:04.5,200,20\r\n",
		"ISO":        "timestamp,input_length,output_length\n2024-05-10T00:00:00,100,10\n2024-05-10T00:00:01.5,200,20\n",
		"a list":     "[{\"timestamp\": 0, \"input_length\": 100, \"output_length\": 10},\n {\"timestamp\": 1500,\n \"input_length\": 200, \"output_length\": 20}]",
	} {
		got, err := ReadTrace([]byte(text))
		if err != nil || len(got) != 2 || got[0] != want[0] || got[1].Input != 200 || got[1].Output != 20 || got[1].At < 1.499 ||
			got[1].At > 1.501 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := ReadTrace([]byte("TIMESTAMP,Tokens\n1,2\n")); err == nil || !strings.Contains(err.Error(), "there are TIMESTAMP, Tokens") {
		t.Errorf("a table without prompts: %v", err)
	}
}
