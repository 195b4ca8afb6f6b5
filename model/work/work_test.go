package work

import (
	"math"
	"strings"
	"testing"
)

// Published counts, in billions, of models whose makers print them.
func TestParametersArePublished(t *testing.T) {
	for name, want := range map[string]float64{
		"llama3-8b": 8.030, "llama3-70b": 70.554, "llama3.1-405b": 405.85, "llama2-7b": 6.738, "llama2-13b": 13.016, "llama2-70b": 68.977,
		"gpt3-175b": 174.6, "nemotron4-15b": 15.63, "nemotron4-340b": 341.03, "mixtral-8x7b": 46.703, "mixtral-8x22b": 140.63,
		"qwen3-30b-a3b":   30.532,
		"qwen3-235b-a22b": 235.09, "qwen2.5-72b": 72.706, "qwen3-8b": 8.191, "qwen3-32b": 32.762, "deepseek-v3": 671.026, "deepseek-v2": 235.74,
		"deepseek-v2-lite": 15.706, "kimi-k2": 1026.4,
		"gpt-oss-120b": 116.8, "gpt-oss-20b": 20.91, "llama4-scout": 107.77, "llama4-maverick": 400.7, "bloom-176b": 176.25, "mpt-7b": 6.65,
		"mpt-30b": 29.97,
		"gpt2-xl": 1.5577, "grok-1": 316.5, "gemma2-9b": 9.24, "gemma3-27b": 27.01, "dbrx": 131.6, "falcon-40b": 41.3, "glm-4.5-air": 106.8,
		"glm-4.5": 352.8, "glm-4.6": 352.8, "glm-5": 743.2, "phi-4": 14.66, "mistral-7b": 7.242, "resnet-50": 0.025557, "resnet-152": 0.060193,
	} {
		m, err := Named(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Error(err)
		}
		if got := m.Params().Total / 1e9; !(math.Abs(got/want-1) <= 0.006) {
			t.Errorf("%s has %.3fB parameters, published %.3fB", name, got, want)
		}
	}
	for name, want := range map[string]float64{"deepseek-v3": 37.55, "qwen3-30b-a3b": 3.35, "mixtral-8x7b": 12.88, "qwen3-235b-a22b": 22.2,
		"gpt-oss-120b": 5.7, "llama4-maverick": 17.2} {
		m, _ := Named(name)
		if got := m.Params().Active / 1e9; !(math.Abs(got/want-1) <= 0.02) {
			t.Errorf("%s has %.2fB active parameters, published %.2fB", name, got, want)
		}
	}
}

