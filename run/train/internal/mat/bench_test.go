package mat_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// BenchmarkMul gives GFlop/s of c = a b' (the forward product of a layer) on one
// core, and of gonum's Sgemm, which takes as many as it is given.
func BenchmarkMul(b *testing.B) {
	for _, s := range [][3]int{{64, 64, 32}, {256, 128, 128}, {256, 512, 128}, {256, 128, 512}, {512, 1024, 1024}} {
		m, n, k := s[0], s[1], s[2]
		r := rand.New(rand.NewPCG(1, 2))
		x, y, z := numbers(r, m*k), numbers(r, n*k), numbers(r, m*n)
		flops := 2 * float64(m) * float64(n) * float64(k)
		report := func(b *testing.B) {
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFlop/s")
			b.ReportMetric(0, "ns/op")
		}
		name := fmt.Sprintf("%dx%dx%d", m, n, k)
		for _, path := range mat.Paths() {
			b.Run(name+"/"+path, func(b *testing.B) {
				defer mat.Use(path)()
				var space mat.Space
				for b.Loop() {
					space.Mul(mat.Of(z, m, n), mat.Of(x, m, k), mat.Of(y, n, k).T(), false)
				}
				report(b)
			})
		}
		b.Run(name+"/gonum", func(b *testing.B) {
			var impl gonum.Implementation
			for b.Loop() {
				impl.Sgemm(blas.NoTrans, blas.Trans, m, n, k, 1, x, k, y, k, 0, z, n)
			}
			report(b)
		})
	}
}
