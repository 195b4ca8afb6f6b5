package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// megatronLine is a command line as Megatron's argparse sees it. It is read from the script without weft's own reader.
type megatronLine map[string][]string

// readLine collects the flags of a script that Emit wrote: every array has a flag and its values on a line.
func readLine(script string) (megatronLine, map[string]string) {
	flags, env := megatronLine{}, map[string]string{}
	for _, line := range strings.Split(script, "\n") {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "export "); ok {
			key, value, _ := strings.Cut(name, "=")
			env[key] = value
		}
		if !strings.HasPrefix(line, "--") {
			continue
		}
		words := strings.Fields(line)
		var values []string
		for _, w := range words[1:] {
			values = append(values, strings.Trim(w, "\"'"))
		}
		flags[words[0][2:]] = values
	}
	return flags, env
}

func (f megatronLine) has(flag string) bool { _, ok := f[flag]; return ok }

func (f megatronLine) word(flag string) string {
	if v := f[flag]; len(v) == 1 {
		return v[0]
	}
	return ""
}

func (f megatronLine) int(flag string, otherwise int) int {
	if n, err := strconv.Atoi(f.word(flag)); err == nil {
		return n
	}
	return otherwise
}

// assertions are Megatron's own, in the order of megatron/training/arguments.py, core/transformer/transformer_config.py and
// core/parallel_state.py. Each answers what Megatron would say.
func (f megatronLine) assertions(world int, env map[string]string) (bad []string) {
	assert := func(ok bool, text string) {
		if !ok {
			bad = append(bad, text)
		}
	}
	tp, pp, cp := f.int("tensor-model-parallel-size", 1), f.int("pipeline-model-parallel-size", 1), f.int("context-parallel-size", 1)
	ep, etp := f.int("expert-model-parallel-size", 1), f.int("expert-tensor-parallel-size", tp)
	layers, experts := f.int("num-layers", 0), f.int("num-experts", 0)
	assert(world%(tp*pp*cp) == 0, "world size is not divisible by tp x pp x cp")
	dp := world / (tp * pp * cp)
	assert(world%(etp*ep*pp) == 0, "world size is not divisible by etp x ep x pp")
	assert(experts == 0 || experts%ep == 0, "experts are not a multiple of ep")
	micro, batch := f.int("micro-batch-size", 0), f.int("global-batch-size", 0)
	assert(micro > 0 && batch%(micro*dp) == 0, "global batch is not divisible by micro x dp")
	assert(f.int("num-attention-heads", 0)%tp == 0, "heads are not divisible by tp")
	if kv := f.int("num-query-groups", 0); kv > 0 {
		assert(kv%tp == 0 || tp%kv == 0, "query groups are neither a multiple nor a divisor of tp")
		assert(!f.has("multi-latent-attention"), "latent attention excludes query groups")
	}
	seq := f.int("seq-length", 0)
	assert(cp == 1 || seq%(2*cp) == 0, "seq-length is not a multiple of 2 cp")
	assert(f.int("max-position-embeddings", 0) >= seq, "max-position-embeddings is below seq-length")
	assert(!f.has("tp-comm-overlap") || f.has("sequence-parallel"), "tp-comm-overlap needs sequence parallelism")
	assert(!f.has("overlap-param-gather") || f.has("overlap-grad-reduce") && (f.has("use-distributed-optimizer") || f.has("use-megatron-fsdp")), "overlap-param-gather needs overlap-grad-reduce and a distributed optimizer")
	assert(!f.has("mtp-num-layers") || f.word("position-embedding-type") == "rope", "MTP needs rope")
	assert(experts == 0 || tp == 1 || f.has("sequence-parallel"), "MoE with tensor parallelism needs sequence parallelism")
	assert(experts == 0 || f.has("disable-bias-linear") || etp == 1, "bias in MoE is only supported with etp 1")
	if f.has("use-megatron-fsdp") {
		assert(env["CUDA_DEVICE_MAX_CONNECTIONS"] != "1", "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset")
		assert(f.word("ckpt-format") == "fsdp_dtensor", "FSDP wants ckpt-format fsdp_dtensor")
	} else if (tp > 1 || cp > 1) && !f.has("overlap-moe-expert-parallel-comm") {
		assert(env["CUDA_DEVICE_MAX_CONNECTIONS"] == "1", "tensor and context parallelism need CUDA_DEVICE_MAX_CONNECTIONS=1")
	}
	return append(append(append(bad, f.stages(layers, pp, batch/max(micro*dp, 1))...), f.recompute()...), f.router(experts, ep, pp)...)
}

