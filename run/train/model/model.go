// Package model is a small GPT and an MLP over bytes, with forward and backward
// written out: no graph, no tape beyond what backward reads.
//
// A network is a list of units in the order of forward:
//
//	gpt   embed · attention 0 · mlp 0 · attention 1 · mlp 1 ... · head
//	mlp   embed · mlp 0 · mlp 1 ... · head
//
// Between units runs one activation x, a row of Width for each position; attention
// and mlp add to it (pre-norm). All parameters of a rank are one flat buffer, the
// units' parameters one after the other, and gradients another of the same layout:
// backward goes through the buffer from its end to its beginning, and what lies
// behind the unit it has left is final.
//
// A rank may hold a part of the network: a stage (a run of units, pipeline
// parallel) and of every unit its share of heads and hidden columns (tensor
// parallel: the first product of a unit is cut by columns, the second by rows, and
// the sums over ranks are Env.Sum). Every parameter knows its name, its whole shape
// and which box of it this rank holds. Initial values depend on seed, name and
// place in the whole parameter alone, so that every layout starts from the same
// network.
package model

import (
	"fmt"
	"strings"
)

// Kind is an architecture.
type Kind string

// The architectures.
const (
	GPT Kind = "gpt"
	MLP Kind = "mlp"
)

// Config is the size of a network.
type Config struct {
	Kind    Kind
	Vocab   int // symbols, at most 256: tokens are bytes
	Context int // positions of a sample
	Width   int // of the activation between units
	Heads   int // of attention; divides Width. An mlp has none
	Hidden  int // columns between the two products of an mlp unit
	Layers  int // pairs of attention and mlp unit, or mlp units
}

// Small is a GPT of 0.87 million parameters, for a demonstration on a few cores.
func Small() Config {
	return Config{Kind: GPT, Vocab: 256, Context: 64, Width: 128, Heads: 4, Hidden: 512, Layers: 4}
}

// Tiny is a GPT of 34 thousand parameters, for tests.
func Tiny() Config {
	return Config{Kind: GPT, Vocab: 256, Context: 16, Width: 32, Heads: 4, Hidden: 64, Layers: 2}
}

// TinyMLP is an MLP for tests.
func TinyMLP() Config {
	return Config{Kind: MLP, Vocab: 256, Context: 8, Width: 32, Hidden: 64, Layers: 2}
}

// Check reports what is wrong with a size.
func (c Config) Check() error {
	if c.Kind != GPT && c.Kind != MLP {
		return fmt.Errorf("model: kind %q; known: %s, %s", c.Kind, GPT, MLP)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"vocab", c.Vocab}, {"context", c.Context}, {"width", c.Width}, {"hidden", c.Hidden}, {"layers", c.Layers}} {
		if f.value < 1 {
			return fmt.Errorf("model: %s is %d; it is at least 1", f.name, f.value)
		}
	}
	if c.Vocab > 256 {
		return fmt.Errorf("model: vocab is %d; tokens are bytes, at most 256", c.Vocab)
	}
	if c.Kind == GPT && (c.Heads < 1 || c.Width%c.Heads != 0) {
		return fmt.Errorf("model: %d heads do not divide the width %d", c.Heads, c.Width)
	}
	return nil
}

// Rows is how many rows of Width the activation has for a number of samples: one for
// every position, or one for each sample of an mlp.
func (c Config) Rows(samples int) int {
	if c.Kind == MLP {
		return samples
	}
	return samples * c.Context
}

// Targets is how many tokens of a sample are predicted.
func (c Config) Targets() int { return c.Rows(1) }

// embedding is the width of a token's vector before an mlp joins those of a context.
func (c Config) embedding() int { return max(1, c.Width/8) }

// Shard is the part of a network that a rank holds. The zero value is the whole.
type Shard struct {
	Tensor, Tensors int // share of every unit
	Stage, Stages   int // run of units
}

func (s Shard) normal() Shard {
	s.Tensors, s.Stages = max(1, s.Tensors), max(1, s.Stages)
	return s
}

// Param is one parameter, or the box of it that a rank holds. Elements are stored by
// rows (the last axis is the fastest).
type Param struct {
	Name   string
	Shape  []int // of the whole
	Offset []int // where the box begins in the whole
	Size   []int // of the box
	At     int   // where the box begins in the flat buffer
	Copy   bool  // the whole of it is on every tensor rank
	Decay  bool  // weights decay; gains, biases and positions do not
	start  start
}

// Len is the number of elements of the box.
func (p Param) Len() int { return product(p.Size) }

