package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train"
)

// crew is the ranks of a run that outlives communicators.
type crew struct {
	t        *testing.T
	world    []*comm.Comm
	trainers []*train.Trainer
	losses   map[int]float64 // by step
	mu       sync.Mutex
}

// meet gives n trainers a new communicator.
func (w *crew) meet(n int) {
	w.t.Helper()
	w.part()
	var err error
	if w.world, err = comm.LocalWith(n, comm.Config{Canonical: true}); err != nil {
		w.t.Fatal(err)
	}
}

// part closes the communicator at hand.
func (w *crew) part() {
	w.t.Helper()
	for _, c := range w.world {
		if err := c.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.world = nil
}

// all runs f on every rank and gives their errors.
func (w *crew) all(f func(rank int) error) []error {
	errs := make([]error, len(w.world))
	var wg sync.WaitGroup
	for r := range w.world {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	return errs
}

func (w *crew) must(f func(rank int) error) {
	w.t.Helper()
	if err := errors.Join(w.all(f)...); err != nil {
		w.t.Fatal(err)
	}
}

func start(t *testing.T, cfg train.Config, n int) *crew {
	w := &crew{t: t, losses: map[int]float64{}, trainers: make([]*train.Trainer, n)}
	w.meet(n)
	w.must(func(r int) (err error) {
		w.trainers[r], err = train.New(context.Background(), cfg, w.world[r])
		return err
	})
	return w
}

// step takes one step on all ranks and gives their errors.
func (w *crew) step() []error {
	return w.all(func(r int) error {
		s, err := w.trainers[r].Step(context.Background())
		if err == nil {
			w.mu.Lock()
			w.losses[s.Step] = s.Loss
			w.mu.Unlock()
		}
		return err
	})
}

// until takes steps until the given number are taken.
func (w *crew) until(steps int) {
	w.t.Helper()
	for w.trainers[0].Taken() < steps {
		if err := errors.Join(w.step()...); err != nil {
			w.t.Fatal(err)
		}
	}
}

// end closes everything and gives the outcome.
func (w *crew) end() outcome {
	w.t.Helper()
	var out outcome
	for _, tr := range w.trainers {
		out.boxes = append(out.boxes, clone(tr.State())...)
		if err := tr.Close(); err != nil {
			w.t.Error(err)
		}
	}
	out.meta = w.trainers[0].Meta()
	w.part()
	return out
}

// save is a checkpoint in memory.
func (w *crew) save() (train.Meta, []train.Box) {
	var list []train.Box
	for _, tr := range w.trainers {
		list = append(list, clone(tr.State())...)
	}
	return w.trainers[0].Meta(), list
}

var errInjected = errors.New("injected")

// A call that fails at any place of a step, on any rank: all ranks report it, the
// run is rebuilt, and ends with the bits it would have had.
func TestAFailedStepIsNoStepOrAWholeOne(t *testing.T) {
	for name, change := range map[string]func(*train.Config){
		"dp 3":                  func(c *train.Config) { c.Layout = train.Layout{DP: 3} },
		"dp 2 zero 1":           func(c *train.Config) { c.Layout = train.Layout{DP: 2, Zero: 1} },
		"dp 2 zero 2":           func(c *train.Config) { c.Layout = train.Layout{DP: 2, Zero: 2} },
		"dp 2 zero 3":           func(c *train.Config) { c.Layout = train.Layout{DP: 2, Zero: 3} },
		"tp 2 pp 2":             func(c *train.Config) { c.Layout = train.Layout{TP: 2, PP: 2} },
		"dp 2 tp 2 pp 2 zero 1": func(c *train.Config) { c.Layout = train.Layout{DP: 2, TP: 2, PP: 2, Zero: 1} },
	} {
		if !bounded.Long() && (name == "dp 2 zero 1" || name == "dp 2 zero 2") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			cfg := tinyMLP()
			cfg.Model.Layers = 2
			cfg.Micro = 4
			change(&cfg)
			l := cfg.Layout
			n := max(1, l.DP) * max(1, l.TP) * max(1, l.PP)
			const before, steps = 2, 4
			want := play(t, cfg, n, steps)

			// How many calls a step has on each rank.
			w := start(t, cfg, n)
			calls := make([]atomic.Int64, n)
			for r, tr := range w.trainers {
				train.SetFault(tr, func(string) error { calls[r].Add(1); return nil })
			}
			w.until(1)
			w.end()

			points := 4
			if bounded.Long() {
				points = 12
			}
			for rank := 0; rank < n; rank += max(1, n/3) {
				total := int(calls[rank].Load())
				for k := 0; k < total; k += max(1, total/(1+points/n)) {
					w := start(t, cfg, n)
					w.until(before)
					_, saved := w.save()
					var count atomic.Int64
					var last atomic.Value
					train.SetFault(w.trainers[rank], func(call string) error {
						last.Store(call)
						if count.Add(1) == int64(k)+1 {
							return errInjected
						}
						return nil
					})
					errs := w.step()
					if !errors.Is(errs[rank], errInjected) {
						t.Fatalf("call %d of rank %d: the rank itself reports %v", k, rank, errs[rank])
					}
					for r, err := range errs {
						if err == nil && w.trainers[r].Taken() == before {
							t.Errorf("call %d of rank %d: rank %d reports no error", k, rank, r)
						}
					}
					// Ranks that did not take the step have the state they had.
					for r, tr := range w.trainers {
						if tr.Taken() != before {
							continue
						}
						now := tr.State()
						was := clone(now)
						if _, err := train.FromBoxes(train.Meta{}, saved)(was); err != nil {
							t.Fatal(err)
						}
						for i, b := range now {
							if !slices.Equal(was[i].Data, b.Data) {
								t.Errorf("call %d of rank %d: rank %d changed %s in a step that failed", k, rank, r, b.Name)
							}
						}
					}
					train.SetFault(w.trainers[rank], nil)
					w.meet(n)
					w.must(func(r int) error { return w.trainers[r].Rebuild(context.Background(), w.world[r]) })
					w.until(steps)
					for s := before + 1; s <= steps; s++ {
						if got, ok := w.losses[s]; ok && got != want.losses[s-1] {
							t.Errorf("call %d (%v) of rank %d failed: loss of step %d is %v, undisturbed %v", k, last.Load(), rank, s, got, want.losses[s-1])
						}
					}
					got := w.end()
					equal(t, outcome{boxes: got.boxes}, outcome{boxes: want.boxes})
				}
			}
		})
	}
}

