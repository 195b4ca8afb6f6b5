package train_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/train"
)

// A rank dies at any call of a step, in layouts that hold every part once. Those
// that are left go on from where they were, without a checkpoint and without a
// step lost, and a blank rank takes the dead one's place.
func TestMirrorsStandInForTheDead(t *testing.T) {
	ctx := context.Background()
	for _, l := range bounded.First(3, []train.Layout{{DP: 3, Zero: 1}, {DP: 4, Zero: 3}, {DP: 2, TP: 2, PP: 2, Zero: 1}, {DP: 3, Zero: 2},
		{DP: 1, TP: 2, PP: 2}}...) {
		t.Run(l.String(), func(t *testing.T) {
			cfg := tiny()
			cfg.Layout, cfg.Mirror = l, true
			n := l.DP * max(1, l.TP) * max(1, l.PP)
			want := play(t, tiny(), 1, 6)
			for victim := 0; victim < n; victim += max(1, n/3) {
				for i, k := range []int64{1, 3, 1 << 40} { // at a call of step 3, or between two steps
					if !bounded.Long() && i != victim/max(1, n/3)%3 {
						continue
					}
					w := start(t, cfg, n)
					w.until(2)
					if k < 1<<40 {
						var count atomic.Int64
						train.SetFault(w.trainers[victim], func(string) error {
							if count.Add(1) >= k {
								return errInjected
							}
							return nil
						})
						if errs := w.step(); !errors.Is(errs[victim], errInjected) {
							t.Fatalf("the victim reports %v", errs[victim])
						}
					}
					taken := 0
					for _, tr := range w.trainers {
						taken = max(taken, tr.Taken())
					}
					if err := w.trainers[victim].Close(); err != nil {
						t.Error(err)
					}
					w.trainers = slices.Delete(w.trainers, victim, victim+1)
					w.meet(n - 1)
					w.must(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })
					if got := w.trainers[0].Taken(); got != taken {
						t.Fatalf("rank %d died at call %d: %d steps are left of %d", victim, k, got, taken)
					}
					w.until(4)
					w.trainers = append(w.trainers, train.Blank(cfg))
					w.meet(n)
					w.must(func(r int) error { return w.trainers[r].Rebuild(ctx, w.world[r]) })
					w.until(6)
					w.end()
					for s, loss := range w.losses {
						if d := loss - want.losses[s-1]; d > 5e-4 || d < -5e-4 {
							t.Errorf("rank %d died at call %d: loss of step %d is %v, of a single process %v", victim, k, s, loss, want.losses[s-1])
						}
					}
				}
			}
		})
	}
}

// A mirror holds what the mirrored rank owns, bit by bit.
func TestMirrorsFollow(t *testing.T) {
	for _, l := range []train.Layout{{DP: 3, Zero: 1}, {DP: 2, Zero: 2}, {DP: 3, Zero: 3}, {DP: 1, TP: 2, PP: 2}} {
		cfg := tiny()
		cfg.Layout, cfg.Mirror = l, true
		n := l.DP * max(1, l.TP) * max(1, l.PP)
		w := start(t, cfg, n)
		for steps := range 4 {
			w.until(steps)
			for r, tr := range w.trainers {
				of, mirror := train.Mirrored(tr)
				own := train.Owned(w.trainers[of])
				if of != (r+n-1)%n || len(mirror) != len(own) {
					t.Fatalf("%v: rank %d mirrors rank %d with %d boxes, which has %d", l, r, of, len(mirror), len(own))
				}
				for i, b := range own {
					if m := mirror[i]; m.Name != b.Name || !slices.Equal(m.Offset, b.Offset) || !slices.Equal(m.Data, b.Data) {
						t.Fatalf("%v after %d steps: %s of rank %d and of its mirror differ", l, steps, b.Name, of)
					}
				}
			}
		}
		w.end()
	}
}

// Without ZeRO replicas are one another's mirrors, and two neighbours that die at
// once are lost.
func TestWhatMirrorsDoNotDo(t *testing.T) {
	cfg := tiny()
	cfg.Layout, cfg.Mirror = train.Layout{DP: 3}, true
	w := start(t, cfg, 3)
	w.until(1)
	if of, boxes := train.Mirrored(w.trainers[0]); of >= 0 || boxes != nil {
		t.Errorf("a replica mirrors rank %d", of)
	}
	w.end()

	cfg.Layout = train.Layout{DP: 4, Zero: 1}
	w = start(t, cfg, 4)
	w.until(1)
	for _, r := range []int{2, 1} {
		if err := w.trainers[r].Close(); err != nil {
			t.Error(err)
		}
		w.trainers = slices.Delete(w.trainers, r, r+1)
	}
	w.meet(2)
	for r, err := range w.all(func(r int) error { return w.trainers[r].Rebuild(context.Background(), w.world[r]) }) {
		var lost *train.LostError
		if !errors.As(err, &lost) || fmt.Sprint(lost.Parts) != "[1]" {
			t.Errorf("rank %d: %v, want the share of rank 1 to be lost", r, err)
		}
	}
	w.end()
}
