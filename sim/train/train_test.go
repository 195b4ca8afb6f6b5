package train

import (
	"testing"

	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/plan"
	"github.com/weft-fabric/weft/sim"
	"github.com/weft-fabric/weft/sim/chakra"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/work"
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
		r, err := Step(cl.Graph, q, 1, false, 8, o)
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
	r, err := Step(c.Graph, q, 1, false, 8, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Groups != 8 || r.Ranks != 8 || r.Reduce < r.Alone*.999 || r.Reduce > r.Alone*1.02 {
		t.Errorf("%+v", r)
	}
	// TP 8 leaves a group one NIC a host: 50 GB/s at most.
	bytes := plan.GradientBytes(q)[0]
	if rate := bytes * 7 / 8 / r.Reduce; rate > 50e9 || rate < 35e9 {
		t.Errorf("%.1f GB/s a NIC", rate/1e9)
	}
	o.Slow = []sim.Slow{{Name: "n3:nic2", Factor: .25}}
	s, err := Step(c.Graph, q, 1, false, 8, o)
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
	r, err := Step(c.Graph, q, 2, true, 8, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Jobs) != 2 || r.Jobs[0] <= 0 || r.Jobs[1] <= 0 {
		t.Errorf("%+v", r)
	}
	if _, err := Step(c.Graph, q, 3, false, 8, o); err == nil {
		t.Error("three jobs of 32 GPUs pass on 64")
	}
}

// A plan's step written as traces and run as traces takes what the plan says.
func TestTracesTakeWhatThePlanSays(t *testing.T) {
	for _, text := range []string{"tp=8,dp=4,micro=1,batch=4,seq=4096", "tp=8,pp=2,dp=2,micro=1,batch=16,seq=4096", "tp=4,pp=4,dp=2,micro=1,batch=16,seq=4096,vpp=2,schedule=interleaved",
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
		on := chakra.Machine{Graph: c.Graph, Options: sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog)}}
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
