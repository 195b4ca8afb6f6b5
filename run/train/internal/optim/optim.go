// Package optim updates parameters from gradients: AdamW over slices of flat
// buffers, a learning rate by step, and the global norm that gradients are clipped
// to. Everything is per element and in a fixed order, so that a buffer may be cut
// among ranks anywhere and keeps its bits.
package optim

import (
	"fmt"
	"math"
)

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019):
//
//	m = beta1 m + (1-beta1) g        v = beta2 v + (1-beta2) g^2
//	p = p - rate (m/(1-beta1^t) / (sqrt(v/(1-beta2^t)) + epsilon) + decay p)
//
// Its state is 8 bytes a parameter: m and v.
type AdamW struct {
	Beta1, Beta2 float64
	Epsilon      float64
	Decay        float64
}

// Default is what small language models are trained with.
func Default() AdamW { return AdamW{Beta1: 0.9, Beta2: 0.95, Epsilon: 1e-8, Decay: 0.1} }

// Check reports a value out of range.
func (a AdamW) Check() error {
	switch {
	case a.Beta1 < 0 || a.Beta1 >= 1:
		return fmt.Errorf("optim: beta1 is %v; it is at least 0 and below 1", a.Beta1)
	case a.Beta2 < 0 || a.Beta2 >= 1:
		return fmt.Errorf("optim: beta2 is %v; it is at least 0 and below 1", a.Beta2)
	case a.Epsilon <= 0:
		return fmt.Errorf("optim: epsilon is %v; it is above 0", a.Epsilon)
	case a.Decay < 0:
		return fmt.Errorf("optim: decay is %v; it is at least 0", a.Decay)
	}
	return nil
}

// Update takes step t, the first of which is 1, with gradients times factor. All
// slices have the same length.
func (a AdamW) Update(t int, rate float64, factor float32, decay bool, p, g, m, v []float32) {
	b1, b2 := float32(a.Beta1), float32(a.Beta2)
	c1, c2 := float32(1-a.Beta1), float32(1-a.Beta2)
	// rate m/(1-beta1^t) / (sqrt(v/(1-beta2^t)) + epsilon) with one division.
	root := math.Sqrt(1 - math.Pow(a.Beta2, float64(t)))
	size := float32(rate * root / (1 - math.Pow(a.Beta1, float64(t))))
	epsilon := float32(a.Epsilon * root)
	shrink := float32(1)
	if decay {
		shrink = float32(1 - rate*a.Decay)
	}
	g, m, v = g[:len(p)], m[:len(p)], v[:len(p)]
	for i, x := range p {
		d := g[i] * factor
		mi := float32(b1*m[i]) + float32(c1*d)
		vi := float32(b2*v[i]) + float32(c2*float32(d*d))
		m[i], v[i] = mi, vi
		p[i] = float32(shrink*x) - float32(size*mi)/(float32(math.Sqrt(float64(vi)))+epsilon)
	}
}

// Square is the sum of the squares of g, in float64: what a global norm is the root of.
func Square(g []float32) float64 {
	var a, b, c, d float64
	for ; len(g) >= 4; g = g[4:] {
		a += float64(g[0]) * float64(g[0])
		b += float64(g[1]) * float64(g[1])
		c += float64(g[2]) * float64(g[2])
		d += float64(g[3]) * float64(g[3])
	}
	for _, x := range g {
		a += float64(x) * float64(x)
	}
	return (a + b) + (c + d)
}

// Clip is the factor that brings a norm down to limit; 1 where it is below, or
// where limit is 0.
func Clip(norm, limit float64) float32 {
	if limit == 0 || norm <= limit {
		return 1
	}
	return float32(limit / norm)
}

// Rate is a learning rate by step: it rises linearly to Peak over Warmup steps,
// then falls along half a cosine to Floor at step Total and stays there. With
// Total 0 it stays at Peak.
type Rate struct {
	Peak, Floor   float64
	Warmup, Total int
}

// At is the rate of a step, the first of which is 0.
func (r Rate) At(step int) float64 {
	switch {
	case step < r.Warmup:
		return r.Peak * float64(step+1) / float64(r.Warmup)
	case r.Total == 0:
		return r.Peak
	case step >= r.Total:
		return r.Floor
	}
	share := float64(step-r.Warmup) / float64(max(1, r.Total-r.Warmup))
	return r.Floor + (r.Peak-r.Floor)*(1+math.Cos(math.Pi*share))/2
}
