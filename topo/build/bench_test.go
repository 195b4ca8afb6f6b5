package build

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/topo/catalog"
)

// large is a rail-optimised fabric of 128-port switches for so many DGX H100.
func large(tb testing.TB, hosts int) *topo.Graph {
	tb.Helper()
	c := catalog.Default()
	b, err := simple(c, "large", "dgx-h100", hosts, 4, Clos{Name: "compute", Rails: true, Tiers: 3, Leaf: Tier{Model: "SN5600"}})
	if err != nil {
		tb.Fatal(err)
	}
	return b.Graph
}

// BenchmarkBuild reports the time to build, the bytes that stay for each GPU, and
// the most heap in use while building.
func BenchmarkBuild(b *testing.B) {
	for _, gpus := range []int{1 << 10, 1 << 13, 1 << 16, 1 << 17} {
		b.Run(fmt.Sprintf("%dgpus", gpus), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			var g *topo.Graph
			for b.Loop() {
				g = nil
				g = large(b, gpus/8)
			}
			runtime.ReadMemStats(&after)
			peak := after.HeapSys - after.HeapReleased
			runtime.GC()
			runtime.ReadMemStats(&after)
			if g.Count(topo.GPU) != gpus {
				b.Fatal(g.Count(topo.GPU))
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/build")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(gpus), "bytes/gpu")
			b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
			runtime.KeepAlive(g)
		})
	}
}

// TestBuildInOrder makes sure that a large fabric is emitted in canonical order:
// a fabric whose nodes or links had to be sorted would allocate them twice.
func TestBuildInOrder(t *testing.T) {
	g := large(t, 512)
	for i := 1; i < len(g.Links); i++ {
		if a, b := g.Links[i-1], g.Links[i]; a.A > b.A || a.A == b.A && a.B > b.B {
			t.Fatalf("link %d is out of order", i)
		}
	}
	if n := testing.AllocsPerRun(1, func() { large(t, 512) }); n > 60*512 {
		t.Errorf("%.0f allocations for 512 hosts", n)
	}
}
