package model

import (
	"math"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// head is the last unit: the norm of x, a score for every symbol, and the
// cross-entropy of the target. Forward already keeps the scores' gradient:
// (softmax - 1 at the target) Scale.
type head struct{ c Config }

func (u *head) Name() string { return "head" }

func (u *head) params() []Param {
	var l list
	l.add(Param{Name: "head.norm.gain", Shape: []int{u.c.Width}, start: start{ones: true}})
	l.add(Param{Name: "head.norm.bias", Shape: []int{u.c.Width}})
	l.add(Param{Name: "head.weight", Shape: []int{u.c.Vocab, u.c.Width}, Decay: true, start: start{deviation: 0.02}})
	return l.all
}

type headParams struct{ gain, bias, weight []float32 }

func (u *head) split(p []float32) headParams {
	d := u.c.Width
	return headParams{cut(&p, d), cut(&p, d), cut(&p, u.c.Vocab*d)}
}

func (u *head) Keep(samples int) int {
	rows := u.c.Rows(samples)
	return normKeep(rows, u.c.Width) + rows*u.c.Vocab
}

// target is the symbol that a row predicts.
func (u *head) target(e *Env, row int) int {
	per := u.c.Targets()
	sample, at := row/per, u.c.Context-per+row%per
	return int(e.Tokens[sample*(u.c.Context+1)+at+1])
}

// Forward adds the cross-entropy to e.Loss, in float64, and leaves the gradient of the scores in keep: softmax minus
// the target, times e.Scale. The largest score is subtracted first, so that exp does not overflow.
func (u *head) Forward(e *Env, p, x, keep []float32) error {
	defer e.reset()
	rows, d := u.c.Rows(e.Samples), u.c.Width
	w := u.split(p)
	normed := cut(&keep, normKeep(rows, d))
	scores := cut(&keep, rows*u.c.Vocab)
	y := e.floats(rows * d)
	norm(y, x, w.gain, w.bias, normed)
	e.space.Mul(mat.Of(scores, rows, u.c.Vocab), mat.Of(y, rows, d), mat.Of(w.weight, u.c.Vocab, d).T(), false)
	for r := range rows {
		row := scores[r*u.c.Vocab:][:u.c.Vocab]
		top := row[0]
		for _, v := range row {
			top = max(top, v)
		}
		target := u.target(e, r)
		wanted := row[target] - top
		mat.Exp(row, row, top)
		total := sum(row)
		e.Loss += math.Log(float64(total)) - float64(wanted)
		factor := e.Scale / total
		for j := range row {
			row[j] *= factor
		}
		row[target] -= e.Scale
	}
	return nil
}

func (u *head) Backward(e *Env, p, g, dx, keep []float32) error {
	defer e.reset()
	rows, d := u.c.Rows(e.Samples), u.c.Width
	w, dw := u.split(p), u.split(g)
	normed := cut(&keep, normKeep(rows, d))
	grad := mat.Of(cut(&keep, rows*u.c.Vocab), rows, u.c.Vocab)
	y, dy := e.floats(rows*d), e.floats(rows*d)
	normAgain(y, w.gain, w.bias, normed)
	e.space.Mul(mat.Of(dw.weight, u.c.Vocab, d), grad.T(), mat.Of(y, rows, d), true)
	e.space.Mul(mat.Of(dy, rows, d), grad, mat.Of(w.weight, u.c.Vocab, d), false)
	normBack(dx, dw.gain, dw.bias, dy, w.gain, normed, false)
	return nil
}
