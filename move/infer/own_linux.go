package infer

import "syscall"

// own: a worker ends with its starter, and the terminal's signals go to the starter alone.
func own() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
