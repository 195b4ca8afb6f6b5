package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// megatronScript is a shell script with Megatron's arguments, in the making.
type megatronScript struct {
	strings.Builder
	m *work.Model
	l Layout
}

// emitMegatron writes a script that Megatron-LM's parser accepts (core 0.18 to 0.20), or says what it has no words for.
func emitMegatron(m *work.Model, l Layout) (string, error) {
	if err := megatronRefuses(m, l); err != nil {
		return "", err
	}
	s := &megatronScript{m: m, l: l}
	fmt.Fprintf(s, "#!/bin/bash\n# %s on %d GPUs: %s\n\nGPUS_PER_NODE=8\nNNODES=%d\nexport CUDA_DEVICE_MAX_CONNECTIONS=%d\n\nMODEL_ARGS=(\n",
		m.Name, l.GPUs(), l, max(l.GPUs()/8, 1), s.connections())
	s.shape()
	s.attention()
	if m.Experts > 0 {
		s.section("MOE_ARGS")
		s.experts()
	}
	s.section("PARALLEL_ARGS")
	s.parallel()
	s.section("TRAINING_ARGS")
	s.training()
	s.WriteString(")\n\ntorchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\\n    \"${MODEL_ARGS[@]}\" ")
	if m.Experts > 0 {
		s.WriteString("\"${MOE_ARGS[@]}\" ")
	}
	s.WriteString("\"${PARALLEL_ARGS[@]}\" \"${TRAINING_ARGS[@]}\" \"$@\"\n")
	if flags, env := readFlags(s.String()); len(megatronRules(flags, l.GPUs(), env)) > 0 {
		return "", fmt.Errorf("megatron does not accept layout %s: %s", l, strings.Join(megatronRules(flags, l.GPUs(), env), "; "))
	}
	return s.String(), nil
}

// megatronModules are what Megatron computes again by itself.
var megatronModules = []string{"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"}

// megatronRefuses says what Megatron does not accept of a layout.
func megatronRefuses(m *work.Model, l Layout) error {
	zb := l.PP > 1 && l.Schedule != schedule.OneFOneB && l.Schedule != schedule.Interleaved
	if err := cannot("megatron", l, map[string]bool{"schedule": zb, "shard": l.Shard > 0 &&
		l.ZeRO != 1, "phase": l.Phase != "pretrain", "offload": l.Offload,
		"fp8-attention": l.FP8Scores, "document": l.Document > 0}); err != nil {
		return err
	}
	no := func(format string, args ...any) error {
		return fmt.Errorf("megatron does not accept layout %s: "+format, append([]any{l}, args...)...)
	}
	for _, name := range l.Recompute.Modules {
		switch {
		case !slices.Contains(megatronModules, name):
			return no("it has no recompute module %s; known: %s", name, strings.Join(megatronModules, ", "))
		case (name == "moe" || name == "moe_act") && m.Experts == 0, name == "shared_experts" && m.SharedFFN == 0:
			return no("recompute of %s needs experts that %s does not have", name, m.Name)
		case name == "moe_act" && l.Looped:
			return no("recompute of moe_act needs grouped products (experts=grouped)")
		case name == "mla_up_proj" && m.MLA == nil:
			return no("recompute of mla_up_proj needs latent attention, which %s does not have", m.Name)
		}
	}
	switch {
	case m.CNN != nil || m.BothWays:
		return fmt.Errorf("pretrain_gpt.py trains decoders; %s is not one", m.Name)
	case l.Blocking && l.VPP > 1 && l.PP == 2:
		return no("p2p=blocking with vpp needs pp above 2")
	case m.Experts > 0 && m.Bias && l.ETP > 1:
		return no("experts with biases need etp 1")
	case m.Experts > 0 && l.TP > 1 && !l.Sequence:
		return no("experts with tp above 1 need sp=on")
	case m.Positions > 0 && m.Positions < l.Seq:
		return no("%s has %d positions, and sequences have %d tokens", m.Name, m.Positions, l.Seq)
	case m.MTP > 0 && m.Positions > 0:
		return no("layers that predict further tokens need rotary positions")
	case l.EPOverlap && (l.Dtype == "fp32" || m.MTP > 1):
		return no("ep-overlap needs bf16 or fp16, and one layer that predicts further tokens at most")
	}
	return nil
}

// connections is CUDA_DEVICE_MAX_CONNECTIONS: 1 keeps kernels in the order that tensor and context parallelism need before
// Blackwell; Megatron-FSDP refuses 1, and expert traffic beside compute wants many.
func (s *megatronScript) connections() int {
	switch {
	case s.l.ZeRO >= 2:
		return 8
	case s.l.EPOverlap:
		return 32
	}
	return 1
}

func (s *megatronScript) section(name string) { fmt.Fprintf(s, ")\n\n%s=(\n", name) }

