package plan

import (
	"math"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/predict/internal/kernel"
)

// slow is how much slower fp32 products are than bf16's.
func (p *pricer) slow() float64 {
	if p.l.Dtype != "fp32" {
		return 1
	}
	c := p.mc.Chip.Peak
	if c["tf32"] > 0 {
		return c["bf16"] / c["tf32"]
	}
	return max(c["bf16"]/max(c["fp32"], 1), 1)
}

// product is forward, input gradient and weight gradient of a matrix of k x n weights over T tokens.
func (p *pricer) product(tokens, n, k float64) (f, b, w float64) {
	s := p.slow()
	return s * p.mc.gemm(p.t, tokens, n, k), s * p.mc.gemm(p.t, tokens, k, n), s * p.mc.gemm(p.t, k, n, tokens)
}

// grouped is the same for experts: each of local experts gets tokens/local tokens.
func (p *pricer) grouped(local, tokens, n, k float64) (f, b, w float64) {
	each := tokens / local
	if p.l.Looped {
		f, b, w = p.product(each, n, k)
		return local * f, local * b, local * w
	}
	padded := local * math.Ceil(each/128) * 128
	c := p.mc.Chip
	f, b, _ = p.product(padded, n, k)
	// Weights of all experts are read, once each.
	weights := local * n * k * 2 / (c.HBM * .8)
	f, b = max(f, weights), max(b, weights)
	w = local * p.mc.gemm(p.t, k, n, each) * p.slow()
	// Small products of many experts run side by side.
	w = min(w, max(p.mc.gemm(p.t, k, n, tokens)*1.1, local*n*k*4/(c.HBM*.8)))
	starts := p.starting(local)
	return f + starts, b + starts, w + starts
}

// starting is what it takes to start the products of all experts but one. Transformer Engine starts one for each, with a kernel that
// quantises its input where it is narrow; fused layers have one for all.
func (p *pricer) starting(local float64) float64 {
	if p.l.Fused {
		return 0
	}
	return (local - 1) * p.mc.Chip.Launch(p.t)
}

