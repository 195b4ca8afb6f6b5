package plan

import (
	"testing"

	"github.com/weft-fabric/weft/model/work"
	"pgregory.net/rapid"
)

// What is computed again counts as work of the GPUs and never as work of the model: full recompute is a whole forward pass but the head,
// and every set of modules is some of it.
func TestComputingAgainIsWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, err := work.Named(rapid.SampledFrom(work.Names()).Draw(t, "model"))
		if err != nil || m.CNN != nil || m.Linear != nil {
			t.Skip()
		}
		l := Default(Megatron)
		l.Seq = rapid.IntRange(128, 1<<17).Draw(t, "seq")
		var some []string
		for _, x := range []string{"core_attn", "layernorm", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts"} {
			if rapid.Bool().Draw(t, x) {
				some = append(some, x)
			}
		}
		rate := func(r work.Recompute) float64 {
			x := l
			x.Recompute = r
			c := &Cost{Layout: x, MFUs: map[string]float64{string(work.Causal): .5}}
			return c.Rate(m)
		}
		none, part, full := rate(work.Recompute{}), rate(work.Recompute{Modules: some}), rate(work.Recompute{Full: true})
		if none != .5 || part < none || full < part*(1-1e-12) || full > .5*4/3 {
			t.Fatalf("%s: the GPUs compute at %g of their peak without recompute, at %g with %v, at %g with full", m.Name, none, part, some, full)
		}
	})
}
