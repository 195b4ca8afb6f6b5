package kvcache

import (
	"encoding/binary"
	"fmt"

	"github.com/weft-fabric/weft/move/kv"
)

// job is a block to write to the disk, or a group of them to pack.
type job struct {
	t     *tenant
	b     *block
	lock  kv.Lock
	group []kv.Hash
}

// openDisk opens the slab, if there is to be one, and gives the blocks that are in it. A slab whose index cannot be written is only read.
func (c *Cache) openDisk() ([]entry, error) {
	if c.o.Disk == "" {
		return nil, nil
	}
	s, kept, err := openSlab(c.o.Disk, c.o.Slab, c.o.Block)
	if s == nil {
		return nil, err
	}
	c.slab = s
	if err != nil {
		c.breakDisk(err)
	}
	switch lost := s.index.lost; {
	case lost < 0:
		c.o.Log.Warn("the slab starts empty: its index is damaged, or for a slab of another size, block size or version", "index", s.index.path)
	case lost > 0:
		c.o.Log.Warn("the slab's index is damaged", "index", s.index.path, "records_lost", lost)
	}
	return kept, nil
}

// breakDisk turns writing to the slab off. What is in it is still read.
func (c *Cache) breakDisk(err error) {
	c.broken = fmt.Errorf("slab %s: %w; it is not written any more", c.o.Disk, err)
	c.o.Log.Error("the disk tier is off", "error", c.broken)
}

// owner is the tenant's mark in the slab's index.
func (t *tenant) owner() uint64 {
	h := t.name(kv.Hash{})
	return binary.LittleEndian.Uint64(h[:])
}

// restore takes over the blocks of a slab, oldest first. Those of tenants that are gone, or beyond a tenant's share, are dropped.
func (c *Cache) restore(kept []entry) {
	owners := map[uint64]*tenant{}
	for _, t := range c.tenants {
		owners[t.owner()] = t
	}
	for _, e := range kept {
		t := owners[e.owner]
		if t == nil || t.blocks[e.key] != nil {
			c.slab.give(e.slot)
			continue
		}
		have, gone, err := t.disk.Insert([]kv.Hash{e.key}, 0, nil)
		c.dropDisk(t, gone)
		if have == 0 || err != nil {
			c.slab.give(e.slot)
			continue
		}
		t.blocks[e.key] = &block{key: e.key, size: e.size, sum: e.sum, slot: -1, disk: e.slot}
		c.log.add(e.key, true)
	}
	if len(kept) > 0 {
		c.o.Log.Info("the slab's blocks are back", "blocks", len(kept))
	}
}

func (c *Cache) closeSlab() {
	if c.slab != nil {
		c.slab.close(c.broken != nil)
	}
}

// later hands work to the writer, or gives it up where too much waits.
func (c *Cache) later(j job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		select {
		case c.queue <- j:
			return
		default:
		}
	}
	j.t.count.Behind++
	if j.b != nil {
		j.t.memory.Unlock(j.lock)
	}
}

// dropDisk forgets blocks that left the slab. The lock is held.
func (c *Cache) dropDisk(t *tenant, gone []kv.Hash) {
	for _, h := range gone {
		b := t.blocks[h]
		c.slab.give(b.disk)
		b.disk = -1
		t.count.EvictedOut++
		c.forget(t, b)
	}
}

// write is the writer: disk and store, behind those who put.
func (c *Cache) write() {
	defer close(c.done)
	for j := range c.queue {
		c.mu.Lock()
		over := c.closed
		c.mu.Unlock()
		switch {
		case over:
			if j.b != nil {
				c.mu.Lock()
				j.t.memory.Unlock(j.lock)
				c.mu.Unlock()
			}
		case j.b != nil:
			c.writeDisk(j)
		default:
			c.writePack(c.life, j)
		}
	}
}

// writeDisk writes a block to the slab. Its memory is locked until then.
func (c *Cache) writeDisk(j job) {
	t, b, one := j.t, j.b, []kv.Hash{j.b.key}
	c.mu.Lock()
	if b.disk >= 0 || c.broken != nil {
		t.memory.Unlock(j.lock)
		c.mu.Unlock()
		return
	}
	have, gone, err := t.disk.Insert(one, c.now(), nil)
	c.dropDisk(t, gone)
	if have == 0 || err != nil {
		t.count.Behind++
		t.memory.Unlock(j.lock)
		c.mu.Unlock()
		return
	}
	slot := c.slab.take()
	lock, _ := t.disk.Lock(one)
	data, emptied := c.bytes(b.slot, b.size), c.slab.emptied()
	c.mu.Unlock()

	err = c.slab.write(entry{slot: slot, owner: t.owner(), key: b.key, size: b.size, sum: b.sum}, data, emptied)

	c.mu.Lock()
	defer c.mu.Unlock()
	t.disk.Unlock(lock)
	if err != nil {
		t.disk.Cut(one, 0, nil)
		c.slab.give(slot)
		t.count.Failed++
		c.breakDisk(err)
	} else {
		b.disk = slot
		t.count.Written++
	}
	t.memory.Unlock(j.lock)
	c.forget(t, b)
}
