package work

import (
	"math"
	"testing"
)

// Parameters, active parameters without the input embedding, and states as computed from the published configurations by hand.
func TestHybridModels(t *testing.T) {
	for _, x := range []struct {
		name                 string
		total, active, state float64 // billions, billions, MB
	}{{"qwen3-next-80b-a3b", 79.67, 3.56, 77}, {"qwen3.5-397b-a17b", 396.35, 16.3, 192}, {"qwen3.5-35b-a3b", 34.66, 2.95, 64}} {
		m, err := Named(x.name)
		if err != nil {
			t.Fatal(err)
		}
		p := m.Params()
		for what, v := range map[string][2]float64{"parameters": {p.Total / 1e9, x.total}, "active": {(p.Active - p.Embedding) / 1e9, x.active},
			"state": {m.StateBytes() / 1e6, x.state}} {
			if math.Abs(v[0]/v[1]-1) > .01 {
				t.Errorf("%s, %s: %.2f, published %.2f", x.name, what, v[0], v[1])
			}
		}
		// A longer sequence makes only the layers that attend more expensive.
		near, far := m.Forward(1024), m.Forward(2048)
		if far.Matrix != near.Matrix || far.Causal-near.Causal != float64(m.Attending())*2*float64(m.Heads*m.HeadDim)*1024 {
			t.Errorf("%s: %+v at 1,024 tokens, %+v at 2,048", x.name, near, far)
		}
	}
}

func TestHybridConfig(t *testing.T) {
	text := `{"model_type":"qwen3_next","hidden_size":2048,"intermediate_size":5120,"moe_intermediate_size":512,"shared_expert_intermediate_size":512,"num_hidden_layers":48,
		"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"num_experts":512,"num_experts_per_tok":10,"decoder_sparse_step":1,"mlp_only_layers":[],"full_attention_interval":4,
		"linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128,"vocab_size":151936,"tie_word_embeddings":false}`
	m, err := FromHF("x", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want, _ := Named("qwen3-next-80b-a3b")
	if m.Params() != want.Params() || m.StateBytes() != want.StateBytes() || m.KVBytesPerToken(2) != want.KVBytesPerToken(2) {
		t.Errorf("%+v\nwant %+v", m.Params(), want.Params())
	}
	if _, err := FromHF("x",
		[]byte(`{"model_type":"qwen3_next","num_hidden_layers":4,"layer_types":["linear_attention","full_attention"]}`)); err == nil {
		t.Error("linear layers without heads are accepted")
	}
}
