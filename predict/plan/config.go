package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/goccy/go-yaml"
	"github.com/weft-fabric/weft/model/spell"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/internal/schedule"
)

// Config is a training configuration of another tool, read as a plan. What it does not say is absent from
// Values: nothing is guessed.
type Config struct {
	Dialect   string // deepspeed, megatron, torchtitan, accelerate, gpt-neox
	Framework Framework
	Model     *work.Model // nil if the file names none
	GPUs      int         // 0 if it does not say

	// Values by name: tp cp pp vpp layers-per-chunk ep etp dp shard replicate micro batch accumulation seq zero.
	// -1 means "what is left", as torchtitan writes it.
	Values    map[string]int
	Recompute *work.Recompute
	Schedule  schedule.Kind
	Chunks    []int // layers of every chunk, where the file names them all
	Dtype     string
	Grad      string
	Context   string
	Sequence  *bool
	Overlap   *bool
	TPOverlap *bool
	DPOverlap *bool
	EPOverlap bool
	Blocking  bool // sends between pipeline stages
	Flash     *bool
	Dropout   bool
	Looped    bool // products of experts one after the other
	Offload   bool
	Phase     string
	Local     int // torchtitan's batch of a data rank
	Findings  []string

	args args // of a Megatron script
}

// Dialects lists what ReadConfig knows.
func Dialects() []string {
	return []string{"deepspeed", "megatron", "torchtitan", "accelerate", "gpt-neox"}
}

func newConfig(dialect string, f Framework) *Config {
	return &Config{Dialect: dialect, Framework: f, Values: map[string]int{}}
}

func (c *Config) find(format string, args ...any) {
	c.Findings = append(c.Findings, fmt.Sprintf(format, args...))
}

// ReadConfig reads a configuration of any dialect; its content says which it is.
func ReadConfig(name string, data []byte) (*Config, error) {
	if len(data) > 1<<20 {
		return nil, fmt.Errorf("%s has %d bytes; configurations are smaller", name, len(data))
	}
	text := string(data)
	trimmed := strings.TrimSpace(stripComments(text))
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch {
	case trimmed == "":
		return nil, fmt.Errorf("%s is empty", name)
	case has("pipe_parallel_size", "model_parallel_size\"", "pipe-parallel-size", "model-parallel-size\":", "make_vocab_size_divisible_by",
		"gpt_j_residual", "pos_emb"):
		return readNeoX(name, data)
	case strings.HasPrefix(trimmed, "{") && json.Valid([]byte(trimmed)):
		return readDeepSpeed(name, []byte(trimmed))
	case strings.HasPrefix(trimmed, "{") && strings.HasSuffix(strings.ToLower(name), ".json"):
		if hole := placeholder.FindStringSubmatch(trimmed); hole != nil {
			return nil, fmt.Errorf("%s is a template: write the value of %s into it", name, hole[1])
		}
		var v any
		return nil, fmt.Errorf("%s: not JSON: %w", name, json.Unmarshal([]byte(trimmed), &v))
	case has("[parallelism]", "[training]") && has("["):
		return readTorchtitan(name, data)
	case has("distributed_type:"):
		return readAccelerate(name, data)
	case has("MODEL_ARGS:") || strings.HasPrefix(trimmed, "--") && strings.Contains(trimmed, ": "):
		return readMegatronYAML(name, data)
	case has("--tensor-model-parallel-size", "--num-layers", "--micro-batch-size", "--global-batch-size", "--hidden-size"):
		return readMegatronShell(name, text)
	case has("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_attention_heads"):
		return readMegatronYAML(name, data)
	}
	return nil, fmt.Errorf("%s is of no known dialect; known: %s", name, strings.Join(Dialects(), ", "))
}

