package comm

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/reduce"
)

// What can be wrong with the buffers and numbers of a call, before anybody else hears of it.

// checkRequest tells what is wrong with a call before anybody else hears of it.
func checkRequest(r *request, ranks int, factor float64) error {
	if r.Reduce != 0 || r.Op == sched.AllReduce || r.Op == sched.ReduceScatter || r.Op == sched.Reduce {
		if err := reduce.Check(r.Type, r.Reduce); err != nil {
			return err
		}
		if r.Reduce == reduce.PreMulSum {
			if err := reduce.CheckScale(r.Type, factor); err != nil {
				return err
			}
		}
	}
	if r.Op.Rooted() && (r.Root < 0 || r.Root >= ranks) {
		return fmt.Errorf("%s: root %d is not a rank of a communicator of %d", r.Op, r.Root, ranks)
	}
	if len(r.Counts) > 0 && len(r.Counts) != ranks {
		return fmt.Errorf("%s: %d counts for %d ranks", r.Op, len(r.Counts), ranks)
	}
	for i, k := range r.Counts {
		if k < 0 {
			return fmt.Errorf("%s: count %d of rank %d", r.Op, k, i)
		}
	}
	return nil
}

// need says that a buffer has not the length that a call asks for.
func need(op sched.Collective, what string, have, want int) error {
	return fmt.Errorf("%s: %s has %d elements, %d are needed", op, what, have, want)
}

// strays reports whether a buffer shares memory with another one, but does not begin at a byte of it: results would overwrite
// what is yet to be read.
func strays(part, whole []byte, at int) bool {
	return op.Overlap(part, whole) && uintptr(unsafe.Pointer(&part[0])) != uintptr(unsafe.Pointer(&whole[0]))+uintptr(at)
}

// astray is the error for it.
func astray[T Element](op sched.Collective, name string, part []T, other string, whole []T, at int) error {
	by := (int(uintptr(unsafe.Pointer(&part[0]))) - int(uintptr(unsafe.Pointer(&whole[0])))) / int(unsafe.Sizeof(part[0]))
	return fmt.Errorf("%s: %s overlaps %s, it begins %d elements behind it; want %d, or two buffers that share nothing",
		op, name, other, by, at)
}

// blocksOf checks the lengths of a call with counts.
func blocksOf(rank, ranks int, op sched.Collective, all string, have int, counts []int, one string, own int) error {
	if err := countsOf(ranks, op, "counts", counts); err != nil {
		return err
	}
	if have != total(counts) {
		return need(op, all, have, total(counts))
	}
	if own != counts[rank] {
		return need(op, one, own, counts[rank])
	}
	return nil
}

// countsOf checks the lengths of blocks that a call gives.
func countsOf(ranks int, op sched.Collective, what string, counts []int) error {
	if len(counts) != ranks {
		return need(op, what, len(counts), ranks)
	}
	for i, k := range counts {
		if k < 0 {
			return fmt.Errorf("%s: %s[%d] is %d; want 0 or more", op, what, i, k)
		}
	}
	return nil
}

func total(counts []int) int {
	t := 0
	for _, k := range counts {
		t += k
	}
	return t
}

func errNoRank(rank, size int) error {
	return fmt.Errorf("rank %d is not in a communicator of %d", rank, size)
}

// elements is memory as elements of a type.
func elements[T Element](b []byte, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

var errNotPlain = errors.New("elements must be plain values: numbers, and arrays and structs of numbers")

// plain is the bytes of a slice of plain values.
func plain[T any](s []T) ([]byte, error) {
	t := reflect.TypeFor[T]()
	if !isPlain(t) {
		return nil, fmt.Errorf("%v: %w", t, errNotPlain)
	}
	if len(s) == 0 {
		return nil, nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(t.Size())), nil
}

// isPlain says whether values of a type hold no pointers, so that their bytes mean the same in another process. uintptr
// counts as a pointer.
func isPlain(t reflect.Type) bool {
	switch k := t.Kind(); {
	case k >= reflect.Bool && k <= reflect.Complex128 && k != reflect.Uintptr:
		return true
	case k == reflect.Array:
		return isPlain(t.Elem())
	case k == reflect.Struct:
		for i := range t.NumField() {
			if !isPlain(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return false
}
