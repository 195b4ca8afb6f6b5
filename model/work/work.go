// Package work says what a model asks of a machine, before any machine is named:
// parameters, floating-point operations, bytes and activations.
//
// A model is a value. It comes from a Hugging Face config.json (FromHF), from a small
// YAML file (FromYAML) or from the catalogue by its name (Named).
//
//	config.json ─┐
//	model.yaml  ─┼─► Model ─┬─► Parameters   by component
//	name        ─┘          ├─► FLOPs        by counting convention
//	                        └─► Activations  by what is kept for backward
//
// Symbols in comments: h hidden size, f width of the MLP, a heads, k KV heads, d size of
// a head, L layers, V vocabulary, E experts, K experts a token is routed to.
package work

import (
	"fmt"
	"strings"
)

// Model is a transformer, dense or with experts, or a convolutional network.
type Model struct {
	Name    string `json:"name"`
	Layers  int    `json:"layers"`
	Hidden  int    `json:"hidden"`
	FFN     int    `json:"ffn"` // of a dense layer
	Heads   int    `json:"heads"`
	KVHeads int    `json:"kv_heads"`
	HeadDim int    `json:"head_dim"`
	Vocab   int    `json:"vocab"`
	Gated   bool   `json:"gated"` // three matrices in an MLP (SwiGLU, GeGLU) rather than two
	Tied    bool   `json:"tied"`  // embedding and head share their weights

	LayerNorm bool `json:"layer_norm,omitempty"` // scale and bias rather than RMS's scale alone
	Bias      bool `json:"bias,omitempty"`       // all linear layers have one
	QKVBias   bool `json:"qkv_bias,omitempty"`   // only queries, keys and values have one
	QKNorm    bool `json:"qk_norm,omitempty"`    // queries and keys are normalised head by head
	PostNorms bool `json:"post_norms,omitempty"` // four norms a layer rather than two
	Positions int  `json:"positions,omitempty"`  // rows of a learned position table; 0 for rotary, ALiBi and the like

	RoPEBase int `json:"rope_base,omitempty"` // of rotary positions' angles (rope_theta); 0 where it is not known or there are none

	// Experts. Without them Experts is 0.
	Experts   int `json:"experts,omitempty"`
	TopK      int `json:"top_k,omitempty"`
	Groups    int `json:"expert_groups,omitempty"` // experts lie in groups, and a token goes to few of them
	TopGroups int `json:"top_groups,omitempty"`    // how many of these groups a token chooses
	ExpertFFN int `json:"expert_ffn,omitempty"`

	Router      string  `json:"router,omitempty"`       // sigmoid; softmax without it
	RouterBias  bool    `json:"router_bias,omitempty"`  // a bias per expert balances the load instead of a loss
	RouterScale float64 `json:"router_scale,omitempty"` // what the chosen experts' weights are multiplied by; 0 for 1

	SharedFFN  int  `json:"shared_ffn,omitempty"`  // width of all shared experts together
	DenseFirst int  `json:"dense_first,omitempty"` // the first layers have no experts
	MoEEvery   int  `json:"moe_every,omitempty"`   // every MoEEvery layers one with experts; 0 and 1 for all
	SharedGate bool `json:"shared_gate,omitempty"` // a gate of h weights before the shared expert

	MLA *MLA `json:"mla,omitempty"` // latent attention; nil for the usual kind

	Linear *Linear `json:"linear,omitempty"` // layers that keep a state instead of attending; nil for none
	QGate  bool    `json:"q_gate,omitempty"` // attention's output is gated: queries are projected twice as wide

	Sinks    bool    `json:"sinks,omitempty"`     // each head may attend to nothing: a learned score stands beside those of the keys
	ClampGLU float64 `json:"clamp_glu,omitempty"` // gate and value of MLPs are cut off here, and 1 is added to the value: GPT-OSS

	Window   int `json:"window,omitempty"`   // tokens that windowed layers look back
	Windowed int `json:"windowed,omitempty"` // how many layers are windowed

	MTP int `json:"mtp,omitempty"` // extra layers that predict further tokens

	BothWays bool `json:"both_ways,omitempty"` // every token sees the whole sequence: an encoder, such as BERT

	Notes []string `json:"notes,omitempty"` // what the reader of a file took for granted

	// CNN is set for convolutional networks; then all fields above but Name are zero.
	CNN *CNN `json:"cnn,omitempty"`
}

// MLA is multi-head latent attention: keys and values are kept as one latent vector.
type MLA struct {
	QRank  int `json:"q_rank"` // 0: queries are not compressed
	KVRank int `json:"kv_rank"`
	NoPE   int `json:"nope"` // part of a head without position
	RoPE   int `json:"rope"` // part with position, shared by all heads in keys
	V      int `json:"v"`    // size of a value head
}

// mostLayers bounds what code walks layer by layer. The deepest published transformer has 2,500.
const mostLayers = 10000

