package plan

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// The oracle knows what frameworks accept from their documentation alone and tries all of it, one number after the other. Of the search
// it shares no list, no loop and no bound; of the package only what reads a layout (Check) and what prices one.
type oracle struct {
	m     *work.Model
	mc    *Machine
	f     Framework
	batch int
	seq   int
	kinds []schedule.Kind // beside those of the framework

	factor float64 // the same for all layouts of a case; to look it up takes longer than to price one
	priced int
	best   *Cost
}

func (o *oracle) try(l Layout) {
	if l.GPUs() > o.mc.GPUs || l.Check(o.m, 0) != nil {
		return
	}
	o.priced++
	if o.f == Megatron && l.EP > 1 && !l.EPOverlap { // --overlap-moe-expert-parallel-comm
		x := l
		x.EPOverlap = true
		o.try(x)
	}
	if l.EP > 1 && l.Sender == "" { // Megatron's --moe-flex-dispatcher-backend, torchtitan's expert_parallel_comm_backend
		for _, kernels := range map[Framework][]string{Megatron: {"deepep", "hybridep"}, FSDP: {"deepep"}}[o.f] {
			x := l
			x.Sender = kernels
			o.try(x)
		}
	}
	c, err := price(Question{Model: o.m, Machine: o.mc, Framework: o.f, Layout: l, Factor: o.factor}, habits, math.Inf(1))
	if err != nil || !c.Fits {
		return
	}
	if o.best == nil || c.Step < o.best.Step {
		o.best = c
	}
}

func (o *oracle) run() {
	n := o.mc.GPUs
	o.factor, _ = FactorFor(o.f, o.mc.GPU.Name, Default(o.f).Dtype, o.m.Experts > 0, Default(o.f).Flash)
	for tp := 1; tp <= n; tp++ {
		for cp := 1; tp*cp <= n; cp++ {
			for pp := 1; tp*cp*pp <= n; pp++ {
				for dp := 1; tp*cp*pp*dp <= n; dp++ {
					for micro := 1; micro*dp <= o.batch; micro++ {
						l := Default(o.f)
						l.TP, l.CP, l.PP, l.DP, l.Micro, l.Batch, l.Seq = tp, cp, pp, dp, micro, o.batch, o.seq
						if o.batch%(micro*dp) == 0 && o.m.Heads%tp == 0 {
							o.transfers(l)
						}
					}
				}
			}
		}
	}
}

// transfers tries sequence parallelism, kinds of context parallelism, and experts.
func (o *oracle) transfers(l Layout) {
	for _, sp := range []bool{true, false} {
		for _, kind := range []string{"ring", "ulysses", "gather"} {
			for ep := 1; ep <= max(o.m.Experts, 1); ep++ {
				for etp := 1; etp <= l.TP; etp++ {
					switch {
					case l.TP == 1 && sp != l.Sequence, l.CP == 1 && kind != l.Context: // one rank has nothing to cut
					case o.f == FSDP && !sp, o.f == DeepSpeed && sp: // torchtitan always cuts norms, DeepSpeed never
					case o.f == FSDP && kind == "ulysses", o.f == DeepSpeed && kind != "ulysses":
					case o.f == Megatron && o.m.Experts > 0 && l.TP > 1 && !sp: // "without also enabling sequence parallelism"
					case o.m.Experts == 0 && etp != l.TP, l.TP%etp != 0:
					case o.f != Megatron && etp != 1 && etp != l.TP: // torchtitan: 1 or tp
					case o.f == DeepSpeed && ep > 1: // the script's
					case l.TP*l.CP*l.DP%(ep*etp) != 0:
					default:
						x := l
						x.Sequence, x.Context, x.EP, x.ETP = sp, kind, ep, etp
						o.state(x)
					}
				}
			}
		}
	}
}

// state tries ZeRO, HSDP and recompute.
func (o *oracle) state(l Layout) {
	for zero := range 4 {
		if o.f == Megatron && zero == 2 || o.f == FSDP && zero < 2 || o.f == DeepSpeed && l.PP > 1 && zero > 1 {
			continue
		}
		for shard := 0; shard <= l.DP*l.CP; shard++ {
			instances := o.f == Megatron && zero == 1 // --num-distributed-optimizer-instances
			mesh := o.f == FSDP && shard%l.CP == 0 && l.TP*shard%(l.EP*l.ETP) == 0
			if shard > 0 && (!instances && !mesh || l.DP*l.CP%shard != 0) {
				continue
			}
			for _, r := range o.recompute() {
				x := l
				x.ZeRO, x.Shard, x.Recompute = zero, shard, r
				o.pipeline(x)
			}
		}
	}
}

