// Package kvcache keeps blocks of KV caches for workers that come and go, and shares them.
//
//	host memory  ->  a slab file (NVMe)  ->  an object store
//	     \                                        /
//	      +---- other caches (a directory that they pull from one another)
//
// Blocks are named by chains of hashes (package kv), so a block is never changed: it is there or not, and every
// copy of it is the same. What may be lost is lost: after a crash memory and slab are empty. What is served is
// checked: every block carries a checksum, in the slab also a generation and its name, and a block that does not
// fit is dropped and counted, never given out.
//
// Tenants have trees of their own, of the size of their quota: one can neither find nor push out the blocks of
// another. Outside of the process names are mixed with the tenant's salt.
package kvcache

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/ckpt/blob"
	"github.com/zeebo/xxh3"
)

// Options are what a cache is made of.
type Options struct {
	Name   string     // in other caches' words
	Block  int64      // bytes of a block at most
	Memory int64      // bytes of host memory for blocks
	Disk   string     // the slab file; empty: none. What is in it from earlier is ignored
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

// ErrRoom is returned where every block of a tenant is in use.
var ErrRoom = errors.New("no room: all blocks of this tenant are being read or written")

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

// Counters of a cache since it started.
type Counters struct {
	Asked      int64 `json:"asked"` // blocks
	Memory     int64 `json:"memory_hits"`
	Disk       int64 `json:"disk_hits"`
	Store      int64 `json:"store_hits"`
	Peer       int64 `json:"peer_hits"`
	Missed     int64 `json:"missed"`
	Stored     int64 `json:"stored"`
	Known      int64 `json:"stored_again"` // blocks that were there already
	Refused    int64 `json:"refused"`      // no room
	Evicted    int64 `json:"evicted_memory"`
	EvictedOut int64 `json:"evicted_disk"`
	Behind     int64 `json:"not_written"` // too many waited for disk or store
	Written    int64 `json:"written_disk"`
	Packed     int64 `json:"packs_written"`
	Raced      int64 `json:"packs_there"` // another cache had written it
	Damaged    int64 `json:"damaged"`     // checksums that did not fit
	Failed     int64 `json:"failed"`      // reads and writes of disk, store and peers
	In         int64 `json:"bytes_in"`
	Out        int64 `json:"bytes_out"`
	Moved      int64 `json:"bytes_by_transfers"` // of both
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

// job is a block to write to the disk, or a group of them to pack.
type job struct {
	t     *tenant
	b     *block
	lock  kv.Lock
	group []kv.Hash
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
	c := &Cache{o: o, slots: int(o.Memory / o.Block), tenants: map[string]*tenant{}, started: time.Now(), queue: make(chan job, max(o.Dirty, 1)), done: make(chan struct{})}
	c.log.generation = newGeneration()
	c.life, c.end = context.WithCancel(context.Background())
	if len(o.Tenants) == 0 {
		o.Tenants = []Tenant{{Name: "default", Quota: o.Memory}}
	}
	if o.Disk != "" {
		s, err := openSlab(o.Disk, o.Slab, o.Block)
		if err != nil {
			return nil, err
		}
		c.slab = s
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
		return nil, fmt.Errorf("kv cache: quotas of %d tenants are %v, memory is %v; quotas are kept, so they must fit", len(o.Tenants), unit.Bytes(sum), unit.Bytes(o.Memory))
	}
	if err := c.makeMemory(); err != nil {
		c.closeSlab()
		return nil, err
	}
	for i := range c.slots {
		c.free = append(c.free, c.slots-1-i)
	}
	if o.Store != nil {
		c.packs = newPacks(o.Store)
	}
	go c.write()
	return c, nil
}

func (c *Cache) addTenant(t Tenant) error {
	n := int(t.Quota / c.o.Block)
	if t.Name == "" || c.tenants[t.Name] != nil {
		return fmt.Errorf("kv cache: tenant %q is there twice or has no name", t.Name)
	}
	if n < 1 {
		return fmt.Errorf("kv cache: tenant %s has %v, less than a block of %v", t.Name, unit.Bytes(t.Quota), unit.Bytes(c.o.Block))
	}
	for _, other := range c.tenants {
		if t.Token == other.Token {
			return fmt.Errorf("kv cache: tenants %s and %s have the same token", t.Name, other.Name)
		}
		if t.mix() == other.mix() {
			return fmt.Errorf("kv cache: tenants %s and %s have the same salt %q: they would find each other's blocks in the store and at other caches", t.Name, other.Name, t.mix())
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

func (c *Cache) closeSlab() {
	if c.slab != nil {
		c.slab.close()
	}
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

// Close ends the cache. What waits for disk and store is given up. It returns when the calls that are under way have: end what they write to
// first.
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

// reserve takes a slot for a block; commit or abort follows. It gives nil if the block is there.
func (c *Cache) reserve(t *tenant, key kv.Hash, size int) (*reserved, error) {
	one := []kv.Hash{key}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := t.blocks[key]
	// A block of the same name and another size that is on the disk stays: its size and checksum are those of the disk's.
	if b != nil && (b.slot >= 0 || b.disk >= 0 && b.size != size) || c.closed {
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
	for _, h := range gone {
		old := t.blocks[h]
		c.slab.give(old.disk)
		old.disk = -1
		t.count.EvictedOut++
		c.forget(t, old)
	}
	if have == 0 || err != nil {
		t.count.Behind++
		t.memory.Unlock(j.lock)
		c.mu.Unlock()
		return
	}
	slot := c.slab.take()
	lock, _ := t.disk.Lock(one)
	data := c.bytes(b.slot, b.size)
	c.mu.Unlock()

	err = c.slab.write(slot, b.key, data, b.sum)

	c.mu.Lock()
	defer c.mu.Unlock()
	t.disk.Unlock(lock)
	if err != nil {
		t.disk.Cut(one, 0, nil)
		c.slab.give(slot)
		t.count.Failed++
		c.broken = fmt.Errorf("slab %s: %w; it is not used any more", c.o.Disk, err)
		c.o.Log.Error("the disk tier is off", "error", c.broken)
	} else {
		b.disk = slot
		t.count.Written++
	}
	t.memory.Unlock(j.lock)
	c.forget(t, b)
}

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
		c.mu.Lock()
		switch {
		case errors.Is(err, errDamaged):
			t.count.Damaged++
		case err != nil:
			t.count.Failed++
		default:
			t.count.Peer++
			t.count.Out += int64(len(data))
		}
		c.mu.Unlock()
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
	c.mu.Lock()
	switch {
	case errors.Is(err, errDamaged):
		t.count.Damaged++
	case err != nil:
		t.count.Failed++
	default:
		t.count.Store++
		t.count.Out += int64(len(data))
	}
	c.mu.Unlock()
	if err != nil {
		c.o.Log.Warn("a block could not be read from the store", "pack", at.pack, "error", err)
		return "", false, nil
	}
	_, _ = c.put(t, key, data)
	return InStore, true, use(data)
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
		if errors.Is(err, errDamaged) {
			t.count.Damaged++
		} else {
			t.count.Failed++
		}
		c.o.Log.Warn("a block of the slab is lost", "block", key, "error", err)
		if b.disk == slot {
			t.disk.Cut(one, 0, nil)
			c.slab.give(slot)
			b.disk = -1
			c.forget(t, b)
		}
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

// Stat is how a cache stands.
type Stat struct {
	Name     string       `json:"name"`
	Uptime   float64      `json:"uptime_s"`
	Block    int64        `json:"block_bytes"`
	Memory   int64        `json:"memory_bytes"`
	Slab     int64        `json:"slab_bytes"`
	Store    string       `json:"store,omitempty"`
	Policy   kv.Policy    `json:"policy"`
	Tenants  []TenantStat `json:"tenants"`
	Peers    []PeerStat   `json:"peers"`
	Waiting  int          `json:"waiting"` // for disk and store
	Broken   string       `json:"broken,omitempty"`
	Chain    string       `json:"chain,omitempty"`
	Counters Counters     `json:"counters"`
}

// TenantStat is what a tenant has.
type TenantStat struct {
	Name   string `json:"name"`
	Quota  int64  `json:"quota_bytes"`
	Memory int    `json:"memory_blocks"`
	Disk   int    `json:"disk_blocks"`
	InUse  int    `json:"in_use"` // blocks that are read or written at this moment
	Room   int    `json:"memory_room"`
}

// Stat tells how the cache stands.
func (c *Cache) Stat() Stat {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Stat{Name: c.o.Name, Uptime: c.now(), Block: c.o.Block, Memory: c.o.Memory, Policy: c.o.Policy, Waiting: len(c.queue), Tenants: []TenantStat{}, Peers: []PeerStat{}}
	if c.slab != nil {
		s.Slab = c.slab.size()
	}
	if c.o.Store != nil {
		s.Store = c.o.Store.Path("")
	}
	if c.broken != nil {
		s.Broken = c.broken.Error()
	}
	tenants := c.o.Tenants
	if len(tenants) == 0 {
		tenants = []Tenant{{Name: "default"}}
	}
	for _, x := range tenants {
		t := c.tenants[x.Name]
		one := TenantStat{Name: t.Name, Quota: t.Quota, Memory: t.memory.Len(), Room: t.memory.Room(), InUse: t.memory.Locked()}
		if t.disk != nil {
			one.Disk = t.disk.Len()
		}
		s.Tenants = append(s.Tenants, one)
		s.Counters.add(&t.count)
	}
	for _, p := range c.peers {
		s.Peers = append(s.Peers, p.stat())
	}
	return s
}

// Of is how the cache stands as one of its tenants sees it: nothing of the others, or of what they share.
func (c *Cache) Of(who string) Stat {
	all := c.Stat()
	s := Stat{Name: all.Name, Uptime: all.Uptime, Block: all.Block, Policy: all.Policy, Tenants: []TenantStat{}, Peers: []PeerStat{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range all.Tenants {
		if t.Name == who {
			s.Memory, s.Counters = t.Quota, c.tenants[who].count
			s.Tenants = append(s.Tenants, t)
		}
	}
	return s
}

// add adds what another has counted.
func (c *Counters) add(o *Counters) {
	to, from := reflect.ValueOf(c).Elem(), reflect.ValueOf(o).Elem()
	for i := range to.NumField() {
		to.Field(i).SetInt(to.Field(i).Int() + from.Field(i).Int())
	}
}

// Metrics writes the counters for Prometheus.
func (s Stat) Metrics(w io.Writer) error {
	var err error
	line := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	line("# HELP weft_kv_lookups_total Blocks requested, by where they were found: memory, disk, store, peer, nowhere.\n# TYPE weft_kv_lookups_total counter")
	for _, x := range []struct {
		where string
		n     int64
	}{{"memory", s.Counters.Memory}, {"disk", s.Counters.Disk}, {"store", s.Counters.Store}, {"peer", s.Counters.Peer}, {"nowhere", s.Counters.Missed}} {
		line("weft_kv_lookups_total{found=%q} %d", x.where, x.n)
	}
	for _, x := range []struct {
		name, help string
		n          int64
	}{
		{"stored_total", "Blocks stored.", s.Counters.Stored}, {"stored_again_total", "Blocks stored though they were already there.", s.Counters.Known},
		{"refused_total", "Blocks rejected because all the tenant's blocks were in use.", s.Counters.Refused}, {"evicted_total", "Blocks evicted from memory.", s.Counters.Evicted},
		{"evicted_disk_total", "Blocks evicted from disk.", s.Counters.EvictedOut}, {"not_written_total", "Blocks not written to disk or store because --dirty was reached.", s.Counters.Behind},
		{"written_disk_total", "Blocks written to the disk.", s.Counters.Written}, {"packs_written_total", "Packs written to the store.", s.Counters.Packed},
		{"packs_there_total", "Packs that another cache had already written.", s.Counters.Raced}, {"damaged_total", "Blocks dropped for a wrong checksum.", s.Counters.Damaged},
		{"failed_total", "Failed reads and writes of disk, store and peers.", s.Counters.Failed},
		{"bytes_in_total", "Bytes stored.", s.Counters.In}, {"bytes_out_total", "Bytes served.", s.Counters.Out},
		{"moved_bytes_total", "Bytes stored and served that went by transfers.", s.Counters.Moved},
	} {
		line("# HELP weft_kv_%s %s\n# TYPE weft_kv_%s counter\nweft_kv_%s %d", x.name, x.help, x.name, x.name, x.n)
	}
	line("# HELP weft_kv_blocks Blocks by tenant and tier.\n# TYPE weft_kv_blocks gauge")
	for _, t := range s.Tenants {
		line("weft_kv_blocks{tenant=%q,tier=\"memory\"} %d", t.Name, t.Memory)
		line("weft_kv_blocks{tenant=%q,tier=\"disk\"} %d", t.Name, t.Disk)
	}
	line("# HELP weft_kv_quota_bytes A tenant's memory.\n# TYPE weft_kv_quota_bytes gauge")
	for _, t := range s.Tenants {
		line("weft_kv_quota_bytes{tenant=%q} %d", t.Name, t.Quota)
	}
	line("# HELP weft_kv_peer_blocks Blocks that a peer reported.\n# TYPE weft_kv_peer_blocks gauge")
	for _, p := range s.Peers {
		line("weft_kv_peer_blocks{peer=%q} %d", p.Address, p.Blocks)
	}
	line("# HELP weft_kv_peer_up 1 if the peer answers.\n# TYPE weft_kv_peer_up gauge")
	for _, p := range s.Peers {
		up := 1
		if p.Error != "" || p.Heard < 0 {
			up = 0
		}
		line("weft_kv_peer_up{peer=%q} %d", p.Address, up)
	}
	line("# HELP weft_kv_waiting Blocks and packs waiting for disk or store.\n# TYPE weft_kv_waiting gauge\nweft_kv_waiting %d", s.Waiting)
	broken := 0
	if s.Broken != "" {
		broken = 1
	}
	line("# HELP weft_kv_disk_broken 1 if the disk tier is off after an error.\n# TYPE weft_kv_disk_broken gauge\nweft_kv_disk_broken %d", broken)
	return err
}
