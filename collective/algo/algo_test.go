package algo_test

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// long proves at all counts: make proofs. Without it, counts that differ in kind are
// proven: all small ones, then powers of two, their neighbours and composite ones.
var long = flag.Bool("long", false, "prove at all counts")

// prove builds and proves a program, or says that the shape does not fit.
func prove(t *testing.T, a *algo.Algorithm, s algo.Spec) (*sched.Program, *verify.Report) {
	t.Helper()
	if a.Fits != nil && a.Fits(s) != nil {
		return nil, nil
	}
	p, err := a.Program(s)
	if err != nil {
		t.Fatalf("%s %s, %d ranks: %v", a.Name, s.Op, s.Ranks, err)
	}
	rep, err := verify.Right(p)
	if err != nil {
		t.Fatalf("%s %s, %d ranks, root %d, %d channels, domains of %d: %+v\n%s", a.Name, s.Op, s.Ranks, s.Root, s.Channels, s.Local, err, p)
	}
	// comm moves chunks of different lengths as they are because of this.
	if p.Scratch == nil && !(rep.Aligned && rep.Placed) {
		t.Errorf("%s %s, %d ranks: chunks of out hold what does not belong there, and there is no scratch", a.Name, s.Op, s.Ranks)
	}
	return p, rep
}

func find(t *testing.T, name string) *algo.Algorithm {
	t.Helper()
	a, err := algo.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Every algorithm is proven for every collective it serves at every count up to
// 33, with several channels and at several roots up to 17; without -long at fewer counts.
func TestEveryAlgorithmIsProven(t *testing.T) {
	t.Parallel()
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			t.Run(a.Name+"/"+op.String(), func(t *testing.T) {
				t.Parallel()
				several := 17
				if !*long {
					several = 8
				}
				for n := 1; n <= 33; n++ {
					if n > 8 && !*long && !slices.Contains([]int{12, 16, 17, 33}, n) {
						continue
					}
					for root := 0; root < n && (root == 0 || op.Rooted() && n <= several); root += 1 + n/6 {
						for ch := 1; ch <= 3 && (ch == 1 || n <= several); ch += 2 {
							p, _ := prove(t, a, algo.Spec{Op: op, Ranks: n, Root: root, Channels: ch, Pieces: n % 4})
							if p == nil {
								continue
							}
							again, err := sched.Parse(p.String())
							if err != nil || again.String() != p.String() || again.Digest() != p.Digest() {
								t.Fatalf("n=%d: text does not round-trip: %v\n%s", n, err, p)
							}
						}
					}
				}
			})
		}
	}
}

// Algorithms of two levels are proven for all ways to cut up to 24 ranks into
// domains; hierarchical with every pair of algorithms inside and between.
func TestDomainsAreProven(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"colltree", "collnet-chain", "collnet-direct", "sharp", "nvls-tree", "rail-trees"} {
		a := find(t, name)
		for _, op := range a.Ops {
			for n := 2; n <= 24; n++ {
				if n > 6 && !*long && n != 8 && n != 12 {
					continue
				}
				for local := 1; local <= n; local++ {
					prove(t, a, algo.Spec{Op: op, Ranks: n, Root: (n - 1) * rooted(op), Local: local, Channels: 1 + n%2})
				}
			}
		}
	}
	for _, name := range []string{"two-level", "leader"} {
		for _, op := range find(t, name).Ops {
			for _, n := range []int{4, 6, 8, 12} {
				for local := 1; local <= n; local++ {
					for _, outer := range []string{"", "ring"} {
						for root := 0; root == 0 || op.Rooted() && root < n; root += 3 {
							if outer == "" || algo.IsOuter(find(t, outer), op) {
								prove(t, find(t, name), algo.Spec{Op: op, Ranks: n, Root: root, Local: local, Outer: outer})
							}
						}
					}
				}
			}
		}
	}
	a := find(t, "hierarchical")
	for _, op := range a.Ops {
		pairs := 0
		for _, inner := range algo.All() {
			for _, outer := range algo.All() {
				if !algo.IsInner(inner, op) || !algo.IsOuter(outer, op) {
					continue
				}
				pairs++
				for _, n := range []int{4, 6, 12, 15, 24} {
					if n > 12 && !*long {
						break
					}
					for local := 1; local <= n; local++ {
						if n > 6 && !*long && local != n/2 && local != n/3 {
							continue
						}
						prove(t, a, algo.Spec{Op: op, Ranks: n, Local: local, Channels: 1 + n%2, Inner: inner.Name, Outer: outer.Name})
					}
				}
			}
		}
		if pairs < 16 || op == sched.AllReduce && pairs < 4*8 {
			t.Errorf("%s: %d pairs of inner and outer algorithms", op, pairs)
		}
	}
}

