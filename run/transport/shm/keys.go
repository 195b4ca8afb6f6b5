//go:build linux

package shm

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
)

// A key is the number of memory that its owner named in the upper bits, from 1, and
// an offset in the lower ones. Where the memory lies is in a table in its owner's
// arena, so that a key that was never given, or whose memory is free again, is an
// error and does not lead to other memory.
const (
	offsetBits = 40
	maxNumber  = 1<<(64-offsetBits) - 1
	names      = 2048 // pieces of memory that can be named at once; parts of one are one
	tableSize  = names * 32
)

// name is an entry of the table: number n is in entry n % names.
type name struct {
	number atomic.Uint64 // 0 if it is free
	start  atomic.Uint64
	end    atomic.Uint64
	users  atomic.Int64 // ranks that read or write the memory just now
}

func (a *arena) names(mem []byte) *[names]name {
	return (*[names]name)(unsafe.Pointer(&mem[a.table]))
}

// key names memory of the arena.
func (a *arena) key(b []byte) (transport.Key, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return 0, transport.ErrClosed
	}
	off, ok := a.place(b)
	if !ok {
		return 0, fmt.Errorf("shm: key of %d bytes that were not got from Alloc, or of which a failed call moved a part", len(b))
	}
	at, _ := a.find(b)
	start, ok := a.x.holder(span{at, at + uint64(len(b))})
	if !ok {
		return 0, fmt.Errorf("shm: key of %d bytes that were not got from Alloc, or are free again", len(b))
	}
	for _, s := range a.pagesOf(span{start, start + a.x.used[start]}) {
		if off >= s.start && off+uint64(len(b)) <= s.end {
			n, err := a.number(s.start, s.end)
			return transport.Key(n<<offsetBits | (off - s.start)), err
		}
	}
	return 0, fmt.Errorf("shm: key of %d bytes of which a failed call moved a part", len(b))
}

// number gives a span its number. The caller holds mu.
func (a *arena) number(start, end uint64) (uint64, error) {
	if n := a.named[start]; n != 0 {
		return n, nil
	}
	if end-start > 1<<offsetBits {
		return 0, fmt.Errorf("shm: a key can name at most %[2]d bytes of memory, not %[1]d", end-start, uint64(1)<<offsetBits)
	}
	if len(a.named) == names {
		return 0, fmt.Errorf("shm: %w: %d pieces of memory have keys, as many as can be named; take parts of one", transport.ErrNoMemory, names)
	}
	table := a.names(a.mem)
	for {
		a.last = a.last%maxNumber + 1
		e := &table[a.last%names]
		if e.number.Load() != 0 || e.users.Load() != 0 {
			continue
		}
		e.start.Store(start)
		e.end.Store(end)
		e.number.Store(a.last)
		a.named[start] = a.last
		return a.last, nil
	}
}

// retireName makes the keys of an allocation ones that were never given. Whoever uses one just now is noted: the memory must not be
// used again before. The caller holds mu.
func (a *arena) retireName(start uint64, h *held) {
	if len(a.named) == 0 {
		return
	}
	for _, s := range a.pagesOf(span{start, start + a.x.used[start]}) {
		n := a.named[s.start]
		if n == 0 {
			continue
		}
		e := &a.names(a.mem)[n%names]
		e.number.Store(0)
		delete(a.named, s.start)
		if e.users.Load() != 0 {
			h.users = append(h.users, &e.users)
		}
	}
}

var errNoKey = errors.New("no rank gave this key, or its memory is free again")

// Named is n bytes of a rank's memory by their key. The caller says when it is done with them (Done): a rank that is stopped meanwhile
// keeps its peer from using the memory for something else. One that is killed there does so for as long as the peer lives.
func (e *Endpoint) Named(rank int, k transport.Key, n int) ([]byte, error) {
	if rank < 0 || rank >= e.size {
		return nil, e.nowhere(rank, 0, n)
	}
	number, off := uint64(k)>>offsetBits, uint64(k)&(1<<offsetBits-1)
	x := &e.arena.names(e.maps[rank])[number%names]
	x.users.Add(1)
	start, end := x.start.Load(), x.end.Load()
	b, err := []byte(nil), error(nil)
	switch {
	case number == 0 || x.number.Load() != number:
		err = fmt.Errorf("shm: key %#x of rank %d: %w", uint64(k), rank, errNoKey)
	case off > end-start || uint64(n) > end-start-off:
		err = fmt.Errorf("shm: key %#x of rank %d: %d bytes at offset %d do not fit %d bytes of memory", uint64(k), rank, n, off, end-start)
	default:
		b, err = e.At(rank, transport.Handle(start+off), n)
	}
	if err != nil {
		x.users.Add(-1)
	}
	return b, err
}

// Done ends what Named began. It is an error if the memory was freed meanwhile: what was read may be something else.
func (e *Endpoint) Done(rank int, k transport.Key) error {
	number := uint64(k) >> offsetBits
	x := &e.arena.names(e.maps[rank])[number%names]
	x.users.Add(-1) // an instruction that writes holds back what follows until all reads are done
	if x.number.Load() != number {
		return fmt.Errorf("shm: key %#x of rank %d: freed while it was used: %w", uint64(k), rank, errNoKey)
	}
	return nil
}