// recompute lists none, all, and every set of modules.
func (o *oracle) recompute() []work.Recompute {
	out := []work.Recompute{{}, {Full: true}}
	if o.f == FSDP {
		return append(out, work.Recompute{Modules: []string{"op"}})
	}
	if o.f == DeepSpeed {
		return out
	}
	names := []string{"layernorm", "mlp"} // core_attn keeps nothing with flash attention
	if o.m.Experts > 0 {
		names = []string{"layernorm", "moe", "moe_act"}
	}
	if o.m.SharedFFN > 0 {
		names = append(names, "shared_experts")
	}
	for set := 1; set < 1<<len(names); set++ {
		var r work.Recompute
		for i, name := range names {
			if set&(1<<i) != 0 {
				r.Modules = append(r.Modules, name)
			}
		}
		out = append(out, r)
	}
	return out
}

// pipeline tries schedules, chunks, and every way to relieve the ends.
func (o *oracle) pipeline(l Layout) {
	accepted := map[Framework][]schedule.Kind{Megatron: {"1f1b", "interleaved"}, FSDP: {"gpipe", "1f1b", "interleaved", "zb-v"},
		DeepSpeed: {"1f1b"}}[o.f]
	if o.kinds != nil {
		accepted = o.kinds
	}
	if l.PP == 1 {
		o.try(l)
		return
	}
	for _, kind := range accepted {
		for vpp := 1; l.PP*vpp <= o.m.Layers+2; vpp++ {
			if (kind == "interleaved") != (vpp > 1) && kind != "zb-v" {
				continue
			}
			for first := range o.m.Layers + 1 {
				for last := range o.m.Layers + 1 {
					x := l
					x.Schedule, x.VPP, x.FirstLess, x.LastLess = kind, vpp, first, last
					o.try(x)
				}
			}
		}
	}
}

// small is a case that the oracle can go through: a model and a machine with little of everything.
func small(t testing.TB, r *rand.Rand, machines map[int]*Machine) *oracle {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	gpus := pick(1, 2, 2, 3)
	batch := pick(1, 2, 2)
	if bounded.Long() {
		gpus, batch = pick(2, 4, 5, 6), pick(1, 2, 4, 6)
	}
	heads := pick(2, 3, 4)
	m := &work.Model{Name: "m", Layers: pick(1, 2, 2, 3), Heads: heads, KVHeads: heads, HeadDim: 128, Hidden: 512 * pick(1, 4, 16),
		Vocab: 1000 * pick(1, 32, 200), Gated: true}
	m.FFN = 3 * m.Hidden
	if r.IntN(3) == 0 {
		m.Experts, m.TopK, m.ExpertFFN = 4, 2, m.Hidden
		m.SharedFFN, gpus, m.Layers = pick(0, 256), min(gpus, 4), min(m.Layers, 2)
	}
	if machines[gpus] == nil {
		machines[gpus] = clusterOf(t, "H100", gpus, 400)
	}
	mc := *machines[gpus]
	// Enough memory for all layouts, for some or for none; NVLink between all GPUs or some.
	mc.GPU.Name, mc.GPU.Memory = "small", unit.Bytes(pick(3, 5, 8, 12, 20, 80))*unit.GB
	mc.times, mc.rings, mc.Domain = map[call]spoken{}, nil, min(mc.Domain, pick(1, 2, 4, 8))
	o := &oracle{m: m, mc: &mc, f: []Framework{Megatron, Megatron, FSDP, DeepSpeed}[r.IntN(4)], batch: batch, seq: pick(512, 2048, 8192)}
	if r.IntN(4) == 0 { // too large for one GPU, with heads and sequences that cannot be cut: a pipeline, often with unlike ends
		*m = work.Model{Name: "deep", Layers: pick(3, 4, 4), Heads: 1, KVHeads: 1, HeadDim: 128, Hidden: 4096, FFN: 12288,
			Vocab: 32000 * pick(1, 2, 6), Gated: true}
		mc.GPU.Memory = unit.Bytes(pick(8, 10, 12, 16, 24)) * unit.GB
		mc.GPUs, mc.Domain, mc.NIC = min(mc.GPUs, 3), 1, mc.NIC/float64(pick(2, 5, 12)) // what is gathered takes long
		o.seq, o.batch = 2047, 4
		if r.IntN(2) == 0 && mc.GPUs > 1 { // stages of chunks win
			o.f, m.Layers, m.Vocab, mc.GPUs, mc.GPU.Memory = Megatron, 4, 32000, 2, unit.Bytes(pick(10, 11, 12, 13))*unit.GB
		}
		return o
	}
	if r.IntN(10) == 0 && m.Experts == 0 {
		o.kinds, m.Layers = schedule.Kinds(), 2
	}
	return o
}

