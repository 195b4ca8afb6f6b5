package build

import (
	"testing"

	"github.com/weft-fabric/weft/topo/catalog"
)

// Every known kind builds, with as many GPUs and NICs as the catalogue says.
func TestEveryHostKindBuilds(t *testing.T) {
	c := catalog.Default()
	for _, kind := range HostKinds() {
		if _, err := Host(c, kind, "n0"); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
