//go:build linux

package tcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/rails"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// relay sits between two ranks: it passes on what they say to one another, the proof of the token included, and
// changes what follows when it is told to.
type relay struct {
	ln     net.Listener
	to     atomic.Value
	change atomic.Int32 // bytes to change, one in each of the next reads
	wg     sync.WaitGroup

	dead  int           // the number of the connection, from 1 on, whose listener is not heard any more after some bytes, nor its end; 0 for none
	quiet chan struct{} // closed when that is so
	over  chan struct{} // closed when the test is
}

func newRelay(t *testing.T) *relay {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{ln: ln, quiet: make(chan struct{}), over: make(chan struct{})}
	r.wg.Go(func() {
		for n := 1; ; n++ {
			a, err := ln.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", r.to.Load().(string))
			if err != nil {
				a.Close()
				continue
			}
			if n == r.dead {
				ln.Close() // nor can it be made again
				r.wg.Go(func() { r.die(b, a) })
				r.wg.Go(func() { _, _ = io.Copy(b, a) })
				continue
			}
			r.wg.Go(func() { r.pass(a, b) })
			r.wg.Go(func() { r.pass(b, a) })
		}
	})
	t.Cleanup(func() { close(r.over); ln.Close(); r.wg.Wait() })
	return r
}

// die passes on what comes first, and nothing more: the connection goes on, as over a link that is cut.
func (r *relay) die(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	_, _ = io.CopyN(to, from, 100_000)
	close(r.quiet)
	<-r.over
}

func (r *relay) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 1000 && r.change.Load() > 0 && r.change.Add(-1) >= 0 {
			buf[n/2] ^= 1 // within a piece, whose header may have come before
		}
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// between lets a rank find the relay where the other one listens.
func (r *relay) between(t *testing.T, g transport.Gather, rank int) transport.Gather {
	rounds := 0
	return func(ctx context.Context, mine []byte) ([][]byte, error) {
		all, err := g(ctx, mine)
		if rounds++; rounds != 2 || err != nil {
			return all, err
		}
		out := append([][]byte(nil), all...)
		var l rails.Listening
		if err := l.Get(all[1-rank]); err != nil {
			return nil, err
		}
		r.to.Store(l.At[0].Addr.String())
		l.At[0].Addr = netip.MustParseAddrPort(r.ln.Addr().String())
		out[1-rank] = l.Put()
		return out, nil
	}
}

// Whoever sits between two ranks and changes a byte is found out: with several connections the messages are sent again
// over another one, with one connection the call ends. Data is never wrong.
func TestRelay(t *testing.T) {
	for _, x := range []struct {
		name    string
		streams int
		sums    wire.Sums
		ends    bool // the call does
	}{{"keyed, several streams", 2, wire.SumsAll, false}, {"keyed, one stream", 1, wire.SumsAll, true}} {
		t.Run(x.name, func(t *testing.T) {
			r := newRelay(t)
			es := endpoints(t, 2, func(c *Config) {
				c.Streams, c.Checksum = x.streams, x.sums
				if c.Rank == 1 { // it dials
					c.Gather = r.between(t, c.Gather, 1)
				}
			})
			if err := exchange(es, 1, []int{8, 5000, 200_000}, nil); err != nil {
				t.Fatal(err)
			}
			r.change.Store(1)
			err := exchange(es, 2, []int{5000, 200_000, 8}, nil)
			altered := total(es[0], "frames.altered") + total(es[1], "frames.altered")
			switch {
			case altered == 0:
				t.Errorf("nobody noticed: %v", err)
			case (err != nil) != x.ends:
				t.Errorf("%v", err)
			}
		})
	}
}

// Frames that are altered now and then cost connections and never the job, however many there are over its life; many at once end it,
// with an error that names both ranks. Between accidents the clock of what was seen is turned back, as if time had passed.
func TestAlteredNowAndThen(t *testing.T) {
	r := newRelay(t)
	es := endpoints(t, 2, func(c *Config) {
		c.Streams, c.Checksum = 2, wire.SumsAll
		if c.Rank == 1 { // it dials
			c.Gather = r.between(t, c.Gather, 1)
		}
	})
	altered := func() uint64 { return total(es[0], "frames.altered") + total(es[1], "frames.altered") }
	const accidents = 3 * wire.AlterMost / 2
	comm := uint32(1)
	for altered() < accidents {
		before := altered()
		for altered() == before {
			if r.change.Load() <= 0 { // it may fall on a piece that came a second time, which nobody looks at
				r.change.Store(1)
			}
			if err := exchange(es, comm, []int{200_000}, nil); err != nil {
				t.Fatalf("after %d altered frames: %v", altered(), err)
			}
			comm++
		}
		for i, e := range es {
			pr := e.wire.Link(1 - i)
			pr.Unaltered(wire.AlterTime)
		}
	}
	r.change.Store(1 << 20)
	err := exchange(es, comm, []int{200_000}, nil)
	if err == nil || !strings.Contains(err.Error(), "rank 0 is gone") || !strings.Contains(err.Error(), "with rank 1 bring altered frames") {
		if err == nil || !strings.Contains(err.Error(), "rank 1 is gone") || !strings.Contains(err.Error(), "with rank 0 bring altered frames") {
			t.Errorf("every piece is altered: %v", err)
		}
	}
}

// A piece that was half read when its link died comes again over another stream: then its message is there, though the
// receiver does not know yet that the link is dead.
func TestLinkDiesWithinAPiece(t *testing.T) {
	r := newRelay(t)
	r.dead = 2
	es := endpoints(t, 2, func(c *Config) {
		c.Streams = 2
		if c.Rank == 1 { // it dials
			c.Gather = r.between(t, c.Gather, 1)
		}
	})
	var ports [2]*port
	for i, e := range es {
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = p.(*port)
		ports[i].begin(1)
	}
	out, in := make([]byte, 4<<20), make([]byte, 4<<20)
	fillRandom(out, 1)
	got, sent := ports[1].awaits(t, in), make(chan error, 1)
	go func() { sent <- ports[0].Send(1, 0, out) }()
	<-r.quiet
	for _, s := range es[0].wire.Link(1).Streams() {
		if s.Number() == 1 {
			s.Fail(errors.New("2 packets in a row without an answer"))
		}
	}
	for what, c := range map[string]<-chan error{"sent": sent, "received": got} {
		if err := <-c; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !bytes.Equal(in, out) {
		t.Error("another message came")
	}
	if total(es[0], "pieces.resent") == 0 {
		t.Error("nothing was sent again")
	}
}
