package work

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// config is a Hugging Face config.json, loosely typedPositions: families name the same thing differently.
type config map[string]json.RawMessage

// num reads a whole number under the first of several names that is there. Families name the same size differently.
func (c config) num(keys ...string) (int, bool) {
	for _, k := range keys {
		raw, ok := c[k]
		if !ok || string(raw) == "null" {
			continue
		}
		var f float64
		if json.Unmarshal(raw, &f) == nil && f == float64(int(f)) {
			return int(f), true
		}
		var list []float64 // some families give a value for every layer; where all are equal it is the value
		if json.Unmarshal(raw, &list) == nil && len(list) > 0 && slices.Min(list) == slices.Max(list) {
			return int(list[0]), true
		}
	}
	return 0, false
}

func (c config) number(keys ...string) int { n, _ := c.num(keys...); return n }

func (c config) text(key string) string {
	var s string
	_ = json.Unmarshal(c[key], &s)
	return s
}

func (c config) flag(key string, otherwise bool) bool {
	var b bool
	if raw, ok := c[key]; ok && json.Unmarshal(raw, &b) == nil {
		return b
	}
	return otherwise
}

// allOnes reports whether a key has a list of nothing but ones: MiniMax marks layers with plain attention so.
func (c config) allOnes(key string) bool {
	var list []int
	return json.Unmarshal(c[key], &list) == nil && len(list) > 0 && slices.Min(list) == 1 && slices.Max(list) == 1
}

func (c config) strings(key string) []string {
	var list []string
	_ = json.Unmarshal(c[key], &list)
	return list
}

// families with two matrices in their MLP, layer norm and biases, unless their config says otherwise.
var gptFamilies = []string{"gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "codegen", "bert", "roberta", "xlm-roberta",
	"camembert", "distilbert", "megatron-bert", "gpt_neo", "phi", "starcoder2", "xglm", "biogpt"}

// families that share embedding and head unless their config says otherwise.
var tiedFamilies = []string{"gpt2", "opt", "bloom", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt_bigcode", "gpt_neo", "mpt",
	"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "megatron-bert",
	"modernbert", "cohere", "cohere2", "starcoder2", "phi3small", "xglm", "biogpt", "minicpm"}

