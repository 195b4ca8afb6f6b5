package synth

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
)

// Switches that add take no more from a host than its NICs carry, 400 GB/s, whatever the fabric: all of
// its switches in one set prove that. With each router beside some host it was 510 GB/s.
func TestAddsAcrossRouters(t *testing.T) {
	g, gpus := preset(t, "dragonfly", nil)
	n, err := FromGraph(g, gpus, Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := n.Bounds(sched.AllReduce, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if b.Rate > 400e9*1.000001 {
		t.Errorf("%s: %s", b.Rate, b.Why)
	}
	if strings.Contains(b.Why, "e+") {
		t.Errorf("a rate nobody reads: %s", b.Why)
	}
}
