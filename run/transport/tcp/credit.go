//go:build linux

package tcp

import (
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// Unbound lets the call go on whatever its peers leave waiting.
func (p *port) Unbound() {
	p.mu.Lock()
	p.Deep = true
	p.mu.Unlock()
}

var _ transport.Bounded = (*port)(nil)

// awaitCredit waits until a peer has taken enough.
func (p *port) awaitCredit(pr *wire.Link) error {
	var room atomic.Bool
	p.mu.Lock()
	if !p.Full(pr.Rank) {
		p.mu.Unlock()
		return nil
	}
	p.rooms = append(p.rooms, wire.Room{Rank: pr.Rank, Made: &room})
	p.mu.Unlock()
	// Credit comes as messages do.
	err := pr.Await(p, wire.AnyStream, &room, false, func(w *wire.Waiter) {
		p.mu.Lock()
		wire.SetWaiter(p.rooms, &room, w)
		p.mu.Unlock()
	})
	p.mu.Lock()
	p.rooms = slices.DeleteFunc(p.rooms, func(r wire.Room) bool { return r.Made == &room })
	p.mu.Unlock()
	return err
}

// repay counts a message that was taken, and tells its sender, a rank of the
// endpoint, now and then; the caller holds mu.
func (p *port) repay(from, n int) {
	if from == p.e.Rank() {
		return
	}
	if tell := p.Owe(from, n); tell > 0 {
		p.e.wire.Link(from).Control(&wire.Outbound{H: frame.Header{Kind: frame.Credit, Total: tell}, Call: p.Enc})
	}
}

// repaid takes what a peer told.
func (p *port) repaid(rank int, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Attached || !p.Repaid(rank, n) {
		return
	}
	for i := range p.rooms {
		if r := &p.rooms[i]; r.Rank == rank {
			r.Give()
		}
	}
}
