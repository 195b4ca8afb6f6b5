package kv

import (
	"encoding/binary"
	"math/rand/v2"
)

// Churn is work for measuring a tree: it is full, and every path that comes pushes another out. A step is one call, in turn a lookup, a
// lock, an insert of a path of eight blocks and the end of the lock.
type Churn struct {
	tree *Tree
	r    *rand.Rand
	path [8]Hash
	lock Lock
	gone []Hash
	at   int
}

// NewChurn fills a tree of that number of blocks.
func NewChurn(p Policy, blocks int, seed uint64) *Churn {
	c := &Churn{tree: NewTree(Options{Blocks: blocks, Policy: p, HalfLife: 1e6, Value: func(d int) float64 { return 1 + float64(d) }}),
		r: rand.New(rand.NewPCG(seed, 2))}
	for range blocks / 2 {
		c.draw()
		_, c.gone, _ = c.tree.Insert(c.path[:], float64(c.at), c.gone[:0])
		c.at++
	}
	return c
}

// draw chooses a path: some more often than others, and several begin alike.
func (c *Churn) draw() {
	s := uint64(c.r.Int64N(1 << 16))
	s = s * s >> 16
	for k := range c.path {
		n := s<<8 + uint64(k)<<60
		if k < 4 {
			n = s>>4<<8 + uint64(k)<<60
		}
		c.path[k] = Hash{}
		binary.BigEndian.PutUint64(c.path[k][:], n+1)
	}
}

// Step makes one call.
func (c *Churn) Step() {
	switch c.at++; c.at % 4 {
	case 0:
		c.draw()
		c.tree.Match(c.path[:], float64(c.at))
	case 1:
		c.lock, _ = c.tree.Lock(c.path[:])
	case 2:
		_, c.gone, _ = c.tree.Insert(c.path[:], float64(c.at), c.gone[:0])
	case 3:
		c.tree.Unlock(c.lock)
	}
}
