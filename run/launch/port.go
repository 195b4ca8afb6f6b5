package launch

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Port is a TCP port of this host that nobody is given while it is held. The
// socket that holds it is bound with SO_REUSEADDR and does not listen, so a
// program that listens with SO_REUSEADDR, as Go, Python and torch do, can take
// the number, and the kernel hands it to no one who asks for any port.
type Port struct {
	Number int
	fd     int
}

// HoldPort finds a free port and holds it.
func HoldPort() (*Port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|cloexec, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	p := &Port{fd: fd}
	// Bound without the option first: with it the kernel may choose a port that
	// another such socket holds.
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		p.Release()
		return nil, fmt.Errorf("bind: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		p.Release()
		return nil, fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		p.Release()
		return nil, fmt.Errorf("getsockname: %w", err)
	}
	p.Number = name.(*unix.SockaddrInet4).Port
	return p, nil
}

// Release lets go of the port.
func (p *Port) Release() {
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}
