//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// each runs f on every rank and reports what went wrong.
func each(t *testing.T, es []*Endpoint, f func(rank int, p *port) error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(es))
	members := make([]int, len(es))
	for i := range members {
		members[i] = i
	}
	for i, e := range es {
		wg.Go(func() {
			p, err := e.Port(transport.Group{ID: 1, Epoch: 1, Members: members})
			if err == nil {
				err = f(i, p.(*port))
			}
			if err != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

var swapSizes = []int{1, 8, 100, 4096, 8 << 10, 60_000, 128 << 10, 200_000, frame.PieceSize - 8, frame.PieceSize, frame.PieceSize + 8,
	3*frame.PieceSize + 1000, 2*frame.LongSize + frame.PieceSize + 1000}

// TestSwapInPlace adds what comes to what is being sent, in its place: the other side
// gets the bytes as they were. One stream, several, and checked ones alike.
func TestSwapInPlace(t *testing.T) {
	for name, change := range map[string]func(*Config){"one stream": nil, "three": func(c *Config) { c.Streams = 3 },
		"checked": func(c *Config) { c.Checksum = wire.SumsAll }} {
		t.Run(name, func(t *testing.T) {
			each(t, endpoints(t, 2, change), func(rank int, p *port) error {
				for k, n := range append(swapSizes, swapSizes...) {
					p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: uint64(k + 1)}, patience())
					b, theirs := make([]byte, n), make([]byte, n)
					fillRandom(b, uint64(2*k+rank))
					fillRandom(theirs, uint64(2*k+1-rank))
					want := make([]byte, n)
					for i := range want {
						want[i] = b[i] + theirs[i]
					}
					at := 0
					err := p.Exchange(transport.Outgoing{To: 1 - rank, Bytes: b},
						transport.Incoming{From: 1 - rank, N: n, After: true, Take: func(piece []byte) {
							for i, x := range piece {
								b[at+i] += x
							}
							at += len(piece)
						}}, nil)
					if err != nil {
						return fmt.Errorf("%d bytes: %w", n, err)
					}
					if !bytes.Equal(b, want) {
						return fmt.Errorf("%d bytes: sums differ", n)
					}
				}
				return nil
			})
		})
	}
}

// TestNothingIsHandedOutTooEarly: what comes in memory of its own, as pieces with checksums
// do, is handed out no further than what lay there was sent.
func TestNothingIsHandedOutTooEarly(t *testing.T) {
	p, err := endpoints(t, 2, nil)[0].Port(transport.Group{ID: 1, Epoch: 1, Members: []int{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	port := p.(*port)
	port.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
	var sent atomic.Int64
	var got []byte
	want := make([]byte, 1000)
	fillRandom(want, 1)
	port.mu.Lock()
	w := port.way(1, 0)
	s := port.at(w, 1, 0, 0)
	s.after = &sent
	port.ask(s, 1, nil, func(b []byte) { got = append(got, b...) }, transport.FormOf(0, len(want)))
	port.mu.Unlock()
	come := func(from, to int) {
		port.mu.Lock()
		s.busy++
		port.mu.Unlock()
		s.Arrived(&frame.Header{Offset: uint64(from), Length: to - from, Flags: frame.FlagSum}, wire.Part, bytes.Clone(want[from:to]))
	}
	come(0, 600)
	for _, x := range []struct {
		sent    int64
		handed  int
		arrives bool
	}{{0, 0, false}, {63, 0, false}, {200, 192, false}, {599, 576, false}, {600, 600, false}, {640, 600, false}, {700, 664, true},
		{math.MaxInt64, 1000, false}} {
		if sent.Store(x.sent); x.arrives {
			come(600, 1000)
		}
		if port.handMore(s); len(got) != x.handed {
			t.Errorf("%d of %d bytes were sent, and %d were handed out, not %d", x.sent, len(want), len(got), x.handed)
		}
	}
	if !bytes.Equal(got, want) || !s.done.Load() {
		t.Errorf("the message is done: %v; right: %v", s.done.Load(), bytes.Equal(got, want))
	}
}

// TestSwapRound passes messages of different lengths round a ring, received in place or
// piece by piece, by ranks of which some are late.
func TestSwapRound(t *testing.T) {
	const n = 3
	each(t, endpoints(t, n, nil), func(rank int, p *port) error {
		right, left := (rank+1)%n, (rank+n-1)%n
		for k := range swapSizes {
			p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: uint64(k + 1)}, patience())
			length := func(from int) int { return swapSizes[(k+from)%len(swapSizes)] }
			out, in, want := make([]byte, length(rank)), make([]byte, length(left)), make([]byte, length(left))
			fillRandom(out, uint64(n*k+rank))
			fillRandom(want, uint64(n*k+left))
			if k%n == rank { // the others are in a loop of their own meanwhile
				for began := time.Now(); time.Since(began) < time.Millisecond; { // a yield takes 0.3 us, or 4 ms on a busy core
					wait.Yield()
				}
			}
			at := 0
			x := transport.Incoming{From: left, N: len(in), Dst: in}
			if k%2 == 0 {
				x.Dst, x.Take = nil, func(b []byte) { at += copy(in[at:], b) }
			} else if k%3 == 0 {
				p.Expect(left, 0, in)
			}
			if err := p.Exchange(transport.Outgoing{To: right, Bytes: out}, x, nil); err != nil {
				return fmt.Errorf("round %d: %w", k, err)
			}
			if !bytes.Equal(in, want) {
				return fmt.Errorf("round %d: %d bytes differ", k, len(in))
			}
		}
		return nil
	})
}

// TestSwapEnds: a connection that breaks, or a rank that never comes, ends a swap with
// an error, and nothing is written to its memory afterwards.
func TestSwapEnds(t *testing.T) {
	for name, bad := range map[string]func(p *port) error{
		"broken": func(p *port) error {
			p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
			s := p.e.wire.Link(0).Streams()[0]
			if err := p.Send(0, 0, make([]byte, frame.PieceSize/2)); err != nil { // half of what is expected, then the end
				return err
			}
			return unix.Shutdown(s.FD(), unix.SHUT_RDWR)
		},
		"other length": func(p *port) error {
			p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
			return p.Send(0, 0, make([]byte, 77))
		},
		"other call": func(p *port) error {
			p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1, Signature: transport.Signature{5}}, patience())
			err := p.Send(0, 0, make([]byte, frame.PieceSize))
			if _, ok := errors.AsType[*transport.Mismatch](err); ok { // told by the other, before all of it was out
				return nil
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, endpoints(t, 2, nil), func(rank int, p *port) error {
				if rank == 1 {
					return bad(p)
				}
				p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, patience())
				var over bool
				err := p.Exchange(transport.Outgoing{To: 1, Bytes: make([]byte, 20<<20)},
					transport.Incoming{From: 1, N: frame.PieceSize, Take: func([]byte) {
						if over {
							t.Error("a piece after the end")
						}
					}}, nil)
				over = true
				if err == nil {
					return errors.New("the swap went well")
				}
				return nil
			})
		})
	}
}
