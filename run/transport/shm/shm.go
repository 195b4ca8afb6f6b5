//go:build linux

package shm

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/ring"
	"github.com/weft-fabric/weft/run/transport/wait"
)

const allArenas = 32 << 40

// HostID names what ranks must share to be of one host: a kernel since its
// start, and a network namespace, whose sockets they meet by.
func HostID() string {
	space, _ := os.Readlink("/proc/self/ns/net")
	return Machine() + " " + space
}

// Machine names a kernel since its start.
func Machine() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(boot))
}

// Endpoint is a rank's shared memory. Memory got from Alloc or At must not be
// touched after Close.
type Endpoint struct {
	*ring.Hub
	rank, size int
	arena      *arena
	maps       [][]byte // of all ranks, by rank
	peers      []*met   // nil for the rank itself
	pulls      []bool
	gone       []atomic.Pointer[transport.Gone]
	watch      *watch
	word       *uint64 // what peers try to read
	refused    atomic.Uint64

	closing sync.Once
	closed  atomic.Bool
	inside  atomic.Int64 // looks at the peers' memory from outside the ring
}

// Open makes the endpoint of a rank. All ranks of it must call Open at the same
// time; it returns once all have been met.
func Open(ctx context.Context, c Config) (*Endpoint, error) {
	switch {
	case c.Size < 1 || c.Rank < 0 || c.Rank >= c.Size:
		return nil, fmt.Errorf("shm: rank %d of %d; ranks are 0 to size-1", c.Rank, c.Size)
	case c.Gather == nil:
		return nil, fmt.Errorf("shm: rank %d of %d has no Gather to find the others by", c.Rank, c.Size)
	}
	size := c.Arena
	if size == 0 {
		size = arenaSize(uint64(c.Size), ram(), addresses())
	}
	size = (size + hugePage - 1) &^ (hugePage - 1)
	header := headerSize(c.Size)
	a, err := newArena(max(size, header+hugePage), header)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		rank: c.Rank, size: c.Size, arena: a,
		maps: make([][]byte, c.Size), pulls: make([]bool, c.Size),
		gone: make([]atomic.Pointer[transport.Gone], c.Size),
		word: new(uint64),
	}
	e.maps[c.Rank] = a.mem
	if err := e.meet(ctx, &c); err != nil {
		e.release()
		return nil, err
	}
	return e, nil
}

// arenaSize is how large the arena of each rank is: as large as the
// memory, as what is not used costs nothing but addresses. Where these are limited,
// half of what is left is for all arenas.
func arenaSize(ranks, ram, addresses uint64) uint64 {
	return min(max(min(ram, allArenas/ranks), 1<<30), max(addresses/2/ranks, 16<<20))
}

// meet exchanges arenas with the others and maps them.
func (e *Endpoint) meet(ctx context.Context, c *Config) error {
	mine, listener, err := newCard(e.rank, e.size)
	if err != nil {
		return err
	}
	defer listener.Close()
	cards, err := gatherCards(ctx, c, mine)
	if err != nil {
		return err
	}
	if !c.NoPull {
		letRead()
		var b [8]byte
		rand.Read(b[:])
		*e.word = binary.NativeEndian.Uint64(b[:])
	}
	p := &pass{
		me: mine, cards: cards, file: e.arena.file, listener: listener,
		refused: func() { e.refused.Add(1) },
		mine: hello{rank: e.rank, size: e.size, arena: uint64(len(e.arena.mem)), word: uint64(uintptr(unsafe.Pointer(e.word))),
			value: *e.word},
	}
	if e.peers, err = p.run(ctx); err != nil {
		return err
	}
	for r, m := range e.peers {
		if m == nil {
			continue
		}
		if e.maps[r], err = mapArena(m.file, m.arena); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
		m.file.Close()
		if !c.NoPull && m.value != 0 && readable(m) {
			e.pulls[r] = true
			e.mayPull(e.rank, r).Store(1)
		}
		if m.began != 0 && m.conn != nil {
			m.conn.Close()
		}
	}
	e.Hub = ring.New(space{e}, wait.For(max(c.Machine, e.size), false))
	e.watch, err = newWatch(e)
	return err
}

// gatherCards tells the own card and checks those of the others.
func gatherCards(ctx context.Context, c *Config, mine card) ([]card, error) {
	blobs, err := c.Gather(ctx, mine.put())
	if err != nil {
		return nil, fmt.Errorf("shm: rank %d of %d finds the others: %w", c.Rank, c.Size, err)
	}
	if len(blobs) != c.Size {
		return nil, fmt.Errorf("shm: the gather gave %d cards to rank %d of %d", len(blobs), c.Rank, c.Size)
	}
	cards := make([]card, c.Size)
	for r, b := range blobs {
		k, err := parseCard(b)
		switch {
		case err != nil:
			return nil, fmt.Errorf("shm: the card of rank %d: %w", r, err)
		case k.rank != r || k.size != c.Size:
			return nil, fmt.Errorf("shm: the card of rank %d of %d says rank %d of %d", r, c.Size, k.rank, k.size)
		case k.host != mine.host:
			return nil, fmt.Errorf("shm: rank %d is on host %q, rank %d on %q: they share no memory", r, k.host, c.Rank, mine.host)
		}
		cards[r] = k
	}
	return cards, nil
}

func (e *Endpoint) Rank() int                { return e.rank }
func (e *Endpoint) Size() int                { return e.size }
func (e *Endpoint) Verbs() transport.Verbs   { return e }
func (e *Endpoint) Memory() transport.Memory { return e }

// Can says that ranks see one another's memory.
func (e *Endpoint) Can() transport.Capabilities {
	return transport.Capabilities{Name: "shm", SharedMemory: true, Depth: ring.Depth}
}