// stripComments takes // and # comments and trailing commas out of JSON as people write it.
func stripComments(s string) string {
	var b strings.Builder
	quoted, escaped := false, false
	for i := 0; i < len(s); i++ {
		ch := s[i]
		switch {
		case quoted:
			if escaped {
				escaped = false
			} else if ch == '\\' {
				escaped = true
			} else if ch == '"' {
				quoted = false
			}
		case ch == '"':
			quoted = true
		case ch == '#' && (i == 0 || s[i-1] == '\n' || s[i-1] == ' ' || s[i-1] == '\t' || s[i-1] == ','), ch == '/' && i+1 < len(s) &&
			s[i+1] == '/':
			for i < len(s) && s[i] != '\n' {
				i++
			}
			b.WriteByte('\n')
			continue
		case ch == '/' && i+1 < len(s) && s[i+1] == '*':
			if end := strings.Index(s[i+2:], "*/"); end >= 0 {
				i += end + 3
				continue
			}
		case ch == ',':
			j := i + 1
			for j < len(s) && (s[j] == ' ' || s[j] == '\n' || s[j] == '\t' || s[j] == '\r') {
				j++
			}
			if j < len(s) && (s[j] == '}' || s[j] == ']') {
				continue
			}
		}
		b.WriteByte(ch)
	}
	return b.String()
}

// number reads a value of JSON, YAML or TOML as a whole number; "auto" and nothing are not numbers.
func number(v any) (int, bool) {
	switch x := v.(type) {
	case int:
		return x, true
	case int64:
		return int(x), true
	case uint64:
		return int(x), true
	case float64:
		return int(x), x == float64(int(x))
	case string:
		x = strings.Trim(strings.TrimSpace(x), `"'`)
		if n, err := strconv.Atoi(strings.ReplaceAll(x, "_", "")); err == nil {
			return n, true
		}
		if f, err := strconv.ParseFloat(x, 64); err == nil && f == float64(int(f)) {
			return int(f), true
		}
	}
	return 0, false
}

func truthy(v any) bool {
	switch x := v.(type) {
	case bool:
		return x
	case string:
		s := strings.ToLower(strings.Trim(x, `"'`))
		return s == "true" || s == "yes" || s == "on" || s == "1"
	case nil:
		return false
	}
	n, ok := number(v)
	return ok && n != 0
}

// set takes a number from a table where it is there; a list of candidates is an error.
func (c *Config) set(to string, m map[string]any, key string) error {
	v, ok := m[key]
	if !ok || v == nil {
		return nil
	}
	if list, ok := v.([]any); ok {
		return fmt.Errorf("%s is a list of %d candidates: a template for tuning, not a plan; choose one", key, len(list))
	}
	if s, ok := v.(string); ok && strings.EqualFold(s, "auto") {
		return nil
	}
	n, ok := number(v)
	if !ok {
		return fmt.Errorf("%s is %v; want a whole number", key, v)
	}
	c.Values[to] = n
	return nil
}

// misspelt finds keys that are nearly one of the known ones.
func misspelt(m map[string]any, known []string) error {
	var names []string
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		if slices.Contains(known, k) {
			continue
		}
		for _, w := range known {
			if len(w) > 4 && spell.Distance(k, w, 3) < 3 {
				return fmt.Errorf("unknown key %q; did you mean %q?", k, w)
			}
		}
	}
	return nil
}

func table(m map[string]any, key string) map[string]any {
	t, _ := m[key].(map[string]any)
	if t == nil {
		t = map[string]any{}
	}
	return t
}

func decodeYAML(name string, data []byte) (map[string]any, error) {
	var m map[string]any
	if err := yaml.NewDecoder(bytes.NewReader(data), yaml.AllowDuplicateMapKey()).Decode(&m); err != nil {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimSpace(yaml.FormatError(err, false, false)))
	}
	return m, nil
}

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

