package model

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// attention adds to x what each position reads from itself and those before it:
//
//	q, k, v = weight norm(x) + bias              three times the width, cut into heads
//	P = softmax(q k' / sqrt(width of a head))    over the positions up to one's own
//	x = x + out (P v) + bias
//
// A tensor rank has Heads/Tensors heads; the product with out is summed over ranks.
type attention struct {
	c     Config
	s     Shard
	layer int
}

func (u *attention) Name() string { return fmt.Sprintf("layer%d.attention", u.layer) }

// width is this rank's share of the width, heads its heads.
func (u *attention) width() int { return u.c.Width / u.s.Tensors }
func (u *attention) heads() int { return u.c.Heads / u.s.Tensors }

// params lists the weights and which part of each this shard has. Every shard has all biases of the output: they are
// added after the sum over shards.
func (u *attention) params() []Param {
	var l list
	d, w, from := u.c.Width, u.width(), u.s.Tensor*u.width()
	name := u.Name() + "."
	l.add(Param{Name: name + "norm.gain", Shape: []int{d}, start: start{ones: true}})
	l.add(Param{Name: name + "norm.bias", Shape: []int{d}})
	l.add(Param{Name: name + "qkv.weight", Shape: []int{3, d, d}, Offset: []int{0, from, 0}, Size: []int{3, w, d}, Decay: true,
		start: start{deviation: 0.02}})
	l.add(Param{Name: name + "qkv.bias", Shape: []int{3, d}, Offset: []int{0, from}, Size: []int{3, w}})
	l.add(Param{Name: name + "out.weight", Shape: []int{d, d}, Offset: []int{0, from}, Size: []int{d, w}, Decay: true,
		start: start{deviation: residual(u.c)}})
	l.add(Param{Name: name + "out.bias", Shape: []int{d}})
	return l.all
}

type attentionParams struct{ gain, bias, qkv, qkvBias, out, outBias []float32 }

func (u *attention) split(p []float32) attentionParams {
	d, w := u.c.Width, u.width()
	return attentionParams{cut(&p, d), cut(&p, d), cut(&p, 3*w*d), cut(&p, 3*w), cut(&p, d*w), cut(&p, d)}
}

type attentionKeep struct{ normed, qkv, weights, read []float32 }

// sizes of what is kept: the norm, q k v, the softmax, and what was read.
func (u *attention) sizes(samples int) [4]int {
	rows, w := u.c.Rows(samples), u.width()
	return [4]int{normKeep(rows, u.c.Width), rows * 3 * w, samples * u.heads() * u.c.Context * u.c.Context, rows * w}
}

func (u *attention) Keep(samples int) int {
	s := u.sizes(samples)
	return s[0] + s[1] + s[2] + s[3]
}

func (u *attention) kept(samples int, keep []float32) attentionKeep {
	s := u.sizes(samples)
	return attentionKeep{cut(&keep, s[0]), cut(&keep, s[1]), cut(&keep, s[2]), cut(&keep, s[3])}
}

// views are one head's matrices of one sample, a row for each position.
type views struct{ q, k, v, weights, read mat.M }

func (u *attention) head(qkv, weights, read []float32, sample, head int) views {
	t, w := u.c.Context, u.width()
	size := w / u.heads()
	all := mat.Of(qkv[sample*t*3*w:], t, 3*w)
	return views{
		q:       all.Part(0, head*size, t, size),
		k:       all.Part(0, w+head*size, t, size),
		v:       all.Part(0, 2*w+head*size, t, size),
		weights: mat.Of(weights[(sample*u.heads()+head)*t*t:], t, t),
		read:    mat.Of(read[sample*t*w:], t, w).Part(0, head*size, t, size),
	}
}

// scale is one over the root of a head's width.
func (u *attention) scale() float32 {
	return float32(1 / math.Sqrt(float64(u.c.Width/u.c.Heads)))
}

