package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/calls"
	"github.com/weft-fabric/weft/run/reduce"
)

// Reductions by functions of the caller. They run as all-to-all and all-gather: every rank gets its share of the elements of all
// ranks, combines them in the order of the ranks, and hands the result on. So the function need not be commutative, the bits are the
// same on all ranks, and a rank moves 2(n-1)/n of its bytes, as in a ring.

// fold is what ranks must agree on when they combine by functions of the caller: which call it is, and its reduction where it has one.
type fold struct {
	variant uint8
	by      Op
}

// deal sends to every rank its share of the elements of all ranks. The signature of the call tells ranks apart whose elements differ
// in number, size or kind, also where their shares are as long as one another.
func (f fold) deal(ctx context.Context, c *Comm, dst, src []byte, elements, size int, kind reflect.Kind) error {
	salt := calls.Mix(calls.Mix(uint64(elements), uint64(size)), uint64(kind)<<8|uint64(f.by))
	return c.do(ctx, &request{Op: sched.AllToAll, Variant: f.variant, Type: reduce.Uint8, Root: -1, Count: len(src) / c.Size(),
		In: src, Out: dst, Salt: salt}, nil)
}

// shares deals the elements of all ranks out: to every rank the same part of each rank's buf, rank after rank, per elements of which
// the first valid ones are some of buf and the others fill up.
func shares[T any](ctx context.Context, c *Comm, buf []T, f fold) (mine []T, per, valid int, err error) {
	n, t := c.Size(), reflect.TypeFor[T]()
	per = (len(buf) + n - 1) / n
	all := make([]T, per*n)
	copy(all, buf)
	mine = make([]T, per*n)
	src, err := plain(all)
	if err != nil {
		return nil, 0, 0, c.refuse(err)
	}
	dst, _ := plain(mine)
	valid = min(max(len(buf)-c.Rank()*per, 0), per)
	return mine, per, valid, f.deal(ctx, c, dst, src, len(buf), int(t.Size()), t.Kind())
}

// AllReduceBy leaves in buf of every rank, element by element, the values of all ranks combined in the order of the ranks:
// combine(combine(x0, x1), x2). T is a plain value: a number, or an array or struct of numbers. All ranks give the same number of
// elements and the same function, which must be associative and need not be commutative.
func AllReduceBy[T any](ctx context.Context, c *Comm, buf []T, combine func(a, b T) T) error {
	return allReduceBy(ctx, c, buf, combine, 0)
}

// allReduceBy is AllReduceBy of a reduction that has a name, or 0.
func allReduceBy[T any](ctx context.Context, c *Comm, buf []T, combine func(a, b T) T, by Op) error {
	if combine == nil {
		return c.refuse(errNoFunction)
	}
	mine, per, valid, err := shares(ctx, c, buf, fold{calls.AllReduceBy, by})
	if err != nil {
		return err
	}
	sum := mine[:per]
	for r := 1; r < c.Size(); r++ {
		byElement(combine)(sum[:valid], mine[r*per:])
	}
	all := make([]T, per*c.Size())
	dst, _ := plain(all)
	src, _ := plain(sum)
	if err := AllGather(ctx, c, dst, src); err != nil {
		return err
	}
	copy(buf, all)
	return nil
}

var errNoFunction = errors.New("no function was given")

// scanBy leaves in buf the values of all ranks up to this one, or before it, combined.
func scanBy[T any](ctx context.Context, c *Comm, buf []T, combine func(acc, x []T), before bool, by Op) error {
	f := fold{calls.ScanBy, by}
	if before {
		f.variant = calls.ExScanBy
	}
	mine, per, valid, err := shares(ctx, c, buf, f)
	if err != nil {
		return err
	}
	n := c.Size()
	out := make([]T, per*n)
	acc := make([]T, valid)
	for r := range n {
		x, y := mine[r*per:r*per+valid], out[r*per:(r+1)*per]
		if before {
			copy(y, acc)
		}
		if r == 0 {
			copy(acc, x)
		} else {
			combine(acc, x)
		}
		if !before {
			copy(y, acc)
		}
	}
	all := make([]T, per*n)
	dst, _ := plain(all)
	src, _ := plain(out)
	if err := AllToAll(ctx, c, dst, src); err != nil {
		return err
	}
	if !before || c.Rank() > 0 {
		copy(buf, all)
	}
	return nil
}

// ScanBy leaves in buf of rank r the values of ranks 0 to r, combined in that order. See AllReduceBy.
func ScanBy[T any](ctx context.Context, c *Comm, buf []T, combine func(a, b T) T) error {
	if combine == nil {
		return c.refuse(errNoFunction)
	}
	return scanBy(ctx, c, buf, byElement(combine), false, 0)
}

// ExScanBy leaves in buf of rank r the values of ranks 0 to r-1, combined in that order; buf of rank 0 stays as it is.
func ExScanBy[T any](ctx context.Context, c *Comm, buf []T, combine func(a, b T) T) error {
	if combine == nil {
		return c.refuse(errNoFunction)
	}
	return scanBy(ctx, c, buf, byElement(combine), true, 0)
}

