package plan

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var draw = flag.String("draw", "", "write command lines for Megatron's own parser to `FILE`")

const verdictsPath = "testdata/megatron_verdicts.txt"

// trial is a command line for Megatron: one that is emitted, and changes to it.
type trial struct {
	base    string // model and layout
	changes string // such as +flag value;-flag;@NAME=value
	world   int
	flags   megatronFlags
	env     map[string]string

	accepted bool   // by Megatron
	says     string // what it says
}

// emitted is what Emit writes for a model and a layout, read as argparse would.
func emitted(t testing.TB, base string) trial {
	t.Helper()
	name, text, _ := strings.Cut(base, " ")
	l := layout(t, text, Megatron)
	script, err := Emit("megatron", named(t, name), l)
	if err != nil {
		t.Fatal(base, err)
	}
	x := trial{base: base, world: l.GPUs()}
	x.flags, x.env = readFlags(script)
	return x
}

// change applies changes to a trial.
func (x trial) change(changes string) trial {
	x.flags, x.env, x.changes = maps.Clone(x.flags), maps.Clone(x.env), changes
	for _, c := range strings.Split(changes, ";") {
		words := strings.Fields(c)
		switch {
		case c == "":
		case c[0] == '+':
			x.flags[words[0][1:]] = words[1:]
		case c[0] == '-':
			delete(x.flags, words[0][1:])
		case c[0] == '@':
			key, value, _ := strings.Cut(c[1:], "=")
			x.env[key] = value
		}
	}
	return x
}

// changes that a command line may get, legal and illegal ones.
var megatronChanges = []string{
	"+tensor-model-parallel-size 1", "+tensor-model-parallel-size 2", "+tensor-model-parallel-size 3", "+tensor-model-parallel-size 8",
	"+pipeline-model-parallel-size 1", "+pipeline-model-parallel-size 2", "+pipeline-model-parallel-size 3", "+pipeline-model-parallel-size 8",
	"+pipeline-model-parallel-size 16", "+context-parallel-size 2", "+context-parallel-size 4", "+context-parallel-size 3",
	"+expert-model-parallel-size 2", "+expert-model-parallel-size 3", "+expert-model-parallel-size 16", "+expert-tensor-parallel-size 1",
	"+expert-tensor-parallel-size 2", "-expert-tensor-parallel-size", "-pipeline-model-parallel-layout",
	"+num-virtual-stages-per-pipeline-rank 2", "+num-virtual-stages-per-pipeline-rank 3", "+num-layers-per-virtual-pipeline-stage 1",
	"+num-layers-per-virtual-pipeline-stage 2", "+num-layers-per-virtual-pipeline-stage 3", "+account-for-embedding-in-pipeline-split",
	"+account-for-loss-in-pipeline-split", "+account-for-embedding-in-pipeline-split;+account-for-loss-in-pipeline-split",
	"+decoder-first-pipeline-num-layers 3", "+decoder-last-pipeline-num-layers 3",
	"+decoder-first-pipeline-num-layers 3;+decoder-last-pipeline-num-layers 5", "+no-overlap-p2p-communication",
	"+pipeline-model-parallel-layout Et*4|t*4|L", "+pipeline-model-parallel-layout E|t*3|t*2|",
	"+num-layers 30", "+num-layers 33", "+num-layers 61",
	"+recompute-granularity full", "+recompute-granularity full;+recompute-method uniform;+recompute-num-layers 1",
	"+recompute-granularity selective;+recompute-modules mlp_act", "+recompute-granularity selective;+recompute-modules core_attn",
	"+recompute-granularity selective;+recompute-modules moe", "+recompute-granularity selective;+recompute-modules moe_act",
	"+recompute-granularity selective;+recompute-modules layernorm", "+recompute-granularity selective;+recompute-modules mla_up_proj",
	"+recompute-granularity selective;+recompute-modules mlp layernorm", "+recompute-granularity selective;+recompute-modules shared_experts",
	"+recompute-granularity selective;+recompute-method uniform", "-sequence-parallel", "-disable-bias-linear", "-use-distributed-optimizer",
	"-overlap-grad-reduce", "+tp-comm-overlap", "-moe-grouped-gemm", "+moe-token-dispatcher-type allgather", "+moe-token-dispatcher-type flex",
	"+overlap-moe-expert-parallel-comm", "+delay-wgrad-compute", "+overlap-moe-expert-parallel-comm;+delay-wgrad-compute",
	"+moe-shared-expert-overlap", "+moe-router-num-groups 3;+moe-router-group-topk 2", "+moe-router-num-groups 4;+moe-router-group-topk 8",
	"+moe-router-num-groups 4", "+moe-router-topk 1", "+moe-router-enable-expert-bias", "+moe-router-score-function sigmoid",
	"+moe-router-score-function softmax", "+moe-router-score-function tanh", "+num-experts 48", "@CUDA_DEVICE_MAX_CONNECTIONS=1",
	"@CUDA_DEVICE_MAX_CONNECTIONS=32", "+micro-batch-size 3", "+global-batch-size 1000", "+global-batch-size 64", "+fp8-format hybrid",
	"+fp8-format hybrid;+fp8-recipe tensorwise", "+fp16", "-bf16", "+seq-length 4098;+max-position-embeddings 8192", "+seq-length 8192",
	"+num-query-groups 3;+group-query-attention", "+num-query-groups 16;+group-query-attention", "+num-attention-heads 36",
	"+mtp-num-layers 1", "+mtp-num-layers 2", "+position-embedding-type learned_absolute", "+group-query-attention",
	"+use-megatron-fsdp", "+use-megatron-fsdp;+ckpt-format fsdp_dtensor;@CUDA_DEVICE_MAX_CONNECTIONS=8",
	"+overlap-param-gather-with-optimizer-step",
}

