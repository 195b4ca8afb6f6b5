package model

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// mlp adds to x what two products with a gelu between them make of its norm:
//
//	x = x + out gelu(in norm(x) + bias) + bias
//
// A tensor rank has Hidden/Tensors rows of in (columns of the product) and the
// same columns of out; the second product is summed over ranks.
type mlp struct {
	c     Config
	s     Shard
	layer int
}

func (u *mlp) Name() string { return fmt.Sprintf("layer%d.mlp", u.layer) }

// hidden is this rank's share.
func (u *mlp) hidden() int { return u.c.Hidden / u.s.Tensors }

// params lists the weights and which part of each this shard has: columns of the first matrix, rows of the second.
func (u *mlp) params() []Param {
	var l list
	d, h, from := u.c.Width, u.hidden(), u.s.Tensor*u.hidden()
	name := u.Name() + "."
	l.add(Param{Name: name + "norm.gain", Shape: []int{d}, start: start{ones: true}})
	l.add(Param{Name: name + "norm.bias", Shape: []int{d}})
	l.add(Param{Name: name + "in.weight", Shape: []int{u.c.Hidden, d}, Offset: []int{from, 0}, Size: []int{h, d}, Decay: true,
		start: start{deviation: 0.02}})
	l.add(Param{Name: name + "in.bias", Shape: []int{u.c.Hidden}, Offset: []int{from}, Size: []int{h}})
	l.add(Param{Name: name + "out.weight", Shape: []int{d, u.c.Hidden}, Offset: []int{0, from}, Size: []int{d, h}, Decay: true,
		start: start{deviation: residual(u.c)}})
	l.add(Param{Name: name + "out.bias", Shape: []int{d}})
	return l.all
}

// residual is the deviation of what adds to x: there are two such units a layer,
// whose variances add up.
func residual(c Config) float64 { return 0.02 / math.Sqrt(2*float64(c.Layers)) }

type mlpParams struct{ gain, bias, in, inBias, out, outBias []float32 }

func (u *mlp) split(p []float32) mlpParams {
	d, h := u.c.Width, u.hidden()
	return mlpParams{cut(&p, d), cut(&p, d), cut(&p, h*d), cut(&p, h), cut(&p, d*h), cut(&p, d)}
}

func (u *mlp) Keep(samples int) int {
	rows := u.c.Rows(samples)
	return normKeep(rows, u.c.Width) + rows*u.hidden()
}

// Forward adds the layer to x in place. keep receives the normed input and what GELU was given.
func (u *mlp) Forward(e *Env, p, x, keep []float32) error {
	defer e.reset()
	rows, d, h := u.c.Rows(e.Samples), u.c.Width, u.hidden()
	w := u.split(p)
	normed := cut(&keep, normKeep(rows, d))
	before := cut(&keep, rows*h)
	y, after := e.floats(rows*d), e.floats(rows*h)
	norm(y, x, w.gain, w.bias, normed)
	e.space.Mul(mat.Of(before, rows, h), mat.Of(y, rows, d), mat.Of(w.in, h, d).T(), false)
	addBias(before, w.inBias)
	mat.Gelu(after, before)
	e.space.Mul(mat.Of(y, rows, d), mat.Of(after, rows, h), mat.Of(w.out, d, h).T(), false)
	if err := e.sum(y); err != nil {
		return err
	}
	addResidual(x, y, w.outBias)
	return nil
}

// addResidual adds y and a bias to x.
func addResidual(x, y, bias []float32) {
	for ; len(y) > 0; x, y = x[len(bias):], y[len(bias):] {
		out, in := x[:len(bias)], y[:len(bias)]
		for j, b := range bias {
			out[j] += in[j] + b
		}
	}
}

// Backward adds the gradients of the weights to g and turns dx into the gradient of the input. What came out of GELU is
// computed again rather than kept.
func (u *mlp) Backward(e *Env, p, g, dx, keep []float32) error {
	defer e.reset()
	rows, d, h := u.c.Rows(e.Samples), u.c.Width, u.hidden()
	w, dw := u.split(p), u.split(g)
	normed := cut(&keep, normKeep(rows, d))
	before := cut(&keep, rows*h)
	grad := mat.Of(dx, rows, d)

	after, dh := e.floats(rows*h), e.floats(rows*h)
	hidden := mat.Of(dh, rows, h)
	e.space.Mul(hidden, grad, mat.Of(w.out, d, h), false)
	mat.GeluBack(after, dh, before)
	addRows(dw.outBias, dx)
	e.space.Mul(mat.Of(dw.out, d, h), grad.T(), mat.Of(after, rows, h), true)

	y, dy := e.floats(rows*d), e.floats(rows*d)
	normAgain(y, w.gain, w.bias, normed)
	addRows(dw.inBias, dh)
	e.space.Mul(mat.Of(dw.in, h, d), hidden.T(), mat.Of(y, rows, d), true)
	e.space.Mul(mat.Of(dy, rows, d), hidden, mat.Of(w.in, h, d), false)
	if err := e.sum(dy); err != nil {
		return err
	}
	normBack(dx, dw.gain, dw.bias, dy, w.gain, normed, true)
	return nil
}