// encoders are families whose tokens see the whole sequence.
var encoders = []string{"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "megatron-bert", "modernbert"}

// gatedFamilies are the other families that are known: decoders with RMS norms and three matrices in an MLP, but for what FromHF sets
// apart.
var gatedFamilies = []string{"llama", "llama4", "llama4_text", "mistral", "mixtral", "ministral", "gemma", "gemma2", "gemma3",
	"gemma3_text", "qwen", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text",
	"qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_vl", "qwen3_vl_text",
	"qwen3_vl_moe", "qwen3_vl_moe_text", "phi3", "phi3small", "phimoe", "glm", "glm4", "glm4_moe", "glm4v_text", "glm4v_moe_text", "chatglm",
	"deepseek", "deepseek_v2", "deepseek_v3",
	"deepseek_v32", "kimi_k2", "gpt_oss", "minimax_m2", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "olmo", "olmo2", "olmo3", "olmoe",
	"granite", "granitemoe", "cohere", "cohere2", "dbrx", "arctic", "grok-1", "git", "internlm", "internlm2",
	"internlm3", "baichuan", "yi", "stablelm", "exaone", "exaone4", "smollm3", "dots1", "bailing_moe", "bailing_moe_v2", "seed_oss",
	"ernie4_5", "ernie4_5_moe", "mllama_text_model", "apertus", "aquila", "xverse", "falcon", "mpt", "nemotron", "persimmon",
	"modernbert"}

// defaults are what Transformers takes for keys that a file leaves out. A model that sees pictures writes of its text part only what
// differs from them.
var defaults = map[string]string{
	"llama":       `{"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,"num_attention_heads":32,"vocab_size":32000}`,
	"mistral":     `{"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000}`,
	"qwen2":       `{"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":151936}`,
	"gemma":       `{"hidden_size":3072,"intermediate_size":24576,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":16,"head_dim":256,"vocab_size":256000}`,
	"gemma2":      `{"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"vocab_size":256000,"sliding_window":4096}`,
	"gemma3_text": `{"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"vocab_size":262208,"sliding_window":4096}`,
}

// unsupported families have layers that are neither attention nor MLP.
var unsupported = map[string]string{"mamba": "state-space layers", "mamba2": "state-space layers", "jamba": "state-space layers",
	"falcon_mamba": "state-space layers",
	"nemotron_h":   "state-space layers", "rwkv": "recurrent layers", "recurrent_gemma": "recurrent layers",
	"granitemoehybrid": "state-space layers", "t5": "an encoder beside the decoder", "bart": "an encoder beside the decoder",
	"whisper": "an encoder beside the decoder", "rwkv5": "recurrent layers", "rwkv6": "recurrent layers", "rwkv7": "recurrent layers",
	"albert": "layers that share their weights", "deberta": "attention of another kind", "deberta-v2": "attention of another kind",
	"vit": "an image encoder", "clip": "an image encoder", "clip_text_model": "an image encoder beside it", "siglip": "an image encoder",
	"dinov2": "an image encoder", "swin": "an image encoder", "detr": "an image encoder",
	"wav2vec2": "an audio encoder", "hubert": "an audio encoder", "wavlm": "an audio encoder", "deci": "layers of different shapes",
	"nemotron-nas": "layers of different shapes", "zamba2": "state-space layers", "minimax": "linear-attention layers",
	"bamba": "state-space layers"}

// unsupportedKeys tell of such layers in families that are not listed. A value of 0, false or null tells of nothing.
var unsupportedKeys = []struct{ key, what string }{
	{"mamba_d_state", "state-space layers"}, {"ssm_state_size", "state-space layers"}, {"mamba_d_ssm", "state-space layers"},
	{"attn_layer_period", "state-space layers"}, {"hybrid_override_pattern", "layers of several kinds"},
	{"linear_attn_config", "linear-attention layers"}, {"attn_type_list", "linear-attention layers"},
	{"conv_L_cache", "convolution layers"}, {"hidden_size_per_layer_input", "embeddings per layer"},
	{"zero_expert_num", "experts that compute nothing"}, {"share_q_dim", "queries of a lower rank"},
	{"num_mel_bins", "an audio encoder"}, {"num_channels", "an image encoder"}, {"num_hidden_groups", "layers that share their weights"},
	{"block_configs", "layers of different shapes"}, {"encoder_layers", "an encoder beside the decoder"},
	{"is_encoder_decoder", "an encoder beside the decoder"},
}

// chosen says what of sparse attention is not priced.
func chosen(n int) string {
	return fmt.Sprintf("attention over %d chosen tokens (index_topk) is priced as attention over all", n)
}

// What sets families apart from a decoder with RMS norms and a gated MLP. Names that end in * stand for all that begin so.
var (
	wideFamilies      = families{"falcon", "mpt", "chatglm", "qwen"} // an MLP four times as wide as the model, where the file does not say
	ungatedFamilies   = families{"falcon", "mpt", "nemotron"}
	layerNormFamilies = families{"falcon", "mpt", "nemotron", "dbrx", "cohere", "stablelm"}
	qkvBiasFamilies   = families{"qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen", "glm", "glm4"}
	qkNormFamilies    = families{"qwen3*", "gemma3*"}
	postNormFamilies  = families{"gemma2", "gemma3*", "glm4"}
	wholeFamilies     = families{"qwen*"} // every layer sees all, although the file names a window
)

// families are values of model_type.
type families []string

func (f families) has(kind string) bool {
	return slices.ContainsFunc(f, func(name string) bool {
		prefix, open := strings.CutSuffix(name, "*")
		return kind == name || open && strings.HasPrefix(kind, prefix)
	})
}

// positions are the embeddings of positions that families learn.
var positions = map[string]func(c, attn config) int{
	"gpt2": learnedPositions, "gpt_bigcode": learnedPositions, "gpt_neo": learnedPositions,
	"opt": offsetPositions, "biogpt": offsetPositions,
	"bert": typedPositions, "roberta": typedPositions, "xlm-roberta": typedPositions, "camembert": typedPositions, "megatron-bert": typedPositions, "distilbert": typedPositions,
	"mpt": func(c, attn config) int {
		if attn.flag("alibi", true) {
			return 0
		}
		return c.number("max_seq_len")
	},
}

func learnedPositions(c, _ config) int { return c.number("n_positions", "max_position_embeddings") }
func offsetPositions(c, _ config) int  { return c.number("max_position_embeddings") + 2 }
func typedPositions(c, _ config) int {
	return c.number("max_position_embeddings") + c.number("type_vocab_size")
}

// reader reads one file into a model. Its steps run in order: later ones need what earlier ones found.
type reader struct {
	name, kind string // the model's and its model_type
	c          config
	attn, ffn  config // of files that keep these apart
	old        bool   // one of gptFamilies
	m          *Model
	missing    []string
}

// FromHF reads a config.json as Hugging Face's Transformers writes it.
func FromHF(name string, data []byte) (*Model, error) {
	r := &reader{name: name, attn: config{}, ffn: config{}}
	if err := json.Unmarshal(data, &r.c); err != nil {
		return nil, fmt.Errorf("%s: not a config.json: %w", name, err)
	}
	if len(r.c) == 0 {
		return nil, fmt.Errorf("%s: an empty config.json", name)
	}
	for _, step := range []func() error{r.family, r.layers, r.shape, r.heads, r.mlp, r.norms, r.experts, r.latent, r.windows, r.whole} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	if len(r.missing) > 0 {
		return nil, fmt.Errorf("%s: model_type %s: missing %s", name, r.kind, strings.Join(r.missing, ", "))
	}
	if err := r.m.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: model_type %s", name, r.kind), err)
	}
	return r.m, nil
}

