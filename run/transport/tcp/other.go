//go:build !linux

package tcp

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/weft-fabric/weft/run/transport"
)

// Endpoint is a rank's streams with all others, which exist on Linux only.
type Endpoint struct{ transport.Endpoint }

// Open fails.
func Open(context.Context, Config) (*Endpoint, error) {
	return nil, fmt.Errorf("tcp: Linux only: ranks do not run on %s", runtime.GOOS)
}

// CheckCongestion fails.
func CheckCongestion(string) error { return fmt.Errorf("is not for %s: Linux only", runtime.GOOS) }

// Describe has nothing to print.
func (*Endpoint) Describe(io.Writer) error { return nil }
