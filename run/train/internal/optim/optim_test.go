package optim_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/run/train/internal/optim"
)

// plain is the formula in float64.
type plain struct{ p, m, v float64 }

func (x *plain) update(a optim.AdamW, t int, rate, g float64, decay bool) {
	x.m = a.Beta1*x.m + (1-a.Beta1)*g
	x.v = a.Beta2*x.v + (1-a.Beta2)*g*g
	step := x.m / (1 - math.Pow(a.Beta1, float64(t))) / (math.Sqrt(x.v/(1-math.Pow(a.Beta2, float64(t)))) + a.Epsilon)
	if decay {
		step += a.Decay * x.p
	}
	x.p -= rate * step
}

func TestAdamWIsItsFormula(t *testing.T) {
	a := optim.Default()
	r := rand.New(rand.NewPCG(1, 2))
	const n = 50
	for _, decay := range []bool{false, true} {
		p, g, m, v := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
		want := make([]plain, n)
		for i := range p {
			p[i] = float32(r.NormFloat64())
			want[i].p = float64(p[i])
		}
		for step := 1; step <= 30; step++ {
			for i := range g {
				g[i] = float32(r.NormFloat64())
				want[i].update(a, step, 1e-2, float64(g[i])*0.5, decay)
			}
			a.Update(step, 1e-2, 0.5, decay, p, g, m, v)
		}
		for i := range p {
			if math.Abs(float64(p[i])-want[i].p) > 1e-5 {
				t.Errorf("decay %v: parameter %d is %v, by formula %v", decay, i, p[i], want[i].p)
			}
		}
	}
}

// A buffer cut anywhere gives the bits of the whole.
func TestUpdateMayBeCut(t *testing.T) {
	a := optim.Default()
	r := rand.New(rand.NewPCG(3, 4))
	fresh := func() [4][]float32 {
		var s [4][]float32
		r := rand.New(rand.NewPCG(5, 6))
		for k := range s {
			s[k] = make([]float32, 97)
			for i := range s[k] {
				s[k][i] = float32(math.Abs(r.NormFloat64()))
			}
		}
		return s
	}
	whole := fresh()
	a.Update(3, 1e-3, 1, true, whole[0], whole[1], whole[2], whole[3])
	parts := fresh()
	for lo := 0; lo < 97; {
		hi := min(97, lo+1+r.IntN(20))
		a.Update(3, 1e-3, 1, true, parts[0][lo:hi], parts[1][lo:hi], parts[2][lo:hi], parts[3][lo:hi])
		lo = hi
	}
	for k := range whole {
		if !slices.Equal(whole[k], parts[k]) {
			t.Errorf("slice %d differs", k)
		}
	}
}

func TestClip(t *testing.T) {
	g := []float32{3, 4, 0, 0, 12}
	norm := math.Sqrt(optim.Square(g))
	if norm != 13 {
		t.Errorf("norm of 3 4 12 is %v", norm)
	}
	for _, v := range []struct {
		norm, limit float64
		want        float32
	}{{13, 1, 1.0 / 13}, {0.5, 1, 1}, {13, 0, 1}, {0, 1, 1}} {
		if got := optim.Clip(v.norm, v.limit); got != v.want {
			t.Errorf("clip of %v to %v is %v, want %v", v.norm, v.limit, got, v.want)
		}
	}
}

func TestRate(t *testing.T) {
	r := optim.Rate{Peak: 1, Floor: 0.1, Warmup: 4, Total: 14}
	for step, want := range map[int]float64{0: 0.25, 3: 1, 4: 1, 9: 0.55, 14: 0.1, 100: 0.1} {
		if got := r.At(step); math.Abs(got-want) > 1e-12 {
			t.Errorf("rate of step %d is %v, want %v", step, got, want)
		}
	}
	if got := (optim.Rate{Peak: 2}).At(1000); got != 2 {
		t.Errorf("constant rate is %v", got)
	}
}

func TestCheckNamesTheValue(t *testing.T) {
	if err := optim.Default().Check(); err != nil {
		t.Error(err)
	}
	for want, f := range map[string]func(a *optim.AdamW){
		"beta1 is 1":   func(a *optim.AdamW) { a.Beta1 = 1 },
		"beta2 is -1":  func(a *optim.AdamW) { a.Beta2 = -1 },
		"epsilon is 0": func(a *optim.AdamW) { a.Epsilon = 0 },
		"decay is -2":  func(a *optim.AdamW) { a.Decay = -2 },
	} {
		a := optim.Default()
		f(&a)
		if err := a.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}
