//go:build linux

package tcp

import (
	"fmt"
	"io"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wait"
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
	pr := p.e.peers[p.Members[peer]]
	if p.e.secure || p.e.sums || pr.numbered || pr.rank == p.e.cfg.Rank || pr.alive() != nil {
		return false
	}
	ss := pr.all()
	return len(ss) > 0 && ss[0].roomy
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
	pr := p.e.peers[p.Members[from]]
	if err := p.meet(pr); err != nil {
		return p.fail(err)
	}
	p.mu.Lock()
	w := p.way(from, channel)
	x := p.at(w, pr.rank, channel, w.base)
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
func (p *port) linger(pr *peer, x *slot) {
	var since time.Time
	for here, idle := 0, 0; !x.done.Load() && p.err.Load() == nil && pr.alive() == nil; {
		moved := false
		if ss := pr.all(); len(ss) > 0 && ss[0].rmu.TryLock() {
			moved = ss[0].read(frame.PieceSize, true, &x.done)
			if x.here > here {
				moved, here = true, x.here
			}
			ss[0].rmu.Unlock()
		}
		if moved {
			idle = 0
			continue
		}
		if idle++; idle <= tries {
			continue
		}
		now := time.Now()
		if idle == tries+1 {
			since = now
		} else if now.Sub(since) > p.e.home.LookFor(yieldTime) {
			break
		}
		p.e.home.Yield()
	}
	p.mu.Lock()
	x.patient = false
	p.mu.Unlock()
}

// wholes reports whether the piece of the current header is a whole message that may
// wait in the socket.
func (s *stream) wholes(x *slot) bool {
	h := &s.cur.h
	return s.conn == nil && h.Piece == 0 && h.Flags&frame.FlagSum == 0 && h.Length == x.total
}

// swallow reads the piece under way, all of which is here.
func (s *stream) swallow() error {
	c := &s.cur
	for c.left > 0 {
		if s.r < s.w {
			n := copy(c.into, s.stage[s.r:s.w])
			s.r += n
			s.took(c.into[:n])
			continue
		}
		if n, _, err := s.fill(); n <= 0 {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
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