// Some ranks took a step whose commit failed on another: Rebuild brings that one
// forward, too.
func TestRebuildTakesTheStepThatOthersTook(t *testing.T) {
	for _, zero := range bounded.First(2, 0, 3, 1, 2) {
		cfg := tiny()
		cfg.Layout = train.Layout{DP: 3, Zero: zero}
		want := play(t, cfg, 3, 4)
		w := start(t, cfg, 3)
		w.until(2)
		// Rank 1 loses the result of the commit, the last all-reduce of the step.
		train.LoseCommit(w.trainers[1])
		w.step()
		if a, b := w.trainers[0].Taken(), w.trainers[1].Taken(); a != 3 || b != 2 {
			t.Fatalf("ranks 0 and 1 took %d and %d steps, want 3 and 2", a, b)
		}
		train.SetFault(w.trainers[1], nil)
		w.meet(3)
		w.must(func(r int) error { return w.trainers[r].Rebuild(context.Background(), w.world[r]) })
		for r, tr := range w.trainers {
			if tr.Taken() != 3 {
				t.Errorf("rank %d took %d steps after Rebuild", r, tr.Taken())
			}
		}
		w.until(4)
		equal(t, outcome{boxes: w.end().boxes}, outcome{boxes: want.boxes})
	}
}

// Ranks leave and come: the curve stays that of a single process.
func TestWorldsOfOtherSizes(t *testing.T) {
	ctx := context.Background()
	type world struct {
		name   string
		layout train.Layout
		sizes  []int
	}
	for _, v := range bounded.First(2,
		world{"dp", train.Layout{}, []int{4, 3, 1, 2, 5}},
		world{"tp 2 pp 2 zero 1", train.Layout{TP: 2, PP: 2, Zero: 1}, []int{8, 9, 11, 8}},
		world{"tp 2", train.Layout{TP: 2}, []int{4, 2, 6}},
		world{"pp 2", train.Layout{PP: 2}, []int{2, 6, 4}},
		world{"tp 2 pp 2", train.Layout{TP: 2, PP: 2}, []int{4, 7, 8, 6, 8}},
	) {
		t.Run(v.name, func(t *testing.T) {
			cfg := tiny()
			cfg.Layout = v.layout
			want := play(t, tiny(), 1, 2*len(v.sizes))
			w := start(t, cfg, v.sizes[0])
			w.until(2)
			for i, n := range v.sizes[1:] {
				// The last ranks leave, or blank ones come.
				for _, tr := range w.trainers[min(n, len(w.trainers)):] {
					if err := tr.Close(); err != nil {
						t.Error(err)
					}
				}
				w.trainers = w.trainers[:min(n, len(w.trainers))]
				for len(w.trainers) < n {
					w.trainers = append(w.trainers, train.Blank(cfg))
				}
				w.meet(n)
				w.must(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })
				w.until(2 * (i + 2))
			}
			got := w.end()
			if l := got.meta.Layout; l.TP != max(1, v.layout.TP) || l.PP != max(1, v.layout.PP) {
				t.Errorf("layout in the end is %v", l)
			}
			for s, loss := range w.losses {
				if d := loss - want.losses[s-1]; d > 5e-4 || d < -5e-4 {
					t.Errorf("loss of step %d is %v, of a single process %v", s, loss, want.losses[s-1])
				}
			}
			if got.meta.Position != want.meta.Position {
				t.Errorf("%d samples were read, %d by a single process", got.meta.Position, want.meta.Position)
			}
		})
	}
}

