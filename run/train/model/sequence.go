package model

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// Sequence is a text that a whole GPT reads, some tokens at a time, with the keys and values of what it has read:
// reading a token costs what the token costs, not what the text costs. Its scores have the bits that Forward over
// the whole text gives.
type Sequence struct {
	net   *Net
	param []float32
	cache Cache
	len   int
	env   Env
}

// Cache is memory for the keys and values of a sequence: of each layer Context rows of Width, a row for each token,
// heads side by side.
type Cache struct{ Keys, Values [][]float32 }

// NewCache makes memory for one sequence.
func (n *Net) NewCache() Cache {
	var c Cache
	for range n.Config.Layers {
		c.Keys = append(c.Keys, make([]float32, n.Config.Context*n.Config.Width))
		c.Values = append(c.Values, make([]float32, n.Config.Context*n.Config.Width))
	}
	return c
}

// Read begins a sequence of a network with parameters p in a cache that already holds the first tokens, or will hold
// them by the time that a reader's Need returns. The parameters stay the caller's.
func (n *Net) Read(p []float32, c Cache, have int) (*Sequence, error) {
	if n.Config.Kind != GPT || n.Shard.Tensors != 1 || n.Shard.Stages != 1 {
		return nil, fmt.Errorf("model: a sequence is read by a whole GPT, not by %s %d/%d of %d stages",
			n.Config.Kind, n.Shard.Tensor+1, n.Shard.Tensors, n.Shard.Stages)
	}
	if len(p) < n.Len || len(c.Keys) != n.Config.Layers || len(c.Values) != n.Config.Layers {
		return nil, fmt.Errorf("model: %d parameters and a cache of %d layers; want %d and %d", len(p), len(c.Keys), n.Len, n.Config.Layers)
	}
	for i := range c.Keys {
		if want := n.Config.Context * n.Config.Width; len(c.Keys[i]) < want || len(c.Values[i]) < want {
			return nil, fmt.Errorf("model: layer %d of the cache has %d keys and %d values; want %d", i, len(c.Keys[i]), len(c.Values[i]), want)
		}
	}
	if have < 0 || have > n.Config.Context {
		return nil, fmt.Errorf("model: %d tokens are in a cache of %d", have, n.Config.Context)
	}
	return &Sequence{net: n, param: p, cache: c, len: have, env: Env{Samples: 1}}, nil
}

// Len is the number of tokens read.
func (s *Sequence) Len() int { return s.len }

// Hooks are called on the way through the layers. Need returns when the cache of earlier tokens of a layer is there;
// Done is told that the keys and values of the new tokens are. An error of theirs ends the reading.
type Hooks struct{ Need, Done func(layer int) error }

// Next reads tokens and gives the score of every symbol for the one after them. After an error the sequence is as
// before.
func (s *Sequence) Next(tokens []byte, h Hooks) ([]float32, error) {
	c := s.net.Config
	rows, d := len(tokens), c.Width
	if rows == 0 {
		return nil, fmt.Errorf("model: no token to read")
	}
	if s.len+rows > c.Context {
		return nil, fmt.Errorf("model: %d tokens after %d; the context is %d", rows, s.len, c.Context)
	}
	x := make([]float32, rows*d)
	table := s.param[s.net.Spans[0].Lo:]
	places := table[c.Vocab*d:]
	for i, b := range tokens {
		if int(b) >= c.Vocab {
			return nil, fmt.Errorf("model: token %d of %d symbols", b, c.Vocab)
		}
		row, token, place := x[i*d:][:d], table[int(b)*d:][:d], places[(s.len+i)*d:][:d]
		for j := range row {
			row[j] = token[j] + place[j]
		}
	}
	keep := make([]float32, normKeep(rows, d)+rows*max(c.Hidden, 3*d))
	short := c
	short.Context = rows // what the units see: one sample of the new tokens
	for layer := range c.Layers {
		a := attention{c: short, s: s.net.Shard, layer: layer}
		if err := s.attend(&a, s.net.Spans[1+2*layer], x, keep, h); err != nil {
			return nil, err
		}
		m := mlp{c: short, s: s.net.Shard, layer: layer}
		if err := m.Forward(&s.env, s.param[s.net.Spans[2+2*layer].Lo:], x, keep); err != nil {
			return nil, err
		}
	}
	u := head{c: c}
	w := u.split(s.param[s.net.Spans[1+2*c.Layers].Lo:])
	y, scores := make([]float32, d), make([]float32, c.Vocab)
	norm(y, x[(rows-1)*d:], w.gain, w.bias, keep[:normKeep(1, d)])
	s.env.space.Mul(mat.Of(scores, 1, c.Vocab), mat.Of(y, 1, d), mat.Of(w.weight, c.Vocab, d).T(), false)
	s.len += rows
	return scores, nil
}

// attend is the attention of the new tokens to all up to themselves.
func (s *Sequence) attend(u *attention, span Span, x, keep []float32, h Hooks) error {
	e := &s.env
	defer e.reset()
	rows, d, all := u.c.Context, u.c.Width, s.len+u.c.Context
	p := u.split(s.param[span.Lo:])
	normed := cut(&keep, normKeep(rows, d))
	qkv := cut(&keep, rows*3*d)
	y, read, weights := e.floats(rows*d), e.floats(rows*d), e.floats(rows*all)
	norm(y, x, p.gain, p.bias, normed)
	e.space.Mul(mat.Of(qkv, rows, 3*d), mat.Of(y, rows, d), mat.Of(p.qkv, 3*d, d).T(), false)
	addBias(qkv, p.qkvBias)
	keys, values := s.cache.Keys[u.layer], s.cache.Values[u.layer]
	for i := range rows {
		copy(keys[(s.len+i)*d:][:d], qkv[i*3*d+d:])
		copy(values[(s.len+i)*d:][:d], qkv[i*3*d+2*d:])
	}
	if h.Done != nil {
		if err := h.Done(u.layer); err != nil {
			return err
		}
	}
	if h.Need != nil {
		if err := h.Need(u.layer); err != nil {
			return err
		}
	}
	size := d / u.c.Heads
	for i := range u.c.Heads {
		w := mat.Of(weights, rows, all)
		e.space.Mul(w, mat.Of(qkv, rows, 3*d).Part(0, i*size, rows, size), mat.Of(keys, all, d).Part(0, i*size, all, size).T(), false)
		softmax(w, u.scale(), s.len)
		e.space.Mul(mat.Of(read, rows, d).Part(0, i*size, rows, size), w, mat.Of(values, all, d).Part(0, i*size, all, size), false)
	}
	e.space.Mul(mat.Of(y, rows, d), mat.Of(read, rows, d), mat.Of(p.out, d, d).T(), false)
	addResidual(x, y, p.outBias)
	return nil
}

// Best is the symbol with the highest score, the first of equal ones: the token that greedy decoding takes.
func Best(scores []float32) byte {
	best, top := 0, float32(math.Inf(-1))
	for i, v := range scores {
		if v > top {
			best, top = i, v
		}
	}
	return byte(best)
}
