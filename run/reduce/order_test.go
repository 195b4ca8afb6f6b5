package reduce_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/reduce"
)

// postfix combines sources as merges say, by the definition of a pair.
func postfix(t reduce.Type, op reduce.Op, srcs [][]byte, merges []uint8) []byte {
	var left [][]byte
	for k, s := range srcs {
		left = append(left, bytes.Clone(s))
		for range merges[k] {
			n := len(left) - 1
			reduce.Apply(t, op, left[n-1], left[n-1], left[n])
			left = left[:n]
		}
	}
	return left[0]
}

// anyOrder draws the postfix form of a binary tree over n sources.
func anyOrder(r *rand.Rand, n int) []uint8 {
	merges := make([]uint8, n)
	left := 0
	for k := range merges {
		left++
		for left > 1 && (k == n-1 || r.IntN(2) == 0) {
			merges[k]++
			left--
		}
	}
	return merges
}

// halves is the sum of the tree, as its comment says.
func halves(n int) string {
	var of func(lo, hi int) string
	of = func(lo, hi int) string {
		if hi == lo+1 {
			return fmt.Sprint(lo)
		}
		half := 1
		for 2*half < hi-lo {
			half *= 2
		}
		return "(" + of(lo, lo+half) + " " + of(lo+half, hi) + ")"
	}
	return of(0, n)
}

func TestTreeIsOfHalves(t *testing.T) {
	for n := 1; n <= 100; n++ {
		var left []string
		for k, m := range reduce.TreeMerges(n) {
			left = append(left, fmt.Sprint(k))
			for range m {
				i := len(left) - 2
				left = append(left[:i], "("+left[i]+" "+left[i+1]+")")
			}
		}
		if want := halves(n); len(left) != 1 || left[0] != want {
			t.Fatalf("%d sources: %v, want %s", n, left, want)
		}
		if m := reduce.Tree(n).Merges(n); !slices.Equal(m, reduce.TreeMerges(n)) {
			t.Fatalf("%d sources: %v is not %v", n, m, reduce.TreeMerges(n))
		}
	}
	reduce.Tree(reduce.MostMerged)
}

// Any order gives what its pairs give one by one, whichever sources are destinations, with a log or without.
func TestAnyOrder(t *testing.T) {
	each(t, 512, func(t *testing.T) {
		r := rand.New(rand.NewPCG(31, 32))
		log := newLog()
		combinations(func(typ reduce.Type, op reduce.Op) {
			for _, ns := range []int{1, 2, 3, 4, 5, 8, 17} {
				merges := anyOrder(r, ns)
				if ns == 4 || ns == 8 {
					merges = reduce.TreeMerges(ns)
				}
				order, err := reduce.NewOrder(merges)
				if err != nil {
					t.Fatal(err)
				}
				n := r.IntN(300) * typ.Size()
				if ns == 8 && r.IntN(4) == 0 {
					n += 3 << 13
				}
				srcs := sources(r, typ, ns, n)
				want := postfix(typ, op, srcs, merges)
				dsts := [][]byte{make([]byte, n), make([]byte, n+1)[1:]}
				if r.IntN(2) == 0 {
					dsts = append(dsts, srcs[ns-1])
				}
				kept := srcs[r.IntN(ns)]
				again := make([][]byte, ns)
				for i := range srcs {
					again[i] = bytes.Clone(srcs[i])
				}
				reduce.ApplyAll(typ, op, append(dsts, kept), srcs, order)
				for i, d := range append(dsts, kept) {
					if !bytes.Equal(d, want) {
						t.Fatalf("%v of %d x %d bytes of %v in order %v into destination %d: %s", op, ns, n, typ, merges, i, differ(typ, d, want))
					}
				}
				reduce.ResetLog(log)
				reduce.Finish(typ, op, want, ns)
				reduce.ApplyAllLogged(typ, op, again, again, order, log, 0)
				for i, d := range again {
					if !bytes.Equal(d, want) {
						t.Fatalf("%v of %d x %d bytes of %v in order %v into destination %d with a log: %s", op, ns, n, typ, merges, i, differ(typ, d, want))
					}
				}
			}
		})
	})
}