// With ZeRO a dead rank's share is lost, and a checkpoint of any layout brings it
// back; ranks that all live may change layout without one.
func TestLostSharesComeFromACheckpoint(t *testing.T) {
	ctx := context.Background()
	cfg := tiny()
	cfg.Layout = train.Layout{DP: 4, Zero: 2}
	want := play(t, tiny(), 1, 6)
	w := start(t, cfg, 4)
	w.until(2)
	meta, boxes := w.save()
	w.until(3)

	if err := w.trainers[2].Close(); err != nil {
		t.Error(err)
	}
	w.trainers = slices.Delete(w.trainers, 2, 3)
	w.meet(3)
	for r, err := range w.all(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) }) {
		var lost *train.LostError
		if !errors.As(err, &lost) || !slices.Equal(lost.Parts, []int{2}) || !strings.Contains(err.Error(), "rank 2 of dp 4") {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	cfg.Layout.DP = 0
	w.must(func(r int) error {
		next, err := train.New(ctx, cfg, w.world[r])
		if err != nil {
			return err
		}
		if err := w.trainers[r].Close(); err != nil {
			return err
		}
		w.trainers[r] = next
		return next.Restore(train.FromBoxes(meta, boxes))
	})
	w.until(4)
	w.must(func(r int) error { return w.trainers[r].RebuildAs(ctx, w.world[r], train.Layout{PP: 3}) })
	w.until(5)
	w.must(func(r int) error {
		return w.trainers[r].RebuildAs(ctx, w.world[r], train.Layout{DP: 3, Zero: 3})
	})
	w.until(6)
	w.end()
	for s, loss := range w.losses {
		if d := loss - want.losses[s-1]; d > 5e-4 || d < -5e-4 {
			t.Errorf("loss of step %d is %v, of a single process %v", s, loss, want.losses[s-1])
		}
	}
}

// A Rebuild that fails may be done again.
func TestRebuildAgain(t *testing.T) {
	ctx := context.Background()
	cfg := tinyMLP()
	cfg.Layout = train.Layout{DP: 2, Zero: 1}
	want := play(t, cfg, 2, 4)
	w := start(t, cfg, 2)
	w.until(2)
	for _, call := range []string{"all-gather", "broadcast"} {
		w.meet(2)
		train.SetFault(w.trainers[1], func(c string) error {
			if c == call {
				w.world[1].Abort(errInjected)
				return errInjected
			}
			return nil
		})
		for r, err := range w.all(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) }) {
			if err == nil {
				t.Fatalf("%s: rank %d reports no error", call, r)
			}
		}
		train.SetFault(w.trainers[1], nil)
	}
	w.meet(2)
	w.must(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })
	w.until(4)
	equal(t, outcome{boxes: w.end().boxes}, outcome{boxes: want.boxes})
}

