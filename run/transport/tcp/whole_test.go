//go:build linux

package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/auth"
	"github.com/weft-fabric/weft/run/transport/internal/frame"
	"github.com/weft-fabric/weft/run/transport/internal/socket"
	"github.com/weft-fabric/weft/run/transport/wait"
	"github.com/weft-fabric/weft/run/transport/wire"
)

// Messages are received as a whole, early and late ones, whatever they come over.
func TestRecvWhole(t *testing.T) {
	for name, change := range map[string]func(*Config){"one stream": nil, "three": func(c *Config) { c.Streams = 3 },
		"checked": func(c *Config) { c.Checksum = wire.SumsAll }} {
		t.Run(name, func(t *testing.T) {
			each(t, endpoints(t, 2, change), func(rank int, p *port) error {
				for k, n := range append(swapSizes, swapSizes...) {
					p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: uint64(k + 1)}, patience())
					b, in, want := make([]byte, n), make([]byte, n), make([]byte, n)
					fillRandom(b, uint64(2*k+rank))
					fillRandom(want, uint64(2*k+1-rank))
					if k%3 == rank {
						for began := time.Now(); time.Since(began) < time.Millisecond; { // a yield takes 0.3 us, or 4 ms on a busy core
							wait.Yield()
						}
					}
					var err error
					if p.Holds(1-rank, n) {
						err = errors.Join(p.SendWhole(1-rank, 0, b), p.RecvWhole(1-rank, 0, in))
					} else if rank == 0 {
						err = errors.Join(p.Send(1, 0, b), p.RecvWhole(1, 0, in))
					} else {
						err = errors.Join(p.RecvWhole(0, 0, in), p.Send(0, 0, b))
					}
					if err != nil {
						return fmt.Errorf("%d bytes: %w", n, err)
					}
					if !bytes.Equal(in, want) {
						return fmt.Errorf("%d bytes differ", n)
					}
				}
				return nil
			})
		})
	}
}

// A connection that ends, or is reset, after a number of bytes of a message: nothing of
// it is stored, or all of it if all had come. The same if the receiver's time is over
// instead.
func TestRecvWholeEnds(t *testing.T) {
	const n = 600_000
	want := make([]byte, n)
	fillRandom(want, 7)
	for _, how := range []string{"ends", "is reset", "stays"} {
		for _, cut := range []int{0, 1, frame.HeaderSize, frame.HeaderSize + 1, 8 << 10, n / 2, n + frame.HeaderSize - 1, n + frame.HeaderSize} {
			t.Run(fmt.Sprintf("%s after %d", how, cut), func(t *testing.T) {
				sent := make(chan struct{})
				over := make(chan struct{})
				each(t, endpoints(t, 2, nil), func(rank int, p *port) error {
					stop := patience()
					if rank == 0 && how == "stays" {
						stop = func() error {
							select {
							case <-sent:
								return errors.New("time is over")
							default:
								return nil
							}
						}
					}
					p.Begin(transport.Call{Epoch: 1, Comm: 1, Seq: 1}, stop)
					if rank == 1 {
						defer func() { <-over }()
						return sendCut(p, want, cut, how, sent)
					}
					defer close(over)
					in := bytes.Repeat([]byte{0xA5}, n)
					err := p.RecvWhole(1, 0, in)
					switch {
					case err == nil && !bytes.Equal(in, want):
						return errors.New("received something else")
					case err != nil && !bytes.Equal(in, bytes.Repeat([]byte{0xA5}, n)):
						return fmt.Errorf("stored something though it failed: %w", err)
					case err == nil && cut < n+frame.HeaderSize:
						return errors.New("received what was not sent")
					case err != nil && cut == n+frame.HeaderSize && how == "ends":
						return fmt.Errorf("all had come: %w", err)
					}
					return nil
				})
			})
		}
	}
}

// sendCut sends the beginning of a frame to rank 0 and ends the connection.
func sendCut(p *port, b []byte, cut int, how string, sent chan struct{}) error {
	var head [frame.HeaderSize]byte
	copy(head[56:], p.Enc[:])
	(&frame.Header{Kind: frame.Data, Length: len(b), Total: uint64(len(b))}).Put(&head, auth.PlainKey())
	s := p.e.wire.Link(0).Streams()[0]
	for frame := append(head[:], b...)[:cut]; len(frame) > 0; {
		k, err := socket.Send(s.FD(), frame)
		if err != nil {
			return err
		}
		frame = frame[max(k, 0):]
		wait.Yield()
	}
	close(sent)
	switch how {
	case "ends":
		return unix.Shutdown(s.FD(), unix.SHUT_RDWR)
	case "is reset": // by dissolving the association
		var nobody [16]byte // AF_UNSPEC
		if _, _, e := syscall.RawSyscall(unix.SYS_CONNECT, uintptr(s.FD()), uintptr(unsafe.Pointer(&nobody)), 16); e != 0 {
			return e
		}
	}
	return nil
}
