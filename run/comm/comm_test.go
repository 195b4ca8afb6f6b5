package comm

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if body := os.Getenv(envBody); body != "" {
		child(body)
	}
	if os.Getenv(envWho) != "" {
		who()
	}
	goleak.VerifyTestMain(m)
}

// each runs a function on every rank of a world of goroutines.
func each(t *testing.T, n int, cfg Config, do func(c *Comm) error) {
	t.Helper()
	comms, err := LocalWith(n, cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for r, c := range comms {
		wg.Go(func() {
			errs[r] = do(c)
		})
	}
	wg.Wait()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAllReduceFirst(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 7} {
		for _, count := range []int{0, 1, 3, 100, 5000, 300000} {
			t.Run(fmt.Sprintf("%d ranks %d", n, count), func(t *testing.T) {
				each(t, n, Config{}, func(c *Comm) error {
					for round := range 3 {
						buf := make([]float32, count)
						for i := range buf {
							buf[i] = float32((c.Rank() + 1 + round) * (i%13 + 1))
						}
						if err := AllReduce(context.Background(), c, buf, Sum); err != nil {
							return err
						}
						total := 0
						for r := range n {
							total += r + 1 + round
						}
						for i := range buf {
							if buf[i] != float32(total*(i%13+1)) {
								return fmt.Errorf("round %d: element %d is %v, not %v", round, i, buf[i], total*(i%13+1))
							}
						}
					}
					return nil
				})
			})
		}
	}
}