// layer prices a layer.
func (p *pricer) layer(moe bool) layerTime {
	m, l, c := p.m, p.l, p.mc.Chip
	t := float64(l.TP)
	T := p.tc
	h, d := float64(m.Hidden), float64(m.HeadDim)
	heads := float64(m.Heads) / t
	kv := max(float64(m.KVHeads)/t, 1)
	var x layerTime
	add := func(f, b, w float64) float64 {
		x.f, x.b, x.w = x.f+f, x.b+b, x.w+w
		x.gemm += f
		return f
	}
	vd := d
	if a := m.MLA; a != nil {
		qk := float64(a.NoPE + a.RoPE)
		if a.QRank > 0 {
			add(p.product(T, float64(a.QRank), h))
			x.up += add(p.product(T, heads*qk, float64(a.QRank)))
		} else {
			add(p.product(T, heads*qk, h))
		}
		add(p.product(T, float64(a.KVRank+a.RoPE), h))
		x.up += add(p.product(T, heads*float64(a.NoPE+a.V), float64(a.KVRank)))
		add(p.product(T, h, heads*float64(a.V)))
		kv, d, vd = heads, qk, float64(a.V)
	} else {
		add(p.product(T, (heads+2*kv)*d, h))
		add(p.product(T, h, heads*d))
	}
	// Attention: with context parallelism each rank has its share of the pairs.
	seq, docs := float64(l.Seq), 1.0
	if l.Document > 0 && l.Document < l.Seq {
		seq, docs = float64(l.Document), float64(l.Seq)/float64(l.Document)
	}
	at := p.mc.attention(p.scores(), float64(l.Micro)*docs, seq, heads, kv, (d+vd)/2) / float64(l.CP)
	if m.BothWays { // the tables hold causal attention: half of the pairs
		at *= 2
	}
	switch {
	case l.TEScores: // the tables' kernels are of the same kind
	case p.f == FSDP && c.Table == "a100":
		at *= p.h.AttnA100
	case p.f == FSDP && c.Table == "h100":
		at *= p.h.AttnH100
	}
	back := at * p.h.AttnBack
	if !l.Flash { // kernels that write scores do the same work and more
		at, back = max(p.unfused(heads, d, false), at), max(p.unfused(heads, d, true), back)
	}
	if m.Windowed > 0 && float64(m.Window) < seq {
		w := min(float64(m.Window)+windowBlock, seq) // kernels skip whole blocks of keys only
		short := at * (w - w*w/(2*seq)) / (seq / 2)
		if m.BothWays {
			short = at * w / seq
		}
		share := float64(m.Windowed) / float64(m.Layers)
		less := 1 - share + min(short/at, 1)*share
		at = at * less
		if l.Flash {
			back *= less
		}
	}
	x.attn = at
	x.f += at
	x.b += back

	outer := 1.0
	if l.Sequence {
		outer = t
	}
	bytes := T * (16*h/outer + 4*(heads+kv)*d)
	if l.Eager && p.f == FSDP {
		bytes += p.operators(h/outer, (heads+kv)*d)
	}
	mlp := func(tokens, f float64) float64 {
		if m.Gated {
			return tokens * 6 * f
		}
		return tokens * 4 * f
	}
	g := 1.0
	if m.Gated {
		g = 2
	}
	if !moe {
		f := float64(m.FFN) / t
		x.mlp += add(p.product(T, g*f, h))
		x.mlp += add(p.product(T, h, f))
		bytes += mlp(T, f)
		if l.Eager && p.f == FSDP { // the product of both halves writes and reads once more
			bytes += 4 * T * f
		}
	} else {
		// Tokens of a rank, before routing: with sequence parallelism and whole experts a TP rank
		// holds its share only.
		own := T
		if l.ETP < l.TP {
			own = T * float64(l.ETP) / t
		}
		local := float64(m.Experts) / float64(l.EP)
		routed := own * float64(m.TopK)
		f := float64(m.ExpertFFN) / float64(l.ETP)
		before := x.gemm
		crowd := max(l.Imbalance, 1) // all ranks wait for the fullest
		fuller := func(f, b, w float64) (float64, float64, float64) { return crowd * f, crowd * b, crowd * w }
		add(fuller(p.grouped(local, routed, g*f, h)))
		add(fuller(p.grouped(local, routed, h, f)))
		bytes += crowd * (p.activates(mlp(routed, f)) + routed*h*2*p.permutes())
		if m.SharedFFN > 0 {
			fs := float64(m.SharedFFN) / t
			x.shared += add(p.product(T, g*fs, h))
			x.shared += add(p.product(T, h, fs))
			bytes += mlp(T, fs)
		}
		add(p.product(own, float64(m.Experts), h))
		x.moe = x.gemm - before
		// Dispatch and combine, forward and again backward.
		there, back := p.toExperts(crowd*own*h, p.wire()), p.toExperts(crowd*own*h, 2)
		x.epF, x.epB = there+back, there+back
	}
	x.vector = c.Vector(bytes * p.h.Vector)
	x.f += x.vector
	x.b += 2 * x.vector

	if l.TP > 1 {
		buf := 2 * T * h
		if l.Sequence {
			ag, _ := p.mc.Collective(sched.AllGather, l.TP, 1, buf*p.gathered())
			rs, _ := p.mc.Collective(sched.ReduceScatter, l.TP, 1, buf)
			x.tpF, x.tpB, x.gathers = 2*(ag+rs), 4*ag+2*rs, 2*ag
			if moe && l.ETP < l.TP { // experts take the sequence's share as it is
				x.tpF, x.tpB, x.gathers = ag+rs, 2*ag+rs, ag
			}
		} else {
			ar, _ := p.mc.Collective(sched.AllReduce, l.TP, 1, buf)
			x.tpF, x.tpB = 2*ar, 2*ar
		}
	}
	if l.CP > 1 {
		n := float64(l.CP)
		switch l.Context {
		case "ulysses":
			a2a, _ := p.mc.Collective(sched.AllToAll, l.CP, l.TP, 2*T*(heads+kv)*d)
			x.cpF, x.cpB = 2*a2a, 2*a2a
		case "gather":
			ag, _ := p.mc.Collective(sched.AllGather, l.CP, l.TP, 4*T*n*kv*d)
			x.cpF, x.cpB = ag, 2*ag
		default:
			hop, _ := p.mc.Send(l.TP*(l.CP-1), 4*T*kv*d)
			hop *= p.mc.longer(Transfer{Op: sched.AllGather, Ranks: l.CP, Stride: l.TP, Bytes: 4 * T * kv * d * n})
			x.cpF = max((n-1)*hop-at*(n-1)/n, 0) + hop/2
			x.cpB = max((n-1)*2*hop-back*(n-1)/n, 0) + hop
		}
	}
	return x
}

