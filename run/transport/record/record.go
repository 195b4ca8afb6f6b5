// Package record is what the ends of a connection say to each other when they are not in a collective: in the rendezvous, to the
// witness, in one-sided operations over TCP, and in transfers (package move/xfer). A record is a header of fixed size and a body.
// Both have checksums, which are keyed and in order where the ends share a secret (package auth): what was altered, left out or
// repeated on its way is an error, never data.
//
//	 0  u16 magic   u8 kind   u8 flags   u32 length of the body
//	 8  u64 call                         16  u64 number
//	24  u32 checksum of the body         28  u32 checksum of the header with this field zero
//
// What kinds there are, and what call and number mean, is up to whoever talks. Numbers are little-endian.
package record

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/weft-fabric/weft/run/transport/auth"
)

// Size is that of a header.
const Size = 32

const magic = 0x5847

// Header is that of a record.
type Header struct {
	Kind, Flags  uint8
	Length       uint32 // of the body
	Call, Number uint64
	Sum          uint32 // of the body
}

// Put encodes a header and goes on to the next one.
func (h *Header) Put(b *[Size]byte, k *auth.Key) {
	le := binary.LittleEndian
	le.PutUint16(b[0:], magic)
	b[2], b[3] = h.Kind, h.Flags
	le.PutUint32(b[4:], h.Length)
	le.PutUint64(b[8:], h.Call)
	le.PutUint64(b[16:], h.Number)
	le.PutUint32(b[24:], h.Sum)
	le.PutUint32(b[28:], 0)
	le.PutUint32(b[28:], k.Head(b[:]))
	k.Next()
}

// Parse decodes a header and goes on to the next one.
func (h *Header) Parse(b *[Size]byte, k *auth.Key) error {
	le := binary.LittleEndian
	if m := le.Uint16(b[0:]); m != magic {
		return fmt.Errorf("record begins with %#x instead of %#x", m, magic)
	}
	sum := le.Uint32(b[28:])
	le.PutUint32(b[28:], 0)
	if k.Head(b[:]) != sum {
		return fmt.Errorf("header: %w", auth.ErrAltered)
	}
	k.Next()
	*h = Header{Kind: b[2], Flags: b[3], Length: le.Uint32(b[4:]), Call: le.Uint64(b[8:]), Number: le.Uint64(b[16:]), Sum: le.Uint32(b[24:])}
	return nil
}

// Conn is a connection that carries records. One goroutine may read while another writes.
type Conn struct {
	net.Conn
	in *auth.Key
	br *bufio.Reader

	wmu  sync.Mutex
	out  *auth.Key
	wait []byte // was put and is not written
	vec  [2][]byte
}

// readAhead is small: what a long body has in it is copied.
const readAhead = 4 << 10

// New lets a connection carry records from now on. Without a secret checksums are CRC-32C. buffer is how many bytes may wait to be written.
func New(conn net.Conn, s *auth.Secret, dialer bool, buffer int) *Conn {
	c := &Conn{Conn: conn, in: auth.PlainKey(), out: auth.PlainKey(), br: bufio.NewReaderSize(conn, readAhead), wait: make([]byte, 0, buffer)}
	if s != nil {
		c.out, c.in = s.Keys(dialer)
	}
	return c
}

// Send writes a record at once. Its length and checksum are those of the body.
func (c *Conn) Send(h Header, body []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if err := c.put(&h, body); err != nil || len(c.wait) == 0 {
		return err
	}
	return c.flush(nil)
}

// Put writes a record that goes with the next Flush, or before.
func (c *Conn) Put(h Header, body []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.put(&h, body)
}

// put copies what fits where records wait, and makes the checksum of the copy. A longer body is not copied: it must not change.
func (c *Conn) put(h *Header, body []byte) error {
	if len(c.wait)+Size+len(body) > cap(c.wait) && len(c.wait) > 0 {
		if err := c.flush(nil); err != nil {
			return err
		}
	}
	n := len(c.wait)
	c.wait = c.wait[:n+Size]
	long := len(c.wait)+len(body) > cap(c.wait)
	if !long {
		c.wait = append(c.wait, body...)
		body = c.wait[n+Size:]
	}
	h.Length = uint32(len(body))
	if len(body) > 0 {
		h.Sum = c.out.Piece(body)
	}
	h.Put((*[Size]byte)(c.wait[n:]), c.out)
	if long {
		return c.flush(body)
	}
	return nil
}

// flush writes what waits, and a body after it, which is not copied.
func (c *Conn) flush(body []byte) error {
	v := net.Buffers(append(c.vec[:0], c.wait))
	if len(body) > 0 {
		v = append(v, body)
	}
	c.wait = c.wait[:0]
	_, err := v.WriteTo(c.Conn)
	return err
}

// Flush writes what was put.
func (c *Conn) Flush() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if len(c.wait) == 0 {
		return nil
	}
	return c.flush(nil)
}

// Waits reports whether the next header is here already.
func (c *Conn) Waits() bool { return c.br.Buffered() >= Size }

// Next reads a header. Its body comes next.
func (c *Conn) Next(h *Header) error {
	var b [Size]byte
	if _, err := io.ReadFull(c.br, b[:]); err != nil {
		return err
	}
	return h.Parse(&b, c.in)
}

// Body reads the body of a record into b, which has its length.
func (c *Conn) Body(h *Header, b []byte) error {
	if _, err := io.ReadFull(c.br, b); err != nil {
		return err
	}
	return c.check(h, b)
}

func (c *Conn) check(h *Header, b []byte) error {
	if len(b) > 0 && c.in.Piece(b) != h.Sum {
		return fmt.Errorf("body: %w", auth.ErrAltered)
	}
	return nil
}

// Pass reads over a body. Nobody needs it, so nobody looks at its checksum.
func (c *Conn) Pass(h *Header) error {
	_, err := c.br.Discard(int(h.Length))
	return err
}

// Receive reads a record whose body may have as many bytes as most allows for its header. Memory for it grows as it comes, so that a
// length alone does not take any.
func (c *Conn) Receive(h *Header, most func(*Header) (uint32, error)) ([]byte, error) {
	if err := c.Next(h); err != nil {
		return nil, err
	}
	n, err := most(h)
	if err == nil && h.Length > n {
		err = fmt.Errorf("record of kind %d with %d bytes, at most %d are allowed", h.Kind, h.Length, n)
	}
	if err != nil {
		return nil, err
	}
	const piece = 1 << 20
	var body []byte
	for len(body) < int(h.Length) {
		at := len(body)
		body = append(body, make([]byte, min(piece, int(h.Length)-at))...)
		if _, err := io.ReadFull(c.br, body[at:]); err != nil {
			return nil, err
		}
	}
	return body, c.check(h, body)
}
