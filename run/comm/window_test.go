package comm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
)

// Operations with roots, of all small lengths and some larger ones, one after the
// other without a pause, between ranks some of which are ahead of others: every
// result is right.
func TestRanksAhead(t *testing.T) {
	const rounds = 400
	lengths := []int{0, 1, 2, 24, 25, 100, 1024, 1025, 5000, 70000}
	for _, n := range []int{2, 3, 5} {
		each(t, n, Config{}, func(c *Comm) error {
			same := rand.New(rand.NewPCG(uint64(n), 7))               // of all ranks
			own := rand.New(rand.NewPCG(uint64(n), uint64(c.Rank()))) // of this one
			me, ctx := c.Rank(), context.Background()
			for k := range rounds {
				op, root, count := same.IntN(6), same.IntN(n), lengths[same.IntN(len(lengths))]
				if k%100 < 70 { // runs of the same kind, which get furthest
					op, root, count = k/100, 1, 3
				}
				if own.IntN(50) == 0 {
					time.Sleep(time.Duration(own.IntN(200)) * time.Microsecond) // a rank that is late now and then
				}
				data := func(r, i int) int64 { return int64(k)<<32 + int64(r)<<24 + int64(i) }
				make1 := func(r, from, count int) []int64 {
					b := make([]int64, count)
					for i := range b {
						b[i] = data(r, from+i)
					}
					return b
				}
				var got []int64
				want := func(i int) int64 { return data(root, i) }
				var err error
				switch op {
				case 0:
					got = make([]int64, count)
					if me == root {
						got = make1(me, 0, count)
					}
					err = Broadcast(ctx, c, got, root)
				case 1:
					dst, src := make([]int64, count), make1(me, 0, count)
					err = Reduce(ctx, c, dst, src, Max, root)
					if me == root {
						got, want = dst, func(i int) int64 { return data(n-1, i) }
					}
				case 2:
					dst, src := make([]int64, count*n), make1(me, 0, count)
					err = Gather(ctx, c, dst, src, root)
					if me == root {
						got, want = dst, func(i int) int64 { return data(i/count, i%count) }
					}
				case 3:
					got = make([]int64, count)
					err = Scatter(ctx, c, got, make1(me, 0, count*n), root)
					want = func(i int) int64 { return data(root, me*count+i) }
				case 4:
					got = make1(me, 0, count)
					err = AllReduce(ctx, c, got, Max)
					want = func(i int) int64 { return data(n-1, i) }
				case 5:
					err = Barrier(ctx, c)
				}
				if err != nil {
					return err
				}
				for i := range got {
					if got[i] != want(i) {
						return fmt.Errorf("round %d, operation %d of %d at root %d: element %d is %x, not %x", k, op, count, root, i, got[i], want(i))
					}
				}
			}
			return nil
		})
	}
}

// The root of a broadcast waits for nobody until it is so far ahead that it
// would write again what others have yet to read.
func TestHowFarAhead(t *testing.T) {
	crowd := runtime.NumCPU() + 1 // ranks that share cores copy what they would lend otherwise
	for _, x := range []struct{ ranks, count, ahead int }{
		{2, 1, board.Window - 1}, {2, 100, board.SmallWindow - 1}, {crowd, 5000, plan.Stages},
	} {
		comms, err := LocalWith(x.ranks, quick)
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		buf := make([]float32, x.count)
		for k := range x.ahead {
			if err := Broadcast(ctx, comms[0], buf, 0); err != nil {
				t.Fatalf("broadcast %d of %d elements: %v", k+1, x.count, err)
			}
		}
		var f *Failure
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond) // the call begins before it is over
		err = Broadcast(short, comms[0], buf, 0)
		cancel()
		if !errors.As(err, &f) || f.Kind != Timeout || !slices.Contains(f.Culprits, 1) {
			t.Errorf("broadcast %d of %d elements: %v", x.ahead+1, x.count, err)
		}
		for _, c := range comms {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Ranks that differ in an operation in which neither reads the other's entry are
// told in the next one in which one does, with the operation in which it was.
func TestMismatchBefore(t *testing.T) {
	for _, between := range []int{0, 3, 12, 200} { // broadcasts in between
		comms, err := LocalWith(3, quick)
		if err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 3)
		done := make(chan int)
		for r, c := range comms {
			go func() {
				defer func() { done <- r }()
				ctx, buf := context.Background(), make([]float32, 3)
				if r == 2 {
					errs[r] = Gather(ctx, c, nil, buf, 0)
				} else {
					errs[r] = Broadcast(ctx, c, buf, 0)
				}
				for range between {
					if errs[r] == nil {
						errs[r] = Broadcast(ctx, c, buf, 1)
					}
				}
				if errs[r] == nil {
					errs[r] = Barrier(ctx, c)
				}
			}()
		}
		for range comms {
			<-done
		}
		for r, err := range errs {
			var f *Failure
			if !errors.As(err, &f) || f.Kind != Mismatch || !slices.Contains(f.Culprits, 2) || len(f.Culprits) != 2 {
				t.Errorf("%d operations later: rank %d: %v", between, r, err)
			} else if between < board.Window-1 && !strings.Contains(err.Error(), "gather of 3 float32 at root 0 as operation 1") {
				t.Errorf("rank %d does not say where the difference was: %v", r, err)
			}
		}
		for _, c := range comms {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A root that is ahead hears of a failure although it waits for nobody.
func TestFailureBehind(t *testing.T) {
	comms, err := LocalWith(2, Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, buf := context.Background(), make([]float32, 1)
	if err := Broadcast(ctx, comms[0], buf, 0); err != nil {
		t.Fatal(err)
	}
	comms[1].Abort(errors.New("enough"))
	var f *Failure
	if err := Broadcast(ctx, comms[0], buf, 0); !errors.As(err, &f) || f.Kind != Aborted || !slices.Equal(f.Culprits, []int{1}) {
		t.Errorf("the next broadcast: %v", err)
	}
	for _, c := range comms {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}