// flavours of torchtitan's models, by name and flavour.
var flavours = map[string]string{"llama3/8b": "llama3-8b", "llama3/70b": "llama3-70b", "llama3/405b": "llama3.1-405b",
	"deepseek_v3/16b": "deepseek-v2-lite", "deepseek_v3/236b": "deepseek-v2", "deepseek_v3/671b": "deepseek-v3",
	"llama4/17bx16e": "llama4-scout", "llama4/17bx128e": "llama4-maverick", "qwen3/0.6b": "qwen3-0.6b", "qwen3/1.7b": "qwen3-1.7b",
	"qwen3/4b": "qwen3-4b", "qwen3/8b": "qwen3-8b", "qwen3/14b": "qwen3-14b", "qwen3/32b": "qwen3-32b",
	"qwen3/30b-a3b": "qwen3-30b-a3b", "gpt_oss/20b": "gpt-oss-20b", "gpt_oss/120b": "gpt-oss-120b"}

func readTorchtitan(name string, data []byte) (*Config, error) {
	var m map[string]any
	if err := toml.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s: not TOML: %w", name, err)
	}
	c := newConfig("torchtitan", FSDP)
	wrong := func(err error) (*Config, error) { return nil, fmt.Errorf("%s: %w", name, err) }
	t, p, a := table(m, "training"), table(m, "parallelism"), table(m, "activation_checkpoint")
	for k, keys := range titanKeys {
		if err := only("torchtitan", table(m, k), keys); err != nil {
			return wrong(fmt.Errorf("[%s]: %w", k, err))
		}
	}
	for _, k := range []struct {
		to   string
		from map[string]any
		key  string
	}{{"local", t, "local_batch_size"}, {"local", t, "batch_size"}, {"batch", t, "global_batch_size"}, {"seq", t, "seq_len"},
		{"shard", p, "data_parallel_shard_degree"}, {"replicate", p, "data_parallel_replicate_degree"},
		{"tp", p, "tensor_parallel_degree"}, {"pp", p, "pipeline_parallel_degree"}, {"cp", p, "context_parallel_degree"},
		{"ep", p, "expert_parallel_degree"}, {"etp", p, "expert_tensor_parallel_degree"},
		{"micro", p, "pipeline_parallel_microbatch_size"}, {"layers-per-chunk", p, "pipeline_parallel_layers_per_stage"}} {
		if err := c.set(k.to, k.from, k.key); err != nil {
			return wrong(err)
		}
	}
	for k, d := range map[string]int{"tp": 1, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "shard": -1, "replicate": 1, "seq": 2048, "local": 8} {
		if _, ok := c.Values[k]; !ok {
			c.Values[k] = d
		}
	}
	c.Local = c.Values["local"]
	delete(c.Values, "local")
	if c.Values["batch"] <= 0 {
		delete(c.Values, "batch")
	}
	c.Values["zero"] = 3
	switch r := fmt.Sprint(p["fsdp_reshard_after_forward"]); {
	case r == "never", (r == "default" || r == "<nil>") && c.Values["pp"] > 1:
		c.Values["zero"] = 2
		if r != "never" {
			c.find("with a pipeline torchtitan gathers parameters once a step (reshard default): ZeRO-2 in effect")
		}
	}
	if s, ok := p["pipeline_parallel_schedule"].(string); ok && c.Values["pp"] > 1 {
		k, err := schedule.ParseKind(s)
		if err != nil {
			c.find("schedule %s is not modelled; interleaved 1F1B stands for it", s)
			k = schedule.Interleaved
		}
		c.Schedule = k
	}
	switch mode := fmt.Sprint(a["mode"]); mode {
	case "full":
		c.Recompute = &work.Recompute{Full: true}
	case "none":
		c.Recompute = &work.Recompute{}
	case "selective", "<nil>", "memory_budget":
		c.Recompute = &work.Recompute{Modules: []string{"op"}}
		if o := fmt.Sprint(a["selective_ac_option"]); o != "op" && o != "<nil>" {
			c.find("selective_ac_option %s is taken as 'op'", o)
		}
	default:
		return wrong(fmt.Errorf("[activation_checkpoint] mode is %q; known: none, selective, full, memory_budget", mode))
	}
	c.Dtype, c.Grad = "bf16", "fp32"
	if v := fmt.Sprint(t["mixed_precision_param"]); v == "float32" {
		c.Dtype = "fp32"
	}
	if v := fmt.Sprint(t["mixed_precision_reduce"]); v == "bfloat16" {
		c.Grad = "bf16"
	}
	mod := table(m, "model")
	if list, ok := mod["converters"].([]any); ok {
		for _, v := range list {
			if s := fmt.Sprint(v); strings.Contains(s, "mx") {
				c.Dtype = "mxfp8"
			} else if strings.Contains(s, "float8") {
				c.Dtype = "fp8"
			}
		}
	}
	on := true
	c.Overlap = &on
	if fmt.Sprint(p["context_parallel_rotate_method"]) != "alltoall" {
		c.Context = "gather"
	}
	key := strings.ToLower(fmt.Sprintf("%v/%v", mod["name"], mod["flavor"]))
	if n, ok := flavours[key]; ok {
		c.Model, _ = work.Named(n)
	} else if mod["name"] != nil {
		c.find("model %s is not in the table of flavours", key)
	}
	return c, nil
}

