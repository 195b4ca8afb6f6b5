package kvcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/move/kv"
)

// Where is a place of a block.
type Where string

// The places.
const (
	InMemory Where = "memory"
	OnDisk   Where = "disk"
	InStore  Where = "store"
	AtPeer   Where = "peer"
)

// Match says where the blocks of a path are, from the first to the last before one that is nowhere. They count as
// used. The store is asked by the names of packs, never listed.
func (c *Cache) Match(ctx context.Context, who string, p Path) ([]Where, error) {
	t := c.tenants[who]
	if t == nil {
		return nil, fmt.Errorf("kv cache: no tenant %q", who)
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.leave()
	var out []Where
	for i, key := range p.Keys {
		w, ok := c.where(t, t.name(key))
		if !ok && c.packs != nil {
			if _, err := c.inStore(ctx, t, p, i); err == nil {
				w, ok = InStore, true
			}
		}
		if !ok {
			break
		}
		out = append(out, w)
	}
	// The last first: so the beginning of a path is what was used last, and stays longest.
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(out) - 1; i >= 0; i-- {
		one := []kv.Hash{t.name(p.Keys[i])}
		t.memory.Match(one, c.now())
		if t.disk != nil {
			t.disk.Match(one, c.now())
		}
	}
	return out, nil
}

// where says where a block is, but for the store.
func (c *Cache) where(t *tenant, key kv.Hash) (Where, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := t.blocks[key]; b != nil {
		switch {
		case b.slot >= 0 && b.full:
			return InMemory, true
		case b.disk >= 0:
			return OnDisk, true
		}
	}
	for _, p := range c.peers {
		if p.has(key) {
			return AtPeer, true
		}
	}
	return "", false
}

// Get gives the i-th block of a path to use, which must not keep it. It returns false if it is nowhere.
func (c *Cache) Get(ctx context.Context, who string, p Path, i int, use func(data []byte) error) (Where, bool, error) {
	t := c.tenants[who]
	if t == nil || i < 0 || i >= len(p.Keys) {
		return "", false, fmt.Errorf("kv cache: no tenant %q, or no block %d of %d", who, i, len(p.Keys))
	}
	if err := c.begin(); err != nil {
		return "", false, err
	}
	defer c.leave()
	c.mu.Lock()
	t.count.Asked++
	c.mu.Unlock()
	w, ok, err := c.get(ctx, t, p, i, use)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && !ok {
		t.count.Missed++
	}
	return w, ok, err
}

// fetched counts a block that was asked for elsewhere, by what became of it.
func (c *Cache) fetched(t *tenant, found *int64, bytes int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, errDamaged):
		t.count.Damaged++
	case err != nil:
		t.count.Failed++
	default:
		*found++
		t.count.Out += int64(bytes)
	}
}

// get finds block i of a path and gives it to use: here, at a peer that said it has the block, or in the store, in this
// order. What came from elsewhere is kept here as well, if there is room. An error of a peer or of the store is a miss;
// only errors here and of use are returned.
func (c *Cache) get(ctx context.Context, t *tenant, path Path, i int, use func([]byte) error) (Where, bool, error) {
	key := t.name(path.Keys[i])
	if w, ok, err := c.local(t, key, use, true); ok || err != nil {
		return w, ok, err
	}
	for _, p := range c.others() {
		if !p.has(key) {
			continue
		}
		data, err := p.fetch(ctx, t.Name, key, c.o)
		c.fetched(t, &t.count.Peer, len(data), err)
		if err == nil {
			_, _ = c.put(t, key, data)
			return AtPeer, true, use(data)
		}
		p.lost(key)
	}
	if c.packs == nil {
		return "", false, nil
	}
	at, err := c.inStore(ctx, t, path, i)
	if err != nil {
		return "", false, nil
	}
	data, err := c.packs.read(ctx, at)
	c.fetched(t, &t.count.Store, len(data), err)
	if err != nil {
		c.o.Log.Warn("a block could not be read from the store", "pack", at.pack, "error", err)
		return "", false, nil
	}
	_, _ = c.put(t, key, data)
	return InStore, true, use(data)
}

// spoiled counts a block that could not be read from its slot on the disk, and forgets it unless it has moved since. The caller holds mu.
func (c *Cache) spoiled(t *tenant, b *block, slot int, why error) {
	if errors.Is(why, errDamaged) {
		t.count.Damaged++
	} else {
		t.count.Failed++
	}
	c.o.Log.Warn("a block of the slab is lost", "block", b.key, "error", why)
	if b.disk == slot {
		t.disk.Cut([]kv.Hash{b.key}, 0, nil)
		c.slab.give(slot)
		b.disk = -1
		c.forget(t, b)
	}
}

// local reads a block from memory or disk. With asked it counts as used.
func (c *Cache) local(t *tenant, key kv.Hash, use func([]byte) error, asked bool) (Where, bool, error) {
	one := []kv.Hash{key}
	c.mu.Lock()
	b := t.blocks[key]
	if b != nil && b.slot >= 0 && b.full {
		lock, _ := t.memory.Lock(one)
		data := c.bytes(b.slot, b.size)
		if asked {
			t.memory.Match(one, c.now())
			t.count.Memory++
			t.count.Out += int64(len(data))
		}
		c.mu.Unlock()
		err := use(data)
		c.mu.Lock()
		t.memory.Unlock(lock)
		c.mu.Unlock()
		return InMemory, true, err
	}
	if b == nil || b.disk < 0 {
		c.mu.Unlock()
		return "", false, nil
	}
	if asked {
		t.disk.Match(one, c.now())
	}
	lock, _ := t.disk.Lock(one)
	slot, size, sum := b.disk, b.size, b.sum
	c.mu.Unlock()

	data, err := c.slab.read(slot, key, size, sum)

	c.mu.Lock()
	t.disk.Unlock(lock)
	if err != nil {
		c.spoiled(t, b, slot, err)
		c.mu.Unlock()
		return "", false, nil
	}
	if !asked {
		c.mu.Unlock()
		return OnDisk, true, use(data)
	}
	t.count.Disk++
	t.count.Out += int64(len(data))
	c.mu.Unlock()
	_, _ = c.put(t, key, data)
	return OnDisk, true, use(data)
}
