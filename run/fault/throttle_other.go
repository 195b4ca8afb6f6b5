//go:build !linux

package fault

import "errors"

// Throttle needs Linux.
func Throttle(from, to int, bytesPerSecond uint64) (int, func(), error) {
	return 0, nil, errors.New("connections are throttled on Linux only")
}
