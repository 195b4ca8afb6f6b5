package kvcache

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/zeebo/xxh3"
)

// Caches tell one another what they have: each keeps a journal of the blocks that came and went, and pulls the
// journals of the others. A cache that is behind too far, or that started anew, gets the whole list. What a
// directory says may be out of date; a block that is not there any more is a miss, never a wrong block.

// journal is what came and went. It is kept under the cache's lock.
type journal struct {
	generation uint64
	next       uint64
	list       []change
	more       chan struct{}
}

type change struct {
	key kv.Hash
	add bool
}

const maxJournal = 1 << 16

func (j *journal) add(key kv.Hash, add bool) {
	if len(j.list) >= maxJournal {
		j.list = append(j.list[:0], j.list[maxJournal/2:]...)
	}
	j.list = append(j.list, change{key, add})
	j.next++
	if j.more != nil {
		close(j.more)
		j.more = nil
	}
}

// changeList is an answer to another cache.
type changeList struct {
	Name       string   `json:"name"`
	Generation string   `json:"generation"`
	Next       uint64   `json:"next"`
	Whole      bool     `json:"whole"`  // forget what was known before
	Moves      bool     `json:"moves"`  // it makes transfers
	Blocks     []string `json:"blocks"` // +NAME or -NAME
}

const maxChanges = 8192 // of one answer

// changes gives what is new since a number of a generation, and a channel that is closed when there is more.
func (c *Cache) changes(generation, since uint64) (changeList, <-chan struct{}) {
	if generation != c.log.generation {
		since = Everything
	}
	n := c.News(since)
	out := changeList{Name: c.o.Name, Generation: fmt.Sprintf("%016x", c.log.generation), Next: n.Next, Whole: n.Whole, Moves: c.Moves(),
		Blocks: make([]string, len(n.Changes))}
	for i, x := range n.Changes {
		sign := "-"
		if x.Here {
			sign = "+"
		}
		out.Blocks[i] = sign + x.Key.String()
	}
	return out, n.More
}

// News is what came and went in a cache.
type News struct {
	Changes []Change
	Whole   bool            // these are all blocks that are there: forget what was known before
	Next    uint64          // what to ask for next
	More    <-chan struct{} // closed when there is more
}

// Change is a block that came or went.
type Change struct {
	Key  kv.Hash // mixed with its tenant's salt
	Here bool
}

// Everything asks News for all blocks that are there.
const Everything = ^uint64(0)

// everything is all blocks that can be read, as if they had come just now. The caller holds mu.
func (c *Cache) everything() (list []Change) {
	for _, t := range c.tenants {
		for key, b := range t.blocks {
			if b.slot >= 0 && b.full || b.disk >= 0 {
				list = append(list, Change{key, true})
			}
		}
	}
	return list
}

// News gives what came and went since an earlier answer's Next.
func (c *Cache) News(since uint64) News {
	c.mu.Lock()
	defer c.mu.Unlock()
	j := &c.log
	if j.more == nil {
		j.more = make(chan struct{})
	}
	out := News{Next: j.next, More: j.more}
	first := j.next - uint64(len(j.list))
	if since < first || since > j.next {
		out.Whole = true
		out.Changes = c.everything()
		return out
	}
	for _, x := range j.list[since-first:] {
		if len(out.Changes) == maxChanges {
			break
		}
		out.Changes = append(out.Changes, Change{x.key, x.add})
	}
	out.Next = since + uint64(len(out.Changes))
	return out
}

// Moves reports whether the cache makes transfers.
func (c *Cache) Moves() bool { return c.door != nil }

// Told is another cache that is not asked for what it has: a directory that the caches share tells it (move/kvcache/directory).
type Told struct {
	c *Cache
	p *peer
}

// Tell adds such a cache. Moves says that it makes transfers.
func (c *Cache) Tell(name, address, token string, moves bool) *Told {
	p := newPeer(address, token, c.o.TLS)
	p.name, p.moves, p.end, p.heard = name, moves, func() {}, time.Now()
	close(p.over)
	c.add(p)
	return &Told{c, p}
}

// Has notes that the cache has a block, or has it no more; with bytes, what it took to tell.
func (t *Told) Has(key kv.Hash, has bool, bytes int) {
	p := t.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
	p.bytes += int64(bytes)
	if has {
		p.blocks[key] = true
	} else {
		delete(p.blocks, key)
	}
}

