package measure

import "golang.org/x/sys/unix"

// numbers are a system call's number and its first two arguments.
func numbers(r *unix.PtraceRegs) (number, first, second uint64) { return r.Orig_rax, r.Rdi, r.Rsi }