// operators is the bytes that a layer moves more where nothing compiles it. Each of its two norms is widened to fp32, squared, averaged,
// scaled, weighted and narrowed again by kernels of their own, 40 bytes a number and not 4; rotations are in fp32, 20 and not 4.
func (p *pricer) operators(hidden, rotated float64) float64 {
	return p.tc * (2*36*hidden + 16*rotated)
}

// gathered is the bytes of what tensor parallel ranks gather, over those of bf16. Transformer Engine quantises the inputs of products before
// it gathers them; sums are scattered in bf16.
func (p *pricer) gathered() float64 {
	if p.f != Megatron {
		return 1
	}
	switch p.t {
	case "fp8", "fp8block":
		return .5
	case "fp4":
		return .28
	}
	return 1
}

// unfused is attention that writes its scores: two batches of whole products, and passes over the scores. Forward writes them,
// softmax reads and writes them, dropout does the same and keeps a mask, and the second product reads them. Backward has
// twice the products, and does not compute the scores again, as flash attention has to. Where a head's size is no
// multiple of 8 numbers the tensor cores cannot be fed in whole lines, and products take several times as long.
func (p *pricer) unfused(heads, d float64, backward bool) float64 {
	c, l := p.mc.Chip, p.l
	seq, n := float64(l.Seq), float64(l.Micro)*heads
	rate := c.Peak["bf16"] * c.Reach("bf16") * .42
	if math.Mod(d, 8) != 0 {
		rate = c.Peak["bf16"] * .055
	}
	products, bytes := 1.0, 8.0
	if backward {
		products, bytes = 2, 14
	}
	if l.Dropout {
		bytes += 5
	}
	return (products*(10e-6+4*n*seq*seq*d/rate) + n*seq*seq*bytes/(c.HBM*.85)) / float64(l.CP)
}

// toExperts is the time to bring the numbers of a rank's tokens, of the given bytes each, to their experts, or back. Each of a token's K
// copies crosses NVLink once, unless its expert lies on the same rank. Where experts lie in several domains a token also crosses the NIC
// once for each other domain that has one of them, and is copied there; both go on at once once the first tokens have come, and the slower
// one counts.
//
//	rank ──NIC, once a domain──► a rank of the other domain ──NVLink, once an expert──► rank
func (p *pricer) toExperts(tokens, bytes float64) float64 {
	n := p.l.EP * p.l.ETP
	if n == 1 {
		return 0
	}
	size, k := tokens*bytes, float64(p.m.TopK)
	if !p.l.copiesOnce() {
		plain, _ := p.mc.Collective(sched.AllToAll, n, 1, size*k)
		return plain
	}
	t := dispatching + size*k*float64(n-1)/float64(n)/(p.mc.Inside()*dispatched)
	if n > p.mc.Domain {
		across, _ := p.mc.Collective(sched.AllToAll, n, 1, size*p.copies())
		t = max(t, across) + forwarding
	}
	if p.mc.stretch != nil { // what is simulated is what is sent
		return t
	}
	plain, _ := p.mc.Collective(sched.AllToAll, n, 1, size*k)
	return min(t, plain) // of short messages the start counts alone
}