// need is a number that a model cannot do without.
func (r *reader) need(what string, keys ...string) int {
	n, ok := r.c.num(keys...)
	if !ok {
		r.missing = append(r.missing, fmt.Sprintf("%s (%s)", what, strings.Join(keys, " or ")))
	}
	return n
}

// family finds the part that describes the text model, and its family.
func (r *reader) family() error {
	r.kind = r.c.text("model_type")
	if raw, ok := r.c["text_config"]; ok { // a model that also sees pictures
		outer := r.kind
		if err := r.inner(raw); err != nil {
			return err
		}
		if why, ok := unsupported[outer]; ok {
			return fmt.Errorf("%s: model_type %s has %s: not modelled", r.name, outer, why)
		}
	}
	if r.kind == "" {
		return fmt.Errorf("%s: no model_type: it does not look like a config.json of Hugging Face; "+
			"a YAML file in weft's own words describes any model", r.name)
	}
	if why, ok := unsupported[r.kind]; ok {
		return fmt.Errorf("%s: model_type %s has %s: not modelled", r.name, r.kind, why)
	}
	r.old = slices.Contains(gptFamilies, r.kind)
	r.m = &Model{Name: r.name, BothWays: slices.Contains(encoders, r.kind)}
	if !r.old && !slices.Contains(gatedFamilies, r.kind) {
		r.m.Notes = append(r.m.Notes,
			fmt.Sprintf("model_type %s is not known here: it is read as a decoder with RMS norms and a gated MLP; "+
				"compare its parameters with its model card", r.kind))
	}
	return nil
}

// inner goes on with the text part of a model, and what Transformers takes for keys that it leaves out.
func (r *reader) inner(raw json.RawMessage) error {
	var text config
	if err := json.Unmarshal(raw, &text); err != nil {
		return fmt.Errorf("%s: text_config: %w", r.name, err)
	}
	if text == nil { // null
		return nil
	}
	if t := text.text("model_type"); t != "" {
		r.kind = t
	}
	if raw, ok := r.c["tie_word_embeddings"]; ok {
		if _, has := text["tie_word_embeddings"]; !has {
			text["tie_word_embeddings"] = raw
		}
	}
	filled := config{}
	if known, ok := defaults[r.kind]; ok {
		if err := json.Unmarshal([]byte(known), &filled); err != nil {
			return err
		}
	}
	maps.Copy(filled, text)
	r.c = filled
	return nil
}