// A rank dies, and the rest go on without it. While they are dealt its share anew
// another epoch comes: each of them may be through with that or not. Whoever is,
// nothing is lost, and the next Rebuild goes on with the same step.
func TestAMirrorHoldsWhereverARebuildEnds(t *testing.T) {
	ctx := context.Background()
	for name, layout := range map[string]train.Layout{"zero 1": {Zero: 1}, "zero 2": {Zero: 2}, "zero 3": {Zero: 3},
		"tp 2 pp 2": {TP: 2, PP: 2}} {
		t.Run(name, func(t *testing.T) {
			cfg := tinyMLP()
			cfg.Layout, cfg.Mirror = layout, true
			want := play(t, tinyMLP(), 1, 4)
			ended := map[int]int{} // rebuilds by how many ranks ended well
			for _, dead := range bounded.First(1, 2, 0) {
				for through := range 8 { // by bit: the ranks that end the rebuild well
					if !bounded.Long() && through != 0 && through != 7 && through%3 != 2 {
						continue
					}
					w := start(t, cfg, 4)
					w.until(2)
					if err := w.trainers[dead].Close(); err != nil {
						t.Error(err)
					}
					w.trainers = slices.Delete(w.trainers, dead, dead+1)
					w.meet(3)
					for r, tr := range w.trainers {
						if through>>r&1 == 0 {
							train.SetFault(tr, func(call string) error {
								if call == "barrier done" {
									return errInjected
								}
								return nil
							})
						}
					}
					n := 0
					for _, err := range w.all(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) }) {
						if err == nil {
							n++
						}
					}
					ended[n]++
					for _, tr := range w.trainers {
						train.SetFault(tr, nil)
					}
					w.trainers = append(w.trainers, train.Blank(cfg)) // the dead rank's successor
					w.meet(4)
					if err := errors.Join(w.all(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })...); err != nil {
						t.Fatalf("rank %d died and ranks %03b of the rest were through: %v", dead, through, err)
					}
					if got := w.trainers[0].Taken(); got != 2 {
						t.Fatalf("rank %d died and ranks %03b of the rest were through: step %d", dead, through, got)
					}
					w.until(4)
					w.end()
					for s, loss := range w.losses {
						if d := loss - want.losses[s-1]; d > 5e-4 || d < -5e-4 {
							t.Errorf("loss of step %d is %v, of a single process %v", s, loss, want.losses[s-1])
						}
					}
				}
			}
			if len(ended) != 4 {
				t.Errorf("rebuilds by how many ranks ended well: %v; want each number", ended)
			}
		})
	}
}

// A rank that was stopped for long returns with a step that the others have given up:
// they go on with theirs.
func TestALaterStepThatIsNotWhole(t *testing.T) {
	ctx := context.Background()
	cfg := tinyMLP()
	cfg.Layout = train.Layout{Zero: 1}
	first := play(t, cfg, 2, 2)
	w := start(t, cfg, 3)
	w.until(4)
	late := w.trainers[2]
	w.trainers = w.trainers[:2]
	w.meet(2)
	w.must(func(r int) error {
		if err := w.trainers[r].Begin(ctx, w.world[r]); err != nil {
			return err
		}
		return w.trainers[r].Restore(train.FromBoxes(first.meta, first.boxes))
	})
	w.trainers = append(w.trainers, late)
	w.meet(3)
	w.must(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })
	if got := late.Taken(); got != 2 {
		t.Errorf("the run goes on after step %d, want 2", got)
	}
	w.until(3)
	w.end()
}

