package work

import (
	"fmt"
	"strings"
)

// Convention is a way of counting the operations of a training step. Papers and frameworks
// differ by up to 40% for the same step, so every figure carries its convention.
type Convention string

// The conventions.
const (
	Causal   Convention = "causal"   // model FLOPs, of attention only the half that the mask leaves: Megatron-Bridge, Megatron-LM today
	Full     Convention = "full"     // model FLOPs with the whole attention matrix: PaLM, MosaicML, torchtitan, NeMo to 24.07
	Hardware Convention = "hardware" // full, and what is computed again in backward: BLOOM, Megatron's "hardware FLOPs"
	SixN     Convention = "6n"       // six times the active parameters: scaling-law papers
)

// Conventions lists them.
func Conventions() []Convention { return []Convention{Causal, Full, Hardware, SixN} }

// ParseConvention reads one by its name.
func ParseConvention(s string) (Convention, error) {
	for _, c := range Conventions() {
		if string(c) == s {
			return c, nil
		}
	}
	var names []string
	for _, c := range Conventions() {
		names = append(names, string(c))
	}
	return "", fmt.Errorf("unknown convention %q; known: %s", s, strings.Join(names, ", "))
}

// Forward is the operations of a forward pass, a token, by what computes them.
type Forward struct {
	Matrix    float64 // weights of attention, MLP, experts and router
	Attention float64 // scores and values, whole matrix
	Causal    float64 // the same, only what the mask leaves
	Head      float64 // logits
}

// Forward counts a forward pass of a token in a sequence of s tokens.
//
// A matrix of p weights takes 2p operations a token. Attention takes 4 s a d with the whole
// matrix, half of that under a causal mask, and less in windowed layers.
func (m *Model) Forward(s int) Forward {
	if m.CNN != nil {
		return Forward{Matrix: m.CNN.forward()}
	}
	var f Forward
	h := float64(m.Hidden)
	add := func(n float64, moe bool) {
		if n == 0 {
			return
		}
		l := m.Layer(moe)
		w := l.Attention + l.MLP
		if m.MLA != nil {
			w += h*float64(m.MLA.QRank) + h*float64(m.MLA.KVRank+m.MLA.RoPE)
		}
		if moe {
			w += l.Experts*float64(m.TopK)/float64(m.Experts) + h*float64(m.Experts)
		}
		f.Matrix += 2 * n * w
	}
	add(float64(m.DenseLayers()), false)
	add(float64(m.MoELayers()), true)
	if m.MTP > 0 {
		add(float64(m.MTP), m.Experts > 0)
		f.Matrix += float64(m.MTP) * 4 * h * h
	}
	f.Matrix += 2 * m.instead()
	if l := m.Linear; l != nil {
		f.Matrix += float64(l.Layers) * l.CoreFLOPs()
	}
	width := 4 * float64(m.Heads) * float64(m.HeadDim)
	if m.MLA != nil {
		width = 2 * float64(m.Heads) * float64(m.MLA.NoPE+m.MLA.RoPE+m.MLA.V)
	}
	seq := float64(s)
	global := float64(m.Attending() - m.Windowed + m.MTP)
	f.Attention = width * seq * float64(m.Attending()+m.MTP)
	w := min(float64(m.Window), seq)
	if m.BothWays { // no mask: all pairs, and both sides of a window
		f.Causal = global*width*seq + float64(m.Windowed)*width*w
	} else { // the first w tokens see half of w on average, the others w
		f.Causal = global*width*seq/2 + float64(m.Windowed)*width*(w-w*w/(2*max(seq, 1)))
	}
	f.Head = 2 * h * float64(m.Vocab) * float64(1+m.MTP)
	return f
}

// TrainFLOPs counts the operations of training one token in a sequence of s: forward once, backward
// twice that. recomputed is the share of the forward pass that is computed again; only the hardware
// convention counts it.
func (m *Model) TrainFLOPs(s int, c Convention, recomputed float64) float64 {
	f := m.Forward(s)
	switch c {
	case Causal:
		return 3 * (f.Matrix + f.Causal + f.Head)
	case Hardware:
		return 3*(f.Matrix+f.Attention+f.Head) + recomputed*(f.Matrix+f.Attention)
	case SixN:
		return 6 * m.Params().Active
	default:
		return 3 * (f.Matrix + f.Attention + f.Head)
	}
}
