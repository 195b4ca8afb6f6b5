package cost

import (
	"math"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// counted runs a program and counts what Work says of it, for a buffer of 1 byte.
func counted(t *testing.T, p *sched.Program) (w Work) {
	t.Helper()
	type thread struct {
		rank    sched.Rank
		channel int32
	}
	after := map[thread][]float64{} // the messages one after the other before the end of each action
	sent, come, added := make([]int64, p.Ranks), make([]int64, p.Ranks), make([]int64, p.Ranks)
	err := step.Run(p, func(r sched.Rank, a *step.Action, steps float64) (float64, error) {
		me, n := thread{r, a.Channel}, a.Src.Count
		if !a.Op.Reads() {
			n = a.Dst.Count
		}
		if past := after[me]; len(past) > 0 {
			steps = max(steps, past[len(past)-1])
		}
		if a.Op == sched.Wait && a.Done > 0 {
			steps = max(steps, after[thread{r, a.On}][a.Done-1])
		}
		after[me] = append(after[me], steps)
		w.Steps = max(w.Steps, steps)
		if a.Op.Receives() {
			come[r] += n
		}
		if a.Op.Reduces() {
			added[r] += n
		}
		if a.Op.Sends() {
			sent[r] += n
		}
		return steps + 1, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	chunks := float64(max(p.NumChunks(sched.In), p.NumChunks(sched.Out), 1))
	w.Wire = float64(max(slices.Max(sent), slices.Max(come))) / chunks
	w.Reduced = float64(slices.Max(added)) / chunks
	return w
}

// Every closed form is what the program of that name asks of its busiest rank. A barrier's bytes are not compared: it
// has none, and its programs pass a token.
func TestClosedFormsCountPrograms(t *testing.T) {
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	for _, op := range sched.Collectives() {
		for n := 1; n <= 65; n++ {
			if n > 33 && !slices.Contains([]int{48, 49, 63, 64, 65}, n) {
				continue
			}
			list, err := Algos(op, n)
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range list {
				a, err := algo.Find(form.Name)
				if err != nil {
					t.Fatalf("%s of %d ranks: %v", op, n, err)
				}
				for root := 0; root == 0 || op.Rooted() && root < n; root += max(1, n-1) {
					p, err := a.Program(algo.Spec{Op: op, Ranks: n, Root: root, Pieces: 1})
					if err != nil {
						t.Fatalf("%s %s of %d ranks: %v", form.Name, op, n, err)
					}
					got, want := form.Cost(1), counted(t, p)
					if op == sched.Barrier {
						want.Wire, want.Reduced = 0, 0
					}
					if !near(got.Steps, want.Steps) || !near(got.Wire, want.Wire) || !near(got.Reduced, want.Reduced) {
						t.Errorf("%s %s of %d ranks: %+v, and the program does %+v", form.Name, op, n, got, want)
					}
				}
			}
		}
	}
}
