//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// couple is two ranks with one stream and a port each.
func couple(t *testing.T) (es []*Endpoint, ports [2]*port) {
	t.Helper()
	es = endpoints(t, 2, nil)
	for i, e := range es {
		p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = p.(*port)
	}
	return es, ports
}

// framed is a message of a call as it is on the wire.
func framed(call [transport.CallSize]byte, channel, msgno uint32, b []byte) []byte {
	f := make([]byte, frame.HeaderSize, frame.HeaderSize+len(b))
	copy(f[56:], call[:])
	(&frame.Header{Kind: frame.Data, Length: len(b), Total: uint64(len(b)), Channel: channel, Msgno: msgno}).Put((*[frame.HeaderSize]byte)(f),
		auth.PlainKey())
	return append(f, b...)
}

// inject writes bytes to the stream of rank 0 with rank 1.
func inject(t *testing.T, e *Endpoint, b []byte) {
	t.Helper()
	if n, err := socket.Send(e.wire.Link(1).Streams()[0].FD(), b); err != nil || n != len(b) {
		t.Fatalf("%d of %d bytes: %v", n, len(b), err)
	}
}

// awaitRead waits until something was read from a stream, since it was so often.
func awaitRead(t *testing.T, s *wire.Stream, before uint64) {
	t.Helper()
	for stop := patience(); s.Reads() == before; wait.Yield() {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestQuickSplit cuts a short message at many places, the rest of which comes when
// its receiver has read the beginning: it arrives whole.
func TestQuickSplit(t *testing.T) {
	es, ports := couple(t)
	const n = 40
	s := es[1].wire.Link(0).Streams()[0]
	for k, cut := range []int{1, 8, 55, frame.HeaderSize - 1, frame.HeaderSize, frame.HeaderSize + 1, frame.HeaderSize + 32,
		frame.HeaderSize + n - 1} {
		want, in := make([]byte, n), make([]byte, n)
		fillRandom(want, uint64(k))
		for _, p := range ports {
			p.begin(uint64(k + 1))
		}
		f := framed(ports[0].Enc, 0, 0, want)
		before, at := s.Reads(), 0
		done := make(chan error, 1)
		go func() {
			if k%2 == 0 {
				done <- ports[1].Recv(0, 0, in)
			} else {
				done <- ports[1].Take(0, 0, n, func(b []byte) { at += copy(in[at:], b) })
			}
		}()
		inject(t, es[0], f[:cut])
		awaitRead(t, s, before)
		inject(t, es[0], f[cut:])
		if err := <-done; err != nil || !bytes.Equal(in, want) {
			t.Fatalf("cut at %d: %v, %x instead of %x", cut, err, in, want)
		}
	}
}

// TestQuickOthers sends messages of another channel, another communicator and a later
// operation before the one that is waited for, all of them in one piece of the stream:
// each gets where it belongs.
func TestQuickOthers(t *testing.T) {
	es, ports := couple(t)
	other, err := es[1].Port(transport.Group{ID: 2, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	call := transport.Call{Epoch: 1, Comm: 2, Seq: 1}
	other.Begin(call, patience())
	text := func(s string) []byte { return append([]byte(s), make([]byte, 8-len(s))...) }
	var all []byte
	ports[0].begin(1)
	all = append(all, framed(ports[0].Enc, 1, 0, text("channel"))...)
	var foreign [transport.CallSize]byte
	call.Put(foreign[:])
	all = append(all, framed(foreign, 0, 0, text("port"))...)
	all = append(all, framed(ports[0].Enc, 0, 0, text("this"))...)
	all = append(all, framed(ports[0].Enc, 0, 1, text("next"))...)
	ports[0].begin(2)
	all = append(all, framed(ports[0].Enc, 0, 0, text("later"))...)
	inject(t, es[0], all)
	expect := func(p transport.Port, channel int, want string) {
		t.Helper()
		in := make([]byte, 8)
		if err := p.Recv(0, channel, in); err != nil || !bytes.Equal(in, text(want)) {
			t.Fatalf("%v, %q instead of %q", err, in, want)
		}
	}
	ports[1].begin(1)
	expect(ports[1], 0, "this")
	expect(ports[1], 0, "next")
	expect(other, 0, "port")
	expect(ports[1], 1, "channel")
	ports[1].begin(2)
	expect(ports[1], 0, "later")
}

// TestQuickLength: a short message of another length than is waited for, or of another
// call, is an error that says so, and never data.
func TestQuickLength(t *testing.T) {
	for _, n := range []int{0, 7, 9, 4000, wire.QuickSize + 1} {
		_, ports := couple(t)
		for _, p := range ports {
			p.begin(1)
		}
		if err := ports[0].Send(1, 0, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		in := bytes.Repeat([]byte{7}, 8)
		err := ports[1].Recv(0, 0, in)
		if m, ok := errors.AsType[*transport.Mismatch](err); !ok || m.Sent == m.Want || m.Peer != 0 {
			t.Errorf("%d bytes instead of 8: %v", n, err)
		}
		if !bytes.Equal(in, bytes.Repeat([]byte{7}, 8)) {
			t.Errorf("%d bytes instead of 8 were stored: %x", n, in)
		}
	}
	_, ports := couple(t)
	ports[0].Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1, Signature: transport.Signature{3}}, patience())
	ports[1].begin(1)
	if err := ports[0].Send(1, 0, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	in := make([]byte, 8)
	if m, ok := errors.AsType[*transport.Mismatch](ports[1].Recv(0, 0, in)); !ok || m.Theirs.Signature[0] != 3 {
		t.Errorf("a message of another call: %v", m)
	}
}

// TestQuickEnds ends the stream in the middle of a short message, at once or when its
// beginning was read: its receiver hears that the rank is gone.
func TestQuickEnds(t *testing.T) {
	for _, cut := range []int{0, 10, frame.HeaderSize, frame.HeaderSize + 4} {
		for _, late := range []bool{false, true} {
			es, ports := couple(t)
			for _, p := range ports {
				p.begin(1)
			}
			s := es[1].wire.Link(0).Streams()[0]
			fd := es[0].wire.Link(1).Streams()[0].FD()
			inject(t, es[0], framed(ports[0].Enc, 0, 0, make([]byte, 8))[:cut])
			if !late {
				_ = unix.Shutdown(fd, unix.SHUT_RDWR)
			}
			done := make(chan error, 1)
			go func() { done <- ports[1].Recv(0, 0, make([]byte, 8)) }()
			if late {
				if cut > 0 {
					awaitRead(t, s, 0)
				}
				_ = unix.Shutdown(fd, unix.SHUT_RDWR)
			}
			if g, ok := errors.AsType[*transport.Gone](<-done); !ok || g.Rank != 0 {
				t.Errorf("after %d bytes: %v", cut, g)
			}
		}
	}
}

// TestQuickFull sends more short messages than sockets hold before the first is taken,
// some of them behind a long one: all come in order.
func TestQuickFull(t *testing.T) {
	const rounds = 4000
	each(t, endpoints(t, 2, nil), func(rank int, p *port) error {
		p.begin(1)
		size := func(k int) int {
			if k%60 == 59 {
				return 100_000
			}
			return []int{8, wire.QuickSize, 2000, 1, 5000}[k%5]
		}
		out, in, want := make([]byte, 100_000), make([]byte, 100_000), make([]byte, 100_000)
		for k := range rounds {
			n := size(k)
			fillRandom(want[:min(n, 64)], uint64(k))
			var err error
			if rank == 0 {
				copy(out, want[:min(n, 64)])
				err = p.Send(1, 0, out[:n])
			} else if err = p.Recv(0, 0, in[:n]); err == nil && !bytes.Equal(in[:min(n, 64)], want[:min(n, 64)]) {
				err = errors.New("it is another message")
			}
			if err != nil {
				return fmt.Errorf("message %d of %d bytes: %w", k, n, err)
			}
			if rank == 1 && k == 0 {
				s := p.e.wire.Link(0).Streams()[0]
				for stop := patience(); s.Link().Buffered.Load() < earlyBytes/2 && stop() == nil; {
					wait.Yield() // until the sender is far ahead
				}
			}
		}
		return nil
	})
}

// TestQuickReaders lets several communicators exchange short messages over one stream
// at once, so that what one waits for is read by another.
func TestQuickReaders(t *testing.T) {
	es := endpoints(t, 2, nil)
	var wg sync.WaitGroup
	for _, e := range es {
		for id := range uint32(3) {
			wg.Go(func() {
				p, err := e.Port(transport.Group{ID: id + 1, Epoch: 1, Members: []int{0, 1}})
				if err != nil {
					t.Error(err)
					return
				}
				peer := 1 - e.Rank()
				b, in := make([]byte, 64), make([]byte, 64)
				for k := range 2000 {
					p.Begin(transport.Call{Epoch: 1, Comm: id + 1, Seq: uint64(k + 1)}, patience())
					n := 1 + (k+int(id))%len(b)
					for i := range n {
						b[i] = byte(k + i + int(id))
					}
					at := 0
					err := p.Exchange(transport.Outgoing{To: peer, Bytes: b[:n]},
						transport.Incoming{From: peer, N: n, Take: func(x []byte) { at += copy(in[at:], x) }}, nil)
					if err != nil || !bytes.Equal(in[:n], b[:n]) {
						t.Errorf("communicator %d, round %d: %v, %x instead of %x", id+1, k, err, in[:n], b[:n])
						return
					}
				}
			})
		}
	}
	wg.Wait()
}