// Span is a range of the flat buffer.
type Span struct{ Lo, Hi int }

// Len is the number of elements.
func (s Span) Len() int { return s.Hi - s.Lo }

// Unit is one layer of a network. p and g are the unit's part of parameters and
// gradients; keep is what forward leaves for backward.
type Unit interface {
	// Name is unique within a network.
	Name() string
	// Keep is how many elements forward keeps for a number of samples.
	Keep(samples int) int
	// Forward replaces x by the unit's output.
	Forward(e *Env, p, x, keep []float32) error
	// Backward replaces dx, the gradient of the output, by that of the input, and adds
	// the parameters' gradients to g.
	Backward(e *Env, p, g, dx, keep []float32) error

	params() []Param
}

// Net is a network, or a rank's part of it.
type Net struct {
	Config Config
	Shard  Shard
	Units  []Unit
	Spans  []Span  // of the units' parameters; each begins at a multiple of the alignment
	Params []Param // in the order of the flat buffer
	Len    int     // elements of the flat buffer, padding included
	Total  int     // parameters of the whole network
}

// fits is nil if the model can be cut so.
func (s Shard) fits(c Config) error {
	switch {
	case c.Kind == GPT && c.Heads%s.Tensors != 0:
		return fmt.Errorf("model: %d heads are not divided evenly by %d tensor ranks; take one of %s", c.Heads, s.Tensors, divisors(c.Heads))
	case c.Hidden%s.Tensors != 0:
		return fmt.Errorf("model: hidden width %d is not divided evenly by %d tensor ranks; take one of %s",
			c.Hidden, s.Tensors, divisors(c.Hidden))
	case s.Stages > c.Layers:
		return fmt.Errorf("model: %d layers make at most as many stages, not %d", c.Layers, s.Stages)
	case s.Tensor < 0 || s.Tensor >= s.Tensors || s.Stage < 0 || s.Stage >= s.Stages:
		return fmt.Errorf("model: tensor rank %d of %d, stage %d of %d", s.Tensor, s.Tensors, s.Stage, s.Stages)
	}
	return nil
}

// New lays out a rank's part. Units begin at multiples of align elements, so that
// every unit and every bucket cut there divides evenly among that many ranks.
func New(c Config, s Shard, align int) (*Net, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	s, align = s.normal(), max(1, align)
	if err := s.fits(c); err != nil {
		return nil, err
	}
	n := &Net{Config: c, Shard: s, Total: total(c)}
	n.Units = units(c, s)
	at := 0
	for _, u := range n.Units {
		lo := at
		for _, p := range u.params() {
			p.At += lo
			n.Params = append(n.Params, p)
			at = p.At + p.Len()
		}
		at = (at + align - 1) / align * align
		n.Spans = append(n.Spans, Span{lo, at})
	}
	n.Len = at
	return n, nil
}

func divisors(n int) string {
	var list []string
	for d := 1; d <= n; d++ {
		if n%d == 0 {
			list = append(list, fmt.Sprint(d))
		}
	}
	return strings.Join(list, ", ")
}

// layersOf gives the layers of a stage; where they do not divide evenly the later
// stages have one more.
func layersOf(c Config, s Shard) (from, to int) {
	return s.Stage * c.Layers / s.Stages, (s.Stage + 1) * c.Layers / s.Stages
}

// units lists the layers of a stage. The first stage also embeds, and the last computes the loss.
func units(c Config, s Shard) []Unit {
	var list []Unit
	if s.Stage == 0 {
		if c.Kind == GPT {
			list = append(list, &embed{c: c})
		} else {
			list = append(list, &join{c: c})
		}
	}
	from, to := layersOf(c, s)
	for i := from; i < to; i++ {
		if c.Kind == GPT {
			list = append(list, &attention{c: c, s: s, layer: i})
		}
		list = append(list, &mlp{c: c, s: s, layer: i})
	}
	if s.Stage == s.Stages-1 {
		list = append(list, &head{c: c})
	}
	return list
}

func total(c Config) int {
	n := 0
	for _, u := range units(c, Shard{}.normal()) {
		for _, p := range u.params() {
			n += p.Len()
		}
	}
	return n
}

// list gives parameters their places one after the other.
type list struct {
	all []Param
	at  int
}

func (l *list) add(p Param) {
	if p.Offset == nil {
		p.Offset, p.Size, p.Copy = make([]int, len(p.Shape)), p.Shape, true
	}
	p.At = l.at
	l.at += p.Len()
	l.all = append(l.all, p)
}

func product(s []int) int {
	n := 1
	for _, v := range s {
		n *= v
	}
	return n
}
