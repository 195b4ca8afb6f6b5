package comm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
	"slices"
)

func init() { bodies["roots"] = (*kid).roots }

// Gathers and reduces of lengths around those from which the ranks work for the root,
// in place and not, every rank as the root, on memory that all ranks have registered or
// only some: every result is right, and on registered memory it has the bits that the
// root alone comes to.
func TestRanksWorkForTheRoot(t *testing.T) {
	for _, n := range bounded.First(2, 2, 3, 5) {
		startProcs(t, n, "shm", "roots").finish()
	}
}

func (k *kid) roots() error {
	n := k.c.Size()
	counts := []int{board.SmallSize / 4, board.SmallSize/4 + 1, plan.ShareFrom/4 - 1, plan.ShareFrom / 4, plan.ShareFrom/4*n + 7, 70001,
		plan.FollowUpTo/4 + 9}
	for i, count := range counts {
		kinds := []int{0, 1<<n - 1, 1, 1<<n - 2, 2}
		if count > plan.FollowUpTo/4 { // takes long
			kinds = kinds[i%2 : i%2+3]
		}
		for j, kind := range kinds {
			for _, op := range []string{"reduce", "gather", "gather-v"} {
				o := order{Op: op, Count: count, Root: i + j, Registered: kind>>k.c.Rank()&1 != 0, InPlace: (i+j)%3 == 0}
				if op != "reduce" && count > 70001 {
					o.Count /= n
				}
				if err := k.try(o); err != nil {
					return fmt.Errorf("%s of %d at root %d, memory %b: %w", op, o.Count, (i+j)%n, kind, err)
				}
			}
		}
	}
	if k.c.world.pulls && !slices.ContainsFunc(k.c.Flight().Records(), func(r Record) bool { return r.Mode == plan.Pool.String() }) {
		return errors.New("no share of a large sum was left for the root")
	}
	if err := k.try(order{Op: "gather", Count: 5000, Registered: true}); err != nil {
		return err
	}
	if list := k.c.Flight().Records(); list[len(list)-1].Mode != plan.Share.String() {
		return fmt.Errorf("the last gather ran %s: its blocks were not moved by their owners", list[len(list)-1].Mode)
	}
	return errors.Join(sameSums[float32](k.c), sameSums[int32](k.c), sameSums[reduce.BF16](k.c), sameSums[uint8](k.c))
}

// try carries an order out and looks at the result.
func (k *kid) try(o order) error {
	tr, err := newTrial[float32](k.c, o)
	if err != nil {
		return err
	}
	if err := tr.run(context.Background()); err != nil {
		return err
	}
	return tr.complete()
}

// sameSums compares reductions on registered and on plain memory.
func sameSums[T reduce.Element](c *Comm) error {
	ctx := context.Background()
	const count = 50021
	for i, red := range []reduce.Op{Sum, Avg, Min, Max, Prod} {
		src, dst := make([]T, count), make([]T, count)
		for i := range src {
			src[i] = T((i*7+c.Rank()*13)%11 + 1)
		}
		root := i % c.Size()
		if err := Reduce(ctx, c, dst, src, red, root); err != nil {
			return err
		}
		for _, inPlace := range []bool{false, true} {
			in, err := Alloc[T](c, count)
			if err != nil {
				return err
			}
			out := in
			if !inPlace {
				if out, err = Alloc[T](c, count); err != nil {
					return err
				}
			}
			copy(in, src)
			if err := Reduce(ctx, c, out, in, red, root); err != nil {
				return err
			}
			if c.Rank() == root && !bytes.Equal(reduce.Bytes(out), reduce.Bytes(dst)) {
				return fmt.Errorf("%s of %T, in place %t: not the bits of the root alone", red, src[0], inPlace)
			}
			if c.Rank() != root && !bytes.Equal(reduce.Bytes(in), reduce.Bytes(src)) {
				return fmt.Errorf("%s of %T: the input changed", red, src[0])
			}
			if err := Barrier(ctx, c); err != nil {
				return err
			}
			if err := Free(c, in); err != nil {
				return err
			}
			if !inPlace {
				if err := Free(c, out); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
