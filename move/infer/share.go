package infer

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/xfer"
)

// Workers share what prompts have in common through a cache service (package kvcache): blocks of 16 tokens, page first, named by
// the chain of their hashes.
//
//	prefill p0   asks for the blocks of its prompt, computes the rest, stores what was missing
//	prefill p1   finds what p0 stored
//
// The cache writes blocks straight into the memory of the prompt, which is layer first: the pieces of each block say where. A block
// that is not there, and a cache that is not there or too slow, cost the time to compute, never an answer.

// blockTokens is how many tokens a block has.
const blockTokens = 16

// chain names the blocks of a model's prompts: those of another model have other names.
func (m Model) chain() (kv.Chain, error) {
	return kv.NewChain(kv.VLLM, fmt.Sprintf("%+v", m), blockTokens)
}

// hashes names the whole blocks of a text.
func (m Model) hashes(text []byte) ([]kv.Hash, error) {
	c, err := m.chain()
	if err != nil {
		return nil, err
	}
	ids := make([]uint32, len(text))
	for i, b := range text {
		ids[i] = uint32(b)
	}
	return c.Hashes(ids, kv.Extra{})
}

// blockBytes is the size of a block.
func (m Model) blockBytes() int64 { return int64(blockTokens * m.layout().TokenBytes()) }

// pieces says where n blocks from the first on lie in the memory of a prompt.
func (m Model) pieces(n int) ([][]kvcache.Piece, error) {
	page := m.layout()
	page.Block, page.Blocks, page.PageFirst, page.Together = blockTokens, n, true, true
	table := make([]int, n)
	for i := range table {
		table[i] = i
	}
	moves, err := kv.Moves(page, m.layout(), table, m.table(), kv.Part{Tokens: n * blockTokens})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(moves, func(a, b kv.Copy) int { return cmp.Compare(a.Src, b.Src) })
	out := make([][]kvcache.Piece, n)
	size := int(m.blockBytes())
	for _, x := range moves {
		for x.Len > 0 { // one that goes over the end of a block belongs to two
			k := x.Src / size
			take := min(x.Len, (k+1)*size-x.Src)
			out[k] = append(out[k], kvcache.Piece{Off: int64(x.Dst), Len: int64(take)})
			x.Src, x.Dst, x.Len = x.Src+take, x.Dst+take, x.Len-take
		}
	}
	return out, nil
}

// sharing is a worker's side of the cache.
type sharing struct {
	model  Model
	agent  *xfer.Agent
	client *kvcache.Client
	limit  time.Duration // that a worker waits for the cache: then it computes
}

// fetch brings the blocks of a prompt that the cache has into its memory, and says how many. The last token is always computed.
func (s *sharing) fetch(ctx context.Context, text, mem []byte) (blocks int, err error) {
	hashes, err := s.model.hashes(text[:len(text)-1])
	if err != nil || len(hashes) == 0 {
		return 0, err
	}
	pieces, err := s.model.pieces(len(hashes))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	blocks, _, err = s.client.GetInto(ctx, hashes, 0, s.agent, mem, pieces)
	return blocks, err
}

// store gives the cache the blocks of a prompt from the from-th on.
func (s *sharing) store(ctx context.Context, text, mem []byte, from int) error {
	hashes, err := s.model.hashes(text)
	if err != nil || len(hashes) <= from {
		return err
	}
	pieces, err := s.model.pieces(len(hashes))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*s.limit)
	defer cancel()
	_, err = s.client.PutFrom(ctx, hashes, from, s.agent, mem, pieces[from:])
	return err
}

// ownCache is a cache service inside the process that started the workers.
type ownCache struct {
	address string
	agent   *xfer.Agent
	cache   *kvcache.Cache
	server  *http.Server
}

// startCache starts a cache service of CacheMemory bytes for workers with a token.
func startCache(o Options, token string) (*ownCache, error) {
	agent, err := xfer.New(xfer.Config{Name: "kv", Token: token, Path: o.Path, Limits: xfer.Limits{xfer.Latency: o.Rate}})
	if err != nil {
		return nil, err
	}
	opts := kvcache.DefaultOptions()
	opts.Memory, opts.Block, opts.Agent, opts.Log = o.CacheMemory, o.Model.blockBytes(), agent, o.Log
	opts.Tenants = []kvcache.Tenant{{Name: "default", Token: token, Quota: o.CacheMemory}}
	cache, err := kvcache.New(opts)
	if err != nil {
		agent.Close()
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		cache.Close()
		agent.Close()
		return nil, err
	}
	c := &ownCache{l.Addr().String(), agent, cache,
		&http.Server{Handler: kvcache.NewServer(cache, token, "").Handler(), ReadHeaderTimeout: 5 * time.Second}}
	go c.server.Serve(l)
	return c, nil
}

func (c *ownCache) close() {
	c.server.Close()
	c.cache.Close()
	c.agent.Close()
}
