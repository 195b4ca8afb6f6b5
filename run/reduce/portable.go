package reduce

import (
	"math"
	"unsafe"
)

// block is how many bytes of many sources are worked on at a time: small enough for
// the stack, large enough to hide the choice of the loop.
const block = 1024

// portable computes bytes [from, to) of the reduction of srcs into every one of
// dsts.
func portable(t Type, op Op, dsts, srcs [][]byte, from, to int) {
	if len(dsts) == 1 && len(srcs) == 2 {
		pair(t, op, dsts[0][from:to], srcs[0][from:to], srcs[1][from:to])
		return
	}
	portableMany(t, op, dsts, srcs, from, to)
}

// portableMany finishes a block of the result before it stores it, so that a
// destination may be any of the sources.
func portableMany(t Type, op Op, dsts, srcs [][]byte, from, to int) {
	var room [block / 8]uint64
	scratch := unsafe.Slice((*byte)(unsafe.Pointer(&room)), block)
	for from < to {
		n := min(block, to-from)
		acc := scratch[:n]
		pair(t, op, acc, srcs[0][from:from+n], srcs[1][from:from+n])
		for _, s := range srcs[2:] {
			pair(t, op, acc, acc, s[from:from+n])
		}
		for _, d := range dsts {
			copy(d[from:from+n], acc)
		}
		from += n
	}
}

// pair computes dst = a op b for buffers of one length. This and portableScale
// are the definition that the kernels are held against.
func pair(t Type, op Op, dst, a, b []byte) {
	switch t {
	case Int8:
		integers(op, view[int8](dst), view[int8](a), view[int8](b))
	case Uint8:
		integers(op, view[uint8](dst), view[uint8](a), view[uint8](b))
	case Int16:
		integers(op, view[int16](dst), view[int16](a), view[int16](b))
	case Uint16:
		integers(op, view[uint16](dst), view[uint16](a), view[uint16](b))
	case Int32:
		integers(op, view[int32](dst), view[int32](a), view[int32](b))
	case Uint32:
		integers(op, view[uint32](dst), view[uint32](a), view[uint32](b))
	case Int64:
		integers(op, view[int64](dst), view[int64](a), view[int64](b))
	case Uint64:
		integers(op, view[uint64](dst), view[uint64](a), view[uint64](b))
	case Float32:
		floats(op, view[float32](dst), view[float32](a), view[float32](b))
	case Float64:
		floats(op, view[float64](dst), view[float64](a), view[float64](b))
	default:
		smallFloats(t, op, dst, a, b)
	}
}

type integer interface {
	int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64
}

func integers[T integer](op Op, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case Sum:
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	case Prod:
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
	case Min:
		for i := range dst {
			dst[i] = min(a[i], b[i])
		}
	case Max:
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
	case BAnd:
		for i := range dst {
			dst[i] = a[i] & b[i]
		}
	case BOr:
		for i := range dst {
			dst[i] = a[i] | b[i]
		}
	case BXor:
		for i := range dst {
			dst[i] = a[i] ^ b[i]
		}
	}
}

type float interface{ float32 | float64 }

func floats[T float](op Op, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case Sum:
		for i := range dst {
			dst[i] = add(a[i], b[i])
		}
	case Prod:
		for i := range dst {
			dst[i] = mul(a[i], b[i])
		}
	case Min:
		for i := range dst {
			dst[i] = least(a[i], b[i])
		}
	case Max:
		for i := range dst {
			dst[i] = greatest(a[i], b[i])
		}
	}
}

// wide is how many elements of a small type are widened at a time.
const wide = 64

// smallFloats widens to float32, computes and rounds.
func smallFloats(t Type, op Op, dst, a, b []byte) {
	var x, y [wide]float32
	for size := t.Size(); len(dst) > 0; {
		n := min(wide, len(dst)/size)
		widenAll(t, x[:n], a)
		widenAll(t, y[:n], b)
		floats(op, x[:n], x[:n], y[:n])
		roundAll(t, dst, x[:n])
		dst, a, b = dst[n*size:], a[n*size:], b[n*size:]
	}
}

// widenAll fills x from the beginning of src.
func widenAll(t Type, x []float32, src []byte) {
	switch t {
	case Float16:
		for i, v := range view[F16](src)[:len(x)] {
			x[i] = v.Float32()
		}
	case BFloat16:
		for i, v := range view[BF16](src)[:len(x)] {
			x[i] = v.Float32()
		}
	case Float8E4M3:
		for i, v := range view[E4M3](src)[:len(x)] {
			x[i] = v.Float32()
		}
	case Float8E5M2:
		for i, v := range view[E5M2](src)[:len(x)] {
			x[i] = v.Float32()
		}
	}
}

// roundAll writes x to the beginning of dst.
func roundAll(t Type, dst []byte, x []float32) {
	switch t {
	case Float16:
		d := view[F16](dst)[:len(x)]
		for i, v := range x {
			d[i] = ToF16(v)
		}
	case BFloat16:
		d := view[BF16](dst)[:len(x)]
		for i, v := range x {
			d[i] = ToBF16(v)
		}
	case Float8E4M3:
		d := view[E4M3](dst)[:len(x)]
		for i, v := range x {
			d[i] = ToE4M3(v)
		}
	case Float8E5M2:
		d := view[E5M2](dst)[:len(x)]
		for i, v := range x {
			d[i] = ToE5M2(v)
		}
	}
}

func add[T float](a, b T) T {
	s := a + b
	if s != s {
		return nan[T]()
	}
	return s
}

func mul[T float](a, b T) T {
	p := a * b
	if p != p {
		return nan[T]()
	}
	return p
}

func least[T float](a, b T) T {
	switch {
	case a < b:
		return a
	case b < a:
		return b
	case a != b:
		return nan[T]()
	case math.Signbit(float64(a)): // equal: only zeros differ, and -0 is smaller
		return a
	}
	return b
}

func greatest[T float](a, b T) T {
	switch {
	case a > b:
		return a
	case b > a:
		return b
	case a != b:
		return nan[T]()
	case math.Signbit(float64(a)):
		return b
	}
	return a
}

// nan is the result of an operation that is not a number: all bits are set.
func nan[T float]() T {
	var x T
	switch p := any(&x).(type) {
	case *float32:
		*p = math.Float32frombits(math.MaxUint32)
	case *float64:
		*p = math.Float64frombits(math.MaxUint64)
	}
	return x
}

// portableScale computes dst = src * factor for bytes [from, to) of a
// floating-point type. Types of less than 64 bits take the factor as a float32.
func portableScale(t Type, dst, src []byte, from, to int, factor float64) {
	dst, src = dst[from:to], src[from:to]
	switch t {
	case Float64:
		d, s := view[float64](dst), view[float64](src)
		for i := range d {
			d[i] = mul(s[i], factor)
		}
	case Float32:
		d, s := view[float32](dst), view[float32](src)
		for i := range d {
			d[i] = mul(s[i], float32(factor))
		}
	default:
		var x [wide]float32
		for size := t.Size(); len(dst) > 0; {
			n := min(wide, len(dst)/size)
			widenAll(t, x[:n], src)
			for i, v := range x[:n] {
				x[i] = mul(v, float32(factor))
			}
			roundAll(t, dst, x[:n])
			dst, src = dst[n*size:], src[n*size:]
		}
	}
}
