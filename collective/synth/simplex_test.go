package synth

import (
	"math/rand/v2"
	"testing"
)

// On random linear programs, what floating point finds and whole numbers prove is
// what the search in whole numbers finds; most are proven without that search.
func TestLinearPrograms(t *testing.T) {
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, 0))
	proven := 0
	for i := range 300 {
		n, m := 1+rng.IntN(8), 1+rng.IntN(12)
		l := &linear{gain: make([]int64, n)}
		for j := range l.gain {
			l.gain[j] = rng.Int64N(4)
			row := make([]int64, n) // every variable is limited
			row[j] = 1
			l.rows, l.limit = append(l.rows, row), append(l.limit, rng.Int64N(40))
		}
		for range m {
			row := make([]int64, n)
			for j := range row {
				row[j] = rng.Int64N(7) - 3
			}
			l.rows, l.limit = append(l.rows, row), append(l.limit, rng.Int64N(20))
		}
		_, want := l.exact()
		if z, total, ok := l.guess(); ok {
			proven++
			if total.Cmp(want) != 0 {
				t.Fatalf("seed %d, program %d: %s at %v, want %s", seed, i, total, z, want)
			}
		}
	}
	if proven < 290 {
		t.Errorf("seed %d: %d of 300 proven without the search in whole numbers", seed, proven)
	}
}
