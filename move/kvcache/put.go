package kvcache

import (
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/zeebo/xxh3"
)

// ErrRoom is returned where every block of a tenant is in use.
var ErrRoom = errors.New("no room: all blocks of this tenant are being read or written")

// Put keeps the i-th block of a path. It returns false if the block was there.
func (c *Cache) Put(who string, p Path, i int, data []byte) (bool, error) {
	t := c.tenants[who]
	if t == nil {
		return false, fmt.Errorf("kv cache: no tenant %q", who)
	}
	if err := c.begin(); err != nil {
		return false, err
	}
	defer c.leave()
	if i < 0 || i >= len(p.Keys) || len(data) == 0 || int64(len(data)) > c.o.Block {
		return false, fmt.Errorf("kv cache: block %d of %d has %d bytes; want 1 to %d", i, len(p.Keys), len(data), c.o.Block)
	}
	fresh, err := c.put(t, t.name(p.Keys[i]), data)
	if err != nil || !fresh {
		return fresh, err
	}
	c.pack(t, p, i)
	return true, nil
}

// pack has a group of blocks written to the store when its last one came.
func (c *Cache) pack(t *tenant, p Path, i int) {
	if c.packs != nil {
		if g := c.group(p, i); len(g) > 0 && g[len(g)-1] == p.Keys[i] {
			c.later(job{t: t, group: t.names(g)})
		}
	}
}

// put brings a block into memory, and on its way to the disk. Peers and packs of caches with longer blocks may have some that there
// are no slots for.
func (c *Cache) put(t *tenant, key kv.Hash, data []byte) (bool, error) {
	if int64(len(data)) > c.o.Block {
		return false, fmt.Errorf("kv cache: a block of %d bytes; slots have %d", len(data), c.o.Block)
	}
	r, err := c.reserve(t, key, len(data))
	if r == nil {
		return false, err
	}
	copy(c.bytes(r.b.slot, len(data)), data)
	c.commit(r)
	return r.fresh, nil
}

// reserved is a slot for a block that is not there yet. It is locked, and nobody reads it.
type reserved struct {
	t     *tenant
	b     *block
	lock  kv.Lock
	fresh bool // it is nowhere else
}

// stays reports whether a block keeps its place from one of the same name: it is in memory, or it is on the disk with another size, as its
// size and checksum are those of the disk's.
func (b *block) stays(size int) bool { return b.slot >= 0 || b.disk >= 0 && b.size != size }

// reserve takes a slot for a block; commit or abort follows. It gives nil if the block is there.
func (c *Cache) reserve(t *tenant, key kv.Hash, size int) (*reserved, error) {
	one := []kv.Hash{key}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := t.blocks[key]
	if b != nil && b.stays(size) || c.closed {
		t.memory.Match(one, c.now())
		t.count.Known++
		return nil, nil
	}
	have, gone, err := t.memory.Insert(one, c.now(), nil)
	c.drop(t, gone)
	if err != nil || have == 0 || len(c.free) == 0 {
		if have == 1 {
			t.memory.Cut(one, 0, nil)
		}
		t.count.Refused++
		return nil, ErrRoom
	}
	r := &reserved{t: t, b: b, fresh: b == nil}
	if r.fresh {
		r.b = &block{key: key, disk: -1}
		t.blocks[key] = r.b
	}
	r.b.slot, r.b.full, r.b.size = c.free[len(c.free)-1], false, size
	c.free = c.free[:len(c.free)-1]
	t.absent.Remove(key)
	r.lock, _ = t.memory.Lock(one)
	return r, nil
}

// commit says that the bytes of a block are in its slot.
func (c *Cache) commit(r *reserved) {
	b := r.b
	sum := xxh3.Hash(c.bytes(b.slot, b.size))
	c.mu.Lock()
	b.full, b.sum = true, sum
	if r.fresh {
		r.t.count.Stored++
		c.log.add(b.key, true)
	}
	r.t.count.In += int64(b.size)
	if b.disk >= 0 || c.slab == nil || c.broken != nil {
		r.t.memory.Unlock(r.lock)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.later(job{t: r.t, b: b, lock: r.lock})
}

// abort gives a slot back whose bytes did not come.
func (c *Cache) abort(r *reserved) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.t.memory.Unlock(r.lock)
	r.t.memory.Cut([]kv.Hash{r.b.key}, 0, nil)
	c.free = append(c.free, r.b.slot)
	r.b.slot = -1
	c.forget(r.t, r.b)
}

func (c *Cache) bytes(slot, n int) []byte {
	return c.memory[int64(slot)*c.o.Block:][:n:n]
}

// drop forgets blocks that left memory. The lock is held.
func (c *Cache) drop(t *tenant, gone []kv.Hash) {
	for _, h := range gone {
		b := t.blocks[h]
		c.free = append(c.free, b.slot)
		b.slot = -1
		t.count.Evicted++
		c.forget(t, b)
	}
}

// forget removes what is nowhere. The lock is held.
func (c *Cache) forget(t *tenant, b *block) {
	if b.slot < 0 && b.disk < 0 && t.blocks[b.key] == b {
		delete(t.blocks, b.key)
		c.log.add(b.key, false)
	}
}
