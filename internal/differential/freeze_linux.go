package differential

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// freeze stops a process after a time, for a moment: until the system says that it has stopped, and as long again as that was after the
// call began. Wherever in the call that is, the result is to be right.
func (p *process) freeze(after time.Duration) error {
	time.Sleep(after)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
	time.Sleep(after)
	return errors.Join(err, p.cmd.Process.Signal(syscall.SIGCONT))
}