// layers refuses what is neither attention nor an MLP, and reads linear attention.
func (r *reader) layers() error {
	for _, u := range unsupportedKeys {
		if raw, ok := r.c[u.key]; ok && !slices.Contains([]string{"null", "0", "false", "[]", "{}"}, strings.TrimSpace(string(raw))) &&
			!r.c.allOnes(u.key) {
			return fmt.Errorf("%s: model_type %s has %s (%s): not modelled", r.name, r.kind, u.what, u.key)
		}
	}
	r.m.Linear = r.c.linear()
	if r.m.Linear == nil && (slices.Contains(r.c.strings("layer_types"), "linear_attention") || r.c.number("full_attention_interval") > 1) {
		return fmt.Errorf("%s: model_type %s has linear-attention layers without linear_num_value_heads: only gated delta networks are modelled",
			r.name, r.kind)
	}
	return nil
}

// shape is how wide and how deep the model is.
func (r *reader) shape() error {
	m := r.m
	m.Hidden = r.need("hidden size", "hidden_size", "n_embd", "d_model", "n_embed", "dim")
	for _, key := range []string{"word_embed_proj_dim", "embedding_size"} {
		if n, ok := r.c.num(key); ok && n != m.Hidden {
			return fmt.Errorf("%s: %s %d is not hidden_size %d; an embedding of another width is not modelled", r.name, key, n, m.Hidden)
		}
	}
	m.Layers = r.need("layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
	m.Heads = r.need("heads", "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
	m.Vocab = r.need("vocabulary", "vocab_size", "padded_vocab_size")
	for key, part := range map[string]*config{"attn_config": &r.attn, "ffn_config": &r.ffn} { // MPT and DBRX
		if raw, ok := r.c[key]; ok {
			_ = json.Unmarshal(raw, part)
		}
	}
	return nil
}

// heads are those of attention.
func (r *reader) heads() error {
	m, c := r.m, r.c
	m.KVHeads = cmp.Or(c.number("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"), r.attn.number("kv_n_heads"))
	switch r.kind {
	case "falcon":
		if c.flag("multi_query", false) && !c.flag("new_decoder_architecture", false) {
			m.KVHeads = 1
		}
	case "gpt_bigcode":
		if c.flag("multi_query", true) {
			m.KVHeads = 1
		}
	case "chatglm":
		if !c.flag("multi_query_attention", false) {
			m.KVHeads = 0
		}
	}
	m.KVHeads = cmp.Or(m.KVHeads, m.Heads)
	if m.HeadDim = c.number("head_dim", "kv_channels", "attention_head_dim"); m.HeadDim == 0 && m.Heads > 0 {
		m.HeadDim = m.Hidden / m.Heads
	}
	return nil
}

// mlp is that of layers without experts.
func (r *reader) mlp() error {
	m, c := r.m, r.c
	var ok bool
	if m.FFN, ok = c.num("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dense_intermediate_size", "ff_intermediate_size",
		"hidden_dim"); !ok {
		if e, has := c.num("expansion_ratio"); has {
			m.FFN = e * m.Hidden
		} else if r.old || wideFamilies.has(r.kind) {
			m.FFN = 4 * m.Hidden
		}
	}
	if r.kind == "qwen" { // its file counts both matrices before the activation
		m.FFN /= 2
	}
	if n := r.ffn.number("ffn_hidden_size"); n > 0 {
		m.FFN = n
	}
	m.Gated = !r.old && !r.plain() && !ungatedFamilies.has(r.kind)
	return nil
}

// plain reports whether the activation is one that comes without a gate.
func (r *reader) plain() bool {
	act := ""
	for _, key := range []string{"hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"} {
		act += strings.ToLower(r.c.text(key))
	}
	return strings.Contains(act, "relu2") || act == "relu" || act == "xielu"
}

// norms are norms, biases and embeddings.
func (r *reader) norms() error {
	m, c := r.m, r.c
	m.Tied = c.flag("tie_word_embeddings", slices.Contains(tiedFamilies, r.kind))
	m.LayerNorm = r.old || layerNormFamilies.has(r.kind)
	m.Bias = r.old || r.kind == "gpt_oss"
	if r.kind == "starcoder2" {
		m.Bias = c.flag("use_bias", m.Bias)
	}
	m.QKVBias = !m.Bias && (qkvBiasFamilies.has(r.kind) ||
		c.flag("attention_bias", false) || c.flag("qkv_bias", false) || c.flag("add_qkv_bias", false))
	m.QKNorm = qkNormFamilies.has(r.kind) || c.flag("use_qk_norm", c.flag("qk_norm", false))
	m.Sinks = r.kind == "gpt_oss"
	m.ClampGLU = map[bool]float64{true: 7}[m.Sinks]
	m.PostNorms = postNormFamilies.has(r.kind)
	if count, ok := positions[r.kind]; ok {
		m.Positions = count(c, r.attn)
	}
	return nil
}

// experts are those of a mixture, and the router that chooses among them.
func (r *reader) experts() error {
	m, c := r.m, r.c
	m.Experts = c.number("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
	r.router()
	m.TopK = c.number("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "num_selected_experts",
		"experts_per_token", "moe_k")
	if n := r.ffn.number("moe_num_experts"); n > 0 {
		m.Experts, m.TopK = n, r.ffn.number("moe_top_k")
	}
	if m.Experts == 1 {
		m.Experts, m.TopK = 0, 0
	}
	if m.Experts > 0 {
		r.expertWidths()
		if err := r.mixed(); err != nil {
			return err
		}
	}
	if m.FFN == 0 && (m.Experts == 0 || m.DenseLayers() > 0) {
		r.missing = append(r.missing, "width of the MLP (intermediate_size)")
	}
	return nil
}

func (r *reader) router() {
	m, c := r.m, r.c
	if n, top := c.number("n_group", "moe_router_num_groups"), c.number("topk_group", "moe_router_group_topk"); n > 1 && top > 0 && top < n {
		m.Groups, m.TopGroups = n, top
	}
	if c.text("scoring_func") == "sigmoid" {
		m.Router, m.RouterBias = "sigmoid", c.text("topk_method") == "noaux_tc"
	}
	if scale := 1.0; json.Unmarshal(c["routed_scaling_factor"], &scale) == nil && scale != 1 && m.Experts > 1 {
		m.RouterScale = scale
	}
}

// expertWidths are how wide experts are, and the MLP beside them.
func (r *reader) expertWidths() {
	m, c := r.m, r.c
	if m.ExpertFFN = c.number("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size"); m.ExpertFFN == 0 {
		m.ExpertFFN = m.FFN
	}
	if n := c.number("intermediate_size_mlp"); n > 0 { // Llama 4: dense layers are wider than experts
		m.FFN = n
	}
	m.SharedFFN = c.number("shared_expert_intermediate_size", "shared_intermediate_size")
	if m.SharedFFN == 0 {
		m.SharedFFN = m.ExpertFFN * max(c.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"), 0)
	}
	switch {
	case c.flag("residual_moe", false): // Grok 2: a dense MLP beside the experts
		m.SharedFFN = m.FFN
	case c.flag("parallel_attn_mlp_res", false): // Arctic: the same, as wide as the model
		m.SharedFFN = m.Hidden
	case strings.HasPrefix(r.kind, "llama4"):
		m.SharedFFN = m.ExpertFFN
	}
	m.SharedGate = r.kind == "qwen2_moe"
}

// mixed is which layers have experts.
func (r *reader) mixed() error {
	m, c := r.m, r.c
	m.DenseFirst = c.number("first_k_dense_replace", "first_num_dense_layers", "moe_layer_start_index")
	m.MoEEvery = c.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "expert_layer_period", "moe_layer_interval",
		"moe_layer_frequency")
	var list []int
	if json.Unmarshal(c["mlp_only_layers"], &list) != nil || len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	for i, l := range list {
		if l != i {
			return fmt.Errorf("%s: mlp_only_layers %v: only the first layers may be without experts", r.name, list)
		}
	}
	m.DenseFirst = len(list)
	return nil
}

// latent is attention over compressed keys, what predicts more tokens, and what goes with linear attention.
func (r *reader) latent() error {
	m, c := r.m, r.c
	if rank := c.number("kv_lora_rank"); rank > 0 {
		m.MLA = &MLA{QRank: c.number("q_lora_rank"), KVRank: rank, NoPE: r.need("qk_nope_head_dim", "qk_nope_head_dim"),
			RoPE: c.number("qk_rope_head_dim"), V: r.need("v_head_dim", "v_head_dim")}
		m.HeadDim = m.MLA.NoPE
	}
	m.MTP = c.number("num_nextn_predict_layers")
	m.RoPEBase = c.ropeBase()
	if m.Linear != nil {
		m.QGate, m.QKNorm = c.flag("attn_output_gate", true), true
		m.SharedGate = m.SharedFFN > 0
	}
	return nil
}

// ropeBase is the base of rotary positions, which newer files have in an object of its own. Where kinds of layers differ, it is that of
// the layers that look at everything.
func (c config) ropeBase() int {
	var nested struct {
		Theta float64 `json:"rope_theta"`
		Full  struct {
			Theta float64 `json:"rope_theta"`
		} `json:"full_attention"`
	}
	_ = json.Unmarshal(c["rope_parameters"], &nested)
	base := max(nested.Theta, nested.Full.Theta)
	_ = json.Unmarshal(c["rope_theta"], &base)
	return int(min(max(base, 0), 1<<40))
}

// windows is which layers look back over a window only.
func (r *reader) windows() error {
	m, c := r.m, r.c
	if w, has := c.num("sliding_window"); has && w > 0 && c.flag("use_sliding_window", !wholeFamilies.has(r.kind)) {
		m.Window, m.Windowed = w, r.windowed()
	}
	r.ownWindows()
	if n := c.number("index_topk"); n > 0 {
		m.Notes = append(m.Notes, chosen(n))
	}
	return nil
}

// ownWindows are those of families that have a word of their own for them.
func (r *reader) ownWindows() {
	m, c := r.m, r.c
	tokens, windowed := 0, 0
	switch {
	case r.kind == "gpt_neo": // every second layer looks back over its window
		tokens, windowed = c.number("window_size"), m.Layers/2
	case r.kind == "modernbert":
		if every := c.number("global_attn_every_n_layers"); every > 0 {
			tokens, windowed = c.number("local_attention"), m.Layers-(m.Layers+every-1)/every
		}
	case strings.HasPrefix(r.kind, "llama4"):
		tokens, windowed = c.number("attention_chunk_size"), m.Layers-m.Layers/4
	}
	if tokens > 0 {
		m.Window, m.Windowed = tokens, windowed
	}
}

func count(list []string, word string) (n int) {
	for _, s := range list {
		if s == word {
			n++
		}
	}
	return n
}

// windowed is how many layers have the window that the file names.
func (r *reader) windowed() (n int) {
	m, c := r.m, r.c
	pattern, types := c.text("sliding_window_pattern"), c.strings("layer_types")
	switch every := c.number("sliding_window_pattern"); {
	case len(types) > 0:
		return count(types, "sliding_attention") + count(types, "chunked_attention")
	case r.kind == "gemma2" || r.kind == "gpt_oss":
		return m.Layers / 2
	case pattern != "": // such as LLLG: L looks back over its window
		for i := range m.Layers {
			n += strings.Count(pattern[i%len(pattern):][:1], "L")
		}
		return n
	case every > 0:
		return m.Layers - m.Layers/every
	case strings.HasPrefix(r.kind, "gemma3"):
		return m.Layers - m.Layers/6
	case r.kind == "cohere2":
		return m.Layers - m.Layers/4
	case c.number("max_window_layers") > 0:
		return max(m.Layers-c.number("max_window_layers"), 0)
	}
	return m.Layers
}

// whole refuses sizes that are no whole numbers.
func (r *reader) whole() error {
	for _, k := range []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "n_embd",
		"n_layer", "n_head"} {
		if raw, ok := r.c[k]; ok && string(raw) != "null" {
			if _, ok := r.c.num(k); !ok {
				return fmt.Errorf("%s: model_type %s: %s is %s; want one whole number", r.name, r.kind, k, raw)
			}
		}
	}
	return nil
}