// Check reports what makes a model impossible.
func (m *Model) Check() error {
	if m.CNN != nil {
		return nil
	}
	var bad []string
	want := func(ok bool, format string, args ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"layers", m.Layers}, {"hidden", m.Hidden}, {"heads", m.Heads}, {"kv_heads", m.KVHeads}, {"head_dim", m.HeadDim}, {"vocab", m.Vocab}} {
		want(f.value > 0, "%s is %d; it must be at least 1", f.name, f.value)
		want(f.value < 1<<31, "%s is %d; nobody has built that", f.name, f.value)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"layers", m.Layers}, {"mtp", m.MTP}} {
		want(f.value <= mostLayers, "%s is %d; at most %d are supported", f.name, f.value, mostLayers)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"ffn", m.FFN}, {"experts", m.Experts}, {"expert_ffn", m.ExpertFFN}, {"shared_ffn", m.SharedFFN}, {"dense_first", m.DenseFirst},
		{"moe_every", m.MoEEvery},
		{"window", m.Window}, {"mtp", m.MTP}, {"positions", m.Positions}, {"rope_base", m.RoPEBase}} {
		want(f.value >= 0 && f.value < 1<<31, "%s is %d; it must not be negative", f.name, f.value)
	}
	m.checkLayers(want)
	m.checkAttention(want)
	if len(bad) > 0 {
		return fmt.Errorf("model %s: %s", m.Name, strings.Join(bad, "; "))
	}
	return nil
}

// checkLayers checks dense layers and experts against each other.
func (m *Model) checkLayers(want func(ok bool, format string, args ...any)) {
	if m.KVHeads > 0 && m.Heads > 0 {
		want(m.Heads%m.KVHeads == 0, "%d heads cannot share %d KV heads evenly", m.Heads, m.KVHeads)
	}
	if m.Experts > 0 {
		want(m.TopK >= 1 && m.TopK <= m.Experts, "top_k is %d of %d experts", m.TopK, m.Experts)
		want(m.ExpertFFN > 0, "expert_ffn is missing")
		want(m.DenseFirst <= m.Layers, "dense_first is %d of %d layers", m.DenseFirst, m.Layers)
	}
	if m.DenseLayers() > 0 {
		want(m.FFN > 0, "ffn is missing")
	}
}

// checkAttention checks the layers whose attention is of another kind: windowed, linear or latent.
func (m *Model) checkAttention(want func(ok bool, format string, args ...any)) {
	want(m.Windowed >= 0 && m.Windowed <= max(m.Layers, 0), "%d windowed layers of %d", m.Windowed, m.Layers)
	if l := m.Linear; l != nil {
		want(l.Layers > 0 && l.Layers <= m.Layers && min(l.KeyHeads, l.KeyDim, l.ValueHeads, l.ValueDim, l.Conv) > 0 &&
			max(l.KeyHeads, l.KeyDim, l.ValueHeads, l.ValueDim, l.Conv) < 1<<20,
			"linear attention needs layers up to %d, and heads, sizes and a convolution above zero", m.Layers)
	}
	if m.MLA != nil {
		want(m.MLA.KVRank > 0 && m.MLA.NoPE > 0 && m.MLA.RoPE >= 0 && m.MLA.V > 0 &&
			m.MLA.QRank >= 0, "latent attention needs kv_rank, nope and v above zero")
	}
}

// IsMoE reports whether layer i, from 0, has experts.
func (m *Model) IsMoE(i int) bool {
	if m.Experts == 0 || i < m.DenseFirst {
		return false
	}
	return m.MoEEvery <= 1 || (i+1)%m.MoEEvery == 0
}

// MoELayers counts the layers with experts.
func (m *Model) MoELayers() int {
	if m.Experts == 0 {
		return 0
	}
	every := max(m.MoEEvery, 1)
	return max(m.Layers/every-m.DenseFirst/every, 0)
}

// DenseLayers counts the layers without experts.
func (m *Model) DenseLayers() int { return m.Layers - m.MoELayers() }

// g is the number of matrices of an MLP.
func (m *Model) g() float64 {
	if m.Gated {
		return 3
	}
	return 2
}

// norm is the parameters of one norm over width w.
func (m *Model) norm(w int) float64 {
	if m.LayerNorm {
		return 2 * float64(w)
	}
	return float64(w)
}

// LayerParams is what one layer holds, apart by how parallel forms cut it.
type LayerParams struct {
	Attention  float64 // cut by tensor parallelism
	Replicated float64 // norms, latent projections, the router: on every rank
	MLP        float64 // dense MLP or shared experts, cut by tensor parallelism
	Experts    float64 // routed experts, cut by expert parallelism
}

// Total sums up a layer.
func (p LayerParams) Total() float64 { return p.Attention + p.Replicated + p.MLP + p.Experts }

