package kvcache

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/zeebo/xxh3"
)

// agent starts an agent that is private if it shall not share memory.
func agent(t *testing.T, name, path string) *xfer.Agent {
	t.Helper()
	a, err := xfer.New(xfer.Config{Name: name, Path: path, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// worker is a client with memory of its own.
type worker struct {
	*Client
	agent *xfer.Agent
	mem   []byte
}

func newWorker(t *testing.T, name, at string) *worker {
	t.Helper()
	w := &worker{Client: Dial(at, "", ""), agent: agent(t, name, "")}
	t.Cleanup(w.Close)
	var err error
	if w.mem, err = w.agent.Alloc(1 << 16); err != nil {
		t.Fatal(err)
	}
	return w
}

// pieces lays n blocks of a size out in two halves each, as keys and values that lie apart.
func pieces(n int, size int64) (out [][]Piece) {
	for i := range int64(n) {
		half := size / 2
		out = append(out, []Piece{{i * half, half}, {1<<15 + i*(size-half), size - half}})
	}
	return out
}

func bytesAt(mem []byte, list []Piece) (out []byte) {
	for _, p := range list {
		out = append(out, mem[p.Off:][:p.Len]...)
	}
	return out
}

// What one worker has the cache read, another has it write: the same bytes, in the places that each asks for, over every path and
// from every tier.
func TestBlocksMove(t *testing.T) {
	for _, path := range []string{"", "tcp", "unix"} {
		t.Run("path "+path, func(t *testing.T) {
			ctx := limit(t)
			name := strings.ReplaceAll(t.Name(), "/", " ")
			a := agent(t, "cache of "+name, path)
			c := small(t, func(o *Options) {
				o.Agent, o.Disk, o.Slab = a, t.TempDir()+"/slab", 400<<10
			})
			_, at := serve(t, c, "")
			w, r := newWorker(t, "writer of "+name, at), newWorker(t, "reader of "+name, at)
			const n, size = 30, 1000 // more than memory holds: the first are on the disk
			keys := make([]kv.Hash, n)
			for i := range keys {
				keys[i] = hash(9, i)
			}
			want := pieces(n, size)
			for i := range w.mem {
				w.mem[i] = byte(i * 31 >> 3)
			}
			for i := 0; i < n; i += 10 { // so that the writer behind can follow
				if k, err := w.PutFrom(ctx, keys[:i+10], i, w.agent, w.mem, want[i:i+10]); err != nil || k != 10 {
					t.Fatal(k, err)
				}
				settle(t, c)
			}
			if k, err := w.PutFrom(ctx, keys, 0, w.agent, w.mem, want); err != nil || k != n {
				t.Fatal("a second time: ", k, err)
			}
			k, by, err := r.GetInto(ctx, append(keys[:n:n], hash(10, 0)), 2, r.agent, r.mem, append(want[2:n:n], want[0]))
			if err != nil || k != n-2 {
				t.Fatal(k, err)
			}
			if path != "" && by != path {
				t.Errorf("path %s", by)
			}
			for i := 2; i < n; i++ {
				if !bytes.Equal(bytesAt(r.mem, want[i]), bytesAt(w.mem, want[i])) {
					t.Fatalf("block %d differs", i)
				}
			}
			s := c.Stat()
			if s.Counters.Disk == 0 || s.Counters.Moved < 2*int64(n-2)*size || s.Tenants[0].InUse != 0 {
				t.Errorf("%+v", s)
			}
			if k, _, err := r.GetInto(ctx, []kv.Hash{hash(11, 0)}, 0, r.agent, r.mem, want[:1]); err != nil || k != 0 {
				t.Error("a block that is nowhere: ", k, err)
			}
		})
	}
}

// Wrong sizes, pieces, regions and agents are refused; nothing stays reserved or locked.
func TestWrongMoves(t *testing.T) {
	ctx := limit(t)
	c := small(t, func(o *Options) { o.Agent = agent(t, "cache of wrong moves", "") })
	_, at := serve(t, c, "")
	w := newWorker(t, "worker of wrong moves", at)
	one := []kv.Hash{hash(1, 0)}
	if k, err := w.PutFrom(ctx, one, 0, w.agent, w.mem, [][]Piece{{{0, 500}}}); err != nil || k != 1 {
		t.Fatal(k, err)
	}
	for _, x := range []struct {
		why    string
		pieces [][]Piece
	}{{"more than 100", [][]Piece{{{0, 100}}}}, {"outside of its region", [][]Piece{{{1<<16 - 10, 500}}}},
		{"pieces of a block", [][]Piece{{}}}, {"a piece of 0 bytes", [][]Piece{{{0, 0}}}},
		{"two destinations overlap", [][]Piece{{{0, 250}, {100, 250}}}}, {"pieces of 0 blocks", nil}} {
		if _, _, err := w.GetInto(ctx, one, 0, w.agent, w.mem, x.pieces); err == nil || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%v: %v, want %q", x.pieces, err, x.why)
		}
	}
	other := []kv.Hash{hash(2, 0)}
	for _, x := range []struct {
		why    string
		pieces [][]Piece
	}{{"want 1 to 1000", [][]Piece{{{0, 1001}}}}, {"outside of its region", [][]Piece{{{1<<16 - 10, 500}}}},
		{"at -5", [][]Piece{{{-5, 10}}}}} {
		if _, err := w.PutFrom(ctx, other, 0, w.agent, w.mem, x.pieces); err == nil || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%v: %v, want %q", x.pieces, err, x.why)
		}
	}
	gone := newWorker(t, "worker that is gone", at)
	gone.agent.Close()
	if _, err := w.PutFrom(ctx, other, 0, gone.agent, gone.mem, pieces(1, 100)); err == nil {
		t.Error("the memory of an agent that is gone was read")
	}
	if m, err := c.Match(ctx, "default", Path{Keys: other}); err != nil || len(m) != 0 {
		t.Error("a block that did not come is there: ", m, err)
	}
	if s := c.Stat(); s.Tenants[0].InUse != 0 || s.Tenants[0].Memory != 1 {
		t.Errorf("%+v", s.Tenants[0])
	}
	none := small(t, nil)
	_, plain := serve(t, none, "")
	w.address = plain
	if _, err := w.PutFrom(ctx, other, 0, w.agent, w.mem, pieces(1, 100)); err == nil || !strings.Contains(err.Error(), "no transfers") {
		t.Error(err)
	}
}

// A client that ends in the middle leaves nothing behind, and blocks that others store and evict meanwhile are never mixed up.
func TestMovesUnderLoad(t *testing.T) {
	ctx := limit(t)
	c := small(t, func(o *Options) { o.Agent = agent(t, "cache under load", "") })
	_, at := serve(t, c, "")
	var wg sync.WaitGroup
	for k := range 4 {
		w := newWorker(t, "worker "+string(rune('a'+k)), at)
		wg.Go(func() {
			for n := range 60 {
				text := (n*7 + k*3) % 11
				key := path(text, 3)
				off := int64(k) << 13
				data := bytes.Repeat([]byte{byte(text)}, 300)
				at := [][]Piece{{{off, 300}}, {{off + 300, 300}}, {{off + 600, 300}}}
				switch n % 3 {
				case 0:
					for i := range 3 {
						copy(w.mem[off+int64(i)*300:], data)
					}
					if _, err := w.PutFrom(ctx, key, 0, w.agent, w.mem, at); err != nil && !strings.Contains(err.Error(), "no room") {
						t.Error(err)
					}
				case 1:
					got, _, err := w.GetInto(ctx, key, 0, w.agent, w.mem, at)
					if err != nil {
						t.Error(err)
					}
					for i := range got {
						if !bytes.Equal(w.mem[off+int64(i)*300:][:300], data) {
							t.Errorf("text %d: block %d is another's", text, i)
						}
					}
				case 2: // one that does not wait
					brief, cancel := context.WithTimeout(ctx, time.Duration(n)*10*time.Microsecond)
					_, _, _ = w.GetInto(brief, key, 0, w.agent, w.mem, at)
					cancel()
				}
			}
		})
	}
	wg.Wait()
	if !bounded.Holds(25*time.Second, func() bool { return c.Stat().Tenants[0].InUse == 0 }) {
		t.Fatalf("%d blocks stay locked", c.Stat().Tenants[0].InUse)
	}
}

// Caches fetch from one another by transfers where both can.
func TestPeersMove(t *testing.T) {
	ctx := limit(t)
	a := small(t, func(o *Options) { o.Agent = agent(t, "first of two caches", "") })
	_, at := serve(t, a, "")
	b := small(t, func(o *Options) { o.Name, o.Agent = "b", agent(t, "second of two caches", "") })
	b.Follow(at, "peers")
	data := content("default", hash(3, 0))
	if err := put(a, "default", path(3, 1), data); err != nil {
		t.Fatal(err)
	}
	bounded.Until(t, 20*time.Second, "b knows a's block", func() bool { return b.Stat().Peers[0].Blocks == 1 })
	got, where, err := get(ctx, b, "default", path(3, 1))
	if err != nil || where != AtPeer || !bytes.Equal(got, data) {
		t.Fatal(where, err)
	}
	if n := a.Stat().Counters.Moved; n != int64(len(data)) {
		t.Errorf("%d bytes went by transfers, want %d", n, len(data))
	}
}

// A cache that says more than it did is not believed: every block that is counted was asked for and checked.
func TestCacheThatLies(t *testing.T) {
	sum := strconv.FormatUint(xxh3.Hash(make([]byte, 100)), 16)
	said := map[string]moved{
		"more than was asked for":  {answer: answer{Blocks: 3, Where: []Where{InMemory, InMemory, InMemory}}, Sums: []string{sum, sum, sum}},
		"blocks without checksums": {answer: answer{Blocks: 2}, Sums: []string{sum}},
		"checksums without blocks": {answer: answer{Blocks: 0}, Sums: []string{sum}},
		"blocks below zero":        {answer: answer{Blocks: -1}},
	}
	path := []kv.Hash{hash(1, 0), hash(1, 1)}
	for name, answer := range said {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/v1/get" {
					_ = writeHead(w, answer)
					for range answer.Blocks {
						_ = writeFrame(w, make([]byte, 100))
					}
					return
				}
				reply(w, http.StatusOK, answer)
			}))
			defer s.Close()
			w := newWorker(t, "asker of "+t.Name(), strings.TrimPrefix(s.URL, "http://"))
			if n, _, err := w.GetInto(limit(t), path, 0, w.agent, w.mem, pieces(2, 100)); n != 0 || err == nil {
				t.Errorf("GetInto: %d blocks, %v", n, err)
			}
			if answer.Blocks >= 0 && answer.Blocks <= len(path) {
				return
			}
			got := 0
			if n, err := w.Get(limit(t), path, 0, func(int, []byte) error { got++; return nil }); n != 0 || got != 0 || err == nil {
				t.Errorf("Get: %d blocks, %d used, %v", n, got, err)
			}
			if _, err := w.Put(limit(t), path, 0, [][]byte{{1}, {2}}); err == nil {
				t.Error("Put believed it")
			}
			if where, err := w.Match(limit(t), path); len(answer.Where) > len(path) && (where != nil || err == nil) {
				t.Errorf("Match: %v, %v", where, err)
			}
		})
	}
}
