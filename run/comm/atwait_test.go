package comm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// Calls that are alike are entered when they are started. A rank that is late holds no caller up: as many are pending as were started, more
// than fit on the board among them, and all end when it comes, in any order of waits, with other calls between them.
func TestEarlyCallsOfALateRank(t *testing.T) {
	const calls = 200
	came := make(chan struct{})
	each(t, 2, Config{}, func(c *Comm) error {
		ctx, random := context.Background(), rand.New(rand.NewPCG(uint64(c.Rank()), 11))
		for range 3 { // from the second on a call is like the one before
			if err := AllReduce(ctx, c, []int64{1}, Sum); err != nil {
				return err
			}
		}
		if c.Rank() == 1 {
			<-came
		}
		var handles []*Handle
		bufs := make([][]int64, calls)
		pending := 0
		for i := range bufs {
			bufs[i] = []int64{int64(i)}
			handles = append(handles, AllReduceAsync(ctx, c, bufs[i], Sum, AtWait()))
			select {
			case <-handles[i].Done():
			default:
				pending++
			}
		}
		if c.Rank() == 0 {
			if pending != calls {
				return fmt.Errorf("%d of %d calls are pending without the other rank", pending, calls)
			}
			close(came)
		}
		for _, i := range random.Perm(calls) {
			if err := handles[i].Wait(ctx); err != nil || bufs[i][0] != int64(2*i) {
				return fmt.Errorf("call %d: %v, %v", i, bufs[i], err)
			}
		}
		return Barrier(ctx, c)
	})
}

// A call that is over when it is started has its result then, and the next call is behind it.
func TestEarlyCallsEnd(t *testing.T) {
	ended := make([]int, 2)
	each(t, 2, Config{}, func(c *Comm) error {
		ctx := context.Background()
		for i := range 3000 {
			buf := []int64{int64(i)}
			h := AllReduceAsync(ctx, c, buf, Sum, AtWait())
			select {
			case <-h.Done():
				ended[c.Rank()]++
			default:
			}
			if err := h.Wait(ctx); err != nil || buf[0] != int64(2*i) {
				return fmt.Errorf("call %d: %v, %v", i, buf, err)
			}
		}
		return nil
	})
	if ended[0]+ended[1] == 0 {
		t.Error("no call was over when it was started")
	}
}

// A call that was entered early fails with the name of the rank that ends without it.
func TestEarlyCallOfARankThatLeaves(t *testing.T) {
	comms, err := Local(2)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	both := make(chan error)
	go func() { both <- makeEqual(comms[1], 2) }()
	if err := makeEqual(comms[0], 2); err != nil {
		t.Fatal(err)
	}
	if err := <-both; err != nil {
		t.Fatal(err)
	}
	h := AllReduceAsync(ctx, comms[0], []float32{1}, Sum, AtWait())
	_ = comms[1].Close()
	var f *Failure
	if err := h.Wait(ctx); !errors.As(err, &f) || !slices.Equal(f.Culprits, []int{1}) {
		t.Errorf("want a failure that names rank 1, got %v", err)
	}
	_ = comms[0].Close()
}

// makeEqual makes a number of equal calls.
func makeEqual(c *Comm, calls int) (err error) {
	for range calls {
		err = errors.Join(err, AllReduce(context.Background(), c, []float32{1}, Sum))
	}
	return err
}

// Shrink ends what this rank has under way on the communicator, on whatever goroutine: a group of some ranks may have told it of a
// death while another goroutine is in a call of all.
func TestShrinkEndsCallsUnderWay(t *testing.T) {
	for name, opts := range map[string][]Option{"started": nil, "at wait": {AtWait()}, "by messages": {ByMessages()}} {
		t.Run(name, func(t *testing.T) {
			comms, err := LocalWith(3, quick)
			if err != nil {
				t.Fatal(err)
			}
			ctx := context.Background()
			both := make([]*Handle, 2) // rank 2 makes neither call
			for i := range both {
				both[i] = AllReduceAsync(ctx, comms[i], []float32{1}, Sum, opts...)
			}
			_ = comms[2].Close()
			shrunk := make(chan error)
			for i := range both {
				go func() {
					c, err := comms[i].Shrink(ctx)
					if err == nil {
						err = AllReduce(ctx, c, []float32{1}, Sum)
					}
					shrunk <- errors.Join(err, c.Close())
				}()
			}
			for range both {
				if err := <-shrunk; err != nil {
					t.Error(err)
				}
			}
			for i, h := range both {
				if err := h.Wait(ctx); !errors.Is(err, ErrClosed) && !errors.Is(err, ErrLeft) {
					t.Errorf("the call of rank %d ended with %v", i, err)
				}
			}
		})
	}
}
