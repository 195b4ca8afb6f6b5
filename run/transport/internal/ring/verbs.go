package ring

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// The verbs are carried out as they are posted: memory of peers is stored to and
// loaded from like any other. Only a notice may have to wait, for room with its
// receiver; it then goes out with a later Poll or Notify, and its ticket is
// complete when it has.
type verbs struct {
	h     *Hub
	mu    sync.Mutex
	down  bool
	next  transport.Ticket
	done  []transport.Completion
	later [][]note // by rank
	count int      // in later
	out   []*noteRing
	in    []*noteRing
	marks [][]atomic.Uint64 // by rank: whose notices wait there
	fence atomic.Uint64
}

// note is a notice that waits for room.
type note struct {
	ticket transport.Ticket
	value  uint32
}

func (v *verbs) init(h *Hub) {
	v.h = h
	v.later = make([][]note, h.size)
	for r := range h.size {
		v.out = append(v.out, notesFrom(h.s.Head(r), h.rank))
		v.in = append(v.in, notesFrom(h.s.Head(h.rank), r))
		v.marks = append(v.marks, bitsOf(h.s.Head(r), h.size))
	}
}

func (v *verbs) close() {
	v.mu.Lock()
	v.down = true
	v.mu.Unlock()
}

// Key names memory got from Alloc.
func (v *verbs) Key(b []byte) (transport.Key, error) { return v.h.s.Name(b) }

// post counts an operation on n bytes of a rank's memory, carries it out and
// completes it. A rank that is gone completes it with an error.
func (v *verbs) post(rank int, at transport.Key, n int, do func(b []byte)) (transport.Ticket, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.down {
		return 0, transport.ErrClosed
	}
	if rank < 0 || rank >= v.h.size {
		return 0, fmt.Errorf("rank %d; ranks are 0 to %d", rank, v.h.size-1)
	}
	err := v.h.s.Alive(rank)
	if err == nil {
		b, bad := v.h.s.Named(rank, at, n)
		if bad != nil {
			return 0, bad
		}
		do(b)
		if bad := v.h.s.Done(rank, at); bad != nil {
			return 0, bad
		}
	}
	return v.complete(rank, err), nil
}

func (v *verbs) complete(rank int, err error) transport.Ticket {
	v.next++
	v.done = append(v.done, transport.Completion{Ticket: v.next, Peer: rank, Err: err})
	return v.next
}

// word is b as an atomic number, if it is one that may be.
func word(b []byte) (*atomic.Uint64, bool) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	return (*atomic.Uint64)(p), len(b) == 8 && uintptr(p)%8 == 0
}

func load(b []byte) uint64 { return *(*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }

// short is up to how many bytes Write stores words at once: more than a notice on a board.
const short = 512

// Write stores src in a rank's memory. Short memory of words at a multiple of eight is
// stored a word at once, for owners that look at it with sync/atomic.
func (v *verbs) Write(to int, dst transport.Key, src []byte) (transport.Ticket, error) {
	return v.post(to, dst, len(src), func(b []byte) {
		if w, ok := word(b); ok {
			var x [8]byte
			copy(x[:], src)
			w.Store(load(x[:]))
			return
		}
		if _, ok := word(b[:min(len(b), 8)]); ok && len(b)%8 == 0 && len(b) <= short {
			wait.ReleaseAll(b, src)
		} else {
			reduce.Copy(b, src)
		}
		v.fence.Add(1) // whatever is stored next is not seen before
	})
}

// Read loads from a rank's memory. Short memory of words at a multiple of eight is loaded a word at once, for owners that
// store to it with sync/atomic, as they do to boards.
func (v *verbs) Read(from int, dst []byte, src transport.Key) (transport.Ticket, error) {
	return v.post(from, src, len(dst), func(b []byte) {
		if _, ok := word(b[:min(len(b), 8)]); !ok || len(b)%8 != 0 || len(b) > transport.Snapshot {
			reduce.Copy(dst, b)
			return
		}
		for ; len(b) > 0; dst, b = dst[8:], b[8:] {
			w, _ := word(b[:8])
			x := w.Load()
			copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(&x)), 8))
		}
	})
}

