package comm

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	virtual "github.com/weft-fabric/weft/internal/world"
	"github.com/weft-fabric/weft/run/transport"
)

// inWorlds runs a body on ranks that share memory, and on ranks that do not, in virtual time. took is how long a rank waited.
func inWorlds(t *testing.T, n int, body func(t *testing.T, c *Comm) (took time.Duration)) {
	t.Run("shared", func(t *testing.T) {
		comms, err := LocalWith(n, Config{Timeout: scheduleLimit})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, c := range comms {
			wg.Go(func() {
				if took := body(t, c); took > scheduleLimit/2 {
					t.Errorf("rank %d was told after %s", c.Rank(), took)
				}
			})
		}
		wg.Wait()
		for _, c := range comms {
			_ = c.Close()
		}
	})
	t.Run("far", func(t *testing.T) {
		for seed := range uint64(5) {
			gathered, ready := (*gathering)(nil), sync.Mutex{}
			cfg := virtual.Config{Seed: seed, Ranks: n, Think: 20 * time.Microsecond, Delay: 100 * time.Microsecond, Limit: time.Hour}
			r := virtual.Run(t, cfg, func(rank int, e transport.Endpoint) {
				ready.Lock()
				if gathered == nil {
					gathered = newGathering(n)
				}
				g := gathered.at(rank)
				ready.Unlock()
				c, err := overEndpoint(e, Config{Timeout: scheduleLimit}, g)
				if err != nil {
					t.Error(err)
					return
				}
				if took := body(t, c); took > 2*time.Second {
					t.Errorf("seed %d: rank %d was told after %s", seed, rank, took)
				}
				_ = c.Close()
			})
			for _, p := range r.Problems {
				t.Error(p)
			}
		}
	})
}

// A call that is refused on one rank ends on all others at once, and they name that rank.
func TestARefusedCallIsTold(t *testing.T) {
	inWorlds(t, 3, func(t *testing.T, c *Comm) time.Duration {
		ctx, began := context.Background(), time.Now()
		buf := make([]float32, 100)
		if err := AllReduce(ctx, c, buf, Sum); err != nil {
			t.Error(err)
		}
		if c.Rank() == 1 {
			if err := AllReduceTo(ctx, c, buf[:50], buf, Sum); err == nil || errors.Is(err, ErrMismatch) {
				t.Errorf("a call of two lengths: %v", err)
			}
			return 0
		}
		err := AllReduce(ctx, c, buf, Sum)
		var f *Failure
		if !errors.As(err, &f) || f.Kind != Mismatch || !slices.Equal(f.Culprits, []int{1}) {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
		return time.Since(began)
	})
}

// Ranks that all make the same wrong call may make a right one afterwards, and so may one rank before the others come.
func TestARefusedCallCanBeMadeAgain(t *testing.T) {
	inWorlds(t, 3, func(t *testing.T, c *Comm) time.Duration {
		ctx := context.Background()
		buf := make([]float32, 100)
		for range 3 {
			if err := Broadcast(ctx, c, buf, 7); err == nil {
				t.Error("root 7 of 3 ranks is taken")
			}
			if err := Reduce(ctx, c, buf, buf, Op(99), 0); err == nil {
				t.Error("reduction 99 is taken")
			}
			if err := AllReduce(ctx, c, buf, Sum); err != nil {
				t.Error(err)
			}
		}
		return 0
	})
}

// Two ranks that wait for each other in different calls, without a message between them, are told long before the time limit.
func TestMismatchBeforeTheLimit(t *testing.T) {
	inWorlds(t, 2, func(t *testing.T, c *Comm) time.Duration {
		ctx, began := context.Background(), time.Now()
		buf := make([]float32, 100)
		var err error
		if c.Rank() == 0 {
			err = Reduce(ctx, c, buf, buf, Sum, 0)
		} else {
			err = Broadcast(ctx, c, buf, 0)
		}
		var f *Failure
		if !errors.As(err, &f) || f.Kind != Mismatch || !slices.Equal(f.Culprits, []int{0, 1}) {
			t.Errorf("rank %d: %v", c.Rank(), err)
		}
		return time.Since(began)
	})
}
