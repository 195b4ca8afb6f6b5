//go:build !linux

package shm

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/weft-fabric/weft/transport"
)

// Endpoint is a rank's shared memory, which exists on Linux only.
type Endpoint struct{ transport.Endpoint }

// Open says that there is none.
func Open(context.Context, Config) (*Endpoint, error) {
	return nil, fmt.Errorf("shm: shared memory between processes works on Linux only; this is %s", runtime.GOOS)
}

// HostID names a host.
func HostID() string {
	name, _ := os.Hostname()
	return name
}
