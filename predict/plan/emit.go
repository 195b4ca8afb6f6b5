package plan

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Emit writes a layout in the words of a framework, and reads it back: what does not come back equal, the dialect has
// no words for, and that is an error.
func Emit(dialect string, m *work.Model, l Layout) (string, error) {
	var text string
	var err error
	l.Imbalance = 0 // is of the data, and no framework has words for it
	l.FirstLess, l.LastLess = l.plainSplit(m.Layers)
	g := Given{Seq: l.Seq, Dtype: l.Dtype} // what the dialect leaves to the training script
	switch dialect {
	case "deepspeed":
		text, err = emitDeepSpeed(m, l)
	case "megatron":
		text, err = emitMegatron(m, l)
		g = Given{}
	case "torchtitan":
		text, err = emitTorchtitan(m, l)
		g = Given{}
	case "accelerate":
		text, err = emitAccelerate(l)
		g.Batch, g.Micro = l.Batch, l.Micro
	default:
		return "", fmt.Errorf("unknown framework %q; known: deepspeed, megatron, torchtitan, accelerate", dialect)
	}
	if err != nil {
		return "", err
	}
	c, err := ReadConfig(dialect, []byte(text))
	if err != nil {
		return "", err
	}
	if x := c.Model; x != nil && !sameModel(dialect, x, m, l.Seq) {
		return "", fmt.Errorf("%s files have no words for %s: what is written has %.6g parameters and not %.6g, "+
			"or other windows, positions or routing", dialect, m.Name, x.Params().Total, m.Params().Total)
	}
	back, err := c.Layout(m, l.GPUs(), g)
	if err != nil {
		return "", err
	}
	if differ := l.differ(back); len(differ) > 0 {
		return "", cannot(dialect, l, differ)
	}
	return text, nil
}

// sameModel reports whether a model that was read back is the one that was written. Only Megatron's arguments have words for routing, and
// for the base of rotary positions.
func sameModel(dialect string, x, m *work.Model, seq int) bool {
	a, b := x.Params(), m.Params()
	if a.Total != b.Total || a.Active != b.Active || x.KVBytesPerToken(2) != m.KVBytesPerToken(2) {
		return false
	}
	if dialect == "megatron" && (x.Routing() != m.Routing() || m.RoPEBase > 0 && x.RoPEBase != m.RoPEBase) {
		return false
	}
	return x.TrainFLOPs(seq, work.Causal, 0) == m.TrainFLOPs(seq, work.Causal, 0)
}

// differ names the keys in which two layouts are written differently.
func (l Layout) differ(other Layout) map[string]bool {
	split := func(l Layout) map[string]string {
		out := map[string]string{}
		for _, word := range strings.Split(l.String(), ",") {
			k, v, _ := strings.Cut(word, "=")
			out[k] = v
		}
		return out
	}
	a, b := split(l), split(other)
	out := map[string]bool{}
	for _, k := range keys() {
		if a[k] != b[k] {
			out[k] = true
		}
	}
	return out
}

