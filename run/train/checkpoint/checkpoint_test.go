package checkpoint_test

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/checkpoint"
	"github.com/weft-fabric/weft/run/train/model"
)

func config(l train.Layout) train.Config {
	c := train.Default()
	c.Model = model.Config{Kind: model.GPT, Vocab: 256, Context: 16, Width: 32, Heads: 4, Hidden: 64, Layers: 2}
	c.Batch, c.Micro = 8, 2
	c.Layout = l
	return c
}

// session trains on n ranks from what dir holds, saving after every step.
func session(t *testing.T, dir string, l train.Layout, n, steps int) (losses map[int]float64) {
	t.Helper()
	ctx := context.Background()
	world := make([]*comm.Comm, n)
	if n > 1 {
		var err error
		if world, err = comm.Local(n); err != nil {
			t.Fatal(err)
		}
	}
	losses = map[int]float64{}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, c := range world {
		wg.Go(func() {
			errs[r] = func() error {
				tr, err := train.New(ctx, config(l), c)
				if err != nil {
					return err
				}
				store, err := ckpt.Open(ctx, dir, ckpt.Options{Keep: 2, Min: checkpoint.Min(c)})
				if err != nil {
					return err
				}
				if _, _, err := checkpoint.Resume(ctx, tr, store); err != nil && !errors.Is(err, ckpt.ErrNone) {
					return err
				}
				for tr.Taken() < steps {
					s, err := tr.Step(ctx)
					if err != nil {
						return err
					}
					if r == 0 {
						losses[s.Step] = s.Loss
					}
					m, tensors, err := checkpoint.Of(tr, "run", int64(steps))
					if err != nil {
						return err
					}
					if err := store.Async(ctx, m, tensors); err != nil {
						return err
					}
				}
				return errors.Join(store.Close(), tr.Close())
			}()
		})
	}
	wg.Wait()
	for _, c := range world {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return losses
}

// A run goes from layout to layout by its checkpoints alone, and follows the curve
// of one that was never interrupted.
func TestLayoutsTakeUpOneAnother(t *testing.T) {
	want := session(t, t.TempDir(), train.Layout{}, 1, 10)
	dir := t.TempDir()
	for i, v := range []struct {
		layout train.Layout
		n      int
	}{
		{train.Layout{Zero: 3}, 4}, {train.Layout{TP: 2, PP: 2, Zero: 1}, 8}, {train.Layout{}, 3}, {train.Layout{Zero: 2}, 5},
		{train.Layout{TP: 4}, 4},
	} {
		losses := session(t, dir, v.layout, v.n, 2*(i+1))
		if len(losses) != 2 {
			t.Fatalf("session %d took %d steps, want 2: %v", i, len(losses), losses)
		}
		for s, loss := range losses {
			if math.Abs(loss-want[s]) > 5e-4 {
				t.Errorf("loss of step %d is %v, uninterrupted %v", s, loss, want[s])
			}
		}
	}
}

// A damaged checkpoint is passed over, and one of another model refused.
func TestDamageAndOtherModels(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	session(t, dir, train.Layout{}, 2, 3)
	files, err := filepath.Glob(filepath.Join(dir, "step-*3-*", "rank-00001.safetensors"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-9] ^= 4
	if err := os.WriteFile(files[0], b, 0o666); err != nil {
		t.Fatal(err)
	}
	store, err := ckpt.Open(ctx, dir, ckpt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	tr, err := train.New(ctx, config(train.Layout{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	m, damaged, err := checkpoint.Resume(ctx, tr, store)
	if err != nil || m.Step != 2 || len(damaged) != 1 || tr.Taken() != 2 {
		t.Errorf("resumed at %+v with %d damaged and %d steps taken: %v", m, len(damaged), tr.Taken(), err)
	}
	other := config(train.Layout{})
	other.Model.Hidden = 128
	tr, err = train.New(ctx, other, nil)
	if err != nil {
		t.Fatal(err)
	}
	var mismatch *ckpt.Mismatch
	if _, _, err := checkpoint.Resume(ctx, tr, store); !errors.As(err, &mismatch) {
		t.Errorf("a checkpoint of another model: %v", err)
	}
	if err := checkpoint.Load(ctx, tr, store, m); err == nil {
		t.Error("a checkpoint of another model is loaded")
	}
}
