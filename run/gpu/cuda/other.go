//go:build !linux || !(amd64 || arm64) || static

package cuda

import (
	"fmt"
	"runtime"

	"github.com/weft-fabric/weft/run/gpu"
)

// Count fails as Open does.
func Count() (int, error) { return 0, errStatic }

// Open fails: libraries are opened at run time on Linux alone, and not by a static program.
func Open(int) (gpu.Device, error) {
	return nil, errStatic
}

var errStatic = fmt.Errorf("%w: this program was built for %s/%s or statically; want Linux on amd64 or arm64",
	gpu.ErrNoLibrary, runtime.GOOS, runtime.GOARCH)
