package train_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/pipe"
)

// bench runs a configuration on n goroutine ranks and reports tokens a second and
// where the time of rank 0 goes.
func bench(b *testing.B, cfg train.Config, n int) {
	var total train.Stats
	var tokens int
	var wall time.Duration
	err := ranks(b, n, func(c *comm.Comm) error {
		ctx := context.Background()
		tr, err := train.New(ctx, cfg, c)
		if err != nil {
			return err
		}
		for range 3 {
			if _, err := tr.Step(ctx); err != nil {
				return err
			}
		}
		if c == nil || c.Rank() == 0 {
			b.ResetTimer()
		}
		for range b.N {
			s, err := tr.Step(ctx)
			if err != nil {
				return err
			}
			if c == nil || c.Rank() == 0 {
				tokens += s.Tokens
				wall += s.Wall
				total.Forward += s.Forward
				total.Backward += s.Backward
				total.Comm += s.Comm
				total.Exposed += s.Exposed
				total.Bubble += s.Bubble
				total.Tensor += s.Tensor
				total.Update += s.Update
				total.Commit += s.Commit
			}
		}
		return tr.Close()
	})
	if err != nil {
		b.Fatal(err)
	}
	ms := func(d time.Duration, name string) {
		if d > 0 {
			b.ReportMetric(d.Seconds()*1e3/float64(b.N), name+"-ms")
		}
	}
	b.ReportMetric(float64(tokens)/wall.Seconds(), "tokens/s")
	ms(wall, "step")
	ms(total.Forward, "forward")
	ms(total.Backward, "backward")
	ms(total.Comm, "comm")
	ms(total.Exposed, "exposed")
	ms(total.Bubble, "bubble")
	ms(total.Tensor, "tensor")
	ms(total.Update, "update")
	ms(total.Commit, "commit")
	if total.Comm > 0 {
		b.ReportMetric(total.Hidden(), "hidden")
	}
	if total.Bubble > 0 {
		b.ReportMetric(total.Idle(), "idle")
	}
	b.ReportMetric(0, "ns/op")
}

func BenchmarkStep(b *testing.B) {
	b.Run("alone", func(b *testing.B) { bench(b, train.Default(), 1) })
	for _, overlap := range []bool{false, true} {
		b.Run(fmt.Sprintf("dp2/overlap=%v", overlap), func(b *testing.B) {
			cfg := train.Default()
			cfg.Overlap = overlap
			bench(b, cfg, 2)
		})
	}
	for zero := 1; zero <= 3; zero++ {
		b.Run(fmt.Sprintf("dp2/zero%d", zero), func(b *testing.B) {
			cfg := train.Default()
			cfg.Layout.Zero = zero
			bench(b, cfg, 2)
		})
	}
	b.Run("tp2", func(b *testing.B) {
		cfg := train.Default()
		cfg.Layout.TP = 2
		bench(b, cfg, 2)
	})
	for _, k := range []pipe.Kind{pipe.GPipe, pipe.OneFOneB} {
		b.Run("pp2/"+string(k), func(b *testing.B) {
			cfg := train.Default()
			cfg.Layout.PP, cfg.Schedule = 2, k
			bench(b, cfg, 2)
		})
	}
}

// BenchmarkContrast is the table of communication apart from computing and beside
// it: a rank for every two cores, so that there is one to communicate on.
func BenchmarkContrast(b *testing.B) {
	n := max(2, runtime.GOMAXPROCS(0)/2)
	for _, micro := range []int{2, 8} {
		b.Run(fmt.Sprintf("dp%d/micro=%d", n, micro), func(b *testing.B) {
			cfg := train.Default()
			cfg.Batch, cfg.Micro = micro*n, micro // one micro-batch: all of it in the backward pass that communication can hide behind
			var k train.Contrast
			err := ranks(b, n, func(c *comm.Comm) error {
				ctx := context.Background()
				tr, err := train.New(ctx, cfg, c)
				if err != nil {
					return err
				}
				if _, err := tr.Contrast(ctx, 3); err != nil {
					return err
				}
				mine, err := tr.Contrast(ctx, max(3, b.N))
				if c.Rank() == 0 {
					k = mine
				}
				return errors.Join(err, tr.Close())
			})
			if err != nil {
				b.Fatal(err)
			}
			for name, d := range map[string]time.Duration{"forward": k.Forward, "backward": k.Backward, "comm": k.Comm, "apart": k.Apart,
				"together": k.Together} {
				b.ReportMetric(d.Seconds()*1e3, name+"-ms")
			}
			b.ReportMetric(k.Hidden, "hidden")
			b.ReportMetric(0, "ns/op")
		})
	}
}
