package work

// Linear is the gated delta networks of a hybrid model: most layers keep a state of fixed size instead of keys and values, and
// every few layers one attends to all tokens.
//
//	x ─► q, k, v, z, a, b ─► short convolution ─► state ← decay · state + k ⊗ (v − kᵀ state) ─► q state ─► gate by z ─► out
type Linear struct {
	Layers     int `json:"layers"` // how many of the model's layers are of this kind
	KeyHeads   int `json:"key_heads"`
	KeyDim     int `json:"key_dim"`
	ValueHeads int `json:"value_heads"`
	ValueDim   int `json:"value_dim"`
	Conv       int `json:"conv"` // tokens that the convolution before the state sees
}

// keys and values are the widths of all heads together.
func (l *Linear) keys() float64   { return float64(l.KeyHeads * l.KeyDim) }
func (l *Linear) values() float64 { return float64(l.ValueHeads * l.ValueDim) }

// In is the width of the projection from the hidden state: queries, keys, values, the output gate, and two gates per value head.
func (l *Linear) In() float64 { return 2*l.keys() + 2*l.values() + 2*float64(l.ValueHeads) }

// Out is the width that is projected back to the hidden state.
func (l *Linear) Out() float64 { return l.values() }

// params is one layer's, of hidden size h: both projections, the convolution, two numbers per value head and a norm.
func (l *Linear) params(h float64) float64 {
	return h*l.In() + float64(l.Conv)*(2*l.keys()+l.values()) + 2*float64(l.ValueHeads) + float64(l.ValueDim) + h*l.Out()
}

// CoreFLOPs is the operations on a layer's state per token: decay, read, write and query of a matrix per value head.
func (l *Linear) CoreFLOPs() float64 {
	return 2 * (float64(l.Conv)*(2*l.keys()+l.values()) + 4*float64(l.ValueHeads*l.KeyDim*l.ValueDim))
}

// StateBytes is what one layer keeps of a sequence, whatever its length: a float32 matrix per value head, and the convolution's last
// inputs in bf16.
func (l *Linear) StateBytes() float64 {
	return 4*float64(l.ValueHeads*l.KeyDim*l.ValueDim) + 2*float64(l.Conv-1)*(2*l.keys()+l.values())
}

// StateBytes is what a hybrid model keeps of a sequence beside the KV cache; 0 for models that attend in every layer.
func (m *Model) StateBytes() float64 {
	if m.Linear == nil {
		return 0
	}
	return float64(m.Linear.Layers) * m.Linear.StateBytes()
}

// Attending is how many layers attend to earlier tokens, and so keep their keys and values.
func (m *Model) Attending() int {
	if m.Linear == nil {
		return m.Layers
	}
	return m.Layers - m.Linear.Layers
}

// instead is how many more parameters the model's linear layers have than as many layers with attention.
func (m *Model) instead() float64 {
	if m.Linear == nil {
		return 0
	}
	l := m.Layer(false)
	own := m.Linear.params(float64(m.Hidden)) - l.Attention
	if m.QKNorm {
		own -= 2 * float64(m.HeadDim)
	}
	return float64(m.Linear.Layers) * own
}

// linear reads the gated delta networks of Qwen3-Next and its successors; nil where a configuration has none.
func (c config) linear() *Linear {
	values := c.number("linear_num_value_heads")
	if values == 0 {
		return nil
	}
	l := &Linear{KeyHeads: c.number("linear_num_key_heads"), KeyDim: c.number("linear_key_head_dim"), ValueHeads: values,
		ValueDim: c.number("linear_value_head_dim"), Conv: c.number("linear_conv_kernel_dim")}
	if types := c.strings("layer_types"); len(types) > 0 {
		for _, t := range types {
			if t == "linear_attention" {
				l.Layers++
			}
		}
		return l
	}
	layers := c.number("num_hidden_layers")
	l.Layers = layers - layers/max(c.number("full_attention_interval"), 1)
	if c.number("full_attention_interval") == 0 {
		l.Layers = layers - layers/4
	}
	return l
}
