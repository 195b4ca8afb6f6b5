package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// megatronFlags is a command line as Megatron's argparse sees it: the values of every flag.
type megatronFlags map[string][]string

func (f megatronFlags) has(flag string) bool { _, ok := f[flag]; return ok }

func (f megatronFlags) word(flag string) string {
	if v := f[flag]; len(v) == 1 {
		return v[0]
	}
	return ""
}

func (f megatronFlags) int(flag string, otherwise int) int {
	if n, err := strconv.Atoi(f.word(flag)); err == nil {
		return n
	}
	return otherwise
}

// readFlags collects the flags of a script that Emit wrote, and what it exports: every array has a flag and its values on a line.
func readFlags(script string) (megatronFlags, map[string]string) {
	flags, env := megatronFlags{}, map[string]string{}
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

// megatronRun is a command line, the GPUs it is started on, and what follows from both.
type megatronRun struct {
	megatronFlags
	env                            map[string]string
	world, tp, pp, cp, ep, etp, dp int
	layers, experts, micro, batch  int
	vpp                            int // chunks of a pipeline rank; 0 without interleaving
	bad                            []string
}

// megatronRules says what Megatron-LM (core 0.18 to 0.20) would refuse a command line for: megatron/training/arguments.py,
// core/transformer/transformer_config.py, and the asserts of the first step. Recorded verdicts of its parser hold it to that.
func megatronRules(f megatronFlags, world int, env map[string]string) []string {
	r := &megatronRun{megatronFlags: f, env: env, world: world}
	r.tp, r.pp, r.cp = f.int("tensor-model-parallel-size", 1), f.int("pipeline-model-parallel-size", 1), f.int("context-parallel-size", 1)
	r.ep, r.etp = f.int("expert-model-parallel-size", 1), f.int("expert-tensor-parallel-size", r.tp)
	r.layers, r.experts = f.int("num-layers", 0), f.int("num-experts", 0)
	r.micro, r.batch = f.int("micro-batch-size", 1), f.int("global-batch-size", 0)
	r.want(world%(r.tp*r.pp*r.cp) == 0, "the world size %d is not divisible by tp x pp x cp = %d", world, r.tp*r.pp*r.cp)
	r.dp = max(world/(r.tp*r.pp*r.cp), 1)
	r.sizes()
	r.stages()
	r.recompute()
	r.moe()
	r.router()
	r.dispatch()
	r.data()
	return r.bad
}

func (r *megatronRun) want(ok bool, format string, args ...any) {
	if !ok {
		r.bad = append(r.bad, fmt.Sprintf(format, args...))
	}
}

// sequence reports whether sequence parallelism is on: Megatron turns it off by itself without tensor parallelism.
func (r *megatronRun) sequence() bool { return r.has("sequence-parallel") && r.tp > 1 }

// sizes are the rules of divisors.
func (r *megatronRun) sizes() {
	r.want(r.world%(r.etp*r.ep*r.pp) == 0, "the world size %d is not divisible by etp x ep x pp = %d", r.world, r.etp*r.ep*r.pp)
	r.want(r.batch%(r.micro*r.dp) == 0, "global batch %d is not divisible by micro-batch %d x dp %d", r.batch, r.micro, r.dp)
	r.want(r.int("num-attention-heads", 0)%r.tp == 0, "heads are not a multiple of tp %d", r.tp)
	latent := r.has("multi-latent-attention")
	if r.has("group-query-attention") {
		groups := r.int("num-query-groups", 1)
		r.want(groups%r.tp == 0 || r.tp%groups == 0, "num-query-groups %d is neither a multiple nor a divisor of tp %d", groups, r.tp)
		r.want(!latent, "group-query-attention excludes multi-latent-attention")
	}
	seq := r.int("seq-length", 0)
	r.want(r.cp == 1 || seq%(2*r.cp) == 0, "seq-length %d is not a multiple of 2 cp = %d", seq, 2*r.cp)
	r.want(r.int("max-position-embeddings", 0) >= seq, "max-position-embeddings is below seq-length %d", seq)
	r.want(!r.has("tp-comm-overlap") || r.sequence(), "tp-comm-overlap needs sequence parallelism")
	r.want(!r.has("bf16") || !r.has("fp16"), "bf16 and fp16 exclude each other")
}

// data are the rules of data parallelism and the environment.
func (r *megatronRun) data() {
	sharded := r.has("use-distributed-optimizer") || r.has("use-megatron-fsdp")
	r.want(!r.has("overlap-param-gather") || sharded, "overlap-param-gather needs a distributed optimizer")
	r.want(!r.has("overlap-param-gather") || r.has("overlap-grad-reduce"), "overlap-param-gather needs overlap-grad-reduce")
	r.want(!r.has("overlap-param-gather-with-optimizer-step"),
		"overlap-param-gather-with-optimizer-step does not go with distributed checkpoints")
	connections := r.env["CUDA_DEVICE_MAX_CONNECTIONS"]
	switch {
	case r.has("use-megatron-fsdp"):
		r.want(connections != "1", "FSDP needs CUDA_DEVICE_MAX_CONNECTIONS above 1 or unset")
		r.want(r.word("ckpt-format") == "fsdp_dtensor", "FSDP needs ckpt-format fsdp_dtensor")
	case (r.tp > 1 || r.cp > 1) && !r.has("overlap-moe-expert-parallel-comm"):
		r.want(connections == "1", "tensor and context parallelism need CUDA_DEVICE_MAX_CONNECTIONS=1")
	}
}

// stages are the rules of how layers are cut: four ways that exclude one another.
func (r *megatronRun) stages() {
	text, named := r.word("pipeline-model-parallel-layout"), r.has("pipeline-model-parallel-layout")
	counted := r.has("account-for-embedding-in-pipeline-split") || r.has("account-for-loss-in-pipeline-split")
	ends := r.has("decoder-first-pipeline-num-layers") || r.has("decoder-last-pipeline-num-layers")
	ways := b2i(named) + b2i(r.has("num-layers-per-virtual-pipeline-stage")) + b2i(r.has("num-virtual-stages-per-pipeline-rank"))
	r.want(ways <= 1,
		"only one of num-layers-per-virtual-pipeline-stage, num-virtual-stages-per-pipeline-rank and pipeline-model-parallel-layout")
	r.want(!named || !counted && !ends, "pipeline-model-parallel-layout excludes the other ways to cut layers")
	r.vpp = r.int("num-virtual-stages-per-pipeline-rank", 0)
	switch {
	case named:
		r.laidOut(text)
	case ends:
		r.ends(counted)
	default:
		r.even(counted)
	}
	if r.vpp > 1 || r.has("num-virtual-stages-per-pipeline-rank") || r.has("num-layers-per-virtual-pipeline-stage") {
		r.interleaved()
	}
}

// even is the cut into stages of the same size, with or without the embedding and the loss counted as layers.
func (r *megatronRun) even(counted bool) {
	units := r.layers + b2i(r.has("account-for-embedding-in-pipeline-split")) + b2i(r.has("account-for-loss-in-pipeline-split"))
	r.want(units%r.pp == 0, "%d layers, with what is counted as one, are not divisible by pp %d", units, r.pp)
	each := units / r.pp
	if n := r.int("num-layers-per-virtual-pipeline-stage", 0); n > 0 {
		r.want(each%n == 0, "%d layers of a stage are not divisible by %d of a virtual stage", each, n)
		r.vpp = each / n
	}
	r.want(r.vpp == 0 || each%r.vpp == 0, "%d layers of a stage are not divisible by %d chunks", each, r.vpp)
}

// ends is the cut with other numbers of layers in the first and the last stage.
func (r *megatronRun) ends(counted bool) {
	first, last := r.int("decoder-first-pipeline-num-layers", 0), r.int("decoder-last-pipeline-num-layers", 0)
	r.want(!counted, "layers of the first and the last stage exclude counting the embedding and the loss")
	r.want(!r.has("num-layers-per-virtual-pipeline-stage"), "layers of the first and the last stage need num-virtual-stages-per-pipeline-rank")
	middle, stages := r.layers-first-last, r.pp-b2i(first > 0)-b2i(last > 0)
	switch {
	case stages <= 0:
		r.want(middle == 0 && stages == 0, "%d layers are left for %d stages in the middle", middle, stages)
		return
	default:
		r.want(middle >= 0 && middle%stages == 0, "%d layers in the middle are not divisible by %d stages", middle, stages)
	}
	if r.vpp > 0 {
		r.want(first%r.vpp == 0 && last%r.vpp == 0 &&
			middle/stages%r.vpp == 0, "the first, the last and the middle stages are not divisible by %d chunks", r.vpp)
	}
}

// laidOut is the cut that the layout spells.
func (r *megatronRun) laidOut(text string) {
	chunks := spellOut(text)
	r.want(len(chunks)%r.pp == 0, "the layout's %d stages are not divisible by pp %d", len(chunks), r.pp)
	r.vpp = len(chunks) / r.pp
	all := strings.Join(chunks, "")
	want := "E" + strings.Repeat("t", r.layers) + strings.Repeat("m", r.int("mtp-num-layers", 0)) + "L"
	r.want(all == want, "the layout has %d decoder and %d MTP layers; want E, %d, %d and L",
		strings.Count(all, "t"), strings.Count(all, "m"), r.layers, r.int("mtp-num-layers", 0))
}

// interleaved are the rules of virtual stages.
func (r *megatronRun) interleaved() {
	least := 1
	if r.has("no-overlap-p2p-communication") {
		least = 2
	}
	r.want(r.pp > least, "interleaving needs pp above %d", least)
	if micros := r.batch / (r.micro * r.dp); r.pp > 1 && r.vpp > 1 {
		r.want(micros >= r.pp, "interleaving needs as many micro-batches as stages: %d of %d", micros, r.pp)
		r.want(micros%r.pp == 0, "%d micro-batches are not a multiple of pp %d", micros, r.pp)
	}
}

// spellOut writes every chunk of a layout out, letter by letter.
func spellOut(text string) (chunks []string) {
	for _, chunk := range strings.Split(text, "|") {
		var b strings.Builder
		for i := 0; i < len(chunk); i++ {
			rest, ok := strings.CutPrefix(chunk[i+1:], "*")
			if !ok {
				b.WriteByte(chunk[i])
				continue
			}
			digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
			n, _ := strconv.Atoi(digits)
			b.WriteString(strings.Repeat(chunk[i:i+1], min(n, 1e5)))
			i += 1 + len(digits)
		}
		chunks = append(chunks, b.String())
	}
	return chunks
}

// recompute are the rules of what is computed again.
func (r *megatronRun) recompute() {
	switch r.word("recompute-granularity") {
	case "full":
		r.want(slices.Contains([]string{"uniform", "block"}, r.word("recompute-method")),
			"full recompute needs recompute-method uniform or block")
		r.want(r.has("recompute-num-layers"), "full recompute needs recompute-num-layers")
	case "selective":
		r.want(!r.has("recompute-method") && !r.has("recompute-num-layers"), "selective recompute takes neither method nor layers")
	default:
		return
	}
	r.modules()
}

// modules are the rules of what is computed again by name.
func (r *megatronRun) modules() {
	delayed := r.has("fp8-format") && (!r.has("fp8-recipe") || r.word("fp8-recipe") == "delayed")
	for _, name := range r.megatronFlags["recompute-modules"] {
		r.want(slices.Contains(megatronModules, name), "there is no recompute module %s", name)
		r.want(name != "moe_act" || r.has("moe-grouped-gemm"), "recompute of moe_act needs moe-grouped-gemm")
		r.want(name != "mla_up_proj" || r.has("multi-latent-attention"), "recompute of mla_up_proj needs multi-latent-attention")
		r.want(name != "moe_act" && name != "layernorm" || !delayed, "recompute of %s does not go with delayed fp8 scaling", name)
		r.want(name != "shared_experts" || !r.has("moe-shared-expert-overlap"), "recompute of shared_experts does not go with their overlap")
	}
}

// moe are the rules of experts.
func (r *megatronRun) moe() {
	r.want(r.ep == 1 || r.experts > 0, "expert model parallelism needs num-experts")
	r.want(r.experts%r.ep == 0, "%d experts are not a multiple of ep %d", r.experts, r.ep)
	r.want(r.experts == 0 || r.etp == 1 || r.has("disable-bias-linear"), "biases of experts need expert-tensor-parallel-size 1")
	r.want(r.int("mtp-num-layers", 0) == 0 || r.word("position-embedding-type") == "rope", "MTP needs rope")
}

// router are the rules of how experts are chosen.
func (r *megatronRun) router() {
	groups, top := r.int("moe-router-num-groups", 0), r.int("moe-router-group-topk", 0)
	if top > 0 {
		r.want(groups > 0 && r.experts > 0 && r.experts%max(groups, 1) == 0, "%d experts are not divisible by %d groups", r.experts, groups)
		r.want(top <= groups, "group-topk %d is above %d groups", top, groups)
	}
	score := r.word("moe-router-score-function")
	r.want(slices.Contains([]string{"", "softmax", "sigmoid", "sqrtsoftplus"}, score), "there is no moe-router-score-function %s", score)
	softmax := score == "" || score == "softmax"
	r.want(!r.has("moe-router-enable-expert-bias") || !softmax, "expert bias needs sigmoid or sqrtsoftplus")
	r.want(r.int("moe-router-topk", 2) != 1 || !softmax || r.has("moe-router-pre-softmax"), "top-1 with softmax needs moe-router-pre-softmax")
}

// dispatch are the rules of how tokens travel.
func (r *megatronRun) dispatch() {
	kind, overlap := r.word("moe-token-dispatcher-type"), r.has("overlap-moe-expert-parallel-comm")
	sends := kind == "alltoall" || kind == "flex"
	r.want(!r.has("moe-shared-expert-overlap") || sends || r.experts == 0, "overlap of shared experts needs alltoall or flex")
	r.want(!r.has("delay-wgrad-compute") || overlap, "delay-wgrad-compute needs overlap-moe-expert-parallel-comm")
	if !overlap {
		return
	}
	r.want(r.ep > 1, "overlap-moe-expert-parallel-comm needs ep above 1")
	r.want(sends, "overlap-moe-expert-parallel-comm needs alltoall or flex")
	r.want(r.has("bf16") || r.has("fp16"), "overlap-moe-expert-parallel-comm needs bf16 or fp16")
	r.want(r.pp == 1 || r.vpp > 1, "overlap-moe-expert-parallel-comm needs virtual stages where pp is above 1")
	r.want(r.word("recompute-granularity") != "full" &&
		!slices.Contains(r.megatronFlags["recompute-modules"], "moe"), "overlap-moe-expert-parallel-comm does not go with recompute of experts")
	r.want(!r.has("moe-shared-expert-overlap"), "overlap-moe-expert-parallel-comm excludes that of shared experts")
	r.want(r.int("mtp-num-layers", 0) <= 1, "overlap-moe-expert-parallel-comm takes one MTP layer at most")
}

// Refusals says what Megatron-LM would refuse a script for on a number of GPUs; nil for other dialects. The environment is taken to be
// right.
func (c *Config) Refusals(gpus int) []string {
	if c.args == nil || gpus < 1 || c.Framework != Megatron {
		return nil
	}
	flags := megatronFlags{}
	for name, value := range c.args {
		switch {
		case value == "true":
			flags[name] = nil
		case truthy(value) || value != "false":
			flags[name] = strings.Fields(strings.Trim(value, "\"'"))
		}
	}
	env := map[string]string{"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
	if flags.has("use-megatron-fsdp") {
		env = nil
	}
	return megatronRules(flags, gpus, env)
}
