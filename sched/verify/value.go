package verify

import (
	"fmt"
	"slices"
	"strings"
)

// ranks is a set of ranks as sorted, disjoint, non-adjacent spans. Rings and
// trees make sets of one or two spans whatever the number of ranks.
type ranks []span

type span struct{ lo, hi int32 } // lo <= r < hi

func one(r int32) ranks     { return ranks{{r, r + 1}} }
func upTo(n int) ranks      { return ranks{{0, int32(n)}} }
func (s ranks) empty() bool { return len(s) == 0 }
func same(a, b ranks) bool  { return slices.Equal(a, b) }

func (s ranks) String() string {
	var parts []string
	for _, x := range s {
		if x.hi == x.lo+1 {
			parts = append(parts, fmt.Sprint(x.lo))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", x.lo, x.hi-1))
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// union joins two sets and gives a rank that is in both, or -1.
func union(a, b ranks) (all ranks, twice int32) {
	twice = -1
	all = make(ranks, 0, len(a)+len(b))
	for i, j := 0, 0; i < len(a) || j < len(b); {
		var next span
		if j == len(b) || i < len(a) && a[i].lo <= b[j].lo {
			next = a[i]
			i++
		} else {
			next = b[j]
			j++
		}
		if k := len(all) - 1; k >= 0 && next.lo <= all[k].hi {
			if next.lo < all[k].hi && twice < 0 {
				twice = next.lo
			}
			all[k].hi = max(all[k].hi, next.hi)
			continue
		}
		all = append(all, next)
	}
	return all, twice
}

// minus gives the ranks of a that are not in b.
func minus(a, b ranks) ranks {
	var out ranks
	for _, x := range a {
		lo := x.lo
		for _, y := range b {
			if y.hi <= lo || y.lo >= x.hi {
				continue
			}
			if y.lo > lo {
				out = append(out, span{lo, y.lo})
			}
			lo = max(lo, y.hi)
		}
		if lo < x.hi {
			out = append(out, span{lo, x.hi})
		}
	}
	return out
}

// shift moves a set by d around a ring of n ranks.
func (s ranks) shift(d, n int32) ranks {
	out := make(ranks, 0, len(s)+1)
	for _, x := range s {
		lo := ((x.lo+d)%n + n) % n
		hi := lo + x.hi - x.lo
		if hi <= n {
			out = append(out, span{lo, hi})
		} else {
			out = append(out, span{0, hi - n}, span{lo, n})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return int(a.lo - b.lo) })
	for i := 1; i < len(out); i++ {
		if out[i].lo == out[i-1].hi {
			out[i-1].hi = out[i].hi
			out = slices.Delete(out, i, i+1)
			i--
		}
	}
	return out
}

// hash identifies how a value was computed: which contributions, added in which
// association. Sums of two are taken as commutative, as they are in IEEE
// arithmetic, so equal hashes mean equal bits. Contributions are named relative
// to the chunk's block, so that the hash of a rank's value and that of its
// image under a rotation of the ranks are the same. 128 bits make an accidental
// match as likely as a hardware fault in the same run.
type hash [2]uint64

func leaf(rank, block, n int64) hash {
	d := uint64(((rank-block)%n + n) % n)
	return hash{mix(d + 1), mix(d ^ 0xa5a5a5a5a5a5a5a5)}
}

func sum(a, b hash) hash {
	if a[0] > b[0] || a[0] == b[0] && a[1] > b[1] {
		a, b = b, a
	}
	return hash{mix(a[0]*3 + mix(b[0])), mix(a[1]*5 + mix(b[1]^0x5bd1e995))}
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// run is a stretch of neighbouring chunks that hold values of one kind: chunk i
// holds input chunk i+label, summed over the set as the hash says.
type run struct {
	lo, hi int64
	label  int64
	set    ranks
	how    hash
}

// store is what a buffer holds: sorted runs, gaps where nothing was written.
type store []run

// find returns the run that a chunk lies in.
func (s store) find(at int64) (run, bool) {
	i, _ := slices.BinarySearchFunc(s, at, func(r run, at int64) int {
		if r.hi <= at {
			return -1
		}
		return 1
	})
	if i == len(s) || s[i].lo > at {
		return run{}, false
	}
	return s[i], true
}

// cut returns the runs of [lo, hi) and whether they leave no gap.
func (s store) cut(lo, hi int64) (runs []run, whole bool) {
	i, _ := slices.BinarySearchFunc(s, lo, func(r run, lo int64) int {
		if r.hi <= lo {
			return -1
		}
		return 1
	})
	at := lo
	for ; i < len(s) && s[i].lo < hi; i++ {
		r := s[i]
		r.lo, r.hi = max(r.lo, lo), min(r.hi, hi)
		if r.lo > at {
			return runs, false
		}
		at = r.hi
		runs = append(runs, r)
	}
	return runs, at == hi
}

// put overwrites the chunks of the runs.
func (s *store) put(runs []run) {
	for _, r := range runs {
		old := *s
		i, _ := slices.BinarySearchFunc(old, r.lo, func(x run, lo int64) int {
			if x.hi <= lo {
				return -1
			}
			return 1
		})
		j := i
		repl := make([]run, 0, 3)
		if i < len(old) && old[i].lo < r.lo {
			left := old[i]
			left.hi = r.lo
			repl = append(repl, left)
		}
		repl = append(repl, r)
		for ; j < len(old) && old[j].lo < r.hi; j++ {
			if old[j].hi > r.hi {
				right := old[j]
				right.lo = r.hi
				repl = append(repl, right)
			}
		}
		*s = slices.Replace(old, i, j, repl...)
		s.merge(i)
	}
}

// merge joins the runs around place i where they are of one kind.
func (s *store) merge(i int) {
	for k := max(i-1, 0); k+1 < len(*s) && k <= i+2; {
		a, b := &(*s)[k], &(*s)[k+1]
		if a.hi == b.lo && a.label == b.label && a.how == b.how && same(a.set, b.set) {
			a.hi = b.hi
			*s = slices.Delete(*s, k+1, k+2)
			continue
		}
		k++
	}
}
