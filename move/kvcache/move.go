package kvcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/zeebo/xxh3"
)

// Blocks go by transfers where both ends have an agent of package xfer: one copy on a host, slices with checksums between hosts.
//
//	client                                      cache
//	registers its memory for this call
//	POST /v1/fill  names, region, pieces   ->   locks the blocks and writes them into the pieces
//	               number, checksums       <-   when all of it has landed
//	POST /v1/drain names, region, pieces   ->   takes slots and reads the pieces into them
//	               number                  <-   when all of it has landed
//	releases it: nothing lands or is read any more, also if the cache is late
//
// The cache is the one that posts, in both directions. So it describes no memory of its own: a tenant reaches its own blocks
// alone. Each of several tenants has an agent of the cache to itself, under the tenant's token: descriptions of others' agents are
// refused, and names that its agents take are of no concern to anybody else. The pieces of a block lie where the client wants them, so that
// its layout may be another (kv.Moves). Between caches /v1/push is the same as fill for one block, by its mixed name.

// Piece is a run of bytes of a client's memory.
type Piece struct{ Off, Len int64 }

// move is the head of a call.
type move struct {
	request
	Agent  json.RawMessage `json:"agent"`  // as Describe gave it
	Region string          `json:"region"` // of the client
	Pieces [][]int64       `json:"pieces"` // of each block: offset, length, offset, length, ...
}

// moved is the answer.
type moved struct {
	answer
	Sums []string `json:"sums,omitempty"` // XXH3 of each block
	Size int64    `json:"size,omitempty"` // of the block that was pushed
	Path string   `json:"path,omitempty"` // of the last transfer
}

const (
	moveBatch   = 64 // blocks of one transfer: they are locked meanwhile
	moveTimeout = 20 * time.Second
)

// makeMemory gets the memory of the blocks. That of a single tenant may be mapped by clients of this host, that of several is
// nobody else's.
func (c *Cache) makeMemory() (err error) {
	n := int64(c.slots) * c.o.Block
	shared := c.o.Agent != nil && len(c.tenants) < 2 && c.o.Agents == nil
	if shared {
		c.memory, err = c.o.Agent.Alloc(int(n))
	} else {
		c.memory = make([]byte, n)
	}
	if err == nil {
		c.door, err = c.newDoor(c.o.Agent)
	}
	for name, t := range c.tenants {
		if err != nil {
			break
		}
		if t.door = c.door; !shared {
			t.door, err = c.newDoor(c.o.Agents[name])
		}
	}
	if err != nil {
		c.closeDoors()
		return fmt.Errorf("kv cache: memory of %v: %w", unit.Bytes(n), err)
	}
	return nil
}

func (c *Cache) freeMemory() {
	c.closeDoors()
	if c.o.Agent != nil && len(c.tenants) < 2 && c.o.Agents == nil {
		_ = c.o.Agent.Free(c.memory)
	}
}

func (c *Cache) closeDoors() {
	c.door.close()
	for _, t := range c.tenants {
		t.door.close()
	}
}

// door is an agent of the cache, the memory of the blocks as a region of it, and the clients that transfers were made with. Those that
// were not heard of for a while are forgotten.
type door struct {
	agent  *xfer.Agent
	region *xfer.Region
	copies atomic.Int64 // blocks that went from a copy

	mu   sync.Mutex
	last map[*xfer.Peer]time.Time
}

// newDoor registers the memory with an agent; nil without one.
func (c *Cache) newDoor(a *xfer.Agent) (*door, error) {
	if a == nil {
		return nil, nil
	}
	r, err := a.Register("kv blocks", xfer.Memory(c.memory), xfer.Own)
	if err != nil {
		return nil, err
	}
	return &door{agent: a, region: r, last: map[*xfer.Peer]time.Time{}}, nil
}

func (d *door) close() {
	if d != nil {
		_ = d.region.Release(context.Background()) // no peer reads it
	}
}

const guestTime = 2 * time.Minute

// guest opens the agent and the region of a call.
func (d *door) guest(q *move) (*xfer.Peer, *xfer.Remote, error) {
	if d == nil {
		return nil, nil, errors.New("this cache makes no transfers; use /v1/get and /v1/put")
	}
	p, err := d.agent.Open(q.Agent)
	if err != nil {
		return nil, nil, err
	}
	r, err := p.Region(q.Region)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for old, at := range d.last {
		if old != p && now.Sub(at) > guestTime {
			delete(d.last, old)
			d.agent.Forget(old)
		}
	}
	d.last[p] = now
	return p, r, nil
}

