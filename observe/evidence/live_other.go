//go:build !linux

package evidence

import (
	"context"
	"errors"

	"github.com/weft-fabric/weft/observe/doctor"
)

// Ranks finds ranks of jobs by /proc, which needs Linux.
func Ranks(*doctor.Case, string) {}

// Rank tells whether a process is a rank of a job, which needs Linux.
func Rank(_, _ string, _ int) (p doctor.Process, ok bool) { return p, false }

// Live reads this host, which needs Linux.
func Live(context.Context) (*doctor.Case, error) {
	return nil, errors.New("a live host is read on Linux only; give files or folders")
}
