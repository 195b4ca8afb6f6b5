package world

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
)

// memory is what a rank got from Alloc, by number.
type memory struct {
	blocks map[uint64][]byte
	keys   map[uint64]bool // the numbers that have a key
	next   uint64
}

const offsetBits = 40

// find is the block that holds b, and where; the caller holds mu.
func (m *memory) find(b []byte) (id uint64, off uintptr, ok bool) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for id, x := range m.blocks {
		from := uintptr(unsafe.Pointer(unsafe.SliceData(x)))
		if at >= from && at+uintptr(len(b)) <= from+uintptr(len(x)) {
			return id, at - from, true
		}
	}
	return 0, 0, false
}

// at is n bytes at a key; the caller holds mu.
func (m *memory) at(k transport.Key, n int) ([]byte, error) {
	id, off := uint64(k)>>offsetBits, uint64(k)&(1<<offsetBits-1)
	b := m.blocks[id]
	if !m.keys[id] || off > uint64(len(b)) || uint64(n) > uint64(len(b))-off {
		return nil, fmt.Errorf("world: %d bytes at key %#x, which no rank gave or which has less", n, uint64(k))
	}
	return b[off : off+uint64(n)], nil
}

// verbs are a rank's one-sided operations.
type verbs struct {
	next    transport.Ticket
	done    []transport.Completion
	pending map[transport.Ticket]int // by peer
}

func (v *verbs) begin(peer int) transport.Ticket {
	v.next++
	if v.pending == nil {
		v.pending = map[transport.Ticket]int{}
	}
	v.pending[v.next] = peer
	return v.next
}

// end completes an operation, unless its peer has been given up since it was posted.
func (v *verbs) end(t transport.Ticket, err error, then func()) {
	peer, open := v.pending[t]
	if !open {
		return
	}
	if then != nil {
		then()
	}
	delete(v.pending, t)
	v.done = append(v.done, transport.Completion{Ticket: t, Peer: peer, Err: err})
}

// Alloc gets memory.
func (e *Endpoint) Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("world: allocate %d bytes: must not be negative", n)
	}
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	b := make([]byte, n+128)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63)
	b = b[off : off+n : off+n]
	e.mine.next++
	e.mine.blocks[e.mine.next] = b
	return b, nil
}

// Free gives it back.
func (e *Endpoint) Free(b []byte) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	id, off, ok := e.mine.find(b)
	if !ok || off != 0 {
		return fmt.Errorf("world: free %d bytes that were not got from Alloc", len(b))
	}
	delete(e.mine.blocks, id)
	delete(e.mine.keys, id)
	return nil
}

// Key names memory.
func (e *Endpoint) Key(b []byte) (transport.Key, error) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	id, off, ok := e.mine.find(b)
	if !ok {
		return 0, fmt.Errorf("world: key of %d bytes that were not got from Alloc", len(b))
	}
	if e.mine.keys == nil {
		e.mine.keys = map[uint64]bool{}
	}
	e.mine.keys[id] = true
	return transport.Key(id<<offsetBits | uint64(off)), nil
}

// post sends an operation on n bytes of a rank's memory. do carries it out there
// and gives what is done here when the answer comes.
func (e *Endpoint) post(to int, at transport.Key, n int, do func(b []byte) func()) (transport.Ticket, error) {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := e.usable(); err != nil {
		return 0, err
	}
	if to < 0 || to >= len(w.eps) {
		return 0, fmt.Errorf("world: rank %d; ranks are 0 to %d", to, len(w.eps)-1)
	}
	v := &e.verbs
	t := v.begin(to)
	deliver := func(w *World) {
		peer := w.eps[to]
		if w.dead[to] || peer.closed {
			return
		}
		var then func()
		b, err := []byte(nil), error(nil)
		if n >= 0 {
			b, err = peer.mine.at(at, n)
		}
		if err == nil {
			then = do(b)
		}
		if to == e.rank {
			v.end(t, err, then)
			return
		}
		w.post(lineKey{from: to, to: e.rank, channel: -2}, func(*World) { v.end(t, err, then) }, nil)
	}
	if to == e.rank {
		deliver(w)
		return t, nil
	}
	w.post(lineKey{from: e.rank, to: to, channel: -1}, deliver, nil)
	return t, nil
}

func word(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// copyWords copies a word at once where it can, as owners look at their memory meanwhile with sync/atomic.
func copyWords(dst, src []byte) {
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(dst))) | uintptr(unsafe.Pointer(unsafe.SliceData(src))); at%8 == 0 {
		for ; len(src) >= 8; dst, src = dst[8:], src[8:] {
			word(dst).Store(word(src).Load())
		}
	}
	copy(dst, src)
}

// Write stores src in a rank's memory.
func (e *Endpoint) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return e.post(to, dst, len(src), func(b []byte) func() { copyWords(b, src); return nil })
}

// Read loads from a rank's memory.
func (e *Endpoint) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return e.post(from, src, len(dst), func(b []byte) func() {
		was := make([]byte, len(b))
		copyWords(was, b)
		return func() { copy(dst, was) }
	})
}

func aligned(at transport.Key) error {
	if at%8 != 0 {
		return fmt.Errorf("world: atomic operation at %#x: must be a multiple of 8", uint64(at))
	}
	return nil
}

// CompareSwap stores new where old is.
func (e *Endpoint) CompareSwap(to int, at transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	if err := aligned(at); err != nil {
		return 0, err
	}
	return e.post(to, at, 8, func(b []byte) func() {
		x := word(b).Load()
		if x == old {
			word(b).Store(new)
		}
		return func() { *was = x }
	})
}

// FetchAdd adds to a word.
func (e *Endpoint) FetchAdd(to int, at transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	if err := aligned(at); err != nil {
		return 0, err
	}
	return e.post(to, at, 8, func(b []byte) func() {
		x := word(b).Add(add) - add
		return func() { *was = x }
	})
}

// Notify leaves a number with a rank.
func (e *Endpoint) Notify(to int, value uint32) (transport.Ticket, error) {
	return e.post(to, 0, -1, func([]byte) func() {
		if to >= 0 {
			v := &e.w.eps[to].verbs
			v.done = append(v.done, transport.Completion{Peer: e.rank, Notice: value})
		}
		return nil
	})
}

// give ends what was posted to a rank that is gone, in order.
func (v *verbs) give(to int, err error) {
	var list []transport.Ticket
	for t, peer := range v.pending {
		if peer == to {
			list = append(list, t)
		}
	}
	slices.Sort(list)
	for _, t := range list {
		delete(v.pending, t)
		v.done = append(v.done, transport.Completion{Ticket: t, Peer: to, Err: err})
	}
}

// Poll gives what is complete, and returns at once: callers may hold locks of their own.
func (e *Endpoint) Poll(done []transport.Completion) []transport.Completion {
	w, v := e.w, &e.verbs
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.usable() != nil {
		return done
	}
	for to := range w.eps {
		if w.missing(e.rank, to) != nil {
			v.give(to, w.missing(e.rank, to))
		}
	}
	done = append(done, v.done...)
	v.done = v.done[:0]
	return done
}

var _ transport.Endpoint = (*Endpoint)(nil)
