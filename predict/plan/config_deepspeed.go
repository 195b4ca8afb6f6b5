package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/model/work"
)

// placeholder is a word in capitals where a value belongs, which a script replaces before DeepSpeed reads the file.
var placeholder = regexp.MustCompile(`:\s*([A-Z][A-Z0-9_]{2,})\b`)

var deepspeedKeys = []string{"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
	"bf16", "fp16", "fp8", "communication_data_type", "data_types", "gradient_clipping", "optimizer",
	"scheduler", "pipeline", "tensor_parallel", "sequence_parallel_size", "activation_checkpointing", "zero_allow_untested_optimizer",
	"wall_clock_breakdown", "steps_per_print", "zero_force_ds_cpu_optimizer", "aio", "amp", "prescale_gradients", "flops_profiler"}

func readDeepSpeed(name string, data []byte) (*Config, error) {
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("%s: not JSON: %w", name, err)
	}
	c := newConfig("deepspeed", DeepSpeed)
	err := c.deepspeed(m)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// deepspeed takes DeepSpeed's keys from a table.
func (c *Config) deepspeed(m map[string]any) error {
	if err := c.isDeepSpeed(m); err != nil {
		return err
	}
	for _, k := range []struct{ to, key string }{{"batch", "train_batch_size"}, {"micro", "train_micro_batch_size_per_gpu"},
		{"accumulation", "gradient_accumulation_steps"}, {"cp", "sequence_parallel_size"}} {
		if err := c.set(k.to, m, k.key); err != nil {
			return err
		}
	}
	if c.Values["cp"] > 1 {
		c.Context = "ulysses"
	}
	if b, ok := m["zero_optimization"].(bool); ok { // the oldest spelling
		c.Values["zero"] = b2i(b)
	}
	z := table(m, "zero_optimization")
	if err := c.zeroStage(z); err != nil {
		return err
	}
	c.zeroDetails(z)
	if err := c.precision(m); err != nil {
		return err
	}
	tp := table(m, "tensor_parallel")
	for _, k := range []string{"autotp_size", "tp_size"} {
		if err := c.set("tp", tp, k); err != nil {
			return err
		}
	}
	if err := c.set("pp", table(m, "pipeline"), "stages"); err != nil {
		return err
	}
	if a, ok := m["activation_checkpointing"].(map[string]any); ok && c.Dialect == "deepspeed" {
		if n, ok := number(a["number_checkpoints"]); ok && n > 0 || truthy(a["partition_activations"]) || truthy(a["cpu_checkpointing"]) {
			c.Recompute = &work.Recompute{Full: true}
		}
	}
	return nil
}

// isDeepSpeed refuses a file of DeepSpeed's own that has keys that are nearly right, or none at all.
func (c *Config) isDeepSpeed(m map[string]any) error {
	if c.Dialect != "deepspeed" {
		return nil
	}
	if err := misspelt(m, deepspeedKeys); err != nil {
		return err
	}
	if !slices.ContainsFunc(deepspeedKeys, func(k string) bool { _, ok := m[k]; return ok }) {
		return fmt.Errorf("no key of DeepSpeed is in it")
	}
	return nil
}

// zeroStage is which state ZeRO shares, and whether its traffic overlaps.
func (c *Config) zeroStage(z map[string]any) error {
	if err := only("DeepSpeed", z, zeroKeys); err != nil {
		return fmt.Errorf("zero_optimization: %w", err)
	}
	if err := c.set("zero", z, "stage"); err != nil {
		return fmt.Errorf("zero_optimization: %w", err)
	}
	stage, said := c.Values["zero"]
	if c.Dialect == "deepspeed" {
		c.Values["zero"] = stage
	}
	if stage < 0 || stage > 3 {
		return fmt.Errorf("zero_optimization.stage is %d; want 0 to 3", stage)
	}
	on := stage == 3
	if v, ok := z["overlap_comm"]; ok && v != "auto" {
		on, said = truthy(v), true
	}
	if said {
		c.Overlap = &on
	}
	return nil
}

// zeroDetails are where ZeRO keeps state, among how many ranks, and what of it is not modelled.
func (c *Config) zeroDetails(z map[string]any) {
	c.offload(z)
	for _, old := range []string{"stage3_gather_fp16_weights_on_model_save", "cpu_offload_params"} {
		if _, ok := z[old]; ok {
			c.find("%s is an old spelling", old)
		}
	}
	for _, k := range []string{"zero_hpz_partition_size", "mics_shard_size"} {
		if n, ok := number(z[k]); ok && n > 1 {
			c.Values["shard"] = n
		}
	}
	for _, k := range []string{"zero_quantized_weights", "zero_quantized_gradients"} {
		if truthy(z[k]) {
			c.find("%s halves bytes on the wire; counted in full", k)
		}
	}
	if n, ok := number(z["reduce_bucket_size"]); ok && n > 1e9 {
		c.find("reduce_bucket_size is %d elements, not bytes: about %.0f GB while gradients are reduced", n, 4.5*float64(n)/1e9)
	}
}

// offload is which state lives in host memory or on disks.
func (c *Config) offload(z map[string]any) {
	for _, k := range []string{"offload_optimizer", "offload_param"} {
		if d, _ := table(z, k)["device"].(string); d != "" && d != "none" {
			c.Offload = true
			c.find("%s to %s: times of host memory and disks are rough", k, d)
		}
	}
	if truthy(z["cpu_offload"]) {
		c.Offload = true
		c.find("cpu_offload is an old spelling of offload_optimizer")
	}
}

