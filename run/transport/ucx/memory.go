//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"sort"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
)

// A key is the number of a region and an offset in it.
const (
	offsetBits = 40
	maxRegions = 1<<(63-offsetBits) - 1
)

// regions are this rank's memory that peers may name.
type regions struct {
	*waiter
	numbered map[uint64]*region
	sorted   []*region // by address
	last     uint64    // number that was given
}

// region is own memory that peers may name.
type region struct {
	number  uint64
	b       []byte
	memh    uintptr
	named   bool
	packed  []byte
	holders map[int]bool // ranks that have its key
	kind    Memory
	given   bool // by the caller, and not got from Alloc
	freed   bool
}

// Alloc gets memory that peers may name.
func (rs *regions) Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("ucx: allocate %d bytes: must not be negative", n)
	}
	if uint64(n) >= 1<<offsetBits {
		return nil, fmt.Errorf("ucx: %w: %d bytes wanted, %d at most", transport.ErrNoMemory, n, uint64(1)<<offsetBits-1)
	}
	if err := rs.enter(); err != nil {
		return nil, err
	}
	defer rs.leave()
	rs.mu.Lock()
	defer rs.unlock()
	if err := rs.full(); err != nil {
		return nil, err
	}
	m := page()
	defer m.free()
	m.set(0, 2|4) // length, flags
	m.set(16, uintptr(max(n, 1)))
	m.setU32(24, 2) // allocate
	if err := rs.lib.status("ucp_mem_map", rs.context, m.at(), m.at()+512); err != nil {
		return nil, fmt.Errorf("ucx: %w: %d bytes: %w", transport.ErrNoMemory, n, err)
	}
	r := &region{memh: m.pointer(512)}
	m.set(1024, 1|2) // address, length
	if err := rs.lib.status("ucp_mem_query", r.memh, m.at()+1024); err != nil {
		_ = rs.lib.status("ucp_mem_unmap", rs.context, r.memh)
		return nil, fmt.Errorf("ucx: %w", err)
	}
	r.b = bytesAt(m.pointer(1024+8), max(n, 1))[:n]
	rs.add(r)
	return r.b[:n:n], nil
}

// full is an error if there are as many regions as can be named.
func (rs *regions) full() error {
	if len(rs.numbered) < maxRegions {
		return nil
	}
	return fmt.Errorf("ucx: %w: %d allocations are in use, as many as can be named", transport.ErrNoMemory, len(rs.numbered))
}

// register makes memory of the caller's, which may be a GPU's, one that peers may name, and names it. Peers write and read
// there; this rank's own processor does not, if it is a GPU's. Unregister takes it back.
func (rs *regions) register(at uintptr, n int, kind Memory) (transport.Key, error) {
	if at == 0 || n < 1 || uint64(n) >= 1<<offsetBits {
		return 0, fmt.Errorf("ucx: register %d bytes at %#x", n, at)
	}
	if err := rs.enter(); err != nil {
		return 0, err
	}
	defer rs.leave()
	rs.mu.Lock()
	defer rs.unlock()
	if err := rs.full(); err != nil {
		return 0, err
	}
	m := page()
	defer m.free()
	m.set(0, 1|2|16) // address, length, kind
	m.set(8, at)
	m.set(16, uintptr(n))
	m.setU32(32, uint32(kind))
	if err := rs.lib.status("ucp_mem_map", rs.context, m.at(), m.at()+512); err != nil {
		return 0, fmt.Errorf("ucx: register %d bytes at %#x (does UCX know this kind of memory? ucx_info -d lists cuda_copy): %w", n, at, err)
	}
	r := &region{memh: m.pointer(512), b: bytesAt(at, n), kind: kind, named: true, given: true}
	rs.add(r)
	return transport.Key(r.number << offsetBits), nil
}

// add gives a region a number.
func (rs *regions) add(r *region) {
	r.holders = map[int]bool{}
	for used := true; used; {
		rs.last = rs.last%maxRegions + 1
		_, used = rs.numbered[rs.last]
	}
	r.number = rs.last
	rs.numbered[r.number] = r
	i := rs.search(address(r.b))
	rs.sorted = append(rs.sorted, nil)
	copy(rs.sorted[i+1:], rs.sorted[i:])
	rs.sorted[i] = r
}

// search finds the first region behind an address.
func (rs *regions) search(at uintptr) int {
	return sort.Search(len(rs.sorted), func(i int) bool { return address(rs.sorted[i].b) > at })
}

// find is the region that b lies in, the one that begins last if there are several: part of a region may be registered once more.
func (rs *regions) find(b []byte) *region {
	for i := rs.search(address(b)) - 1; i >= 0; i-- {
		r := rs.sorted[i]
		off := address(b) - address(r.b)
		if off <= uintptr(len(r.b)) && uintptr(len(b)) <= uintptr(len(r.b))-off {
			return r
		}
	}
	return nil
}