// Training FLOPs a token at 4,096 tokens, causal half, checked against TFLOP/s over tokens/s
// of published training runs.
func TestFLOPsOfPublishedRuns(t *testing.T) {
	for name, want := range map[string]float64{"llama3-8b": 4.8249e10, "llama3-70b": 4.3312e11, "llama2-7b": 4.2864e10, "gpt3-175b": 1.0764e12,
		"nemotron4-15b": 8.9163e10,
		"mpt-125m":      9.682e8, "mpt-70b": 4.0513e11, "qwen3-30b-a3b": 2.3082e10, "deepseek-v3": 2.5045e11, "nano-8.86b": 5.315e10} {
		m, err := Named(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.TrainFLOPs(4096, Causal, 0); !(math.Abs(got/want-1) <= 0.005) {
			t.Errorf("%s: %.4g FLOPs a token, published runs give %.4g", name, got, want)
		}
	}
	m, _ := Named("resnet-50")
	if got := m.Forward(0).Matrix; !(math.Abs(got/8.2e9-1) <= 0.02) {
		t.Errorf("resnet-50: %.3g operations an image, published 8.2e9", got)
	}
}

// With full recompute the hardware convention is 4/3 of the model's, but for the head.
func TestConventionsDiffer(t *testing.T) {
	m, _ := Named("gpt3-175b")
	full, hw, causal := m.TrainFLOPs(2048, Full, 1), m.TrainFLOPs(2048, Hardware, 1), m.TrainFLOPs(2048, Causal, 1)
	if r := hw / full; r < 1.32 || r > 4.0/3 {
		t.Errorf("hardware over full is %.3f", r)
	}
	if !(causal < full && full < hw) {
		t.Errorf("causal %.3g, full %.3g, hardware %.3g", causal, full, hw)
	}
	if _, err := ParseConvention("mfu"); err == nil {
		t.Error("an unknown convention passes")
	}
}

// Korthikanti's 34 h bytes a token and layer (sequence parallel, scores computed again), and
// 5as/h more without.
func TestActivationsAreKorthikantis(t *testing.T) {
	m, _ := Named("gpt-22b")
	h, s := float64(m.Hidden), 2048
	o := Kept{TP: 8, Sequence: true, Dropout: true, Bytes: 2, Recompute: Recompute{Modules: []string{"core_attn"}}}
	if got, want := m.Activations(false, s, o).Total, 34*h/8; !(math.Abs(got/want-1) <= 0.01) {
		t.Errorf("selective: %.0f bytes, paper %.0f", got, want)
	}
	o.Recompute = Recompute{}
	if got, want := m.Activations(false, s, o).Total, (34*h+5*float64(m.Heads)*float64(s))/8; !(math.Abs(got/want-1) <= 0.01) {
		t.Errorf("everything kept: %.0f bytes, paper %.0f", got, want)
	}
	o.Sequence = false
	if got, want := m.Activations(false, s, o).Total, 10*h+24*h/8+5*float64(m.Heads)*float64(s)/8; !(math.Abs(got/want-1) <= 0.01) {
		t.Errorf("without sequence parallelism: %.0f bytes, paper %.0f", got, want)
	}
	o.Recompute.Full = true
	if got := m.Activations(false, s, o).Total; got != 2*h {
		t.Errorf("full: %.0f bytes, want 2h", got)
	}
}

func TestKVBytes(t *testing.T) {
	for name, want := range map[string]float64{"llama3-70b": 327680, "qwen3-8b": 147456, "deepseek-v3": 70272, "qwen3-next-80b-a3b": 24576,
		"qwen3.5-397b-a17b": 30720, "minimax-m2": 253952} {
		m, _ := Named(name)
		if got := m.KVBytesPerToken(2); got != want {
			t.Errorf("%s: %v bytes a token, want %v", name, got, want)
		}
	}
}

// Configurations as Hugging Face has them, shortened to what matters.
var configs = []struct{ like, text string }{
	{"llama3-8b",
		`{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":false,"hidden_act":"silu"}`},
	{"gpt2-xl",
		`{"model_type":"gpt2","n_embd":1600,"n_head":25,"n_layer":48,"n_positions":1024,"vocab_size":50257,"activation_function":"gelu_new"}`},
	{"deepseek-v3",
		`{"model_type":"deepseek_v3","hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,"num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":8,"first_k_dense_replace":3,"moe_layer_freq":1,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"vocab_size":129280,"tie_word_embeddings":false}`},
	{"qwen3-30b-a3b",
		`{"model_type":"qwen3_moe","head_dim":128,"hidden_size":2048,"intermediate_size":6144,"moe_intermediate_size":768,"num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,"num_key_value_heads":4,"vocab_size":151936,"decoder_sparse_step":1,"mlp_only_layers":[],"sliding_window":null,"tie_word_embeddings":false}`},
	{"gpt-oss-120b",
		`{"model_type":"gpt_oss","hidden_size":2880,"intermediate_size":2880,"num_hidden_layers":36,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"num_local_experts":128,"num_experts_per_tok":4,"vocab_size":201088,"sliding_window":128,"tie_word_embeddings":false,"attention_bias":true}`},
	{"llama4-maverick",
		`{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"intermediate_size":8192,"intermediate_size_mlp":16384,"num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"num_local_experts":128,"num_experts_per_tok":1,"interleave_moe_layer_step":2,"vocab_size":202048}}`},
	{"falcon-40b",
		`{"model_type":"falcon","hidden_size":8192,"num_hidden_layers":60,"num_attention_heads":128,"num_kv_heads":8,"vocab_size":65024,"new_decoder_architecture":true}`},
	{"mixtral-8x7b",
		`{"model_type":"mixtral","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":8,"num_experts_per_tok":2,"vocab_size":32000,"sliding_window":null}`},
	{"gemma3-27b",
		`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":5376,"intermediate_size":21504,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"sliding_window":1024,"vocab_size":262208}}`},
	{"dbrx",
		`{"model_type":"dbrx","d_model":6144,"n_heads":48,"n_layers":40,"vocab_size":100352,"attn_config":{"kv_n_heads":8},"ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4}}`},
	{"bloom-176b", `{"model_type":"bloom","n_embed":14336,"n_layer":70,"num_attention_heads":112,"vocab_size":250880}`},
	{"opt-13b",
		`{"model_type":"opt","hidden_size":5120,"ffn_dim":20480,"num_hidden_layers":40,"num_attention_heads":40,"vocab_size":50272,"max_position_embeddings":2048}`},
}

func TestConfigsOfHuggingFace(t *testing.T) {
	for _, c := range configs {
		got, err := FromHF(c.like, []byte(c.text))
		if err != nil {
			t.Error(err)
			continue
		}
		want, err := Named(c.like)
		if err != nil {
			t.Fatal(err)
		}
		g, w := got.Params(), want.Params()
		if !(math.Abs(g.Total/w.Total-1) <= 1e-3) || !(math.Abs(g.Active/w.Active-1) <= 1e-3) {
			t.Errorf("%s: config.json has %.4gB (%.4gB active), catalogue %.4gB (%.4gB)",
				c.like, g.Total/1e9, g.Active/1e9, w.Total/1e9, w.Active/1e9)
		}
		if a, b := got.TrainFLOPs(4096, Causal, 0), want.TrainFLOPs(4096, Causal, 0); c.like != "llama4-maverick" && !(math.Abs(a/b-1) <= 1e-3) {
			t.Errorf("%s: config.json takes %.4g FLOPs a token, catalogue %.4g", c.like, a, b)
		}
	}
}

func TestBadModels(t *testing.T) {
	for text, want := range map[string]string{
		`{"model_type":"mamba","hidden_size":1}`:                                              "state-space",
		`{"model_type":"llama","hidden_size":4096}`:                                           "missing layers",
		`{"hidden_size":4096}`:                                                                "no model_type",
		"layers: 2\nhiden: 4\n":                                                               "hiden",
		"layers: 2\nhidden: 256\nheads: 6\nkv_heads: 4\nvocab: 100\n":                         "evenly",
		"layers: 2\nhidden: 256\nheads: 4\nvocab: 100\nexperts: 4\ntop_k: 5\nexpert_ffn: 8\n": "top_k is 5 of 4",
		"like: nothing\n":                                                                     "no model",
		"layers: -3\nhidden: 256\nheads: 4\nvocab: 100\n":                                     "layers is -3",
		"layers: 1000000000\nhidden: 256\nheads: 4\nvocab: 100\nffn: 8\n":                     "layers is 1000000000; at most 10000",
		"layers: 4\nhidden: 256\nheads: 4\nvocab: 100\nffn: 8\nmtp: 2000000000\n":             "mtp is 2000000000; at most 10000",
	} {
		if _, err := Read("m", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	if _, err := Named("lama3-8b"); err == nil || !strings.Contains(err.Error(), "llama3-8b") {
		t.Errorf("a typing error is answered with %v", err)
	}
}

func TestYAML(t *testing.T) {
	m, err := Read("m", []byte("like: llama3-8b\nlayers: 16\nname: half\n"))
	if err != nil {
		t.Fatal(err)
	}
	whole, _ := Named("llama3-8b")
	if m.Name != "half" || m.Layers != 16 || m.Hidden != 4096 || m.KVHeads != 8 || m.Params().Total >= whole.Params().Total {
		t.Errorf("%+v", m)
	}
	m, err = Read("m", []byte("layers: 2\nhidden: 512\nheads: 8\nvocab: 1000\ngated: false\n"))
	if err != nil || m.FFN != 2048 || m.KVHeads != 8 || m.HeadDim != 64 {
		t.Errorf("%+v, %v", m, err)
	}
}

func FuzzRead(f *testing.F) {
	for _, c := range configs {
		f.Add([]byte(c.text))
	}
	f.Add([]byte("like: llama3-8b\nlayers: 16\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Read("m", data)
		if err != nil {
			return
		}
		if p := m.Params().Total; !(p > 0) || math.IsInf(p, 0) {
			t.Errorf("%q has %v parameters", data, p)
		}
	})
}

// Models that are not in the catalogue, from the keys of their config.json, beside the parameters that their authors publish.
func TestPublishedCounts(t *testing.T) {
	for _, c := range []struct {
		name   string
		params float64
		text   string
	}{
		{"phi-2", 2.780e9,
			`{"model_type":"phi","hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":51200,"tie_word_embeddings":false,"max_position_embeddings":2048}`},
		{"phi-3-mini", 3.821e9,
			`{"model_type":"phi3","hidden_size":3072,"intermediate_size":8192,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":32064,"sliding_window":2047,"tie_word_embeddings":false}`},
		{"phi-3.5-moe", 41.87e9,
			`{"model_type":"phimoe","hidden_size":4096,"intermediate_size":6400,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"num_local_experts":16,"num_experts_per_tok":2,"vocab_size":32064,"attention_bias":true,"lm_head_bias":true}`},
		{"starcoder2-7b", 7.174e9,
			`{"model_type":"starcoder2","hidden_size":4608,"intermediate_size":18432,"num_hidden_layers":32,"num_attention_heads":36,"num_key_value_heads":4,"vocab_size":49152,"use_bias":true,"sliding_window":4096}`},
		{"starcoder2-15b", 15.96e9,
			`{"model_type":"starcoder2","hidden_size":6144,"intermediate_size":24576,"num_hidden_layers":40,"num_attention_heads":48,"num_key_value_heads":4,"vocab_size":49152,"use_bias":true,"tie_word_embeddings":false}`},
		{"falcon-7b", 6.922e9,
			`{"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,"multi_query":true,"new_decoder_architecture":false,"parallel_attn":true,"bias":false,"vocab_size":65024}`},
		{"mpt-7b", 6.649e9,
			`{"model_type":"mpt","d_model":4096,"n_heads":32,"n_layers":32,"expansion_ratio":4,"vocab_size":50432,"no_bias":true,"attn_config":{"alibi":true}}`},
		{"bloom-7b1", 7.069e9, `{"model_type":"bloom","hidden_size":4096,"n_layer":30,"n_head":32,"vocab_size":250880}`},
		{"opt-6.7b", 6.658e9,
			`{"model_type":"opt","hidden_size":4096,"ffn_dim":16384,"num_hidden_layers":32,"num_attention_heads":32,"vocab_size":50272,"max_position_embeddings":2048,"word_embed_proj_dim":4096}`},
		{"gpt-j-6b", 6.051e9,
			`{"model_type":"gptj","n_embd":4096,"n_layer":28,"n_head":16,"n_inner":null,"vocab_size":50400,"tie_word_embeddings":false,"rotary_dim":64}`},
		{"pythia-12b", 11.846e9,
			`{"model_type":"gpt_neox","hidden_size":5120,"intermediate_size":20480,"num_hidden_layers":36,"num_attention_heads":40,"vocab_size":50688,"tie_word_embeddings":false}`},
		{"qwen1.5-moe", 14.316e9,
			`{"model_type":"qwen2_moe","hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":24,"num_attention_heads":16,"num_key_value_heads":16,"num_experts":60,"num_experts_per_tok":4,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"decoder_sparse_step":1,"vocab_size":151936,"tie_word_embeddings":false}`},
		{"olmo-2-7b", 7.299e9,
			`{"model_type":"olmo2","hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":100352,"tie_word_embeddings":false}`},
		{"gemma-3-27b", 27.01e9,
			`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":5376,"intermediate_size":21504,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"vocab_size":262208,"sliding_window":1024}}`},
		{"gemma-2-27b", 27.227e9,
			`{"model_type":"gemma2","hidden_size":4608,"intermediate_size":36864,"num_hidden_layers":46,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"vocab_size":256000,"sliding_window":4096}`},
		{"mistral-nemo", 12.248e9,
			`{"model_type":"mistral","hidden_size":5120,"intermediate_size":14336,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":131072,"tie_word_embeddings":false}`},
		{"command-r-plus", 103.81e9,
			`{"model_type":"cohere","hidden_size":12288,"intermediate_size":33792,"num_hidden_layers":64,"num_attention_heads":96,"num_key_value_heads":8,"vocab_size":256000,"use_qk_norm":true}`},
		{"internlm2-20b", 19.86e9,
			`{"model_type":"internlm2","hidden_size":6144,"intermediate_size":16384,"num_hidden_layers":48,"num_attention_heads":48,"num_key_value_heads":8,"vocab_size":92544,"tie_word_embeddings":false}`},
		{"yi-34b", 34.389e9,
			`{"model_type":"llama","hidden_size":7168,"intermediate_size":20480,"num_hidden_layers":60,"num_attention_heads":56,"num_key_value_heads":8,"vocab_size":64000}`},
		{"granite-3-8b", 8.171e9,
			`{"model_type":"granite","hidden_size":4096,"intermediate_size":12800,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":49155,"tie_word_embeddings":true}`},
		{"smollm2-1.7b", 1.711e9,
			`{"model_type":"llama","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":24,"num_attention_heads":32,"num_key_value_heads":32,"vocab_size":49152,"tie_word_embeddings":true}`},
		{"minimax-m2", 228.7e9,
			`{"model_type":"minimax_m2","hidden_size":3072,"intermediate_size":1536,"num_hidden_layers":62,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"num_local_experts":256,"num_experts_per_tok":8,"vocab_size":200064,"use_qk_norm":true,"tie_word_embeddings":false}`},
		{"seed-oss-36b", 36.15e9,
			`{"model_type":"seed_oss","hidden_size":5120,"intermediate_size":27648,"num_hidden_layers":64,"num_attention_heads":80,"num_key_value_heads":8,"head_dim":128,"vocab_size":155136,"attention_bias":true,"attention_out_bias":false}`},
		{"deepseek-moe-16b", 16.376e9,
			`{"model_type":"deepseek","hidden_size":2048,"intermediate_size":10944,"moe_intermediate_size":1408,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":16,"n_routed_experts":64,"n_shared_experts":2,"num_experts_per_tok":6,"first_k_dense_replace":1,"moe_layer_freq":1,"vocab_size":102400}`},
	} {
		m, err := FromHF(c.name, []byte(c.text))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := m.Params().Total; math.Abs(got/c.params-1) > .003 {
			t.Errorf("%s: %.5gB parameters, published %.5gB: %+.2f%%", c.name, got/1e9, c.params/1e9, 100*(got/c.params-1))
		}
	}
	_, err := FromHF("opt-350m",
		[]byte(`{"model_type":"opt","hidden_size":1024,"ffn_dim":4096,"num_hidden_layers":24,"num_attention_heads":16,"vocab_size":50272,"max_position_embeddings":2048,"word_embed_proj_dim":512}`))
	if err == nil || !strings.Contains(err.Error(), "word_embed_proj_dim 512") {
		t.Errorf("an embedding narrower than the layers: %v", err)
	}
}

// Files that are no model say what they are.
func TestFilesThatAreNoModel(t *testing.T) {
	for text, want := range map[string]string{"": "empty", " \n": "empty", "[]": "list", "\xff\xfe{\x00": "UTF-16",
		`{"model_type":"llama","hidden_size":1e30,"num_hidden_layers":2,"num_attention_heads":32,"intermediate_size":8,"vocab_size":9}`: "hidden_size is 1e30"} {
		if _, err := Read("x", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// A text_config that is null is none: the file describes the model itself.
func TestNullTextConfig(t *testing.T) {
	const file = `{"model_type":"llama","text_config":null,"tie_word_embeddings":true,"hidden_size":1024,"num_hidden_layers":24,
		"num_attention_heads":16,"vocab_size":32000,"intermediate_size":4096}`
	m, err := FromHF("x", []byte(file))
	if err != nil || m.Layers != 24 || !m.Tied {
		t.Errorf("%+v, %v", m, err)
	}
}

// The base of rotary positions comes from a file in any of its spellings, and from the catalogue by the longest name that fits.
func TestRopeBase(t *testing.T) {
	const shape = `{"model_type":"llama","hidden_size":256,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":512,` +
		`"vocab_size":1000`
	for more, want := range map[string]int{
		`}`:                       0,
		`,"rope_theta":500000.0}`: 500000,
		`,"rope_theta":1e6}`:      1000000,
		`,"rope_parameters":{"rope_theta":5000000,"rope_type":"default"}}`:                                 5000000,
		`,"rope_parameters":{"full_attention":{"rope_theta":1e6},"sliding_attention":{"rope_theta":1e4}}}`: 1000000,
	} {
		m, err := FromHF("config.json", []byte(shape+more))
		if err != nil {
			t.Fatal(err)
		}
		if m.RoPEBase != want {
			t.Errorf("%s: base %d, want %d", more, m.RoPEBase, want)
		}
	}
	for name, want := range map[string]int{"qwen3-8b": 1000000, "qwen3-next-80b-a3b": 10000000, "llama-65b": 10000, "llama3.2-1b": 500000,
		"gpt3-175b": 0} {
		m, err := Named(name)
		if err != nil {
			t.Fatal(err)
		}
		if m.RoPEBase != want {
			t.Errorf("%s: base %d, want %d", name, m.RoPEBase, want)
		}
	}
}

// A word that begins names finds those first, and models that cannot be planned are told from those that are not known.
func TestUnknownNames(t *testing.T) {
	for name, want := range map[string]string{
		"llama":                    "nearest: llama-33b, llama-65b, llama2-7b, llama3-8b",
		"qwen3-30":                 "nearest: qwen3-30b-a3b",
		"nvidia/Nemotron-3-Nano":   "state-space layers, which are not modelled",
		"Nemotron-H-56B":           "state-space layers",
		"lama3-8b":                 "nearest: llama3-8b",
		"nemotron5":                "nearest: nemotron",
		"llama-3.3-nemotron-super": "layers of different shapes",
	} {
		if _, err := Named(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", name, err, want)
		}
	}
}

// Bases as the makers' config.json files have them; ai-dynamo/aiconfigurator at 095f58a carries these files.
func TestRopeBasesArePublished(t *testing.T) {
	for name, base := range map[string]int{
		"llama3-8b": 500000, "llama3-70b": 500000, "llama3.1-405b": 500000, "llama4-scout": 500000, "llama4-maverick": 500000,
		"mixtral-8x7b": 1000000, "mixtral-8x22b": 1000000, "qwen3-0.6b": 1000000, "qwen3-1.7b": 1000000, "qwen3-8b": 1000000,
		"qwen3-32b": 1000000, "qwen3-30b-a3b": 1000000, "qwen3-235b-a22b": 1000000, "qwen3.5-35b-a3b": 10000000,
		"qwen3.5-397b-a17b": 10000000, "minimax-m2": 5000000, "deepseek-v3": 10000, "kimi-k2": 50000, "gpt-oss-20b": 150000,
		"gpt-oss-120b": 150000, "glm-5": 1000000,
	} {
		m, err := Named(name)
		if err != nil || m.RoPEBase != base {
			t.Errorf("%s has base %d, published is %d; %v", name, m.RoPEBase, base, err)
		}
	}
}