// What a search finds is the fastest that there is, whatever the framework accepts.
func TestSearchFindsWhatTheOracleFinds(t *testing.T) {
	machines := map[int]*Machine{}
	priced, fits, kinds := 0, 0, map[schedule.Kind]int{}
	for seed := range uint64(bounded.Times(480, 3000)) {
		o := small(t, rand.New(rand.NewPCG(seed, 5)), machines)
		o.run()
		found, err := Search(o.m, o.mc, o.f, Wish{Batch: o.batch, Seq: o.seq, Schedules: o.kinds, Top: 1, Within: 1})
		name := fmt.Sprintf("seed %d: %s, %d layers, %d GPUs, batch %d x %d", seed, o.f, o.m.Layers, o.mc.GPUs, o.batch, o.seq)
		priced += o.priced
		if o.best == nil {
			if err == nil && found.Best != nil {
				t.Errorf("%s: nothing fits, and the search found %s", name, found.Best.Layout)
			}
			continue
		}
		fits++
		kinds[o.best.Layout.Schedule]++
		if err != nil || found.Best == nil {
			t.Errorf("%s: the search found nothing (%v); the oracle %.9g s %s", name, err, o.best.Step, o.best.Layout)
			continue
		}
		if math.Abs(found.Best.Step/o.best.Step-1) > 1e-12 {
			t.Errorf("%s: the search found %.9g s %s; the oracle %.9g s %s", name, found.Best.Step, found.Best.Layout, o.best.Step, o.best.Layout)
		}
	}
	t.Logf("%d layouts priced, %d cases have one that fits, schedules %v", priced, fits, kinds)
}

