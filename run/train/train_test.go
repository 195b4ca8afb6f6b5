package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/internal/optim"
	"github.com/weft-fabric/weft/run/train/model"
	"github.com/weft-fabric/weft/run/train/pipe"
)

// tiny is a run that takes milliseconds a step.
func tiny() train.Config {
	c := train.Default()
	c.Model = model.Config{Kind: model.GPT, Vocab: 256, Context: 16, Width: 32, Heads: 4, Hidden: 64, Layers: 4}
	c.Batch, c.Micro = 8, 2
	c.Rate = optim.Rate{Peak: 1e-2, Warmup: 2}
	c.BucketBytes = 1 << 14
	return c
}

func tinyMLP() train.Config {
	c := tiny()
	c.Model = model.Config{Kind: model.MLP, Vocab: 256, Context: 8, Width: 32, Hidden: 64, Layers: 4}
	return c
}

// ranks runs f on every rank of a world of goroutines and gives the first error.
func ranks(t testing.TB, n int, f func(c *comm.Comm) error) error {
	t.Helper()
	if n == 1 {
		return f(nil)
	}
	world, err := comm.LocalWith(n, comm.Config{Canonical: true})
	if err != nil {
		t.Fatal(err)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, c := range world {
		wg.Go(func() { errs[r] = f(c) })
	}
	wg.Wait()
	for _, c := range world {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	return errors.Join(errs...)
}

// outcome is what a run came to: the loss of every step and all arrays in the end.
type outcome struct {
	losses []float64
	norms  []float64
	stats  []train.Stats // of rank 0, by step
	memory []train.Memory
	boxes  []train.Box
	meta   train.Meta
}

func clone(list []train.Box) []train.Box {
	var out []train.Box
	for _, b := range list {
		b.Data = append([]float32(nil), b.Data...)
		out = append(out, b)
	}
	return out
}

// play runs a configuration on n ranks for some steps.
func play(t testing.TB, cfg train.Config, n, steps int) outcome {
	t.Helper()
	var out outcome
	var mu sync.Mutex
	byRank := make([][]train.Box, n)
	out.memory = make([]train.Memory, n)
	err := ranks(t, n, func(c *comm.Comm) error {
		rank := 0
		if c != nil {
			rank = c.Rank()
		}
		ctx := context.Background()
		tr, err := train.New(ctx, cfg, c)
		if err != nil {
			return err
		}
		var losses, norms []float64
		var all []train.Stats
		for range steps {
			s, err := tr.Step(ctx)
			if err != nil {
				return err
			}
			losses, norms, all = append(losses, s.Loss), append(norms, s.Norm), append(all, s)
		}
		mu.Lock()
		defer mu.Unlock()
		byRank[rank] = clone(tr.State())
		out.memory[rank] = tr.Memory()
		if out.losses == nil {
			out.losses, out.norms = losses, norms
		}
		if rank == 0 {
			out.stats, out.meta = all, tr.Meta()
		}
		for i := range losses {
			if losses[i] != out.losses[i] || norms[i] != out.norms[i] {
				return fmt.Errorf("rank %d has loss %v and norm %v at step %d, another rank %v and %v",
					rank, losses[i], norms[i], i, out.losses[i], out.norms[i])
			}
		}
		return tr.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range byRank {
		out.boxes = append(out.boxes, b...)
	}
	return out
}

// whole puts an array together from boxes, and fails where an element is missing or there twice.
func whole(t testing.TB, list []train.Box) map[string][]float32 {
	t.Helper()
	arrays, times := map[string][]float32{}, map[string][]int{}
	for _, b := range list {
		n := 1
		for _, s := range b.Shape {
			n *= s
		}
		if arrays[b.Name] == nil {
			arrays[b.Name], times[b.Name] = make([]float32, n), make([]int, n)
		}
		for i, v := range b.Data {
			at, rest := 0, i
			index := make([]int, len(b.Size))
			for a := len(b.Size) - 1; a >= 0; a-- {
				index[a] = b.Offset[a] + rest%b.Size[a]
				rest /= b.Size[a]
			}
			for a, k := range index {
				at = at*b.Shape[a] + k
			}
			arrays[b.Name][at] = v
			times[b.Name][at]++
		}
	}
	for name, list := range times {
		for i, k := range list {
			if k != 1 {
				t.Fatalf("element %d of %s is in %d boxes", i, name, k)
			}
		}
	}
	return arrays
}

// near fails unless two runs followed the same curve.
func near(t testing.TB, got, want outcome, tolerance float64) {
	t.Helper()
	for i := range want.losses {
		if math.Abs(got.losses[i]-want.losses[i]) > tolerance {
			t.Errorf("loss of step %d is %v, of a single process %v", i+1, got.losses[i], want.losses[i])
		}
	}
}

// equal fails unless two runs have the same bits.
func equal(t testing.TB, a, b outcome) {
	t.Helper()
	for i := range a.losses {
		if a.losses[i] != b.losses[i] || a.norms[i] != b.norms[i] {
			t.Errorf("step %d: loss %v and %v, norm %v and %v", i+1, a.losses[i], b.losses[i], a.norms[i], b.norms[i])
		}
	}
	x, y := whole(t, a.boxes), whole(t, b.boxes)
	if len(x) != len(y) {
		t.Fatalf("%d and %d arrays", len(x), len(y))
	}
	for name, v := range x {
		for i := range v {
			if math.Float32bits(v[i]) != math.Float32bits(y[name][i]) {
				t.Fatalf("element %d of %s is %v and %v", i, name, v[i], y[name][i])
			}
		}
	}
}

func TestOverfitsAShortText(t *testing.T) {
	for _, cfg := range []train.Config{tiny(), tinyMLP()} {
		cfg.Text = []byte(strings.Repeat("the weft runs between the warps. ", 4))
		out := play(t, cfg, 1, 120)
		start, end := out.losses[0], out.losses[len(out.losses)-1]
		if math.Abs(start-math.Log(256)) > 0.3 {
			t.Errorf("%s: first loss is %v, that of guessing among 256 is %v", cfg.Model.Kind, start, math.Log(256))
		}
		if end > 0.1 {
			t.Errorf("%s: loss after 120 steps is %v", cfg.Model.Kind, end)
		}
	}
}

func TestLearnsTheDocuments(t *testing.T) {
	out := play(t, tiny(), 1, 40)
	if first, last := out.losses[0], out.losses[39]; last > first-1.5 {
		t.Errorf("loss went from %v to %v", first, last)
	}
}

func TestSameSeedSameBits(t *testing.T) {
	a, b := play(t, tiny(), 1, 5), play(t, tiny(), 1, 5)
	equal(t, a, b)
	other := tiny()
	other.Seed++
	if c := play(t, other, 1, 1); c.losses[0] == a.losses[0] {
		t.Error("another seed gives the same loss")
	}
}

// Micro-batches are the same batch, cut.
func TestAccumulationIsTheWholeBatch(t *testing.T) {
	want := tiny()
	want.Micro = want.Batch
	reference := play(t, want, 1, 6)
	for _, micro := range []int{1, 2, 3, 5} {
		cfg := tiny()
		cfg.Micro = micro
		near(t, play(t, cfg, 1, 6), reference, 2e-4)
	}
}

func TestClippingBoundsTheNorm(t *testing.T) {
	cfg := tiny()
	cfg.Clip = 1e-3
	clipped := play(t, cfg, 1, 2)
	if clipped.norms[0] <= 1e-3 {
		t.Fatalf("norm before clipping is %v", clipped.norms[0])
	}
	cfg.Clip = 0
	if open := play(t, cfg, 1, 2); open.norms[0] != clipped.norms[0] {
		t.Errorf("first norm is %v clipped and %v not", clipped.norms[0], open.norms[0])
	}
}

// layouts are the forms of parallel training, on up to eight ranks.
func layouts() map[string]func(*train.Config) {
	list := map[string]func(*train.Config){
		"dp 2":                    func(c *train.Config) { c.Layout.DP = 2 },
		"dp 3":                    func(c *train.Config) { c.Layout.DP = 3 }, // 8 samples do not divide evenly
		"dp 4 not overlapped":     func(c *train.Config) { c.Layout.DP, c.Overlap = 4, false },
		"tp 2":                    func(c *train.Config) { c.Layout.TP = 2 },
		"tp 4":                    func(c *train.Config) { c.Layout.TP = 4 },
		"pp 2 1f1b":               func(c *train.Config) { c.Layout.PP = 2 },
		"pp 4 1f1b":               func(c *train.Config) { c.Layout.PP = 4 },
		"pp 3 gpipe":              func(c *train.Config) { c.Layout.PP, c.Schedule = 3, pipe.GPipe },
		"model parallel":          func(c *train.Config) { c.Layout.PP, c.Micro = 2, c.Batch },
		"dp 2 tp 2 pp 2":          func(c *train.Config) { c.Layout = train.Layout{DP: 2, TP: 2, PP: 2} },
		"dp 2 tp 2 pp 2 zero 1":   func(c *train.Config) { c.Layout = train.Layout{DP: 2, TP: 2, PP: 2, Zero: 1} },
		"dp 2 tp 2 pp 2 zero 3":   func(c *train.Config) { c.Layout = train.Layout{DP: 2, TP: 2, PP: 2, Zero: 3} },
		"dp 8, one sample each":   func(c *train.Config) { c.Layout.DP, c.Micro = 8, 1 },
		"dp 5, some without work": func(c *train.Config) { c.Layout, c.Micro, c.Batch = train.Layout{DP: 5, Zero: 2}, 1, 8 },
	}
	for zero := 1; zero <= 3; zero++ {
		list[fmt.Sprintf("dp 3 zero %d", zero)] = func(c *train.Config) { c.Layout = train.Layout{DP: 3, Zero: zero} }
		list[fmt.Sprintf("dp 2 zero %d not overlapped", zero)] = func(c *train.Config) {
			c.Layout, c.Overlap = train.Layout{DP: 2, Zero: zero}, false
		}
	}
	return list
}

// Every layout follows the curve of a single process, and gives the same bits twice.
func TestLayoutsAreASingleProcess(t *testing.T) {
	const steps = 4
	for _, base := range []func() train.Config{tiny, tinyMLP} {
		want := play(t, base(), 1, steps)
		for name, change := range layouts() {
			cfg := base()
			change(&cfg)
			t.Run(string(cfg.Model.Kind)+"/"+name, func(t *testing.T) {
				l := cfg.Layout
				n := max(1, l.DP) * max(1, l.TP) * max(1, l.PP)
				got := play(t, cfg, n, steps)
				near(t, got, want, 5e-4)
				if cfg.Model.Kind == model.GPT && (bounded.Long() || l.Zero == 3) {
					equal(t, got, play(t, cfg, n, steps))
				}
				arrays, reference := whole(t, got.boxes), whole(t, want.boxes)
				if len(arrays) != len(reference) {
					t.Errorf("%d arrays, a single process has %d", len(arrays), len(reference))
				}
			})
		}
	}
}

// Gradients of 16 bits on the wire stay near the curve.
func TestNarrowGradients(t *testing.T) {
	want := play(t, tiny(), 1, 6)
	for _, wire := range []reduce.Type{reduce.BFloat16, reduce.Float16} {
		for zero := range 4 {
			cfg := tiny()
			cfg.Layout = train.Layout{DP: 2, Zero: zero}
			cfg.Wire = wire
			got := play(t, cfg, 2, 6)
			near(t, got, want, 0.05)
			if exact := play(t, tiny(), 1, 6); got.losses[5] == exact.losses[5] {
				t.Errorf("%v zero %d: gradients were not rounded", wire, zero)
			}
		}
	}
}
