package xfer

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket reads a TCP socket for those who want all of what they ask for: the kernel wakes the reader when that much is there,
// or lowWater, instead of for every packet.
type socket struct {
	raw syscall.RawConn
	low int // the socket's mark
}

// lowWater is how many bytes are worth waking up for.
const lowWater = 128 << 10

// whole is the reader of slices.
func whole(nc net.Conn) io.Reader {
	c, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nc
	}
	return &socket{raw: raw, low: 1}
}

func (s *socket) Read(b []byte) (n int, err error) {
	e := s.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), b)
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				if low := min(len(b), lowWater); low != s.low && unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, low) == nil {
					s.low = low
					continue // it may have come meanwhile
				}
				return false
			default:
				return true
			}
		}
	})
	switch {
	case e != nil:
		return 0, e
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}
