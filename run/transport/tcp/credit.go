//go:build linux

package tcp

import (
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
)

// Unbound lets the call go on whatever its peers leave waiting.
func (p *port) Unbound() {
	p.mu.Lock()
	p.Deep = true
	p.mu.Unlock()
}

var _ transport.Bounded = (*port)(nil)

// roomWait is a sender that waits for room.
type roomWait struct {
	rank int
	room *atomic.Bool
	w    *waiter // nil while it does not sleep
}

// setWaiter notes whom to wake when there is room.
func setWaiter(list []roomWait, room *atomic.Bool, w *waiter) {
	for i := range list {
		if list[i].room == room {
			list[i].w = w
		}
	}
}

// awaitCredit waits until a peer has taken enough.
func (p *port) awaitCredit(pr *peer) error {
	var room atomic.Bool
	p.mu.Lock()
	if !p.Full(pr.rank) {
		p.mu.Unlock()
		return nil
	}
	p.rooms = append(p.rooms, roomWait{rank: pr.rank, room: &room})
	p.mu.Unlock()
	// Credit comes as messages do.
	err := p.await(pr, anyStream, &room, false, func(w *waiter) {
		p.mu.Lock()
		setWaiter(p.rooms, &room, w)
		p.mu.Unlock()
	})
	p.mu.Lock()
	p.rooms = slices.DeleteFunc(p.rooms, func(r roomWait) bool { return r.room == &room })
	p.mu.Unlock()
	return err
}

// repay counts a message that was taken, and tells its sender, a rank of the
// endpoint, now and then; the caller holds mu.
func (p *port) repay(from, n int) {
	if from == p.e.cfg.Rank {
		return
	}
	if tell := p.Owe(from, n); tell > 0 {
		p.e.peers[from].control(&outbound{h: frame.Header{Kind: frame.Credit, Total: tell}, call: p.Enc})
	}
}

// repaid takes what a peer told.
func (p *port) repaid(rank int, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Attached || !p.Repaid(rank, n) {
		return
	}
	for _, r := range p.rooms {
		if r.rank == rank {
			r.room.Store(true)
			r.w.wake()
		}
	}
}
