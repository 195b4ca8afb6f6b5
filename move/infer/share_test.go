package infer

import (
	"bytes"
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
)

// The pieces of blocks cover the memory of a prompt once, and a block's bytes are those of its tokens, layer by layer.
func TestPiecesCoverThePrompt(t *testing.T) {
	m := tiny()
	const n = 5
	pieces, err := m.pieces(n)
	if err != nil {
		t.Fatal(err)
	}
	lay := m.layout()
	page := lay
	page.Block, page.Blocks, page.PageFirst, page.Together = blockTokens, n, true, true
	mem, want := make([]byte, lay.Bytes()), make([]byte, page.Bytes())
	seen := make([]int, len(mem))
	for layer := range lay.Layers {
		for plane := range 2 {
			for token := range n * blockTokens {
				for head := range lay.Heads {
					for k := range lay.Dim * lay.Elem {
						x := byte(layer*7 + plane*31 + token*3 + head*13 + k)
						mem[lay.At(layer, plane, token, 0, head)+k] = x
						want[page.At(layer, plane, token/blockTokens, token%blockTokens, head)+k] = x
					}
				}
			}
		}
	}
	for i, list := range pieces {
		var got []byte
		for _, p := range list {
			got = append(got, mem[p.Off:][:p.Len]...)
			for k := range p.Len {
				seen[p.Off+k]++
			}
		}
		if size := int(m.blockBytes()); !bytes.Equal(got, want[i*size:][:size]) {
			t.Fatalf("block %d is not in the order of pages", i)
		}
	}
	if slices.Max(seen) != 1 {
		t.Error("a byte belongs to two blocks")
	}
}

// Two prefill workers share what prompts have in common: the tokens are those of one process, in both ways of sending, also when
// workers die, and when the cache dies.
func TestPrefixesAreShared(t *testing.T) {
	c, ctx := start(t, Options{Prefill: 2, Decode: 1, CacheMemory: 1 << 20, Patience: 20 * time.Second})
	l := Load{Prompt: 100, Alike: 70, Answer: 3, Mode: Stream, Seed: 5}
	ask := func(n int, mode Mode) *Reply {
		t.Helper()
		text := l.prompt(n, 256)
		r, err := c.Ask(ctx, text, 3, mode)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.o.Model, text, 3, r)
		return r
	}
	stored := func(n int64) {
		t.Helper()
		if !bounded.Holds(20*time.Second, func() bool { return c.Status().Cache.Stored >= n }) {
			t.Fatalf("the cache has %+v", c.Status().Cache)
		}
	}
	if r := ask(0, Stream); r.Shared != 0 {
		t.Errorf("%d blocks were there", r.Shared)
	}
	stored(6) // of 100 tokens
	for n, mode := range []Mode{Stream, Whole, Stream} {
		if r := ask(n+1, mode); r.Shared != 4 { // 64 of the 70 tokens are whole blocks
			t.Errorf("%s: %d blocks were shared, want 4", mode, r.Shared)
		}
	}
	stored(6 + 3*2)
	if r := ask(1, Whole); r.Shared != 6 {
		t.Errorf("the same prompt once more: %d blocks were shared, want 6", r.Shared)
	}
	for i := range 4 {
		if i%2 == 0 {
			_ = c.Signal([]string{"p0", "p1"}[i/2], syscall.SIGKILL)
		}
		ask(10+i, Modes[i%2])
	}
	if s := c.Status().Cache; s.Found == 0 || s.Moved == 0 || s.Error != "" {
		t.Errorf("%+v", s)
	}
	c.cache.server.Close()
	if r := ask(1, Stream); r.Shared != 0 {
		t.Errorf("%d blocks came from a cache that is gone", r.Shared)
	}
}

// Models do not share blocks, and a cache that is not there is said at once.
func TestOthersBlocks(t *testing.T) {
	a, b := tiny(), tiny()
	b.Seed++
	x, err := a.hashes(prompt(1, 40))
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.hashes(prompt(1, 40))
	if err != nil || len(x) != 2 || slices.ContainsFunc(x, func(h kv.Hash) bool { return slices.Contains(y, h) }) {
		t.Error("two models have blocks in common: ", x, y, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := Start(ctx, Options{Model: tiny(), Decode: 1, Prefill: 1, Program: []string{"/bin/true"}, Cache: "127.0.0.1:1"}); err == nil {
		t.Error("it started without its cache")
	}
}
