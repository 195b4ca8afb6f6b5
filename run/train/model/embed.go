package model

import "github.com/weft-fabric/weft/run/train/internal/mat"

// embed is a GPT's first unit: the vector of a token plus that of its position.
type embed struct{ c Config }

func (u *embed) Name() string { return "embed" }

func (u *embed) params() []Param {
	var l list
	l.add(Param{Name: "embed.token", Shape: []int{u.c.Vocab, u.c.Width}, Decay: true, start: start{deviation: 0.02}})
	l.add(Param{Name: "embed.position", Shape: []int{u.c.Context, u.c.Width}, start: start{deviation: 0.02}})
	return l.all
}

func (u *embed) Keep(int) int { return 0 }

// each calls f for every position: the token's and the position's place among the
// parameters, and the activation's row.
func (u *embed) each(e *Env, f func(token, position, row int)) {
	d := u.c.Width
	for s := range e.Samples {
		for t, b := range e.Tokens[s*(u.c.Context+1):][:u.c.Context] {
			f(int(b)*d, (u.c.Vocab+t)*d, (s*u.c.Context+t)*d)
		}
	}
}

func (u *embed) Forward(e *Env, p, x, _ []float32) error {
	d := u.c.Width
	u.each(e, func(token, position, row int) {
		a, b, out := p[token:][:d], p[position:][:d], x[row:][:d]
		for j, v := range a {
			out[j] = v + b[j]
		}
	})
	return nil
}

func (u *embed) Backward(e *Env, _, g, dx, _ []float32) error {
	d := u.c.Width
	u.each(e, func(token, position, row int) {
		a, b := g[token:][:d], g[position:][:d]
		for j, v := range dx[row:][:d] {
			a[j] += v
			b[j] += v
		}
	})
	return nil
}

// join is an mlp's first unit: the vectors of a context's tokens side by side,
// through one product.
type join struct{ c Config }

func (u *join) Name() string { return "embed" }

func (u *join) params() []Param {
	var l list
	e := u.c.embedding()
	l.add(Param{Name: "embed.token", Shape: []int{u.c.Vocab, e}, Decay: true, start: start{deviation: 1}})
	l.add(Param{Name: "embed.weight", Shape: []int{u.c.Width, u.c.Context * e}, Decay: true, start: start{deviation: 0.02}})
	l.add(Param{Name: "embed.bias", Shape: []int{u.c.Width}})
	return l.all
}

// split gives the three parameters within p.
func (u *join) split(p []float32) (token, weight, bias []float32) {
	e := u.c.embedding()
	return cut(&p, u.c.Vocab*e), cut(&p, u.c.Width*u.c.Context*e), cut(&p, u.c.Width)
}

func (u *join) Keep(samples int) int { return samples * u.c.Context * u.c.embedding() }

// each calls f with a token's place among the parameters and its place in the joined rows.
func (u *join) each(e *Env, f func(token, at int)) {
	w := u.c.embedding()
	for s := range e.Samples {
		for t, b := range e.Tokens[s*(u.c.Context+1):][:u.c.Context] {
			f(int(b)*w, (s*u.c.Context+t)*w)
		}
	}
}

func (u *join) Forward(e *Env, p, x, keep []float32) error {
	token, weight, bias := u.split(p)
	w := u.c.embedding()
	u.each(e, func(from, at int) { copy(keep[at:][:w], token[from:][:w]) })
	in := u.c.Context * w
	e.space.Mul(mat.Of(x, e.Samples, u.c.Width), mat.Of(keep, e.Samples, in), mat.Of(weight, u.c.Width, in).T(), false)
	addBias(x, bias)
	return nil
}

// Backward adds the gradients to g. The tokens before it have none, so dx is not changed.
func (u *join) Backward(e *Env, p, g, dx, keep []float32) error {
	defer e.reset()
	_, weight, _ := u.split(p)
	dtoken, dweight, dbias := u.split(g)
	w := u.c.embedding()
	in := u.c.Context * w
	grad := mat.Of(dx, e.Samples, u.c.Width)
	addRows(dbias, dx)
	e.space.Mul(mat.Of(dweight, u.c.Width, in), grad.T(), mat.Of(keep, e.Samples, in), true)
	joined := e.floats(e.Samples * in)
	e.space.Mul(mat.Of(joined, e.Samples, in), grad, mat.Of(weight, u.c.Width, in), false)
	u.each(e, func(to, at int) {
		out := dtoken[to:][:w]
		for j, v := range joined[at:][:w] {
			out[j] += v
		}
	})
	return nil
}
