package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
)

// A request is what layouts of TestMoreWorkTakesLonger are drawn for.
type request struct {
	model, gpu, framework, dtype string
	gpus                         int
}

var requests = []request{
	{"llama3-8b", "H100", "megatron", "bf16", 32}, {"llama3-70b", "GB200", "megatron", "mxfp8", 72},
	{"qwen3-30b-a3b", "H200", "megatron", "bf16", 64}, {"qwen3-235b-a22b", "B200", "megatron", "mxfp8", 64},
	{"llama3-8b", "H100", "fsdp", "bf16", 32}, {"qwen2.5-32b", "MI300X", "fsdp", "bf16", 40},
	{"qwen3-30b-a3b", "H100", "fsdp", "bf16", 32}, {"llama2-13b", "A100-80G", "deepspeed", "bf16", 24},
}

// draw is a layout as a person would type it, or "" where none of that size exists.
func (x request) draw(r *rand.Rand, experts int) string {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	tp, cp, pp := pick(1, 1, 2, 4, 8), pick(1, 1, 1, 2, 4), pick(1, 1, 2, 4, 5, 8)
	if tp*cp*pp > x.gpus {
		return ""
	}
	micro := pick(1, 2, 4)
	dp := x.gpus / (tp * cp * pp)
	text := fmt.Sprintf("tp=%d,cp=%d,pp=%d,dp=%d,micro=%d,batch=%d,seq=4096,dtype=%s,zero=%d", tp, cp, pp, dp, micro, 2*pp*dp*micro, x.dtype,
		map[string]int{"megatron": pick(0, 1, 3), "fsdp": pick(2, 3), "deepspeed": pick(0, 1)}[x.framework])
	switch {
	case pp == 1:
	case x.framework == "fsdp" && r.IntN(2) == 0:
		text += ",schedule=zb-v"
	case x.framework != "deepspeed" && r.IntN(2) == 0:
		text += fmt.Sprintf(",vpp=%d", pick(2, 4))
	}
	if ep := pick(1, 2, 8); experts > 0 && ep > 1 {
		text += fmt.Sprintf(",ep=%d%s", ep, []string{"", ",dispatcher=deepep", ",ep-overlap=on"}[r.IntN(3)])
	}
	return text + []string{"", ",recompute=full", ",recompute=selective"}[r.IntN(3)]
}

// With every framework and schedule, a step with less overlap, more imbalance, slower NICs or attention that writes its scores takes no
// less time.
func TestMoreWorkTakesLonger(t *testing.T) {
	worsen := []struct {
		what   string
		change func(*Layout)
	}{
		{"no overlap", func(l *Layout) { l.Overlap, l.EPOverlap = false, false }},
		{"no tensor parallel overlap", func(l *Layout) { l.TPOverlap = false }},
		{"no overlap of gradients", func(l *Layout) { l.DPOverlap = false }},
		{"no overlap of experts' traffic", func(l *Layout) { l.EPOverlap = false }},
		{"sends that block", func(l *Layout) { l.Blocking = true }},
		{"more imbalance", func(l *Layout) { l.Imbalance = 1.5 }},
		{"attention that writes its scores", func(l *Layout) { l.Flash = false }},
		{"norms operator by operator", func(l *Layout) { l.Eager = true }},
	}
	machines, seen, vs := map[string]*Machine{}, 0, 0
	for seed := range uint64(bounded.Times(260, 20000)) {
		r := rand.New(rand.NewPCG(seed, 41))
		x := requests[r.IntN(len(requests))]
		m := named(t, x.model)
		l, err := ParseLayout(x.draw(r, m.Experts), Framework(x.framework), 0)
		if err != nil || l.Check(m, x.gpus) != nil {
			continue
		}
		if machines[x.gpu] == nil {
			machines[x.gpu] = clusterOf(t, x.gpu, x.gpus, 400)
		}
		q := Question{Model: m, Machine: machines[x.gpu], Framework: Framework(x.framework), Layout: l}
		if q.Machine.GPUs != x.gpus {
			continue
		}
		seen++
		vs += b2i(l.Schedule == "zb-v")
		base := steps(t, q)
		for _, w := range worsen {
			other := q
			w.change(&other.Layout)
			if other.Layout.Check(m, 0) != nil {
				continue
			}
			if now := steps(t, other); now < base*(1-1e-9) {
				t.Errorf("seed %d: %s on %s, %s: %.6g s, with %s %.6g s", seed, x.model, x.gpu, l, base, w.what, now)
			}
		}
		q.Machine = worse(q.Machine, func(m *Machine) { m.NIC /= 2 })
		if now := steps(t, q); now < base*(1-1e-9) {
			t.Errorf("seed %d: %s on %s, %s: %.6g s, with half the NICs %.6g s", seed, x.model, x.gpu, l, base, now)
		}
	}
	if seen < 100 || vs < 10 {
		t.Errorf("%d layouts were looked at, %d of them zb-v", seen, vs)
	}
	t.Logf("%d layouts, %d of them zb-v", seen, vs)
}

