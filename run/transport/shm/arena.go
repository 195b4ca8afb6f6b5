//go:build linux

package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
)

const (
	line     = 64
	page     = 4 << 10
	hugePage = 2 << 20

	// large is from where on taking an allocation needs no clearing. From a page on
	// it has whole pages to itself: giving it back returns them all, and it can be
	// protected from late stores without touching its neighbours.
	large = 64 << 10
	// heavy is from where on it is looked up beforehand whether there is memory; that takes about 50 us.
	heavy = 4 << 20
	// margin is memory that is left to others.
	margin = 64 << 20
)

// arena is the memory of one rank: a memfd as large as the machine's memory, of
// which only what is in use exists. It has no name in any file system, so
// nothing is left of it once the last process that maps it has ended, however
// it ended.
type arena struct {
	file *os.File
	mem  []byte // the whole range

	mu    sync.Mutex
	x     *extents
	table uint64            // where the table of names begins (keys.go)
	named map[uint64]uint64 // numbers by start
	last  uint64            // number that was given
	huge  bool              // the system gives large pages to shared memory that asks for them
	paged map[uint64]int    // by start, the bytes asked for, of what has whole pages
	held  map[uint64]*held  // by start, what ranks may still store to (fence.go)
	moves atomic.Pointer[[]moved]

	closed          bool
	allocated, peak uint64
}

// newArena makes an arena whose first bytes are in use from the start, the last of
// them by the table of names.
func newArena(size, header uint64) (*arena, error) {
	fd, err := unix.MemfdCreate("weft", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shm: make an arena: memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "weft arena")
	a, err := shapeArena(f, size, header)
	if err != nil {
		f.Close()
		return nil, err
	}
	return a, nil
}

// shapeArena fixes the size of the file, allocates its header, and maps it. The header gets its pages now, because
// memory that runs out later would end the process with SIGBUS.
func shapeArena(f *os.File, size, header uint64) (*arena, error) {
	fd := int(f.Fd())
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, fmt.Errorf("shm: make an arena of %d bytes: %w", size, err)
	}
	// A peer that could shorten the file could end this process by SIGBUS.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return nil, fmt.Errorf("shm: seal the arena's size: %w", err)
	}
	if err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, int64(header)); err != nil {
		return nil, fmt.Errorf("shm: %w: %d bytes for the arena's header: %w", transport.ErrNoMemory, header, err)
	}
	mem, err := mapArena(f, size)
	if err != nil {
		return nil, err
	}
	return &arena{file: f, mem: mem, huge: hugeShared(), x: newExtents(span{header, size}), table: header - tableSize,
		named: map[uint64]uint64{},
		paged: map[uint64]int{}, held: map[uint64]*held{}}, nil
}

// mapArena maps an arena whole. The range is only reserved: what is not in use
// costs nothing.
func mapArena(f *os.File, size uint64) ([]byte, error) {
	p, err := unix.MmapPtr(int(f.Fd()), 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("shm: map an arena of %d bytes: %w; all of it is reserved and none used, so `ulimit -v` must not limit it",
			size, err)
	}
	mem := unsafe.Slice((*byte)(p), size)
	_ = unix.Madvise(mem, unix.MADV_DONTDUMP) // a core file would hold every rank's memory
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	return mem, nil
}

func unmapArena(mem []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem)))
}

// hugeShared reports whether asking for large pages does something.
func hugeShared() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil {
		return false
	}
	s := string(b)
	return strings.Contains(s, "[advise]") || strings.Contains(s, "[within_size]") || strings.Contains(s, "[always]") ||
		strings.Contains(s, "[force]")
}

