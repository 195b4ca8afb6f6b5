//go:build !linux || !(amd64 || arm64) || static

package ucx

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/weft-fabric/weft/run/transport"
)

// Endpoint is a rank's worker of UCX and its connections; there is none in this build.
type Endpoint struct{ transport.Endpoint }

// Open says that there is no UCX.
func Open(context.Context, Config) (*Endpoint, error) { return nil, absent() }

// Version says so, too.
func Version() (string, error) { return "", absent() }

// Available says so, too.
func Available() ([]string, error) { return nil, absent() }

// Describe prints nothing.
func (e *Endpoint) Describe(io.Writer) error { return nil }

func absent() error {
	return fmt.Errorf("UCX is not in this build (%s/%s): it takes Linux on amd64 or arm64, and a build without the tag static",
		runtime.GOOS, runtime.GOARCH)
}

// Register says that there is no UCX.
func (e *Endpoint) Register(uintptr, int, Memory) (transport.Key, error) { return 0, absent() }
