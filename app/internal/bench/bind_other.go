//go:build !linux

package bench

import "errors"

// bind fails: ranks run on Linux only.
func bind(int) error { return errors.New("Linux only: no processor can be chosen here") }
