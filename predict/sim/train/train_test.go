package train

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/sim/chakra"
)

func question(t *testing.T, layout string) (*cluster.Cluster, plan.Question) {
	t.Helper()
	c, err := cluster.Preset("rail", map[string]int{"hosts": 8})
	if err != nil {
		t.Fatal(err)
	}
	l, err := plan.ParseLayout(layout, plan.Megatron, 0)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := plan.NewMachine(c, l.GPUs())
	if err != nil {
		t.Fatal(err)
	}
	m, err := work.Named("llama3-8b")
	if err != nil {
		t.Fatal(err)
	}
	return c, plan.Question{Model: m, Machine: mc, Framework: plan.Megatron, Layout: l}
}

// Where tensor parallelism leaves a data parallel group one rank a host, the plan's reduction is the simulation's, on
// rails and on a tree that blocks.
func TestPlanTakesTheSimulation(t *testing.T) {
	for _, c := range []struct {
		preset string
		params map[string]int
		layout string
	}{
		{"rail", map[string]int{"hosts": 8}, "tp=8,dp=8,micro=1,batch=8,seq=4096"},
		{"rail", map[string]int{"hosts": 16}, "tp=8,pp=2,dp=8,micro=1,batch=16,seq=4096,zero=0"},
		{"fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1}, "tp=8,dp=12,micro=1,batch=12,seq=4096"},
	} {
		cl, err := cluster.Preset(c.preset, c.params)
		if err != nil {
			t.Fatal(err)
		}
		_, q := question(t, "tp=8,dp=8,micro=1,batch=8,seq=4096")
		if q.Layout, err = plan.ParseLayout(c.layout, plan.Megatron, 0); err != nil {
			t.Fatal(err)
		}
		if q.Machine, err = plan.NewMachine(cl, q.Layout.GPUs()); err != nil {
			t.Fatal(err)
		}
		o := sim.Options{Catalog: cl.Catalog, Measured: true, Costs: sim.DefaultCosts(cl.Graph, cl.Catalog)}
		r, err := oneStep(cl.Graph, q, 1, false, 8, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s %s: %.5f s planned, %.5f s simulated", cl.Name, c.layout, r.Modelled, r.Reduce)
		if d := r.Modelled / r.Reduce; d < .99 || d > 1.01 {
			t.Errorf("%s %s: the plan's reduction takes %.5f s, the simulation's %.5f s", cl.Name, c.layout, r.Modelled, r.Reduce)
		}
	}
}

// Rings of all tensor parallel ranks at once take what one takes alone on rails that do not block, and a slow NIC
// slows the whole job down.
func TestSisterGroupsAtOnce(t *testing.T) {
	c, q := question(t, "tp=8,dp=8,micro=1,batch=8,seq=4096")
	o := sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog)}
	r, err := oneStep(c.Graph, q, 1, false, 8, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Groups != 8 || r.Ranks != 8 || r.Reduce < r.Alone*.99 || r.Reduce > r.Alone*1.02 {
		t.Errorf("%+v", r)
	}
	// TP 8 leaves a group one NIC a host: 50 GB/s at most.
	bytes := plan.GradientBytes(q)[0]
	if rate := bytes * 7 / 8 / r.Reduce; rate > 50e9 || rate < 35e9 {
		t.Errorf("%.1f GB/s a NIC", rate/1e9)
	}
	o.Slow = []sim.Slow{{Name: "n3:nic2", Factor: .25}}
	s, err := oneStep(c.Graph, q, 1, false, 8, o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Reduce < 2*r.Reduce || s.Step <= r.Step {
		t.Errorf("a NIC at a quarter: %.4f s against %.4f s, a step %.4f against %.4f", s.Reduce, r.Reduce, s.Step, r.Step)
	}
}

func TestSeveralJobs(t *testing.T) {
	c, q := question(t, "tp=8,dp=4,micro=1,batch=4,seq=4096")
	o := sim.Options{Catalog: c.Catalog}
	r, err := oneStep(c.Graph, q, 2, true, 8, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Jobs) != 2 || r.Jobs[0] <= 0 || r.Jobs[1] <= 0 {
		t.Errorf("%+v", r)
	}
	if _, err := oneStep(c.Graph, q, 3, false, 8, o); err == nil {
		t.Error("three jobs of 32 GPUs pass on 64")
	}
}

// A plan's step written as traces and run as traces takes what the plan says.
func TestTracesTakeWhatThePlanSays(t *testing.T) {
	for _, text := range []string{"tp=8,dp=4,micro=1,batch=4,seq=4096", "tp=8,pp=2,dp=2,micro=1,batch=16,seq=4096",
		"tp=4,pp=4,dp=2,micro=1,batch=16,seq=4096,vpp=2,schedule=interleaved",
		"tp=2,pp=4,dp=4,micro=1,batch=32,seq=2048,schedule=gpipe", "tp=8,pp=4,dp=1,micro=1,batch=8,seq=4096,schedule=zb-h1"} {
		c, q := question(t, text)
		cost, err := plan.Price(q)
		if err != nil {
			t.Fatal(err)
		}
		traces, groups, err := Traces(q)
		if err != nil {
			t.Fatal(err)
		}
		on := chakra.Machine{Graph: c.Graph, Options: sim.Options{Catalog: c.Catalog, Measured: true,
			Costs: sim.DefaultCosts(c.Graph, c.Catalog)}}
		c.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { on.GPUs = append(on.GPUs, id) })
		r, err := chakra.Run(traces, groups, on)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		want := cost.Step - cost.Pipe.Period + cost.Pipe.Time
		if d := r.Time/want - 1; d < -.065 || d > .065 { // a trace reduces after backward what a plan hides bucket by bucket
			t.Errorf("%s: traces take %.5g s, the plan says %.5g s", text, r.Time, want)
		}
	}
}

// on prices and simulates a layout of a model on a preset.
func on(t *testing.T, preset string, params map[string]int, model, layout string, f plan.Framework, o sim.Options) *Result {
	t.Helper()
	c, err := cluster.Preset(preset, params)
	if err != nil {
		t.Fatal(err)
	}
	l, err := plan.ParseLayout(layout, f, 0)
	if err != nil {
		t.Fatal(err)
	}
	mc, err := plan.NewMachine(c, l.GPUs())
	if err != nil {
		t.Fatal(err)
	}
	m, err := work.Named(model)
	if err != nil {
		t.Fatal(err)
	}
	o.Catalog, o.Measured, o.Costs = c.Catalog, true, sim.DefaultCosts(c.Graph, c.Catalog)
	r, err := oneStep(c.Graph, plan.Question{Model: m, Machine: mc, Framework: f, Layout: l}, 1, false, 8, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var manyKinds = []struct {
	name, model, layout, kind string
	f                         plan.Framework
}{
	{"experts", "qwen3-30b-a3b", "tp=1,ep=16,etp=1,dp=32,micro=1,batch=32,seq=4096", "experts", plan.Megatron},
	{"context ring", "llama3-8b", "tp=8,cp=2,dp=2,micro=1,batch=2,seq=16384", "context", plan.Megatron},
	{"stages", "llama3-8b", "tp=8,pp=4,dp=1,micro=1,batch=8,seq=4096", "stages", plan.Megatron},
	{"zero 3", "llama3-8b", "tp=1,dp=32,micro=1,batch=32,seq=4096,zero=3", "gradients", plan.FSDP},
	{"shards", "llama3-8b", "tp=1,dp=32,shard=16,micro=1,batch=32,seq=4096,zero=3", "shards", plan.FSDP},
}

// On rails that block nobody each transfer takes what the plan says; a NIC at a quarter of its rate makes those that pass it nearly four
// times as long. Pairs of an all-to-all stay in the host half of the time.
func TestEveryKindOfTransferFeelsABadPart(t *testing.T) {
	for _, c := range manyKinds {
		healthy := on(t, "rail", map[string]int{"hosts": 4}, c.model, c.layout, c.f, sim.Options{})
		slow := on(t, "rail", map[string]int{"hosts": 4}, c.model, c.layout, c.f, sim.Options{Slow: []sim.Slow{{Name: "n1:nic2", Factor: .25}}})
		was, is := timesOf(t, healthy, c.kind), timesOf(t, slow, c.kind)
		t.Logf("%s: %.3f healthy, %.3f with a slow NIC; step %.4f and %.4f s, planned %.4f s",
			c.name, was, is, healthy.Step, slow.Step, healthy.Planned)
		if was > 1.02 || healthy.Step > healthy.Planned*1.01 {
			t.Errorf("%s: on a healthy fabric that blocks nobody it takes %.3f times as long", c.name, was)
		}
		least := 3.4
		if c.kind == "experts" {
			least = 2.2
		}
		if is < least || is > 4.1 || slow.Step <= healthy.Step {
			t.Errorf("%s: a NIC at a quarter makes it %.2f times as long", c.name, is)
		}
	}
}

// Where a leaf of 48 NICs has 16 uplinks and all of them send to another leaf, it takes three times as long. Rings cross from leaf to leaf
// once each, and feel nothing.
func TestTransfersOnAFabricThatBlocks(t *testing.T) {
	for _, c := range []struct {
		model, layout, kind string
		least, most         float64
	}{
		{"llama3-8b", "tp=8,pp=2,dp=6,micro=1,batch=24,seq=4096", "stages", 2.7, 3.01},
		{"llama3-8b", "tp=8,pp=2,dp=6,micro=1,batch=24,seq=4096", "gradients", 1, 1.01},
		{"qwen3-30b-a3b", "tp=1,ep=32,etp=1,dispatcher=deepep,dp=96,micro=1,batch=96,seq=4096", "experts", 1.2, 3},
	} {
		r := on(t, "fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1}, c.model, c.layout, plan.Megatron, sim.Options{})
		x := timesOf(t, r, c.kind)
		t.Logf("%s: %s %.3f times as long; step %.4f s, planned %.4f s", c.layout, c.kind, x, r.Step, r.Planned)
		if x < c.least || x > c.most || r.Step < r.Planned {
			t.Errorf("%s: %s take %.2f times as long", c.layout, c.kind, x)
		}
	}
}

func timesOf(t *testing.T, r *Result, kind string) float64 {
	t.Helper()
	for _, x := range r.Transfers {
		if x.Kind == kind {
			return x.Times
		}
	}
	t.Fatalf("no %s among %+v", kind, r.Transfers)
	return 0
}

// Jobs that differ share the fabric: on a tree that blocks each is slower beside the other, host by host, than alone.
func TestJobsThatDiffer(t *testing.T) {
	c, err := cluster.Preset("fat-tree", map[string]int{"hosts": 12, "tiers": 2, "down": 3, "up": 1})
	if err != nil {
		t.Fatal(err)
	}
	o := sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog)}
	var qs []plan.Question
	for _, x := range [][2]string{{"llama3-8b", "tp=8,pp=2,dp=3,micro=1,batch=12,seq=4096"},
		{"mixtral-8x7b", "tp=1,ep=8,etp=1,pp=2,dp=24,micro=1,batch=96,seq=4096"}} {
		l, err := plan.ParseLayout(x[1], plan.Megatron, 0)
		if err != nil {
			t.Fatal(err)
		}
		mc, err := plan.NewMachine(c, l.GPUs())
		if err != nil {
			t.Fatal(err)
		}
		m, err := work.Named(x[0])
		if err != nil {
			t.Fatal(err)
		}
		qs = append(qs, plan.Question{Model: m, Machine: mc, Framework: plan.Megatron, Layout: l})
	}
	places, err := Deal(c.Graph, []int{48, 48}, true, 8)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := Steps(c.Graph, []Job{{qs[0], places[0]}}, o)
	if err != nil {
		t.Fatal(err)
	}
	both, err := Steps(c.Graph, []Job{{qs[0], places[0]}, {qs[1], places[1]}}, o)
	if err != nil {
		t.Fatal(err)
	}
	// 24 NICs of the job send over 16 uplinks alone; with as many of the other job, whose messages are larger, it has half of them.
	one, two := timesOf(t, alone, "stages"), timesOf(t, both, "stages")
	t.Logf("sends of the first job: %.3f times as long alone, %.3f beside the other; steps %+v", one, two, both.Steps)
	if one < 1.45 || one > 1.55 || two < 2.7 || two > 3.05 || len(both.Steps) != 2 || both.Steps[1].Model != qs[1].Model.Name ||
		both.Steps[0].Step <= alone.Step {
		t.Errorf("%.3f and %.3f: %+v", one, two, both.Steps)
	}
	if _, err := Deal(c.Graph, []int{48, 49}, false, 8); err == nil {
		t.Error("97 GPUs are dealt out of 96")
	}
	if _, err := Deal(c.Graph, []int{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, true, 8); err == nil {
		t.Error("thirteen hosts are dealt out of twelve")
	}
}

// oneStep simulates one step of jobs equal jobs.
func oneStep(g *topo.Graph, q plan.Question, jobs int, mixed bool, hostGPUs int, o sim.Options) (*Result, error) {
	if jobs < 1 {
		return nil, fmt.Errorf("%d jobs; want at least one", jobs)
	}
	asked := slices.Repeat([]int{q.Layout.GPUs()}, jobs)
	places, err := Deal(g, asked, mixed, hostGPUs)
	if err != nil {
		return nil, err
	}
	var all []Job
	for _, p := range places {
		all = append(all, Job{q, p})
	}
	return Steps(g, all, o)
}