// What kernels made for expert traffic reach of a GPU's NVLink, and how long they take to start. DeepEP's README has 153 to 158 of H800's
// 200 GB/s, and on B200 643 to 675 of 900 with 24 multiprocessors and 726 to 740 with 64.
const (
	dispatched  = .76
	dispatching = 20e-6
)

// permutes is the passes over routed tokens beside their products. Before they are sent tokens are sorted by rank, and there by expert;
// results go back through both. Kernels made for it write tokens where their expert reads them, and read results there: one copy each way
// is left.
func (p *pricer) permutes() float64 {
	if p.l.copiesOnce() && p.l.EP > 1 {
		return min(p.h.Permute, 4)
	}
	return p.h.Permute
}

// activates is the bytes that experts' activation functions move: none where the products apply them.
func (p *pricer) activates(bytes float64) float64 {
	if p.l.Fused {
		return 0
	}
	return bytes
}

// scores is the type that attention multiplies in.
func (p *pricer) scores() kernel.Type {
	if p.l.FP8Scores {
		return "fp8"
	}
	return "bf16"
}

// forwarding is how long the first tokens take through the NIC before they go on over NVLink, in seconds.
const forwarding = 15e-6

// copies is in how many NVLink domains a token has experts. Routing that is limited to some groups of experts reaches fewer.
func (p *pricer) copies() float64 {
	m := p.m
	k := float64(m.TopK)
	domains := math.Ceil(float64(p.l.EP*p.l.ETP) / float64(p.mc.Domain))
	missed := math.Pow(1-1/domains, k) // of a domain: none of the K experts lies in it
	if g := float64(m.Groups); m.TopGroups > 0 && g >= domains {
		none := 1.0 // none of its groups is among those chosen
		for i := range m.TopGroups {
			none *= max(g-g/domains-float64(i), 0) / (g - float64(i))
		}
		missed = max(missed, none)
	}
	return min(k, domains*(1-missed))
}

// wire is the bytes of a number that experts are sent.
func (p *pricer) wire() float64 {
	switch p.l.Dtype {
	case "fp8block":
		return 1.03
	}
	return 2
}

// head is the time of the logits and the loss, and of the embedding.
func (p *pricer) head() (f, b, w float64) {
	h := p.units().head
	return h[0], h[1], h[2]
}

func (p *pricer) loss() (f, b, w float64) {
	v := float64(p.m.Vocab) / float64(p.l.TP)
	c := p.mc.Chip
	s := p.slow()
	h := float64(p.m.Hidden)
	f = s*p.mc.gemm("bf16", p.tc, v, h) + c.Vector(p.tc*v*8)
	b = s*p.mc.gemm("bf16", p.tc, h, v) + c.Vector(p.tc*v*6)
	w = s * p.mc.gemm("bf16", h, v, p.tc)
	return f, b, w
}

// memo of products: a search prices the same shapes over and over.
type shape struct {
	t       kernel.Type
	m, n, k float64
}

func (m *Machine) gemm(t kernel.Type, a, b, c float64) float64 {
	s := shape{t, a, b, c}
	if m.products == nil {
		m.products = map[shape]float64{}
	}
	v, ok := m.products[s]
	if !ok {
		v = m.Chip.GEMM(t, a, b, c)
		m.products[s] = v
	}
	return v
}

// prompts is attention over whole sequences.
type prompts struct {
	t                          kernel.Type
	batch, seq, heads, kv, dim float64
}

func (m *Machine) attention(t kernel.Type, batch, seq, heads, kv, dim float64) float64 {
	s := prompts{t, batch, seq, heads, kv, dim}
	if m.attentions == nil {
		m.attentions = map[prompts]float64{}
	}
	v, ok := m.attentions[s]
	if !ok {
		v = m.Chip.Prefill(t, batch, seq, seq, heads, kv, dim)
		m.attentions[s] = v
	}
	return v
}
