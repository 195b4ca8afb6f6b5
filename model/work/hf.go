package work

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// config is a Hugging Face config.json, loosely typed: families name the same thing differently.
type config map[string]json.RawMessage

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

// FromHF reads a config.json as Hugging Face's Transformers writes it.
func FromHF(name string, data []byte) (*Model, error) {
	var c config
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%s: not a config.json: %w", name, err)
	}
	if len(c) == 0 {
		return nil, fmt.Errorf("%s: an empty config.json", name)
	}
	kind := c.text("model_type")
	if raw, ok := c["text_config"]; ok { // a model that also sees pictures
		var inner config
		if err := json.Unmarshal(raw, &inner); err != nil {
			return nil, fmt.Errorf("%s: text_config: %w", name, err)
		}
		if t := inner.text("model_type"); t != "" {
			kind = t
		}
		if raw, ok := c["tie_word_embeddings"]; ok {
			if _, has := inner["tie_word_embeddings"]; !has {
				inner["tie_word_embeddings"] = raw
			}
		}
		if text, ok := defaults[kind]; ok {
			filled := config{}
			if err := json.Unmarshal([]byte(text), &filled); err != nil {
				return nil, err
			}
			maps.Copy(filled, inner)
			inner = filled
		}
		if why, ok := unsupported[c.text("model_type")]; ok {
			return nil, fmt.Errorf("%s: model_type %s has %s: not modelled", name, c.text("model_type"), why)
		}
		c = inner
	}
	if kind == "" {
		return nil,
			fmt.Errorf("%s: no model_type: it does not look like a config.json of Hugging Face; a YAML file in weft's own words describes any model",
				name)
	}
	if why, ok := unsupported[kind]; ok {
		return nil, fmt.Errorf("%s: model_type %s has %s: not modelled", name, kind, why)
	}
	for _, u := range unsupportedKeys {
		if raw, ok := c[u.key]; ok && !slices.Contains([]string{"null", "0", "false", "[]", "{}"}, strings.TrimSpace(string(raw))) &&
			!c.allOnes(u.key) {
			return nil, fmt.Errorf("%s: model_type %s has %s (%s): not modelled", name, kind, u.what, u.key)
		}
	}
	linear := c.linear()
	if linear == nil && (slices.Contains(c.strings("layer_types"), "linear_attention") || c.number("full_attention_interval") > 1) {
		return nil,
			fmt.Errorf("%s: model_type %s has linear-attention layers without linear_num_value_heads: only gated delta networks are modelled",
				name, kind)
	}
	m := &Model{Name: name, BothWays: slices.Contains(encoders, kind)}
	if !slices.Contains(gptFamilies, kind) && !slices.Contains(gatedFamilies, kind) {
		m.Notes = append(m.Notes,
			fmt.Sprintf("model_type %s is not known here: it is read as a decoder with RMS norms and a gated MLP; compare its parameters with its model card",
				kind))
	}
	var missing []string
	need := func(what string, keys ...string) int {
		n, ok := c.num(keys...)
		if !ok {
			missing = append(missing, fmt.Sprintf("%s (%s)", what, strings.Join(keys, " or ")))
		}
		return n
	}
	m.Hidden = need("hidden size", "hidden_size", "n_embd", "d_model", "n_embed", "dim")
	if n, ok := c.num("word_embed_proj_dim"); ok && n != m.Hidden {
		return nil, fmt.Errorf("%s: word_embed_proj_dim %d is not hidden_size %d; an embedding of another width is not modelled",
			name, n, m.Hidden)
	}
	if n, ok := c.num("embedding_size"); ok && n != m.Hidden {
		return nil, fmt.Errorf("%s: embedding_size %d is not hidden_size %d; an embedding of another width is not modelled", name, n, m.Hidden)
	}
	m.Layers = need("layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
	m.Heads = need("heads", "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
	m.Vocab = need("vocabulary", "vocab_size", "padded_vocab_size")
	m.KVHeads = c.number("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv")
	attn := config{}
	if raw, ok := c["attn_config"]; ok { // MPT and DBRX
		_ = json.Unmarshal(raw, &attn)
		if m.KVHeads == 0 {
			m.KVHeads = attn.number("kv_n_heads")
		}
	}
	if kind == "falcon" && c.flag("multi_query", false) && !c.flag("new_decoder_architecture", false) || kind == "gpt_bigcode" &&
		c.flag("multi_query", true) {
		m.KVHeads = 1
	}
	if kind == "chatglm" && !c.flag("multi_query_attention", false) {
		m.KVHeads = 0
	}
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	m.HeadDim = c.number("head_dim", "kv_channels", "attention_head_dim")
	if m.HeadDim == 0 && m.Heads > 0 {
		m.HeadDim = m.Hidden / m.Heads
	}

	old := slices.Contains(gptFamilies, kind)
	var ok bool
	if m.FFN, ok = c.num("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "dense_intermediate_size", "ff_intermediate_size",
		"hidden_dim"); !ok {
		switch e, has := c.num("expansion_ratio"); {
		case has:
			m.FFN = e * m.Hidden
		case old || kind == "falcon" || kind == "mpt" || kind == "chatglm" || kind == "qwen":
			m.FFN = 4 * m.Hidden
		}
	}
	if kind == "qwen" { // its file counts both matrices before the activation
		m.FFN /= 2
	}
	ffn := config{}
	if raw, ok := c["ffn_config"]; ok { // DBRX
		_ = json.Unmarshal(raw, &ffn)
		if n := ffn.number("ffn_hidden_size"); n > 0 {
			m.FFN = n
		}
	}
	act := strings.ToLower(c.text("hidden_act") + c.text("hidden_activation") + c.text("activation_function") + c.text("mlp_hidden_act"))
	m.Gated = !old && kind != "falcon" && kind != "mpt" && kind != "nemotron" && !strings.Contains(act, "relu2") && act != "relu" &&
		act != "xielu"
	m.Tied = c.flag("tie_word_embeddings", slices.Contains(tiedFamilies, kind))
	m.LayerNorm = old || kind == "falcon" || kind == "mpt" || kind == "nemotron" || kind == "dbrx" || kind == "cohere" || kind == "stablelm"
	m.Bias = old || kind == "gpt_oss"
	if b := c.flag("use_bias", m.Bias); kind == "starcoder2" {
		m.Bias = b
	}
	m.QKVBias = !m.Bias && (kind == "qwen2" || kind == "qwen2_moe" || kind == "qwen2_vl_text" || kind == "qwen2_5_vl_text" || kind == "qwen" ||
		kind == "glm" || kind == "glm4" ||
		c.flag("attention_bias", false) || c.flag("qkv_bias", false) || c.flag("add_qkv_bias", false))
	m.QKNorm = strings.HasPrefix(kind, "qwen3") || strings.HasPrefix(kind, "gemma3") || c.flag("use_qk_norm", c.flag("qk_norm", false))
	m.PostNorms = kind == "gemma2" || strings.HasPrefix(kind, "gemma3") || kind == "glm4"
	switch kind {
	case "gpt2", "gpt_bigcode", "gpt_neo":
		m.Positions = c.number("n_positions", "max_position_embeddings")
	case "opt":
		m.Positions = c.number("max_position_embeddings") + 2
	case "biogpt":
		m.Positions = c.number("max_position_embeddings") + 2
	case "bert", "roberta", "xlm-roberta", "camembert", "megatron-bert", "distilbert":
		m.Positions = c.number("max_position_embeddings") + c.number("type_vocab_size")
	case "mpt":
		if raw := config(attn); raw != nil && !attn.flag("alibi", true) {
			m.Positions = c.number("max_seq_len")
		}
	}

	// Experts.
	m.Experts = c.number("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
	if n, top := c.number("n_group", "moe_router_num_groups"), c.number("topk_group", "moe_router_group_topk"); n > 1 && top > 0 && top < n {
		m.Groups, m.TopGroups = n, top
	}
	if c.text("scoring_func") == "sigmoid" {
		m.Router, m.RouterBias = "sigmoid", c.text("topk_method") == "noaux_tc"
	}
	if scale := 1.0; json.Unmarshal(c["routed_scaling_factor"], &scale) == nil && scale != 1 && m.Experts > 1 {
		m.RouterScale = scale
	}
	m.TopK = c.number("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "num_selected_experts",
		"experts_per_token", "moe_k")
	if n := ffn.number("moe_num_experts"); n > 0 {
		m.Experts, m.TopK = n, ffn.number("moe_top_k")
	}
	if m.Experts == 1 {
		m.Experts, m.TopK = 0, 0
	}
	if m.Experts > 0 {
		m.ExpertFFN = c.number("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")
		if m.ExpertFFN == 0 {
			m.ExpertFFN = m.FFN
		}
		if n := c.number("intermediate_size_mlp"); n > 0 { // Llama 4: dense layers are wider than experts
			m.FFN = n
		}
		m.SharedFFN = c.number("shared_expert_intermediate_size", "shared_intermediate_size")
		if n := c.number("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"); n > 0 && m.SharedFFN == 0 {
			m.SharedFFN = n * m.ExpertFFN
		}
		if strings.HasPrefix(kind, "llama4") {
			m.SharedFFN = m.ExpertFFN
		}
		switch {
		case c.flag("residual_moe", false): // Grok 2: a dense MLP beside the experts
			m.SharedFFN = m.FFN
		case c.flag("parallel_attn_mlp_res", false): // Arctic: the same, as wide as the model
			m.SharedFFN = m.Hidden
		}
		m.SharedGate = kind == "qwen2_moe"
		m.DenseFirst = c.number("first_k_dense_replace", "first_num_dense_layers", "moe_layer_start_index")
		m.MoEEvery = c.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq", "expert_layer_period", "moe_layer_interval",
			"moe_layer_frequency")
		if raw, ok := c["mlp_only_layers"]; ok {
			var list []int
			if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
				slices.Sort(list)
				for i, l := range list {
					if l != i {
						return nil, fmt.Errorf("%s: mlp_only_layers %v: only the first layers may be without experts", name, list)
					}
				}
				m.DenseFirst = len(list)
			}
		}
	}
	if m.FFN == 0 && (m.Experts == 0 || m.DenseLayers() > 0) {
		missing = append(missing, "width of the MLP (intermediate_size)")
	}
	if rank := c.number("kv_lora_rank"); rank > 0 {
		m.MLA = &MLA{QRank: c.number("q_lora_rank"), KVRank: rank, NoPE: need("qk_nope_head_dim", "qk_nope_head_dim"),
			RoPE: c.number("qk_rope_head_dim"), V: need("v_head_dim", "v_head_dim")}
		m.HeadDim = m.MLA.NoPE
	}
	m.MTP = c.number("num_nextn_predict_layers")
	if m.Linear = linear; linear != nil {
		m.QGate, m.QKNorm = c.flag("attn_output_gate", true), true
		m.SharedGate = m.SharedFFN > 0
	}

	// Windows.
	if w, has := c.num("sliding_window"); has && w > 0 &&
		c.flag("use_sliding_window", kind != "qwen2" && kind != "qwen3" && !strings.HasPrefix(kind, "qwen")) {
		m.Window = w
		switch types := c.strings("layer_types"); {
		case len(types) > 0:
			for _, t := range types {
				if t == "sliding_attention" || t == "chunked_attention" {
					m.Windowed++
				}
			}
		case kind == "gemma2" || kind == "gpt_oss":
			m.Windowed = m.Layers / 2
		case c.text("sliding_window_pattern") != "": // such as LLLG: L looks back over its window
			p := c.text("sliding_window_pattern")
			for i := range m.Layers {
				if p[i%len(p)] == 'L' {
					m.Windowed++
				}
			}
		case c.number("sliding_window_pattern") > 0:
			m.Windowed = m.Layers - m.Layers/c.number("sliding_window_pattern")
		case strings.HasPrefix(kind, "gemma3"):
			m.Windowed = m.Layers - m.Layers/6
		case kind == "cohere2":
			m.Windowed = m.Layers - m.Layers/4
		case c.number("max_window_layers") > 0:
			m.Windowed = max(m.Layers-c.number("max_window_layers"), 0)
		default:
			m.Windowed = m.Layers
		}
	}
	switch kind {
	case "gpt_neo": // every second layer looks back over its window
		if n := c.number("window_size"); n > 0 {
			m.Window, m.Windowed = n, m.Layers/2
		}
	case "modernbert":
		if n, every := c.number("local_attention"), c.number("global_attn_every_n_layers"); n > 0 && every > 0 {
			m.Window, m.Windowed = n, m.Layers-(m.Layers+every-1)/every
		}
	}
	if n := c.number("index_topk"); n > 0 {
		m.Notes = append(m.Notes, chosen(n))
	}
	if n := c.number("attention_chunk_size"); n > 0 && strings.HasPrefix(kind, "llama4") {
		m.Window, m.Windowed = n, m.Layers-m.Layers/4
	}
	for _, k := range []string{"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "n_embd",
		"n_layer", "n_head"} {
		if raw, ok := c[k]; ok && string(raw) != "null" {
			if _, ok := c.num(k); !ok {
				return nil, fmt.Errorf("%s: model_type %s: %s is %s; want one whole number", name, kind, k, raw)
			}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s: model_type %s: missing %s", name, kind, strings.Join(missing, ", "))
	}
	if err := m.Check(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: model_type %s", name, kind), err)
	}
	return m, nil
}
