//go:build !linux

package node

import (
	"net"
	"os"

	"github.com/weft-fabric/weft/run/launch"
)

// pair fails: ranks run on Linux only.
func pair() (net.Conn, *os.File, error) { return nil, nil, launch.Supported() }
