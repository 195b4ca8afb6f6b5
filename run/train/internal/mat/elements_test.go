package mat_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// arguments cover what layers see, and the ends of the range.
func arguments() []float32 {
	r := rand.New(rand.NewPCG(3, 4))
	list := []float32{0, 1, -1, -87.3, -87.4, -1000, 88, 89, 1000, 1e-20, -1e-20, 1e30, -1e30, 1e-42}
	for range 1001 {
		list = append(list, float32(r.NormFloat64()*8))
	}
	return list
}

func TestExpIsClose(t *testing.T) {
	src := arguments()
	dst := make([]float32, len(src))
	mat.Exp(dst, src, 0)
	for i, x := range src {
		if x < -87.3 || x > 88 {
			continue
		}
		want := math.Exp(float64(x))
		if rel := math.Abs(float64(dst[i])-want) / want; rel > 2.5e-7 {
			t.Errorf("exp(%v) = %v, want %v: %.2g off", x, dst[i], want, rel)
		}
	}
}

func TestGeluIsItsFormula(t *testing.T) {
	gelu := func(x float64) float64 {
		return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	src := arguments()
	dst, twice, grad := make([]float32, len(src)), make([]float32, len(src)), make([]float32, len(src))
	for i := range grad {
		grad[i] = 2
	}
	mat.Gelu(dst, src)
	mat.GeluBack(twice, grad, src)
	for i, f := range src {
		x := float64(f)
		if x < -30 || x > 30 {
			continue
		}
		if want := gelu(x); math.Abs(float64(dst[i])-want) > 1e-6*(1+math.Abs(x)) {
			t.Errorf("gelu(%v) = %v, want %v", x, dst[i], want)
		}
		if dst[i] != twice[i] {
			t.Errorf("gelu(%v) = %v forward and %v backward", x, dst[i], twice[i])
		}
		h := 1e-4
		if want := (gelu(x+h) - gelu(x-h)) / h; math.Abs(float64(grad[i])-want) > 1e-5 {
			t.Errorf("twice the slope of gelu at %v = %v, want %v", x, grad[i], want)
		}
	}
}

// Elements have the same bits on every path and wherever they stand in a slice.
func TestElementsHaveTheSameBits(t *testing.T) {
	src := append(arguments(), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)))
	run := func(f func(dst, grad []float32)) []float32 {
		dst, grad := make([]float32, len(src)), make([]float32, len(src))
		for i := range grad {
			grad[i] = src[len(src)-1-i]
		}
		f(dst, grad)
		return append(dst, grad...)
	}
	for name, f := range map[string]func(dst, grad, src []float32){
		"exp":      func(dst, _, src []float32) { mat.Exp(dst, src, 0.37) },
		"gelu":     func(dst, _, src []float32) { mat.Gelu(dst, src) },
		"geluBack": mat.GeluBack,
	} {
		restore := mat.Use("portable")
		want := run(func(dst, grad []float32) { f(dst, grad, src) })
		restore()
		for _, path := range mat.Paths() {
			restore := mat.Use(path)
			for _, cut := range []int{0, 1, 7, 16, 100, len(src)} {
				got := run(func(dst, grad []float32) {
					f(dst[:cut], grad[:cut], src[:cut])
					f(dst[cut:], grad[cut:], src[cut:])
				})
				for i := range got {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (got[i] == got[i] || want[i] == want[i]) {
						t.Errorf("%s on %s, cut at %d: element %d is %v, portable %v", name, path, cut, i, got[i], want[i])
						break
					}
				}
			}
			restore()
		}
	}
}

func BenchmarkElements(b *testing.B) {
	src := make([]float32, 4096)
	dst := make([]float32, 4096)
	for i := range src {
		src[i] = float32(i%7) - 3
	}
	for _, path := range mat.Paths() {
		b.Run("exp/"+path, func(b *testing.B) {
			defer mat.Use(path)()
			for b.Loop() {
				mat.Exp(dst, src, 0)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/element")
		})
		b.Run("gelu/"+path, func(b *testing.B) {
			defer mat.Use(path)()
			for b.Loop() {
				mat.Gelu(dst, src)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/element")
		})
	}
}
