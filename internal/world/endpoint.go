package world

import (
	"fmt"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/match"
)

// Endpoint is a rank of the world.
type Endpoint struct {
	w      *World
	rank   int
	closed bool
	mine   memory
	verbs  verbs
	boxes  match.Table[*box]
}

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
	if err := match.Check(&g, e.rank, len(e.w.eps)); err != nil {
		return nil, err
	}
	w := e.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	k := match.Key{ID: g.ID, Epoch: g.Epoch}
	if _, err := e.boxes.Begin(k); err != nil {
		return nil, err
	}
	b := e.box(k)
	if b.port != nil {
		return nil, fmt.Errorf("communicator %d of epoch %d has a port already", g.ID, g.Epoch)
	}
	b.port = &port{e: e, Port: match.Port{ID: g.ID, Epoch: g.Epoch}, box: b, numbers: map[[2]int]uint64{}, wanted: map[[2]int][]*want{},
		told: map[int]match.Call{}}
	b.port.Most = credit
	return b.port, b.port.Attach(&g, e.rank, len(w.eps))
}

// box is what came for a port, which need not be there yet.
type box struct {
	port  *port
	lines map[[2]int][]*message // by rank of the endpoint and channel
	last  map[int]match.Call
	told  map[int]match.Call // what ranks said of themselves, as it is another call than this rank's
}

// message is one that has come.
type message struct {
	call   match.Call
	form   transport.Form
	b      []byte
	torn   int // bytes that came before its sender died; -1 if all did
	stored *want
	took   func() // tells the sender
}

// box is that of a port, which need not be there yet; nil if it has ended.
func (e *Endpoint) box(k match.Key) *box {
	b, fate := e.boxes.Find(k)
	switch fate {
	case match.Old, match.Ended:
		return nil
	case match.Early:
		b = &box{lines: map[[2]int][]*message{}, last: map[int]match.Call{}, told: map[int]match.Call{}}
		e.boxes.Put(k, b)
	}
	return b
}
