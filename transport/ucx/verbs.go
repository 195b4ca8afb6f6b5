//go:build linux && (amd64 || arm64) && !static

package ucx

import (
	"fmt"
	"runtime"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/weft-fabric/weft/transport"
)

// A key is the number of a region and an offset in it.
const (
	offsetBits = 40
	maxRegions = 1<<(63-offsetBits) - 1
)

// region is own memory that peers may name.
type region struct {
	number  uint64
	b       []byte
	memh    uintptr
	named   bool
	packed  []byte
	holders map[int]bool // ranks that have its key
	kind    Memory
	freed   bool
}

// remote is what a rank knows of a region of another.
type remote struct {
	asked, known bool
	base         uint64
	n            int // of bytes; 0 if there is no such region
	rkey         uintptr
	using        int  // operations under way
	gone         bool // its owner freed it
}

// op is a posted operation.
type op struct {
	ticket transport.Ticket
	peer   *peer
	kind   uint8
	key    transport.Key
	b      []byte // memory of the caller
	was    *uint64
	value  uint64 // to add, to swap in, or the notice
	old    uint64
	s      *slot
	far    *remote
	flush  *slot // before a notice
}

const (
	opWrite = iota
	opRead
	opSwap
	opAdd
	opNotify
)

// Alloc gets memory that peers may name.
func (e *Endpoint) Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("ucx: allocate %d bytes: must not be negative", n)
	}
	if uint64(n) >= 1<<offsetBits {
		return nil, fmt.Errorf("ucx: %w: %d bytes wanted, %d at most", transport.ErrNoMemory, n, uint64(1)<<offsetBits-1)
	}
	if err := e.enter(); err != nil {
		return nil, err
	}
	defer e.leave()
	e.mu.Lock()
	defer e.unlock()
	if len(e.regions) >= maxRegions {
		return nil, fmt.Errorf("ucx: %w: %d allocations are in use, as many as can be named", transport.ErrNoMemory, len(e.regions))
	}
	m := page()
	defer m.free()
	m.set(0, 2|4) // length, flags
	m.set(16, uintptr(max(n, 1)))
	m.setU32(24, 2) // allocate
	if err := e.lib.status("ucp_mem_map", e.context, m.at(), m.at()+512); err != nil {
		return nil, fmt.Errorf("ucx: %w: %d bytes: %w", transport.ErrNoMemory, n, err)
	}
	r := &region{memh: m.pointer(512)}
	m.set(1024, 1|2) // address, length
	if err := e.lib.status("ucp_mem_query", r.memh, m.at()+1024); err != nil {
		_ = e.lib.status("ucp_mem_unmap", e.context, r.memh)
		return nil, fmt.Errorf("ucx: %w", err)
	}
	r.b = bytesAt(m.pointer(1024+8), max(n, 1))[:n]
	e.add(r)
	return r.b[:n:n], nil
}

// Register makes memory of the caller's, which may be a GPU's, one that peers may name, and names it. Peers write and read
// there; this rank's own processor does not, if it is a GPU's. Unregister takes it back.
func (e *Endpoint) Register(at uintptr, n int, kind Memory) (transport.Key, error) {
	if at == 0 || n < 1 || uint64(n) >= 1<<offsetBits {
		return 0, fmt.Errorf("ucx: register %d bytes at %#x", n, at)
	}
	if err := e.enter(); err != nil {
		return 0, err
	}
	defer e.leave()
	e.mu.Lock()
	defer e.unlock()
	m := page()
	defer m.free()
	m.set(0, 1|2|16) // address, length, kind
	m.set(8, at)
	m.set(16, uintptr(n))
	m.setU32(32, uint32(kind))
	if err := e.lib.status("ucp_mem_map", e.context, m.at(), m.at()+512); err != nil {
		return 0, fmt.Errorf("ucx: register %d bytes at %#x (does UCX know this kind of memory? ucx_info -d lists cuda_copy): %w", n, at, err)
	}
	r := &region{memh: m.pointer(512), b: bytesAt(at, n), kind: kind, named: true}
	e.add(r)
	return transport.Key(r.number << offsetBits), nil
}

// Unregister ends what Register began. The memory must stay until it returns.
func (e *Endpoint) Unregister(at uintptr) error { return e.Free(bytesAt(at, 1)) }

// add gives a region a number.
func (e *Endpoint) add(r *region) {
	r.holders = map[int]bool{}
	for used := true; used; {
		e.lastRegion = e.lastRegion%maxRegions + 1
		_, used = e.regions[e.lastRegion]
	}
	r.number = e.lastRegion
	e.regions[r.number] = r
	i := e.search(address(r.b))
	e.sorted = append(e.sorted, nil)
	copy(e.sorted[i+1:], e.sorted[i:])
	e.sorted[i] = r
}

