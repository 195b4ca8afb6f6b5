package plan

import (
	"math"

	"github.com/weft-fabric/weft/model/work"
)

// flops is the operations of training one token, by a convention. Frozen weights of LoRA have no gradients: a third of them is not there.
func (l Layout) flops(m *work.Model, c work.Convention) float64 {
	again := 0.0
	if c == work.Hardware {
		matrix, attention := l.again(m)
		again = matrix + attention*m.Forward(l.Seq).Attention
	}
	share := 1.0
	if l.Phase == "lora" {
		share = 2.0 / 3
	}
	return m.TrainFLOPs(l.Seq, c, 0)*share + again
}

// again is the operations of a token's forward pass that are computed again: of matrices, and the share of attention.
func (l Layout) again(m *work.Model) (matrix, attention float64) {
	r, f := l.Recompute, m.Forward(l.Seq)
	if r.Full {
		return f.Matrix, 1
	}
	if m.CNN != nil {
		return 0, 0
	}
	dense, moe := float64(m.DenseLayers()), float64(m.MoELayers())
	if r.Has("core_attn") {
		attention = 1
	}
	if a := m.MLA; a != nil && r.Has("mla_up_proj") {
		heads := float64(m.Heads)
		matrix += 2 * (dense + moe) * heads * (float64(a.QRank)*float64(a.NoPE+a.RoPE) + float64(a.KVRank)*float64(a.NoPE+a.V))
	}
	if r.Has("mlp") {
		matrix += 2 * dense * m.Layer(false).MLP
	}
	if moe > 0 {
		matrix += 2 * moe * expertsAgain(m, r)
	}
	if r.Has("op") {
		matrix = max(matrix, f.Matrix/2)
	}
	return matrix, attention
}

// expertsAgain is the parameters of one layer with experts that a token passes again, beside those of attention.
func expertsAgain(m *work.Model, r work.Recompute) float64 {
	x := m.Layer(true)
	switch {
	case r.Has("moe"):
		return x.MLP + x.Experts*float64(m.TopK)/float64(m.Experts)
	case r.Has("shared_experts"):
		return x.MLP
	}
	return 0
}

// Rate is the share of their peak that GPUs compute at: what is computed again counts, and of attention what the mask leaves.
func (c *Cost) Rate(m *work.Model) float64 {
	train := c.Layout.flops(m, work.Causal)
	matrix, attention := c.Layout.again(m)
	return c.MFUs[string(work.Causal)] * (train + matrix + attention*m.Forward(c.Layout.Seq).Causal) / train
}

// LeastPossible is the least factor of kernels with which a layout's GPUs compute no faster than they can, rounded up to hundredths.
func LeastPossible(q Question) float64 {
	q.Why = false
	lo, hi := 0.0, float64(MostFactor)*100
	for lo+1 < hi {
		mid := math.Floor((lo + hi) / 2)
		q.Factor = mid / 100
		if c, err := Price(q); err == nil && c.Rate(q.Model) <= 1 {
			hi = mid
		} else {
			lo = mid
		}
	}
	return hi / 100
}
