package world

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/run/transport"
)

// Endpoint is a rank of the world.
type Endpoint struct {
	w      *World
	rank   int
	closed bool
	mine   memory
	verbs  verbs
	boxes  map[portKey]*box
	epochs map[uint32]uint32 // the newest of each communicator
}

type portKey struct{ id, epoch uint32 }

func (e *Endpoint) Rank() int                { return e.rank }
func (e *Endpoint) Size() int                { return len(e.w.eps) }
func (e *Endpoint) Verbs() transport.Verbs   { return e }
func (e *Endpoint) Memory() transport.Memory { return nil }

// Can says what the configuration does.
func (e *Endpoint) Can() transport.Capabilities {
	return transport.Capabilities{Name: "world", OneProcess: true, Overlaps: e.w.cfg.Overlaps, Holds: e.w.cfg.Holds}
}

// Alive is nil until the rank has noticed the end of another.
func (e *Endpoint) Alive(rank int) error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	if err := e.usable(); err != nil {
		return err
	}
	if g := e.w.missing(e.rank, rank); g != nil {
		return g
	}
	return nil
}

// Dead reports whether the rank was killed.
func (e *Endpoint) Dead() bool {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	return e.w.dead[e.rank]
}

// Counters are none.
func (e *Endpoint) Counters() []transport.Counter { return nil }

// Close leaves. What was sent still comes.
func (e *Endpoint) Close() error {
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.closed || w.dead[e.rank] {
		return nil
	}
	e.closed = true
	w.lose(e.rank, transport.Gone{Rank: e.rank, Why: "left", Left: true}, w.now())
	return nil
}

// Port makes a port.
func (e *Endpoint) Port(g transport.Group) (transport.Port, error) {
	me := slices.Index(g.Members, e.rank)
	if me < 0 {
		return nil, fmt.Errorf("world: rank %d is not among the members %v", e.rank, g.Members)
	}
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	if g.Epoch < e.epochs[g.ID] {
		return nil, fmt.Errorf("world: communicator %d is in epoch %d already, not %d", g.ID, e.epochs[g.ID], g.Epoch)
	}
	e.epochs[g.ID] = g.Epoch
	b := e.box(portKey{g.ID, g.Epoch})
	if b.port != nil {
		return nil, fmt.Errorf("world: communicator %d of epoch %d has a port already", g.ID, g.Epoch)
	}
	g.Members = slices.Clone(g.Members)
	b.port = &port{e: e, g: g, me: me, box: b, numbers: map[[2]int]uint64{}, wanted: map[[2]int][]*want{}, owed: map[int]int{}, told: map[int]transport.Call{}}
	return b.port, nil
}

// box is what came for a port, which need not be there yet.
type box struct {
	port  *port
	ended bool
	lines map[[2]int][]*message // by rank of the endpoint and channel
	last  map[int]transport.Call
	told  map[int]transport.Call // what ranks said of themselves, as it is another call than this rank's
}

// message is one that has come.
type message struct {
	call   transport.Call
	form   transport.Form
	b      []byte
	torn   int // bytes that came before its sender died; -1 if all did
	stored *want
	took   func() // tells the sender
}

func (e *Endpoint) box(k portKey) *box {
	b := e.boxes[k]
	if b == nil {
		b = &box{lines: map[[2]int][]*message{}, last: map[int]transport.Call{}, told: map[int]transport.Call{}}
		e.boxes[k] = b
	}
	return b
}
