//go:build !linux

package wait

import "time"

// TimeSlice does nothing: other systems have no time slices of a thread's own.
func TimeSlice(time.Duration) {}
