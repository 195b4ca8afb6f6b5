package wait

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexOpWait = 0
	futexOpWake = 1
	all         = 1<<31 - 1
)

// futexWait sleeps while *word is v, for d at most. It may return early.
func futexWait(word *uint32, v uint32, d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(v), uintptr(unsafe.Pointer(&t)), 0, 0)
}

func futexWake(word *uint32) {
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, all, 0, 0, 0)
}

func osYield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
