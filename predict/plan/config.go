package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
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
	Eager     bool // nothing is compiled
	Dropout   bool
	Looped    bool // products of experts one after the other
	Fused     bool // grouped products of experts that apply the activation
	FP8Scores bool
	Sender    string // what brings tokens to experts
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
	if c.Sender, _ = p["expert_parallel_comm_backend"].(string); c.Sender != "deepep" {
		c.Sender = ""
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
	c.Eager = !truthy(table(m, "compile")["enable"]) && !truthy(t["compile"])
	on, async := true, truthy(p["enable_async_tensor_parallel"])
	c.Overlap, c.TPOverlap = &on, &async
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