// Alloc gets memory of the own arena.
func (e *Endpoint) Alloc(n int) ([]byte, error) { return e.arena.alloc(n) }

// Free gives back what Alloc gave.
func (e *Endpoint) Free(b []byte) error { return e.arena.release(b) }

// Handle says where b lies in the own arena, if it does.
func (e *Endpoint) Handle(b []byte) (transport.Handle, bool) {
	off, ok := e.arena.place(b)
	return transport.Handle(off), ok
}

// At is n bytes of a rank's arena.
func (e *Endpoint) At(rank int, h transport.Handle, n int) ([]byte, error) {
	if uint(rank) < uint(len(e.maps)) {
		m := e.maps[rank]
		if n >= 0 && uint64(h) <= uint64(len(m)) && uint64(n) <= uint64(len(m))-uint64(h) {
			return m[h : uint64(h)+uint64(n) : uint64(h)+uint64(n)], nil
		}
	}
	return nil, e.nowhere(rank, h, n)
}

func (e *Endpoint) nowhere(rank int, h transport.Handle, n int) error {
	if rank < 0 || rank >= e.size {
		return fmt.Errorf("shm: memory of rank %d; ranks are 0 to %d", rank, e.size-1)
	}
	return fmt.Errorf("shm: %d bytes at %d of rank %d, whose arena has %d", n, h, rank, len(e.maps[rank]))
}

// Pulls reports whether Pull works with all ranks.
func (e *Endpoint) Pulls() bool {
	for r := range e.pulls {
		if r != e.rank && !e.pulls[r] {
			return false
		}
	}
	return true
}

// Pull copies memory of a peer that is not in an arena.
func (e *Endpoint) Pull(rank int, addr uintptr, dst []byte) error {
	if rank < 0 || rank >= e.size || !e.pulls[rank] {
		return transport.ErrNoPull
	}
	e.inside.Add(1)
	defer e.inside.Add(-1)
	if e.closed.Load() {
		return transport.ErrClosed
	}
	m := e.peers[rank]
	err := readProcess(m.pid, addr, dst)
	if err != nil && m.over(err) {
		e.lost(rank, m.why())
		return e.Alive(rank)
	}
	return err
}

// lost notes that a rank left or that its process has ended.
func (e *Endpoint) lost(rank int, why string) {
	if e.Hub.Left(rank) {
		why = "left"
	}
	if e.gone[rank].CompareAndSwap(nil, &transport.Gone{Rank: rank, Why: why, Left: why == "left"}) {
		e.left().Add(1)
	}
}

// Alive is nil while a rank's process runs and has not closed its endpoint.
func (e *Endpoint) Alive(rank int) error {
	if g := e.gone[rank].Load(); g != nil {
		return g
	}
	e.inside.Add(1)
	defer e.inside.Add(-1)
	if e.closed.Load() {
		return transport.ErrClosed
	}
	if e.Hub.Left(rank) || e.ended(rank).Load() != 0 {
		why := "left"
		if m := e.peers[rank]; m != nil {
			why = m.why()
		}
		e.lost(rank, why)
		return e.gone[rank].Load()
	}
	return nil
}

// Close says goodbye to the peers, which keep what they have not yet read.
func (e *Endpoint) Close() error {
	e.closing.Do(func() {
		e.Hub.Close()
		e.left().Add(1)
		e.closed.Store(true)
		for e.inside.Load() != 0 {
			runtime.Gosched()
		}
		e.release()
	})
	return nil
}

// release gives everything back.
func (e *Endpoint) release() {
	if e.watch != nil {
		e.watch.close()
	}
	for r, m := range e.maps {
		if m != nil && r != e.rank {
			_ = unmapArena(m)
		}
	}
	for _, m := range e.peers {
		m.close()
	}
	e.arena.close()
}

// Counters are those of the messages, and how many unknown connections were turned away.
func (e *Endpoint) Counters() []transport.Counter {
	return append(e.Hub.Counters(), transport.Counter{Name: "hellos_refused", Value: e.refused.Load()})
}

// An arena begins with the ring's head, then two words for each rank: whether the
// owner can read all memory of that rank, and, in the first rank's arena, whether its process
// was seen to have ended. There a word follows that is not 0 if any rank ended or left. The table of names is the last.

func headerSize(size int) uint64 {
	return uint64(ring.HeadSize(size)+8*size+4+page-1)&^(page-1) + tableSize
}

// mayPull is the word that says whether rank by can read memory of rank from.
func (e *Endpoint) mayPull(by, from int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&e.maps[by][ring.HeadSize(e.size)+4*from]))
}

// ended is the word that says that a rank's process has ended. Not all ranks watch it: those that do tell the others.
func (e *Endpoint) ended(rank int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&e.maps[0][ring.HeadSize(e.size)+4*(e.size+rank)]))
}

// left is the word that is not 0 if any rank ended or left.
func (e *Endpoint) left() *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&e.maps[0][ring.HeadSize(e.size)+8*e.size]))
}

// AllAlive reports whether no rank has ended or left: then Alive is nil for each of them, and need not be asked.
func (e *Endpoint) AllAlive() bool {
	e.inside.Add(1)
	defer e.inside.Add(-1)
	return !e.closed.Load() && e.left().Load() == 0
}

// space is the arenas as the ring sees them.
type space struct{ *Endpoint }

func (s space) Head(rank int) []byte                         { return s.maps[rank][:ring.HeadSize(s.size)] }
func (s space) Registered(b []byte) (transport.Handle, bool) { return s.Handle(b) }
func (s space) Name(b []byte) (transport.Key, error)         { return s.arena.key(b) }
func (s space) Pullable(by int) bool                         { return s.mayPull(by, s.rank).Load() != 0 }

var _ transport.Endpoint = (*Endpoint)(nil)
