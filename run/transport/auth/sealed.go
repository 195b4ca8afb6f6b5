package auth

import (
	"bufio"
	"encoding/binary"
	"net"
	"sync"
)

// A sealed connection carries records: a length, a keyed checksum, and up to recordSize bytes.
const (
	recordSize = 64 << 10
	recordHead = 8
)

// Sealed is a connection that has proven itself and whose bytes have keyed checksums from now on: what was
// altered, left out or repeated on its way is an error (ErrAltered), never data. One goroutine may read while
// another writes.
func Sealed(conn net.Conn, s *Secret, dialer bool) net.Conn {
	c := &sealed{Conn: conn, br: bufio.NewReaderSize(conn, 4<<10)}
	c.out, c.in = s.Keys(dialer)
	return c
}

type sealed struct {
	net.Conn
	wmu  sync.Mutex
	out  *Key
	wbuf []byte

	in   *Key
	br   *bufio.Reader
	rbuf []byte
	have int    // bytes of rbuf that were read
	rest []byte // of the last record, in rbuf
}

func (c *sealed) Write(b []byte) (n int, err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for {
		k := min(len(b)-n, recordSize)
		if cap(c.wbuf) < recordHead+k {
			c.wbuf = make([]byte, recordHead+k, recordHead+min(2*k+512, recordSize))
		}
		r := c.wbuf[:recordHead+k]
		binary.LittleEndian.PutUint32(r, uint32(k))
		binary.LittleEndian.PutUint32(r[4:], 0)
		copy(r[recordHead:], b[n:])
		binary.LittleEndian.PutUint32(r[4:], c.out.Head(r))
		c.out.Next()
		if _, err := c.Conn.Write(r); err != nil {
			return n, err
		}
		if n += k; n == len(b) {
			return n, nil
		}
	}
}

func (c *sealed) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		if err := c.record(); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// record reads the next record. A read that ends early, at a deadline, is gone on with.
func (c *sealed) record() error {
	if c.rbuf == nil {
		c.rbuf = make([]byte, 4<<10)
	}
	if err := c.upTo(recordHead); err != nil {
		return err
	}
	n := int(binary.LittleEndian.Uint32(c.rbuf))
	if n > recordSize {
		return ErrAltered
	}
	if err := c.upTo(recordHead + n); err != nil {
		return err
	}
	r := c.rbuf[:recordHead+n]
	sum := binary.LittleEndian.Uint32(r[4:])
	binary.LittleEndian.PutUint32(r[4:], 0)
	if c.in.Head(r) != sum {
		return ErrAltered
	}
	c.in.Next()
	c.have, c.rest = 0, r[recordHead:]
	return nil
}

func (c *sealed) upTo(n int) error {
	if len(c.rbuf) < n {
		b := make([]byte, recordHead+recordSize)
		copy(b, c.rbuf[:c.have])
		c.rbuf = b
	}
	for c.have < n {
		k, err := c.br.Read(c.rbuf[c.have:n])
		c.have += k
		if err != nil && c.have < n {
			return err
		}
	}
	return nil
}
