package algo_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/collective/verify"
)

// expressions runs a program with texts for numbers and gives, by rank and chunk
// of out, the expression that was computed.
func expressions(t *testing.T, p *sched.Program) [][]string {
	t.Helper()
	out := make([][]string, p.Ranks)
	type memory [4][]string
	mem := make([]memory, p.Ranks)
	for r := range mem {
		for b := sched.In; b <= sched.Tmp; b++ {
			mem[r][b] = make([]string, p.NumChunks(b))
		}
		for i := range mem[r][sched.In] {
			mem[r][sched.In][i] = fmt.Sprint(r)
		}
		out[r] = mem[r][sched.Out]
	}
	err := step.Run(p, func(r sched.Rank, a *step.Action, message []string) ([]string, error) {
		src, dst := mem[r][a.Src.Buf], mem[r][a.Dst.Buf]
		value := make([]string, a.Count)
		for i := range value {
			switch {
			case a.Op == sched.LocalReduce:
				value[i] = plus(dst[a.Dst.Index+int64(i)], src[a.Src.Index+int64(i)])
			case a.Op.Reduces():
				value[i] = plus(message[i], src[a.Src.Index+int64(i)])
			case a.Op.Receives():
				value[i] = message[i]
			default:
				value[i] = src[a.Src.Index+int64(i)]
			}
		}
		if a.Op.Stores() {
			copy(dst[a.Dst.Index:], value)
		}
		return value, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// treeText is the canonical expression of ranks [lo, hi), operands of a sum sorted.
func treeText(lo, hi int) string {
	if hi == lo+1 {
		return fmt.Sprint(lo)
	}
	half := 1
	for 2*half < hi-lo {
		half *= 2
	}
	return plus(treeText(lo, lo+half), treeText(lo+half, hi))
}

func plus(a, b string) string {
	if a > b {
		a, b = b, a
	}
	return "(" + a + "+" + b + ")"
}

// The sum of an element is one expression for any algorithm of the two, collective, root, channels and part, and the proof says so.
func TestSumsInTheCanonicalOrder(t *testing.T) {
	t.Parallel()
	for n := 2; n <= 17; n++ {
		want := treeText(0, n)
		for _, name := range []string{"one-shot", "rank-order", "binomial"} {
			a := find(t, name)
			for _, op := range a.Ops {
				if !op.Reduces() {
					continue
				}
				for root := 0; root < 1+(n-1)*rooted(op); root++ {
					for _, channels := range []int{1, 3} {
						p, err := a.Program(algo.Spec{Op: op, Ranks: n, Root: root, Channels: channels})
						if err != nil {
							t.Fatal(err)
						}
						for r, chunks := range expressions(t, p) {
							if op == sched.Reduce && r != root {
								continue
							}
							for i, got := range chunks {
								if got != want {
									t.Fatalf("%s %s, %d ranks, root %d: rank %d has %s in out[%d], want %s", name, op, n, root, r, got, i, want)
								}
							}
						}
					}
				}
			}
		}
	}
}

// What is said to be canonical is proven to be so; and of the algorithms that may be, no program is missed.
func TestCanonicalIsProven(t *testing.T) {
	t.Parallel()
	counts := []int{2, 3, 4, 5, 6, 7, 8, 12, 16}
	if *long {
		counts = append(counts, 9, 10, 11, 13, 14, 15, 17, 24, 31, 32, 33, 64)
	}
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			if !op.Reduces() || op == sched.Barrier {
				continue
			}
			for _, n := range counts {
				for root := 0; root < 1+(n-1)*rooted(op); root += 1 + n/5 {
					for channels := 1; channels <= 2; channels++ {
						s := algo.Spec{Op: op, Ranks: n, Root: root, Channels: channels}
						p, err := a.Program(s)
						if err != nil || p.Switches > 0 {
							continue
						}
						rep, err := verify.Right(p)
						if err != nil {
							t.Fatal(err)
						}
						known := slices.Contains([]string{"rank-order", "one-shot", "binomial", "recursive-doubling", "rabenseifner"}, a.Name)
						if says := a.Canonical(s); says && !rep.Canonical || known && rep.Canonical && !says {
							t.Errorf("%s %s, %d ranks, root %d, %d channels: said to be canonical: %v, proven: %v",
								a.Name, op, n, root, channels, says, rep.Canonical)
						}
					}
				}
			}
		}
	}
}

// What runs straight out of peers' memory and in place is proven to be safe
// there, for every count that a host may have: every collective of the three
// flat algorithms but those of direct in which everybody's input is where
// somebody's result goes and one step is all there is.
func TestFlatAlgorithmsAreDirectInPlace(t *testing.T) {
	t.Parallel()
	staged := []sched.Collective{sched.AllToAll, sched.SendRecv, sched.Barrier}
	for _, name := range []string{"direct", "one-shot", "rank-order"} {
		a := find(t, name)
		for _, op := range a.Ops {
			for n := 2; n <= 64; n += 1 + n/17*2 {
				if n > 9 && !*long && n != 16 && n != 33 {
					continue
				}
				for channels := 1; channels <= 2 && channels*n < 34 || channels == 1; channels++ {
					p, err := a.Program(algo.Spec{Op: op, Ranks: n, Root: (n / 2) * rooted(op), Channels: channels})
					if err != nil {
						t.Fatal(err)
					}
					rep, err := verify.Program(p)
					if err != nil {
						t.Fatal(err)
					}
					both := name != "direct" || !slices.Contains(staged, op)
					if !rep.Direct || !rep.InPlace || rep.Both != both {
						t.Errorf("%s %s, %d ranks, %d channels: direct %v, in place %v, both %v, want true, true, %v",
							name, op, n, channels, rep.Direct, rep.InPlace, rep.Both, both)
					}
				}
			}
		}
	}
}