// batch is the pairs of one transfer.
type batch struct {
	c           *Cache
	t           *tenant
	door        *door
	op          xfer.Op
	peer        *xfer.Peer
	remote      *xfer.Remote
	here, there []xfer.Desc
	bytes       int64
	path        string
	late        *xfer.Request // it was cancelled and had not ended: its memory is still in use
}

// add adds the pieces of a block that lies at a place of an own region.
func (b *batch) add(at xfer.Desc, pieces []int64) {
	off := at.Off
	for i := 0; i < len(pieces); i += 2 {
		b.here = append(b.here, xfer.Desc{Region: at.Region, Off: off, Len: pieces[i+1]})
		b.there = append(b.there, b.remote.At(pieces[i], pieces[i+1]))
		off += pieces[i+1]
	}
	b.bytes += off - at.Off
}

// run makes the transfer and begins anew.
func (b *batch) run(ctx context.Context) error {
	if len(b.here) == 0 {
		return nil
	}
	a := b.door.agent
	here, there, n := b.here, b.there, b.bytes
	b.here, b.there, b.bytes = nil, nil, 0
	local, err := a.Prepare(nil, here)
	if err != nil {
		return err
	}
	defer local.Release()
	far, err := a.Prepare(b.peer, there)
	if err != nil {
		return err
	}
	defer far.Release()
	r, err := a.Post(xfer.Transfer{Op: b.op, Local: local, Remote: far, Class: xfer.Latency, Timeout: moveTimeout})
	if err != nil {
		return err
	}
	if err := r.Wait(ctx); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		late := r.Cancel(stop)
		if late != nil {
			b.late = r
		}
		return errors.Join(err, late)
	}
	b.path = r.Poll().Path
	b.c.mu.Lock()
	b.t.count.Moved += n
	b.c.mu.Unlock()
	return nil
}

// sizeOf adds up the pieces of a block.
func sizeOf(pieces []int64) (int64, error) {
	n := int64(0)
	if len(pieces)%2 != 0 || len(pieces) == 0 {
		return 0, fmt.Errorf("%d numbers for the pieces of a block; want an offset and a length for each", len(pieces))
	}
	for i := 1; i < len(pieces); i += 2 {
		if pieces[i] < 1 || pieces[i] > 1<<40 || pieces[i-1] < 0 {
			return 0, fmt.Errorf("a piece of %d bytes at %d", pieces[i], pieces[i-1])
		}
		n += pieces[i]
	}
	return n, nil
}

// held is a block that stays where it is until free is called.
type held struct {
	at   xfer.Desc
	sum  uint64
	free func()
}

// hold locks a block that is in memory.
func (c *Cache) hold(t *tenant, d *door, key kv.Hash, asked bool) (held, bool) {
	one := []kv.Hash{key}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := t.blocks[key]
	if b == nil || b.slot < 0 || !b.full {
		return held{}, false
	}
	lock, _ := t.memory.Lock(one)
	if asked {
		t.memory.Match(one, c.now())
		t.count.Memory++
		t.count.Out += int64(b.size)
	}
	return held{d.region.At(int64(b.slot)*c.o.Block, int64(b.size)), b.sum, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		t.memory.Unlock(lock)
	}}, true
}

// borrow brings the i-th block of a path into memory, wherever it is, and holds it there. It gives false if it is nowhere.
func (c *Cache) borrow(ctx context.Context, t *tenant, p Path, i int) (held, bool, error) {
	key := t.name(p.Keys[i])
	c.mu.Lock()
	t.count.Asked++
	c.mu.Unlock()
	if h, ok := c.hold(t, t.door, key, true); ok {
		return h, true, nil
	}
	var data []byte
	_, ok, err := c.get(ctx, t, p, i, func(b []byte) error {
		data = append(data, b...)
		return nil
	})
	if err != nil || !ok {
		c.mu.Lock()
		t.count.Missed++
		c.mu.Unlock()
		return held{}, false, err
	}
	if h, ok := c.hold(t, t.door, key, false); ok {
		return h, true, nil
	}
	// There was no room in memory: it goes from where it is.
	r, err := t.door.agent.Register(fmt.Sprintf("kv block %d", t.door.copies.Add(1)), xfer.Memory(data), xfer.Own)
	if err != nil {
		return held{}, false, err
	}
	return held{r.At(0, int64(len(data))), xxh3.Hash(data), func() { _ = r.Release(context.WithoutCancel(ctx)) }}, true, nil
}

