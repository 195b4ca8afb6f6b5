package comm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Calls that Wait may carry out keep their order among all others, whether they are waited for, looked after, or left alone.
func TestAtWaitKeepsTheOrder(t *testing.T) {
	const n, rounds = 3, 300
	each(t, n, Config{}, func(c *Comm) error {
		ctx, random := context.Background(), rand.New(rand.NewPCG(uint64(c.Rank()), 7))
		var handles []*Handle
		var bufs [][]int64
		start := func(i int, opts ...Option) {
			buf := []int64{int64(i)}
			bufs = append(bufs, buf)
			handles = append(handles, AllReduceAsync(ctx, c, buf, Sum, opts...))
		}
		for i := range rounds {
			switch i % 5 { // the same calls on all ranks; how they are waited for differs
			case 0, 1, 2:
				start(i, AtWait())
			case 3:
				start(i)
			case 4:
				buf := []int64{int64(i)}
				if err := AllReduce(ctx, c, buf, Sum); err != nil || buf[0] != int64(n*i) {
					return fmt.Errorf("call %d: %v, %v", i, buf, err)
				}
			}
			if k := len(handles) - 1; random.IntN(2) == 0 && k >= 0 {
				if err := handles[random.IntN(k+1)].Wait(ctx); err != nil {
					return err
				}
			}
		}
		for i, h := range handles {
			if err := h.Wait(ctx); err != nil {
				return err
			}
			if want := bufs[i][0]; want%n != 0 {
				return fmt.Errorf("handle %d holds %d", i, want)
			}
		}
		return Barrier(ctx, c)
	})
}

// A call that nobody waits for begins by itself.
func TestAtWaitBeginsWithoutWait(t *testing.T) {
	each(t, 2, Config{}, func(c *Comm) error {
		buf := []float32{1}
		h := AllReduceAsync(context.Background(), c, buf, Sum, AtWait())
		select {
		case <-h.Done():
		case <-time.After(20 * time.Second):
			return fmt.Errorf("it did not begin")
		}
		if buf[0] != 2 {
			return fmt.Errorf("sum %v", buf[0])
		}
		return nil
	})
}

// Close ends calls that nobody carried out.
func TestAtWaitEndsWithClose(t *testing.T) {
	comms, err := Local(2)
	if err != nil {
		t.Fatal(err)
	}
	h := AllReduceAsync(context.Background(), comms[0], []float32{1}, Sum, AtWait())
	if err := comms[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := h.Wait(context.Background()); err == nil {
		t.Error("the call succeeded without the other rank")
	}
	_ = comms[1].Close()
}
