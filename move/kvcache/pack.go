package kvcache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"time"

	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/zeebo/xxh3"
)

// A pack is one object with the blocks of a piece of a path: the k-th piece, of as many blocks as make up Pack bytes.
// It is called by the name of its last block, so that whoever has a path knows what its packs are called: nothing is
// listed and no index is kept outside.
//
//	8 magic   8 number of blocks   for each: 32 name, 8 offset, 8 size, 8 checksum   8 checksum of all before   data
//
// Two caches that write the same pack write the same bytes; the store lets the first win.

const packMagic = 0x77656674_6b767031 // "weftkvp1"

func packHead(blocks int) int { return 24 + 56*blocks }

// perPack is how many blocks of a path make a pack.
func (c *Cache) perPack() int { return int(max(1, (c.o.Pack+c.o.Block-1)/c.o.Block)) }

// group gives the names of the blocks that share a pack with the i-th of a path, as a client calls them; none if the
// path ends before the pack does. A block that is alone is a pack of its own.
func (c *Cache) group(p Path, i int) []kv.Hash {
	if p.Alone {
		return p.Keys[i : i+1]
	}
	n := c.perPack()
	from := i / n * n
	if from+n > len(p.Keys) {
		return nil
	}
	return p.Keys[from : from+n]
}

// place is where a block lies in a pack.
type place struct {
	pack      string
	key       kv.Hash
	off, size int64
	sum       uint64
}

type packs struct {
	store blob.Place
	mu    sync.Mutex
	known map[string][]place // heads that were read
	until time.Time          // it is not asked before: it did not answer

	look, long, rest time.Duration // see newPacks
}

const maxKnown = 4096 // heads

var errResting = errors.New("the store did not answer; it is asked again later")

// ask reads from the store, if it answers at the moment.
func (p *packs) ask(ctx context.Context, limit time.Duration, name string, b []byte, off int64) error {
	p.mu.Lock()
	resting := time.Now().Before(p.until)
	p.mu.Unlock()
	if resting {
		return errResting
	}
	inside, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := p.store.Read(inside, name, b, off)
	if err != nil && ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, io.ErrUnexpectedEOF) {
		p.mu.Lock()
		p.until = time.Now().Add(p.rest)
		p.mu.Unlock()
	}
	return err
}

// newPacks are the packs of a store. A head takes 3 s at most, a block 10 s; a store that did not answer is left alone for 2 s, and what
// would be in it is computed.
func newPacks(s blob.Place) *packs {
	return &packs{store: s, known: map[string][]place{}, look: 3 * time.Second, long: 10 * time.Second, rest: 2 * time.Second}
}

func packName(last kv.Hash) string { s := last.String(); return "kv/" + s[:2] + "/" + s }

// inStore finds the i-th block of a path in its pack. What is not there is not asked for again for a while.
func (c *Cache) inStore(ctx context.Context, t *tenant, path Path, i int) (place, error) {
	g := c.group(path, i)
	if len(g) == 0 {
		return place{}, fs.ErrNotExist
	}
	last, key := t.name(g[len(g)-1]), t.name(path.Keys[i])
	c.mu.Lock()
	absent := t.absent.Has(last, c.now())
	c.mu.Unlock()
	if absent {
		return place{}, fs.ErrNotExist
	}
	list, err := c.packs.head(ctx, packName(last), len(g))
	if err != nil {
		c.mu.Lock()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			t.absent.Add(last, c.now())
		case errors.Is(err, errResting), ctx.Err() != nil: // whoever asked is gone
		default:
			t.count.Failed++
			c.o.Log.Warn("the store could not be read", "error", err)
		}
		c.mu.Unlock()
		return place{}, err
	}
	for _, p := range list {
		if p.key == key {
			return p, nil
		}
	}
	return place{}, fs.ErrNotExist
}

