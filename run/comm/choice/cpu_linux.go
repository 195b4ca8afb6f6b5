package choice

import (
	"golang.org/x/sys/unix"
)

// cpuTime is what the calling thread has used of a core, in nanoseconds.
func cpuTime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return t.Nano()
}

// kernel names the running kernel's release.
func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