// put writes a flag, with a value unless it is nil.
func (s *megatronScript) put(flag string, value any) {
	if value == nil {
		fmt.Fprintf(s, "    --%s\n", flag)
	} else {
		fmt.Fprintf(s, "    --%s %v\n", flag, value)
	}
}

func (s *megatronScript) on(ok bool, flag string) {
	if ok {
		s.put(flag, nil)
	}
}

// some writes a flag whose value is not zero.
func (s *megatronScript) some(flag string, value int) {
	if value > 0 {
		s.put(flag, value)
	}
}

// shape writes what every model has.
func (s *megatronScript) shape() {
	m := s.m
	s.put("num-layers", m.Layers)
	s.put("hidden-size", m.Hidden)
	s.put("ffn-hidden-size", m.FFN)
	s.on(m.Gated && m.ClampGLU == 0, "swiglu")
	if m.ClampGLU > 0 {
		s.put("quick-geglu", nil)
		s.put("glu-linear-offset", "1.0")
		s.put("activation-func-clamp-value", m.ClampGLU)
	}
	if m.Sinks {
		s.put("softmax-type", "learnable")
	}
	s.on(!m.Tied, "untie-embeddings-and-output-weights")
	s.on(!m.Bias, "disable-bias-linear")
	s.on(m.QKVBias, "add-qkv-bias")
	s.on(m.QKNorm, "qk-layernorm")
	if !m.LayerNorm {
		s.put("normalization", "RMSNorm")
	}
	if m.Positions > 0 {
		s.put("max-position-embeddings", m.Positions)
	} else {
		s.put("position-embedding-type", "rope")
		s.some("rotary-base", m.RoPEBase)
		s.put("max-position-embeddings", s.l.Seq)
	}
	if !s.l.Dropout { // by itself Megatron drops a tenth
		s.put("attention-dropout", 0)
		s.put("hidden-dropout", 0)
	}
	s.put("vocab-size", m.Vocab)
	s.put("seq-length", s.l.Seq)
	s.some("mtp-num-layers", m.MTP)
}

func (s *megatronScript) attention() {
	m := s.m
	s.put("num-attention-heads", m.Heads)
	s.put("kv-channels", m.HeadDim)
	if m.KVHeads != m.Heads && m.MLA == nil {
		s.put("group-query-attention", nil)
		s.put("num-query-groups", m.KVHeads)
	}
	if m.Windowed > 0 {
		s.put("window-size", fmt.Sprintf("%d,0", m.Window))
		if full := m.Layers - m.Windowed; full > 0 && m.Layers%full == 0 {
			s.put("window-attn-skip-freq", m.Layers/full)
		}
	}
	if a := m.MLA; a != nil {
		s.put("multi-latent-attention", nil)
		s.some("q-lora-rank", a.QRank)
		s.put("kv-lora-rank", a.KVRank)
		s.put("qk-head-dim", a.NoPE)
		s.put("qk-pos-emb-head-dim", a.RoPE)
		s.put("v-head-dim", a.V)
	}
}

func (s *megatronScript) experts() {
	m := s.m
	s.put("num-experts", m.Experts)
	s.put("moe-router-topk", m.TopK)
	if m.TopGroups > 0 {
		s.put("moe-router-num-groups", m.Groups)
		s.put("moe-router-group-topk", m.TopGroups)
	}
	if m.Router != "" {
		s.put("moe-router-score-function", m.Router)
	}
	s.on(m.Router == "" && m.TopK == 1, "moe-router-pre-softmax")
	s.on(m.RouterBias, "moe-router-enable-expert-bias")
	if m.RouterScale > 0 {
		s.put("moe-router-topk-scaling-factor", m.RouterScale)
	}
	s.put("moe-ffn-hidden-size", m.ExpertFFN)
	s.some("moe-shared-expert-intermediate-size", m.SharedFFN)
	if m.DenseFirst > 0 {
		s.put("moe-layer-freq", fmt.Sprintf("'([0]*%d+[1]*%d)'", m.DenseFirst, m.Layers-m.DenseFirst))
	} else if m.MoEEvery > 1 {
		s.put("moe-layer-freq", m.MoEEvery)
	}
	s.on(!s.l.Looped, "moe-grouped-gemm")
	s.on(s.l.Fused, "use-transformer-engine-op-fuser")
	if s.l.copiesOnce() {
		s.put("moe-token-dispatcher-type", "flex")
		s.put("moe-flex-dispatcher-backend", s.l.Sender)
	} else {
		s.put("moe-token-dispatcher-type", "alltoall")
	}
	s.on(s.l.EPOverlap, "overlap-moe-expert-parallel-comm")
}