// Free gives back what Alloc gave.
func (rs *regions) Free(b []byte) error {
	if err := rs.enter(); err != nil {
		return err
	}
	defer rs.leave()
	if !rs.release(address(b), false) {
		return fmt.Errorf("ucx: free %d bytes that were not got from Alloc", len(b))
	}
	return nil
}

// unregister ends what register began.
func (rs *regions) unregister(at uintptr) error {
	if err := rs.enter(); err != nil {
		return err
	}
	defer rs.leave()
	if !rs.release(at, true) {
		return fmt.Errorf("ucx: unregister %#x, where nothing is registered", at)
	}
	return nil
}

// release gives back the region that begins at an address. Peers that have its key are told; the memory goes once they have let go
// of it. False if there is no such region.
func (rs *regions) release(at uintptr, given bool) bool {
	rs.mu.Lock()
	defer rs.unlock()
	i := rs.search(at) - 1
	for i >= 0 && address(rs.sorted[i].b) == at && rs.sorted[i].given != given {
		i--
	}
	if i < 0 || address(rs.sorted[i].b) != at {
		return false
	}
	r := rs.sorted[i]
	rs.sorted = append(rs.sorted[:i], rs.sorted[i+1:]...)
	r.freed = true
	for rank := range r.holders {
		if p := rs.peers[rank]; p.gone.Load() == nil {
			rs.control(p, header{kind: kindForget, length: r.number}, nil)
		} else {
			delete(r.holders, rank)
		}
	}
	rs.unmap(r)
	rs.settle()
	return true
}

// unmap ends a region that nobody holds any more.
func (rs *regions) unmap(r *region) {
	if r.freed && len(r.holders) == 0 {
		delete(rs.numbered, r.number)
		_ = rs.lib.status("ucp_mem_unmap", rs.context, r.memh)
	}
}

// Key names memory got from Alloc.
func (rs *regions) Key(b []byte) (transport.Key, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.find(b)
	if r == nil {
		return 0, fmt.Errorf("ucx: key of %d bytes that were not got from Alloc", len(b))
	}
	r.named = true
	return transport.Key(r.number<<offsetBits | uint64(address(b)-address(r.b))), nil
}

// tellKey answers a peer that asked for a region's key. One that is gone since holds nothing, and could never let go of it.
func (rs *regions) tellKey(p *peer, number uint64) {
	if p.gone.Load() != nil {
		return
	}
	r := rs.numbered[number]
	h := header{kind: kindKey, length: number}
	if r == nil || !r.named || r.freed {
		rs.control(p, h, nil)
		return
	}
	if r.packed == nil {
		m := page()
		defer m.free()
		if err := rs.lib.status("ucp_rkey_pack", rs.context, r.memh, m.at(), m.at()+8); err != nil {
			rs.control(p, h, nil)
			return
		}
		// The length of the region and then UCX's key.
		packed := make([]byte, 8, 8+m.u64(8))
		*(*uint64)(unsafe.Pointer(&packed[0])) = uint64(len(r.b))
		r.packed = append(packed, bytesAt(m.pointer(0), int(m.u64(8)))...)
		rs.lib.call("ucp_rkey_buffer_release", m.pointer(0))
	}
	r.holders[p.rank] = true
	h.word = uint64(address(r.b))
	rs.control(p, h, r.packed)
}

// forgotten is a peer's word that it has let go of a region.
func (rs *regions) forgotten(p *peer, number uint64) {
	if r := rs.numbered[number]; r != nil {
		delete(r.holders, p.rank)
		rs.unmap(r)
	}
}

// own is n bytes of this rank's memory at a key.
func (rs *regions) own(k transport.Key, n int) ([]byte, error) {
	r := rs.numbered[uint64(k)>>offsetBits]
	if r == nil || !r.named || r.freed {
		return nil, noRegion(k)
	}
	if r.kind != HostMemory {
		return nil, fmt.Errorf("ucx: key %#x is memory of a GPU of this rank: copy there with the GPU's own calls", uint64(k))
	}
	off := int(uint64(k) & (1<<offsetBits - 1))
	if off > len(r.b) || n > len(r.b)-off {
		return nil, beyond(n, off, len(r.b))
	}
	return r.b[off : off+n], nil
}

func noRegion(k transport.Key) error {
	return fmt.Errorf("ucx: key %#x: no rank gave it, or its memory is free again", uint64(k))
}

func beyond(n, off, size int) error {
	return fmt.Errorf("ucx: %d bytes at offset %d do not fit %d bytes of memory", n, off, size)
}

// letGo lets go of what a rank that is gone held.
func (rs *regions) letGo(p *peer) {
	for _, r := range rs.numbered {
		if r.holders[p.rank] {
			delete(r.holders, p.rank)
			rs.unmap(r)
		}
	}
}

// unmapAll ends all regions.
func (rs *regions) unmapAll() {
	for _, r := range rs.numbered {
		_ = rs.lib.status("ucp_mem_unmap", rs.context, r.memh)
	}
	clear(rs.numbered)
	rs.sorted = nil
}
