// Package ring implements ports and verbs for ranks that share memory: package mem
// provides one process's heap, package shm the arenas of several processes.
//
// A way, from one rank to another on a channel, is a ring of slots, each with its own
// flag, and two more flags. It is in the sender's memory, because only the owner can
// allocate there; for the caches the position makes no difference. A rank finds the ways
// that lead to it through a directory at the start of each rank's memory. Making a port
// therefore sends nothing, and a way exists from its first message on.
//
//	rank a's memory                                  rank b
//	head: directory ─► port (id, epoch) ─► way to b, channel 0 ─► way to b, channel 1
//	                   calls of a           slots    ── b waits for the next one
//	                   who uses it          taken    ◄─ a waits for it
//	                                        staged   ── b waits for it
//
// A message of up to Eager bytes is stored in its slot. A longer one stays where it is,
// the slot has its address, and the sender waits until the receiver has read it. If the
// receiver is late, the sender moves the message into the way's memory and continues, so
// that ranks that all send first do not deadlock. The slot's claim decides who comes
// first, receiver or mover.
package ring

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// Space is memory that ranks share.
type Space interface {
	Rank() int
	Size() int
	Alive(rank int) error

	// Head is the start of a rank's memory: HeadSize bytes that were zero when
	// the rank came into being.
	Head(rank int) []byte

	Alloc(n int) ([]byte, error)
	Free(b []byte) error
	// Registered says where memory got from Alloc lies.
	Registered(b []byte) (transport.Handle, bool)
	// Handle says where b lies for the peers, if it does. Memory that was not got
	// from Alloc need not stay there for longer than the caller holds it.
	Handle(b []byte) (transport.Handle, bool)
	At(rank int, h transport.Handle, n int) ([]byte, error)
	// Name gives memory got from Alloc a key; Named is n bytes at one that was given.
	Name(b []byte) (transport.Key, error)
	Named(rank int, k transport.Key, n int) ([]byte, error)
	// Done is called when that memory was used; it is an error if it was given back meanwhile.
	Done(rank int, k transport.Key) error

	// Pullable reports whether a rank can read all memory of this one.
	Pullable(by int) bool
	Pull(rank int, addr uintptr, dst []byte) error
}

// Hub is what an endpoint keeps for its ports and verbs.
type Hub struct {
	s      Space
	rank   int
	size   int
	waiter *wait.Waiter
	heads  []*head
	closed atomic.Bool

	mu      sync.Mutex
	ports   map[*Port]struct{}
	retired []retiredPort

	verbs
	count counts
}

// New makes the hub of an endpoint. Ranks wait for one another as w says.
func New(s Space, w *wait.Waiter) *Hub {
	h := &Hub{s: s, rank: s.Rank(), size: s.Size(), waiter: w, ports: map[*Port]struct{}{}}
	for r := range h.size {
		h.heads = append(h.heads, as[head](s.Head(r)))
	}
	h.verbs.init(h)
	return h
}

// Left reports whether a rank said goodbye.
func (h *Hub) Left(rank int) bool { return h.heads[rank].left.Load() != 0 }

// Close ends all waits with ErrClosed, returns when none of the hub's memory is
// used any more, and says goodbye to the peers. It must be called once.
func (h *Hub) Close() {
	h.closed.Store(true)
	h.mu.Lock()
	ports := h.ports
	h.ports = nil
	h.mu.Unlock()
	for p := range ports {
		p.drain()
		h.keep(p)
	}
	h.verbs.close()
	h.heads[h.rank].left.Store(1)
}

// counts are the counters of a hub.
type counts struct {
	closed      traffic // of ports that were closed
	pulledBytes atomic.Uint64
	stagedBytes atomic.Uint64
	dropped     atomic.Uint64
	notices     atomic.Uint64
}

// Counters are what happened so far.
func (h *Hub) Counters() []transport.Counter {
	c := &h.count
	h.mu.Lock()
	var t traffic
	t.add(&c.closed)
	for p := range h.ports { // sums do not depend on the order
		for _, l := range *p.lanes.Load() {
			if l != nil {
				t.add(&l.count)
			}
		}
	}
	h.mu.Unlock()
	return []transport.Counter{
		{Name: "messages_sent", Value: t.sent.Load()},
		{Name: "bytes_sent", Value: t.sentBytes.Load()},
		{Name: "messages_received", Value: t.received.Load()},
		{Name: "bytes_received", Value: t.receivedBytes.Load()},
		{Name: "bytes_pulled", Value: c.pulledBytes.Load()},
		{Name: "bytes_staged", Value: c.stagedBytes.Load()},
		{Name: "messages_dropped", Value: c.dropped.Load()},
		{Name: "notices", Value: c.notices.Load()},
	}
}

// traffic is messages and their bytes. Only one goroutine at a time counts, so that
// it costs no atomic addition.
type traffic struct{ sent, sentBytes, received, receivedBytes atomic.Uint64 }

func (t *traffic) add(o *traffic) {
	more(&t.sent, o.sent.Load())
	more(&t.sentBytes, o.sentBytes.Load())
	more(&t.received, o.received.Load())
	more(&t.receivedBytes, o.receivedBytes.Load())
}

func more(a *atomic.Uint64, n uint64) { wait.Release(a, a.Load()+n) }

// keep counts the traffic of a port that was closed and drained.
func (h *Hub) keep(p *Port) {
	for _, l := range *p.lanes.Load() {
		if l != nil {
			h.count.closed.add(&l.count)
		}
	}
}

// as looks at shared memory as a T.
func as[T any](b []byte) *T {
	var t T
	if uintptr(len(b)) < unsafe.Sizeof(t) {
		panic(fmt.Errorf("ring: %d bytes for a %T of %d", len(b), t, unsafe.Sizeof(t)))
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}
