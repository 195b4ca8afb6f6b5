package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/work"
)

// spread is a layout with experts over several GPUs, of a random model.
func spread(t testing.TB, r *rand.Rand, machines map[string]*Machine) Question {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	gpu := []string{"H100", "B200", "GB200"}[r.IntN(3)]
	if machines[gpu] == nil {
		machines[gpu] = clusterOf(t, gpu, 128, 400)
	}
	m := &work.Model{Name: "m", Layers: pick(4, 8), Heads: 32, KVHeads: pick(4, 32), HeadDim: 128, Hidden: pick(1024, 2048, 7168), FFN: 4096,
		Vocab: 32000, Gated: true}
	m.Experts, m.TopK, m.ExpertFFN, m.SharedFFN = pick(32, 64, 128), pick(1, 2, 4, 8), pick(512, 2048), pick(0, 2048)
	if r.IntN(3) == 0 {
		m.Groups, m.TopGroups = 8, 4
	}
	l := Default(Megatron)
	l.PP, l.TP, l.EP, l.ETP, l.Micro, l.Seq = pick(1, 2), pick(1, 1, 2), pick(2, 4, 8, 16, 32), 1, pick(1, 2), pick(512, 4096)
	l.DP = 128 / l.PP / l.TP
	l.Batch = l.DP * l.Micro * pick(2, 8)
	if l.PP > 1 && r.IntN(2) == 0 {
		l.VPP, l.Schedule = 2, "interleaved"
	}
	l.Dtype = []string{"bf16", "fp8", "fp8block"}[r.IntN(3)]
	l.EPOverlap = l.mayHideExperts() && r.IntN(2) == 0
	return Question{Model: m, Machine: machines[gpu], Framework: Megatron, Layout: l, Factor: 1.2}
}

// worse is a machine with less of something.
func worse(m *Machine, change func(*Machine)) *Machine {
	c := *m
	c.times, c.rings, c.products = map[call]spoken{}, nil, nil
	change(&c)
	return &c
}

// steps prices a question, and fails the test where it cannot.
func steps(t testing.TB, q Question) float64 {
	t.Helper()
	c, err := Price(q)
	if err != nil {
		t.Fatal(err)
	}
	return c.Step
}

// Distance never makes expert traffic cheaper: not smaller NVLink domains, not slower NICs, not more ranks.
func TestDistanceCosts(t *testing.T) {
	machines := map[string]*Machine{}
	for seed := range uint64(bounded.Times(300, 20000)) {
		q := spread(t, rand.New(rand.NewPCG(seed, 3)), machines)
		traffic := func(mc *Machine, ep int) float64 {
			l := q.Layout
			l.EP = ep
			return newPricer(q.Model, mc, Megatron, l, habits).layer(true).epF
		}
		was := traffic(q.Machine, q.Layout.EP)
		for d := q.Machine.Domain / 2; d >= 1; d /= 2 {
			now := traffic(worse(q.Machine, func(m *Machine) { m.Domain = d }), q.Layout.EP)
			if now < was*(1-1e-9) {
				t.Errorf("seed %d: %s on %s: %.6g s with domains of %d GPUs, %.6g s with %d", seed, q.Layout, q.Machine.GPU.Name, was, 2*d, now, d)
			}
			was = now
		}
		was = traffic(q.Machine, 2)
		for ep := 4; ep <= 64; ep *= 2 {
			now := traffic(q.Machine, ep)
			if now < was*(1-1e-9) {
				t.Errorf("seed %d: %s on %s: %.6g s over %d ranks, %.6g s over %d", seed, q.Layout, q.Machine.GPU.Name, was, ep/2, now, ep)
			}
			was = now
		}
		was = steps(t, q)
		for range 3 {
			q.Machine = worse(q.Machine, func(m *Machine) { m.NIC /= 2 })
			now := steps(t, q)
			if now < was*(1-1e-9) {
				t.Errorf("seed %d: %s on %s: %.6g s, with NICs half as fast %.6g s", seed, q.Layout, q.Machine.GPU.Name, was, now)
			}
			was = now
		}
	}
}

