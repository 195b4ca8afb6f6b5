package tune

import (
	"math"
	"slices"
)

// minimize is the simplex method of Nelder and Mead, restarted around its best
// point so that a collapsed simplex gets a second chance. Deterministic.
func minimize(f func([]float64) float64, x []float64, step float64) []float64 {
	for range 8 {
		x = simplex(f, x, step, 250)
	}
	return x
}

// simplex is the downhill simplex of Nelder and Mead, with a fixed number of rounds: the result does not depend on the
// machine's speed.
func simplex(f func([]float64) float64, x []float64, step float64, rounds int) []float64 {
	type corner struct {
		x []float64
		v float64
	}
	n := len(x)
	s := []corner{{slices.Clone(x), f(x)}}
	for i := range n {
		y := slices.Clone(x)
		y[i] += step
		s = append(s, corner{y, f(y)})
	}
	order := func() {
		slices.SortStableFunc(s, func(a, b corner) int {
			switch {
			case a.v < b.v:
				return -1
			case a.v > b.v:
				return 1
			}
			return 0
		})
	}
	for range rounds {
		order()
		mid := make([]float64, n)
		for _, c := range s[:n] {
			for i := range mid {
				mid[i] += c.x[i] / float64(n)
			}
		}
		at := func(k float64) corner {
			y := make([]float64, n)
			for i := range y {
				y[i] = mid[i] + k*(s[n].x[i]-mid[i])
			}
			return corner{y, f(y)}
		}
		r := at(-1)
		switch {
		case r.v < s[0].v:
			if e := at(-2); e.v < r.v {
				r = e
			}
			s[n] = r
		case r.v < s[n-1].v:
			s[n] = r
		default:
			if c := at(.5); c.v < s[n].v {
				s[n] = c
				continue
			}
			for i := 1; i <= n; i++ {
				for j := range s[i].x {
					s[i].x[j] = (s[i].x[j] + s[0].x[j]) / 2
				}
				s[i].v = f(s[i].x)
			}
		}
	}
	order()
	return s[0].x
}

// loss is between the absolute and the squared error of the logarithm, so that
// outliers count without ruling.
func loss(predicted, measured float64) float64 {
	return math.Pow(math.Abs(math.Log(predicted/measured)), 1.3)
}
