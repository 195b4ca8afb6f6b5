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

// store is what a buffer holds: sorted runs, gaps where nothing was written. They lie
// in blocks of bounded length, so that a buffer that fills up from its end, a chunk at a
// time, does not move all of its runs with every chunk.
type store struct {
	blocks [][]run // none is empty
}

// maxBlock is the length from which a block is split.
const maxBlock = 512

// at returns the first run that ends behind a chunk, as a block and a place in it.
func (s *store) at(chunk int64) (block, i int) {
	block, _ = slices.BinarySearchFunc(s.blocks, chunk, func(b []run, at int64) int { return ends(b[len(b)-1], at) })
	if block < len(s.blocks) {
		i, _ = slices.BinarySearchFunc(s.blocks[block], chunk, ends)
	}
	return block, i
}

// ends orders a run before the chunks behind it.
func ends(r run, chunk int64) int {
	if r.hi <= chunk {
		return -1
	}
	return 1
}

// find returns the run that a chunk lies in.
func (s *store) find(chunk int64) (run, bool) {
	block, i := s.at(chunk)
	if block == len(s.blocks) || s.blocks[block][i].lo > chunk {
		return run{}, false
	}
	return s.blocks[block][i], true
}

// cut returns the runs of [lo, hi) and whether they leave no gap.
func (s *store) cut(lo, hi int64) (runs []run, whole bool) {
	at := lo
	for block, i := s.at(lo); block < len(s.blocks); block, i = block+1, 0 {
		for _, r := range s.blocks[block][i:] {
			if r.lo >= hi {
				return runs, at == hi
			}
			r.lo, r.hi = max(r.lo, lo), min(r.hi, hi)
			if r.lo > at {
				return runs, false
			}
			at = r.hi
			runs = append(runs, r)
		}
	}
	return runs, at == hi
}

// put overwrites the chunks of the runs.
func (s *store) put(runs []run) {
	for _, r := range runs {
		s.putOne(r)
	}
}

func (s *store) putOne(r run) {
	block, i := s.at(r.lo)
	if block == len(s.blocks) { // behind all others
		if block == 0 {
			s.blocks = append(s.blocks, nil)
		} else {
			block--
		}
		i = len(s.blocks[block])
	}
	repl := make([]run, 0, 3)
	b := s.blocks[block]
	if i < len(b) && b[i].lo < r.lo {
		left := b[i]
		left.hi = r.lo
		repl = append(repl, left)
	}
	repl = append(repl, r)
	// What it covers may reach into the blocks behind.
	last, j := block, i
	var right *run
	for last < len(s.blocks) {
		for j < len(s.blocks[last]) && s.blocks[last][j].lo < r.hi {
			if x := s.blocks[last][j]; x.hi > r.hi {
				x.lo = r.hi
				right = &x
			}
			j++
		}
		if j < len(s.blocks[last]) || last == len(s.blocks)-1 || s.blocks[last+1][0].lo >= r.hi {
			break
		}
		last, j = last+1, 0
	}
	if right != nil {
		repl = append(repl, *right)
	}
	if last == block {
		b = slices.Replace(b, i, j, repl...)
	} else {
		b = append(append(b[:i:i], repl...), s.blocks[last][j:]...)
		s.blocks = slices.Delete(s.blocks, block+1, last+1)
	}
	b = merge(b, i)
	s.blocks[block] = b
	if len(b) > maxBlock {
		half := slices.Clone(b[len(b)/2:])
		s.blocks[block] = b[: len(b)/2 : len(b)/2]
		s.blocks = slices.Insert(s.blocks, block+1, half)
	}
}

// merge joins the runs around place i where they are of one kind.
func merge(s []run, i int) []run {
	for k := max(i-1, 0); k+1 < len(s) && k <= i+2; {
		a, b := &s[k], &s[k+1]
		if a.hi == b.lo && a.label == b.label && a.how == b.how && same(a.set, b.set) {
			a.hi = b.hi
			s = slices.Delete(s, k+1, k+2)
			continue
		}
		k++
	}
	return s
}
