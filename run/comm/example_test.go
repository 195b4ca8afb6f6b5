package comm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
)

// onRanks runs a function on n ranks that are goroutines. Programs whose ranks are
// processes call comm.Join instead, once in each.
func onRanks(n int, rank func(ctx context.Context, c *comm.Comm) error) {
	world, err := comm.Local(n)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for _, c := range world {
		wg.Go(func() {
			if err := errors.Join(rank(ctx, c), c.Close()); err != nil {
				fmt.Printf("rank %d: %v\n", c.Rank(), err)
			}
		})
	}
	wg.Wait()
}

// Ranks that are processes: weft run -n 4 -- ./program starts four of them, and
// each calls Join. Started alone, a process is a world of one.
func Example() {
	ctx := context.Background()
	cfg, err := comm.FromEnv()
	if err != nil {
		log.Fatal(err)
	}
	c, err := comm.Join(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	sum := []float32{1, 2, 3}
	if err := comm.AllReduce(ctx, c, sum, comm.Sum); err != nil {
		log.Fatalf("%+v", err) // says which rank is at fault and what each was doing
	}
	fmt.Println("rank", c.Rank(), "of", c.Size(), "has", sum)
	// Output: rank 0 of 1 has [1 2 3]
}

func ExampleAllReduce() {
	onRanks(4, func(ctx context.Context, c *comm.Comm) error {
		buf := []int{c.Rank(), 10 * c.Rank()}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum); err != nil {
			return err
		}
		if c.Rank() == 3 {
			fmt.Println(buf) // the same on every rank
		}
		return nil
	})
	// Output: [6 60]
}

// The call goes on while the rank computes.
func ExampleAllReduceAsync() {
	onRanks(2, func(ctx context.Context, c *comm.Comm) error {
		gradients := []float64{1, 2}
		h := comm.AllReduceAsync(ctx, c, gradients, comm.Avg)
		// ... compute something that does not touch gradients ...
		if err := h.Wait(ctx); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(gradients)
		}
		return nil
	})
	// Output: [1 2]
}

// Every rank passes a number to the next.
func ExampleSendRecv() {
	onRanks(3, func(ctx context.Context, c *comm.Comm) error {
		next, last := (c.Rank()+1)%3, (c.Rank()+2)%3
		got := make([]int32, 1)
		if err := comm.SendRecv(ctx, c, got, []int32{int32(c.Rank())}, last, next); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("rank 0 got", got[0])
		}
		return nil
	})
	// Output: rank 0 got 2
}

// Ranks with the same color form a group of their own.
func ExampleComm_Split() {
	onRanks(4, func(ctx context.Context, c *comm.Comm) error {
		pair, err := c.Split(ctx, c.Rank()/2, 0)
		if err != nil {
			return err
		}
		defer pair.Close()
		sum := []int{c.Rank()}
		if err := comm.AllReduce(ctx, pair, sum, comm.Sum); err != nil {
			return err
		}
		if c.Rank() == 3 {
			fmt.Printf("rank 3 is rank %d of %d; the two add up to %d\n", pair.Rank(), pair.Size(), sum[0])
		}
		return nil
	})
	// Output: rank 3 is rank 1 of 2; the two add up to 5
}

// Rank 1 gives up. The others learn which rank it was, and go on without it.
func ExampleComm_Shrink() {
	onRanks(3, func(ctx context.Context, c *comm.Comm) error {
		if c.Rank() == 1 {
			return nil // leaves the group
		}
		err := comm.Barrier(ctx, c)
		var f *comm.Failure
		if !errors.Is(err, comm.ErrLeft) || !errors.As(err, &f) {
			return fmt.Errorf("not a rank that left: %w", err)
		}
		rest, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		defer rest.Close()
		if rest.Rank() == 0 {
			fmt.Printf("rank %d left; %d ranks go on\n", f.Culprits[0], rest.Size())
		}
		return nil
	})
	// Output: rank 1 left; 2 ranks go on
}

// Every rank writes into memory of rank 0, which does nothing for it.
func ExamplePut() {
	onRanks(3, func(ctx context.Context, c *comm.Comm) error {
		board, err := comm.Alloc[int64](c, 3)
		if err != nil {
			return err
		}
		defer func() { _ = comm.Free(c, board) }()
		key, err := comm.KeyOf(c, board)
		if err != nil {
			return err
		}
		keys := make([]comm.Key, c.Size())
		if err := comm.AllGather(ctx, c, keys, []comm.Key{key}); err != nil {
			return err
		}
		slot := keys[0] + comm.Key(8*c.Rank())
		if err := comm.Put(c, slot, []int64{int64(100 + c.Rank())}, 0).Wait(ctx); err != nil {
			return err
		}
		if err := comm.Barrier(ctx, c); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println(board)
		}
		return comm.Barrier(ctx, c) // before anybody frees
	})
	// Output: [100 101 102]
}

// An algorithm of one's own: recursive doubling of four ranks. In each round a
// rank exchanges what it has with another one and adds the two.
// weft algo verify FILE proves it first.
func ExampleUsing() {
	program, err := sched.Parse(`weft 1
name my-doubling
op all-reduce
ranks 4
chunks 1
slots 1
channels 1:
  send in[0] to r^1
  recv-reduce in[0] -> out[0] from r^1
  send out[0] to r^2
  recv-reduce out[0] -> out[0] from r^2
`)
	if err != nil {
		log.Fatal(err)
	}
	onRanks(4, func(ctx context.Context, c *comm.Comm) error {
		buf := []float32{0.5}
		if err := comm.AllReduce(ctx, c, buf, comm.Sum, comm.Using(program)); err != nil {
			return err
		}
		if c.Rank() == 1 {
			fmt.Println(buf)
		}
		return nil
	})
	// Output: [2]
}

func ExampleRecvTag() {
	onRanks(3, func(ctx context.Context, c *comm.Comm) error {
		const question, answer = 1, 2
		if c.Rank() > 0 {
			if err := comm.SendTag(ctx, c, []int{10 * c.Rank()}, 0, question); err != nil {
				return err
			}
			reply := []int{0}
			_, err := comm.RecvTag(ctx, c, reply, 0, answer)
			return err
		}
		sum := 0
		for range 2 { // whoever comes first
			x := []int{0}
			s, err := comm.RecvTag(ctx, c, x, comm.AnyRank, question)
			if err != nil {
				return err
			}
			sum += x[0]
			if err := comm.SendTag(ctx, c, x, s.From, answer); err != nil {
				return err
			}
		}
		fmt.Println("sum of all questions:", sum)
		return nil
	})
	// Output: sum of all questions: 30
}

func ExampleScan() {
	onRanks(3, func(ctx context.Context, c *comm.Comm) error {
		x := []int{c.Rank() + 1}
		if err := comm.Scan(ctx, c, x, comm.Sum); err != nil {
			return err
		}
		if c.Rank() == 2 {
			fmt.Println("1+2+3 =", x[0])
		}
		return nil
	})
	// Output: 1+2+3 = 6
}

func ExampleAllReduceMin() {
	onRanks(4, func(ctx context.Context, c *comm.Comm) error {
		loss := []comm.Loc[float64]{{Value: []float64{0.5, 0.3, 0.9, 0.4}[c.Rank()], Index: int64(c.Rank())}}
		if err := comm.AllReduceMin(ctx, c, loss); err != nil {
			return err
		}
		if c.Rank() == 0 {
			fmt.Println("least loss", loss[0].Value, "on rank", loss[0].Index)
		}
		return nil
	})
	// Output: least loss 0.3 on rank 1
}
