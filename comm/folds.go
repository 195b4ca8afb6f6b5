package comm

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/weft-fabric/weft/reduce"
)

// Reductions by functions of the caller. They run as all-to-all and all-gather: every rank gets its share of the elements of all
// ranks, combines them in the order of the ranks, and hands the result on. So the function need not be commutative, the bits are the
// same on all ranks, and a rank moves 2(n-1)/n of its bytes, as in a ring.

// shares deals the elements of all ranks out: to every rank the same part of each rank's buf, rank after rank. The last part may be
// filled up.
func shares[T any](ctx context.Context, c *Comm, buf []T) (mine []T, per int, err error) {
	n := c.Size()
	per = (len(buf) + n - 1) / n
	all := make([]T, per*n)
	copy(all, buf)
	mine = make([]T, per*n)
	src, err := plain(all)
	if err != nil {
		return nil, 0, err
	}
	dst, _ := plain(mine)
	return mine, per, AllToAll(ctx, c, dst, src)
}

// AllReduceBy leaves in buf of every rank, element by element, the values of all ranks combined in the order of the ranks:
// combine(combine(x0, x1), x2). T is a plain value: a number, or an array or struct of numbers. All ranks give the same number of
// elements and the same function, which must be associative and need not be commutative.
func AllReduceBy[T any](ctx context.Context, c *Comm, buf []T, combine func(a, b T) T) error {
	mine, per, err := shares(ctx, c, buf)
	if err != nil {
		return err
	}
	sum := mine[:per]
	for r := 1; r < c.Size(); r++ {
		byElement(combine)(sum, mine[r*per:(r+1)*per])
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

// scanBy leaves in buf the values of all ranks up to this one, or before it, combined.
func scanBy[T any](ctx context.Context, c *Comm, buf []T, fold func(acc, x []T), before bool) error {
	mine, per, err := shares(ctx, c, buf)
	if err != nil {
		return err
	}
	n := c.Size()
	out := make([]T, per*n)
	acc := make([]T, per)
	for r := range n {
		x, y := mine[r*per:(r+1)*per], out[r*per:(r+1)*per]
		if before {
			copy(y, acc)
		}
		if r == 0 {
			copy(acc, x)
		} else {
			fold(acc, x)
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
	return scanBy(ctx, c, buf, byElement(combine), false)
}

// ExScanBy leaves in buf of rank r the values of ranks 0 to r-1, combined in that order; buf of rank 0 stays as it is.
func ExScanBy[T any](ctx context.Context, c *Comm, buf []T, combine func(a, b T) T) error {
	return scanBy(ctx, c, buf, byElement(combine), true)
}

// Scan leaves in buf of rank r the reduction of ranks 0 to r, in that order. Avg and PreMulSum have no meaning there.
func Scan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	f, err := byOp[T](op)
	if err != nil {
		return err
	}
	return scanBy(ctx, c, buf, f, false)
}

// ExScan leaves in buf of rank r the reduction of ranks 0 to r-1, in that order; buf of rank 0 stays as it is.
func ExScan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	f, err := byOp[T](op)
	if err != nil {
		return err
	}
	return scanBy(ctx, c, buf, f, true)
}

// AllReduceBytes is AllReduceBy of elements whose size is known at run time alone: fold combines the elements of x into those of acc,
// each with the one at its place. Both are as long as one another.
func AllReduceBytes(ctx context.Context, c *Comm, buf []byte, size int, fold func(acc, x []byte)) error {
	return foldBytes(ctx, c, buf, size, fold, func(acc, mine []byte, share, valid int) ([]byte, error) {
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
	return foldBytes(ctx, c, buf, size, fold, func(acc, mine []byte, share, valid int) ([]byte, error) {
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
func foldBytes(ctx context.Context, c *Comm, buf []byte, size int, fold func(acc, x []byte), then func(acc, mine []byte, share, valid int) ([]byte, error)) error {
	if size <= 0 || len(buf)%size != 0 {
		return fmt.Errorf("%d bytes are not elements of %d bytes", len(buf), size)
	}
	if fold == nil {
		return errors.New("no function was given")
	}
	n := c.Size()
	share := (len(buf)/size + n - 1) / n * size
	all, mine := make([]byte, share*n), make([]byte, share*n)
	copy(all, buf)
	if err := AllToAll(ctx, c, mine, all); err != nil {
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
	return AllReduceBy(ctx, c, buf, func(a, b Loc[T]) Loc[T] { return pick(a, b, cmp.Compare(a.Value, b.Value)) })
}

// AllReduceMax leaves in buf the greatest of the values of all ranks with its index; of equal ones the lowest index. A NaN is greater
// than everything.
func AllReduceMax[T cmp.Ordered](ctx context.Context, c *Comm, buf []Loc[T]) error {
	return AllReduceBy(ctx, c, buf, func(a, b Loc[T]) Loc[T] {
		switch x, y := a.Value != a.Value, b.Value != b.Value; {
		case x && !y:
			return a
		case y && !x:
			return b
		}
		return pick(a, b, cmp.Compare(b.Value, a.Value))
	})
}

func pick[T cmp.Ordered](a, b Loc[T], order int) Loc[T] {
	if order < 0 || order == 0 && a.Index <= b.Index {
		return a
	}
	return b
}
