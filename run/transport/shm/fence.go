//go:build linux

package shm

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
)

// A rank that is stopped while it stores to a peer's memory goes on when it wakes, whatever happened meanwhile, and nothing can
// take the memory from it: it has it mapped. So the owner takes other memory instead. Its addresses stay as they are, and with
// them every slice of its user; behind them lie other pages of the arena's file, with the same contents:
//
//	                 addresses of the owner        pages of the file
//	before           [ a a a ]─────────────────────► [ a a a ]◄──── peers store to a's handle
//	after            [ a a a ]───┐                   [ old   ]◄──── so does the one that wakes
//	                             └─────────────────► [ a a a ]◄──── peers that ask for a's handle now
//
// The old pages are given back once no peer can store to them any more (end), their place in the file when a is freed, too.

// moved is a range of addresses behind which other pages lie than those of the same offset.
type moved struct {
	at span
	to uint64 // in the file
}

// held is an allocation that cannot be used again when it is freed.
type held struct {
	backs  []uint64 // pages that it was moved to, by their start
	fences int      // that have not ended
	users  []*atomic.Int64
	freed  bool
}

// waits reports whether somebody may still store to it.
func (h *held) waits() bool {
	return h.fences > 0 || slices.ContainsFunc(h.users, func(n *atomic.Int64) bool { return n.Load() != 0 })
}

// place is where b lies in the file, for peers; false if it is not in one piece, or not of the arena.
func (a *arena) place(b []byte) (uint64, bool) {
	off, ok := a.find(b)
	list := a.moves.Load()
	if list == nil || !ok {
		return off, ok
	}
	end := off + uint64(len(b))
	for _, m := range *list {
		switch {
		case end <= m.at.start || off >= m.at.end:
		case off >= m.at.start && end <= m.at.end:
			return m.to + off - m.at.start, true
		default:
			return 0, false
		}
	}
	return off, true
}

// fences reports whether b has its pages to itself: it begins at a page, and ends at one or with its allocation.
func (a *arena) fences(b []byte) bool {
	off, ok := a.find(b)
	if !ok || off%page != 0 {
		return false
	}
	if len(b)%page == 0 {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.paged[off] == len(b)
}

// fence puts other pages behind b.
func (a *arena) fence(b []byte) (end func() error, err error) {
	if !a.fences(b) {
		return nil, fmt.Errorf("shm: protect %d bytes that share pages with other memory", len(b))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, fmt.Errorf("shm: protect memory of an arena that is closed")
	}
	off, _ := a.find(b)
	at := span{off, (off + uint64(len(b)) + page - 1) &^ (page - 1)}
	start, ok := a.x.holder(at)
	if !ok {
		return nil, fmt.Errorf("shm: protect %d bytes that were not got from Alloc", len(b))
	}
	if have := available(); at.size() >= heavy && at.size()+margin > have {
		return nil, fmt.Errorf("shm: %w: %d bytes to protect as many, %d available of which %d stay free",
			transport.ErrNoMemory, at.size(), have, uint64(margin))
	}
	to, ok := a.x.take(at.size(), page)
	if !ok {
		return nil, fmt.Errorf("shm: protect %d bytes: no room for as many others", len(b))
	}
	if err := a.commit(to); err != nil {
		a.x.give(to.start)
		return nil, fmt.Errorf("shm: protect %d bytes: %w", len(b), err)
	}
	copy(a.mem[to.start:to.end], a.mem[at.start:at.end])
	if err := a.remap(at, to.start); err != nil {
		a.x.give(to.start)
		return nil, err
	}
	h := a.held[start]
	if h == nil {
		h = &held{}
		a.held[start] = h
	}
	a.retireName(start, h)
	old := a.pagesOf(at)
	a.setMoves(append(without(a.allMoves(), at), moved{at, to.start}))
	h.backs = append(h.backs, to.start)
	h.fences++
	return func() error { return a.endFence(start, h, old) }, nil
}

// endFence gives old pages back.
func (a *arena) endFence(start uint64, h *held, old []span) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	for _, s := range old {
		if err := a.punch(s); err != nil {
			return err
		}
	}
	h.fences--
	return a.sweep()
}

// sweep gives back what was freed and waited for ranks that might store to it. The caller holds mu.
func (a *arena) sweep() error {
	for start, h := range a.held {
		if !h.freed || h.waits() {
			continue
		}
		delete(a.held, start)
		if err := a.giveBack(start, h.backs); err != nil {
			return err
		}
	}
	return nil
}

// allMoves are the ranges that were moved. The caller holds mu.
func (a *arena) allMoves() []moved {
	if list := a.moves.Load(); list != nil {
		return *list
	}
	return nil
}

func (a *arena) setMoves(list []moved) {
	if len(list) == 0 {
		a.moves.Store(nil)
		return
	}
	a.moves.Store(&list)
}

// without is a list of moved ranges less what lies in a range.
func without(list []moved, cut span) (rest []moved) {
	for _, m := range list {
		if cut.end <= m.at.start || cut.start >= m.at.end {
			rest = append(rest, m)
			continue
		}
		if m.at.start < cut.start {
			rest = append(rest, moved{span{m.at.start, cut.start}, m.to})
		}
		if m.at.end > cut.end {
			rest = append(rest, moved{span{cut.end, m.at.end}, m.to + cut.end - m.at.start})
		}
	}
	return rest
}

// pagesOf are the pages of the file that lie behind a range. The caller holds mu.
func (a *arena) pagesOf(at span) (pages []span) {
	rest := []moved{{at, at.start}}
	for _, m := range a.allMoves() {
		if lo, hi := max(m.at.start, at.start), min(m.at.end, at.end); lo < hi {
			pages = append(pages, span{m.to + lo - m.at.start, m.to + hi - m.at.start})
			rest = without(rest, span{lo, hi})
		}
	}
	for _, m := range rest {
		pages = append(pages, span{m.to, m.to + m.at.size()})
	}
	return pages
}

// remap puts pages of the file behind a range of addresses. Whoever reads there meanwhile sees the old ones or the new.
func (a *arena) remap(at span, to uint64) error {
	b := a.mem[at.start:at.end]
	_, err := unix.MmapPtr(int(a.file.Fd()), int64(to), unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_NORESERVE|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("shm: put other pages behind %d bytes: %w", len(b), err)
	}
	_ = unix.Madvise(b, unix.MADV_DONTDUMP)
	_ = unix.Madvise(b, unix.MADV_DONTFORK)
	return nil
}

// Fences reports whether memory of the own arena can be protected.
func (e *Endpoint) Fences(b []byte) bool { return e.arena.fences(b) }

// Fence protects memory of the own arena from late stores.
func (e *Endpoint) Fence(b []byte) (end func() error, err error) { return e.arena.fence(b) }