// Close forgets the cache.
func (t *Told) Close() {
	t.c.mu.Lock()
	t.c.peers = slices.DeleteFunc(slices.Clone(t.c.peers), func(p *peer) bool { return p == t.p })
	t.c.mu.Unlock()
	t.p.close()
}

// others are the other caches. The list is never changed, only replaced.
func (c *Cache) others() []*peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peers
}

func (c *Cache) add(p *peer) {
	c.mu.Lock()
	c.peers = append(slices.Clone(c.peers), p)
	c.mu.Unlock()
}

// peer is another cache as this one knows it.
type peer struct {
	address, token, scheme string
	http                   *http.Client
	end                    context.CancelFunc
	over                   chan struct{}

	mu         sync.Mutex
	name       string
	generation string
	next       uint64
	blocks     map[kv.Hash]bool
	failed     error
	moves      bool // it makes transfers
	heard      time.Time
	rest       time.Time // it is not asked for blocks before: it did not answer
	bytes      int64
}

const (
	peerTimeout = 3 * time.Second // that a block of a peer takes at most
	peerRest    = 2 * time.Second
)

// PeerStat is how another cache stands in the directory.
type PeerStat struct {
	Address string  `json:"address"`
	Name    string  `json:"name"`
	Blocks  int     `json:"blocks"`
	Heard   float64 `json:"heard_s_ago"` // -1: never
	Bytes   int64   `json:"directory_bytes"`
	Error   string  `json:"error,omitempty"`
}

// Follow adds another cache at an address; it is asked for what it has, again and again.
func (c *Cache) Follow(address, token string) {
	ctx, cancel := context.WithCancel(context.Background())
	p := newPeer(address, token, c.o.TLS)
	p.end = cancel
	c.add(p)
	go p.follow(ctx, c.o.Log)
}

func newPeer(address, token string, t *tls.Config) *peer {
	p := &peer{address: address, token: token, over: make(chan struct{}), blocks: map[kv.Hash]bool{}}
	p.http, p.scheme = httpOver(t, 8)
	return p
}

func (p *peer) close() {
	p.end()
	<-p.over
	p.http.CloseIdleConnections()
}

// has says whether the peer said that it has a block.
func (p *peer) has(key kv.Hash) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.blocks[key] && !time.Now().Before(p.rest)
}

func (p *peer) lost(key kv.Hash) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.blocks, key)
}

func (p *peer) stat() PeerStat {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStat{Address: p.address, Name: p.name, Blocks: len(p.blocks), Heard: -1, Bytes: p.bytes}
	if !p.heard.IsZero() {
		s.Heard = time.Since(p.heard).Seconds()
	}
	if p.failed != nil {
		s.Error = p.failed.Error()
	}
	return s
}

// follow pulls the journal until the end. A peer that does not answer has nothing.
func (p *peer) follow(ctx context.Context, log *slog.Logger) {
	defer close(p.over)
	for first := true; ctx.Err() == nil; first = false {
		err := p.pull(ctx)
		p.mu.Lock()
		switch was := p.failed; {
		case ctx.Err() != nil:
		case err != nil && (was == nil || first):
			log.Warn("another cache does not answer; it is asked again and again", "peer", p.address, "error", err)
		case err == nil && (was != nil || first):
			log.Info("another cache answers", "peer", p.address)
		}
		if p.failed = err; err != nil {
			clear(p.blocks)
			p.generation = ""
		} else {
			p.heard = time.Now()
		}
		p.mu.Unlock()
		if err != nil {
			t := time.NewTimer(200 * time.Millisecond) // one that is not there is asked again a little later
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
			}
		}
	}
}

// pull asks a peer which blocks it has gained and lost since the last time. A peer that was started anew has another
// generation, and sends all.
func (p *peer) pull(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	p.mu.Lock()
	generation := p.generation
	if generation == "" {
		generation = "0"
	}
	url := fmt.Sprintf("%s%s/v1/changes?generation=%s&since=%d", p.scheme, p.address, generation, p.next)
	p.mu.Unlock()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	a, err := p.http.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, 1<<30))
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", p.address, a.Status, bytes.TrimSpace(text))
	}
	var list changeList
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", p.address, err)
	}
	return p.apply(&list, len(text))
}