// atomically posts an operation on a word.
func (v *verbs) atomically(to int, at transport.Key, do func(w *atomic.Uint64)) (transport.Ticket, error) {
	if at%8 != 0 {
		return 0, fmt.Errorf("atomic operation at %#x: must be a multiple of 8", at)
	}
	return v.post(to, at, 8, func(b []byte) {
		w, _ := word(b)
		do(w)
	})
}

// CompareSwap stores new where old is, and says what was there.
func (v *verbs) CompareSwap(to int, at transport.Key, old, new uint64, was *uint64) (transport.Ticket, error) {
	return v.atomically(to, at, func(w *atomic.Uint64) {
		for {
			x := w.Load()
			if x != old || w.CompareAndSwap(old, new) {
				*was = x
				return
			}
		}
	})
}

// FetchAdd adds to a word and says what it was before.
func (v *verbs) FetchAdd(to int, at transport.Key, add uint64, was *uint64) (transport.Ticket, error) {
	return v.atomically(to, at, func(w *atomic.Uint64) { *was = w.Add(add) - add })
}

// Notify leaves a number with a rank.
func (v *verbs) Notify(to int, value uint32) (transport.Ticket, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.down {
		return 0, transport.ErrClosed
	}
	if to < 0 || to >= v.h.size {
		return 0, fmt.Errorf("notify rank %d; ranks are 0 to %d", to, v.h.size-1)
	}
	if err := v.h.s.Alive(to); err != nil {
		return v.complete(to, err), nil
	}
	v.flush(to)
	if len(v.later[to]) == 0 && v.leave(to, value) {
		return v.complete(to, nil), nil
	}
	v.next++
	v.later[to] = append(v.later[to], note{v.next, value})
	v.count++
	return v.next, nil
}

// leave puts a number into a rank's ring, if there is room.
func (v *verbs) leave(to int, value uint32) bool {
	r := v.out[to]
	k := r.posted.Load()
	if k-r.taken.Load() == notes {
		return false
	}
	r.numbers[k%notes] = value
	r.posted.Store(k + 1)
	v.marks[to][v.h.rank/64].Or(1 << (v.h.rank % 64))
	v.h.count.notices.Add(1)
	return true
}

// flush leaves notices that waited for room with a rank.
func (v *verbs) flush(to int) {
	q := v.later[to]
	if len(q) == 0 {
		return
	}
	gone := v.h.s.Alive(to)
	n := 0
	for n < len(q) && (gone != nil || v.leave(to, q[n].value)) {
		v.done = append(v.done, transport.Completion{Ticket: q[n].ticket, Peer: to, Err: gone})
		n++
	}
	v.count -= n
	v.later[to] = append(q[:0], q[n:]...)
}

// Poll appends what is complete, and the notices that have come.
func (v *verbs) Poll(done []transport.Completion) []transport.Completion {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.down {
		return done
	}
	if v.count > 0 {
		for r := range v.later {
			v.flush(r)
		}
	}
	done = append(done, v.done...)
	v.done = v.done[:0]
	for i := range v.marks[v.h.rank] {
		m := &v.marks[v.h.rank][i]
		if m.Load() == 0 {
			continue
		}
		// The bits go first: what is left from now on sets them again.
		for set := m.Swap(0); set != 0; set &= set - 1 {
			r := 64*i + bits.TrailingZeros64(set)
			if r >= len(v.in) {
				continue
			}
			ring := v.in[r]
			k := ring.taken.Load()
			for end := ring.posted.Load(); k < end; k++ {
				done = append(done, transport.Completion{Peer: r, Notice: ring.numbers[k%notes]})
			}
			ring.taken.Store(k)
		}
	}
	return done
}
