//go:build !linux

package wire

import (
	"fmt"
	"runtime"
)

// CheckCongestion fails.
func CheckCongestion(string) error { return fmt.Errorf("is not for %s: Linux only", runtime.GOOS) }
