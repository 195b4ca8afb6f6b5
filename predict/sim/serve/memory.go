package serve

import "math"

// bytesOf is what a number of a type takes, with its scales: a byte for 16 numbers in fp4, two for 32 in int4.
func bytesOf(t string) float64 {
	switch t {
	case "fp8":
		return 1
	case "fp4", "int4":
		return .5625
	}
	return 2
}

// plain is the type of the matrices that are not routed experts. Checkpoints in int4 leave attention and shared experts in bf16.
func (e *Engine) plain() string {
	if e.Weights == "int4" && e.Model.Experts > 0 {
		return "bf16"
	}
	return e.Weights
}

// groups is how many groups of a copy attend to different requests.
func (e *Engine) groups() int { return max(e.Layout.DP, 1) }

// slots is how many experts a rank that holds whole experts has. Where the ranks do not divide the experts, some have copies.
func (e *Engine) slots() float64 {
	return math.Ceil(float64(e.Model.Experts) / float64(max(e.Layout.EP, 1)))
}

// WeightBytes is what one GPU holds of the model.
func (e *Engine) WeightBytes() float64 {
	p := e.Model.Params()
	tp, pp := float64(e.Layout.TP), float64(e.Layout.PP)
	rest := p.Total - p.Embedding - p.Head - p.Experts
	if e.Drafts == 0 {
		rest -= p.MTP
	}
	experts := 0.0
	if p.Experts > 0 { // of a rank: its slots, cut by the ranks that share them
		ep := float64(max(e.Layout.EP, 1))
		experts = p.Experts / float64(e.Model.Experts) * e.slots() * ep / float64(e.Layout.Ranks())
	}
	return (rest/tp*bytesOf(e.plain()) + experts*bytesOf(e.Weights) + (p.Embedding+p.Head)*2/tp) / pp
}

// shard is over how many GPUs a copy's attention heads, and so its KV cache, are cut. With more ranks than KV heads, heads are copied;
// the latent vector of MLA is one head.
func (e *Engine) shard() float64 {
	if e.Model.MLA != nil {
		return float64(e.Layout.PP)
	}
	return float64(e.Layout.PP * min(e.Layout.TP, e.Model.KVHeads))
}

// KVBytes is what one GPU keeps of each further token of a long sequence: layers with a window keep no more than that.
func (e *Engine) KVBytes() float64 {
	m := e.Model
	return m.KVBytesPerToken(bytesOf(e.KV)) / e.shard() * float64(m.Attending()-m.Windowed) / float64(m.Attending())
}

// Holds is what one GPU keeps of a sequence of some tokens.
func (e *Engine) Holds(tokens int) float64 {
	m := e.Model
	bytes := e.KVBytes() * float64(tokens)
	if m.Windowed > 0 {
		bytes += m.KVBytesPerToken(bytesOf(e.KV)) / e.shard() * float64(m.Windowed) / float64(m.Attending()) * float64(min(tokens, m.Window))
	}
	if l := m.Linear; l != nil {
		bytes += m.StateBytes() / float64(e.Layout.PP*min(e.Layout.TP, l.ValueHeads))
	}
	return bytes
}

// free is the bytes for KV caches, of one GPU of each group of a copy together.
func (e *Engine) free() float64 {
	return max(e.Machine.Usable()*e.Memory-e.WeightBytes()-3.5e9, 0) * float64(e.groups())
}

// Tokens is how many tokens of long sequences the KV cache of a copy holds; 0 if the model does not fit.
func (e *Engine) Tokens() int {
	if e.KVBytes() == 0 {
		return 0
	}
	return int(e.free() / e.KVBytes())
}
