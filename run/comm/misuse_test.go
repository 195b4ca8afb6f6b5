package comm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/transport/rendezvous"
)

// says reports an error that does not have all parts of what is wanted.
func says(err error, want ...string) error {
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			return fmt.Errorf("said %q, want %q in it", fmt.Sprint(err), w)
		}
	}
	return nil
}

// Handles tell what is wrong with calls that could not be made, and the calls
// before and after them are made.
func TestHandlesOfWrongCalls(t *testing.T) {
	ctx := context.Background()
	each(t, 2, Config{}, func(c *Comm) error {
		one := []int8{1}
		direct, err := algo.Find("direct")
		if err != nil {
			return err
		}
		p, err := direct.Program(algo.Spec{Op: sched.AllGather, Ranks: 2})
		if err != nil {
			return err
		}
		first := AllReduceAsync(ctx, c, one, Sum)
		err = errors.Join(
			says(SendAsync(ctx, c, one, 99).Wait(ctx), "rank 99"),
			says(AllGatherAsync(ctx, c, one, one).Wait(ctx), "dst has 1 elements, 2 are needed"),
			says(SendAsync(ctx, c, one, 1-c.Rank(), Using(p)).Wait(ctx), "Using(", "is for collectives"),
			says(Recv(ctx, c, one, 1-c.Rank(), Factor(2)), "Factor(2) is for reductions with PreMulSum"),
			says(AllReduce(ctx, c, one, Sum, Factor(2)), "Factor(2) is for PreMulSum"),
			WaitAll(ctx, first, BarrierAsync(ctx, c)))
		if err == nil && one[0] != 2 {
			err = fmt.Errorf("sum %d", one[0])
		}
		return err
	})
}

// A communicator that was closed while others of the process are in use says so.
func TestUseAfterClose(t *testing.T) {
	ctx := context.Background()
	each(t, 2, Config{}, func(c *Comm) error {
		d, err := c.Dup(context.Background())
		if err != nil {
			return err
		}
		if err := errors.Join(Barrier(ctx, d), d.Close(), d.Close()); err != nil {
			return err
		}
		_, split := d.Split(context.Background(), 0, 0)
		_, shrink := d.Shrink(ctx)
		_, put := Put(d, 0, []int8{1}, 0).Poll()
		for i, err := range []error{Barrier(ctx, d), Send(ctx, d, []int8{1}, 0), split, shrink, put, d.Err()} {
			if !errors.Is(err, ErrClosed) {
				return fmt.Errorf("call %d after Close: %w", i, err)
			}
		}
		d.Abort(errors.New("late"))
		return Barrier(ctx, c)
	})
}

func TestWrongCountsOfBlocks(t *testing.T) {
	ctx := context.Background()
	each(t, 2, Config{}, func(c *Comm) error {
		four := make([]int8, 4)
		return errors.Join(
			says(AllGatherV(ctx, c, four, four, []int{5, -1}), "counts[1] is -1"),
			says(AllGatherV(ctx, c, four, four, []int{4}), "counts has 1 elements, 2 are needed"),
			says(AllToAllV(ctx, c, four, four, []int{5, -1}, []int{2, 2}), "recvs[1] is -1"),
			says(AllToAllV(ctx, c, four, four, []int{-1, 5}, []int{4}), "sends has 1"),
			says(AllToAllV(ctx, c, four, nil, []int{2, 2}, nil), "sends has 0"),
			Barrier(ctx, c))
	})
}

// Calls of one form that different callbacks start are not paired. Equal causes are, and the call after needs none.
func TestCausesDiffer(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []string{"shm", "tcp"} {
		for _, n := range []int{4, 40000} {
			two(t, kind, func(c *Comm) error {
				x, more := make([]float32, n), make([]float32, n)
				h := Prepare(func(o Option) error { return AllReduce(ctx, c, more, Sum, o, CausedBy(3)) }).Start(ctx)
				if err := errors.Join(AllReduce(ctx, c, x, Sum), AllReduce(ctx, c, x, Sum, CausedBy(3)), AllReduce(ctx, c, x, Sum),
					h.Wait(ctx)); err != nil {
					return err
				}
				return says(AllReduce(ctx, c, x, Sum, CausedBy(uint64(4+c.Rank()))), "callback of operation 4", "callback of operation 5")
			})
			two(t, kind, func(c *Comm) error {
				x, o := make([]float32, n), []Option{CausedBy(1)}
				return says(AllReduce(ctx, c, x, Sum, o[c.Rank():]...), "callback of operation 1", "the program")
			})
		}
	}
}

