package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// any draws a layout that Check accepts.
func anyLayout(r *rand.Rand, m *work.Model) (Layout, bool) {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	l := Default(Megatron)
	l.TP, l.CP, l.PP, l.DP, l.Micro, l.Seq = pick(1, 1, 2, 4, 8), pick(1, 1, 2), pick(1, 2, 3, 4, 8, 16, 32), pick(1, 2, 8, 64), pick(1, 2),
		pick(1024, 2048, 4096)
	l.Batch = l.DP * l.Micro * l.PP * pick(1, 2, 4)
	l.ETP = l.TP
	if m.Experts > 0 {
		l.EP, l.ETP = pick(1, 2, 4, 8, 16, 64), pick(1, l.TP)
	}
	if most := (m.Layers + 2) / l.PP; l.PP > 1 && most > 1 && r.IntN(2) == 0 {
		l.VPP, l.Schedule = 2+r.IntN(most-1), schedule.Interleaved
	}
	if l.PP > 1 {
		l.FirstLess, l.LastLess = pick(0, 0, 1, 2), pick(0, 0, 1, 2)
	}
	l.ZeRO = pick(0, 1, 1, 3)
	l.Sequence = r.IntN(4) > 0
	l.Context = []string{"ring", "ulysses", "gather"}[r.IntN(3)]
	if l.CP == 1 {
		l.Context = "ring"
	}
	l.Dtype = []string{"bf16", "fp8", "mxfp8", "fp8block", "fp16", "nvfp4"}[r.IntN(6)]
	modules := slices.Clone([]string{"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", "mlp_act"})
	switch r.IntN(3) {
	case 0:
		l.Recompute.Full = true
	case 1:
		for _, name := range modules {
			if r.IntN(3) == 0 {
				l.Recompute.Modules = append(l.Recompute.Modules, name)
			}
		}
		slices.Sort(l.Recompute.Modules)
	}
	l.EPOverlap = l.mayHideExperts() && r.IntN(2) == 0
	return l, l.Check(m, 0) == nil
}

// Whatever is emitted for Megatron, Megatron's parser takes, for every model; and it is the same model and layout when read back.
func TestMegatronAcceptsWhatIsEmitted(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	emitted, refused := map[string]int{}, map[string]int{}
	for _, name := range work.Names() {
		m := named(t, name)
		if m.CNN != nil {
			continue
		}
		for range bounded.Times(60, 2000) {
			l, ok := anyLayout(r, m)
			if !ok {
				continue
			}
			script, err := Emit("megatron", m, l)
			if err != nil {
				refused[name]++
				continue
			}
			emitted[name]++
			flags, env := readFlags(script)
			if bad := megatronRules(flags, l.GPUs(), env); len(bad) > 0 {
				t.Fatalf("%s %s: %s\n%s", name, l, strings.Join(bad, "; "), script)
			}
			c, err := ReadConfig("megatron", []byte(script))
			if err != nil {
				t.Fatal(err)
			}
			if a, b := c.Model.Params(), m.Params(); a.Total != b.Total || a.Active != b.Active || c.Model.Routing() != m.Routing() {
				t.Fatalf("%s: read back with %.6g parameters, %.6g active, %s", name, a.Total, a.Active, c.Model.Routing())
			}
		}
	}
	for _, name := range []string{"llama3.1-405b", "deepseek-v3", "kimi-k2", "qwen3-30b-a3b", "llama3-70b", "gpt3-175b"} {
		if emitted[name] == 0 {
			t.Errorf("nothing was emitted for %s", name)
		}
	}
	t.Logf("emitted %v\nrefused %v", emitted, refused)
}

// The base of rotary positions is part of the model. A script without one has Megatron's own.
func TestMegatronSaysTheRotaryBase(t *testing.T) {
	l := layout(t, "dp=8,micro=1,batch=8,seq=2048", Megatron)
	for name, base := range map[string]int{"llama3-8b": 500000, "qwen3-30b-a3b": 1000000, "deepseek-v3": 10000, "gpt3-13b": 0} {
		script, err := Emit("megatron", named(t, name), l)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("--rotary-base %d\n", base); strings.Contains(script, want) != (base > 0) {
			t.Errorf("%s: %q is missing, or not wanted:\n%s", name, want, script)
		}
		without := strings.ReplaceAll(script, fmt.Sprintf("    --rotary-base %d\n", base), "")
		for text, want := range map[string]int{script: base, without: min(base, 10000)} {
			c, err := ReadConfig("megatron", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if c.Model.RoPEBase != want {
				t.Errorf("%s: base %d is read, not %d", name, c.Model.RoPEBase, want)
			}
		}
	}
}

// What Megatron has no words for is refused with the reason.
func TestMegatronRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"dp=8,micro=1,batch=8,seq=4096,recompute=layernorm+mlp_act": "no recompute module mlp_act",
		"pp=4,dp=1,micro=1,batch=8,seq=4096,schedule=zb-h1":         "no words for schedule",
		"pp=2,vpp=2,dp=1,micro=1,batch=8,seq=4096,p2p=blocking":     "pp above 2",
		"dp=8,micro=1,batch=8,seq=4096,recompute=mla_up_proj":       "needs latent attention",
		"dp=8,micro=1,batch=8,seq=4096,offload=on":                  "no words for offload",
		"dp=8,micro=1,batch=8,seq=4096,phase=lora":                  "no words for phase",
		"tp=2,dp=4,micro=1,batch=8,seq=4096,shard=2,zero=3":         "no words for shard",
		"tp=1,dp=8,micro=1,batch=8,seq=4096,recompute=op":           "no recompute module op",
	} {
		if _, err := Emit("megatron", named(t, "llama3-8b"), layout(t, text, Megatron)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
