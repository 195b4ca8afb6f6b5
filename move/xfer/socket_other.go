//go:build !linux

package xfer

import (
	"io"
	"net"
)

// whole is the reader of slices.
func whole(nc net.Conn) io.Reader { return nc }
