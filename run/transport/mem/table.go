package mem

import (
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/weft-fabric/weft/run/transport"
)

// table says where a rank's memory lies: a handle is the number of an entry and
// an offset in it. Entries of memory got from Alloc hold it. Those of other
// memory do not, so that the table keeps no buffer from being collected, and are
// used again in turn.
type table struct {
	lent []atomic.Pointer[entry] // by number, modulo its length
	next atomic.Uint64           // number of the next lent entry

	mu     sync.Mutex
	pins   atomic.Pointer[[]pin] // sorted by address, replaced when changed
	byPin  sync.Map              // uint64 -> []byte
	named  sync.Map              // the numbers of which there are keys
	number uint64                // of the last pinned entry
}

// entry is memory that its owner holds.
type entry struct {
	number uint64
	first  weak.Pointer[byte]
	n      int
}

// pin is memory that the table holds.
type pin struct {
	b      []byte
	number uint64
}

const (
	offsetBits = 40 // memory of up to 1 TiB
	lentBit    = 1 << 63
	numberMask = 1<<(63-offsetBits) - 1
	lentSize   = 1 << 14
)

func newTable() *table {
	t := &table{lent: make([]atomic.Pointer[entry], lentSize)}
	t.pins.Store(new([]pin))
	return t
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// aligned gets n bytes at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+64)
	off := int(-address(b) & 63)
	return b[off : off+n : off+n]
}

// pin notes memory got from Alloc.
func (t *table) pin(b []byte) error {
	if len(b) >= 1<<offsetBits {
		return fmt.Errorf("mem: %w: %d bytes wanted, %d at most", transport.ErrNoMemory, len(b), 1<<offsetBits-1)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.pins.Load()
	if len(old) == numberMask {
		return fmt.Errorf("mem: %w: %d allocations are in use, as many as can be named", transport.ErrNoMemory, len(old))
	}
	for used := true; used; {
		t.number = t.number%numberMask + 1
		_, used = t.byPin.Load(t.number)
	}
	i := search(old, address(b))
	pins := make([]pin, 0, len(old)+1)
	pins = append(append(append(pins, old[:i]...), pin{b, t.number}), old[i:]...)
	t.byPin.Store(t.number, b)
	t.pins.Store(&pins)
	return nil
}

// search finds the first pin behind an address.
func search(pins []pin, a uintptr) int {
	return sort.Search(len(pins), func(i int) bool { return address(pins[i].b) > a })
}

// unpin forgets memory got from Alloc.
func (t *table) unpin(b []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.pins.Load()
	i := search(old, address(b)) - 1
	if i < 0 || address(old[i].b) != address(b) {
		return false
	}
	t.byPin.Delete(old[i].number)
	t.named.Delete(old[i].number)
	pins := append(append(make([]pin, 0, len(old)-1), old[:i]...), old[i+1:]...)
	t.pins.Store(&pins)
	return true
}

// pinned finds b in memory got from Alloc.
func (t *table) pinned(b []byte) (transport.Handle, bool) {
	pins := *t.pins.Load()
	i := search(pins, address(b)) - 1
	if i < 0 {
		return 0, false
	}
	off := address(b) - address(pins[i].b)
	if off > uintptr(len(pins[i].b)) || uintptr(len(b)) > uintptr(len(pins[i].b))-off {
		return 0, false
	}
	return transport.Handle(pins[i].number<<offsetBits | uint64(off)), true
}

// lend notes other memory.
func (t *table) lend(b []byte) (transport.Handle, bool) {
	if len(b) == 0 || len(b) >= 1<<offsetBits {
		return 0, false
	}
	number := t.next.Add(1) & numberMask
	t.lent[number%lentSize].Store(&entry{number, weak.Make(unsafe.SliceData(b)), len(b)})
	return transport.Handle(lentBit | number<<offsetBits), true
}

// at is n bytes at a handle.
func (t *table) at(h transport.Handle, n int) ([]byte, error) {
	number, off := uint64(h)>>offsetBits&numberMask, uint64(h)&(1<<offsetBits-1)
	var b []byte
	if uint64(h)&lentBit != 0 {
		e := t.lent[number%lentSize].Load()
		if e == nil || e.number != number {
			return nil, fmt.Errorf("mem: handle %#x is no longer valid: its owner has requested %d others since", uint64(h), lentSize)
		}
		first := e.first.Value()
		if first == nil {
			return nil, fmt.Errorf("mem: handle %#x is no longer valid: its owner released the memory", uint64(h))
		}
		b = unsafe.Slice(first, e.n)
	} else {
		v, ok := t.byPin.Load(number)
		if !ok {
			return nil, fmt.Errorf("mem: handle %#x is not memory from Alloc", uint64(h))
		}
		b = v.([]byte)
	}
	if n < 0 || off > uint64(len(b)) || uint64(n) > uint64(len(b))-off {
		return nil, fmt.Errorf("mem: %d bytes at offset %d do not fit %d bytes of memory", n, off, len(b))
	}
	return b[off : off+uint64(n) : off+uint64(n)], nil
}

// key names memory got from Alloc: by its handle, which is not a key before.
func (t *table) key(b []byte) (transport.Key, error) {
	h, ok := t.pinned(b)
	if !ok {
		return 0, fmt.Errorf("mem: key of %d bytes that were not got from Alloc", len(b))
	}
	t.named.Store(uint64(h)>>offsetBits, true)
	return transport.Key(h), nil
}

// atKey is n bytes at a key.
func (t *table) atKey(k transport.Key, n int) ([]byte, error) {
	if _, ok := t.named.Load(uint64(k) >> offsetBits); !ok {
		return nil, fmt.Errorf("mem: key %#x: no rank gave it, or its memory is free again", uint64(k))
	}
	return t.at(transport.Handle(k), n)
}
