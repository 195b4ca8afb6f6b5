package launch

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// cloexec makes a socket that children do not inherit.
const cloexec = unix.SOCK_CLOEXEC

// attributes make a process the leader of its own group, and have the kernel kill
// it should its parent die.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitEnd waits until a child has ended, and does not reap it.
func awaitEnd(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			return
		}
	}
}
