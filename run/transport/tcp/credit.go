//go:build linux

package tcp

import (
	"slices"
	"sync/atomic"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/tcp/internal/frame"
)

// A communicator may have this much under way to a peer that the peer has not
// taken; its senders wait then. So a rank that is far ahead of another neither
// fills the other's memory nor holds up what other communicators send over the
// same streams. Receivers tell in steps of a quarter, one small frame for 4 MiB.
const creditLimit = 16 << 20

// full reports whether a peer has to take something before more is sent to it; the
// caller holds mu.
func (p *port) full(rank int) bool { return p.lent[rank] >= creditLimit && !p.deep }

// Bound is what a peer may leave waiting; of what it took, it may not have told a quarter.
func (p *port) Bound() int { return creditLimit - creditLimit/4 }

// Unbound lets the call go on whatever its peers leave waiting.
func (p *port) Unbound() {
	p.mu.Lock()
	p.deep = true
	p.mu.Unlock()
}

var _ transport.Bounded = (*port)(nil)

// cost is what a message counts: its bytes and what goes with it.
func cost(n int) int64 { return int64(n) + 128 }

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
	if !p.full(pr.rank) {
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
	p.owed[from] += cost(n)
	if p.owed[from] < creditLimit/4 {
		return
	}
	p.e.peers[from].control(&outbound{h: frame.Header{Kind: frame.Credit, Total: uint64(p.owed[from])}, call: p.enc})
	p.owed[from] = 0
}

// repaid takes what a peer told.
func (p *port) repaid(rank int, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.attached {
		return
	}
	p.lent[rank] -= n
	if p.lent[rank] >= creditLimit {
		return
	}
	for _, r := range p.rooms {
		if r.rank == rank {
			r.room.Store(true)
			r.w.wake()
		}
	}
}
