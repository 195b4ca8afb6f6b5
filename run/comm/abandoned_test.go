package comm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/board"
)

func init() { bodies["abandon"] = (*kid).abandonOne }

// abandonOne is a rank of a job in which rank 1 gives up a Shrink, or the making of a group, after it told the others where its next
// board is. The others go on with that board, and rank 1 with its memory.
func (k *kid) abandonOne() error {
	ctx := context.Background()
	if err := Barrier(ctx, k.c); err != nil {
		return err
	}
	var o order
	if err := k.orders.Decode(&o); err != nil {
		return err
	}
	form := func(ctx context.Context) (*Comm, error) { return k.c.Shrink(ctx) }
	if o.Op == "group" {
		form = k.groupOfAll
	}
	if k.c.Rank() != 1 {
		return k.goOn(ctx, &o, form)
	}
	short, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(20*time.Millisecond, cancel) // it has told the others by then, and waits for them
	next, err := form(short)
	timer.Stop()
	cancel()
	if next != nil || err == nil {
		return errors.New("rank 1 was to give up")
	}
	var mine [][]uint64
	for range 8 {
		b, err := Alloc[uint64](k.c, board.Size/8)
		if err != nil {
			return err
		}
		mine = append(mine, b)
	}
	again := o.Op == "again"
	k.say(event{At: "gives up"})
	if err := k.orders.Decode(&o); err != nil {
		return err
	}
	if again {
		if k.dup, err = form(ctx); err == nil {
			err = Barrier(ctx, k.dup)
		}
	}
	if !again {
		err = nil // that of the call that it gave up
	}
	k.say(tell("told", err))
	if err := k.orders.Decode(&o); err != nil { // once the others have told it
		return err
	}
	for n, b := range mine {
		if i := slices.IndexFunc(b, func(v uint64) bool { return v != 0 }); i >= 0 {
			return fmt.Errorf("buffer %d of rank 1 was written to: element %d is %#x", n, i, b[i])
		}
	}
	return nil
}

// goOn is one of the others.
func (k *kid) goOn(ctx context.Context, o *order, form func(context.Context) (*Comm, error)) (err error) {
	again := o.Op == "again"
	if o.Op == "group" { // rank 1 takes part in its gather
		k.dup, err = form(ctx)
	}
	k.say(event{At: "gives up"})
	if err := errors.Join(err, k.orders.Decode(o)); err != nil { // once rank 1 has given up
		return err
	}
	if k.dup == nil {
		if k.dup, err = form(ctx); err != nil {
			return err
		}
	}
	if !again { // rank 1 does not come, and is told on its board that the time is over
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
	}
	k.say(tell("told", Barrier(ctx, k.dup)))
	return k.orders.Decode(o)
}

// groupOfAll makes a group of all ranks by a gather that works, and says on rank 1 that it did not.
func (k *kid) groupOfAll(ctx context.Context) (*Comm, error) {
	ranks := make([]int, k.c.Size())
	for i := range ranks {
		ranks[i] = i
	}
	first := true
	return k.c.Group(ctx, ranks, func(_ context.Context, mine []byte) ([][]byte, error) {
		parts := make([][]byte, len(ranks))
		if !first {
			return parts, nil
		}
		first = false
		all := make([]byte, len(mine)*len(ranks))
		if err := AllGather(context.Background(), k.c, all, mine); err != nil {
			return nil, err
		}
		if k.c.Rank() == 1 {
			return nil, errors.New("its time is over")
		}
		for i := range parts {
			parts[i] = all[i*len(mine):][:len(mine)]
		}
		return parts, nil
	})
}

// A rank that gives up a Shrink, or the making of a group, has told the others before where its next board is, and they may take it
// for a member. Its memory is its own all the same.
func TestNextBoardOfARankThatGaveUp(t *testing.T) {
	for _, what := range []string{"shrink", "group"} {
		t.Run(what, func(t *testing.T) {
			list := startProcs(t, 3, "shm", "abandon")
			list.order(order{Do: "abandon", Op: what})
			list.await("gives up")
			list.order(order{Do: "go on"})
			list.await("told")
			list.order(order{Do: "check"})
			list.await("left")
		})
	}
}

// A rank whose Shrink was cancelled, and whom the others count as a member, is one after it calls Shrink again.
func TestShrinkAgainAfterACancelledOne(t *testing.T) {
	list := startProcs(t, 3, "shm", "abandon")
	list.order(order{Do: "abandon", Op: "again"})
	list.await("gives up")
	list.order(order{Do: "go on"})
	for r, e := range list.await("told") {
		if e.Err != "" {
			t.Errorf("rank %d: %s", r, e.Err)
		}
	}
	list.order(order{Do: "check"})
	list.await("left")
}
