package plan

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/model/work"
)

// treeCases are layouts of every kind: dense, with experts, latent attention, FSDP, every schedule, with and without overlap.
var treeCases = []struct {
	model, gpu, layout string
	gpus               int
	f                  Framework
}{
	{"llama3-8b", "H100", "tp=2,cp=2,dp=2,micro=1,batch=16,seq=8192", 8, Megatron},
	{"gpt3-175b", "H100", "tp=8,pp=8,vpp=6,dp=2,micro=1,batch=64,seq=2048", 128, Megatron},
	{"gpt3-175b", "A100-80G", "tp=8,pp=8,dp=1,micro=1,batch=32,seq=2048,zero=0,overlap=off,flash=off,recompute=full,sp=off", 64, Megatron},
	{"gpt3-20b", "A100-80G", "tp=4,pp=4,dp=2,micro=1,batch=32,seq=2048,overlap=off", 32, DeepSpeed},
	{"mixtral-8x7b", "H100", "tp=2,pp=2,ep=8,dp=16,micro=1,batch=128,seq=4096", 64, Megatron},
	{"deepseek-v3", "H100", "pp=8,ep=32,dp=32,micro=1,batch=1024,seq=4096,schedule=dualpipe,dtype=fp8", 256, Megatron},
	{"llama3-8b", "H100", "dp=16,micro=1,batch=32,seq=8192,zero=3", 16, FSDP},
	{"llama3-8b", "H100", "pp=4,dp=4,micro=1,batch=64,seq=4096,schedule=zb-h1", 16, Megatron},
	{"llama3-8b", "H100", "pp=4,dp=4,micro=1,batch=64,seq=4096,schedule=zb-h2", 16, Megatron},
	{"llama3-8b", "H100", "pp=4,dp=4,micro=1,batch=64,seq=4096,schedule=zb-v", 16, Megatron},
	{"llama3-8b", "H100", "pp=4,dp=4,micro=1,batch=64,seq=4096,schedule=gpipe,p2p=blocking", 16, Megatron},
	{"llama3.1-405b", "H100", "tp=8,pp=16,vpp=8,dp=1,micro=1,batch=32,seq=8192", 128, Megatron},
}

// The terms below a term add up to it, in the tree of the step and in that of the memory; and the passes of a rank in
// the trace of a step do not overlap.
func TestTreesAddUp(t *testing.T) {
	for _, x := range treeCases {
		name := x.model + " " + x.layout
		m, err := work.Named(x.model)
		if err != nil {
			t.Fatal(err)
		}
		l, err := ParseLayout(x.layout, x.f, x.gpus)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Price(Question{Model: m, Machine: clusterOf(t, x.gpu, x.gpus, 400), Framework: x.f, Layout: l, Why: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.Why.Value != c.Step {
			t.Errorf("%s: the tree says %g s, the step is %g s", name, c.Why.Value, c.Step)
		}
		var walk func(Term, string)
		walk = func(x Term, path string) {
			sum, parts := 0.0, 0
			for _, y := range x.Terms {
				if !y.Note {
					sum, parts = sum+y.Value, parts+1
				}
				if y.Value < -1e-9 {
					t.Errorf("%s: %s / %s is %g", name, path, y.Name, y.Value)
				}
				walk(y, path+" / "+y.Name)
			}
			if parts > 0 && math.Abs(sum-x.Value) > 1e-6*max(x.Value, 1e-9) {
				t.Errorf("%s: the terms of %s add up to %g; it is %g", name, path, sum, x.Value)
			}
		}
		walk(*c.Why, "step")
		walk(Term{Name: "memory", Value: c.Peak, Terms: c.Memory}, "memory")

		var b bytes.Buffer
		if err := c.WritePerfetto(&b); err != nil {
			t.Fatal(err)
		}
		var trace struct {
			Events []struct {
				Name     string
				Ph       string
				Ts, Dur  float64
				Pid, Tid int
			} `json:"traceEvents"`
		}
		if err := json.Unmarshal(b.Bytes(), &trace); err != nil {
			t.Fatal(err)
		}
		lanes := map[[2]int][][2]float64{}
		for _, e := range trace.Events {
			if e.Ph == "X" {
				lanes[[2]int{e.Pid, e.Tid}] = append(lanes[[2]int{e.Pid, e.Tid}], [2]float64{e.Ts, e.Ts + e.Dur})
			}
		}
		if len(lanes) != l.PP {
			t.Errorf("%s: %d lanes of %d stages", name, len(lanes), l.PP)
		}
		for lane, spans := range lanes {
			slices.SortFunc(spans, func(a, b [2]float64) int {
				if a[0] < b[0] {
					return -1
				}
				return 1
			})
			for i := 1; i < len(spans); i++ {
				if spans[i][0] < spans[i-1][1]-1e-3 { // a thousandth of a microsecond
					t.Errorf("%s: lane %v: a pass begins at %g us before another ends at %g us", name, lane, spans[i][0], spans[i-1][1])
					break
				}
			}
		}
	}
}