// precision is which types DeepSpeed computes and sums in.
func (c *Config) precision(m map[string]any) error {
	enabled := func(key string) (on, said bool) {
		t, ok := m[key].(map[string]any)
		if s, _ := t["enabled"].(string); !ok || s == "auto" {
			return false, false
		}
		return truthy(t["enabled"]), true
	}
	bf, bfSaid := enabled("bf16")
	if on, said := enabled("bfloat16"); said {
		bf, bfSaid = on, said
	}
	fp, fpSaid := enabled("fp16")
	if bf && fp {
		return fmt.Errorf("bf16 and fp16 are both enabled; DeepSpeed takes one")
	}
	for _, t := range []struct {
		name string
		on   bool
	}{{"fp32", bfSaid && fpSaid}, {"fp16", fp}, {"bf16", bf}} {
		if t.on {
			c.Dtype = t.name
		}
	}
	if g, _ := table(m, "data_types")["grad_accum_dtype"].(string); g == "fp32" {
		c.Grad = "fp32"
	}
	return nil
}

// neoxKeys are what a plan takes from gpt-neox, and what is spelt nearly alike.
var neoxKeys = []string{"pipe_parallel_size", "model_parallel_size", "num_layers", "hidden_size", "num_attention_heads", "num_kv_heads",
	"seq_length", "max_position_embeddings", "intermediate_size", "expansion_factor", "mlp_type",
	"activation", "norm", "pos_emb", "no_weight_tying", "attention_config", "checkpoint_activations", "checkpoint_num_layers",
	"global_num_gpus", "moe_num_experts", "moe_top_k", "moe_expert_parallel_size",
	"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization", "sequence_parallel",
	"expert_interval"}

func readNeoX(name string, data []byte) (*Config, error) {
	text := strings.NewReplacer(": True", ": true", ": False", ": false", ":True", ": true", ":False",
		": false").Replace(stripComments(string(data)))
	m, err := decodeYAML(name, []byte(text))
	if err != nil {
		return nil, err
	}
	flat := map[string]any{}
	for k, v := range m {
		flat[strings.ReplaceAll(k, "-", "_")] = v
	}
	c := newConfig("gpt-neox", DeepSpeed)
	if err := misspelt(flat, neoxKeys); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := c.deepspeed(flat); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, k := range []struct{ to, key string }{{"tp", "model_parallel_size"}, {"pp", "pipe_parallel_size"}, {"seq", "seq_length"},
		{"gpus", "global_num_gpus"}} {
		if err := c.set(k.to, flat, k.key); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if c.Values["pp"] == 0 {
		c.Values["pp"] = 1
	}
	if c.Values["tp"] == 0 {
		c.Values["tp"] = 1
	}
	c.GPUs = c.Values["gpus"]
	delete(c.Values, "gpus")
	if v, ok := flat["checkpoint_activations"]; ok {
		c.Recompute = &work.Recompute{Full: truthy(v)}
	}
	off := false
	kinds := fmt.Sprint(flat["attention_config"])
	for _, other := range []string{"mamba", "rwkv", "gmlp"} {
		if strings.Contains(kinds, other) {
			return nil, fmt.Errorf("%s: attention_config has %s layers; only transformers can be planned", name, other)
		}
	}
	if !strings.Contains(kinds, "flash") {
		c.Flash = &off
	}
	n := func(key string) int { v, _ := number(flat[key]); return v }
	if n("num_layers") > 0 && n("hidden_size") > 0 && n("num_attention_heads") > 0 {
		act := fmt.Sprint(flat["activation"])
		mod := &work.Model{Name: strings.TrimSuffix(name, ".yml"), Layers: n("num_layers"), Hidden: n("hidden_size"),
			Heads: n("num_attention_heads"), Gated: act == "swiglu" || act == "geglu", Tied: !truthy(flat["no_weight_tying"]), Vocab: 50432}
		mod.KVHeads = max(n("num_kv_heads"), 0)
		if mod.KVHeads == 0 {
			mod.KVHeads = mod.Heads
		}
		mod.HeadDim = mod.Hidden / mod.Heads
		mod.FFN = n("intermediate_size")
		if f := n("expansion_factor"); mod.FFN == 0 && f > 0 {
			mod.FFN = f * mod.Hidden
		}
		if mod.FFN == 0 {
			mod.FFN = 4 * mod.Hidden
			if mod.Gated && fmt.Sprint(flat["mlp_type"]) == "llama" { // of older releases
				mod.FFN = 8 * mod.Hidden
			}
		}
		if mod.Gated { // three matrices with as many parameters as two of the width that is given, in multiples of 256
			mod.FFN = (mod.FFN*2/3/2 + 255) / 256 * 256
		}
		mod.LayerNorm = fmt.Sprint(flat["norm"]) != "rmsnorm"
		mod.Bias = mod.LayerNorm && !mod.Gated
		if p := fmt.Sprint(flat["pos_emb"]); p == "learned" || p == "<nil>" {
			mod.Positions = max(n("max_position_embeddings"), 0)
		}
		if e := n("moe_num_experts"); e > 1 {
			mod.Experts, mod.TopK, mod.ExpertFFN = e, max(n("moe_top_k"), 1), mod.FFN
		}
		c.find("the vocabulary is the tokenizer's and not in the file: 50,432 is taken, GPT-NeoX's own; a model file says otherwise")
		if err := mod.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c.Model = mod
	}
	return c, nil
}