// search finds the first region behind an address.
func (e *Endpoint) search(at uintptr) int {
	return sort.Search(len(e.sorted), func(i int) bool { return address(e.sorted[i].b) > at })
}

// find is the region that b lies in.
func (e *Endpoint) find(b []byte) *region {
	i := e.search(address(b)) - 1
	if i < 0 {
		return nil
	}
	r := e.sorted[i]
	off := address(b) - address(r.b)
	if off > uintptr(len(r.b)) || uintptr(len(b)) > uintptr(len(r.b))-off {
		return nil
	}
	return r
}

// Free gives back what Alloc gave. Peers that have its key are told; the memory goes once they have let go of it.
func (e *Endpoint) Free(b []byte) error {
	if err := e.enter(); err != nil {
		return err
	}
	defer e.leave()
	e.mu.Lock()
	defer e.unlock()
	r := e.find(b)
	if r == nil || address(r.b) != address(b) {
		return fmt.Errorf("ucx: free %d bytes that were not got from Alloc", len(b))
	}
	i := e.search(address(b)) - 1
	e.sorted = append(e.sorted[:i], e.sorted[i+1:]...)
	r.freed = true
	for rank := range r.holders {
		if p := e.peers[rank]; p.gone.Load() == nil {
			e.control(p, header{kind: kindForget, length: r.number}, nil)
		} else {
			delete(r.holders, rank)
		}
	}
	e.unmap(r)
	e.settle()
	return nil
}

// unmap ends a region that nobody holds any more.
func (e *Endpoint) unmap(r *region) {
	if r.freed && len(r.holders) == 0 {
		delete(e.regions, r.number)
		_ = e.lib.status("ucp_mem_unmap", e.context, r.memh)
	}
}

// Key names memory got from Alloc.
func (e *Endpoint) Key(b []byte) (transport.Key, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.find(b)
	if r == nil {
		return 0, fmt.Errorf("ucx: key of %d bytes that were not got from Alloc", len(b))
	}
	r.named = true
	return transport.Key(r.number<<offsetBits | uint64(address(b)-address(r.b))), nil
}

// tellKey answers a peer that asked for a region's key.
func (e *Endpoint) tellKey(p *peer, number uint64) {
	r := e.regions[number]
	h := header{kind: kindKey, length: number}
	if r == nil || !r.named || r.freed {
		e.control(p, h, nil)
		return
	}
	if r.packed == nil {
		m := page()
		defer m.free()
		if err := e.lib.status("ucp_rkey_pack", e.context, r.memh, m.at(), m.at()+8); err != nil {
			e.control(p, h, nil)
			return
		}
		// The length of the region and then UCX's key.
		packed := make([]byte, 8, 8+m.u64(8))
		*(*uint64)(unsafe.Pointer(&packed[0])) = uint64(len(r.b))
		r.packed = append(packed, bytesAt(m.pointer(0), int(m.u64(8)))...)
		e.lib.call("ucp_rkey_buffer_release", m.pointer(0))
	}
	r.holders[p.rank] = true
	h.word = uint64(address(r.b))
	e.control(p, h, r.packed)
}

// learnKey takes a key that was asked for.
func (e *Endpoint) learnKey(p *peer, number, base uint64, packed []byte) {
	f := p.far[number]
	if f == nil || f.known {
		return
	}
	f.known = true
	if len(packed) > 8 {
		m := mapped(len(packed) + 8)
		defer m.free()
		copy(m.b[8:], packed[8:])
		if err := e.lib.status("ucp_ep_rkey_unpack", p.ep, m.at()+8, m.at()); err == nil {
			f.rkey, f.base, f.n = m.pointer(0), base, int(*(*uint64)(unsafe.Pointer(&packed[0])))
		}
	}
	if f.rkey == 0 {
		f.gone = true
		delete(p.far, number) // those that wait for it have it; the next asks again
	}
	e.issue(p)
}

// dropKey forgets a region that its owner has freed, and tells it so once nothing is under way there.
func (e *Endpoint) dropKey(p *peer, number uint64) {
	f := p.far[number]
	if f != nil {
		f.gone = true
		if f.using > 0 {
			e.later(func() { e.dropKey(p, number) })
			e.drain()
			if f.using > 0 {
				e.progressing(p, f)
				return
			}
		}
		if f.rkey != 0 {
			e.lib.call("ucp_rkey_destroy", f.rkey)
			f.rkey = 0
		}
		delete(p.far, number)
	}
	e.control(p, header{kind: kindForgot, length: number}, nil)
}

