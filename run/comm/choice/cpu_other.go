//go:build !linux

package choice

import (
	"runtime"
	"time"
)

var started = time.Now()

// cpuTime stands in for what a thread has used of a core, in nanoseconds: where
// ranks share cores it counts the others' time, too.
func cpuTime() int64 { return int64(time.Since(started)) }

func kernel() string { return runtime.GOOS }
