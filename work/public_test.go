package work

import (
	"math"
	"strings"
	"testing"
)

// publicModels are shapes as their makers' config.json state them, and the parameters that the makers or the
// weights' files count; of models that also see pictures, the text part.
var publicModels = []struct {
	name   string
	total  float64 // billions
	config string
}{
	{"gemma-2-9b", 9.2417, `{"model_type":"gemma2","hidden_size":3584,"num_hidden_layers":42,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"intermediate_size":14336,"vocab_size":256000,"hidden_act":"gelu_pytorch_tanh","sliding_window":4096}`},
	{"gemma-2-27b", 27.2271, `{"model_type":"gemma2","hidden_size":4608,"num_hidden_layers":46,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"intermediate_size":36864,"vocab_size":256000,"sliding_window":4096}`},
	{"gemma-3-27b", 27.0093, `{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":5376,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"intermediate_size":21504,"vocab_size":262208,"sliding_window":1024}}`},
	{"qwen3-235b-a22b", 235.0936, `{"model_type":"qwen3_moe","hidden_size":4096,"num_hidden_layers":94,"num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"intermediate_size":12288,"moe_intermediate_size":1536,"num_experts":128,"num_experts_per_tok":8,"decoder_sparse_step":1,"mlp_only_layers":[],"vocab_size":151936,"tie_word_embeddings":false}`},
	{"phi-3.5-moe", 41.8732, `{"model_type":"phimoe","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":6400,"num_local_experts":16,"num_experts_per_tok":2,"vocab_size":32064,"attention_bias":true,"lm_head_bias":true,"tie_word_embeddings":false}`},
	{"mixtral-8x22b", 140.6206, `{"model_type":"mixtral","hidden_size":6144,"num_hidden_layers":56,"num_attention_heads":48,"num_key_value_heads":8,"intermediate_size":16384,"num_local_experts":8,"num_experts_per_tok":2,"vocab_size":32768,"tie_word_embeddings":false}`},
	{"dbrx", 131.5965, `{"model_type":"dbrx","d_model":6144,"n_layers":40,"n_heads":48,"attn_config":{"kv_n_heads":8,"clip_qkv":8},"ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4},"vocab_size":100352,"tie_word_embeddings":false}`},
	{"falcon-7b", 6.9217, `{"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,"multi_query":true,"new_decoder_architecture":false,"vocab_size":65024}`},
	{"falcon-40b", 41.3033, `{"model_type":"falcon","hidden_size":8192,"num_hidden_layers":60,"num_attention_heads":128,"num_kv_heads":8,"new_decoder_architecture":true,"vocab_size":65024}`},
	{"glm-4.5-air, without its MTP layer", 106.85, `{"model_type":"glm4_moe","hidden_size":4096,"num_hidden_layers":46,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":128,"num_experts_per_tok":8,"n_shared_experts":1,"first_k_dense_replace":1,"vocab_size":151552,"attention_bias":true,"tie_word_embeddings":false}`},
	{"gpt-oss-120b", 116.8292, `{"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":36,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,"num_local_experts":128,"num_experts_per_tok":4,"vocab_size":201088,"sliding_window":128,"attention_bias":true,"tie_word_embeddings":false}`},
	{"kimi-k2", 1026.41, `{"model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":64,"num_key_value_heads":64,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":384,"num_experts_per_tok":8,"n_shared_experts":1,"first_k_dense_replace":1,"moe_layer_freq":1,"n_group":1,"topk_group":1,"vocab_size":163840,"num_nextn_predict_layers":0,"tie_word_embeddings":false}`},
	{"llama-4-scout", 107.77, `{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,"intermediate_size_mlp":16384,"num_local_experts":16,"num_experts_per_tok":1,"interleave_moe_layer_step":1,"vocab_size":202048,"attention_chunk_size":8192,"use_qk_norm":true,"tie_word_embeddings":false}}`},
	{"llama-4-maverick", 400.71, `{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,"intermediate_size_mlp":16384,"num_local_experts":128,"num_experts_per_tok":1,"interleave_moe_layer_step":2,"vocab_size":202048,"attention_chunk_size":8192,"use_qk_norm":false,"tie_word_embeddings":false}}`},
	{"olmo-2-7b", 7.2986, `{"model_type":"olmo2","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":11008,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"olmo-2-32b", 32.2343, `{"model_type":"olmo2","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":40,"num_key_value_heads":8,"intermediate_size":27648,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"command-r-plus", 103.8107, `{"model_type":"cohere","hidden_size":12288,"num_hidden_layers":64,"num_attention_heads":96,"num_key_value_heads":8,"intermediate_size":33792,"vocab_size":256000,"use_qk_norm":true}`},
	{"command-r", 34.9808, `{"model_type":"cohere","hidden_size":8192,"num_hidden_layers":40,"num_attention_heads":64,"num_key_value_heads":64,"intermediate_size":22528,"vocab_size":256000,"use_qk_norm":false}`},
	{"ernie-4.5-21b-a3b", 21.83, `{"model_type":"ernie4_5_moe","hidden_size":2560,"num_hidden_layers":28,"num_attention_heads":20,"num_key_value_heads":4,"intermediate_size":12288,"moe_intermediate_size":1536,"moe_num_experts":64,"moe_k":6,"moe_num_shared_experts":2,"moe_layer_start_index":1,"moe_layer_interval":1,"vocab_size":103424,"use_bias":false,"tie_word_embeddings":true}`},
	{"minimax-m2", 228.69, `{"model_type":"minimax_m2","hidden_size":3072,"num_hidden_layers":62,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"intermediate_size":1536,"num_local_experts":256,"num_experts_per_tok":8,"vocab_size":200064,"use_qk_norm":true,"num_mtp_modules":3,"use_mtp":true,"tie_word_embeddings":false}`},
	{"mistral-small-24b", 23.5724, `{"model_type":"mistral","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":32768,"vocab_size":131072,"sliding_window":null,"tie_word_embeddings":false}`},
	{"yi-34b", 34.3889, `{"model_type":"llama","hidden_size":7168,"num_hidden_layers":60,"num_attention_heads":56,"num_key_value_heads":8,"intermediate_size":20480,"vocab_size":64000,"tie_word_embeddings":false}`},
	{"phi-4", 14.6595, `{"model_type":"phi3","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":40,"num_key_value_heads":10,"intermediate_size":17920,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"starcoder2-15b", 15.9579, `{"model_type":"starcoder2","hidden_size":6144,"num_hidden_layers":40,"num_attention_heads":48,"num_key_value_heads":4,"intermediate_size":24576,"vocab_size":49152,"hidden_act":"gelu_pytorch_tanh","norm_type":"layer_norm","use_bias":true,"tie_word_embeddings":false}`},
	{"deepseek-v2-lite", 15.7065, `{"model_type":"deepseek_v2","hidden_size":2048,"num_hidden_layers":27,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":null,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":64,"num_experts_per_tok":6,"n_shared_experts":2,"first_k_dense_replace":1,"moe_layer_freq":1,"vocab_size":102400,"tie_word_embeddings":false}`},
	{"smollm2-1.7b", 1.7114, `{"model_type":"llama","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":8192,"vocab_size":49152,"tie_word_embeddings":true}`},
	{"hunyuan-a13b", 80.39, `{"model_type":"hunyuan_v1_moe","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":3072,"moe_intermediate_size":[3072,3072],"num_experts":64,"moe_topk":[8,8],"num_shared_expert":[1,1],"vocab_size":128167,"use_qk_norm":true,"tie_word_embeddings":true}`},
}

// Parameters of public models, read from their config.json, are within half a percent of what their makers count.
func TestPublicModels(t *testing.T) {
	for _, c := range publicModels {
		m, err := FromHF(c.name, []byte(c.config))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := m.Params().Total / 1e9
		t.Logf("%-36s %9.3f billion, counted %9.3f, %+.2f%%", c.name, got, c.total, 100*(got/c.total-1))
		if math.Abs(got/c.total-1) > .005 {
			t.Errorf("%s has %.3f billion parameters; counted are %.3f", c.name, got, c.total)
		}
	}
}

// What is not modelled is refused, with the reason.
func TestPublicModelsRefused(t *testing.T) {
	for kind, why := range map[string]string{
		`{"model_type":"nemotron_h","hidden_size":4480,"num_hidden_layers":56,"num_attention_heads":40,"vocab_size":131072,"intermediate_size":15680}`:                                                                        "state-space",
		`{"model_type":"jamba","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"vocab_size":65536,"intermediate_size":14336}`:                                                                              "state-space",
		`{"model_type":"minimax_text_01","hidden_size":6144,"num_hidden_layers":80,"num_attention_heads":64,"vocab_size":200064,"intermediate_size":9216,"num_local_experts":32,"attn_type_list":[0,0,0,1]}`:                  "linear-attention",
		`{"model_type":"kimi_linear","hidden_size":2304,"num_hidden_layers":27,"num_attention_heads":32,"vocab_size":163840,"intermediate_size":9216,"linear_attn_config":{"kda_layers":[1,2,3]}}`:                            "linear-attention",
		`{"model_type":"falcon_h1","hidden_size":5120,"num_hidden_layers":72,"num_attention_heads":20,"vocab_size":261120,"intermediate_size":21504,"mamba_d_state":256}`:                                                     "state-space",
		`{"model_type":"arctic","hidden_size":7168,"num_hidden_layers":35,"num_attention_heads":56,"num_key_value_heads":8,"vocab_size":32000,"intermediate_size":4864,"num_local_experts":128,"parallel_attn_mlp_res":true}`: "dense MLP beside",
		`{"model_type":"gemma3n","hidden_size":2048,"num_hidden_layers":30,"num_attention_heads":8,"vocab_size":262400,"intermediate_size":8192,"hidden_size_per_layer_input":256}`:                                           "per layer",
		`{"model_type":"lfm2","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":32,"vocab_size":65536,"intermediate_size":12288,"conv_L_cache":3}`:                                                              "convolution",
	} {
		if m, err := FromHF("x", []byte(kind)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: read as %+v, error %v; want one about %q", kind, m, err, why)
		}
	}
}
