//go:build !linux

package wait

import (
	"runtime"
	"time"
)

// Other systems have no futex that Go reaches without cgo: a wait looks every
// hundred microseconds.
func futexWait(*uint32, uint32, time.Duration) { time.Sleep(100 * time.Microsecond) }

func futexWake(*uint32) {}

func osYield() { runtime.Gosched() }