func rooted(op sched.Collective) int {
	if op.Rooted() {
		return 1
	}
	return 0
}

// Counts far beyond a host: powers of two and not, up to 4,096 where a proof is
// a matter of a second.
func TestLargeCountsAreProven(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		counts []int
	}{
		{"ring", []int{100, 127, 1000, 4096}},
		{"bidirectional-ring", []int{100, 1024}},
		{"tree", []int{100, 127, 1000, 4096}},
		{"double-binary-tree", []int{100, 127, 1000}},
		{"colltree", []int{64, 128, 1000}},
		{"recursive-doubling", []int{100, 127, 1000, 4096}},
		{"halving-doubling", []int{100, 127, 128, 1000, 1024}},
		{"rabenseifner", []int{100, 127, 128, 1000}},
		{"swing", []int{100, 127, 128, 1000}},
		{"binomial", []int{100, 127, 1000}},
		{"dissemination", []int{100, 1000, 4096}},
		{"bruck", []int{100, 127, 1000}},
		{"pairwise", []int{100, 1000}},
		{"pairwise-delta", []int{100, 1000}},
		{"pat", []int{100, 127, 1000, 4096}},
		{"direct", []int{100, 256}},
		{"one-shot", []int{100, 128}},
		{"rank-order", []int{100, 128}},
		{"torus", []int{64, 100, 128}},
		{"bcube", []int{64, 100, 128, 256, 1024}},
		{"hierarchical", []int{64, 128, 256}},
		{"rail-trees", []int{64, 100, 128, 1000}},
		{"sharp", []int{128, 1000, 4096}},
		{"collnet-chain", []int{128, 1000, 4096}},
		{"collnet-direct", []int{128, 256, 1000}},
		{"nvls-tree", []int{64, 128, 256}},
	} {
		a := find(t, c.name)
		for _, n := range c.counts {
			if n > 128 && !*long && c.name != "ring" && c.name != "pat" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", c.name, n), func(t *testing.T) {
				t.Parallel()
				for _, op := range a.Ops {
					local := 0
					if n%8 == 0 {
						local = 8
					}
					if p, _ := prove(t, a, algo.Spec{Op: op, Ranks: n, Local: local, Root: (n / 3) * rooted(op)}); p == nil {
						t.Errorf("%s does not fit %d ranks", c.name, n)
					}
				}
			})
		}
	}
}

// Every collective is served for every number of ranks.
func TestEveryCollectiveForAnyCount(t *testing.T) {
	t.Parallel()
	for _, op := range sched.Collectives() {
		for n := 1; n <= 130; n++ {
			served := false
			for _, a := range algo.All() {
				_, err := a.Program(algo.Spec{Op: op, Ranks: n})
				if served = err == nil; served {
					break
				}
			}
			if !served {
				t.Errorf("nothing does %s for %d ranks", op, n)
			}
		}
	}
}

// Texts are short whatever the number of ranks: none grows faster than its
// logarithm squared. (Torus and bcube grow with dimensions and factors, PAT with
// the square of the levels of its tree.)
func TestTextsAreShort(t *testing.T) {
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			lines := func(n int) int {
				p, err := a.Program(algo.Spec{Op: op, Ranks: n, Local: 8, Aggregate: 1})
				if err != nil {
					p, err = a.Program(algo.Spec{Op: op, Ranks: n, Aggregate: 1})
				}
				if err != nil {
					t.Fatal(a.Name, err)
				}
				return strings.Count(p.String(), "\n")
			}
			if small, large := lines(64), lines(65536); large > 4*small || large > 800 {
				t.Errorf("%s %s: %d lines for 64 ranks, %d for 65,536", a.Name, op, small, large)
			}
		}
	}
}

