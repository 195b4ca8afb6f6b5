//go:build !linux

package device

import (
	"context"

	"github.com/weft-fabric/weft/run/gpu"
)

// lines are not there but on Linux: hosts wait for GPUs.
type lines struct{}

func (*lines) in(int) *uint32           { return nil }
func (*lines) out(int) *uint32          { return nil }
func (*lines) cut() *uint32             { return nil }
func (*lines) first(*uint32, uint32)    {}
func (*lines) get(*uint32) uint32       { return 0 }
func (*lines) has(*uint32, uint32) bool { return true }
func (*lines) set(*uint32, uint32)      {}
func (*lines) close(gpu.Device) error   { return nil }

func newLines(context.Context, *Group) (*lines, error) { return nil, nil }

func gone(int) bool { return false }
