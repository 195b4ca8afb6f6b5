// Package clique finds the largest group of ranks of which every two can reach each other.
//
// After a partial partition a rank may reach two that do not reach one another. A group with both of them fails again, so survivors
// keep a clique of the graph of pairs that talk:
//
//	0 1 2 ── 3 ── 4 5      hosts {0 1 2}, {3}, {4 5}; the first cannot send to the last
//
//	{0 1 2 3} goes on; rank 3 reaches everybody, and {3 4 5} is smaller
package clique

import (
	"math/bits"
	"slices"
)

// work bounds the search, in classes that it looks at: some milliseconds. Ranks of a host mostly miss the same ranks and are one class,
// so it takes tens in practice. What is found after so much is a clique, and perhaps not the largest.
const work = 1 << 20

// Largest is the largest list of 0..n-1 of which no two are apart, in order; of equally long ones that with the lowest numbers first.
// apart must be symmetric.
func Largest(n int, apart func(a, b int) bool) []int {
	s := search{left: work}
	byMissing := map[string]int{}
	var alike []class
	for i := range n {
		missing, key := newSet(n), make([]byte, n)
		for j := range n {
			if i != j && apart(i, j) {
				missing.add(j)
				key[j] = 1
			}
		}
		at, known := byMissing[string(key)]
		if !known {
			at = len(alike)
			byMissing[string(key)] = at
			alike = append(alike, class{missing: missing})
		}
		alike[at].ranks = append(alike[at].ranks, i)
	}
	s.find(n, alike, nil)
	return s.best
}

// set has a bit for each rank.
type set []uint64

func newSet(n int) set       { return make(set, (n+63)/64) }
func (s set) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s set) has(i int) bool { return s[i/64]>>(i%64)&1 != 0 }
func (s set) shared(o set) (n int) {
	for i := range s {
		n += bits.OnesCount64(s[i] & o[i])
	}
	return n
}

// class are ranks that miss the same ranks, and so not each other.
type class struct {
	ranks   []int
	missing set
}

type search struct {
	best []int
	left int
}

// find extends a clique by classes of which each reaches all of it.
func (s *search) find(n int, open []class, taken []int) {
	if s.left -= len(open); s.left < 0 && s.best != nil {
		return
	}
	all := newSet(n)
	most := len(taken)
	for _, c := range open {
		most += len(c.ranks)
		for _, r := range c.ranks {
			all.add(r)
		}
	}
	if most < len(s.best) {
		return
	}
	worst, lost := -1, 0
	for i := range open {
		if k := open[i].missing.shared(all); k > lost {
			worst, lost = i, k
		}
	}
	if worst < 0 { // all of them reach one another
		s.found(open, taken)
		return
	}
	w := open[worst]
	s.find(n, slices.Delete(slices.Clone(open), worst, worst+1), taken)
	with := slices.DeleteFunc(slices.Clone(open), func(c class) bool { return c.ranks[0] == w.ranks[0] || w.missing.has(c.ranks[0]) })
	s.find(n, with, append(slices.Clone(taken), w.ranks...))
}

// found takes a clique if it is the best so far.
func (s *search) found(open []class, taken []int) {
	all := slices.Clone(taken)
	for _, c := range open {
		all = append(all, c.ranks...)
	}
	slices.Sort(all)
	if len(all) > len(s.best) || slices.Compare(all, s.best) < 0 {
		s.best = all
	}
}
