//go:build !linux

package device

import (
	"context"

	"github.com/weft-fabric/weft/run/gpu"
)

func newPinned(context.Context, *Group) (*pinned, string, error) {
	return nil, "memory is shared between processes on Linux alone", nil
}

func (p *pinned) unmap(gpu.Device) error { return nil }
