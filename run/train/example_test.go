package train_test

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/internal/optim"
	"github.com/weft-fabric/weft/run/train/model"
)

// Four ranks, here goroutines, train one network: two replicas of two tensor ranks
// each, which share the optimizer's state.
func Example() {
	cfg := train.Default()
	cfg.Model = model.Tiny()
	cfg.Layout = train.Layout{TP: 2, Zero: 1}
	cfg.Text = []byte(strings.Repeat("a cloth has warp and weft; ", 8))
	cfg.Rate = optim.Rate{Peak: 1e-2, Warmup: 5}

	ctx := context.Background()
	world, err := comm.Local(4)
	if err != nil {
		panic(err)
	}
	var wg sync.WaitGroup
	for _, c := range world {
		wg.Go(func() {
			t, err := train.New(ctx, cfg, c)
			if err != nil {
				panic(err)
			}
			for t.Taken() < 40 {
				s, err := t.Step(ctx)
				if err != nil {
					panic(err)
				}
				if c.Rank() == 0 && (s.Step == 1 || s.Step == 40) {
					fmt.Printf("step %d of %v: loss %.1f\n", s.Step, t.Config().Layout, s.Loss)
				}
			}
			if err := t.Close(); err != nil {
				panic(err)
			}
		})
	}
	wg.Wait()
	for _, c := range world {
		if err := c.Close(); err != nil {
			panic(err)
		}
	}
	// Output:
	// step 1 of dp 2, tp 2, pp 1, zero 1: loss 5.5
	// step 40 of dp 2, tp 2, pp 1, zero 1: loss 0.1
}
