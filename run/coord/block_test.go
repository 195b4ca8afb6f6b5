package coord

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/run/internal/member"
)

// Nodes that claim ids at the same time get runs that do not overlap and leave no
// gap; what a node gives back is the next one's if it fits.
func TestBlocksDoNotOverlap(t *testing.T) {
	t.Parallel()
	c := dial(t, single(t, nil).addr)
	ctx := within(t)
	counts := []int{4, 1, 3, 2, 4, 8}
	blocks, ends := make([]Block, len(counts)), make([]context.CancelFunc, len(counts))
	var wg sync.WaitGroup
	for i, n := range counts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			hold, end := context.WithCancel(context.Background())
			ends[i] = end
			var err error
			if blocks[i], err = c.Claim(ctx, hold, "node", n); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	order := slices.Clone(blocks)
	slices.SortFunc(order, func(a, b Block) int { return int(a.First) - int(b.First) })
	next := member.ID(0)
	for _, b := range order {
		if b.First != next {
			t.Errorf("blocks %v: one begins with %d, the next free id was %d", order, b.First, next)
		}
		next = b.First + member.ID(b.Count)
	}
	gone := blocks[0]
	ends[0]()
	for { // the block is free once its node's lease is revoked
		kvs, err := c.list(ctx, "block/")
		if err != nil {
			t.Fatal(err)
		}
		if len(kvs) == len(counts)-1 {
			break
		}
	}
	if b, err := c.Claim(ctx, ctx, "small", gone.Count); err != nil || b.First != gone.First {
		t.Errorf("%v, %v; want the ids from %d on", b, err, gone.First)
	}
	if b, err := c.Claim(ctx, ctx, "large", 100); err != nil || b.First != next {
		t.Errorf("%v, %v; want the ids from %d on", b, err, next)
	}
	for _, end := range ends {
		end()
	}
}
