package comm

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
)

// Ranks whose scans or reductions by functions differ are told so, also where as many bytes of each go to every rank.
func TestFoldsThatDifferAreAMismatch(t *testing.T) {
	ctx := context.Background()
	combine := func(a, b int32) int32 { return a + b }
	for _, x := range []struct {
		name string
		call func(c *Comm) error // the last rank's call differs from that of the others
	}{
		{"reductions", func(c *Comm) error { return Scan(ctx, c, make([]int32, 8), last(c, Sum, Max)) }},
		{"lengths", func(c *Comm) error { return Scan(ctx, c, make([]int32, last(c, 7, 8)), Sum) }},
		{"lengths by a function", func(c *Comm) error { return AllReduceBy(ctx, c, make([]int32, last(c, 5, 6)), combine) }},
		{"types", func(c *Comm) error {
			if c.Rank() == c.Size()-1 {
				return Scan(ctx, c, make([]float32, 8), Sum)
			}
			return Scan(ctx, c, make([]int32, 8), Sum)
		}},
		{"scan and exscan", func(c *Comm) error {
			if c.Rank() == c.Size()-1 {
				return ExScan(ctx, c, make([]int32, 8), Sum)
			}
			return Scan(ctx, c, make([]int32, 8), Sum)
		}},
		{"least and greatest", func(c *Comm) error {
			if c.Rank() == c.Size()-1 {
				return AllReduceMin(ctx, c, make([]Loc[float64], 4))
			}
			return AllReduceMax(ctx, c, make([]Loc[float64], 4))
		}},
		{"sizes of bytes", func(c *Comm) error {
			return AllReduceBytes(ctx, c, make([]byte, 24), last(c, 2, 3), func(acc, x []byte) {})
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			each(t, 4, Config{Timeout: 20 * time.Second}, func(c *Comm) error {
				if err := x.call(c); !errors.Is(err, ErrMismatch) {
					return fmt.Errorf("%v, want a mismatch", err)
				}
				return nil
			})
		})
	}
}

// last gives the last rank another value than the others.
func last[T any](c *Comm, others, own T) T {
	if c.Rank() == c.Size()-1 {
		return own
	}
	return others
}

// A fold that is wrong in itself is told to the others at once.
func TestFoldsThatAreRefusedAreTold(t *testing.T) {
	ctx := context.Background()
	for _, x := range []struct {
		name string
		bad  func(c *Comm) error
	}{
		{"no function", func(c *Comm) error { return AllReduceBy[int32](ctx, c, make([]int32, 8), nil) }},
		{"no function to scan by", func(c *Comm) error { return ScanBy[int32](ctx, c, make([]int32, 8), nil) }},
		{"a reduction without meaning", func(c *Comm) error { return Scan(ctx, c, make([]int32, 8), Avg) }},
		{"bits of floats", func(c *Comm) error { return ExScan(ctx, c, make([]float32, 8), BXor) }},
		{"pointers", func(c *Comm) error {
			return AllReduceBy(ctx, c, make([]*int, 8), func(a, b *int) *int { return a })
		}},
		{"parts of elements", func(c *Comm) error { return ScanBytes(ctx, c, make([]byte, 7), 2, func(acc, x []byte) {}) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			each(t, 3, Config{Timeout: time.Hour}, func(c *Comm) error {
				if c.Rank() == 1 {
					if err := x.bad(c); err == nil || errors.Is(err, ErrMismatch) {
						return fmt.Errorf("%v, want an error of this call", err)
					}
					return nil
				}
				if err := Scan(ctx, c, make([]int32, 8), Sum); !errors.Is(err, ErrMismatch) {
					return fmt.Errorf("%v, want a mismatch", err)
				}
				return nil
			})
		})
	}
}

// The function of the caller sees the elements of ranks alone, and none that fill up shares.
func TestFoldsCombineGivenElementsAlone(t *testing.T) {
	ctx := context.Background()
	combine := func(a, b int) int {
		if a == 0 || b == 0 {
			panic("an element that nobody gave")
		}
		return a * b
	}
	each(t, 4, Config{}, func(c *Comm) error {
		for _, do := range []func() ([]int, error){
			func() ([]int, error) { s := []int{2, 2, 2, 2, 2}; return s, AllReduceBy(ctx, c, s, combine) },
			func() ([]int, error) { s := []int{2, 2, 2, 2, 2}; return s, ScanBy(ctx, c, s, combine) },
			func() ([]int, error) { s := []int{2, 2, 2, 2, 2}; return s, ExScanBy(ctx, c, s, combine) },
		} {
			if s, err := do(); err != nil || s[4] < 2 {
				return fmt.Errorf("%v: %w", s, err)
			}
		}
		return nil
	})
}