// megatronBases are the emitted command lines that are changed.
var megatronBases = []string{
	"llama3-8b tp=1,dp=8,micro=1,batch=64,seq=4096",
	"llama3-8b tp=2,pp=4,vpp=4,dp=2,micro=1,batch=64,seq=4096",
	"llama3-70b tp=8,pp=4,dp=2,micro=1,batch=64,seq=4096,recompute=full",
	"llama3-70b tp=4,cp=2,pp=4,vpp=5,dp=2,micro=1,batch=128,seq=8192",
	"llama3.1-405b tp=8,cp=2,pp=16,vpp=8,dp=4,micro=1,batch=128,seq=8192",
	"gpt3-175b tp=8,pp=8,vpp=6,dp=2,micro=1,batch=128,seq=2048,recompute=core_attn",
	"mixtral-8x7b tp=2,pp=4,dp=4,ep=8,etp=1,micro=1,batch=64,seq=4096",
	"mixtral-8x22b tp=2,pp=8,vpp=7,dp=4,ep=8,etp=1,micro=1,batch=64,seq=4096,ep-overlap=on",
	"qwen3-30b-a3b pp=2,vpp=12,dp=8,ep=8,etp=1,micro=1,batch=128,seq=4096",
	"qwen3-30b-a3b dp=16,ep=16,etp=1,micro=1,batch=64,seq=4096,recompute=layernorm+moe_act",
	"qwen3-235b-a22b tp=2,pp=8,vpp=4,dp=16,ep=32,etp=1,micro=1,batch=256,seq=4096",
	"deepseek-v3 tp=2,pp=8,vpp=4,dp=32,ep=64,etp=1,micro=1,batch=2048,seq=4096,first-less=1,last-less=2,recompute=mla_up_proj,ep-overlap=on",
	"deepseek-v3 pp=4,vpp=4,dp=64,ep=64,etp=1,micro=1,batch=2048,seq=4096,last-less=3,recompute=mla_up_proj,dtype=mxfp8",
	"kimi-k2 pp=16,vpp=2,dp=16,ep=16,etp=1,micro=1,batch=512,seq=4096,recompute=mla_up_proj+moe_act",
	"gpt-oss-20b dp=8,ep=8,etp=1,micro=1,batch=64,seq=4096,dispatcher=deepep",
	"qwen3-30b-a3b pp=2,vpp=12,dp=8,ep=8,etp=1,micro=1,batch=128,seq=4096,dtype=mxfp8,dispatcher=hybridep,experts=fused,ep-overlap=on",
}

