//go:build !linux

package shm

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/weft-fabric/weft/run/transport"
)

// Endpoint is a rank's shared memory, which exists on Linux only.
type Endpoint struct{ transport.Endpoint }

// Open says that there is none.
func Open(context.Context, Config) (*Endpoint, error) {
	return nil, fmt.Errorf("shm: shared memory between processes works on Linux only; this is %s", runtime.GOOS)
}

// Share is memory that other processes of the host map, which exists on Linux only.
type Share struct{}

// NewShare says that there is none.
func NewShare() (*Share, error) { return nil, errOther() }

func errOther() error {
	return fmt.Errorf("shm: shared memory between processes works on Linux only; this is %s", runtime.GOOS)
}

// Alloc gives nothing.
func (s *Share) Alloc(int) ([]byte, error) { return nil, errOther() }

// Free has nothing to give back.
func (s *Share) Free([]byte) error { return errOther() }

// Offset knows no memory.
func (s *Share) Offset([]byte) (uint64, bool) { return 0, false }

// File is none.
func (s *Share) File() *os.File { return nil }

// Close has nothing to do.
func (s *Share) Close() {}

// MapShare maps nothing.
func MapShare(*os.File) ([]byte, error) { return nil, errOther() }

// UnmapShare has nothing to do.
func UnmapShare([]byte) error { return errOther() }

// ReadProcess reads nothing.
func ReadProcess(int, uintptr, []byte) error { return transport.ErrNoPull }

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
