//go:build !linux

package evidence

import (
	"context"
	"errors"

	"github.com/weft-fabric/weft/doctor"
)

// Live reads this host, which needs Linux.
func Live(context.Context) (*doctor.Case, error) {
	return nil, errors.New("a live host is read on Linux only; give files or folders")
}
