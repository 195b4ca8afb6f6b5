// Package infer lets a GPT answer prompts on several processes: prefill workers read prompts, decode workers write
// the answers, and the KV cache goes from one to the other layer by layer over package xfer.
//
//	prefill   layer 0 | layer 1 | layer 2 | ...        computes; an event at the end of each layer
//	               \        \        \
//	the wire        [layer 0][layer 1][layer 2]...     each layer is one write with a notice of its own
//	                    \        \        \
//	decode               layer 0 | layer 1 | ...       starts a layer when its notice has come
//
// A write is posted after the layer was computed, never before, and a layer is read after its notice, never before.
// A decode worker registers a region for each request and takes it back in the end: a prefill worker that was
// stopped and wakes up later finds no such region.
//
// Who dies is started again; what was on it is done again elsewhere. A decode worker that waits too long for a layer
// computes the prompt itself. Either way the answer is, bit for bit, that of one process (Answer).
package infer

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/run/train/model"
	"github.com/zeebo/xxh3"
)

// Mode is how a prompt's cache gets to the decode worker.
type Mode string

// The modes.
const (
	Stream    Mode = "stream"    // layer by layer, while the prompt is computed
	Whole     Mode = "whole"     // in one piece, when all of it is computed
	Recompute Mode = "recompute" // not at all: the decode worker computes the prompt itself
)

// Cached is a row of a comparison: streaming, once more with the same prompt, whose blocks the cache service has.
const Cached Mode = "cached"

// Modes are all of them.
var Modes = []Mode{Stream, Whole, Recompute}

// Token is one token of an answer, with a checksum of the scores of all symbols: equal sums are equal bits.
type Token struct {
	Token byte   `json:"token"`
	Sum   uint64 `json:"sum,string"`
}

// Model is a network and the seed of its parameters.
type Model struct {
	Config model.Config `json:"config"`
	Seed   uint64       `json:"seed"`
}

// Small is a GPT of 3.2 million parameters with a context of 512, which takes a core some hundred milliseconds to read.
func Small() Model {
	return Model{model.Config{Kind: model.GPT, Vocab: 256, Context: 512, Width: 256, Heads: 8, Hidden: 1024, Layers: 4}, 1}
}

// loaded is a model in memory.
type loaded struct {
	net   *model.Net
	param []float32
}

func (m Model) load() (loaded, error) {
	if m.Config.Kind != model.GPT {
		return loaded{}, fmt.Errorf("infer: a model of kind %q; only %s answers prompts", m.Config.Kind, model.GPT)
	}
	net, err := model.New(m.Config, model.Shard{}, 1)
	if err != nil {
		return loaded{}, err
	}
	l := loaded{net, make([]float32, net.Len)}
	net.Fill(l.param, m.Seed)
	return l, nil
}

// layout is the cache of one request: layer first, keys and values apart, tokens of all heads in a row.
func (m Model) layout() kv.Layout {
	c := m.Config
	return kv.Layout{Layers: c.Layers, Heads: c.Heads, Dim: c.Width / c.Heads, Elem: 4, Planes: 2, Block: 1, Blocks: c.Context, Ranks: 1}
}

// cacheOver lays a model's cache over memory of one request.
func (m Model) cacheOver(mem []byte) model.Cache {
	floats := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/4)
	n := m.Config.Context * m.Config.Width
	var c model.Cache
	for l := range m.Config.Layers {
		c.Keys = append(c.Keys, floats[2*l*n:][:n:n])
		c.Values = append(c.Values, floats[(2*l+1)*n:][:n:n])
	}
	return c
}

// table is the blocks of a cache in the order of its tokens: one after the other.
func (m Model) table() []int {
	t := make([]int, m.Config.Context)
	for i := range t {
		t[i] = i
	}
	return t
}

// sumOf is the checksum of scores.
func sumOf(scores []float32) uint64 {
	return xxh3.Hash(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(scores))), 4*len(scores)))
}

// check reports what is wrong with a request.
func (m Model) check(prompt []byte, count int) error {
	if len(prompt) < 1 || count < 1 || len(prompt)+count > m.Config.Context {
		return fmt.Errorf("infer: a prompt of %d tokens and an answer of %d; want at least 1 of each and at most %d together",
			len(prompt), count, m.Config.Context)
	}
	for i, b := range prompt {
		if int(b) >= m.Config.Vocab {
			return fmt.Errorf("infer: token %d of the prompt is %d; the model knows %d", i, b, m.Config.Vocab)
		}
	}
	return nil
}

// Answer is what one process answers, and how long it took to the first token and for all.
func Answer(m Model, prompt []byte, count int) (tokens []Token, first, all time.Duration, err error) {
	if err := m.check(prompt, count); err != nil {
		return nil, 0, 0, err
	}
	l, err := m.load()
	if err != nil {
		return nil, 0, 0, err
	}
	return l.answer(prompt, count)
}

// answer is Answer by a model that is in memory.
func (l loaded) answer(prompt []byte, count int) (tokens []Token, first, all time.Duration, err error) {
	start := time.Now()
	s, err := l.net.Read(l.param, l.net.NewCache(), 0)
	if err != nil {
		return nil, 0, 0, err
	}
	next := prompt
	for range count {
		scores, err := s.Next(next, model.Hooks{})
		if err != nil {
			return nil, 0, 0, err
		}
		t := Token{model.Best(scores), sumOf(scores)}
		if tokens = append(tokens, t); len(tokens) == 1 {
			first = time.Since(start)
		}
		next = []byte{t.Token}
	}
	return tokens, first, time.Since(start), nil
}

// Exposed is how much of a transfer is not hidden behind computing, by the formula of layer-wise streaming: the
// transfer of all layers but the last runs while later layers are computed, the last one's follows.
func Exposed(transfer, prefill time.Duration, layers int) time.Duration {
	l := float64(layers)
	return max(0, time.Duration(float64(transfer)-float64(prefill)*(l-1)/l)) + time.Duration(float64(transfer)/l)
}