// progressing leaves the end of a region to the end of its last operation.
func (e *Endpoint) progressing(p *peer, f *remote) {
	e.todo = e.todo[:len(e.todo)-1]
	for number, g := range p.far {
		if g == f {
			e.parting = append(e.parting, parting{p, number, f})
		}
	}
}

// parting is a region that its owner has freed while operations were under way.
type parting struct {
	p      *peer
	number uint64
	f      *remote
}

// forgotten is a peer's word that it has let go of a region.
func (e *Endpoint) forgotten(p *peer, number uint64) {
	if r := e.regions[number]; r != nil {
		delete(r.holders, p.rank)
		e.unmap(r)
	}
}

// own is n bytes of this rank's memory at a key.
func (e *Endpoint) own(k transport.Key, n int) ([]byte, error) {
	r := e.regions[uint64(k)>>offsetBits]
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
	return fmt.Errorf("ucx: %d bytes at offset %d of memory of %d bytes", n, off, size)
}

// begin posts an operation.
func (e *Endpoint) begin(rank int, o *op) (transport.Ticket, error) {
	if rank < 0 || rank >= e.size {
		return 0, fmt.Errorf("ucx: rank %d; ranks are 0 to %d", rank, e.size-1)
	}
	if (o.kind == opSwap || o.kind == opAdd) && o.key%8 != 0 {
		return 0, fmt.Errorf("ucx: an atomic at key %#x: words are at multiples of 8", uint64(o.key))
	}
	if err := e.enter(); err != nil {
		return 0, err
	}
	defer e.leave()
	e.mu.Lock()
	defer e.unlock()
	e.lastTicket++
	o.ticket = e.lastTicket
	if rank == e.rank {
		err := e.alone(o)
		if err != nil {
			return 0, err
		}
		e.done = append(e.done, transport.Completion{Ticket: o.ticket, Peer: rank})
		return o.ticket, nil
	}
	o.peer = e.peers[rank]
	if g := o.peer.gone.Load(); g != nil {
		return 0, g
	}
	o.peer.ops = append(o.peer.ops, o)
	e.issue(o.peer)
	e.settle()
	return o.ticket, nil
}

// alone carries out an operation of a rank on itself.
func (e *Endpoint) alone(o *op) error {
	if o.kind == opNotify {
		e.done = append(e.done, transport.Completion{Peer: e.rank, Notice: uint32(o.value)})
		return nil
	}
	b, err := e.own(o.key, len(o.b))
	if err != nil {
		return err
	}
	switch o.kind {
	case opWrite:
		copy(b, o.b)
	case opRead:
		copy(o.b, b)
	case opAdd:
		*o.was = word(b).Add(o.value) - o.value
	case opSwap:
		for {
			v := word(b).Load()
			if v != o.old || word(b).CompareAndSwap(o.old, o.value) {
				*o.was = v
				break
			}
		}
	}
	return nil
}

func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }

// issue gives UCX what a peer's queue holds, as far as it may go; the caller holds the lock, outside of UCX.
func (e *Endpoint) issue(p *peer) {
	for len(p.ops) > 0 {
		o := p.ops[0]
		if !e.start(o) {
			return
		}
		p.ops[0] = nil
		if p.ops = p.ops[1:]; len(p.ops) == 0 {
			p.ops = nil
		}
	}
}

