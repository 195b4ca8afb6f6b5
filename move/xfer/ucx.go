package xfer

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/run/transport"
	"github.com/weft-fabric/weft/run/transport/ucx"
)

// ucxStream carries the frames of a stream over UCX: two agents are a world of two ranks, the one that dialed is rank 0. What holds for
// sockets holds here, too, as only the bytes go another way: slices have their checksums, and their receiver puts them where they belong.
//
// A write is a note of fixed size with its length, and its bytes: in the note if there is room, else in a message behind it, which UCX puts
// straight into the memory that is read into. A wait that is interrupted leaves a message halfway, so it ends the stream.
type ucxStream struct {
	net.Conn // by which the ends met; it ends with the other process
	end      *ucx.Endpoint
	name     string // which transports UCX took
	in, out  transport.Port
	other    int // rank of the other end
	once     sync.Once
	broken   atomic.Bool

	read, write atomic.Int64 // deadlines, in nanoseconds since 1970; 0 for none

	got  [noteSize]byte
	rest []byte // that came and was not read
	more int    // bytes of the message that follows the last note
	buf  []byte
	put  [noteSize]byte
}

// noteSize is the size of a note: 4 bytes length, and room for a header or a checksum.
const noteSize = 64

const noteRoom = noteSize - 4

// ucxPatience is how long a peer may take to let go of a slice that was given up, and UCX after it: both together leave the other end
// to be told within a second.
const ucxPatience = 300 * time.Millisecond

// overUCX lets the frames of a connection go over UCX from now on.
func (c *conn) overUCX(ctx context.Context, rank int) error {
	// What UCX must know of the other end goes over the connection.
	gather := func(_ context.Context, mine []byte) ([][]byte, error) {
		if err := c.send(fBlob, 0, 0, mine); err != nil {
			return nil, err
		}
		var f frame
		if err := c.next(&f); err != nil {
			return nil, err
		}
		if f.Kind != fBlob {
			return nil, fmt.Errorf("frame of kind %d instead of an address of UCX", f.Kind)
		}
		all := make([][]byte, 2)
		all[rank], all[1-rank] = mine, f.payload
		return all, nil
	}
	end, err := ucx.Open(ctx, ucx.Config{Rank: rank, Size: 2, Gather: gather, Patience: ucxPatience, Log: c.agent.cfg.Log})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPath, err)
	}
	s := &ucxStream{Conn: c.nc, end: end, name: end.Can().Name, other: 1 - rank}
	ports := make([]transport.Port, 2) // 0 carries what rank 0 sends
	for i := range ports {
		if ports[i], err = end.Port(transport.Group{ID: uint32(1 + i), Epoch: 1, Members: []int{0, 1}}); err != nil {
			_ = end.Close()
			return err
		}
	}
	s.out, s.in = ports[rank], ports[1-rank]
	s.in.Begin(transport.Call{Seq: 1}, func() error { return s.over(&s.read) })
	s.out.Begin(transport.Call{Seq: 1}, func() error { return s.over(&s.write) })
	a := c.agent
	a.mu.Lock()
	c.nc, c.src = s, s
	a.mu.Unlock()
	a.wg.Go(func() {
		_, _ = io.Copy(io.Discard, s.Conn) // nothing comes but its end
		_ = s.Close()
		s.in.Close()
		s.out.Close()
		_ = s.end.Close()
	})
	return nil
}

// over says why a wait must end.
func (s *ucxStream) over(deadline *atomic.Int64) error {
	if s.broken.Load() {
		return net.ErrClosed
	}
	if d := deadline.Load(); d != 0 && time.Now().UnixNano() > d {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// fail ends the stream: a message was left halfway.
func (s *ucxStream) fail(err error) error {
	_ = s.Close()
	return fmt.Errorf("UCX: %w", err)
}

// Close ends the stream.
func (s *ucxStream) Close() error {
	s.broken.Store(true)
	s.once.Do(func() { _ = s.Conn.Close() })
	return nil
}

// Read reads what came.
func (s *ucxStream) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for len(s.rest) == 0 && s.more == 0 {
		if err := s.in.Recv(s.other, 0, s.got[:]); err != nil {
			return 0, s.fail(err)
		}
		n := int(binary.LittleEndian.Uint32(s.got[:]))
		if n > noteRoom {
			s.more = n
		} else {
			s.rest = s.got[4:][:n]
		}
	}
	if s.more > len(b) {
		if s.more > maxPayload {
			return 0, s.fail(fmt.Errorf("%w: a message of %d bytes", ErrLimit, s.more))
		}
		if cap(s.buf) < s.more {
			s.buf = make([]byte, s.more)
		}
		if err := s.in.Recv(s.other, 0, s.buf[:s.more]); err != nil {
			return 0, s.fail(err)
		}
		s.rest, s.more = s.buf[:s.more], 0
	}
	if n := s.more; n > 0 {
		s.more = 0
		if err := s.in.Recv(s.other, 0, b[:n]); err != nil {
			return 0, s.fail(err)
		}
		return n, nil
	}
	n := copy(b, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Write sends b.
func (s *ucxStream) Write(b []byte) (int, error) {
	binary.LittleEndian.PutUint32(s.put[:], uint32(len(b)))
	if len(b) <= noteRoom {
		copy(s.put[4:], b)
	}
	err := s.out.Send(s.other, 0, s.put[:])
	if err == nil && len(b) > noteRoom {
		err = s.out.Send(s.other, 0, b)
	}
	if err != nil {
		return 0, s.fail(err)
	}
	return len(b), nil
}

func (s *ucxStream) SetReadDeadline(t time.Time) error  { return s.set(&s.read, t) }
func (s *ucxStream) SetWriteDeadline(t time.Time) error { return s.set(&s.write, t) }
func (s *ucxStream) SetDeadline(t time.Time) error {
	_ = s.set(&s.read, t)
	return s.set(&s.write, t)
}

func (s *ucxStream) set(deadline *atomic.Int64, t time.Time) error {
	if t.IsZero() {
		deadline.Store(0)
	} else {
		deadline.Store(t.UnixNano())
	}
	return nil
}

// noUCX is why UCX cannot carry frames of this agent; nil if it can.
func (a *Agent) noUCX() error {
	if a.cfg.TLS != nil {
		return fmt.Errorf("what goes over UCX is not encrypted, and TLS is demanded")
	}
	_, err := ucx.Version()
	return err
}
