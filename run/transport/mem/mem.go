// Package mem carries messages between ranks that are goroutines of one process.
// They share the heap, so a peer reads a message in place. The package runs the same
// ports and verbs as package shm, on memory that the race detector watches.
package mem

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/ring"
	"github.com/weft-fabric/weft/run/transport/wait"
)

// world is what the ranks share.
type world struct {
	heads  [][]byte
	tables []*table
	gone   []atomic.Pointer[transport.Gone]
}

// Endpoint is a rank.
type Endpoint struct {
	*ring.Hub
	w    *world
	rank int
	once sync.Once
}

// New makes n ranks.
func New(n int) []*Endpoint {
	w := &world{gone: make([]atomic.Pointer[transport.Gone], n)}
	for range n {
		w.heads = append(w.heads, aligned(ring.HeadSize(n)))
		w.tables = append(w.tables, newTable())
	}
	es := make([]*Endpoint, n)
	waiter := wait.For(n, true)
	for r := range es {
		e := &Endpoint{w: w, rank: r}
		e.Hub = ring.New(space{e}, waiter)
		es[r] = e
	}
	return es
}

func (e *Endpoint) Rank() int                { return e.rank }
func (e *Endpoint) Size() int                { return len(e.w.heads) }
func (e *Endpoint) Verbs() transport.Verbs   { return e }
func (e *Endpoint) Memory() transport.Memory { return e }

// Can says that ranks are goroutines of one process.
func (e *Endpoint) Can() transport.Capabilities {
	return transport.Capabilities{Name: "mem", OneProcess: true, SharedMemory: true, Depth: ring.Depth}
}

// Alive is nil until a rank closes its endpoint or is killed.
func (e *Endpoint) Alive(rank int) error {
	if g := e.w.gone[rank].Load(); g != nil {
		return g
	}
	return nil
}

// Alloc gets memory that peers may name.
func (e *Endpoint) Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("mem: allocate %d bytes: must not be negative", n)
	}
	b := aligned(n)
	if err := e.w.tables[e.rank].pin(b); err != nil {
		return nil, err
	}
	return b, nil
}

// Free gives back what Alloc gave.
func (e *Endpoint) Free(b []byte) error {
	if !e.w.tables[e.rank].unpin(b) {
		return fmt.Errorf("mem: free %d bytes that were not got from Alloc", len(b))
	}
	return nil
}

// Handle says where b lies, wherever that is. Memory that was not got from Alloc
// is found for as long as its owner holds it, but not after
// 16,384 more calls of Handle, for which the table has room.
func (e *Endpoint) Handle(b []byte) (transport.Handle, bool) {
	t := e.w.tables[e.rank]
	if h, ok := t.pinned(b); ok {
		return h, true
	}
	return t.lend(b)
}

// At is n bytes of a rank's memory.
func (e *Endpoint) At(rank int, h transport.Handle, n int) ([]byte, error) {
	if rank < 0 || rank >= len(e.w.tables) {
		return nil, fmt.Errorf("mem: memory of rank %d; ranks are 0 to %d", rank, len(e.w.tables)-1)
	}
	return e.w.tables[rank].at(h, n)
}

// Pulls is false: nothing needs it, as all memory has a handle.
func (e *Endpoint) Pulls() bool { return false }

// Pull is not possible.
func (e *Endpoint) Pull(int, uintptr, []byte) error { return transport.ErrNoPull }

// Close says goodbye to the peers.
func (e *Endpoint) Close() error {
	e.end("left")
	return nil
}

// Kill ends the rank as if its process had been killed: its waits end with
// ErrClosed, and it is gone for the others.
func (e *Endpoint) Kill() { e.end("killed") }

func (e *Endpoint) end(why string) {
	e.once.Do(func() {
		e.w.gone[e.rank].CompareAndSwap(nil, &transport.Gone{Rank: e.rank, Why: why, Left: why == "left"})
		e.Hub.Close()
	})
}

// space is the heap as the ring sees it.
type space struct{ *Endpoint }

func (s space) Head(rank int) []byte { return s.w.heads[rank] }

func (s space) Registered(b []byte) (transport.Handle, bool) {
	return s.w.tables[s.rank].pinned(b)
}

func (s space) Name(b []byte) (transport.Key, error) { return s.w.tables[s.rank].key(b) }

func (s space) Named(rank int, k transport.Key, n int) ([]byte, error) {
	return s.w.tables[rank].atKey(k, n)
}

// Done is an error if the memory was given back meanwhile. The heap keeps it until then.
func (s space) Done(rank int, k transport.Key) error {
	_, err := s.w.tables[rank].atKey(k, 0)
	return err
}

func (s space) Pullable(int) bool { return false }

var _ transport.Endpoint = (*Endpoint)(nil)