func readAccelerate(name string, data []byte) (*Config, error) {
	m, err := decodeYAML(name, data)
	if err != nil {
		return nil, err
	}
	wrong := func(err error) (*Config, error) { return nil, fmt.Errorf("%s: %w", name, err) }
	if err := only("Accelerate", m, accelerateKeys); err != nil {
		return wrong(err)
	}
	c := newConfig("accelerate", FSDP)
	for _, k := range []struct{ to, key string }{{"gpus", "num_processes"}} {
		if err := c.set(k.to, m, k.key); err != nil {
			return wrong(err)
		}
	}
	c.GPUs = c.Values["gpus"]
	delete(c.Values, "gpus")
	switch p := strings.ToLower(fmt.Sprint(m["mixed_precision"])); p {
	case "bf16", "fp16", "fp8":
		c.Dtype = p
	case "no":
		c.Dtype = "fp32"
	case "<nil>":
	default:
		return wrong(fmt.Errorf("mixed_precision is %q; known: no, fp16, bf16, fp8", p))
	}
	switch kind := strings.ToUpper(fmt.Sprint(m["distributed_type"])); kind {
	case "FSDP":
		f := table(m, "fsdp_config")
		c.Values["zero"] = 3
		switch s := strings.ToUpper(fmt.Sprint(f["fsdp_sharding_strategy"])); s {
		case "<NIL>", "FULL_SHARD", "1":
		case "SHARD_GRAD_OP", "2":
			c.Values["zero"] = 2
		case "NO_SHARD", "3":
			c.Values["zero"] = 0
		case "HYBRID_SHARD", "4", "HYBRID_SHARD_ZERO2", "5":
			if s == "HYBRID_SHARD_ZERO2" || s == "5" {
				c.Values["zero"] = 2
			}
			n, machines := c.GPUs, 1
			if v, ok := number(m["num_machines"]); ok {
				machines = max(v, 1)
			}
			c.Values["shard"] = max(n/machines, 1)
		default:
			return wrong(fmt.Errorf("fsdp_sharding_strategy is %q; known: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2", s))
		}
		if v, ok := f["fsdp_reshard_after_forward"].(bool); ok && !v {
			c.Values["zero"] = 2
		}
		r := work.Recompute{Full: truthy(f["fsdp_activation_checkpointing"])}
		c.Recompute = &r
		c.Offload = truthy(f["fsdp_offload_params"])
	case "DEEPSPEED":
		c.Framework = DeepSpeed
		d := table(m, "deepspeed_config")
		if f, ok := d["deepspeed_config_file"].(string); ok {
			return wrong(fmt.Errorf("the plan is in %s; read that file with --like", f))
		}
		if err := c.set("zero", d, "zero_stage"); err != nil {
			return wrong(err)
		}
		if err := c.set("accumulation", d, "gradient_accumulation_steps"); err != nil {
			return wrong(err)
		}
		for _, k := range []string{"offload_optimizer_device", "offload_param_device"} {
			if s := fmt.Sprint(d[k]); s != "none" && s != "<nil>" {
				c.Offload = true
			}
		}
	case "MEGATRON_LM":
		c.Framework = Megatron
		g := table(m, "megatron_lm_config")
		for _, k := range []struct{ to, key string }{{"tp", "megatron_lm_tp_degree"}, {"pp", "megatron_lm_pp_degree"},
			{"accumulation", "megatron_lm_num_micro_batches"}} {
			if err := c.set(k.to, g, k.key); err != nil {
				return wrong(err)
			}
		}
		sp := truthy(g["megatron_lm_sequence_parallelism"])
		c.Sequence = &sp
		c.Values["zero"] = b2i(truthy(g["megatron_lm_use_distributed_optimizer"]))
		r := work.Recompute{}
		if truthy(g["megatron_lm_recompute_activations"]) {
			r.Modules = []string{"core_attn"}
		}
		c.Recompute = &r
	case "MULTI_GPU", "NO":
		c.Values["zero"] = 0
	default:
		return wrong(fmt.Errorf("distributed_type is %q; known: FSDP, DEEPSPEED, MEGATRON_LM, MULTI_GPU", kind))
	}
	mesh := table(m, "parallelism_config")
	for _, k := range []struct{ to, key string }{{"replicate", "parallelism_config_dp_replicate_size"},
		{"shard", "parallelism_config_dp_shard_size"}, {"tp", "parallelism_config_tp_size"}, {"cp", "parallelism_config_cp_size"},
		{"cp", "parallelism_config_sp_size"}} {
		if err := c.set(k.to, mesh, k.key); err != nil {
			return wrong(err)
		}
	}
	if n, ok := number(mesh["parallelism_config_sp_size"]); ok && n > 1 {
		c.Context = "ulysses"
	}
	if len(mesh) > 0 && c.GPUs > 0 {
		product := 1
		for _, k := range []string{"replicate", "shard", "tp", "cp"} {
			product *= max(c.Values[k], 1)
		}
		if product != c.GPUs {
			return wrong(fmt.Errorf("parallelism_config makes %d ranks; num_processes is %d", product, c.GPUs))
		}
	}
	return c, nil
}