// start begins an operation; false if it has to wait.
func (e *Endpoint) start(o *op) bool {
	p := o.peer
	if g := p.gone.Load(); g != nil {
		e.complete(o, g)
		return true
	}
	if o.kind == opNotify {
		if o.flush == nil && p.unflushed {
			p.unflushed = false
			o.flush = e.slot(nil)
			o.flush.begin(e.lib.flush, p.ep, o.flush.params())
			e.flushing = append(e.flushing, p)
		}
		if o.flush != nil {
			if !o.flush.ended() {
				return false
			}
			e.put(o.flush)
			o.flush = nil
		}
		o.s = e.post(p, header{kind: kindNotice, length: o.value}, nil)
		e.running = append(e.running, o)
		return true
	}
	number, off := uint64(o.key)>>offsetBits, int(uint64(o.key)&(1<<offsetBits-1))
	if o.far == nil {
		f := p.far[number]
		if f == nil {
			f = &remote{}
			p.far[number] = f
		}
		o.far = f
	}
	f := o.far
	if !f.known && !f.gone {
		if !f.asked {
			f.asked = true
			e.control(p, header{kind: kindAsk, length: number}, nil)
		}
		return false
	}
	switch {
	case f.gone || f.rkey == 0:
		e.complete(o, noRegion(o.key))
		return true
	case off > f.n || len(o.b) > f.n-off:
		e.complete(o, beyond(len(o.b), off, f.n))
		return true
	case len(o.b) == 0:
		e.complete(o, nil)
		return true
	}
	at := uintptr(f.base) + uintptr(off)
	s := e.slot(o.b)
	o.s = s
	f.using++
	if p.unflushed && o.kind == opWrite {
		purego.SyscallN(e.lib.fence, e.worker) // writes are seen in the order in which they were posted
	}
	switch o.kind {
	case opWrite:
		p.unflushed = true
		s.begin(e.lib.put, p.ep, address(o.b), uintptr(len(o.b)), at, f.rkey, s.params())
	case opRead:
		s.begin(e.lib.get, p.ep, address(o.b), uintptr(len(o.b)), at, f.rkey, s.params())
	default:
		s.param.mask |= attrDatatype | attrReply
		s.param.datatype, s.param.reply = contiguous8, uintptr(unsafe.Pointer(&s.reply))
		code := uintptr(0) // add
		s.operand = o.value
		if o.kind == opSwap {
			code = 2 // compare and swap
			s.operand, s.reply = o.old, o.value
		}
		p.unflushed = true
		s.begin(e.lib.atomic, p.ep, code, uintptr(unsafe.Pointer(&s.operand)), 1, at, f.rkey, s.params())
	}
	e.running = append(e.running, o)
	return true
}

// complete is the end of an operation.
func (e *Endpoint) complete(o *op, err error) {
	c := transport.Completion{Ticket: o.ticket, Err: err}
	if o.peer != nil {
		c.Peer = o.peer.rank
	}
	e.done = append(e.done, c)
	o.b, o.was = nil, nil
}

// drain ends operations that UCX is done with, and goes on with those that waited.
func (e *Endpoint) drain() {
	if len(e.running) > 0 {
		rest := e.running[:0]
		for _, o := range e.running {
			if !o.s.ended() {
				rest = append(rest, o)
				continue
			}
			var err error
			if status := o.s.status.Load(); status < 0 {
				if o.peer.gone.Load() == nil {
					e.lost(o.peer, "UCX: "+e.lib.words(status))
				}
				err = o.peer.gone.Load()
			} else if o.was != nil {
				*o.was = o.s.reply
			}
			if o.far != nil {
				o.far.using--
			}
			e.put(o.s)
			e.complete(o, err)
		}
		clear(e.running[len(rest):])
		e.running = rest
	}
	if len(e.flushing) > 0 {
		list := e.flushing
		e.flushing = nil
		for _, p := range list {
			if len(p.ops) > 0 && p.ops[0].flush != nil && !p.ops[0].flush.ended() {
				e.flushing = append(e.flushing, p)
				continue
			}
			e.issue(p)
		}
	}
	if len(e.parting) > 0 {
		list := e.parting
		e.parting = nil
		for _, x := range list {
			if x.f.using > 0 {
				e.parting = append(e.parting, x)
			} else {
				e.dropKey(x.p, x.number)
			}
		}
	}
}

// Write posts a write.
func (e *Endpoint) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return e.begin(to, &op{kind: opWrite, key: dst, b: src})
}

// Read posts a read.
func (e *Endpoint) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return e.begin(from, &op{kind: opRead, key: src, b: dst})
}

var eight [8]byte // as long as a word

// CompareSwap posts one.
func (e *Endpoint) CompareSwap(to int, at transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return e.begin(to, &op{kind: opSwap, key: at, b: eight[:], old: old, value: new, was: was})
}

// FetchAdd posts one.
func (e *Endpoint) FetchAdd(to int, at transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return e.begin(to, &op{kind: opAdd, key: at, b: eight[:], value: add, was: was})
}

// Notify leaves a number with a peer.
func (e *Endpoint) Notify(to int, value uint32) (transport.Ticket, error) {
	return e.begin(to, &op{kind: opNotify, value: uint64(value)})
}

// Poll lets UCX work and appends what has ended.
func (e *Endpoint) Poll(done []transport.Completion) []transport.Completion {
	if e.enter() != nil {
		return done
	}
	defer e.leave()
	e.mu.Lock()
	moved := e.progress(1)
	e.drain()
	done = append(done, e.done...)
	e.done = e.done[:0]
	e.settle()
	e.unlock()
	if !moved && e.crowded {
		runtime.Gosched()
	}
	return done
}

var _ transport.Verbs = (*Endpoint)(nil)