func (s *megatronScript) parallel() {
	l := s.l
	s.put("tensor-model-parallel-size", l.TP)
	s.put("pipeline-model-parallel-size", l.PP)
	s.put("context-parallel-size", l.CP)
	s.stages()
	if s.m.Experts > 0 {
		s.put("expert-model-parallel-size", l.EP)
		s.put("expert-tensor-parallel-size", l.ETP)
	}
	s.on(l.Sequence && l.TP > 1, "sequence-parallel")
	switch l.Context {
	case "ulysses":
		s.put("cp-comm-type", "a2a")
	case "gather":
		s.put("cp-comm-type", "all_gather")
	}
	switch l.ZeRO {
	case 1:
		s.put("use-distributed-optimizer", nil)
		if l.Shard > 0 {
			s.put("num-distributed-optimizer-instances", l.DP*l.CP/l.Shard)
		}
	case 2, 3:
		s.put("use-megatron-fsdp", nil)
		s.put("data-parallel-sharding-strategy", map[int]string{2: "optim_grads", 3: "optim_grads_params"}[l.ZeRO])
		s.put("ckpt-format", "fsdp_dtensor")
	}
	s.on(l.Blocking, "no-overlap-p2p-communication")
	if l.Overlap {
		s.on(l.DPOverlap, "overlap-grad-reduce")
		s.on(l.DPOverlap && l.ZeRO > 0, "overlap-param-gather")
		s.on(l.TPOverlap && l.TP > 1 && l.Sequence, "tp-comm-overlap")
	}
}

// stages writes how layers are cut. Megatron has four ways and takes one: as many layers in every chunk; the embedding and the loss counted
// as a layer each; and a string with every chunk, which also says where layers that predict further tokens go.
func (s *megatronScript) stages() {
	l, layers := s.l, s.m.Layers
	n := l.PP * l.VPP
	if n == 1 {
		return
	}
	counted := l.FirstLess+l.LastLess == 0 || l.FirstLess <= 1 && l.LastLess <= 1 && s.m.MTP == 0
	if counted && (layers+l.FirstLess+l.LastLess)%n == 0 {
		if l.VPP > 1 {
			s.put("num-virtual-stages-per-pipeline-rank", l.VPP)
		}
		s.on(l.FirstLess == 1, "account-for-embedding-in-pipeline-split")
		s.on(l.LastLess == 1, "account-for-loss-in-pipeline-split")
		return
	}
	var chunks []string
	for i, count := range split(layers, n, l.FirstLess, l.LastLess) {
		text := ""
		if count == 1 {
			text = "t"
		} else if count > 1 {
			text = fmt.Sprintf("t*%d", count)
		}
		if i == 0 {
			text = "E" + text
		}
		if i == n-1 {
			text += strings.Repeat("m", s.m.MTP) + "L"
		}
		chunks = append(chunks, text)
	}
	s.put("pipeline-model-parallel-layout", "\""+strings.Join(chunks, "|")+"\"")
}

func (s *megatronScript) training() {
	l := s.l
	s.put("micro-batch-size", l.Micro)
	s.put("global-batch-size", l.Batch)
	switch l.Dtype {
	case "fp16":
		s.put("fp16", nil)
		s.on(l.Grad == "fp32", "accumulate-allreduce-grads-in-fp32")
	case "fp32":
	default:
		s.put("bf16", nil)
		s.on(l.Grad == "bf16", "grad-reduce-in-bf16")
	}
	switch l.Dtype {
	case "fp8", "mxfp8", "fp8block": // delayed scaling, the default, excludes recompute of norms and activations
		s.put("fp8-format", map[string]string{"fp8": "hybrid", "mxfp8": "e4m3", "fp8block": "e4m3"}[l.Dtype])
		s.put("fp8-recipe", map[string]string{"fp8": "tensorwise", "mxfp8": "mxfp8", "fp8block": "blockwise"}[l.Dtype])
	case "nvfp4":
		s.put("fp4-format", "e2m1")
	}
	switch {
	case l.Recompute.Full:
		s.put("recompute-granularity", "full")
		s.put("recompute-method", "uniform")
		s.put("recompute-num-layers", 1)
	case len(l.Recompute.Modules) > 0:
		s.put("recompute-granularity", "selective")
		s.put("recompute-modules", strings.Join(l.Recompute.Modules, " "))
	}
	if !l.Flash {
		s.put("attention-backend", "unfused")
	}
}

// plainSplit is the least that the ends are relieved of for the same split.
func (l Layout) plainSplit(layers int) (first, last int) {
	want := split(layers, l.PP*l.VPP, l.FirstLess, l.LastLess)
	first, last, _ = splitOf(want)
	return first, last
}

// splitOf finds what relieves the ends of a split, and whether anything does.
func splitOf(counts []int) (first, last int, ok bool) {
	layers, n := 0, len(counts)
	for _, c := range counts {
		layers += c
	}
	if n < 2 {
		return 0, 0, true
	}
	limit := layers
	if n > 2 {
		limit = min(limit, (layers+1)/(n-2)+2)
	}
	for sum := 0; sum <= 2*limit; sum++ {
		for last := 0; last <= min(sum, limit); last++ {
			if sum-last <= limit && slices.Equal(split(layers, n, sum-last, last), counts) {
				return sum - last, last, true
			}
		}
	}
	return 0, 0, false
}