// cannot lists what a dialect has no words for.
func cannot(dialect string, l Layout, rules map[string]bool) error {
	var bad []string
	for _, k := range keys() {
		if rules[k] {
			bad = append(bad, k)
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("%s files have no words for %s of layout %s; search with --framework %s", dialect, strings.Join(bad, ", "), l, dialect)
	}
	return nil
}

func emitDeepSpeed(m *work.Model, l Layout) (string, error) {
	if err := cannot("deepspeed", l, map[string]bool{"vpp": l.VPP > 1, "ep": l.EP > 1, "sp": l.Sequence && l.TP > 1, "schedule": l.PP > 1 &&
		l.Schedule != schedule.OneFOneB,
		"recompute": len(l.Recompute.Modules) > 0, "dtype": l.Dtype != "bf16" && l.Dtype != "fp16" && l.Dtype != "fp32", "cp-kind": l.CP > 1 &&
			l.Context != "ulysses", "phase": l.Phase != "pretrain", "first-less": l.FirstLess > 0, "last-less": l.LastLess > 0}); err != nil {
		return "", err
	}
	zero := map[string]any{"stage": l.ZeRO, "overlap_comm": l.Overlap, "contiguous_gradients": true, "reduce_bucket_size": 500000000,
		"allgather_bucket_size": 500000000}
	if l.Offload {
		zero["offload_optimizer"] = map[string]any{"device": "cpu", "pin_memory": true}
	}
	if l.Shard > 0 {
		zero["mics_shard_size"] = l.Shard
	}
	d := map[string]any{"train_batch_size": l.Batch, "train_micro_batch_size_per_gpu": l.Micro,
		"gradient_accumulation_steps": l.MicroBatches(), "zero_optimization": zero, "gradient_clipping": 1.0,
		"bf16": map[string]any{"enabled": l.Dtype == "bf16"}, "fp16": map[string]any{"enabled": l.Dtype == "fp16"}}
	if l.Grad == "fp32" {
		d["data_types"] = map[string]any{"grad_accum_dtype": "fp32"}
	}
	if l.TP > 1 {
		d["tensor_parallel"] = map[string]any{"autotp_size": l.TP}
	}
	if l.PP > 1 {
		d["pipeline"] = map[string]any{"stages": l.PP}
	}
	if l.CP > 1 {
		d["sequence_parallel_size"] = l.CP
	}
	if l.Recompute.Full {
		d["activation_checkpointing"] = map[string]any{"number_checkpoints": m.Layers}
	}
	b, err := json.MarshalIndent(d, "", "  ")
	return string(b) + "\n", err
}

func emitTorchtitan(m *work.Model, l Layout) (string, error) {
	name, flavour := "", ""
	for k, v := range flavours {
		if v == m.Name {
			name, flavour, _ = strings.Cut(k, "/")
		}
	}
	if name == "" {
		return "", fmt.Errorf("torchtitan has no flavour for %s", m.Name)
	}
	if err := cannot("torchtitan", l, map[string]bool{"zero": l.ZeRO < 2, "offload": l.Offload, "recompute": len(l.Recompute.Modules) > 0 &&
		l.Recompute.String() != "op", "sp": !l.Sequence && l.TP > 1,
		"dtype": l.Dtype != "bf16" && l.Dtype != "fp8" && l.Dtype != "mxfp8" &&
			l.Dtype != "fp32", "phase": l.Phase != "pretrain", "micro": l.PP == 1 &&
			l.Batch%l.DP != 0, "first-less": l.FirstLess > 0, "last-less": l.LastLess > 0,
		"dispatcher": l.Sender == "hybridep"}); err != nil {
		return "", err
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# %s on %d GPUs: %s", m.Name, l.GPUs(), l)
	p("[model]\nname = %q\nflavor = %q", name, strings.ToUpper(flavour))
	switch l.Dtype {
	case "fp8":
		p("converters = [\"float8\"]")
	case "mxfp8":
		p("converters = [\"mx\"]")
	}
	local := l.Micro
	if l.PP > 1 {
		local = l.Batch / l.DP
	}
	p("\n[training]\nlocal_batch_size = %d\nglobal_batch_size = %d\nseq_len = %d", local, l.Batch, l.Seq)
	if l.Dtype == "fp32" {
		p("mixed_precision_param = \"float32\"")
	}
	if l.Grad == "bf16" {
		p("mixed_precision_reduce = \"bfloat16\"")
	}
	shard, replicas := l.DP*l.CP, 1
	if l.Shard > 0 {
		replicas = shard / l.Shard
		shard = l.Shard
	}
	p("\n[parallelism]\ndata_parallel_replicate_degree = %d\ndata_parallel_shard_degree = %d\ntensor_parallel_degree = %d\npipeline_parallel_degree = %d\ncontext_parallel_degree = %d",
		replicas, max(shard/l.CP, 1), l.TP, l.PP, l.CP)
	if l.Context != "gather" && l.CP > 1 {
		p("context_parallel_rotate_method = \"alltoall\"")
	}
	if l.TPOverlap && l.TP > 1 {
		p("enable_async_tensor_parallel = true")
	}
	p("fsdp_reshard_after_forward = %q", map[int]string{2: "never", 3: "always"}[l.ZeRO])
	if l.PP > 1 {
		kind := map[schedule.Kind]string{schedule.OneFOneB: "1F1B", schedule.Interleaved: "Interleaved1F1B", schedule.ZBV: "ZBVZeroBubble",
			schedule.GPipe: "GPipe"}[l.Schedule]
		if kind == "" {
			return "", fmt.Errorf("torchtitan has no schedule %s", l.Schedule)
		}
		p("pipeline_parallel_schedule = %q\npipeline_parallel_microbatch_size = %d", kind, l.Micro)
		if l.Schedule == schedule.Interleaved {
			p("pipeline_parallel_layers_per_stage = %d", m.Layers/l.PP/l.VPP)
		}
	}
	if m.Experts > 0 {
		p("expert_parallel_degree = %d\nexpert_tensor_parallel_degree = %d", l.EP, l.ETP)
		if l.copiesOnce() {
			p("expert_parallel_comm_backend = %q", l.Sender)
		}
	}
	mode := "none"
	switch {
	case l.Recompute.Full:
		mode = "full"
	case len(l.Recompute.Modules) > 0:
		mode = "selective\"\nselective_ac_option = \"op"
	}
	p("\n[activation_checkpoint]\nmode = \"%s\"\n\n[compile]\nenable = %t", mode, !l.Eager)
	return b.String(), nil
}

func emitAccelerate(l Layout) (string, error) {
	if err := cannot("accelerate", l, map[string]bool{"pp": l.PP > 1, "ep": l.EP > 1, "recompute": len(l.Recompute.Modules) > 0,
		"zero": l.ZeRO == 1 || l.ZeRO == 0, "dtype": l.Dtype != "bf16" && l.Dtype != "fp16" && l.Dtype != "fp8" && l.Dtype != "fp32",
		"cp-kind": l.CP > 1 && l.Context != "ring"}); err != nil {
		return "", err
	}
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("# %d GPUs: %s", l.GPUs(), l)
	p("# batch and sequence length are the script's: %d sequences of %d tokens a step, %d a rank and micro-batch", l.Batch, l.Seq, l.Micro)
	p("distributed_type: FSDP\nnum_processes: %d\nnum_machines: %d", l.GPUs(), max(l.GPUs()/8, 1))
	p("mixed_precision: '%s'", map[string]string{"fp32": "no"}[l.Dtype]+map[bool]string{true: l.Dtype}[l.Dtype != "fp32"])
	p("# Accelerator(gradient_accumulation_steps=%d) in the script: the file has no key for it", l.MicroBatches())
	p("fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_reshard_after_forward: %t\n  fsdp_activation_checkpointing: %t\n  fsdp_offload_params: %t\n  fsdp_state_dict_type: SHARDED_STATE_DICT",
		l.ZeRO == 3, l.Recompute.Full, l.Offload)
	if l.TP > 1 || l.CP > 1 || l.Shard > 0 {
		shard, replicas := l.DP, 1
		if l.Shard > 0 {
			shard, replicas = l.Shard, l.DP*l.CP/l.Shard
		}
		p("parallelism_config:\n  parallelism_config_dp_replicate_size: %d\n  parallelism_config_dp_shard_size: %d\n  parallelism_config_tp_size: %d\n  parallelism_config_cp_size: %d",
			replicas, shard, l.TP, l.CP)
	}
	return b.String(), nil
}
