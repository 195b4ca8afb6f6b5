package comm

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// placed says that processors are known by their numbers.
const placed = true

// processor is the number of the one that this runs on, which Linux keeps where
// an instruction reads it.
func processor() uint32

// allowed are the processors that the calling thread may use.
func allowed() []uint32 {
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

// moveTo moves the calling thread to a processor, and lets it leave it again.
func moveTo(cpu uint32) {
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
