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

// OpenNamed fails.
func OpenNamed(ctx context.Context, cfg Config, _ Named) (*Endpoint, error) { return Open(ctx, cfg) }

// Describe has nothing to print.
func (*Endpoint) Describe(io.Writer) error { return nil }
