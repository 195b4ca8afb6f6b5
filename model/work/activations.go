package work

import (
	"fmt"
	"slices"
	"strings"
)

// Recompute says what is computed again in backward instead of kept.
type Recompute struct {
	Full    bool     `json:"full,omitempty"`    // keep only the input of every layer
	Modules []string `json:"modules,omitempty"` // Megatron's names: core_attn, layernorm, moe_act, mla_up_proj, mlp, moe, shared_experts; and mlp_act and op, which it does not have
}

// modules lists what may be computed again by itself.
var modules = []string{"core_attn", "layernorm", "mlp_act", "moe_act", "mla_up_proj", "mlp", "moe", "shared_experts", "op"}

// ParseRecompute reads none, full, selective, or module names joined by '+'.
func ParseRecompute(s string) (Recompute, error) {
	switch s {
	case "", "none", "no", "off":
		return Recompute{}, nil
	case "full":
		return Recompute{Full: true}, nil
	case "selective":
		return Recompute{Modules: []string{"core_attn"}}, nil
	}
	var r Recompute
	for _, name := range strings.Split(s, "+") {
		if name == "act" {
			name = "mlp_act"
		}
		if !slices.Contains(modules, name) {
			return r, fmt.Errorf("recompute %q: want none, full, selective, or some of %s joined by '+'", s, strings.Join(modules, ", "))
		}
		r.Modules = append(r.Modules, name)
	}
	slices.Sort(r.Modules)
	r.Modules = slices.Compact(r.Modules)
	return r, nil
}

func (r Recompute) String() string {
	switch {
	case r.Full:
		return "full"
	case len(r.Modules) == 1 && r.Modules[0] == "core_attn":
		return "selective"
	case len(r.Modules) > 0:
		return strings.Join(r.Modules, "+")
	}
	return "none"
}

// Has reports whether a module is computed again, by itself or with its layer.
func (r Recompute) Has(module string) bool { return r.Full || slices.Contains(r.Modules, module) }

// Kept says how activations are kept.
type Kept struct {
	TP        int // tensor parallel ranks
	ETP       int // tensor parallel ranks inside an expert; 0 for as many as TP
	Sequence  bool
	Flash     bool // attention never writes its scores
	Dropout   bool
	Bytes     float64 // a number: 2 for bf16 and fp16
	Input     float64 // bytes a number of what linear layers keep: 1 with fp8, else Bytes
	Recompute Recompute
}

// Activation is what backward needs of one token in one layer, in bytes on one rank.
type Activation struct {
	Norms     float64
	Attention float64
	MLP       float64
	Total     float64
}

// Activations counts what one layer keeps of a token in a sequence of s tokens, on one rank.
//
// With bf16, flash attention and sequence parallelism it is (8h + 4(a+k)d + 2Gf + 4a)/t bytes for a
// dense layer; for GPT with dropout that is Korthikanti's 34h. Without sequence parallelism norms
// and what lies between them are kept on every rank.
func (m *Model) Activations(moe bool, s int, o Kept) Activation {
	t := float64(max(o.TP, 1))
	outer := t // divisor of what lies between tensor parallel blocks
	if !o.Sequence {
		outer = 1
	}
	b, in := o.Bytes, o.Input
	if in == 0 {
		in = b
	}
	h, a, k, d, f := float64(m.Hidden), float64(m.Heads), float64(m.KVHeads), float64(m.HeadDim), float64(m.FFN)
	if o.Recompute.Full {
		x := b * h / outer
		return Activation{Norms: x, Total: x}
	}
	var r Activation
	// Inputs of both norms, and the norms' outputs, which are the inputs of QKV and of the MLP.
	r.Norms = 2 * b * h / outer
	outputs := 2 * in * h / outer
	if o.Recompute.Has("layernorm") {
		outputs = 0
	}
	r.Norms += outputs
	if o.Dropout {
		r.Norms += 2 * h / outer // two masks
	}
	// Queries, keys, values, the attention's output, and the projection's input (the same memory
	// unless it is kept once more in fp8).
	kv := k
	if t > k {
		kv = t // KV heads are copied
	}
	switch {
	case m.MLA != nil:
		n, ro, v := float64(m.MLA.NoPE), float64(m.MLA.RoPE), float64(m.MLA.V)
		up := a * (2*(n+ro) + v) * b / t
		if o.Recompute.Has("mla_up_proj") {
			up = 0
		}
		r.Attention = b*(float64(m.MLA.QRank)+float64(m.MLA.KVRank)+ro)*2 + up + b*a*v/t
	default:
		r.Attention = b * (2*a + 2*kv) * d / t
	}
	r.Attention += 4 * a / t // the softmax's statistics
	if !o.Flash && !o.Recompute.Has("core_attn") {
		scores := b // what softmax gives
		if o.Dropout {
			scores = 2*b + 1 // that, what dropout leaves of it, and the mask
		}
		r.Attention += scores * a * float64(s) / t
	}
	mlp := func(f float64, act bool) float64 {
		x := (m.g() - 1) * b * f // what the activation function takes
		if !act {
			x += in * f // what the second matrix takes
		}
		return x
	}
	if !moe {
		if !o.Recompute.Has("mlp") {
			r.MLP = mlp(f, o.Recompute.Has("mlp_act")) / t
		}
	} else {
		fe, fs := float64(m.ExpertFFN), float64(m.SharedFFN)
		topk := float64(m.TopK)
		if !o.Recompute.Has("moe") {
			// Tokens are dispatched to K experts: their inputs and outputs are copies. Where experts are cut over fewer ranks
			// than the layer, a rank dispatches its share of the tokens alone.
			etp := t
			if o.ETP > 0 {
				etp = float64(o.ETP)
			}
			r.MLP = topk*etp/t*(in*h+b*h+mlp(fe, o.Recompute.Has("moe_act"))/etp) + 4*float64(m.Experts)/outer
		}
		if !o.Recompute.Has("shared_experts") {
			r.MLP += mlp(fs, false) / t
		}
	}
	r.Total = r.Norms + r.Attention + r.MLP
	if o.Recompute.Has("op") { // torchtitan's per-op choice: attention and every other product are kept
		r.Total = r.Norms/2 + r.Attention*.75 + r.MLP*.35
	}
	return r
}

// MarshalText writes what ParseRecompute reads.
func (r Recompute) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (r *Recompute) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRecompute(string(text))
	return err
}
