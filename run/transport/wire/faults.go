//go:build linux

package wire

import (
	"net"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/buffer"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
)

// What tests of those above do to links, so that they meet what is rare. Nothing else uses it.

// FD is the stream's socket.
func (s *Stream) FD() int { return s.fd }

// Number is the stream's among those of its rails.
func (s *Stream) Number() int { return s.number }

// Fail breaks the stream.
func (s *Stream) Fail(why error) { s.fail(why) }

// End breaks the stream and closes its socket, as when its process ends.
func (s *Stream) End() {
	s.fail(errClosed)
	s.dispose()
}

// HungUp says that writing to the stream failed, or reading did.
func (s *Stream) HungUp() bool { return s.hung.Load() || s.lost.Load() }

// Poke writes a frame that says nothing.
func (s *Stream) Poke() { s.sendNow(frame.Header{Kind: frame.Ack}, &Call{}, nil) }

// HoldWrites keeps the stream from writing until it is let go.
func (s *Stream) HoldWrites() (let func()) {
	s.wmu.Lock()
	s.writing = true
	s.wmu.Unlock()
	return sync.OnceFunc(func() {
		s.wmu.Lock()
		s.writing = false
		s.wmu.Unlock()
		s.write()
	})
}

// HoldReads keeps everybody from reading the stream until it is let go.
func (s *Stream) HoldReads() (let func()) {
	s.rmu.Lock()
	return sync.OnceFunc(s.rmu.Unlock)
}

// Halve writes the header of the first frame that waits, and the first half of its piece.
func (s *Stream) Halve() error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	o := s.queue[s.first]
	s.start(o)
	n, err := socket.Send2(s.fd, s.wbuf[:frame.HeaderSize], o.B[:len(o.B)/2], &s.wmsg)
	if err == nil {
		s.sent(o, n)
	}
	return err
}

// Within makes the stream one that is reading a piece into memory. The caller holds its reads.
func (s *Stream) Within(to Landing, h frame.Header, into []byte) {
	s.cur = inbound{on: true, mode: Direct, to: to, into: into, all: into, left: len(into), h: h}
}

// Reads is how often something was read from the stream.
func (s *Stream) Reads() uint64 {
	s.rmu.Lock()
	defer s.rmu.Unlock()
	return s.reads
}

// Queued is how many frames wait.
func (s *Stream) Queued() int { return int(s.queued.Load()) }

// Came is the number up to which all pieces have come.
func (pr *Link) Came() uint64 { return pr.carrier.mark.Load() }

// Vanish makes the peer gone.
func (pr *Link) Vanish(why string) { pr.vanish(why) }

// Prefer makes short messages take a stream first.
func (pr *Link) Prefer(s *Stream) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	all := []*Stream{s}
	for _, x := range pr.Streams() {
		if x != s {
			all = append(all, x)
		}
	}
	pr.streams.Store(&all)
}

// Unaltered lets time pass in which no frame of the peer was altered.
func (pr *Link) Unaltered(d time.Duration) {
	pr.mu.Lock()
	defer pr.mu.Unlock()
	pr.altered.paid = pr.altered.paid.Add(-d)
}

// Unpumped lets nobody but callers read the streams.
func (e *Node) Unpumped() {
	for _, pr := range e.peers {
		for _, s := range pr.Streams() {
			e.unwatch(s)
		}
	}
}

// AsBetweenHosts makes connections that break come back, as those between hosts do.
func (e *Node) AsBetweenHosts() { e.resumes = true }

// Look is one look of a sender that waits for a link; wide says that it looks at all others, too.
func (pr *Link) Look(p Caller, wide bool) {
	pr.e.turn(p, nil, pr, nil, true, &spell{on: AnyStream, wide: wide})
}

// Fed feeds bytes to a stream of a node that was not opened, as if they came from a rank.
func (e *Node) Fed(rank int, b []byte) error {
	e.rails, e.traffic = make([]rails.Rail, 1), make([]traffic, 1)
	s := &Stream{e: e, peer: e.peers[rank], in: auth.PlainKey(), out: auth.PlainKey(), stage: buffer.Aligned(stageSize), conn: nowhere{},
		kick: make(chan struct{}, 1)}
	all := []*Stream{s}
	e.peers[rank].streams.Store(&all)
	s.rmu.Lock()
	defer s.rmu.Unlock()
	return s.feed(b)
}

type nowhere struct{ net.Conn }

func (nowhere) Close() error { return nil }

// Address is where the node listens, on its first rail.
func (e *Node) Address() string { return e.listeners[0].Addr().String() }

// World is what tells this world's ranks from others.
func (e *Node) World() [16]byte { return e.world }