// stages are the assertions about the cut of layers.
func (f megatronLine) stages(layers, pp, micros int) (bad []string) {
	vpp := f.int("num-virtual-stages-per-pipeline-rank", 1)
	text, named := f["pipeline-model-parallel-layout"]
	embedding, loss := f.has("account-for-embedding-in-pipeline-split"), f.has("account-for-loss-in-pipeline-split")
	switch {
	case named && (embedding || loss || f.has("num-virtual-stages-per-pipeline-rank")):
		bad = append(bad, "a layout excludes other ways to cut")
	case named:
		chunks := spellOut(text[0])
		vpp = len(chunks) / pp
		if len(chunks)%pp != 0 {
			bad = append(bad, "the layout's length is not divisible by pp")
		}
		all := strings.Join(chunks, "")
		if want := "E" + strings.Repeat("t", layers) + strings.Repeat("m", f.int("mtp-num-layers", 0)) + "L"; all != want {
			bad = append(bad, fmt.Sprintf("the layout is %s; want the order and number of %s", all, want))
		}
	default:
		units := layers
		if embedding {
			units++
		}
		if loss {
			units++
		}
		if units%(pp*vpp) != 0 {
			bad = append(bad, "the number of layers is not divisible by the stages")
		}
	}
	if vpp > 1 && (pp < 2 || micros < pp || micros%pp != 0 || f.has("no-overlap-p2p-communication") && pp < 3) {
		bad = append(bad, "interleaving does not go with pp or the micro-batches")
	}
	return bad
}

// spellOut writes every chunk of a layout out, letter by letter.
func spellOut(text string) (chunks []string) {
	for _, chunk := range strings.Split(text, "|") {
		var b strings.Builder
		for i := 0; i < len(chunk); i++ {
			n := 1
			if rest := chunk[i+1:]; strings.HasPrefix(rest, "*") {
				digits := rest[1 : 1+len(rest[1:])-len(strings.TrimLeft(rest[1:], "0123456789"))]
				n, _ = strconv.Atoi(digits)
				b.WriteString(strings.Repeat(chunk[i:i+1], n))
				i += 1 + len(digits)
				continue
			}
			b.WriteByte(chunk[i])
		}
		chunks = append(chunks, b.String())
	}
	return chunks
}

// recompute are the assertions about what is computed again.
func (f megatronLine) recompute() (bad []string) {
	granularity := f.word("recompute-granularity")
	if granularity == "full" != (f.has("recompute-method") && f.has("recompute-num-layers")) {
		bad = append(bad, "full recompute needs method and layers, selective forbids them")
	}
	for _, name := range f["recompute-modules"] {
		switch {
		case !slices.Contains([]string{"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}, name): // of 0.18
			bad = append(bad, "invalid recompute module "+name)
		case name == "moe_act" && !f.has("moe-grouped-gemm"), name == "mla_up_proj" && !f.has("multi-latent-attention"):
			bad = append(bad, name+" does not go with this model")
		case (name == "moe_act" || name == "layernorm") && f.has("fp8-format") && (!f.has("fp8-recipe") || f.word("fp8-recipe") == "delayed"):
			bad = append(bad, "delayed scaling does not support "+name)
		}
	}
	return bad
}

// router are the assertions about experts.
func (f megatronLine) router(experts, ep, pp int) (bad []string) {
	if f.has("overlap-moe-expert-parallel-comm") {
		chunked := f.int("num-virtual-stages-per-pipeline-rank", 1) > 1 || f.has("pipeline-model-parallel-layout")
		modules := f["recompute-modules"]
		if ep < 2 || f.word("moe-token-dispatcher-type") == "" || f.word("moe-token-dispatcher-type") == "allgather" || pp > 1 && !chunked ||
			!f.has("bf16") && !f.has("fp16") || f.word("recompute-granularity") == "full" || slices.Contains(modules, "moe") || f.int("mtp-num-layers", 0) > 1 {
			bad = append(bad, "overlap-moe-expert-parallel-comm does not go with the rest")
		}
	}
	groups, top := f.int("moe-router-num-groups", 0), f.int("moe-router-group-topk", 0)
	if (groups > 0) != (top > 0) || groups > 0 && (experts%groups != 0 || top > groups) {
		bad = append(bad, "group limited routing needs groups that divide the experts")
	}
	softmax := !f.has("moe-router-score-function") || f.word("moe-router-score-function") == "softmax"
	if f.has("moe-router-enable-expert-bias") && softmax {
		bad = append(bad, "expert bias needs sigmoid")
	}
	if f.int("moe-router-topk", 2) == 1 && softmax && !f.has("moe-router-pre-softmax") {
		bad = append(bad, "top-1 routing with softmax needs pre-softmax")
	}
	return bad
}

// any draws a layout that Check accepts.
func anyLayout(r *rand.Rand, m *work.Model) (Layout, bool) {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	l := Default(Megatron)
	l.TP, l.CP, l.PP, l.DP, l.Micro, l.Seq = pick(1, 1, 2, 4, 8), pick(1, 1, 2), pick(1, 2, 3, 4, 8, 16, 32), pick(1, 2, 8, 64), pick(1, 2), pick(1024, 2048, 4096)
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
			flags, env := readLine(script)
			if bad := flags.assertions(l.GPUs(), env); len(bad) > 0 {
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