// What fails between two ranks is told as such, not as the collective before it.
func TestMessageOfAnotherForm(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []string{"shm", "tcp"} {
		for _, x := range []struct {
			name       string
			send, recv func(c *Comm) error
			sent, want string
		}{
			{"length", sends[float32](1000), receives[float32](10), "1000 float32", "10 float32"},
			{"one byte", sends[int8](1), receives[uint8](1), "1 int8", "1 uint8"},
			{"type", sends[float32](4), receives[int32](4), "4 float32", "4 int32"},
			{"size", sends[float32](4), receives[float64](2), "4 float32", "2 float64"},
			{"halves", sends[reduce.F16](5000), receives[reduce.BF16](5000), "5000 float16", "5000 bfloat16"},
			{"long", sends[uint64](300000), receives[int64](300000), "300000 uint64", "300000 int64"},
			{"swap", swaps[float32](7), swaps[int32](7), "7 float32", "7 int32"},
			{"long swap", swaps[float32](70000), swaps[int32](70000), "70000 float32", "70000 int32"},
			{"none", sends[float32](0), receives[int32](0), "0 float32", "0 int32"},
		} {
			two(t, kind, func(c *Comm) error {
				if err := Barrier(ctx, c); err != nil {
					return err
				}
				if c.Rank() == 0 {
					_ = x.send(c) // which may be over before the other rank looks
					return says(Barrier(ctx, c), "rank 1")
				}
				err := x.recv(c)
				var f *Failure
				if !errors.As(err, &f) || f.Kind != Mismatch || f.Seq != 0 || !slices.Equal(f.Culprits, []int{0, 1}) {
					return fmt.Errorf("%s: not a mismatch of messages: %w", x.name, err)
				}
				if strings.Contains(err.Error(), "barrier") {
					return fmt.Errorf("%s: told as the operation before: %w", x.name, err)
				}
				if strings.HasPrefix(err.Error(), "rank 1: rank 0 reports") { // of a swap, what the other received
					return says(err, x.want+" were sent", x.sent+" are received")
				}
				return says(err, "receives from rank 0", x.sent+" were sent", x.want+" are received")
			})
		}
	}
}

// What a rank sends itself is compared, too.
func TestOwnMessageOfAnotherForm(t *testing.T) {
	each(t, 1, Config{}, func(c *Comm) error {
		ctx := context.Background()
		if err := Send(ctx, c, []float32{1, 2}, 0); err != nil {
			return err
		}
		return says(Recv(ctx, c, []int32{1, 2}, 0), "2 float32", "2 int32")
	})
}

// sends, receives and swaps are what one of two ranks does with the other.
func sends[T reduce.Element](n int) func(*Comm) error {
	return func(c *Comm) error { return Send(context.Background(), c, make([]T, n), 1-c.Rank()) }
}

func receives[T reduce.Element](n int) func(*Comm) error {
	return func(c *Comm) error { return Recv(context.Background(), c, make([]T, n), 1-c.Rank()) }
}

func swaps[T reduce.Element](n int) func(*Comm) error {
	return func(c *Comm) error {
		return SendRecv(context.Background(), c, make([]T, n), make([]T, n), 1-c.Rank(), 1-c.Rank())
	}
}

// A rank that says why it gives up and leaves is not told as one that died by
// those who come later.
func TestReasonOutlivesTheRank(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []string{"shm", "tcp"} {
		two(t, kind, func(c *Comm) error {
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			if c.Rank() == 1 {
				c.Abort(errors.New("disk full"))
				return nil
			}
			for end := time.Now().Add(50 * time.Second); c.world.ep.Alive(1) == nil; {
				if time.Now().After(end) {
					return errors.New("rank 1 does not leave")
				}
				runtime.Gosched()
			}
			err := AllReduce(ctx, c, make([]float32, 1000), Sum)
			var f *Failure
			if !errors.As(err, &f) || f.Kind != Aborted || len(f.Culprits) != 1 || f.Culprits[0] != 1 {
				return fmt.Errorf("not aborted by rank 1: %w", err)
			}
			return says(err, "rank 1 reports", "disk full")
		})
	}
}

// Strangers at the address where ranks met are counted, whatever carries the bytes.
func TestStrangersAreCounted(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []string{"shm", "tcp"} {
		two(t, kind, func(c *Comm) error {
			defer func() { _ = Barrier(ctx, c) }()
			if c.Rank() != 0 {
				return nil
			}
			conn, err := net.Dial("tcp", c.world.room.(*rendezvous.Meeting).Addr())
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
				return err
			}
			_, _ = conn.Read(make([]byte, 1)) // until it is turned away
			var seen []string
			for _, x := range c.Counters() {
				if strings.HasPrefix(x.Name, "rendezvous.hello.") && x.Value > 0 {
					seen = append(seen, fmt.Sprint(x.Name, " ", x.Value))
				}
			}
			if len(seen) != 1 || !strings.HasSuffix(seen[0], " 1") {
				return fmt.Errorf("counted %q, want one stranger", seen)
			}
			return nil
		})
	}
}

// What a Shrink that failed leaves can be closed, as a deferred call does.
func TestCloseOfNothing(t *testing.T) {
	var c *Comm
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
