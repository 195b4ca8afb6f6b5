package measure

import "golang.org/x/sys/unix"

// numbers are a system call's number and its first two arguments.
func numbers(r *unix.PtraceRegs) (number, first, second uint64) {
	return r.Regs[8], r.Regs[0], r.Regs[1]
}
