package comm

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// processor is the number of the one that this runs on, which Linux keeps where
// an instruction reads it.
func processor() uint32

// placed says that processors are known by their numbers.
const placed = true

// leave moves the calling thread to another processor, if it may use more than this one.
func leave(cpu uint32) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil || may.Count() < 2 || !may.IsSet(int(cpu)) {
		return
	}
	others := may
	others.Clear(int(cpu))
	if unix.SchedSetaffinity(0, &others) == nil {
		_ = unix.SchedSetaffinity(0, &may)
	}
}
