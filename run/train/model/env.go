package model

import "github.com/weft-fabric/weft/run/train/internal/mat"

// Env is what units work with: the samples at hand and working memory. One rank
// has one; it is not for several goroutines at once.
type Env struct {
	Samples int
	// Tokens are the samples one after the other, each Context bytes of input and one
	// more: the targets are the input moved on by one.
	Tokens []byte
	// Scale is what one target weighs in the loss whose gradient backward computes:
	// one over the number of targets of the global batch.
	Scale float32
	// Loss gathers the sum of cross-entropies, in nats, unscaled.
	Loss float64
	// Sum adds a buffer over the tensor ranks, in place; nil where there is one.
	Sum func(buf []float32) error

	space   mat.Space
	scratch []float32
	used    int
}

// floats is working memory of n elements, until the unit returns. Its content is arbitrary.
func (e *Env) floats(n int) []float32 {
	if e.used+n > len(e.scratch) {
		// What was handed out before stays where it is.
		e.scratch = make([]float32, max(2*len(e.scratch), n))
		e.used = 0
	}
	s := e.scratch[e.used : e.used+n : e.used+n]
	e.used += n
	return s
}

func (e *Env) reset() { e.used = 0 }

// Working is how many bytes of working memory there are.
func (e *Env) Working() int { return 4 * len(e.scratch) }

func (e *Env) sum(buf []float32) error {
	if e.Sum == nil || len(buf) == 0 {
		return nil
	}
	return e.Sum(buf)
}

// cut takes the first n elements off s.
func cut(s *[]float32, n int) []float32 {
	head := (*s)[:n:n]
	*s = (*s)[n:]
	return head
}

// addRows adds the sum of x's rows to bias's gradient g.
func addRows(g, x []float32) {
	for ; len(x) > 0; x = x[len(g):] {
		for j, v := range x[:len(g)] {
			g[j] += v
		}
	}
}

// addBias adds bias to every row of x.
func addBias(x, bias []float32) {
	for ; len(x) > 0; x = x[len(bias):] {
		row := x[:len(bias)]
		for j, v := range bias {
			row[j] += v
		}
	}
}
