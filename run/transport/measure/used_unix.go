//go:build unix

package measure

import (
	"syscall"
	"time"
)

// Used is the processor time of this process.
func Used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