// fill writes blocks of a path from the from-th on into a client's memory, up to the first that is not there.
func (c *Cache) fill(ctx context.Context, who string, p Path, q *move) (out moved, err error) {
	t := c.tenants[who]
	if t == nil {
		return out, fmt.Errorf("kv cache: no tenant %q", who)
	}
	if err := c.begin(); err != nil {
		return out, err
	}
	defer c.leave()
	b := batch{c: c, t: t, door: t.door, op: xfer.Write}
	if b.peer, b.remote, err = b.door.guest(q); err != nil {
		return out, err
	}
	var list []held
	var sums []string
	flush := func() error {
		err := b.run(ctx)
		for _, h := range list {
			h.free()
		}
		if err == nil {
			out.Sums, out.Blocks, out.Path = append(out.Sums, sums...), out.Blocks+len(list), b.path
		}
		list, sums = nil, nil
		return err
	}
	for i := q.From; i < len(p.Keys); i++ {
		want, err := sizeOf(q.Pieces[i-q.From])
		if err != nil {
			return out, errors.Join(fmt.Errorf("block %d: %w", i, err), flush())
		}
		h, ok, err := c.borrow(ctx, t, p, i)
		if err != nil {
			return out, errors.Join(err, flush())
		}
		if !ok {
			break
		}
		list, sums = append(list, h), append(sums, strconv.FormatUint(h.sum, 16))
		if h.at.Len != want {
			err := fmt.Errorf("block %d has %d bytes, more than %d", i, h.at.Len, want)
			h.free()
			list, sums = list[:len(list)-1], sums[:len(sums)-1]
			return out, errors.Join(err, flush())
		}
		b.add(h.at, q.Pieces[i-q.From])
		if len(list) == moveBatch {
			if err := flush(); err != nil {
				return out, err
			}
		}
	}
	return out, flush()
}

// onDisk reports whether a block is on the disk: it need not come again.
func (c *Cache) onDisk(t *tenant, key kv.Hash) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := t.blocks[key]
	return b != nil && b.disk >= 0
}

// drain reads blocks of a path from the from-th on out of a client's memory, those that are not there.
func (c *Cache) drain(ctx context.Context, who string, p Path, q *move) (out moved, err error) {
	t := c.tenants[who]
	if t == nil {
		return out, fmt.Errorf("kv cache: no tenant %q", who)
	}
	if err := c.begin(); err != nil {
		return out, err
	}
	defer c.leave()
	b := batch{c: c, t: t, door: t.door, op: xfer.Read}
	if b.peer, b.remote, err = b.door.guest(q); err != nil {
		return out, err
	}
	type slot struct {
		*reserved
		i int
	}
	var list []slot
	known := 0
	flush := func() error {
		err := b.run(ctx)
		if slots := list; b.late != nil {
			// Bytes may still come. The slots are nobody's until the transfer has ended, which its own time limit sees to.
			late := b.late
			c.mu.Lock()
			c.calls++
			c.mu.Unlock()
			go func() {
				defer c.leave()
				_ = late.Wait(context.Background())
				for _, s := range slots {
					c.abort(s.reserved)
				}
			}()
			b.late, list = nil, nil
		}
		for _, s := range list {
			if err != nil {
				c.abort(s.reserved)
				continue
			}
			c.commit(s.reserved)
			if s.fresh {
				c.pack(t, p, s.i)
			}
		}
		if err == nil {
			out.Blocks, out.Path = out.Blocks+len(list)+known, b.path
		}
		list, known = nil, 0
		return err
	}
	for i := q.From; i < len(p.Keys); i++ {
		size, err := sizeOf(q.Pieces[i-q.From])
		if err == nil && size > c.o.Block {
			err = fmt.Errorf("it has %d bytes; want 1 to %d", size, c.o.Block)
		}
		if err != nil {
			return out, errors.Join(fmt.Errorf("block %d: %w", i, err), flush())
		}
		key := t.name(p.Keys[i])
		if c.onDisk(t, key) {
			known++
			continue
		}
		r, err := c.reserve(t, key, int(size))
		if errors.Is(err, ErrRoom) && len(list) > 0 { // those before hold it
			if err := flush(); err != nil {
				return out, err
			}
			r, err = c.reserve(t, key, int(size))
		}
		if err != nil {
			return out, errors.Join(err, flush())
		}
		if r == nil {
			known++
			continue
		}
		list = append(list, slot{r, i})
		b.add(b.door.region.At(int64(r.b.slot)*c.o.Block, size), q.Pieces[i-q.From])
		if len(list) == moveBatch {
			if err := flush(); err != nil {
				return out, err
			}
		}
	}
	return out, flush()
}

