package model

import (
	"errors"
	"testing"

	"github.com/weft-fabric/weft/run/train/internal/mat"
	"pgregory.net/rapid"
)

// A text read in any pieces, from its own cache or from one that another sequence filled, gives the scores of the
// plain forward pass, bit for bit, at every position where a piece ends.
func TestSequenceIsForward(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "heads")
		c := Config{Kind: GPT, Vocab: 64, Context: rapid.IntRange(1, 20).Draw(t, "context"), Width: heads * rapid.IntRange(1, 6).Draw(t, "size"),
			Heads: heads, Hidden: rapid.IntRange(1, 24).Draw(t, "hidden"), Layers: rapid.IntRange(1, 3).Draw(t, "layers")}
		n, err := New(c, Shard{}, rapid.SampledFrom([]int{1, 8}).Draw(t, "align"))
		if err != nil {
			t.Fatal(err)
		}
		p := make([]float32, n.Len)
		n.Fill(p, rapid.Uint64().Draw(t, "seed"))
		text := rapid.SliceOfN(rapid.ByteMax(63), c.Context, c.Context).Draw(t, "text")
		want := plainScores(t, n, p, text)

		cache := n.NewCache()
		s, err := n.Read(p, cache, 0)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(text); {
			if rapid.IntRange(0, 4).Draw(t, "move") == 0 { // another worker goes on with this cache
				if s, err = n.Read(p, cache, at); err != nil {
					t.Fatal(err)
				}
			}
			k := rapid.IntRange(1, len(text)-at).Draw(t, "piece")
			needed, done := 0, 0
			got, err := s.Next(text[at:at+k], Hooks{
				Need: func(layer int) error { needed++; return nil },
				Done: func(layer int) error { done++; return nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			at += k
			if s.Len() != at || needed != c.Layers || done != c.Layers {
				t.Fatalf("%d read, want %d; hooks %d %d", s.Len(), at, needed, done)
			}
			for j, v := range got {
				if v != want[at-1][j] {
					t.Fatalf("token %d, symbol %d: %g, want %g", at-1, j, v, want[at-1][j])
				}
			}
		}
	})
}

// plainScores are the scores of every position, by the units' own Forward over the whole text.
func plainScores(t *rapid.T, n *Net, p []float32, text []byte) [][]float32 {
	c := n.Config
	e := Env{Samples: 1, Tokens: append(append([]byte{}, text...), 0), Scale: 1}
	x := make([]float32, c.Rows(1)*c.Width)
	for i, u := range n.Units[:len(n.Units)-1] {
		if err := u.Forward(&e, p[n.Spans[i].Lo:n.Spans[i].Hi], x, make([]float32, u.Keep(1))); err != nil {
			t.Fatal(err)
		}
	}
	u := head{c: c}
	w := u.split(p[n.Spans[len(n.Units)-1].Lo:])
	y, scores := make([]float32, len(x)), make([]float32, c.Context*c.Vocab)
	norm(y, x, w.gain, w.bias, make([]float32, normKeep(c.Context, c.Width)))
	e.space.Mul(mat.Of(scores, c.Context, c.Vocab), mat.Of(y, c.Context, c.Width), mat.Of(w.weight, c.Vocab, c.Width).T(), false)
	var out [][]float32
	for i := range c.Context {
		out = append(out, scores[i*c.Vocab:][:c.Vocab])
	}
	return out
}

func TestSequenceRefuses(t *testing.T) {
	c := Tiny()
	c.Vocab = 100
	n, _ := New(c, Shard{}, 1)
	p := make([]float32, n.Len)
	cache := n.NewCache()
	s, err := n.Read(p, cache, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, tokens := range [][]byte{nil, make([]byte, c.Context+1), {100}} {
		if _, err := s.Next(tokens, Hooks{}); err == nil {
			t.Errorf("%d tokens are read", len(tokens))
		}
	}
	stop := errors.New("late")
	if _, err := s.Next([]byte{1}, Hooks{Need: func(l int) error { return stop }}); !errors.Is(err, stop) || s.Len() != 0 {
		t.Error(err, s.Len())
	}
	if _, err := n.Read(p[:5], cache, 0); err == nil {
		t.Error("five parameters")
	}
	if _, err := n.Read(p, Cache{}, 0); err == nil {
		t.Error("no cache")
	}
	if _, err := n.Read(p, cache, c.Context+1); err == nil {
		t.Error("more than the context")
	}
	half, _ := New(Tiny(), Shard{Tensor: 0, Tensors: 2}, 1)
	if _, err := half.Read(p, cache, 0); err == nil {
		t.Error("half a model")
	}
	if Best([]float32{1, 3, 3, 2}) != 1 {
		t.Error("best")
	}
}