// Given is what flags say where a configuration does not.
type Given struct {
	Batch, Seq, Micro int
	Dtype             string
}

// Layout makes a layout of what the configuration says, for a model and a number of GPUs. What is missing is
// asked for, all at once; what contradicts itself is an error.
func (c *Config) Layout(m *work.Model, gpus int, g Given) (Layout, error) {
	l := Default(c.Framework)
	if err := c.degrees(&l, gpus); err != nil {
		return l, err
	}
	if err := c.stages(&l, m.Layers); err != nil {
		return l, err
	}
	l.ETP = c.expertTensor(&l, m)
	if err := c.mesh(&l, gpus); err != nil {
		return l, err
	}
	missing, err := c.batches(&l, g)
	if err != nil {
		return l, err
	}
	if l.Seq = cmp.Or(max(g.Seq, 0), c.get("seq", 0)); l.Seq == 0 {
		missing = append(missing, "--seq TOKENS")
	}
	if l.Dtype = cmp.Or(g.Dtype, c.Dtype); l.Dtype == "" {
		missing = append(missing, "--dtype TYPE")
		l.Dtype = "bf16"
	}
	c.flags(&l, m)
	if len(missing) > 0 {
		return l, fmt.Errorf("the file does not say everything; add %s", strings.Join(missing, ", "))
	}
	return l, l.Check(m, gpus)
}