// A Rebuild that only some ranks end well leaves the state in two layouts: the next
// one takes the one that is whole.
func TestRebuildAfterHalfARebuild(t *testing.T) {
	ctx := context.Background()
	want := play(t, tiny(), 1, 4)
	w := start(t, tiny(), 2)
	w.until(2)
	w.meet(2)
	train.SetFault(w.trainers[1], func(c string) error {
		if c == "barrier done" {
			return errInjected
		}
		return nil
	})
	errs := w.all(func(r int) error {
		return w.trainers[r].RebuildAs(ctx, w.world[r], train.Layout{Zero: 3})
	})
	if errs[0] != nil || !errors.Is(errs[1], errInjected) {
		t.Fatal(errs)
	}
	train.SetFault(w.trainers[1], nil)
	w.meet(2)
	w.must(func(r int) error {
		return w.trainers[r].RebuildAs(ctx, w.world[r], train.Layout{Zero: 2})
	})
	w.until(4)
	w.end()
	for s, loss := range w.losses {
		if d := loss - want.losses[s-1]; d > 5e-4 || d < -5e-4 {
			t.Errorf("loss of step %d is %v, of a single process %v", s, loss, want.losses[s-1])
		}
	}
}

// Gradients that are no numbers change nothing.
func TestAStepWithoutANumberIsSkipped(t *testing.T) {
	ctx := context.Background()
	out := play(t, tiny(), 1, 1)
	for _, b := range out.boxes {
		if b.Name == "head.weight" {
			b.Data[7] = float32(math.NaN())
		}
	}
	cfg := tiny()
	cfg.Layout = train.Layout{Zero: 1}
	w := start(t, cfg, 2)
	w.must(func(r int) error {
		return w.trainers[r].Restore(train.FromBoxes(out.meta, out.boxes))
	})
	w.must(func(r int) error {
		s, err := w.trainers[r].Step(ctx)
		if err == nil && (!s.Skipped || s.Step != 2 || w.trainers[r].Taken() != 2) {
			return fmt.Errorf("rank %d: %+v", r, s)
		}
		return err
	})
	equal(t, outcome{boxes: w.end().boxes}, outcome{boxes: out.boxes})
}

