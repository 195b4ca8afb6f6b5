// Package kvcache keeps blocks of KV caches for workers that come and go, and shares them.
//
//	host memory  ->  a slab file (NVMe)  ->  an object store
//	     \                                        /
//	      +---- other caches (a directory that they pull from one another)
//
// Blocks are named by chains of hashes (package kv), so a block is never changed: it is there or not, and every
// copy of it is the same. What may be lost is lost: after a crash memory is empty, and the slab has the blocks that were
// written to it. What is served is checked: every block carries a checksum, in the slab also a generation and its name, and
// a block that does not fit is dropped and counted, never given out.
//
// Tenants have trees of their own, of the size of their quota: one can neither find nor push out the blocks of
// another. Outside of the process names are mixed with the tenant's salt.
package kvcache

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
)

// Options are what a cache is made of.
type Options struct {
	Name   string     // in other caches' words
	Block  int64      // bytes of a block at most
	Memory int64      // bytes of host memory for blocks
	Disk   string     // the slab file; empty: none. Its blocks are kept over restarts, by an index in a file next to it
	Slab   int64      // bytes of the slab file
	Store  blob.Place // for packs of blocks; nil: none
	Pack   int64      // bytes of a pack, at least; blocks of a path are packed together up to it
	Policy kv.Policy
	// Tenants share the memory by their quotas; without any there is one, without a token, that has all.
	Tenants []Tenant
	Dirty   int // blocks that wait for the disk or the store at most; further ones are kept in memory alone
	// Agent, if there is one, moves blocks of other caches that have one, too, and of the clients of a single tenant (move.go). It stays the
	// caller's. Where there are several tenants, those with an agent of their own in Agents move blocks: its token is theirs, and its peers
	// are their clients alone, whatever names those take.
	Agent  *xfer.Agent
	Agents map[string]*xfer.Agent
	Absent time.Duration
	TLS    *tls.Config // towards other caches; nil: they serve plain HTTP
	Log    *slog.Logger
}

// Tenant is a user of a cache.
type Tenant struct {
	Name  string `json:"name"`
	Token string `json:"token"`
	Salt  string `json:"salt"`  // its names are mixed with; empty: the name
	Quota int64  `json:"quota"` // bytes of memory; of the slab it has the same share
}

// mix is what names of the tenant are mixed with.
func (t Tenant) mix() string {
	if t.Salt == "" {
		return t.Name
	}
	return t.Salt
}

// DefaultOptions are 256 MiB of memory for blocks of up to 1 MiB.
func DefaultOptions() Options {
	return Options{Name: "kv", Block: 1 << 20, Memory: 256 << 20, Pack: 4 << 20, Policy: kv.LRU, Dirty: 64, Absent: 2 * time.Second}
}

// Cache is the service without its network. Methods may be called from several goroutines.
type Cache struct {
	o       Options
	slots   int
	memory  []byte
	door    *door // by which transfers of other caches go; nil without an agent
	slab    *slab
	packs   *packs
	tenants map[string]*tenant // by name
	started time.Time

	mu     sync.Mutex
	free   []int // slots of memory
	broken error // of the slab: it is not used any more
	log    journal
	closed bool
	calls  int // under way: memory stays until they are over
	idle   chan struct{}

	life  context.Context // of what is written behind
	end   context.CancelFunc
	queue chan job
	done  chan struct{}
	peers []*peer
}

type tenant struct {
	Tenant
	salt   []byte
	memory *kv.Tree
	disk   *kv.Tree // nil: none
	blocks map[kv.Hash]*block
	absent *kv.Absent
	count  Counters
	door   *door // by which its transfers go
}

// block is what is known of one.
type block struct {
	key  kv.Hash
	size int
	sum  uint64
	slot int // in memory; -1
	full bool
	disk int // slot of the slab; -1
}