// Forward adds attention to x in place. keep receives what Backward needs. With tensor parallelism each shard has some
// of the heads, and e.sum adds up what they contribute.
func (u *attention) Forward(e *Env, p, x, keep []float32) error {
	defer e.reset()
	rows, d, w := u.c.Rows(e.Samples), u.c.Width, u.width()
	par, k := u.split(p), u.kept(e.Samples, keep)
	y := e.floats(rows * d)
	norm(y, x, par.gain, par.bias, k.normed)
	e.space.Mul(mat.Of(k.qkv, rows, 3*w), mat.Of(y, rows, d), mat.Of(par.qkv, 3*w, d).T(), false)
	addBias(k.qkv, par.qkvBias)
	for s := range e.Samples {
		for h := range u.heads() {
			v := u.head(k.qkv, k.weights, k.read, s, h)
			e.space.Mul(v.weights, v.q, v.k.T(), false)
			softmax(v.weights, u.scale(), 0)
			e.space.Mul(v.read, v.weights, v.v, false)
		}
	}
	e.space.Mul(mat.Of(y, rows, d), mat.Of(k.read, rows, w), mat.Of(par.out, d, w).T(), false)
	if err := e.sum(y); err != nil {
		return err
	}
	addResidual(x, y, par.outBias)
	return nil
}

// softmax of every row of scores up to the diagonal, zeros after it. The first row's diagonal is at column first.
func softmax(m mat.M, scale float32, first int) {
	for i := range m.Rows {
		all := m.Data[i*m.RowStep:][:m.Cols]
		row := all[:first+i+1]
		top := row[0]
		for _, v := range row {
			top = max(top, v)
		}
		for j := range row {
			row[j] = (row[j] - top) * scale
		}
		mat.Exp(row, row, 0)
		inverse := 1 / sum(row)
		for j := range row {
			row[j] *= inverse
		}
		clear(all[first+i+1:])
	}
}

// Backward adds the gradients of the weights to g and turns dx, the gradient of the output, into that of the input. The
// normed input is computed again from keep.
func (u *attention) Backward(e *Env, p, g, dx, keep []float32) error {
	defer e.reset()
	rows, d, w, t := u.c.Rows(e.Samples), u.c.Width, u.width(), u.c.Context
	par, dpar, k := u.split(p), u.split(g), u.kept(e.Samples, keep)
	grad := mat.Of(dx, rows, d)

	dread, dqkv, dweights := e.floats(rows*w), e.floats(rows*3*w), e.floats(e.Samples*u.heads()*t*t)
	addRows(dpar.outBias, dx)
	e.space.Mul(mat.Of(dpar.out, d, w), grad.T(), mat.Of(k.read, rows, w), true)
	e.space.Mul(mat.Of(dread, rows, w), grad, mat.Of(par.out, d, w), false)
	for s := range e.Samples {
		for h := range u.heads() {
			v := u.head(k.qkv, k.weights, k.read, s, h)
			dv := u.head(dqkv, dweights, dread, s, h)
			e.space.Mul(dv.weights, dv.read, v.v.T(), false)
			e.space.Mul(dv.v, v.weights.T(), dv.read, false)
			softmaxBack(dv.weights, v.weights, u.scale())
			e.space.Mul(dv.q, dv.weights, v.k, false)
			e.space.Mul(dv.k, dv.weights.T(), v.q, false)
		}
	}
	y, dy := e.floats(rows*d), e.floats(rows*d)
	normAgain(y, par.gain, par.bias, k.normed)
	all := mat.Of(dqkv, rows, 3*w)
	addRows(dpar.qkvBias, dqkv)
	e.space.Mul(mat.Of(dpar.qkv, 3*w, d), all.T(), mat.Of(y, rows, d), true)
	e.space.Mul(mat.Of(dy, rows, d), all, mat.Of(par.qkv, 3*w, d), false)
	if err := e.sum(dy); err != nil {
		return err
	}
	normBack(dx, dpar.gain, dpar.bias, dy, par.gain, k.normed, true)
	return nil
}

// softmaxBack replaces the gradient of the weights by that of the scores:
// weight (grad - sum(weight grad)), times scale.
func softmaxBack(grad, weights mat.M, scale float32) {
	for i := range grad.Rows {
		all := grad.Data[i*grad.RowStep:][:grad.Cols]
		row, w := all[:i+1], weights.Data[i*weights.RowStep:][:i+1]
		mean := dot(row, w)
		for j, v := range w {
			row[j] = v * (row[j] - mean) * scale
		}
		clear(all[i+1:])
	}
}