// A checkpoint resumes to the bit in its own layout, and near it in others.
func TestRestore(t *testing.T) {
	ctx := context.Background()
	for name, change := range layouts() {
		if strings.Contains(name, "not overlapped") || strings.Contains(name, "gpipe") {
			continue
		}
		if !bounded.Long() && !slices.Contains([]string{"pp 2 1f1b", "dp 2 tp 2 pp 2 zero 3", "dp 5, some without work", "dp 3 zero 1"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			cfg := tiny()
			change(&cfg)
			l := cfg.Layout
			n := max(1, l.DP) * max(1, l.TP) * max(1, l.PP)
			want := play(t, cfg, n, 3)
			first := play(t, cfg, n, 2)
			w := start(t, cfg, n)
			w.until(1) // is overwritten
			w.must(func(r int) error {
				return w.trainers[r].Restore(train.FromBoxes(first.meta, first.boxes))
			})
			w.until(3)
			got := w.end()
			equal(t, outcome{boxes: got.boxes}, outcome{boxes: want.boxes})

			alone, err := train.New(ctx, tiny(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := alone.Restore(train.FromBoxes(first.meta, first.boxes)); err != nil {
				t.Fatal(err)
			}
			s, err := alone.Step(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if d := s.Loss - want.losses[2]; d > 1e-4 || d < -1e-4 {
				t.Errorf("loss of step 3 alone is %v, in the layout %v", s.Loss, want.losses[2])
			}
		})
	}
}

func TestRestoreRefusesAnotherRun(t *testing.T) {
	ctx := context.Background()
	out := play(t, tiny(), 1, 1)
	for want, f := range map[string]func(c *train.Config, m *train.Meta){
		"another model?":        func(c *train.Config, m *train.Meta) { c.Model.Hidden *= 2 },
		"the state is of model": func(c *train.Config, m *train.Meta) { c.Model.Heads = 2 },
		"same text and seed":    func(c *train.Config, m *train.Meta) { c.Seed++ },
		"text":                  func(c *train.Config, m *train.Meta) { c.Text = []byte(strings.Repeat("another text ", 9)) },
		"a state of step -1":    func(c *train.Config, m *train.Meta) { m.Step = -1 },
	} {
		cfg, meta := tiny(), out.meta
		f(&cfg, &meta)
		tr, err := train.New(ctx, cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Restore(train.FromBoxes(meta, out.boxes)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
	// There is nothing to restore: the trainer goes on as it was.
	fresh, err := train.New(ctx, tiny(), nil)
	if err != nil {
		t.Fatal(err)
	}
	nothing := func([]train.Box) (train.Meta, error) { return train.Meta{}, fmt.Errorf("empty: %w", train.ErrNothing) }
	if err := fresh.Restore(nothing); !errors.Is(err, train.ErrNothing) {
		t.Error(err)
	}
	if s, err := fresh.Step(ctx); err != nil || s.Loss != out.losses[0] {
		t.Errorf("first step after nothing was restored: %v, %v", s.Loss, err)
	}
	// A box is missing: the trainer is blank and says so.
	tr, err := train.New(ctx, tiny(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Restore(train.FromBoxes(out.meta, out.boxes[1:])); err == nil {
		t.Error("a state without its first box is taken")
	}
	if _, err := tr.Step(ctx); err == nil || !strings.Contains(err.Error(), "blank") {
		t.Errorf("step of a blank trainer: %v", err)
	}
}

// Samples of a step are the same set in every layout, and ranks read disjoint parts.
func TestRanksReadThePartsOfOneBatch(t *testing.T) {
	cfg := tiny()
	read := func(n int) []int {
		parts := make([][]int, n)
		if err := ranks(t, n, func(c *comm.Comm) error {
			tr, err := train.New(context.Background(), cfg, c)
			if err != nil {
				return err
			}
			if _, err := tr.Step(context.Background()); err != nil {
				return err
			}
			rank := 0
			if c != nil {
				rank = c.Rank()
			}
			parts[rank] = train.Samples(tr)
			return tr.Close()
		}); err != nil {
			t.Fatal(err)
		}
		return slices.Concat(parts...)
	}
	want := read(1)
	if len(want) != cfg.Batch {
		t.Fatalf("%d samples of %d", len(want), cfg.Batch)
	}
	for _, n := range []int{2, 3, 5} {
		if got := read(n); !slices.Equal(got, want) {
			t.Errorf("%d replicas read %v, one %v", n, got, want)
		}
	}
}

// Where samples a replica are kept, batch and learning rate follow the replicas.
func TestScaleRate(t *testing.T) {
	ctx := context.Background()
	cfg := tiny()
	cfg.Elastic = train.ScaleRate
	w := start(t, cfg, 4)
	w.until(2)
	for _, tr := range w.trainers[2:] {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}
	w.trainers = w.trainers[:2]
	w.meet(2)
	w.must(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })
	w.until(3)
	m := w.end().meta
	if m.Batch != 4 || m.Rate != cfg.Rate.Peak/2 || m.Position != 2*8+4 {
		t.Errorf("on half the replicas: batch %d, rate %v, %d samples read", m.Batch, m.Rate, m.Position)
	}
}

func TestFit(t *testing.T) {
	l := train.Layout{DP: 2, TP: 4, PP: 2, Zero: 1}
	for n, want := range map[int]train.Layout{
		16: {DP: 2, TP: 4, PP: 2, Zero: 1}, 17: {DP: 2, TP: 4, PP: 2, Zero: 1}, 8: {DP: 1, TP: 4, PP: 2, Zero: 1},
		12: {DP: 1, TP: 4, PP: 2, Zero: 1},
		15: {DP: 1, TP: 4, PP: 2, Zero: 1}, 7: {DP: 1, TP: 4, PP: 1, Zero: 1}, 3: {DP: 1, TP: 1, PP: 2, Zero: 1},
		1: {DP: 1, TP: 1, PP: 1, Zero: 1},
	} {
		if got := l.Fit(n); got != want {
			t.Errorf("%v on %d ranks is %v, want %v", l, n, got, want)
		}
	}
}

func TestConfigurationsThatDoNotFit(t *testing.T) {
	for want, f := range map[string]func(c *train.Config){
		"3 ranks do not make whole replicas": func(c *train.Config) { c.Layout.TP = 2 },
		"leave dp 0":                         func(c *train.Config) { c.Layout.DP = 2 },
		"known: 0, 1, 2, 3":                  func(c *train.Config) { c.Layout.Zero = 4 },
		"known: gpipe, 1f1b":                 func(c *train.Config) { c.Schedule = "zigzag" },
		"batch is 0":                         func(c *train.Config) { c.Batch = 0 },
		"known: [float32 bfloat16 float16]":  func(c *train.Config) { c.Wire = 1 },
		"known: batch, rate":                 func(c *train.Config) { c.Elastic = "luck" },
		"vocab of 256":                       func(c *train.Config) { c.Model.Vocab = 10 },
		"learning rate 0":                    func(c *train.Config) { c.Rate.Peak = 0 },
		"it needs 17":                        func(c *train.Config) { c.Text = []byte("short") },
	} {
		cfg := tiny()
		f(&cfg)
		err := ranks(t, 3, func(c *comm.Comm) error {
			_, err := train.New(context.Background(), cfg, c)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one with %q", err, want)
		}
	}
}

func TestRanksMustAgree(t *testing.T) {
	err := ranks(t, 3, func(c *comm.Comm) error {
		cfg := tiny()
		if c.Rank() == 2 {
			cfg.Batch = 6
		}
		tr, err := train.New(context.Background(), cfg, c)
		if err == nil {
			_ = tr.Close()
			return fmt.Errorf("rank %d was taken", c.Rank())
		}
		if !strings.Contains(err.Error(), "rank 2 has another configuration") {
			return err
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A rank whose own configuration cannot run does not leave the others waiting.
func TestOneRankCannotRun(t *testing.T) {
	errs := make([]error, 3)
	_ = ranks(t, 3, func(c *comm.Comm) error {
		cfg := tiny()
		if c.Rank() == 1 {
			cfg.Text = []byte("short")
		}
		_, errs[c.Rank()] = train.New(context.Background(), cfg, c)
		return nil
	})
	const others = "rank 1 has a configuration that it cannot run"
	for r, want := range []string{others, "it needs 17", others} {
		if errs[r] == nil || !strings.Contains(errs[r].Error(), want) {
			t.Errorf("rank %d: %v, want %q", r, errs[r], want)
		}
	}
}

func TestContrastTakesTurns(t *testing.T) {
	cfg := tiny()
	if err := ranks(t, 2, func(c *comm.Comm) error {
		tr, err := train.New(context.Background(), cfg, c)
		if err != nil {
			return err
		}
		k, err := tr.Contrast(context.Background(), 3)
		if err != nil {
			return err
		}
		if tr.Taken() != 6 || k.Steps != 3 || k.Comm <= 0 || k.Apart < k.Comm || k.Together <= 0 || k.Hidden < 0 || k.Hidden > 1 ||
			!tr.Config().Overlap {
			return fmt.Errorf("%+v after %d steps", k, tr.Taken())
		}
		return tr.Close()
	}); err != nil {
		t.Fatal(err)
	}
}