// parseHead decodes the head of a pack: magic, blocks, 56 bytes for each, and a checksum.
func parseHead(name string, blocks int, b []byte) (list []place, err error) {
	n := len(b) - 8
	if binary.LittleEndian.Uint64(b) != packMagic || binary.LittleEndian.Uint64(b[8:]) != uint64(blocks) ||
		xxh3.Hash(b[:n]) != binary.LittleEndian.Uint64(b[n:]) {
		return nil, fmt.Errorf("pack %s: its head: %w", name, errDamaged)
	}
	for at := 16; at < n; at += 56 {
		x := place{pack: name, off: int64(binary.LittleEndian.Uint64(b[at+32:])), size: int64(binary.LittleEndian.Uint64(b[at+40:])),
			sum: binary.LittleEndian.Uint64(b[at+48:])}
		copy(x.key[:], b[at:])
		if x.off < int64(len(b)) || x.size < 1 || x.size > maxBlock {
			return nil, fmt.Errorf("pack %s: a block of %d bytes at %d: %w", name, x.size, x.off, errDamaged)
		}
		list = append(list, x)
	}
	return list, nil
}

// head reads what a pack holds.
func (p *packs) head(ctx context.Context, name string, blocks int) ([]place, error) {
	p.mu.Lock()
	list := p.known[name]
	p.mu.Unlock()
	if list != nil {
		return list, nil
	}
	b := make([]byte, packHead(blocks))
	if err := p.ask(ctx, p.look, name, b, 0); err != nil {
		return nil, err
	}
	list, err := parseHead(name, blocks, b)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	if len(p.known) >= maxKnown {
		clear(p.known)
	}
	p.known[name] = list
	p.mu.Unlock()
	return list, nil
}

// read reads one block of a pack.
func (p *packs) read(ctx context.Context, at place) ([]byte, error) {
	data := make([]byte, at.size)
	if err := p.ask(ctx, p.long, at.pack, data, at.off); err != nil {
		p.mu.Lock()
		delete(p.known, at.pack)
		p.mu.Unlock()
		return nil, err
	}
	if xxh3.Hash(data) != at.sum {
		return nil, fmt.Errorf("pack %s, block %s: %w", at.pack, at.key, errDamaged)
	}
	return data, nil
}

// creator is a store that refuses to write what is there.
type creator interface {
	Create(ctx context.Context, name string, b blob.Body) error
}

// writePack writes the blocks of a group as one object, if all of them are here.
func (c *Cache) writePack(ctx context.Context, j job) {
	name := packName(j.group[len(j.group)-1])
	head := make([]byte, 16, packHead(len(j.group)))
	binary.LittleEndian.PutUint64(head, packMagic)
	binary.LittleEndian.PutUint64(head[8:], uint64(len(j.group)))
	off := int64(packHead(len(j.group)))
	var data [][]byte
	for _, key := range j.group {
		var copied []byte
		_, ok, err := c.local(j.t, key, func(b []byte) error { copied = append(copied, b...); return nil }, false)
		if !ok || err != nil {
			return // one of them has left already
		}
		head = append(head, key[:]...)
		for _, v := range []uint64{uint64(off), uint64(len(copied)), xxh3.Hash(copied)} {
			head = binary.LittleEndian.AppendUint64(head, v)
		}
		off += int64(len(copied))
		data = append(data, copied)
	}
	head = binary.LittleEndian.AppendUint64(head, xxh3.Hash(head))
	body := blob.Body{Data: append([][]byte{head}, data...)}
	put := c.packs.store.Put
	if s, ok := c.packs.store.(creator); ok {
		put = s.Create
	}
	err := put(ctx, name, body)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, fs.ErrExist):
		j.t.count.Raced++
	case err != nil:
		j.t.count.Failed++
		c.o.Log.Warn("a pack was not written", "pack", name, "error", err)
		return
	default:
		j.t.count.Packed++
	}
	j.t.absent.Remove(j.group[len(j.group)-1])
}
