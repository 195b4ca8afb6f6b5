package mat_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/run/train/internal/mat"
)

// naive is the definition, an element at a time.
func naive(c, a, b mat.M, add bool) {
	for i := range c.Rows {
		for j := range c.Cols {
			at := i*c.RowStep + j*c.ColStep
			var sum float32
			if add {
				sum = c.Data[at]
			}
			for p := range a.Cols {
				sum = mat.FMA(a.Data[i*a.RowStep+p*a.ColStep], b.Data[p*b.RowStep+j*b.ColStep], sum)
			}
			c.Data[at] = sum
		}
	}
}

func numbers(r *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(r.NormFloat64())
	}
	return s
}

// view draws a matrix of random steps, transposed or not, and with memory around it.
func view(r *rand.Rand, rows, cols int, transposed bool) mat.M {
	if transposed {
		return view(r, cols, rows, false).T()
	}
	top, left := r.IntN(3), r.IntN(3)
	width := left + cols + r.IntN(4)
	return mat.Of(numbers(r, (top+rows+1)*width), top+rows+1, width).Part(top, left, rows, cols)
}

func TestProductsAreTheDefinition(t *testing.T) {
	for _, path := range mat.Paths() {
		t.Run(path, func(t *testing.T) {
			defer mat.Use(path)()
			var space mat.Space
			rapid.Check(t, func(t *rapid.T) {
				r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
				size := func(name string) int {
					return rapid.OneOf(rapid.IntRange(0, 40), rapid.SampledFrom([]int{12, 24, 32, 64, 96})).Draw(t, name)
				}
				m, n, k := size("m"), size("n"), size("k")
				if rapid.IntRange(0, 15).Draw(t, "deep") == 0 {
					k += 256
				}
				a := view(r, m, k, rapid.Bool().Draw(t, "a transposed"))
				b := view(r, k, n, rapid.Bool().Draw(t, "b transposed"))
				c := view(r, m, n, false)
				want := c
				want.Data = append([]float32(nil), c.Data...)
				add := rapid.Bool().Draw(t, "add")
				space.Mul(c, a, b, add)
				naive(want, a, b, add)
				// What lies around the result is compared, too.
				for i := range c.Data {
					if math.Float32bits(c.Data[i]) != math.Float32bits(want.Data[i]) {
						t.Fatalf("%d x %d x %d: element at %d (%d a row) is %v, by definition %v", m, n, k, i, c.RowStep, c.Data[i], want.Data[i])
					}
				}
			})
		})
	}
}

// Rows beyond one stretch of A go over a panel that is packed again.
func TestTallMatrices(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var space mat.Space
	a, b := mat.Of(numbers(r, 1000*300), 1000, 300), mat.Of(numbers(r, 300*33), 300, 33)
	c, want := mat.Of(make([]float32, 1000*33), 1000, 33), mat.Of(make([]float32, 1000*33), 1000, 33)
	space.Mul(c, a, b, false)
	naive(want, a, b, false)
	for i := range c.Data {
		if c.Data[i] != want.Data[i] {
			t.Fatalf("element %d is %v, by definition %v", i, c.Data[i], want.Data[i])
		}
	}
}

func TestFMARoundsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) float32 {
			x := math.Float32frombits(rapid.Uint32().Draw(t, name))
			if x != x || math.IsInf(float64(x), 0) {
				return 0
			}
			return x
		}
		a, b := number("a"), number("b")
		// Sums near the middle between two floats are where rounding twice shows.
		c := number("c")
		if rapid.Bool().Draw(t, "near") {
			c = float32(math.Ldexp(float64(a*b), rapid.IntRange(-26, 26).Draw(t, "shift")))
			if math.IsInf(float64(c), 0) || c != c {
				c = 1
			}
		}
		exact := new(big.Float).SetPrec(2000).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
		exact.Add(exact, new(big.Float).SetPrec(2000).SetFloat64(float64(c)))
		want, _ := exact.Float32()
		if got := mat.FMA(a, b, c); got != want {
			t.Fatalf("%v * %v + %v = %v, want %v", a, b, c, got, want)
		}
	})
}

func TestFMAOfInfinitiesAndNaN(t *testing.T) {
	inf := float32(math.Inf(1))
	if got := mat.FMA(inf, 2, 1); got != inf {
		t.Errorf("inf*2+1 = %v", got)
	}
	if got := mat.FMA(inf, 0, 1); got == got {
		t.Errorf("inf*0+1 = %v", got)
	}
	if got := mat.FMA(math.MaxFloat32, 2, 1); got != inf {
		t.Errorf("largest*2+1 = %v", got)
	}
	if got := mat.FMA(1, 1, -inf); got != -inf {
		t.Errorf("1-inf = %v", got)
	}
}

func TestMistakesPanic(t *testing.T) {
	var space mat.Space
	a := mat.Of(make([]float32, 6), 2, 3)
	for name, f := range map[string]func(){
		"short data":   func() { mat.Of(make([]float32, 5), 2, 3) },
		"inner sizes":  func() { space.Mul(mat.Of(make([]float32, 4), 2, 2), a, a, false) },
		"outer sizes":  func() { space.Mul(mat.Of(make([]float32, 9), 3, 3), a, a.T(), false) },
		"by columns":   func() { space.Mul(mat.Of(make([]float32, 4), 2, 2).T(), a, a.T(), false) },
		"part outside": func() { a.Part(1, 1, 1, 3) },
		"view outside": func() {
			space.Mul(mat.M{Data: make([]float32, 3), Rows: 2, Cols: 2, RowStep: 2, ColStep: 1}, a, a.T(), false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		})
	}
}

func TestNothingIsAllocated(t *testing.T) {
	var space mat.Space
	a, b, c := mat.Of(make([]float32, 33*40), 33, 40), mat.Of(make([]float32, 50*40), 50, 40), mat.Of(make([]float32, 33*50), 33, 50)
	if n := testing.AllocsPerRun(10, func() { space.Mul(c, a, b.T(), true) }); n > 0 {
		t.Errorf("%v allocations a product", n)
	}
}
