package synth

import "math/big"

// linear is a linear program in whole numbers: the most of sum(gain z), with
// every row of sum(a z) at most its limit, and all z at least 0. Limits are not
// negative, so that z = 0 is where the search begins.
type linear struct {
	gain  []int64
	rows  [][]int64
	limit []int64
}

// solve gives the best z and its gain. It is the simplex method in whole
// numbers, exact: entries share one denominator, the last pivot (Edmonds,
// Bareiss). The steepest column enters; after a while without progress the
// first one does (Bland), which cannot go round in circles.
func (l *linear) solve() ([]*big.Rat, *big.Rat) {
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