// New opens a cache.
func New(o Options) (*Cache, error) {
	if o.Block < 1 || o.Memory < o.Block {
		return nil, fmt.Errorf("kv cache: memory of %v for blocks of %v; it must hold at least one", unit.Bytes(o.Memory), unit.Bytes(o.Block))
	}
	if o.Policy == "" {
		o.Policy = kv.LRU
	}
	if _, err := kv.ParsePolicy(string(o.Policy)); err != nil {
		return nil, fmt.Errorf("kv cache: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Cache{o: o, slots: int(o.Memory / o.Block), tenants: map[string]*tenant{}, started: time.Now(),
		queue: make(chan job, max(o.Dirty, 1)), done: make(chan struct{})}
	c.log.generation = newGeneration()
	c.life, c.end = context.WithCancel(context.Background())
	if len(o.Tenants) == 0 {
		o.Tenants = []Tenant{{Name: "default", Quota: o.Memory}}
	}
	kept, err := c.openDisk()
	if err != nil {
		return nil, err
	}
	sum := int64(0)
	for _, t := range o.Tenants {
		if err := c.addTenant(t); err != nil {
			c.closeSlab()
			return nil, err
		}
		sum += t.Quota
	}
	if sum > o.Memory {
		c.closeSlab()
		return nil, fmt.Errorf("kv cache: quotas of %d tenants are %v, memory is %v; quotas are kept, so they must fit",
			len(o.Tenants), unit.Bytes(sum), unit.Bytes(o.Memory))
	}
	if err := c.makeMemory(); err != nil {
		c.closeSlab()
		return nil, err
	}
	for i := range c.slots {
		c.free = append(c.free, c.slots-1-i)
	}
	c.restore(kept)
	if o.Store != nil {
		c.packs = newPacks(o.Store)
	}
	go c.write()
	return c, nil
}

// addTenant gives a tenant its share of memory and disk. Tenants must differ in token and salt: the salt is all that
// keeps their blocks apart in the store and at other caches.
func (c *Cache) addTenant(t Tenant) error {
	n := int(t.Quota / c.o.Block)
	if t.Name == "" || c.tenants[t.Name] != nil {
		return fmt.Errorf("kv cache: tenant %q is there twice or has no name", t.Name)
	}
	if n < 1 {
		return fmt.Errorf("kv cache: tenant %s has a quota of %v, less than a block of %v: raise it, or make blocks smaller", t.Name,
			unit.Bytes(t.Quota), unit.Bytes(c.o.Block))
	}
	for _, other := range c.tenants {
		if t.Token == other.Token {
			return fmt.Errorf("kv cache: tenants %s and %s have the same token", t.Name, other.Name)
		}
		if t.mix() == other.mix() {
			return fmt.Errorf("kv cache: tenants %s and %s have the same salt %q: they would share blocks in the store and at other caches",
				t.Name, other.Name, t.mix())
		}
	}
	x := &tenant{Tenant: t, salt: []byte(t.mix()), blocks: map[kv.Hash]*block{}, absent: kv.NewAbsent(1<<16, c.o.Absent.Seconds())}
	tree := func(n int) *kv.Tree {
		return kv.NewTree(kv.Options{Blocks: n, Policy: c.o.Policy, HalfLife: 600, Value: func(int) float64 { return 1 }})
	}
	x.memory = tree(n)
	if c.slab != nil {
		share := int(float64(c.slab.slots) * float64(t.Quota) / float64(c.o.Memory))
		if share < 1 {
			return fmt.Errorf("kv cache: tenant %s has less than one of the slab's %d blocks", t.Name, c.slab.slots)
		}
		x.disk = tree(share)
	}
	c.tenants[t.Name] = x
	return nil
}

// ErrClosed is returned by calls after Close.
var ErrClosed = errors.New("kv cache: it is closed")

// begin keeps the memory of the cache until leave is called.
func (c *Cache) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.calls++
	return nil
}

func (c *Cache) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.calls == 0 && c.idle != nil {
		close(c.idle)
	}
}

// Close ends the cache. What waits for disk and store is given up. It returns when the calls that are under way have: end what they write
// to first.
func (c *Cache) Close() {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	var idle chan struct{}
	if !was && c.calls > 0 {
		idle = make(chan struct{})
		c.idle = idle
	}
	c.mu.Unlock()
	if was {
		return
	}
	c.end()
	close(c.queue)
	<-c.done
	if idle != nil {
		<-idle
	}
	for _, p := range c.others() {
		p.close()
	}
	c.freeMemory()
	c.closeSlab()
}

func (c *Cache) now() float64 { return time.Since(c.started).Seconds() }

// name mixes a client's hash with the tenant's salt.
func (t *tenant) name(h kv.Hash) kv.Hash {
	s := sha256.New()
	s.Write(t.salt)
	s.Write([]byte{0})
	s.Write(h[:])
	var out kv.Hash
	s.Sum(out[:0])
	return out
}

func (t *tenant) names(list []kv.Hash) []kv.Hash {
	out := make([]kv.Hash, len(list))
	for i, h := range list {
		out[i] = t.name(h)
	}
	return out
}

// Path names the blocks of a text from its beginning on. Of blocks that are Alone no path is known: each stands by itself.
type Path struct {
	Keys  []kv.Hash
	Alone bool
}