// Layouts that people run: the search finds one that takes no longer.
func TestPublishedLayoutsAreFoundOrBeaten(t *testing.T) {
	for _, x := range bounded.First(2, []struct {
		model, gpu, layout string
		gpus               int
	}{
		// Llama 3 405B, arXiv 2407.21783, table 4: 16,384 GPUs at 8,192 tokens.
		{"llama3.1-405b", "H100", "tp=8,cp=2,pp=16,vpp=8,dp=64,micro=1,batch=2048,seq=8192,zero=1", 16384},
		// Megatron-Bridge's recipes.
		{"qwen3-30b-a3b", "H100", "ep=16,dp=16,micro=1,batch=1024,seq=4096,zero=1", 16},
		{"llama3.1-405b", "H100", "tp=8,cp=1,pp=16,vpp=8,dp=128,micro=1,batch=2048,seq=8192,zero=1", 16384},
		{"llama3-70b", "H100", "tp=4,pp=4,vpp=5,dp=2,micro=1,batch=32,seq=4096,zero=1,dtype=fp8", 32},
		{"deepseek-v3", "H100",
			"tp=2,pp=8,vpp=4,dp=64,ep=64,first-less=1,micro=1,batch=16384,seq=4096,zero=1,recompute=mla_up_proj+mlp,dtype=fp8", 1024},
		{"deepseek-v3", "GB200", "pp=4,vpp=4,dp=64,ep=64,last-less=3,micro=1,batch=4096,seq=4096,zero=1,dtype=mxfp8,recompute=mla_up_proj", 256},
		{"deepseek-v3", "GB300", "pp=2,vpp=8,dp=128,ep=32,last-less=3,micro=1,batch=4096,seq=4096,zero=1,dtype=mxfp8,ep-overlap=on", 256},
		{"qwen3-235b-a22b", "H100", "tp=2,pp=8,vpp=4,dp=16,ep=32,micro=1,batch=2048,seq=4096,zero=1,dtype=fp8,ep-overlap=on", 256},
		{"mixtral-8x22b", "H100", "tp=2,pp=8,vpp=7,dp=8,ep=8,micro=1,batch=256,seq=4096,zero=1", 128},
		{"gpt3-175b", "H100", "tp=4,pp=8,vpp=6,dp=4,micro=1,batch=256,seq=2048,zero=1", 128},
	}...) {
		m := named(t, x.model)
		mc := clusterOf(t, x.gpu, x.gpus, 400)
		l := layout(t, x.layout, Megatron)
		if l.EP > 1 {
			l.Sender = dispatchers(Megatron, mc) // as the search has it
		}
		theirs, err := Price(Question{Model: m, Machine: mc, Framework: Megatron, Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		found, err := Search(m, mc, Megatron, Wish{Batch: l.Batch, Seq: l.Seq, Dtype: l.Dtype, Top: 1, Within: 1})
		if err != nil || found.Best == nil {
			t.Fatalf("%s on %d: %v", x.model, x.gpus, err)
		}
		t.Logf("%s on %d %s: published %.4g s %s, found %.4g s %s", x.model, x.gpus, x.gpu, theirs.Step, theirs.Layout, found.Best.Step,
			found.Best.Layout)
		if theirs.Fits && found.Best.Step > theirs.Step {
			t.Errorf("%s on %d: %.4g s was found; the published layout takes %.4g s", x.model, x.gpus, found.Best.Step, theirs.Step)
		}
	}
}

// A layout costs the same on a machine of which it leaves GPUs idle as on one that it fills.
func TestIdleGPUsChangeNothing(t *testing.T) {
	m := named(t, "llama3-8b")
	l := layout(t, "tp=4,pp=3,dp=2,micro=1,batch=16,seq=4096", Megatron)
	large, err := Price(Question{Model: m, Machine: clusterOf(t, "H100", 64, 400), Framework: Megatron, Layout: l})
	if err != nil {
		t.Fatal(err)
	}
	exact, err := Price(Question{Model: m, Machine: clusterOf(t, "H100", 24, 400), Framework: Megatron, Layout: l})
	if err != nil || exact.Step != large.Step || exact.Peak != large.Peak {
		t.Errorf("%.9g s and %.9g B on 24 GPUs, %.9g s and %.9g B on 24 of 64; %v", exact.Step, exact.Peak, large.Step, large.Peak, err)
	}
}

// No bound is above what it bounds, on random layouts of random cases.
func TestBoundsHold(t *testing.T) {
	machines := map[int]*Machine{}
	for seed := range uint64(bounded.Times(60, 1000)) {
		o := small(t, rand.New(rand.NewPCG(seed, 9)), machines)
		s := newSearcher(o.m, o.mc, o.f, Wish{Batch: o.batch, Seq: o.seq}, habits)
		s.families(func(l Layout) {
			if !s.feasible(l) {
				return
			}
			p := newPricer(s.m, s.mc, s.f, l, s.h)
			chain := p.chain(s.factor)
			if still := s.alone(l); still > chain*(1+1e-12) {
				t.Fatalf("%s: %.9g s if transfers take no time, %.9g s with them", l, still, chain)
			}
			s.grids(l, func(l Layout) {
				s.states(l, func(l Layout) {
					s.pipelines(l, func(l Layout) {
						if (seed+uint64(l.TP+l.PP*3+l.DP*5+l.VPP*7+l.Micro*11+l.ZeRO))%3 != 0 || l.Check(s.m, 0) != nil {
							return
						}
						c, err := price(s.question(l), habits, math.Inf(1))
						if err != nil {
							t.Fatal(err)
						}
						p := newPricer(s.m, s.mc, s.f, l, s.h)
						e := p.estimate(s.factor)
						stages := p.stages(s.factor)
						least := p.least(stages) + p.exchangeLeast(stages)
						over := c.Step * (1 + 1e-9)
						if float64(l.MicroBatches())*chain/float64(l.PP) > over || e.seconds(l) > over || least > over {
							t.Fatalf("%s: %.9g s, bounds %.9g, %.9g, %.9g", l, c.Step, float64(l.MicroBatches())*chain/float64(l.PP), e.seconds(l), least)
						}
						if e.bytes(l) > c.Peak || c.Peak < e.fixed+e.state/float64(l.PP) {
							t.Fatalf("%s: %.9g B, bound %.9g", l, c.Peak, e.bytes(l))
						}
					})
				})
			})
		})
	}
}

// states calls do for each way to share state among data ranks and to compute activations again.
func (s *space) states(l Layout, do func(Layout)) {
	s.sharings(l, func(l Layout) {
		for _, r := range s.again {
			l.Recompute = r
			do(l)
		}
	})
}

// estimate puts a layout's estimate together as a search does, which finds the parts of it once for many layouts.
func (p *pricer) estimate(factor float64) estimate {
	e := p.holdsLeast()
	e.fixed += p.again1()
	e.act = p.keptLeast()
	gather, reduce := p.zero3()
	e.work = p.passes(factor, gather, reduce)
	e.tail = max(gather[0], gather[1]) + max(reduce[0], reduce[1])
	if p.l.PP > 1 {
		e.hop = slices.Min(p.hops().hops)
	}
	return e
}
