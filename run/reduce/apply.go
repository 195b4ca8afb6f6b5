package reduce

import (
	"fmt"
	"unsafe"
)

//go:generate go -C gen run . -isa avx2 -pkg reduce -out ../avx2_amd64.s -stubs ../avx2_amd64.go
//go:generate go -C gen run . -isa avx512 -pkg reduce -out ../avx512_amd64.s -stubs ../avx512_amd64.go
//go:generate go -C gen run . -calls ../calls_amd64.go

// stretch is how many bytes one kernel call covers: assembly cannot be
// interrupted by the garbage collector, and 1 MiB takes it 0.1 ms at worst.
const stretch = 1 << 20

// Apply computes dst = a op b, element by element. The three have one length, a
// multiple of the element's size, at any address; dst may be a or b but must not
// overlap them otherwise. What Check refuses, and lengths that differ, are
// mistakes of the caller: Apply panics.
func Apply(t Type, op Op, dst, a, b []byte) {
	dsts, srcs := [1][]byte{dst}, [2][]byte{a, b}
	check(t, op, len(dst))
	if len(a) != len(dst) || len(b) != len(dst) {
		unequal(dsts[:], srcs[:])
	}
	if len(dst) > 0 {
		vectors(t, op.pairwise(), dsts[:], srcs[:], len(dst))
	}
}

// ApplyN computes dst = ((s0 op s1) op s2) op ..., the same bits as Apply one
// after the other, reading every source once and writing dst once. A single
// source is copied. dst may be any one of the sources.
func ApplyN(t Type, op Op, dst []byte, srcs ...[]byte) {
	dsts := [1][]byte{dst}
	ApplyAll(t, op, dsts[:], srcs, nil)
}

// ApplyAll computes what ApplyN does, in an order, and stores it in every destination, each of
// which may be one of the sources.
func ApplyAll(t Type, op Op, dsts, srcs [][]byte, order *Order) {
	n := checkAll(t, op, dsts, srcs)
	if n == 0 {
		return
	}
	if len(srcs) == 1 {
		for _, d := range dsts {
			Copy(d, srcs[0])
		}
		return
	}
	if order != nil && Ordered(t, op) {
		order.apply(t, op.pairwise(), dsts, srcs, n)
		return
	}
	vectors(t, op.pairwise(), dsts, srcs, n)
}

// checkAll panics on what ApplyAll does not take; else it gives the buffers' length.
func checkAll(t Type, op Op, dsts, srcs [][]byte) int {
	if len(dsts) == 0 || len(srcs) == 0 {
		panic(fmt.Errorf("reduce: %d sources into %d destinations; at least one of each is needed", len(srcs), len(dsts)))
	}
	n := len(dsts[0])
	check(t, op, n)
	for _, d := range dsts {
		if len(d) != n {
			unequal(dsts, srcs)
		}
	}
	for _, s := range srcs {
		if len(s) != n {
			unequal(dsts, srcs)
		}
	}
	return n
}

// check panics on what Check refuses and on parts of elements.
func check(t Type, op Op, n int) {
	if !t.Valid() || !op.Valid() || op >= BAnd && t.Float() || n&(t.Size()-1) != 0 {
		refuse(t, op, n)
	}
}

func refuse(t Type, op Op, n int) {
	if err := Check(t, op); err != nil {
		panic(err)
	}
	panic(fmt.Errorf("reduce: %d bytes are not a multiple of %v (%d bytes each)", n, t, t.Size()))
}

// unequal panics with the lengths.
func unequal(dsts, srcs [][]byte) {
	var lengths [2][]int
	for i, list := range [2][][]byte{dsts, srcs} {
		for _, b := range list {
			lengths[i] = append(lengths[i], len(b))
		}
	}
	panic(fmt.Errorf("reduce: sources of %v bytes into destinations of %v; all must be equal", lengths[1], lengths[0]))
}

// Scale multiplies the elements of dst by factor; see ScaleTo.
func Scale(t Type, dst []byte, factor float64) { ScaleTo(t, dst, dst, factor) }

// ScaleTo computes dst = src * factor; dst may be src. float64 multiplies in
// float64, the other floating-point types in float32 with the factor rounded to
// it, and round once. Integers wrap around; CheckScale says which factors they
// take. ScaleTo panics on what CheckScale refuses and on lengths that differ.
func ScaleTo(t Type, dst, src []byte, factor float64) {
	if err := CheckScale(t, factor); err != nil {
		panic(err)
	}
	n := len(dst)
	if len(src) != n || n%t.Size() != 0 {
		panic(fmt.Errorf("reduce: scale %d bytes of %v into %d; both must be one multiple of %d", len(src), t, n, t.Size()))
	}
	switch {
	case n == 0:
	case t.Float():
		scaleFloats(t, dst, src, factor)
	default:
		scaleIntegers(t, dst, src, factor)
	}
}

// scaleIntegers multiplies by a buffer full of factors.
func scaleIntegers(t Type, dst, src []byte, factor float64) {
	var room [block / 8]uint64
	whole := uint64(factor)
	if factor < 0 {
		whole = uint64(int64(factor))
	}
	// The factor repeated over 64 bits: a product's low bits need no more of it.
	for shift := 8 * t.Size(); shift < 64; shift *= 2 {
		whole = whole&(1<<shift-1) | whole<<shift
	}
	for i := range room {
		room[i] = whole
	}
	factors := unsafe.Slice((*byte)(unsafe.Pointer(&room)), block)
	for len(dst) > 0 {
		n := min(block, len(dst))
		Apply(t, Prod, dst[:n], src[:n], factors[:n])
		dst, src = dst[n:], src[n:]
	}
}

// Finish does what op leaves to do once n operands are in dst: Avg divides by n.
// Integers are divided with the remainder dropped. Floats are scaled by 1/n, which is rounded first, as with NCCL: the average of seven
// threes is 3.0000002.
func Finish(t Type, op Op, dst []byte, n int) {
	if op != Avg || n == 1 {
		return
	}
	switch t {
	case Int8:
		divide(view[int8](dst), int64(n))
	case Uint8:
		divide(view[uint8](dst), int64(n))
	case Int16:
		divide(view[int16](dst), int64(n))
	case Uint16:
		divide(view[uint16](dst), int64(n))
	case Int32:
		divide(view[int32](dst), int64(n))
	case Uint32:
		divide(view[uint32](dst), int64(n))
	case Int64:
		divide(view[int64](dst), int64(n))
	case Uint64:
		for i, d := 0, view[uint64](dst); i < len(d); i++ {
			d[i] /= uint64(n)
		}
	default:
		Scale(t, dst, 1/float64(n))
	}
}

// divide goes through 64 bits, as n may be larger than T can hold.
func divide[T integer](d []T, n int64) {
	for i := range d {
		d[i] = T(int64(d[i]) / n)
	}
}

// line is how many bytes a cache line has, and the widest vector.
const line = 64

// lead is how many bytes of d lie before the first whole line.
func lead(d []byte) int { return int(-uintptr(unsafe.Pointer(unsafe.SliceData(d))) % line) }

// same reports whether one of srcs begins where d does.
func same(d []byte, srcs [][]byte) bool {
	for _, s := range srcs {
		if unsafe.SliceData(s) == unsafe.SliceData(d) {
			return true
		}
	}
	return false
}
