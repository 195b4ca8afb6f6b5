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

// Machine names a host.
func Machine() string { return HostID() }

// Reach says that every rank is alone.
func Reach(_ context.Context, _ int, claims []int, _ transport.Gather) (hosts []int, why []string, err error) {
	for r := range claims {
		hosts, why = append(hosts, r), append(why, "shared memory between processes works on Linux only")
	}
	return hosts, why, nil
}