// Scan leaves in buf of rank r the reduction of ranks 0 to r, in that order. Avg and PreMulSum have no meaning there.
func Scan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	f, err := byOp[T](op)
	if err != nil {
		return c.refuse(err)
	}
	return scanBy(ctx, c, buf, f, false, op)
}

// ExScan leaves in buf of rank r the reduction of ranks 0 to r-1, in that order; buf of rank 0 stays as it is.
func ExScan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	f, err := byOp[T](op)
	if err != nil {
		return c.refuse(err)
	}
	return scanBy(ctx, c, buf, f, true, op)
}

// AllReduceBytes is AllReduceBy of elements whose size is known at run time alone: fold combines the elements of x into those of acc,
// each with the one at its place. Both are as long as one another.
func AllReduceBytes(ctx context.Context, c *Comm, buf []byte, size int, fold func(acc, x []byte)) error {
	return foldBytes(ctx, c, calls.AllReduceBy, buf, size, fold, func(acc, mine []byte, share, valid int) ([]byte, error) {
		copy(acc, mine[:share])
		for r := 1; r < c.Size(); r++ {
			fold(acc[:valid], mine[r*share:r*share+valid])
		}
		all := make([]byte, share*c.Size())
		return all, AllGather(ctx, c, all, acc)
	})
}

// ScanBytes is ScanBy of such elements.
func ScanBytes(ctx context.Context, c *Comm, buf []byte, size int, fold func(acc, x []byte)) error {
	return foldBytes(ctx, c, calls.ScanBy, buf, size, fold, func(acc, mine []byte, share, valid int) ([]byte, error) {
		out := make([]byte, share*c.Size())
		copy(acc, mine[:share])
		copy(out, acc)
		for r := 1; r < c.Size(); r++ {
			fold(acc[:valid], mine[r*share:r*share+valid])
			copy(out[r*share:], acc)
		}
		all := make([]byte, share*c.Size())
		return all, AllToAll(ctx, c, all, out)
	})
}

// foldBytes deals the elements of all ranks out in shares, lets then combine the share of this rank, of which some bytes are
// elements and the rest fills up, and keeps the result.
func foldBytes(ctx context.Context, c *Comm, variant uint8, buf []byte, size int, by func(acc, x []byte),
	then func(acc, mine []byte, share, valid int) ([]byte, error)) error {
	if size <= 0 || len(buf)%size != 0 {
		return c.refuse(fmt.Errorf("%d bytes are not elements of %d bytes", len(buf), size))
	}
	if by == nil {
		return c.refuse(errNoFunction)
	}
	n := c.Size()
	share := (len(buf)/size + n - 1) / n * size
	all, mine := make([]byte, share*n), make([]byte, share*n)
	copy(all, buf)
	if err := (fold{variant: variant}).deal(ctx, c, mine, all, len(buf)/size, size, reflect.Invalid); err != nil {
		return err
	}
	got, err := then(make([]byte, share), mine, share, min(max(len(buf)-c.Rank()*share, 0), share))
	if err == nil {
		copy(buf, got)
	}
	return err
}

// byElement folds element by element.
func byElement[T any](combine func(a, b T) T) func(acc, x []T) {
	return func(acc, x []T) {
		for i := range acc {
			acc[i] = combine(acc[i], x[i])
		}
	}
}

// byOp folds by a reduction.
func byOp[T Element](op Op) (func(acc, x []T), error) {
	t := reduce.TypeOf[T]()
	if op == Avg || op == PreMulSum {
		return nil, fmt.Errorf("scan: %v is not for scans; use sum", op)
	}
	if err := reduce.Check(t, op); err != nil {
		return nil, fmt.Errorf("scan: %w", err)
	}
	return func(acc, x []T) { reduce.Apply(t, op, reduce.Bytes(acc), reduce.Bytes(acc), reduce.Bytes(x)) }, nil
}

// Loc is a value and where it is: MPI's pairs for MINLOC and MAXLOC.
type Loc[T cmp.Ordered] struct {
	Value T
	Index int64
}

// AllReduceMin leaves in buf the least of the values of all ranks with its index; of equal ones the lowest index. A NaN is less than
// everything.
func AllReduceMin[T cmp.Ordered](ctx context.Context, c *Comm, buf []Loc[T]) error {
	return allReduceBy(ctx, c, buf, func(a, b Loc[T]) Loc[T] { return pick(a, b, cmp.Compare(a.Value, b.Value)) }, Min)
}

// AllReduceMax leaves in buf the greatest of the values of all ranks with its index; of equal ones the lowest index. A NaN is greater
// than everything.
func AllReduceMax[T cmp.Ordered](ctx context.Context, c *Comm, buf []Loc[T]) error {
	return allReduceBy(ctx, c, buf, func(a, b Loc[T]) Loc[T] {
		switch x, y := a.Value != a.Value, b.Value != b.Value; {
		case x && !y:
			return a
		case y && !x:
			return b
		}
		return pick(a, b, cmp.Compare(b.Value, a.Value))
	}, Max)
}

func pick[T cmp.Ordered](a, b Loc[T], order int) Loc[T] {
	if order < 0 || order == 0 && a.Index <= b.Index {
		return a
	}
	return b
}
