package launch

import (
	"fmt"
	"runtime"
)

// Supported is an error where ranks cannot run: it takes Linux. Everything that
// runs no ranks works elsewhere, too.
func Supported() error { return supported(runtime.GOOS) }

func supported(system string) error {
	if system == "linux" {
		return nil
	}
	return fmt.Errorf("ranks run on Linux only, and this is %s; topo, design, algo, sim, explain and calibrate work here", system)
}