// Steps get longer as more GPUs do the same work each, by what the slowest of them costs: measured steps of one layout took about half a
// percent more for each doubling of the GPUs than a prediction without it.
func TestMoreGPUsWaitForTheSlowest(t *testing.T) {
	m := named(t, "llama3-8b")
	was := 0.0
	for _, n := range []int{8, 64, 512, 4096} {
		l := layout(t, fmt.Sprintf("tp=8,dp=%d,micro=1,batch=%d,seq=8192,zero=0", n/8, 64*n/8), Megatron)
		c, err := Price(Question{Model: m, Machine: clusterOf(t, "H100", n, 400), Framework: Megatron, Layout: l, Why: true})
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, x := range c.Why.Terms {
			sum += x.Value
		}
		if c.Step < was || was > 0 && c.Step > 1.06*was || sum < c.Step*(1-1e-9) || sum > c.Step*(1+1e-9) {
			t.Errorf("%d GPUs: %.6g s, terms add up to %.6g s; an eighth of the GPUs takes %.6g s", n, c.Step, sum, was)
		}
		if named := slices.ContainsFunc(c.Why.Terms, func(x Term) bool { return x.Name == "waiting for the slowest GPU" }); named != (n > 8) {
			t.Errorf("%d GPUs wait for the slowest: %v", n, named)
		}
		was = c.Step
	}
}

// What torchtitan computes again with selective checkpoints gathers tensor parallel inputs again, and a whole MLP also scatters its sums.
func TestRecomputeSendsAgain(t *testing.T) {
	mc := clusterOf(t, "H100", 8, 400)
	for _, x := range []struct {
		framework Framework
		recompute string
	}{{FSDP, "op"}, {Megatron, "mlp"}} {
		l := layout(t, "tp=8,micro=2,batch=16,seq=8192,tp-overlap=off,recompute="+x.recompute, x.framework)
		p := newPricer(named(t, "llama3-8b"), mc, x.framework, l, habits)
		k := p.layer(false)
		if sent := p.again(k, 1, k.tpF) - p.again(k, 1, 0); sent < .3*k.tpF || sent > .6*k.tpF {
			t.Errorf("%s: %.3g s are sent again of %.3g s", x.recompute, sent, k.tpF)
		}
	}
}

// Attention of Transformer Engine is faster in PyTorch than FlashAttention-2 on Hopper, and what nothing compiles moves more bytes.
func TestKernelsOfPyTorch(t *testing.T) {
	q := Question{Model: named(t, "llama3-8b"), Machine: clusterOf(t, "H100", 8, 400), Framework: FSDP}
	ask := func(more string) float64 {
		q.Layout = layout(t, "dp=8,micro=1,batch=64,seq=8192"+more, FSDP)
		return steps(t, q)
	}
	plain := ask("")
	if te := ask(",attention=te"); te > .95*plain || te < .6*plain {
		t.Errorf("attention=te: %.4g s, without it %.4g s", te, plain)
	}
	if eager := ask(",compile=off"); eager < 1.03*plain || eager > 1.3*plain {
		t.Errorf("compile=off: %.4g s, compiled %.4g s", eager, plain)
	}
	for text, eager := range map[string]bool{"": true, "[compile]\nenable = true\n": false, "[compile]\nenable = false\n": true} {
		c, err := ReadConfig("x.toml", []byte("[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nlocal_batch_size = 1\nseq_len = 8192\n"+
			"[parallelism]\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		if l, err := c.Layout(q.Model, 8, Given{}); err != nil || l.Eager != eager {
			t.Errorf("%q: %v, eager %v", text, err, l.Eager)
		}
	}
}
