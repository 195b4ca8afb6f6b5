//go:build linux

package tcp

import (
	"fmt"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// A message that is wanted as a whole stays in the socket until the rest of it has
// come, and is then read at once: from there on nothing can fail, and whatever else
// happens meanwhile, the message is received. Where it does not fit the socket, or is
// long in coming, it is read into memory of its own and copied.

// Holder is the port itself.
func (p *port) Holder() transport.Holder { return p }

// Holds reports whether messages wait in the sockets.
func (p *port) Holds(peer, n int) bool {
	if peer < 0 || peer >= len(p.Members) || n > frame.LongSize {
		return false
	}
	pr := p.link(peer)
	if p.e.wire.Secure() || p.e.wire.Sums() || pr.Numbered || pr.Rank == p.e.Rank() || pr.Alive() != nil {
		return false
	}
	ss := pr.Streams()
	return len(ss) > 0 && ss[0].Roomy()
}

// SendWhole sends a message in one frame, if it is not too long for any.
func (p *port) SendWhole(to, channel int, b []byte) error {
	return p.send(to, channel, b, frame.LongSize)
}

// RecvWhole takes the next message of a way into dst once all of it has come.
func (p *port) RecvWhole(from, channel int, dst []byte) error {
	if err := p.Member(from, channel); err != nil {
		return p.fail(err)
	}
	if f := p.err.Load(); f != nil {
		return p.fail(f.err)
	}
	pr := p.link(from)
	if err := pr.Meet(p.stop); err != nil {
		return p.fail(err)
	}
	p.mu.Lock()
	w := p.way(from, channel)
	x := p.at(w, pr.Rank, channel, w.base)
	if x.asked {
		p.mu.Unlock()
		return p.fail(fmt.Errorf("channel %d from rank %d: a message that is wanted as a whole was announced", channel, from))
	}
	w.next++
	x.whole, x.patient = true, true
	p.ask(x, from, dst, nil, transport.FormOf(channel, len(dst)))
	p.mu.Unlock()
	p.linger(pr, x)
	return p.awaitMessage(pr, from, w, x, false, dst, nil)
}

// linger reads until a message that is to stay in the socket has come, or nothing
// more comes for a while.
func (p *port) linger(pr *wire.Link, x *slot) {
	var since time.Time
	for here, idle := 0, 0; !x.done.Load() && p.err.Load() == nil && pr.Alive() == nil; {
		moved := false
		if ss := pr.Streams(); len(ss) > 0 && ss[0].TryRead() {
			moved = ss[0].Read(frame.PieceSize, true, &x.done)
			if x.here > here {
				moved, here = true, x.here
			}
			ss[0].EndRead()
		}
		if moved {
			idle = 0
			continue
		}
		if idle++; idle <= wire.Tries {
			continue
		}
		now := time.Now()
		if idle == wire.Tries+1 {
			since = now
		} else if now.Sub(since) > p.e.wire.Home.LookFor(wire.YieldTime) {
			break
		}
		p.e.wire.Home.Yield()
	}
	p.mu.Lock()
	x.patient = false
	p.mu.Unlock()
}

// written reports whether a message that is wanted as a whole was, and waits for the
// end of it if it has begun; the caller holds mu, which is given up meanwhile.
func (p *port) written(x *slot) bool {
	for x.sure && x.busy > 0 {
		p.mu.Unlock()
		wait.Yield()
		p.mu.Lock()
	}
	return x.whole && x.done.Load()
}

var _ transport.Holder = (*port)(nil)
