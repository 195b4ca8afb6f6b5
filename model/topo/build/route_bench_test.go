package build

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
)

// BenchmarkRoute reports the time of one path query between random GPUs.
func BenchmarkRoute(b *testing.B) {
	for _, gpus := range []int{1 << 10, 1 << 17} {
		b.Run(fmt.Sprintf("%dgpus", gpus), func(b *testing.B) {
			g := large(b, gpus/8)
			var ids []topo.NodeID
			g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { ids = append(ids, n) })
			rng := rand.New(rand.NewPCG(1, 2))
			var way []topo.Use
			const queries = 20000
			b.ReportAllocs()
			for b.Loop() {
				for range queries {
					f := topo.Flow{From: ids[rng.IntN(len(ids))], To: ids[rng.IntN(len(ids))], Key: rng.Uint64()}
					var err error
					if way, err = g.Route(f, way[:0]); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/queries, "ns/route")
		})
	}
}