// apply enters what came and went since the last answer. Lines are + or - and a hash.
func (p *peer) apply(list *changeList, bytes int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if list.Whole {
		clear(p.blocks)
	}
	for _, x := range list.Blocks {
		h, err := kv.ParseHash(x[min(1, len(x)):])
		if err != nil {
			return fmt.Errorf("%s: %w", p.address, err)
		}
		if x[0] == '+' {
			p.blocks[h] = true
		} else {
			delete(p.blocks, h)
		}
	}
	p.name, p.generation, p.next, p.moves = list.Name, list.Generation, list.Next, list.Moves
	p.bytes += int64(bytes)
	return nil
}

// fetch reads a block from the peer: by a transfer if both can.
func (p *peer) fetch(ctx context.Context, who string, key kv.Hash, o Options) ([]byte, error) {
	inside, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	data, err := p.bring(inside, who, key, o)
	if err != nil && ctx.Err() == nil && !errors.Is(err, errMissing) && !errors.Is(err, errDamaged) {
		p.mu.Lock()
		p.rest = time.Now().Add(peerRest)
		p.mu.Unlock()
	}
	return data, err
}

// bring gets a block from a peer: it has the peer write it into our memory if both can, else it comes over HTTP. A
// block that the peer has lost meanwhile is errMissing.
func (p *peer) bring(ctx context.Context, who string, key kv.Hash, o Options) ([]byte, error) {
	p.mu.Lock()
	moves := p.moves
	p.mu.Unlock()
	if moves && o.Agent != nil {
		return p.pushed(ctx, who, key, o)
	}
	a, err := p.ask(ctx, "/v1/fetch", map[string]string{"tenant": who, "key": key.String()})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	data, err := readFrame(a, maxBlock, nil)
	if errors.Is(err, errMissing) {
		return nil, fmt.Errorf("%s: block %s: %w", p.address, key, err)
	}
	return data, err
}

// ask sends a call to a peer. The caller closes the answer.
func (p *peer) ask(ctx context.Context, call string, head any) (io.ReadCloser, error) {
	var body bytes.Buffer
	if err := writeHead(&body, head); err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.scheme+p.address+call, &body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	a, err := p.http.Do(r)
	if err != nil {
		return nil, err
	}
	if a.StatusCode != http.StatusOK {
		a.Body.Close()
		return nil, fmt.Errorf("%s: %s", p.address, a.Status)
	}
	return a.Body, nil
}

// whole reports whether one block was moved that fits where there is room for one.
func (m *moved) whole(room int64) bool {
	return m.Blocks == 1 && m.Size >= 1 && m.Size <= room && len(m.Sums) == 1
}

// pushed has the peer write a block into a region that is made for it.
func (p *peer) pushed(ctx context.Context, who string, key kv.Hash, o Options) ([]byte, error) {
	buf := make([]byte, o.Block)
	name := fmt.Sprintf("kv call %d", calls.Add(1))
	region, err := o.Agent.Register(name, xfer.Memory(buf), xfer.MayWrite)
	if err != nil {
		return nil, err
	}
	// Once it is released nothing lands any more, whatever the peer does.
	defer func() { _ = region.Release(context.WithoutCancel(ctx)) }()
	a, err := p.ask(ctx, "/v1/push", map[string]any{"tenant": who, "key": key.String(), "agent": json.RawMessage(o.Agent.Describe(region)),
		"region": name, "room": o.Block})
	if err != nil {
		return nil, err
	}
	defer a.Close()
	var out moved
	if err := json.NewDecoder(a).Decode(&out); err != nil {
		return nil, fmt.Errorf("%s: %w", p.address, err)
	}
	switch {
	case out.Error != "":
		return nil, fmt.Errorf("%s: block %s: %s", p.address, key, out.Error)
	case !out.whole(o.Block):
		return nil, fmt.Errorf("%s: block %s: %w", p.address, key, errMissing)
	}
	if err := region.Release(ctx); err != nil {
		return nil, err
	}
	if strconv.FormatUint(xxh3.Hash(buf[:out.Size]), 16) != out.Sums[0] {
		return nil, fmt.Errorf("%s: block %s: %w", p.address, key, errDamaged)
	}
	return buf[:out.Size], nil
}