// A reduction in the order of a tree that was interrupted in the middle of any block is finished, in place.
func TestTreeResumes(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(33, 34))
		const ns, start = 8, 77
		for _, typ := range []reduce.Type{reduce.Float16, reduce.Float32, reduce.Int64} {
			for _, op := range []reduce.Op{reduce.Sum, reduce.Avg} {
				n := 14000 / typ.Size() * typ.Size()
				srcs := sources(r, typ, ns, n)
				want := postfix(typ, op, srcs, reduce.TreeMerges(ns))
				reduce.Finish(typ, op, want, ns)
				for from := 0; from < n; from += 192 {
					to := min(n, from+64)
					bufs := make([][]byte, ns)
					for i, s := range srcs {
						bufs[i] = bytes.Clone(s)
						copy(bufs[i], want[:from])
						if i < 3 {
							copy(bufs[i], want[:to])
						}
					}
					log := newLog()
					copy(log[64:], want[from:to])
					state(log, start+from, start+to)
					reduce.ApplyAllLogged(typ, op, bufs, bufs, reduce.Tree(ns), log, start)
					for i, d := range bufs {
						if !bytes.Equal(d, want) {
							t.Fatalf("%v of %v, bytes %d to %d sealed: destination %d: %s", op, typ, from, to, i, differ(typ, d, want))
						}
					}
				}
			}
		}
	})
}

// Large destinations are stored past the caches in this order, too.
func TestTreePastTheCaches(t *testing.T) {
	each(t, 1<<16, func(t *testing.T) {
		r := rand.New(rand.NewPCG(35, 36))
		for _, typ := range []reduce.Type{reduce.Uint8, reduce.Float32} {
			srcs := sources(r, typ, 5, 1<<20+13*typ.Size())
			want := postfix(typ, reduce.Sum, srcs, reduce.TreeMerges(5))
			for _, off := range []int{0, 4, 3} {
				dst := make([]byte, len(want)+off)[off:]
				reduce.ApplyAll(typ, reduce.Sum, [][]byte{dst}, srcs, reduce.Tree(5))
				if !bytes.Equal(dst, want) {
					t.Fatalf("%v: %s", typ, differ(typ, dst, want))
				}
			}
		}
	})
}

func TestOrdersThatAreNone(t *testing.T) {
	for _, merges := range [][]uint8{{}, {1}, {0, 0}, {0, 2}, {0, 1, 0}} {
		if o, err := reduce.NewOrder(merges); err == nil {
			t.Errorf("%v is an order: %v", merges, o.Merges(len(merges)))
		}
	}
	if testing.AllocsPerRun(100, func() {
		b := make([]byte, 64)
		srcs, dsts := [4][]byte{b, b, b, b}, [1][]byte{b}
		reduce.ApplyAll(reduce.Float32, reduce.Sum, dsts[:], srcs[:], fourth)
	}) > 1 { // a collected desk is made anew
		t.Error("a reduction in an order allocates")
	}
}

var fourth = reduce.Tree(4)

// BenchmarkTree prints the time of the tree as a part of that of one source after the other, in turns.
func BenchmarkTree(b *testing.B) {
	for _, ns := range []int{4, 8, 16} {
		for _, size := range []int{8, 256, 4 << 10, 64 << 10, 1 << 20, 16 << 20} {
			srcs := make([][]byte, ns)
			for i := range srcs {
				srcs[i] = make([]byte, size)
			}
			dst := [][]byte{make([]byte, size)}
			tree := reduce.Tree(ns)
			rounds := max(4<<20/size/ns, 1)
			var ratios []float64
			for range 21 {
				var took [2]time.Duration
				for i, order := range []*reduce.Order{nil, tree} {
					began := time.Now()
					for range rounds {
						reduce.ApplyAll(reduce.Float32, reduce.Sum, dst, srcs, order)
					}
					took[i] = time.Since(began)
				}
				ratios = append(ratios, float64(took[1])/float64(took[0]))
			}
			slices.Sort(ratios)
			fmt.Printf("%2d sources of %8d bytes: %.2f\n", ns, size, ratios[len(ratios)/2])
		}
	}
}
