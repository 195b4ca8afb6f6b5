package clique

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Every subset is tried, on random graphs of which some are made of hosts.
func TestLargestAgainstAllSubsets(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n, hosts, rate := 1+r.IntN(9), 1+r.IntN(4), r.Float64()
		host := make([]int, n)
		for i := range host {
			if host[i] = i; r.IntN(2) == 0 {
				host[i] = i % hosts
			}
		}
		var apart [9][9]bool
		for a := range n {
			for b := range a {
				if host[a] != host[b] && rand.New(rand.NewPCG(seed, uint64(host[a]*100+host[b]))).Float64() < rate {
					apart[a][b], apart[b][a] = true, true
				}
			}
		}
		var want []int
		for set := range 1 << n {
			if bits.OnesCount(uint(set)) < len(want) {
				continue
			}
			var list []int
			for i := range n {
				if set>>i&1 != 0 && !slices.ContainsFunc(list, func(j int) bool { return apart[i][j] }) {
					list = append(list, i)
				}
			}
			if len(list) == bits.OnesCount(uint(set)) && (len(list) > len(want) || slices.Compare(list, want) < 0) {
				want = list
			}
		}
		if got := Largest(n, func(a, b int) bool { return apart[a][b] }); !slices.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}

// A thousand ranks of which any two may be apart are no reason to stop for long, and what comes is a clique.
func TestLargestOfMany(t *testing.T) {
	const n = 1000
	r := rand.New(rand.NewPCG(1, 1))
	apart := make([]bool, n*n)
	for a := range n {
		for b := range a {
			if r.IntN(10) == 0 {
				apart[a*n+b], apart[b*n+a] = true, true
			}
		}
	}
	began := time.Now()
	list := Largest(n, func(a, b int) bool { return apart[a*n+b] })
	t.Logf("%d of %d in %s", len(list), n, time.Since(began))
	for i, a := range list {
		for _, b := range list[:i] {
			if apart[a*n+b] {
				t.Fatalf("%d and %d are apart", a, b)
			}
		}
	}
	if len(list) < 10 {
		t.Errorf("%v", list)
	}
}
