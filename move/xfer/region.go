package xfer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"unsafe"
)

// Access is what peers may do with a region.
type Access uint8

// What peers may do. The zero value of a region's access is both.
const (
	MayRead Access = 1 << iota
	MayWrite
	Own // nothing: it is for own requests, and descriptions leave it out
)

// Region is storage that an agent has registered.
type Region struct {
	agent  *Agent
	id     uint32
	key    uint64
	name   string
	access Access
	store  Storage
	mem    []byte // of host memory
	share  int64  // where mem lies in the agent's share; -1 if it does not

	mu     sync.Mutex
	gone   bool // Release has begun
	closed bool // and has ended
	epochs epochs
	leases map[*lease]struct{}
	landed map[*landing]struct{} // requests that write into it
}

// Memory is host memory as storage.
func Memory(b []byte) Storage { return memory(b) }

type memory []byte

func (m memory) Kind() Kind                 { return Host }
func (m memory) Size() int64                { return int64(len(m)) }
func (m memory) Depth() int                 { return 1 }
func (m memory) Sync(context.Context) error { return nil }
func (m memory) Close() error               { return nil }

func (m memory) ReadAt(_ context.Context, p []byte, off int64) error {
	copy(p, m[off:])
	return nil
}

func (m memory) WriteAt(_ context.Context, p []byte, off int64) error {
	copy(m[off:], p)
	return nil
}

// Alloc gets memory that agents of other processes of this host can read without a copy in between. Where
// that cannot be, it is ordinary memory.
func (a *Agent) Alloc(n int) ([]byte, error) {
	a.mu.Lock()
	share := a.share
	a.mu.Unlock()
	if share == nil {
		return make([]byte, n), nil
	}
	return share.Alloc(n)
}

// Free gives back what Alloc gave. No region may be made of it any more.
func (a *Agent) Free(b []byte) error {
	a.mu.Lock()
	share := a.share
	a.mu.Unlock()
	if share == nil {
		return nil
	}
	return share.Free(b)
}

// mayRegister is nil if there is room for a region of a name. The caller holds mu.
func (a *Agent) mayRegister(name string) error {
	switch {
	case a.closed:
		return fmt.Errorf("agent %s: register %q: %w", a.id.Name, name, ErrClosed)
	case name == "" || len(name) > maxName:
		return fmt.Errorf("agent %s: register: name of %d bytes, want 1 to %d", a.id.Name, len(name), maxName)
	case a.names[name] != nil:
		return fmt.Errorf("agent %s: region %q is there already; release it first", a.id.Name, name)
	case len(a.regions) >= maxRegions:
		return fmt.Errorf("agent %s: %w: %d regions, at most %d", a.id.Name, ErrLimit, len(a.regions), maxRegions)
	}
	return nil
}

// Register makes storage known under a name. Peers may do what access says, 0 for everything.
func (a *Agent) Register(name string, s Storage, access Access) (*Region, error) {
	if access == 0 {
		access = MayRead | MayWrite
	}
	var key [8]byte
	rand.Read(key[:])
	r := &Region{agent: a, key: binary.LittleEndian.Uint64(key[:]), name: name, access: access, store: s, share: -1,
		leases: map[*lease]struct{}{}, landed: map[*landing]struct{}{}}
	if m, ok := s.(memory); ok {
		r.mem = m
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.mayRegister(name); err != nil {
		return nil, err
	}
	if r.mem != nil && a.share != nil {
		if off, ok := a.share.Offset(r.mem); ok {
			r.share = int64(off)
		}
	}
	a.lastRegion++ // numbers are never used again: a descriptor of a region that is gone leads nowhere
	r.id = a.lastRegion
	a.regions[r.id], a.names[name] = r, r
	return r, nil
}

// Name, Kind and Size of the region.
func (r *Region) Name() string { return r.name }

// Kind is what the region is made of.
func (r *Region) Kind() Kind { return r.store.Kind() }

// Size is the region's number of bytes.
func (r *Region) Size() int64 { return r.store.Size() }

// Storage is what is behind it.
func (r *Region) Storage() Storage { return r.store }

// Bytes is the memory of a region of host memory, nil for others.
func (r *Region) Bytes() []byte { return r.mem }

// At describes bytes of the region.
func (r *Region) At(off, n int64) Desc { return Desc{r.id, off, n} }

// address of the memory, for peers that read this process's memory.
func (r *Region) address() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))) }

// withdraw lets nobody begin anything with bytes, and gives who has begun.
func (r *Region) withdraw(off, n int64) (writes []*landing, reads []*lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epochs.withdraw(off, n)
	for l := range r.landed {
		if l.touches(r, off, n) {
			writes = append(writes, l)
		}
	}
	for l := range r.leases {
		if l.touches(r.id, off, n) {
			reads = append(reads, l)
		}
	}
	slices.SortFunc(reads, func(a, b *lease) int { return int(int64(a.id) - int64(b.id)) })
	return writes, reads
}

// Reclaim returns when n bytes from off on may be used again: writes of peers into them have been failed, and
// readers have given back their leases, or those are over. A reader that is too late fails, and says so,
// before it uses what it read. From the moment of the call on nobody gets a new lease on the bytes, and no write into them
// begins, until Publish; descriptions that were made before, and lists of them, are refused for ever (epoch.go).
func (r *Region) Reclaim(ctx context.Context, off, n int64) error {
	if off < 0 || n < 0 || n > r.Size()-off {
		return fmt.Errorf("reclaim region %q: %w: %d bytes at %d of %d", r.name, ErrBounds, n, off, r.Size())
	}
	writes, reads := r.withdraw(off, n)
	for _, l := range writes {
		l.close(fmt.Errorf("region %q, bytes %d to %d: %w", r.name, off, off+n, ErrWithdrawn))
	}
	for _, l := range reads {
		l.revoke()
	}
	for _, l := range reads {
		if err := l.over(ctx); err != nil {
			return fmt.Errorf("region %q: wait for %s, which reads it: %w", r.name, l.holderName(), err)
		}
	}
	return nil
}

// Release takes the region back: peers can no longer reach it. It waits as Reclaim does. If that did not end in time the region may
// still be read: call it again.
func (r *Region) Release(ctx context.Context) error {
	a := r.agent
	a.mu.Lock()
	if a.regions[r.id] == r {
		delete(a.regions, r.id)
		delete(a.names, r.name)
	}
	a.mu.Unlock()
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	if err := r.Reclaim(ctx, 0, r.Size()); err != nil {
		return err
	}
	r.mu.Lock()
	already := r.closed
	r.closed = true
	r.mu.Unlock()
	if already {
		return nil
	}
	return r.store.Close()
}

// watch notes a request that writes into the region, which Reclaim then ends.
func (r *Region) watch(l *landing) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return fmt.Errorf("region %q: %w", r.name, ErrWithdrawn)
	}
	r.landed[l] = struct{}{}
	return nil
}

func (r *Region) unwatch(l *landing) {
	r.mu.Lock()
	delete(r.landed, l)
	r.mu.Unlock()
}
