package cost

import "golang.org/x/sys/unix"

// number is the call in which a stopped thread is.
func number(tid int) int {
	var r unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &r) != nil {
		return -1
	}
	return int(r.Orig_rax)
}
