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
	active float64 // billions that a token passes, embedding and head among them; 0 where it is not stated or all are
	config string
}{
	{"minicpm-2b", 2.7249, 0,
		`{"model_type":"minicpm","hidden_size":2304,"num_hidden_layers":40,"num_attention_heads":36,"num_key_value_heads":36,"intermediate_size":5760,"vocab_size":122753}`},
	{"apertus-8b", 8.053, 0,
		`{"model_type":"apertus","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":21504,"vocab_size":131072,"hidden_act":"xielu","qk_norm":true,"tie_word_embeddings":false}`},
	{"gemma-2-9b", 9.2417, 0,
		`{"model_type":"gemma2","hidden_size":3584,"num_hidden_layers":42,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"intermediate_size":14336,"vocab_size":256000,"hidden_act":"gelu_pytorch_tanh","sliding_window":4096}`},
	{"gemma-2-27b", 27.2271, 0,
		`{"model_type":"gemma2","hidden_size":4608,"num_hidden_layers":46,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"intermediate_size":36864,"vocab_size":256000,"sliding_window":4096}`},
	{"gemma-3-27b", 27.0093, 0,
		`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":5376,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"intermediate_size":21504,"vocab_size":262208,"sliding_window":1024}}`},
	{"qwen3-235b-a22b", 235.0936, 0,
		`{"model_type":"qwen3_moe","hidden_size":4096,"num_hidden_layers":94,"num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"intermediate_size":12288,"moe_intermediate_size":1536,"num_experts":128,"num_experts_per_tok":8,"decoder_sparse_step":1,"mlp_only_layers":[],"vocab_size":151936,"tie_word_embeddings":false}`},
	{"phi-3.5-moe", 41.8732, 0,
		`{"model_type":"phimoe","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":6400,"num_local_experts":16,"num_experts_per_tok":2,"vocab_size":32064,"attention_bias":true,"lm_head_bias":true,"tie_word_embeddings":false}`},
	{"mixtral-8x22b", 140.6206, 0,
		`{"model_type":"mixtral","hidden_size":6144,"num_hidden_layers":56,"num_attention_heads":48,"num_key_value_heads":8,"intermediate_size":16384,"num_local_experts":8,"num_experts_per_tok":2,"vocab_size":32768,"tie_word_embeddings":false}`},
	{"dbrx", 131.5965, 0,
		`{"model_type":"dbrx","d_model":6144,"n_layers":40,"n_heads":48,"attn_config":{"kv_n_heads":8,"clip_qkv":8},"ffn_config":{"ffn_hidden_size":10752,"moe_num_experts":16,"moe_top_k":4},"vocab_size":100352,"tie_word_embeddings":false}`},
	{"falcon-7b", 6.9217, 0,
		`{"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,"multi_query":true,"new_decoder_architecture":false,"vocab_size":65024}`},
	{"falcon-40b", 41.3033, 0,
		`{"model_type":"falcon","hidden_size":8192,"num_hidden_layers":60,"num_attention_heads":128,"num_kv_heads":8,"new_decoder_architecture":true,"vocab_size":65024}`},
	{"glm-4.5-air, without its MTP layer", 106.85, 0,
		`{"model_type":"glm4_moe","hidden_size":4096,"num_hidden_layers":46,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":128,"num_experts_per_tok":8,"n_shared_experts":1,"first_k_dense_replace":1,"vocab_size":151552,"attention_bias":true,"tie_word_embeddings":false}`},
	{"gpt-oss-120b", 116.8292, 0,
		`{"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":36,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,"num_local_experts":128,"num_experts_per_tok":4,"vocab_size":201088,"sliding_window":128,"attention_bias":true,"tie_word_embeddings":false}`},
	{"kimi-k2", 1026.41, 0,
		`{"model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":64,"num_key_value_heads":64,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":384,"num_experts_per_tok":8,"n_shared_experts":1,"first_k_dense_replace":1,"moe_layer_freq":1,"n_group":1,"topk_group":1,"vocab_size":163840,"num_nextn_predict_layers":0,"tie_word_embeddings":false}`},
	{"llama-4-scout", 107.77, 0,
		`{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,"intermediate_size_mlp":16384,"num_local_experts":16,"num_experts_per_tok":1,"interleave_moe_layer_step":1,"vocab_size":202048,"attention_chunk_size":8192,"use_qk_norm":true,"tie_word_embeddings":false}}`},
	{"llama-4-maverick", 400.71, 0,
		`{"model_type":"llama4","text_config":{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":8192,"intermediate_size_mlp":16384,"num_local_experts":128,"num_experts_per_tok":1,"interleave_moe_layer_step":2,"vocab_size":202048,"attention_chunk_size":8192,"use_qk_norm":false,"tie_word_embeddings":false}}`},
	{"olmo-2-7b", 7.2986, 0,
		`{"model_type":"olmo2","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":11008,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"olmo-2-32b", 32.2343, 0,
		`{"model_type":"olmo2","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":40,"num_key_value_heads":8,"intermediate_size":27648,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"command-r-plus", 103.8107, 0,
		`{"model_type":"cohere","hidden_size":12288,"num_hidden_layers":64,"num_attention_heads":96,"num_key_value_heads":8,"intermediate_size":33792,"vocab_size":256000,"use_qk_norm":true}`},
	{"command-r", 34.9808, 0,
		`{"model_type":"cohere","hidden_size":8192,"num_hidden_layers":40,"num_attention_heads":64,"num_key_value_heads":64,"intermediate_size":22528,"vocab_size":256000,"use_qk_norm":false}`},
	{"ernie-4.5-21b-a3b", 21.83, 0,
		`{"model_type":"ernie4_5_moe","hidden_size":2560,"num_hidden_layers":28,"num_attention_heads":20,"num_key_value_heads":4,"intermediate_size":12288,"moe_intermediate_size":1536,"moe_num_experts":64,"moe_k":6,"moe_num_shared_experts":2,"moe_layer_start_index":1,"moe_layer_interval":1,"vocab_size":103424,"use_bias":false,"tie_word_embeddings":true}`},
	{"minimax-m2", 228.69, 0,
		`{"model_type":"minimax_m2","hidden_size":3072,"num_hidden_layers":62,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"intermediate_size":1536,"num_local_experts":256,"num_experts_per_tok":8,"vocab_size":200064,"use_qk_norm":true,"num_mtp_modules":3,"use_mtp":true,"tie_word_embeddings":false}`},
	{"mistral-small-24b", 23.5724, 0,
		`{"model_type":"mistral","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":32768,"vocab_size":131072,"sliding_window":null,"tie_word_embeddings":false}`},
	{"yi-34b", 34.3889, 0,
		`{"model_type":"llama","hidden_size":7168,"num_hidden_layers":60,"num_attention_heads":56,"num_key_value_heads":8,"intermediate_size":20480,"vocab_size":64000,"tie_word_embeddings":false}`},
	{"phi-4", 14.6595, 0,
		`{"model_type":"phi3","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":40,"num_key_value_heads":10,"intermediate_size":17920,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"starcoder2-15b", 15.9579, 0,
		`{"model_type":"starcoder2","hidden_size":6144,"num_hidden_layers":40,"num_attention_heads":48,"num_key_value_heads":4,"intermediate_size":24576,"vocab_size":49152,"hidden_act":"gelu_pytorch_tanh","norm_type":"layer_norm","use_bias":true,"tie_word_embeddings":false}`},
	{"deepseek-v2-lite", 15.7065, 0,
		`{"model_type":"deepseek_v2","hidden_size":2048,"num_hidden_layers":27,"num_attention_heads":16,"num_key_value_heads":16,"q_lora_rank":null,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":64,"num_experts_per_tok":6,"n_shared_experts":2,"first_k_dense_replace":1,"moe_layer_freq":1,"vocab_size":102400,"tie_word_embeddings":false}`},
	{"smollm2-1.7b", 1.7114, 0,
		`{"model_type":"llama","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":8192,"vocab_size":49152,"tie_word_embeddings":true}`},
	{"hunyuan-a13b", 80.39, 0,
		`{"model_type":"hunyuan_v1_moe","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":3072,"moe_intermediate_size":[3072,3072],"num_experts":64,"moe_topk":[8,8],"num_shared_expert":[1,1],"vocab_size":128167,"use_qk_norm":true,"tie_word_embeddings":true}`},
	{"qwen3-0.6b", 0.59605, 0,
		`{"model_type":"qwen3","hidden_size":1024,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"intermediate_size":3072,"vocab_size":151936,"tie_word_embeddings":true,"sliding_window":null}`},
	{"qwen2.5-72b", 72.706, 0,
		`{"model_type":"qwen2","hidden_size":8192,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"intermediate_size":29568,"vocab_size":152064,"tie_word_embeddings":false,"use_sliding_window":false,"sliding_window":131072,"max_window_layers":70}`},
	{"qwen2-57b-a14b", 57.409, 14.2,
		`{"model_type":"qwen2_moe","hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,"intermediate_size":18944,"moe_intermediate_size":2560,"shared_expert_intermediate_size":20480,"num_experts":64,"num_experts_per_tok":8,"decoder_sparse_step":1,"vocab_size":151936,"tie_word_embeddings":false,"norm_topk_prob":false}`},
	{"qwen1.5-moe-a2.7b", 14.316, 2.69,
		`{"model_type":"qwen2_moe","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":5632,"moe_intermediate_size":1408,"shared_expert_intermediate_size":5632,"num_experts":60,"num_experts_per_tok":4,"decoder_sparse_step":1,"vocab_size":151936,"tie_word_embeddings":false}`},
	{"gemma-2-2b", 2.6143, 0,
		`{"model_type":"gemma2","hidden_size":2304,"num_hidden_layers":26,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"intermediate_size":9216,"vocab_size":256000,"sliding_window":4096}`},
	{"gemma-7b", 8.5377, 0,
		`{"model_type":"gemma","hidden_size":3072,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":16,"head_dim":256,"intermediate_size":24576,"vocab_size":256000,"hidden_act":"gelu"}`},
	{"gemma-2b", 2.5062, 0,
		`{"model_type":"gemma","hidden_size":2048,"num_hidden_layers":18,"num_attention_heads":8,"num_key_value_heads":1,"head_dim":256,"intermediate_size":16384,"vocab_size":256000}`},
	{"gemma-3-1b", 0.99989, 0,
		`{"model_type":"gemma3_text","hidden_size":1152,"num_hidden_layers":26,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"intermediate_size":6912,"vocab_size":262144,"sliding_window":512,"sliding_window_pattern":6}`},
	{"gemma-3-4b as published (text)", 3.8801, 0,
		`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},"vision_config":{"hidden_size":1152,"image_size":896,"intermediate_size":4304,"model_type":"siglip_vision_model","num_attention_heads":16,"num_hidden_layers":27,"patch_size":14}}`},
	{"gemma-3-12b as published (text)", 11.766, 0,
		`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":3840,"intermediate_size":15360,"num_attention_heads":16,"num_hidden_layers":48,"num_key_value_heads":8,"sliding_window":1024},"vision_config":{}}`},
	{"gemma-3-27b as published (text)", 27.0093, 0,
		`{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","head_dim":128,"hidden_size":5376,"intermediate_size":21504,"num_attention_heads":32,"num_hidden_layers":62,"num_key_value_heads":16,"query_pre_attn_scalar":168,"sliding_window":1024},"vision_config":{}}`},
	{"glm-4.5 without MTP", 352.797, 33.0,
		`{"model_type":"glm4_moe","hidden_size":5120,"num_hidden_layers":92,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"intermediate_size":12288,"moe_intermediate_size":1536,"n_routed_experts":160,"num_experts_per_tok":8,"n_shared_experts":1,"first_k_dense_replace":3,"vocab_size":151552,"attention_bias":true,"use_qk_norm":true,"tie_word_embeddings":false,"n_group":1,"topk_group":1}`},
	{"deepseek-v3 without MTP", 671.026, 37.55,
		`{"model_type":"deepseek_v3","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":18432,"moe_intermediate_size":2048,"n_routed_experts":256,"num_experts_per_tok":8,"n_shared_experts":1,"first_k_dense_replace":3,"moe_layer_freq":1,"n_group":8,"topk_group":4,"vocab_size":129280,"tie_word_embeddings":false,"attention_bias":false}`},
	{"deepseek-v2", 235.741, 21.4,
		`{"model_type":"deepseek_v2","hidden_size":5120,"num_hidden_layers":60,"num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,"kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"intermediate_size":12288,"moe_intermediate_size":1536,"n_routed_experts":160,"num_experts_per_tok":6,"n_shared_experts":2,"first_k_dense_replace":1,"moe_layer_freq":1,"n_group":8,"topk_group":3,"vocab_size":102400,"tie_word_embeddings":false}`},
	{"deepseek-moe-16b", 16.3756, 2.83,
		`{"model_type":"deepseek","hidden_size":2048,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":64,"num_experts_per_tok":6,"n_shared_experts":2,"first_k_dense_replace":1,"moe_layer_freq":1,"vocab_size":102400,"tie_word_embeddings":false}`},
	{"gpt-oss-20b", 20.9148, 4.189,
		`{"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":24,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,"num_local_experts":32,"num_experts_per_tok":4,"vocab_size":201088,"sliding_window":128,"attention_bias":true,"tie_word_embeddings":false,"layer_types":["sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention","sliding_attention","full_attention"]}`},
	{"granite-3.1-8b", 8.1709, 0,
		`{"model_type":"granite","hidden_size":4096,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":12800,"vocab_size":49155,"tie_word_embeddings":true,"attention_bias":false,"mlp_bias":false}`},
	{"granite-3.0-1b-a400m", 1.3346, 0.43,
		`{"model_type":"granitemoe","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,"num_key_value_heads":8,"intermediate_size":512,"num_local_experts":32,"num_experts_per_tok":8,"vocab_size":49155,"tie_word_embeddings":true}`},
	{"granite-34b-code", 33.659, 0,
		`{"model_type":"gpt_bigcode","n_embd":6144,"n_layer":88,"n_head":48,"n_inner":24576,"n_positions":8192,"vocab_size":49152,"multi_query":true,"activation_function":"gelu_pytorch_tanh"}`},
	{"command-r7b", 8.028, 0,
		`{"model_type":"cohere2","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":14336,"vocab_size":256000,"sliding_window":4096,"sliding_window_pattern":4}`},
	{"command-a", 111.058, 0,
		`{"model_type":"cohere2","hidden_size":12288,"num_hidden_layers":64,"num_attention_heads":96,"num_key_value_heads":8,"head_dim":128,"intermediate_size":36864,"vocab_size":256000,"sliding_window":4096,"sliding_window_pattern":4}`},
	{"arctic", 478.585, 17,
		`{"model_type":"arctic","hidden_size":7168,"num_hidden_layers":35,"num_attention_heads":56,"num_key_value_heads":8,"vocab_size":32000,"intermediate_size":4864,"num_local_experts":128,"num_experts_per_tok":2,"parallel_attn_mlp_res":true,"moe_layer_frequency":1,"use_residual":true,"tie_word_embeddings":false}`},
	{"grok-2", 269.515, 0,
		`{"model_type":"git","hidden_size":8192,"num_hidden_layers":64,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":128,"intermediate_size":32768,"moe_intermediate_size":16384,"num_local_experts":8,"num_experts_per_tok":2,"residual_moe":true,"vocab_size":131072,"tie_word_embeddings":false}`},
	{"internlm2-7b", 7.7377, 0,
		`{"model_type":"internlm2","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":92544,"bias":false,"tie_word_embeddings":false}`},
	{"internlm2-20b", 19.861, 0,
		`{"model_type":"internlm2","hidden_size":6144,"num_hidden_layers":48,"num_attention_heads":48,"num_key_value_heads":8,"intermediate_size":16384,"vocab_size":92544,"bias":false,"tie_word_embeddings":false}`},
	{"internlm3-8b", 8.8045, 0,
		`{"model_type":"internlm3","hidden_size":4096,"num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":2,"head_dim":128,"intermediate_size":10240,"vocab_size":128512,"bias":false,"qkv_bias":false,"tie_word_embeddings":false}`},
	{"baichuan2-7b", 7.506, 0,
		`{"model_type":"baichuan","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":11008,"vocab_size":125696,"tie_word_embeddings":false}`},
	{"baichuan2-13b", 13.8967, 0,
		`{"model_type":"baichuan","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":40,"intermediate_size":13696,"vocab_size":125696,"tie_word_embeddings":false}`},
	{"yi-6b", 6.061, 0,
		`{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":4,"intermediate_size":11008,"vocab_size":64000,"tie_word_embeddings":false}`},
	{"starcoder2-3b", 3.0304, 0,
		`{"model_type":"starcoder2","hidden_size":3072,"num_hidden_layers":30,"num_attention_heads":24,"num_key_value_heads":2,"intermediate_size":12288,"vocab_size":49152,"use_bias":true,"sliding_window":4096}`},
	{"starcoder2-7b", 7.1739, 0,
		`{"model_type":"starcoder2","hidden_size":4608,"num_hidden_layers":32,"num_attention_heads":36,"num_key_value_heads":4,"intermediate_size":18432,"vocab_size":49152,"use_bias":true}`},
	{"starcoder", 15.5175, 0,
		`{"model_type":"gpt_bigcode","n_embd":6144,"n_layer":40,"n_head":48,"n_inner":24576,"n_positions":8192,"vocab_size":49152,"multi_query":true}`},
	{"bert-base", 0.10948, 0,
		`{"model_type":"bert","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"vocab_size":30522,"max_position_embeddings":512,"type_vocab_size":2,"hidden_act":"gelu"}`},
	{"bert-large", 0.33514, 0,
		`{"model_type":"bert","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,"intermediate_size":4096,"vocab_size":30522,"max_position_embeddings":512,"type_vocab_size":2,"hidden_act":"gelu"}`},
	{"roberta-large", 0.35536, 0,
		`{"model_type":"roberta","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,"intermediate_size":4096,"vocab_size":50265,"max_position_embeddings":514,"type_vocab_size":1,"hidden_act":"gelu"}`},
	{"xlm-roberta-base", 0.27804, 0,
		`{"model_type":"xlm-roberta","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"vocab_size":250002,"max_position_embeddings":514,"type_vocab_size":1,"hidden_act":"gelu"}`},
	{"modernbert-base", 0.14901, 0,
		`{"model_type":"modernbert","hidden_size":768,"num_hidden_layers":22,"num_attention_heads":12,"intermediate_size":1152,"vocab_size":50368,"global_attn_every_n_layers":3,"local_attention":128,"hidden_activation":"gelu","tie_word_embeddings":true}`},
	{"mistral-nemo", 12.2478, 0,
		`{"model_type":"mistral","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":14336,"vocab_size":131072,"sliding_window":null,"tie_word_embeddings":false}`},
	{"ministral-8b", 8.0198, 0,
		`{"model_type":"mistral","hidden_size":4096,"num_hidden_layers":36,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":12288,"vocab_size":131072,"sliding_window":32768,"tie_word_embeddings":false}`},
	{"codestral-22b", 22.2473, 0,
		`{"model_type":"mistral","hidden_size":6144,"num_hidden_layers":56,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"intermediate_size":16384,"vocab_size":32768,"tie_word_embeddings":false}`},
	{"mixtral-8x7b", 46.7028, 12.88,
		`{"model_type":"mixtral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"num_local_experts":8,"num_experts_per_tok":2,"vocab_size":32000,"tie_word_embeddings":false}`},
	{"olmo-7b", 6.8881, 0,
		`{"model_type":"olmo","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":11008,"vocab_size":50304,"tie_word_embeddings":false}`},
	{"olmoe-1b-7b", 6.9192, 1.28,
		`{"model_type":"olmoe","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":1024,"num_experts":64,"num_experts_per_tok":8,"vocab_size":50304,"tie_word_embeddings":false}`},
	{"olmo-2-13b", 13.7163, 0,
		`{"model_type":"olmo2","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":40,"num_key_value_heads":40,"intermediate_size":13824,"vocab_size":100352,"tie_word_embeddings":false}`},
	{"phi-2", 2.7797, 0,
		`{"model_type":"phi","hidden_size":2560,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":10240,"vocab_size":51200,"tie_word_embeddings":false,"hidden_act":"gelu_new"}`},
	{"phi-1.5", 1.4183, 0,
		`{"model_type":"phi","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":32,"intermediate_size":8192,"vocab_size":51200,"tie_word_embeddings":false,"hidden_act":"gelu_new"}`},
	{"phi-3-mini", 3.8211, 0,
		`{"model_type":"phi3","hidden_size":3072,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":8192,"vocab_size":32064,"tie_word_embeddings":false,"sliding_window":2047}`},
	{"phi-3-small", 7.3923, 0,
		`{"model_type":"phi3small","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"ff_intermediate_size":14336,"vocab_size":100352,"hidden_act":"gegelu","attention_bias":false,"blocksparse_block_size":64}`},
	{"phi-4-mini", 3.836, 0,
		`{"model_type":"phi3","hidden_size":3072,"num_hidden_layers":32,"num_attention_heads":24,"num_key_value_heads":8,"intermediate_size":8192,"vocab_size":200064,"tie_word_embeddings":true,"attention_bias":false,"partial_rotary_factor":0.75}`},
	{"llama-3.2-1b", 1.2358, 0,
		`{"model_type":"llama","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"intermediate_size":8192,"vocab_size":128256,"tie_word_embeddings":true}`},
	{"llama-3.2-11b-vision", 9.7757, 0,
		`{"model_type":"mllama","text_config":{"model_type":"mllama_text_model","hidden_size":4096,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":128256,"cross_attention_layers":[3,8,13,18,23,28,33,38],"tie_word_embeddings":false},"vision_config":{}}`},
	{"llava-1.5-7b as published", 6.7385, 0,
		`{"model_type":"llava","text_config":{"_name_or_path":"lmsys/vicuna-7b-v1.5","model_type":"llama","max_position_embeddings":4096,"vocab_size":32064,"torch_dtype":"float16"},"vision_config":{"model_type":"clip_vision_model"}}`},
	{"falcon3-7b", 7.4557, 0,
		`{"model_type":"llama","hidden_size":3072,"num_hidden_layers":28,"num_attention_heads":12,"num_key_value_heads":4,"head_dim":256,"intermediate_size":23040,"vocab_size":131072,"tie_word_embeddings":false}`},
	{"falcon-11b", 11.1, 0,
		`{"model_type":"falcon","hidden_size":4096,"num_hidden_layers":60,"num_attention_heads":32,"num_kv_heads":8,"ffn_hidden_size":16384,"new_decoder_architecture":true,"vocab_size":65024,"tie_word_embeddings":false}`},
	{"mpt-7b", 6.6493, 0,
		`{"model_type":"mpt","d_model":4096,"n_layers":32,"n_heads":32,"expansion_ratio":4,"vocab_size":50432,"no_bias":true,"attn_config":{"alibi":true,"attn_type":"multihead_attention"}}`},
	{"mpt-30b", 29.9582, 0,
		`{"model_type":"mpt","d_model":7168,"n_layers":48,"n_heads":64,"expansion_ratio":4,"vocab_size":50432,"no_bias":true,"attn_config":{"alibi":true}}`},
	{"gpt-j-6b", 6.0509, 0,
		`{"model_type":"gptj","n_embd":4096,"n_layer":28,"n_head":16,"n_inner":null,"vocab_size":50400,"tie_word_embeddings":false,"activation_function":"gelu_new","n_positions":2048}`},
	{"gpt-neox-20b", 20.5546, 0,
		`{"model_type":"gpt_neox","hidden_size":6144,"num_hidden_layers":44,"num_attention_heads":64,"intermediate_size":24576,"vocab_size":50432,"tie_word_embeddings":false}`},
	{"pythia-6.9b", 6.8573, 0,
		`{"model_type":"gpt_neox","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":16384,"vocab_size":50432,"tie_word_embeddings":false}`},
	{"pythia-160m", 0.16232, 0,
		`{"model_type":"gpt_neox","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"vocab_size":50304,"tie_word_embeddings":false}`},
	{"gpt-neo-2.7b", 2.6513, 0,
		`{"model_type":"gpt_neo","hidden_size":2560,"num_layers":32,"num_heads":20,"vocab_size":50257,"max_position_embeddings":2048,"window_size":256,"attention_types":[[["global","local"],16]],"intermediate_size":null}`},
	{"gpt2", 0.12444, 0, `{"model_type":"gpt2","n_embd":768,"n_layer":12,"n_head":12,"n_positions":1024,"n_ctx":1024,"vocab_size":50257}`},
	{"opt-6.7b", 6.6585, 0,
		`{"model_type":"opt","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"ffn_dim":16384,"vocab_size":50272,"max_position_embeddings":2048,"word_embed_proj_dim":4096,"activation_function":"relu"}`},
	{"opt-125m", 0.12524, 0,
		`{"model_type":"opt","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"ffn_dim":3072,"vocab_size":50272,"max_position_embeddings":2048,"word_embed_proj_dim":768,"activation_function":"relu"}`},
	{"bloom-7b1", 7.069, 0, `{"model_type":"bloom","n_embed":4096,"n_layer":30,"num_attention_heads":32,"vocab_size":250880}`},
	{"bloom-560m", 0.55921, 0, `{"model_type":"bloom","hidden_size":1024,"n_layer":24,"n_head":16,"vocab_size":250880}`},
	{"stablelm-2-1.6b", 1.6445, 0,
		`{"model_type":"stablelm","hidden_size":2048,"num_hidden_layers":24,"num_attention_heads":32,"num_key_value_heads":32,"intermediate_size":5632,"vocab_size":100352,"use_qkv_bias":true,"tie_word_embeddings":false}`},
	{"stablelm-2-12b", 12.1431, 0,
		`{"model_type":"stablelm","hidden_size":5120,"num_hidden_layers":40,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":13824,"vocab_size":100352,"use_qkv_bias":false,"qk_layernorm":true,"tie_word_embeddings":false}`},
	{"chatglm3-6b", 6.2436, 0,
		`{"model_type":"chatglm","hidden_size":4096,"num_layers":28,"num_attention_heads":32,"ffn_hidden_size":13696,"multi_query_attention":true,"multi_query_group_num":2,"padded_vocab_size":65024,"kv_channels":128,"add_qkv_bias":true,"add_bias_linear":false,"rmsnorm":true}`},
	{"glm-4-9b", 9.3999, 0,
		`{"model_type":"chatglm","hidden_size":4096,"num_layers":40,"num_attention_heads":32,"ffn_hidden_size":13696,"multi_query_attention":true,"multi_query_group_num":2,"padded_vocab_size":151552,"kv_channels":128,"add_qkv_bias":true,"add_bias_linear":false,"rmsnorm":true}`},
	{"glm-4-32b-0414", 32.566, 0,
		`{"model_type":"glm4","hidden_size":6144,"num_hidden_layers":61,"num_attention_heads":48,"num_key_value_heads":2,"head_dim":128,"intermediate_size":23040,"vocab_size":151552,"attention_bias":false,"tie_word_embeddings":false}`},
	{"exaone-3.5-7.8b", 7.8184, 0,
		`{"model_type":"exaone","hidden_size":4096,"num_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":14336,"vocab_size":102400,"activation_function":"silu","tie_word_embeddings":false}`},
	{"exaone-4-32b", 32.0032, 0,
		`{"model_type":"exaone4","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"intermediate_size":27392,"vocab_size":102400,"hidden_act":"silu","tie_word_embeddings":false,"sliding_window":4096,"sliding_window_pattern":"LLLG"}`},
	{"smollm3-3b", 3.0751, 0,
		`{"model_type":"smollm3","hidden_size":2048,"num_hidden_layers":36,"num_attention_heads":16,"num_key_value_heads":4,"intermediate_size":11008,"vocab_size":128256,"tie_word_embeddings":true}`},
	{"dots.llm1", 142.774, 14,
		`{"model_type":"dots1","hidden_size":4096,"num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":32,"head_dim":128,"intermediate_size":10944,"moe_intermediate_size":1408,"n_routed_experts":128,"num_experts_per_tok":6,"n_shared_experts":2,"first_k_dense_replace":1,"moe_layer_freq":1,"vocab_size":152064,"tie_word_embeddings":false}`},
	{"ling-lite", 16.8017, 2.75,
		`{"model_type":"bailing_moe","hidden_size":2048,"num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":4,"intermediate_size":5632,"moe_intermediate_size":1408,"num_experts":64,"num_experts_per_tok":6,"num_shared_experts":2,"first_k_dense_replace":0,"vocab_size":126464,"use_bias":false,"use_qkv_bias":false,"tie_word_embeddings":false}`},
	{"seed-oss-36b", 36.1512, 0,
		`{"model_type":"seed_oss","hidden_size":5120,"num_hidden_layers":64,"num_attention_heads":80,"num_key_value_heads":8,"head_dim":128,"intermediate_size":27648,"vocab_size":155136,"attention_bias":true,"attention_out_bias":false,"mlp_bias":false,"tie_word_embeddings":false}`},
	{"ernie-4.5-300b-a47b", 300, 47,
		`{"model_type":"ernie4_5_moe","hidden_size":8192,"num_hidden_layers":54,"num_attention_heads":64,"num_key_value_heads":8,"intermediate_size":28672,"moe_intermediate_size":3584,"moe_num_experts":64,"moe_k":8,"moe_num_shared_experts":0,"moe_layer_start_index":3,"moe_layer_end_index":53,"moe_layer_interval":1,"vocab_size":103424,"use_bias":false,"tie_word_embeddings":true}`},
	{"nemotron-4-minitron-4b", 4.1921, 0,
		`{"model_type":"nemotron","hidden_size":3072,"num_hidden_layers":32,"num_attention_heads":24,"num_key_value_heads":8,"head_dim":128,"intermediate_size":9216,"vocab_size":256000,"hidden_act":"relu2","tie_word_embeddings":false}`},
	{"persimmon-8b", 9.39, 0,
		`{"model_type":"persimmon","hidden_size":4096,"num_hidden_layers":36,"num_attention_heads":64,"intermediate_size":16384,"vocab_size":262144,"hidden_act":"relu2","qk_layernorm":true,"tie_word_embeddings":false}`},
	{"xglm-7.5b", 7.4931, 0,
		`{"model_type":"xglm","d_model":4096,"num_layers":32,"attention_heads":32,"ffn_dim":16384,"vocab_size":256008,"max_position_embeddings":2048,"activation_function":"gelu"}`},
	{"codegen-16b", 16.032, 0,
		`{"model_type":"codegen","n_embd":6144,"n_layer":34,"n_head":24,"vocab_size":51200,"n_positions":2048,"tie_word_embeddings":false}`},
	{"biogpt", 0.34676, 0,
		`{"model_type":"biogpt","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,"intermediate_size":4096,"vocab_size":42384,"max_position_embeddings":1024,"hidden_act":"gelu"}`},
	{"qwen-7b v1", 7.7213, 0,
		`{"model_type":"qwen","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":22016,"kv_channels":128,"vocab_size":151936,"no_bias":true,"tie_word_embeddings":false}`},
	{"mistral3 as published", 23.5724, 0,
		`{"model_type":"mistral3","text_config":{"model_type":"mistral","head_dim":128,"hidden_size":5120,"intermediate_size":32768,"num_hidden_layers":40,"num_key_value_heads":8,"vocab_size":131072,"rope_theta":1000000000.0,"sliding_window":null,"max_position_embeddings":131072,"num_attention_heads":32},"vision_config":{}}`},
	{"pixtral-12b as published", 12.2478, 0,
		`{"model_type":"llava","text_config":{"model_type":"mistral","head_dim":128,"hidden_size":5120,"intermediate_size":14336,"is_composition":true,"max_position_embeddings":1024000,"num_hidden_layers":40,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":1000000000.0,"sliding_window":null,"vocab_size":131072},"vision_config":{}}`},
	{"qwen2.5-vl-7b", 7.6156, 0,
		`{"model_type":"qwen2_5_vl","hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,"num_key_value_heads":4,"intermediate_size":18944,"vocab_size":152064,"tie_word_embeddings":false,"use_sliding_window":false,"sliding_window":32768,"max_window_layers":28,"vision_config":{"depth":32}}`},
	{"qwen3-vl-30b", 30.5321, 3.35,
		`{"model_type":"qwen3_vl_moe","text_config":{"model_type":"qwen3_vl_moe_text","hidden_size":2048,"num_hidden_layers":48,"num_attention_heads":32,"num_key_value_heads":4,"head_dim":128,"intermediate_size":6144,"moe_intermediate_size":768,"num_experts":128,"num_experts_per_tok":8,"decoder_sparse_step":1,"mlp_only_layers":[],"vocab_size":151936},"vision_config":{"depth":27},"tie_word_embeddings":false}`},
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
		// Makers round what is active to one or two digits.
		if active := m.Params().Active / 1e9; c.active > 0 && math.Abs(active/c.active-1) > .02 {
			t.Errorf("%s has %.3f billion active parameters; counted are %.3f", c.name, active, c.active)
		}
	}
}

// What is not modelled is refused, with the reason.
func TestPublicModelsRefused(t *testing.T) {
	for kind, why := range map[string]string{
		`{"model_type":"nemotron_h","hidden_size":4480,"num_hidden_layers":56,"num_attention_heads":40,"vocab_size":131072,"intermediate_size":15680}`:                                                                                                                                                                                                                                                                         "state-space",
		`{"model_type":"jamba","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"vocab_size":65536,"intermediate_size":14336}`:                                                                                                                                                                                                                                                                               "state-space",
		`{"model_type":"minimax_text_01","hidden_size":6144,"num_hidden_layers":80,"num_attention_heads":64,"vocab_size":200064,"intermediate_size":9216,"num_local_experts":32,"attn_type_list":[0,0,0,1]}`:                                                                                                                                                                                                                   "linear-attention",
		`{"model_type":"kimi_linear","hidden_size":2304,"num_hidden_layers":27,"num_attention_heads":32,"vocab_size":163840,"intermediate_size":9216,"linear_attn_config":{"kda_layers":[1,2,3]}}`:                                                                                                                                                                                                                             "linear-attention",
		`{"model_type":"falcon_h1","hidden_size":5120,"num_hidden_layers":72,"num_attention_heads":20,"vocab_size":261120,"intermediate_size":21504,"mamba_d_state":256}`:                                                                                                                                                                                                                                                      "state-space",
		`{"model_type":"gemma3n","hidden_size":2048,"num_hidden_layers":30,"num_attention_heads":8,"vocab_size":262400,"intermediate_size":8192,"hidden_size_per_layer_input":256}`:                                                                                                                                                                                                                                            "per layer",
		`{"model_type":"lfm2","hidden_size":2048,"num_hidden_layers":16,"num_attention_heads":32,"vocab_size":65536,"intermediate_size":12288,"conv_L_cache":3}`:                                                                                                                                                                                                                                                               "convolution",
		`{"model_type":"albert","hidden_size":768,"embedding_size":128,"num_hidden_layers":12,"num_hidden_groups":1,"num_attention_heads":12,"intermediate_size":3072,"vocab_size":30000,"max_position_embeddings":512,"type_vocab_size":2}`:                                                                                                                                                                                   "share their weights",
		`{"model_type":"electra","hidden_size":256,"embedding_size":128,"num_hidden_layers":12,"num_attention_heads":4,"intermediate_size":1024,"vocab_size":30522,"max_position_embeddings":512,"type_vocab_size":2}`:                                                                                                                                                                                                         "embedding_size",
		`{"model_type":"deberta-v2","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,"intermediate_size":4096,"vocab_size":128100,"max_position_embeddings":512,"type_vocab_size":0,"relative_attention":true,"position_buckets":256}`:                                                                                                                                                                       "another kind",
		`{"model_type":"vit","hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"image_size":224,"patch_size":16}`:                                                                                                                                                                                                                                                                     "image encoder",
		`{"model_type":"wav2vec2","hidden_size":1024,"num_hidden_layers":24,"num_attention_heads":16,"intermediate_size":4096,"vocab_size":32,"conv_dim":[512,512,512,512,512,512,512]}`:                                                                                                                                                                                                                                       "audio encoder",
		`{"model_type":"clip","text_config":{"model_type":"clip_text_model","hidden_size":512,"num_hidden_layers":12,"num_attention_heads":8,"intermediate_size":2048,"vocab_size":49408},"vision_config":{"hidden_size":768,"patch_size":32}}`:                                                                                                                                                                                "image encoder",
		`{"model_type":"rwkv6","hidden_size":4096,"num_hidden_layers":32,"attention_hidden_size":4096,"vocab_size":65536,"head_size":64}`:                                                                                                                                                                                                                                                                                      "recurrent",
		`{"model_type":"t5","d_model":1024,"num_layers":24,"num_heads":16,"d_ff":4096,"vocab_size":32128,"is_encoder_decoder":true}`:                                                                                                                                                                                                                                                                                           "an encoder beside",
		`{"model_type":"whisper","d_model":1280,"encoder_layers":32,"decoder_layers":32,"vocab_size":51866,"num_mel_bins":128,"encoder_attention_heads":20}`:                                                                                                                                                                                                                                                                   "an encoder beside",
		`{"model_type":"longcat_flash","hidden_size":6144,"num_layers":28,"num_attention_heads":64,"ffn_hidden_size":12288,"expert_ffn_hidden_size":2048,"n_routed_experts":512,"zero_expert_num":256,"moe_topk":12,"kv_lora_rank":512,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"vocab_size":131072,"attention_method":"MLA"}`:                                                         "compute nothing",
		`{"model_type":"step3_vl","text_config":{"model_type":"step3_text","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":64,"num_attention_groups":1,"head_dim":256,"share_q_dim":2048,"intermediate_size":18432,"moe_intermediate_size":5120,"moe_num_experts":48,"moe_top_k":3,"share_expert_dim":5120,"vocab_size":128815,"moe_layers_enum":"4,5"}}`:                                                      "lower rank",
		`{"model_type":"qwen3_next","hidden_size":2048,"num_hidden_layers":48,"num_attention_heads":16,"num_key_value_heads":2,"vocab_size":151936,"full_attention_interval":4,"intermediate_size":5120}`:                                                                                                                                                                                                                      "linear-attention",
		`{"model_type":"minimax_m1","hidden_size":6144,"num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":128,"intermediate_size":9216,"num_local_experts":32,"num_experts_per_tok":2,"vocab_size":200064,"attn_type_list":[0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,1]}`: "linear-attention",
		`{"model_type":"marian","d_model":512,"encoder_layers":6,"decoder_layers":6,"vocab_size":58101}`:                                                                                                                                                                                                                                                                                                                       "an encoder beside",
		`{}`: "empty",
	} {
		if m, err := FromHF("x", []byte(kind)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: read as %+v, error %v; want one about %q", kind, m, err, why)
		}
	}
}

// A family that nobody listed is read as the usual decoder, and the model says so.
func TestUnknownFamilySaysSo(t *testing.T) {
	shape := `"hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,"intermediate_size":11008,"vocab_size":32000}`
	m, err := FromHF("x", []byte(`{"model_type":"brand_new",`+shape))
	if err != nil || len(m.Notes) != 1 || !strings.Contains(m.Notes[0], "brand_new") {
		t.Errorf("read as %+v, error %v; want a note", m, err)
	}
	if m, err := FromHF("x", []byte(`{"model_type":"llama",`+shape)); err != nil || len(m.Notes) != 0 {
		t.Errorf("llama: %+v, error %v; want no note", m, err)
	}
}

// An encoder has no mask: its attention takes twice that of a decoder of the same shape.
func TestEncodersHaveNoMask(t *testing.T) {
	m, err := Named("bert-large")
	if err != nil {
		t.Fatal(err)
	}
	f := m.Forward(512)
	if f.Causal != f.Attention {
		t.Errorf("attention %g, under a mask %g; an encoder has none", f.Attention, f.Causal)
	}
}
