package affinity

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Allowed are the processors that the calling thread may use.
func Allowed() []uint32 {
	list := []uint32{}
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return list
	}
	for cpu, n := 0, may.Count(); len(list) < n; cpu++ {
		if may.IsSet(cpu) {
			list = append(list, uint32(cpu))
		}
	}
	return list
}

// MoveTo moves the calling thread to a processor, and lets it leave it again.
func MoveTo(cpu uint32) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var may, there unix.CPUSet
	there.Set(int(cpu))
	if err := unix.SchedGetaffinity(0, &may); err != nil || !may.IsSet(int(cpu)) {
		return
	}
	if unix.SchedSetaffinity(0, &there) == nil {
		_ = unix.SchedSetaffinity(0, &may)
	}
}

// processor is the number of the one that this runs on.
func processor() uint32 {
	var cpu uint32
	_, _, _ = syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return cpu
}
