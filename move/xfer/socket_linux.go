package xfer

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/run/transport/record"
)

// socket reads a TCP socket for those who want all of what they ask for: the kernel wakes the reader when that much is there,
// or lowWater, instead of for every packet. What follows a slice comes with it: its checksum and the next header.
type socket struct {
	raw  syscall.RawConn
	low  int // the socket's mark
	more [tailSize + record.Size]byte
	rest []byte // of more: what has come and was not asked for yet
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

// Read fills b in one system call, and lets the kernel wake it when a useful amount has come rather than for every
// packet. What came beyond b is kept for the next call.
func (s *socket) Read(b []byte) (n int, err error) {
	if len(s.rest) > 0 {
		n = copy(b, s.rest)
		s.rest = s.rest[n:]
		return n, nil
	}
	if len(b) == 0 {
		return 0, nil
	}
	e := s.raw.Read(func(fd uintptr) bool {
		for {
			n, err = s.readv(int(fd), b)
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
	if n > len(b) {
		s.rest = s.more[:n-len(b)]
		n = len(b)
	}
	return n, nil
}

// readv reads into b, and behind it into more. Behind a header alone it reads nothing: the slice would begin in more, and all of it
// would be copied to odd addresses.
func (s *socket) readv(fd int, b []byte) (int, error) {
	if len(b) <= record.Size {
		return unix.Read(fd, b)
	}
	v := [2]unix.Iovec{{Base: unsafe.SliceData(b)}, {Base: &s.more[0]}}
	v[0].SetLen(len(b))
	v[1].SetLen(len(s.more))
	n, _, e := unix.Syscall(unix.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&v[0])), 2)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