// get is a value, or another one where the file has none.
func (c *Config) get(key string, otherwise int) int {
	if v, ok := c.Values[key]; ok {
		return v
	}
	return otherwise
}

// degrees are how many ranks share the parts of a model, and how many copies of it there are.
func (c *Config) degrees(l *Layout, gpus int) error {
	for _, x := range []struct {
		name string
		to   *int
	}{{"tp", &l.TP}, {"cp", &l.CP}, {"pp", &l.PP}, {"ep", &l.EP}} {
		*x.to = cmp.Or(c.get(x.name, 1), 1) // gpt-neox writes 0 for none
		if *x.to < 0 {
			return fmt.Errorf("%s is %d; it must be at least 1", x.name, *x.to)
		}
	}
	if gpus <= 0 {
		return fmt.Errorf("the number of GPUs is not in the file; say --gpus")
	}
	if c.GPUs > 0 && c.GPUs != gpus {
		c.find("the file is for %d GPUs, the plan for %d", c.GPUs, gpus)
	}
	l.ZeRO = c.get("zero", 0)
	return l.fill(gpus)
}

// stages are how a pipeline cuts the layers, and in which order it works.
func (c *Config) stages(l *Layout, layers int) error {
	l.Schedule = cmp.Or(c.Schedule, schedule.OneFOneB)
	l.VPP, l.FirstLess, l.LastLess = c.get("vpp", 1), c.get("first-less", 0), c.get("last-less", 0)
	if c.Chunks != nil {
		if err := l.cutAs(c.Chunks, layers); err != nil {
			return err
		}
	}
	if l.PP == 1 {
		l.VPP, l.Schedule = 1, schedule.OneFOneB
		return nil
	}
	if n := c.get("layers-per-chunk", 0); n > 0 {
		counted := layers + l.FirstLess + l.LastLess
		if counted%(l.PP*n) != 0 {
			return fmt.Errorf("%d layers a chunk do not divide %d layers over pp %d", n, counted, l.PP)
		}
		l.VPP = counted / l.PP / n
	}
	c.order(l)
	return nil
}

// order is the schedule that goes with the chunks.
func (c *Config) order(l *Layout) {
	switch {
	case l.Schedule == schedule.Interleaved && l.VPP == 1:
		l.VPP = 2
		c.find("%s says nothing of chunks a rank: 2 are taken", l.Schedule)
	case l.Schedule == schedule.OneFOneB && l.VPP > 1:
		l.Schedule = schedule.Interleaved
	case l.Schedule == schedule.ZBV:
		l.VPP = 2
	}
}

// expertTensor is how many tensor parallel ranks an expert has.
func (c *Config) expertTensor(l *Layout, m *work.Model) int {
	n := c.get("etp", 0)
	if l.EP == 1 && m.Experts == 0 || n == 0 && (l.EP == 1 || c.Framework == Megatron) {
		return l.TP
	}
	return cmp.Or(n, 1)
}

// mesh is how many data ranks share the state. A mesh of replicas and shards (torchtitan, Accelerate) leaves context parallel ranks out
// of the count; all of them share.
func (c *Config) mesh(l *Layout, gpus int) error {
	ranks, shard, replicas := l.DP*l.CP, c.get("shard", 0), c.get("replicate", 0)
	mesh := replicas > 0 && shard > 0
	if mesh {
		shard *= l.CP
	}
	if shard > 1 && shard < ranks {
		l.Shard = shard
	}
	if replicas > 1 {
		if ranks%replicas != 0 {
			return fmt.Errorf("%d replicas do not divide %d data ranks", replicas, ranks)
		}
		l.Shard = ranks / replicas
	}
	if mesh && shard*replicas != ranks {
		return fmt.Errorf("shard %d x replicate %d is not the %d data ranks that %d GPUs leave", shard/l.CP, replicas, l.DP, gpus)
	}
	return nil
}

