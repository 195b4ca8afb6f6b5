package verify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/mutant"
	"github.com/weft-fabric/weft/internal/reference"
)

// right runs a program in several orders on integers and compares with what the
// collective promises. The n-th rank's contribution to a barrier is one in the
// n-th digit, which must not be missing.
func right(p *sched.Program, rng *rand.Rand) error {
	in := make([][]int64, p.Ranks)
	for r := range in {
		for range p.NumChunks(sched.In) * 2 {
			v := rng.Int64N(1 << 30)
			if p.Op == sched.Barrier {
				v = 1 << (8 * r)
			}
			in[r] = append(in[r], v)
		}
	}
	want := reference.Promised(p.Op, p.Root, in)
	for try := range 6 {
		pick := rng.IntN
		if try == 0 {
			pick = nil
		}
		out, err := reference.Run(p, in, pick)
		if err != nil {
			return err
		}
		for r := range want {
			if want[r] != nil && !slices.Equal(out[r], want[r]) {
				return fmt.Errorf("rank %d ends with %v, not %v", r, out[r], want[r])
			}
			for digit := 0; p.Op == sched.Barrier && digit < p.Ranks; digit++ {
				for _, v := range out[r] {
					if v>>(8*digit)&255 == 0 {
						return fmt.Errorf("rank %d does not know that rank %d began", r, digit)
					}
				}
			}
		}
	}
	return nil
}

// No broken program is accepted. Every algorithm is written out for 3 to 6
// ranks and broken in hundreds of places: steps dropped, doubled, swapped,
// moved, sent elsewhere, turned to other chunks, counts, buffers and operations.
// What is still accepted must be right whatever the order of steps: those are
// the swaps and moves of steps that do not depend on one another, scratch moved
// to chunks nobody uses, and slots, copies and waits that something else makes
// unnecessary.
func TestNoBrokenProgramIsAccepted(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 9))
	tried, equivalent := 0, 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			count := 0
			for n := 3; n <= 6; n++ {
				s := algo.Spec{Op: op, Ranks: n, Channels: 1 + n%2, Pieces: 2, Local: 3 * (n % 2), Aggregate: 1 + n%2}
				if s.Root = 0; op.Rooted() {
					s.Root = n - 1
				}
				if a.Fits != nil && a.Fits(s) != nil {
					s.Local = 0
					if a.Fits(s) != nil {
						continue
					}
				}
				p, err := a.Program(s)
				if err != nil {
					t.Fatal(err)
				}
				e, err := mutant.WriteOut(p)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := verify.Program(e.Program()); err != nil {
					t.Fatalf("%s %s written out: %v", a.Name, op, err)
				}
				for count < bounded.Times(25, 100)*(n-2) {
					m, how := e.Break(rng)
					if m == nil {
						continue
					}
					count++
					q := m.Program()
					if _, err := verify.Program(q); err != nil {
						continue
					}
					if err := right(q, rng); err != nil {
						t.Fatalf("%s %s, %d ranks, %s: accepted, but %v\n%s", a.Name, op, n, how, err, q)
					}
					equivalent++
				}
			}
			tried += count
		}
	}
	t.Logf("%d broken programs of %d algorithms: %d rejected, %d accepted, all of which are right in every order tried",
		tried, len(algo.All()), tried-equivalent, equivalent)
	if tried < bounded.Times(2500, 10000) || equivalent > tried/5 {
		t.Errorf("%d tried, %d accepted", tried, equivalent)
	}
}

// The same with the texts themselves, in which one change breaks every rank: a
// constant off by one, a statement dropped, doubled or swapped.
func TestNoBrokenTextIsAccepted(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 1))
	tried, equivalent := 0, 0
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			for n := 3; n <= 6; n++ {
				for range bounded.Times(4, 15) {
					s := algo.Spec{Op: op, Ranks: n, Channels: 1 + n%2, Root: n / 2, Local: n / (1 + n%3)}
					p, err := a.Program(s)
					if err != nil {
						s.Local = 0
						if p, err = a.Program(s); err != nil {
							break
						}
					}
					whole := p.String()
					for p.String() == whole {
						mutant.BreakText(p.Groups[rng.IntN(len(p.Groups))].Body, rng)
					}
					tried++
					if _, err := verify.Program(p); err != nil {
						continue
					}
					if err := right(p, rng); err != nil {
						t.Fatalf("accepted, but %v\n%s\nmade of\n%s", err, p, whole)
					}
					equivalent++
				}
			}
		}
	}
	t.Logf("%d broken texts: %d rejected, %d accepted, all of which are right in every order tried", tried, tried-equivalent, equivalent)
}

// Proof by rotation and proof by unrolling agree on broken texts, too: constants
// in them changed by one, steps dropped, doubled or swapped for all ranks alike.
func TestRotationRejectsWhatUnrollingRejects(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 4))
	tried, accepted := 0, 0
	for _, c := range []struct {
		name string
		op   sched.Collective
	}{{"ring", sched.AllReduce}, {"ring", sched.ReduceScatter}, {"ring", sched.AllGather}, {"ring", sched.SendRecv},
		{"bidirectional-ring", sched.AllGather},
		{"pat", sched.AllGather}, {"bruck", sched.AllGather}, {"dissemination", sched.Barrier}, {"pairwise", sched.AllToAll}} {
		a, err := algo.Find(c.name)
		if err != nil {
			t.Fatal(err)
		}
		for range bounded.Times(6, 25) {
			p, err := a.Program(algo.Spec{Op: c.op, Ranks: 65})
			if err != nil {
				t.Fatal(err)
			}
			for whole := p.String(); p.String() == whole; {
				mutant.BreakText(p.Groups[0].Body, rng)
			}
			fast, errFast := verify.Program(p)
			_, errSlow := verify.Unrolled(p)
			if (errFast == nil) != (errSlow == nil) {
				t.Fatalf("rotation says %v, unrolling says %v\n%s", errFast, errSlow, p)
			}
			if fast != nil && fast.Method == "rotation" {
				accepted++
			}
			tried++
		}
	}
	t.Logf("%d broken texts, %d of them accepted by rotation and by unrolling", tried, accepted)
}