// Overlap never costs: not of experts' traffic, nor of all transfers.
func TestOverlapNeverCosts(t *testing.T) {
	machines := map[string]*Machine{}
	for seed := range uint64(bounded.Times(300, 20000)) {
		q := spread(t, rand.New(rand.NewPCG(seed, 4)), machines)
		q.Layout.EPOverlap = false
		plain := steps(t, q)
		q.Layout.EPOverlap = q.Layout.mayHideExperts()
		hidden := steps(t, q)
		if hidden > plain*(1+1e-9) {
			t.Errorf("seed %d: %s: %.6g s hidden, %.6g s not", seed, q.Layout, hidden, plain)
		}
		q.Layout.Overlap = false
		if none := steps(t, q); none < hidden*(1-1e-9) {
			t.Errorf("seed %d: %s: %.6g s without any overlap, %.6g s with it", seed, q.Layout, none, hidden)
		}
	}
}

// Experts that leave NVLink are no faster for it. Where their traffic is hidden, more ranks have fewer experts' gradients to reduce each,
// which is worth less than 1%. So it is where the host sets the pace, which it does for micro-batches of one sequence.
func TestLeavingNVLinkIsNoFaster(t *testing.T) {
	for _, x := range []struct {
		model, gpu string
		gpus       int
		near, far  string
	}{
		{"qwen3-30b-a3b", "H100", 64, "ep=8", "ep=16"},
		{"qwen3-235b-a22b", "GB200", 256, "ep=64", "ep=128"},
	} {
		for _, more := range []string{",micro=4", ",micro=1", ",micro=4,ep-overlap=on", ",micro=1,ep-overlap=on"} {
			mc := clusterOf(t, x.gpu, x.gpus, 400)
			at := func(ep string) float64 {
				l, err := ParseLayout(ep+more+",batch=1024,seq=4096", Megatron, x.gpus)
				if err != nil {
					t.Fatal(err)
				}
				c, err := Price(Question{Model: named(t, x.model), Machine: mc, Framework: Megatron, Layout: l})
				if err != nil {
					t.Fatal(err)
				}
				return c.Step
			}
			near, far := at(x.near), at(x.far)
			t.Logf("%s on %d %s%s: %s %.4g s, %s %.4g s", x.model, x.gpus, x.gpu, more, x.near, near, x.far, far)
			if far < near && more == ",micro=4" || far < .99*near {
				t.Errorf("%s on %d %s%s: %s takes %.4g s, %s %.4g s", x.model, x.gpus, x.gpu, more, x.near, near, x.far, far)
			}
		}
	}
}

// Imbalance never pays: neither in time nor in memory.
func TestImbalanceNeverPays(t *testing.T) {
	machines := map[string]*Machine{}
	for seed := range uint64(bounded.Times(200, 5000)) {
		q := spread(t, rand.New(rand.NewPCG(seed, 5)), machines)
		var was *Cost
		for _, more := range []float64{1, 1.1, 1.5, 2, 4} {
			q.Layout.Imbalance = more
			now, err := Price(q)
			if err != nil {
				t.Fatal(err)
			}
			if was != nil && (now.Step < was.Step*(1-1e-9) || now.Peak < was.Peak*(1-1e-9)) {
				t.Errorf("seed %d: %s: %.6g s and %.6g bytes, with less imbalance %.6g s and %.6g bytes",
					seed, q.Layout, now.Step, now.Peak, was.Step, was.Peak)
			}
			was = now
		}
	}
}

// No factor is below 1 or from fewer than three models.
func TestFactorsAreOfThreeModels(t *testing.T) {
	for _, r := range factorRows() {
		if r.value < 1 || r.models < 3 {
			t.Errorf("%s on %s in %s: factor %g of %d models", r.framework, r.gpu, r.dtype, r.value, r.models)
		}
	}
}
