package synth

import (
	"math"
	"math/big"
)

// linear is a linear program in whole numbers: the most of sum(gain z), with
// every row of sum(a z) at most its limit, and all z at least 0. Limits are not
// negative, so that z = 0 is where the search begins.
type linear struct {
	gain  []int64
	rows  [][]int64
	limit []int64
}

// solve gives the best z and its gain, exactly. Fractions of small numbers near
// to what floating point finds are checked in whole numbers: z keeps to all rows,
// and prices of the rows show that nothing gains more. Where that does not prove
// them best, the search is made in whole numbers.
func (l *linear) solve() ([]*big.Rat, *big.Rat) {
	if z, total, ok := l.guess(); ok {
		return z, total
	}
	return l.exact()
}

// guess is the simplex method in floating point, and the proof of what it finds.
//
//	      z1 z2 ..        a column for each variable that is 0, a row for each that is not
//	s1 |  a  a  ..  b     its last column is their values,
//	s2 |  a  a  ..  b     its last row what one more of a column costs: at the end the prices
//	   | -g -g  ..  0
func (l *linear) guess() ([]*big.Rat, *big.Rat, bool) {
	m, n := len(l.rows), len(l.gain)
	flat := make([]float64, (m+1)*(n+1))
	t := make([][]float64, m+1)
	for i := range t {
		t[i] = flat[i*(n+1) : (i+1)*(n+1)]
		for j := range n {
			if i < m {
				t[i][j] = float64(l.rows[i][j])
			} else {
				t[i][j] = -float64(l.gain[j])
			}
		}
		if i < m {
			t[i][n] = float64(l.limit[i])
		}
	}
	basic, free := make([]int, m), make([]int, n) // numbers below n are variables, others rows
	for i := range basic {
		basic[i] = n + i
	}
	for j := range free {
		free[j] = j
	}
	const tiny = 1e-9
	still := 0
	for pivots := 0; ; pivots++ {
		if pivots > 50*(m+n) {
			return nil, nil, false
		}
		enter := -1
		for j := range n {
			switch {
			case t[m][j] >= -tiny:
			case enter < 0, still < m+n && t[m][j] < t[m][enter], still >= m+n && free[j] < free[enter]:
				enter = j
			}
		}
		if enter < 0 {
			break
		}
		leave := -1
		for i := range m {
			if t[i][enter] <= tiny {
				continue
			}
			if leave < 0 {
				leave = i
				continue
			}
			a, b := t[i][n]/t[i][enter], t[leave][n]/t[leave][enter]
			switch {
			case a < b-tiny:
				leave = i
			case a > b+tiny:
			case still < m+n && t[i][enter] > t[leave][enter], still >= m+n && basic[i] < basic[leave]:
				leave = i
			}
		}
		if leave < 0 {
			return nil, nil, false
		}
		if t[leave][n] <= tiny*t[leave][enter] {
			still++
		} else {
			still = 0
		}
		row := t[leave]
		pivot := row[enter]
		for j := range row {
			row[j] /= pivot
		}
		row[enter] = 1 / pivot
		for i := range t {
			factor := t[i][enter]
			if i == leave || factor == 0 {
				continue
			}
			other := t[i]
			for j, x := range row {
				if x != 0 {
					other[j] -= factor * x
				}
			}
			other[enter] = -factor / pivot
		}
		basic[leave], free[enter] = free[enter], basic[leave]
	}
	z, price := zeros(n), zeros(m)
	for i, v := range basic {
		if v < n {
			z[v] = fraction(t[i][n])
		}
	}
	for j, v := range free {
		if v >= n {
			price[v-n] = fraction(t[m][j])
		}
	}
	total, ok := l.proven(z, price)
	return z, total, ok
}

func zeros(n int) []*big.Rat {
	list := make([]*big.Rat, n)
	for i := range list {
		list[i] = new(big.Rat)
	}
	return list
}

// fraction is the one with the smallest denominator that is nearly v.
func fraction(v float64) *big.Rat {
	if v < 1e-8 {
		return new(big.Rat)
	}
	a0, a1, b0, b1 := int64(0), int64(1), int64(1), int64(0) // convergents a/b of the continued fraction
	for x, step := v, 0; step < 24; step++ {
		whole := math.Floor(x)
		if whole > 1e9 || float64(b1)*whole > 1e7 {
			break
		}
		k := int64(whole)
		a0, a1, b0, b1 = a1, k*a1+a0, b1, k*b1+b0
		if math.Abs(float64(a1)/float64(b1)-v) <= 1e-9*max(v, 1) {
			break
		}
		x = 1 / (x - whole)
	}
	if b1 == 0 {
		return new(big.Rat).SetFloat64(v)
	}
	return big.NewRat(a1, b1)
}