// alloc gets n bytes, zeroed: at a multiple of 64, of 128 if they are as many, as
// processors fetch lines in pairs, of a page if they are more than one and
// of a large page from 2 MiB on, in whole ones where there are such. The memory
// is there when it returns.
func (a *arena) alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("shm: allocate %d bytes: must not be negative", n)
	}
	unit, align := uint64(line), uint64(line)
	switch {
	case n >= 2*line && n <= page:
		align = 2 * line
	case n >= hugePage && a.huge:
		unit, align = hugePage, hugePage
	case n >= hugePage:
		unit, align = page, hugePage
	case n > page:
		unit, align = page, page
	}
	size := (uint64(max(n, 1)) + unit - 1) &^ (unit - 1)
	if n >= heavy {
		if have := available(); size+margin > have {
			return nil, fmt.Errorf("shm: %w: %d bytes wanted, %d available of which %d stay free", transport.ErrNoMemory, n, have, uint64(margin))
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, transport.ErrClosed
	}
	if err := a.sweep(); err != nil {
		return nil, err
	}
	s, ok := a.x.take(size, align)
	if !ok {
		return nil,
			fmt.Errorf("shm: %w: %d bytes wanted, the arena of %d (the memory, or half of what ulimit -v leaves, for each rank) has %d in use",
				transport.ErrNoMemory, n, len(a.mem), a.allocated)
	}
	if err := a.commit(s); err != nil {
		a.x.give(s.start)
		return nil, fmt.Errorf("shm: %w: %d bytes wanted, %d in use: %w", transport.ErrNoMemory, n, a.allocated, err)
	}
	b := a.mem[s.start:s.end:s.end]
	if n < large {
		clear(b)
	}
	if unit >= page {
		a.paged[s.start] = n
	}
	a.allocated += size
	a.peak = max(a.peak, a.allocated)
	return b[:n:n], nil
}

// commit makes the pages of a span exist, by fallocate, and maps those of large
// spans at once. On a Xeon in November 2026, 64 MiB took 6 ms to exist and 20 ms
// to be mapped at once, 30 ms by one fault after another; their first reading by
// a peer took 4 ms. Pages that are mapped before they exist can be large ones
// where the system gives such to memory that asks, which fallocate does not:
// 16 MiB then took 3 ms instead of 10.
func (a *arena) commit(s span) error {
	b := a.mem[s.start:s.end]
	if a.huge && s.size() >= hugePage {
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
		if err := unix.Madvise(b, unix.MADV_POPULATE_WRITE); err == nil {
			return nil
		}
	}
	start := s.start &^ (page - 1)
	end := (s.end + page - 1) &^ (page - 1)
	for {
		err := unix.Fallocate(int(a.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, int64(start), int64(end-start))
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	if s.size() >= large {
		_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	}
	return nil
}

// release gives b back, and to the system all pages that are now free.
func (a *arena) release(b []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return transport.ErrClosed
	}
	off, ok := a.find(b)
	if !ok {
		return fmt.Errorf("shm: free memory that is not of this arena")
	}
	h := a.held[off]
	if _, used := a.x.used[off]; !used || h != nil && h.freed {
		return fmt.Errorf("shm: free at %d: nothing got from Alloc begins there", off)
	}
	if h == nil {
		h = &held{}
	}
	a.retireName(off, h)
	if h.freed = true; h.waits() || len(h.backs) > 0 {
		a.held[off] = h
		return a.sweep()
	}
	return a.giveBack(off, nil)
}

// giveBack makes an allocation and the pages that it was moved to free again. The caller holds mu.
func (a *arena) giveBack(off uint64, backs []uint64) error {
	if len(backs) > 0 {
		at := span{off, off + a.x.used[off]}
		if err := a.remap(at, at.start); err != nil {
			return err
		}
		a.setMoves(without(a.allMoves(), at))
	}
	delete(a.paged, off)
	a.allocated -= a.x.used[off]
	for _, start := range append(backs, off) {
		if err := a.returnPages(start); err != nil {
			return err
		}
	}
	return nil
}

// returnPages frees a span, and gives the system all pages that are free by it.
func (a *arena) returnPages(off uint64) error {
	was, merged, _ := a.x.give(off)
	// Pages at the edges belong partly to others unless the merged span covers
	// them. Where the system gives large pages it may have given more than was
	// asked for.
	unit := uint64(page)
	if a.huge {
		unit = hugePage
	}
	start := max(was.start&^(unit-1), (merged.start+page-1)&^(page-1))
	end := min((was.end+unit-1)&^(unit-1), merged.end&^(page-1))
	if start >= end {
		return nil
	}
	return a.punch(span{start, end})
}

func (a *arena) punch(s span) error {
	for {
		err := unix.Fallocate(int(a.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(s.start), int64(s.size()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("shm: give back %d bytes at %d: %w", s.size(), s.start, err)
		}
	}
}

// close gives the memory back, as far as no peer maps it.
func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	_ = unmapArena(a.mem)
	a.file.Close()
}

// find says where b lies in the arena.
func (a *arena) find(b []byte) (uint64, bool) {
	off := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(a.mem)))
	if off < uintptr(len(a.mem)) && uintptr(len(b)) <= uintptr(len(a.mem))-off {
		return uint64(off), true
	}
	return 0, false
}
