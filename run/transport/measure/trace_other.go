//go:build !linux || !(amd64 || arm64)

package measure

import (
	"context"
	"errors"
	"io"
)

const (
	begin = 1 + iota
	end
)

func mark(uintptr) {}

// Trace says that system calls are not counted here.
func Trace(context.Context, []string, io.Writer) error {
	return errors.New("system calls are counted on Linux, on amd64 and arm64")
}
