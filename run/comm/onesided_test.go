package comm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
)

// Every rank adds to a counter of rank 0, writes into its own slot there and
// leaves a notice; rank 0 finds the slots written once it has the notices.
func TestOneSided(t *testing.T) {
	ctx := context.Background()
	each(t, 4, Config{}, func(c *Comm) error {
		words, err := Alloc[uint64](c, 16)
		if err != nil {
			return err
		}
		k, err := KeyOf(c, words)
		if err != nil {
			return err
		}
		keys := make([]Key, c.Size())
		if err := AllGather(ctx, c, keys, []Key{k}); err != nil {
			return err
		}
		zero := keys[0]
		var was uint64
		if err := FetchAdd(c, zero, uint64(c.Rank()+1), &was, 0).Wait(ctx); err != nil {
			return err
		}
		mine := []uint64{uint64(100 + c.Rank())}
		put := Put(c, zero+Key(8*(1+c.Rank())), mine, 0)
		if err := errors.Join(Notify(c, uint32(c.Rank()), 0).Wait(ctx), put.Wait(ctx)); err != nil {
			return err
		}
		if c.Rank() == 0 {
			one := make([]Notice, 1) // those that do not fit stay
			for got := 0; got < c.Size(); {
				for _, n := range one[:c.TakeNotices(one)] {
					if words[1+n.From] != uint64(100+n.From) {
						return fmt.Errorf("slot %d is %d although its notice is there", n.From, words[1+n.From])
					}
					got++
				}
			}
			if words[0] != 1+2+3+4 {
				return fmt.Errorf("counter %d", words[0])
			}
		}
		if err := Barrier(ctx, c); err != nil {
			return err
		}
		back := make([]uint64, 5)
		if err := Get(c, back, zero, 0).Wait(ctx); err != nil {
			return err
		}
		if back[0] != 10 || back[4] != 103 {
			return fmt.Errorf("read %v", back)
		}
		if err := CompareSwap(c, keys[c.Rank()]+64, 0, 7, &was, c.Rank()).Wait(ctx); err != nil || words[8] != 7 || was != 0 {
			return fmt.Errorf("swap: %v, %d, was %d", err, words[8], was)
		}
		return Barrier(ctx, c)
	})
}

// two runs do on two ranks that are goroutines and meet as processes do.
func two(t *testing.T, transport string, do func(c *Comm) error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for r := range 2 {
		wg.Go(func() {
			cfg := Config{Rank: r, Size: 2, Addr: ln.Addr().String(), Transport: transport, Timeout: 20 * time.Second}
			if r == 0 {
				cfg.Listener = ln
			}
			c, err := Join(context.Background(), cfg)
			if err == nil {
				err = errors.Join(do(c), c.Close())
			}
			if err != nil {
				t.Errorf("rank %d over %s: %+v", r, transport, err)
			}
		})
	}
	wg.Wait()
}

// An operation that takes longer than a look is waited for, and asking again, or
// not at all, costs nothing.
func TestOneSidedTakesItsTime(t *testing.T) {
	for _, kind := range []string{"shm", "tcp"} {
		two(t, kind, takesItsTime)
	}
}

func takesItsTime(c *Comm) error {
	ctx := context.Background()
	mine, err := Alloc[uint64](c, bounded.Times(2<<20, 8<<20))
	if err != nil {
		return err
	}
	k, err := KeyOf(c, mine)
	if err != nil {
		return err
	}
	keys := make([]Key, 2)
	if err := AllGather(ctx, c, keys, []Key{k}); err != nil {
		return err
	}
	peer := 1 - c.Rank()
	mine[len(mine)-1] = uint64(c.Rank())
	if err := Barrier(ctx, c); err != nil {
		return err
	}
	var last Ticket
	got := make([]uint64, len(mine))
	for range 8 {
		last = Get(c, got, keys[peer], peer)
	}
	if err := last.Wait(ctx); err != nil {
		return err
	}
	if end := got[len(got)-1]; end != uint64(peer) {
		return fmt.Errorf("read %d", end)
	}
	if err := last.Wait(ctx); err != nil {
		return fmt.Errorf("asked again: %w", err)
	}
	if ok, err := last.Poll(); !ok || err != nil {
		return fmt.Errorf("polled: %t, %w", ok, err)
	}
	if v := &c.world.verbs; len(v.done)+len(v.failed) > 0 {
		return fmt.Errorf("remembers %d operations that are over", len(v.done)+len(v.failed))
	}
	if err := Barrier(ctx, c); err != nil {
		return err
	}
	return Free(c, mine)
}

func TestAllocOfNothing(t *testing.T) {
	each(t, 1, Config{}, func(c *Comm) error {
		none, err := Alloc[float32](c, 0)
		if err != nil || Free(c, none) != nil {
			return fmt.Errorf("of none: %v, %v", err, Free(c, none))
		}
		for _, n := range []int{-1, math.MaxInt/4 + 1} {
			if _, err := Alloc[float32](c, n); err == nil || !strings.Contains(err.Error(), fmt.Sprint(n)) {
				return fmt.Errorf("of %d: %v", n, err)
			}
		}
		return nil
	})
}
