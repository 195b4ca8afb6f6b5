//go:build !linux

package cost

import (
	"context"
	"errors"
	"time"
)

// Measure needs Linux.
func Measure(context.Context, time.Duration, time.Duration, []string, []string) (Figures, error) {
	return Figures{}, errors.New("what a process costs is measured by /proc and ptrace, which only Linux has")
}
