//go:build linux

package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
)

// A key is the number of a piece of memory in the upper bits, from 1, and an
// offset in the lower ones, so that adding to a key names a part of it.
const (
	offsetBits = 40
	maxRegion  = 1 << offsetBits
)

// region is memory that peers may name. It goes back to the system when it is
// freed and no operation of a peer is under way in it.
type region struct {
	b     []byte
	named atomic.Bool // there is a key for it
	refs  atomic.Int32
}

func (r *region) release() {
	if r.refs.Add(-1) == 0 {
		_ = unix.Munmap(r.b)
	}
}

// regions are the registered memory of a rank.
type regions struct {
	mu   sync.RWMutex
	byID map[uint64]*region
	next uint64
}

// Alloc gets memory that peers may name.
func (v *Verbs) Alloc(n int) ([]byte, error) {
	if n < 0 || n >= maxRegion {
		return nil, fmt.Errorf("%w: %d bytes, at most %d can be named", transport.ErrNoMemory, n, maxRegion-1)
	}
	if v.net.Closed() {
		return nil, transport.ErrClosed
	}
	b, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%w: %d bytes: %w", transport.ErrNoMemory, n, err)
	}
	r := &region{b: b}
	r.refs.Store(1)
	m := &v.regions
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	m.byID[m.next] = r
	return b[:n], nil
}

// find is the region that b lies in, and where; the caller holds mu.
func (m *regions) find(b []byte) (id uint64, off int, err error) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for id, r := range m.byID {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(r.b)))
		if at >= base && at+uintptr(len(b)) <= base+uintptr(len(r.b)) && cap(b) > 0 {
			return id, int(at - base), nil
		}
	}
	return 0, 0, fmt.Errorf("%d bytes at %#x were not got from Alloc of this endpoint", len(b), at)
}

// Free gives memory back.
func (v *Verbs) Free(b []byte) error {
	m := &v.regions
	m.mu.Lock()
	defer m.mu.Unlock()
	id, off, err := m.find(b[:cap(b)])
	if err != nil {
		return err
	}
	if off != 0 {
		return fmt.Errorf("memory at offset %d of what Alloc gave cannot be freed alone", off)
	}
	m.byID[id].release()
	delete(m.byID, id)
	return nil
}

// Key names memory got from Alloc, or a part of it.
func (v *Verbs) Key(b []byte) (transport.Key, error) {
	m := &v.regions
	m.mu.RLock()
	defer m.mu.RUnlock()
	id, off, err := m.find(b)
	if err == nil {
		m.byID[id].named.Store(true)
	}
	return transport.Key(id<<offsetBits | uint64(off)), err
}

// at is n bytes of own memory by their key. The region is the caller's to
// release; it is nil if there is no such memory.
func (v *Verbs) at(k transport.Key, n uint64) (*region, []byte) {
	m := &v.regions
	m.mu.RLock()
	defer m.mu.RUnlock()
	r, off := m.byID[uint64(k)>>offsetBits], uint64(k)&(maxRegion-1)
	if r == nil || !r.named.Load() || off > uint64(len(r.b)) || n > uint64(len(r.b))-off {
		return nil, nil
	}
	r.refs.Add(1)
	return r, r.b[off : off+n]
}

// Release gives all memory back at the end.
func (v *Verbs) Release() {
	m := &v.regions
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, r := range m.byID {
		r.release()
		delete(m.byID, id)
	}
}
