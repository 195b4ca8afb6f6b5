package rendezvous

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// smallSegment is what every path carries. Joining takes a few KiB, and has to work over a path that loses large packets for the
// transport to find out which one it is.
const smallSegment = 512

// small limits the packets of a connection, in both directions: its dialer announces the limit to the other end.
func small(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, smallSegment) })
}
