package node

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// pair gives the two ends of a connection, the second for a child.
func pair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "rank")
	defer f.Close()
	theirs := os.NewFile(uintptr(fds[1]), "agent")
	conn, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
	}
	return conn, theirs, err
}