// The size of a ring's program does not depend on the number of ranks.
func TestRingTextHasOneSize(t *testing.T) {
	ring := find(t, "ring")
	size := func(n int) int {
		p, err := ring.Program(algo.Spec{Op: sched.AllReduce, Ranks: n})
		if err != nil {
			t.Fatal(err)
		}
		return len(fmt.Sprint(p))
	}
	if a, b := size(8), size(100000); b-a > 8 {
		t.Errorf("8 ranks: %d bytes, 100,000 ranks: %d", a, b)
	}
}

// Rotation proves what unrolling proves, and refuses what it refuses.
func TestRotationAgreesWithUnrolling(t *testing.T) {
	t.Parallel()
	for i, a := range algo.All() {
		ops := a.Ops
		if !*long {
			ops = ops[:1]
		}
		for _, op := range ops {
			for n := 65; n <= 66; n++ {
				if n > 65 && !*long {
					continue
				}
				s := algo.Spec{Op: op, Ranks: n, Pieces: 1 + n%3, Channels: 1 + n%2}
				if !*long {
					s.Pieces, s.Channels = 1+i%2, 1
				}
				p, err := a.Program(s)
				if err != nil {
					continue
				}
				fast, err := verify.Right(p)
				if err != nil {
					t.Fatal(err)
				}
				if fast.Method != "rotation" {
					break
				}
				slow, err := verify.Unrolled(p)
				if err != nil {
					t.Fatal(err)
				}
				if fast.Steps != slow.Steps || fast.MaxSent != slow.MaxSent || fast.MaxRecv != slow.MaxRecv || fast.Actions != slow.Actions {
					t.Errorf("%s n=%d %s: %+v against %+v", a.Name, n, op, fast, slow)
				}
			}
		}
	}
	p, err := find(t, "ring").Program(algo.Spec{Op: sched.AllReduce, Ranks: 100000})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := verify.Program(p)
	if err != nil || rep.Steps != 2*99999 || rep.MaxSent != 2*99999 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if _, err := verify.Unrolled(p); !errors.Is(err, verify.ErrTooLarge) {
		t.Error(err)
	}
}

func TestUnfitShapesSayWhy(t *testing.T) {
	for want, c := range map[string]struct {
		name string
		spec algo.Spec
	}{
		"does not do broadcast; it does all-gather": {"bruck", algo.Spec{Op: sched.Broadcast, Ranks: 4}},
		"not a power of two":                        {"pairwise-xor", algo.Spec{Op: sched.AllToAll, Ranks: 6}},
		"10 ranks do not fill domains of 4":         {"nvls-tree", algo.Spec{Op: sched.AllReduce, Ranks: 10, Local: 4}},
		"nvls-tree serves several":                  {"nvls", algo.Spec{Op: sched.AllReduce, Ranks: 8, Local: 4}},
		"dimensions 2 x 3 hold 6 ranks, not 8":      {"torus", algo.Spec{Op: sched.AllReduce, Ranks: 8, Dims: []int{2, 3}}},
		"aggregation of 8 blocks for 8 ranks":       {"pat", algo.Spec{Op: sched.AllGather, Ranks: 8, Aggregate: 8}},
		"inside a domain: no algorithm \"torus\"; known there: di": {"hierarchical",
			algo.Spec{Op: sched.AllReduce, Ranks: 8, Local: 4, Inner: "torus"}},
		"root 9 is not among 8 ranks": {"tree", algo.Spec{Op: sched.Reduce, Ranks: 8, Root: 9}},
		"at least one":                {"tree", algo.Spec{Op: sched.Reduce}},
		"2 orders for 1 channels": {"ring",
			algo.Spec{Op: sched.AllReduce, Ranks: 2, Orders: [][]sched.Rank{{0, 1}, {1, 0}}}},
		"an order of 3 ranks for 2": {"ring",
			algo.Spec{Op: sched.AllReduce, Ranks: 2, Orders: [][]sched.Rank{{0, 1, 2}}}},
		"not a permutation": {"ring",
			algo.Spec{Op: sched.AllReduce, Ranks: 2, Orders: [][]sched.Rank{{0, 0}}}},
	} {
		if _, err := find(t, c.name).Program(c.spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", c.name, err, want)
		}
	}
	if _, err := algo.Find("rign"); err == nil || !strings.Contains(err.Error(), "known: bcube, bidirectional-ring") {
		t.Error(err)
	}
}
