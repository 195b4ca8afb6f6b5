package comm

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
)

// Elements whose size is known at run time give what those of a type give, filled up or not, and the function sees none but them.
func TestFoldsOfBytesAreThoseOfTypes(t *testing.T) {
	combine := func(a, b uint64) uint64 { return a*31 + b } // associative enough to tell the order of ranks
	for _, n := range []int{1, 2, 3, 5} {
		for _, count := range []int{0, 1, 2, 7, 100} {
			each(t, n, Config{}, func(c *Comm) error {
				ctx := context.Background()
				typed, bytes := make([]uint64, count), make([]byte, 8*count)
				for i := range typed {
					typed[i] = uint64(100*c.Rank() + i + 1)
					binary.LittleEndian.PutUint64(bytes[8*i:], typed[i])
				}
				fold := func(acc, x []byte) {
					for i := 0; i < len(acc); i += 8 {
						a, b := binary.LittleEndian.Uint64(acc[i:]), binary.LittleEndian.Uint64(x[i:])
						if a == 0 || b == 0 {
							panic("an element that fills up was combined")
						}
						binary.LittleEndian.PutUint64(acc[i:], combine(a, b))
					}
				}
				check := func(what string) error {
					for i, want := range typed {
						if got := binary.LittleEndian.Uint64(bytes[8*i:]); got != want {
							return fmt.Errorf("%s of %d ranks: element %d is %d, want %d", what, n, i, got, want)
						}
					}
					return nil
				}
				if err := AllReduceBy(ctx, c, typed, combine); err != nil {
					return err
				}
				if err := AllReduceBytes(ctx, c, bytes, 8, fold); err != nil {
					return err
				}
				if err := check("all-reduce"); err != nil {
					return err
				}
				if err := ScanBy(ctx, c, typed, combine); err != nil {
					return err
				}
				if err := ScanBytes(ctx, c, bytes, 8, fold); err != nil {
					return err
				}
				if err := AllReduceBytes(ctx, c, make([]byte, 7), 2, fold); err == nil {
					return fmt.Errorf("7 bytes were taken for elements of 2")
				}
				return check("scan")
			})
		}
	}
}