// moves answers fill and drain.
func (s *Server) moves(do func(ctx context.Context, who string, p Path, q *move) (moved, error)) http.HandlerFunc {
	return s.tenant(func(w http.ResponseWriter, r *http.Request, who string) {
		var q move
		if err := readHead(r.Body, &q); err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
		all, err := q.hashes()
		if err == nil && len(q.Pieces) != len(all)-q.From {
			err = fmt.Errorf("pieces of %d blocks for the names from %d to %d", len(q.Pieces), q.From, len(all))
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, "%v", err)
			return
		}
		if claim, _ := s.who(r); claim.covers(q.Agent) != nil {
			refuse(w, http.StatusForbidden, "%v", claim.covers(q.Agent))
			return
		}
		out, err := do(r.Context(), who, Path{all, q.Alone}, &q)
		if errors.Is(err, xfer.ErrToken) {
			refuse(w, http.StatusForbidden, "the agent that is described is not one of this tenant: it has another token")
			return
		}
		if err != nil {
			out.Error = err.Error()
		}
		reply(w, http.StatusOK, out)
	})
}

// push writes one block, by its mixed name, into the memory of another cache.
func (s *Server) push(w http.ResponseWriter, r *http.Request) {
	var q struct {
		move
		Tenant string `json:"tenant"`
		Key    string `json:"key"`
		Room   int64  `json:"room"`
	}
	if err := readHead(r.Body, &q); err != nil {
		refuse(w, http.StatusBadRequest, "%v", err)
		return
	}
	h, err := kv.ParseHash(q.Key)
	t := s.cache.tenants[q.Tenant]
	if err != nil || t == nil {
		refuse(w, http.StatusNotFound, "tenant %q: %v", q.Tenant, err)
		return
	}
	out, err := s.cache.push(r.Context(), t, h, &q.move, q.Room)
	if err != nil {
		out.Error = err.Error()
	}
	reply(w, http.StatusOK, out)
}

// push writes one block into the memory of the agent that asks, which may take room bytes at most. No block there is no
// error: out.Blocks is 0.
func (c *Cache) push(ctx context.Context, t *tenant, key kv.Hash, q *move, room int64) (out moved, err error) {
	if err := c.begin(); err != nil {
		return out, err
	}
	defer c.leave()
	b := batch{c: c, t: t, door: c.door, op: xfer.Write}
	if b.peer, b.remote, err = b.door.guest(q); err != nil {
		return out, err
	}
	h, ok := c.hold(t, b.door, key, true)
	if !ok {
		// On the disk: reading it brings it into memory, where there is room.
		if _, ok, err = c.local(t, key, func([]byte) error { return nil }, true); err != nil || !ok {
			return out, err
		}
		if h, ok = c.hold(t, b.door, key, false); !ok {
			return out, nil
		}
	}
	defer h.free()
	if h.at.Len > room {
		return out, fmt.Errorf("block %s has %d bytes, more than %d", key, h.at.Len, room)
	}
	b.add(h.at, []int64{0, h.at.Len})
	if err := b.run(ctx); err != nil {
		return out, err
	}
	out.Blocks, out.Sums, out.Size, out.Path = 1, []string{strconv.FormatUint(h.sum, 16)}, h.at.Len, b.path
	return out, nil
}

// calls are the moves of this process so far.
var calls atomic.Int64
