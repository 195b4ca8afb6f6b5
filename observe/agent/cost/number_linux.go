//go:build linux && !amd64

package cost

// number is not read on this processor: calls are counted without their names.
func number(int) int { return -1 }