// attention gives the parameters of a layer's attention, latent (MLA) or usual.
func (m *Model) attention() (p LayerParams) {
	h, d, a, k := float64(m.Hidden), float64(m.HeadDim), float64(m.Heads), float64(m.KVHeads)
	if x := m.MLA; x != nil {
		n, r, v, rk := float64(x.NoPE), float64(x.RoPE), float64(x.V), float64(x.KVRank)
		if x.QRank > 0 {
			rq := float64(x.QRank)
			p.Replicated += rq*h + m.norm(x.QRank)
			p.Attention += rq * a * (n + r)
		} else {
			p.Attention += h * a * (n + r)
		}
		p.Replicated += h*(rk+r) + m.norm(x.KVRank)
		p.Attention += rk*a*(n+v) + a*v*h
		return p
	}
	p.Attention = h * d * (2*a + 2*k)
	if m.QGate {
		p.Attention += h * d * a
	}
	if m.Bias {
		p.Attention += d * (a + 2*k)
		p.Replicated += h
	} else if m.QKVBias {
		p.Attention += d * (a + 2*k)
	}
	if m.QKNorm {
		p.Replicated += 2 * d
	}
	return p
}

// Layer gives the parameters of a layer with or without experts.
//
//	attention  h d (2a + 2k);  latent  r_q (h + a(n+r)) + r_kv (h + a(n+v)) + h r + a v h
//	MLP        G h f;          experts G h (E f_e + f_s) + h E
func (m *Model) Layer(moe bool) LayerParams {
	h := float64(m.Hidden)
	p := m.attention()
	norms := 2.0
	if m.PostNorms {
		norms = 4
	}
	p.Replicated += norms * m.norm(m.Hidden)
	mlp := func(f float64) float64 { return m.g() * h * f }
	if moe {
		p.Experts = float64(m.Experts) * mlp(float64(m.ExpertFFN))
		p.MLP = mlp(float64(m.SharedFFN))
		p.Replicated += h * float64(m.Experts)
		if m.SharedGate {
			p.Replicated += h
		}
		if m.Bias {
			p.Experts += float64(m.Experts) * ((m.g()-1)*float64(m.ExpertFFN) + h)
			p.Replicated += float64(m.Experts)
		}
	} else {
		p.MLP = mlp(float64(m.FFN))
		if m.Bias {
			p.MLP += (m.g() - 1) * float64(m.FFN)
			p.Replicated += h
		}
	}
	return p
}

// Params is what a model holds, by component.
type Params struct {
	Embedding float64 `json:"embedding"`
	Head      float64 `json:"head"` // 0 when tied
	Attention float64 `json:"attention"`
	MLP       float64 `json:"mlp"` // dense and shared
	Experts   float64 `json:"experts"`
	Norms     float64 `json:"norms_and_routers"`
	MTP       float64 `json:"mtp"`
	Total     float64 `json:"total"`
	Active    float64 `json:"active"` // of these, what one token passes
}

// Params counts parameters.
func (m *Model) Params() Params {
	if m.CNN != nil {
		p := m.CNN.params()
		return Params{MLP: p, Total: p, Active: p}
	}
	h, v := float64(m.Hidden), float64(m.Vocab)
	p := Params{Embedding: h*v + h*float64(m.Positions)}
	if !m.Tied {
		p.Head = h * v
	}
	if m.BothWays { // encoders have one more matrix before their head, or over their first token
		p.Head += h*h + h
	}
	p.Norms = m.norm(m.Hidden)
	inactive := 0.0
	idle := func(l LayerParams) float64 { return l.Experts * float64(m.Experts-m.TopK) / float64(max(m.Experts, 1)) }
	for i, n := range []int{m.DenseLayers(), m.MoELayers()} {
		l, c := m.Layer(i == 1), float64(n)
		p.Attention += c * l.Attention
		p.MLP += c * l.MLP
		p.Experts += c * l.Experts
		p.Norms += c * l.Replicated
		inactive += c * idle(l)
	}
	p.Attention += m.instead()
	if m.MTP > 0 {
		l := m.Layer(m.Experts > 0)
		// One layer, a projection of two hidden vectors to one, and two norms more.
		p.MTP = float64(m.MTP) * (l.Total() + 2*h*h + 2*m.norm(m.Hidden))
		inactive += float64(m.MTP) * idle(l)
	}
	p.Total = p.Embedding + p.Head + p.Attention + p.MLP + p.Experts + p.Norms + p.MTP
	p.Active = p.Total - inactive
	return p
}

// KVBytesPerToken is what a decoder keeps of one token, all layers together, with b bytes a
// number. Windowed layers keep no more than their window; their share is left out past it.
func (m *Model) KVBytesPerToken(b float64) float64 {
	if m.MLA != nil {
		return float64(m.Layers) * float64(m.MLA.KVRank+m.MLA.RoPE) * b
	}
	return 2 * float64(m.Attending()) * float64(m.KVHeads) * float64(m.HeadDim) * b
}

// Routing says how tokens are given to experts, and what attention and MLPs do beside the usual, in words that are equal where it is.
func (m *Model) Routing() string {
	scale := m.RouterScale
	if scale == 0 {
		scale = 1
	}
	return fmt.Sprintf("sinks %t, clamp %g, top %d of %d, %d of %d groups, %q, bias %t, x %g",
		m.Sinks, m.ClampGLU, m.TopK, m.Experts, m.TopGroups, m.Groups, m.Router, m.RouterBias, scale)
}