// trials draws changes for every base.
func trials(t testing.TB) (all []trial) {
	r := rand.New(rand.NewPCG(7, 11))
	for _, base := range megatronBases {
		x := emitted(t, base)
		all = append(all, x.change(""))
		order := r.Perm(len(megatronChanges))
		for _, i := range order[:34] {
			all = append(all, x.change(megatronChanges[i]))
		}
	}
	return all
}

// argv is the command line, with what weft leaves to the user.
func (x trial) argv() (out []string) {
	for _, flag := range slices.Sorted(maps.Keys(x.flags)) {
		out = append(append(out, "--"+flag), x.flags[flag]...)
	}
	return append(out, "--train-iters", "10", "--lr", "1e-4", "--tokenizer-type", "NullTokenizer", "--transformer-impl", "transformer_engine")
}

// TestDrawTrials writes the command lines for a runner of Megatron's own parser.
func TestDrawTrials(t *testing.T) {
	if *draw == "" {
		t.Skip("-draw FILE writes command lines for Megatron's own parser")
	}
	f, err := os.Create(*draw)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, x := range trials(t) {
		line, err := json.Marshal(map[string]any{"name": x.base + "\t" + x.changes, "world": x.world, "argv": x.argv(), "env": x.env})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(f, "%s\n", line)
	}
}

// recordedTrials reads the verdicts.
func recordedTrials(t testing.TB) (bases, all []trial) {
	t.Helper()
	text, err := os.ReadFile(verdictsPath)
	if err != nil {
		t.Fatal(err)
	}
	var base trial
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		c := append(strings.Split(line, "\t"), "", "")
		name, isBase := strings.CutPrefix(c[0], "base ")
		switch {
		case c[0][0] == '#':
		case isBase:
			world, err := strconv.Atoi(c[1])
			if err != nil {
				t.Fatal(line, err)
			}
			base = trial{base: name, world: world, flags: megatronFlags{}, env: map[string]string{}}
			for _, x := range strings.Fields(c[2]) {
				key, value, _ := strings.Cut(x, "=")
				base.env[key] = value
			}
			flag := ""
			for _, w := range strings.Fields(c[3]) {
				if strings.HasPrefix(w, "--") {
					flag = w[2:]
					base.flags[flag] = nil
				} else {
					base.flags[flag] = append(base.flags[flag], w)
				}
			}
			bases = append(bases, base)
		default:
			x := base.change(c[1])
			x.accepted, x.says = c[0] == "ACCEPT", c[2]
			all = append(all, x)
		}
	}
	return bases, all
}

// What Megatron's own parser said of several hundred command lines, the rules here say, too; and what is emitted today is what the parser
// accepted.
func TestRulesAgreeWithMegatron(t *testing.T) {
	bases, all := recordedTrials(t)
	refused := 0
	for _, x := range all {
		bad := megatronRules(x.flags, x.world, x.env)
		refused += b2i(!x.accepted)
		if (len(bad) == 0) != x.accepted {
			t.Errorf("%s, %s: Megatron accepts it: %v (%s); the rules say %q", x.base, x.changes, x.accepted, x.says, bad)
		}
	}
	t.Logf("%d verdicts, %d of them refusals", len(all), refused)
	for _, b := range bases {
		now := emitted(t, b.base)
		if !slices.Equal(now.argv(), b.argv()) || !maps.Equal(now.env, b.env) {
			t.Errorf("%s: what is emitted is not what Megatron's parser saw; record its verdicts again (-draw)\n%s\n%s",
				b.base, now.argv(), b.argv())
		}
	}
}