// proven reports whether z keeps to all rows and prices prove that nothing gains
// more (weak duality): what z gains is what the prices make of the limits, and no
// variable gains more than its rows cost.
func (l *linear) proven(z, price []*big.Rat) (*big.Rat, bool) {
	for i, row := range l.rows {
		if dot(row, z).Cmp(new(big.Rat).SetInt64(l.limit[i])) > 0 {
			return nil, false
		}
	}
	var x big.Rat
	cost := l.cost(price)
	for j, g := range l.gain {
		if cost[j].Cmp(x.SetInt64(g)) < 0 {
			return nil, false
		}
	}
	total := dot(l.gain, z)
	return total, total.Cmp(dot(l.limit, price)) == 0
}

// cost is what one unit of each variable takes of the rows, at their prices.
func (l *linear) cost(price []*big.Rat) []*big.Rat {
	var x big.Rat
	cost := zeros(len(l.gain))
	for i, row := range l.rows {
		if price[i].Sign() == 0 {
			continue
		}
		for j, a := range row {
			if a != 0 {
				cost[j].Add(cost[j], x.Mul(x.SetInt64(a), price[i]))
			}
		}
	}
	return cost
}

func dot(row []int64, v []*big.Rat) *big.Rat {
	var x big.Rat
	sum := new(big.Rat)
	for j, a := range row {
		if a != 0 && v[j].Sign() != 0 {
			sum.Add(sum, x.Mul(x.SetInt64(a), v[j]))
		}
	}
	return sum
}

// exact is the simplex method in whole numbers: entries share one denominator,
// the last pivot (Edmonds, Bareiss). The steepest column enters; after a while
// without progress the first one does (Bland), which cannot go round in circles.
func (l *linear) exact() ([]*big.Rat, *big.Rat) {
	m, n := len(l.rows), len(l.gain)
	width := n + m + 1
	t := make([][]*big.Int, m+1)
	for i := range t {
		t[i] = make([]*big.Int, width)
		for j := range t[i] {
			v := int64(0)
			switch {
			case i < m && j < n:
				v = l.rows[i][j]
			case i < m && j == n+i:
				v = 1
			case i < m && j == width-1:
				v = l.limit[i]
			case i == m && j < n:
				v = -l.gain[j]
			}
			t[i][j] = big.NewInt(v)
		}
	}
	basis := make([]int, m)
	for i := range basis {
		basis[i] = n + i
	}
	den := big.NewInt(1)
	var a, b big.Int
	still := 0
	for {
		enter := -1
		for j := range width - 1 {
			if t[m][j].Sign() < 0 && (enter < 0 || still < 2*(m+n) && t[m][j].Cmp(t[m][enter]) < 0) {
				enter = j
			}
		}
		if enter < 0 {
			break
		}
		leave := -1
		for i := range m {
			if t[i][enter].Sign() <= 0 {
				continue
			}
			if leave < 0 {
				leave = i
				continue
			}
			a.Mul(t[i][width-1], t[leave][enter])
			b.Mul(t[leave][width-1], t[i][enter])
			if c := a.Cmp(&b); c < 0 || c == 0 && basis[i] < basis[leave] {
				leave = i
			}
		}
		if leave < 0 {
			panic("synth: a linear program without limit") // capacities limit every variable
		}
		if t[leave][width-1].Sign() == 0 {
			still++
		} else {
			still = 0
		}
		pivot := new(big.Int).Set(t[leave][enter])
		for i := range t {
			if i == leave {
				continue
			}
			factor := new(big.Int).Set(t[i][enter])
			for j := range width {
				x := t[i][j]
				if factor.Sign() == 0 || t[leave][j].Sign() == 0 {
					if x.Sign() == 0 {
						continue
					}
					x.Mul(x, pivot)
				} else {
					a.Mul(x, pivot)
					b.Mul(factor, t[leave][j])
					x.Sub(&a, &b)
				}
				x.Quo(x, den)
			}
		}
		den = pivot
		basis[leave] = enter
	}
	z := make([]*big.Rat, n)
	for j := range z {
		z[j] = new(big.Rat)
	}
	for i, j := range basis {
		if j < n {
			z[j].SetFrac(t[i][width-1], den)
		}
	}
	return z, new(big.Rat).SetFrac(t[m][width-1], den)
}
