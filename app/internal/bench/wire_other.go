//go:build !linux

package bench

import "errors"

// crossed is not known where there are no namespaces.
func (n *Namespaces) crossed() (uint64, error) { return 0, errors.ErrUnsupported }