// batches are the batch and the micro-batch: any two of these and accumulation fix the third. What the file leaves open is missing.
func (c *Config) batches(l *Layout, g Given) (missing []string, err error) {
	batch, micro, acc := c.get("batch", 0), c.get("micro", 0), c.get("accumulation", 0)
	if g.Batch > 0 {
		if batch > 0 && batch != g.Batch {
			c.find("--batch %d stands instead of the file's %d", g.Batch, batch)
		}
		batch, acc = g.Batch, 0
	}
	if g.Micro > 0 {
		micro = g.Micro
	}
	if c.Local > 0 { // torchtitan: of a data rank; a pipeline cuts it into micro-batches
		batch = cmp.Or(batch, c.Local*l.DP)
		if micro = cmp.Or(micro, 1); l.PP == 1 {
			micro = c.Local
		}
	}
	if acc > 0 {
		batch, micro, err = third(batch, micro, acc, l.DP)
	} else if batch > 0 && micro > 0 {
		err = contradict(batch, micro, 0, l.DP)
	}
	if batch == 0 {
		missing = append(missing, "--batch SEQUENCES")
	}
	if micro == 0 {
		missing = append(missing, "--micro SEQUENCES (of a micro-batch)")
	}
	l.Batch, l.Micro = batch, max(micro, 1)
	return missing, err
}

// third finds the batch or the micro-batch, of which one may be 0, by accumulation.
func third(batch, micro, acc, dp int) (int, int, error) {
	switch {
	case batch > 0 && micro > 0:
		return batch, micro, contradict(batch, micro, acc, dp)
	case batch > 0 && batch%(acc*dp) != 0:
		return batch, micro, fmt.Errorf("batch %d is not a multiple of accumulation %d x %d data ranks", batch, acc, dp)
	case batch > 0:
		micro = batch / (acc * dp)
	case micro > 0:
		batch = micro * acc * dp
	}
	return batch, micro, nil
}

// contradict is why a batch is not that of its parts. acc is 0 where it is not known.
func contradict(batch, micro, acc, dp int) error {
	if batch%(micro*dp) != 0 {
		return fmt.Errorf("batch %d is not a multiple of micro-batch %d x %d data ranks = %d", batch, micro, dp, micro*dp)
	}
	if acc > 0 && batch != micro*acc*dp {
		return fmt.Errorf("batch sizes contradict one another: %d is not micro-batch %d x accumulation %d x %d data ranks = %d",
			batch, micro, acc, dp, micro*acc*dp)
	}
	return nil
}

// flags are what the file says of types, recompute and overlap. The rest is the framework's default.
func (c *Config) flags(l *Layout, m *work.Model) {
	l.Grad, l.Context, l.Phase = cmp.Or(c.Grad, l.Grad), cmp.Or(c.Context, l.Context), cmp.Or(c.Phase, l.Phase)
	if c.Recompute != nil {
		l.Recompute = *c.Recompute
	}
	usual := l.Sequence
	for _, x := range []struct {
		to   *bool
		said *bool
	}{{&l.Sequence, c.Sequence}, {&l.Overlap, c.Overlap}, {&l.TPOverlap, c.TPOverlap}, {&l.DPOverlap, c.DPOverlap}, {&l.Flash, c.Flash}} {
		if x.said != nil {
			*x.to = *x.said
		}
	}
	if l.TP == 1 {
		l.Sequence = usual
	}
	if l.TP == 1 || !l.Sequence { // nothing to overlap
		l.TPOverlap = l.TPOverlap || c.TPOverlap != nil
	}
	l.EPOverlap = c.EPOverlap && l.mayHideExperts()
	l.Blocking, l.Offload, l.Looped, l.Dropout = c.Blocking, c.Offload, c.Looped && m.Experts > 0, c.Dropout
}
