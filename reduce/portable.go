package reduce

import (
	"math"
	"unsafe"
)

// block is how many bytes the portable path works on at a time: small enough for
// the stack, large enough to hide the choice of the loop.
const block = 1024

// portable computes bytes [from, to) of the reduction of srcs into every one of
// dsts. A block of the result is finished before it is stored, so that a
// destination may be any of the sources.
func portable(t Type, op Op, dsts, srcs [][]byte, from, to int) {
	var room [block / 8]uint64
	scratch := unsafe.Slice((*byte)(unsafe.Pointer(&room)), block)
	for from < to {
		n := min(block, to-from)
		acc := scratch[:n]
		if len(srcs) == 1 {
			copy(acc, srcs[0][from:])
		} else {
			pair(t, op, acc, srcs[0][from:from+n], srcs[1][from:from+n])
		}
		for _, s := range srcs[min(2, len(srcs)):] {
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
	case Float16:
		smallFloats(op, view[F16](dst), view[F16](a), view[F16](b), F16.Float32, ToF16)
	case BFloat16:
		smallFloats(op, view[BF16](dst), view[BF16](a), view[BF16](b), BF16.Float32, ToBF16)
	case Float8E4M3:
		smallFloats(op, view[E4M3](dst), view[E4M3](a), view[E4M3](b), E4M3.Float32, ToE4M3)
	case Float8E5M2:
		smallFloats(op, view[E5M2](dst), view[E5M2](a), view[E5M2](b), E5M2.Float32, ToE5M2)
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

func smallFloats[T F16 | BF16 | E4M3 | E5M2](op Op, dst, a, b []T, up func(T) float32, down func(float32) T) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		x, y := up(a[i]), up(b[i])
		switch op {
		case Sum:
			x = add(x, y)
		case Prod:
			x = mul(x, y)
		case Min:
			x = least(x, y)
		case Max:
			x = greatest(x, y)
		}
		dst[i] = down(x)
	}
}

func add[T float](a, b T) T {
	s := a + b
	if s != s {
		return nan(a, b)
	}
	return s
}

func mul[T float](a, b T) T {
	p := a * b
	if p != p {
		return nan(a, b)
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
		return nan(a, b)
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
		return nan(a, b)
	case math.Signbit(float64(a)):
		return b
	}
	return a
}

// nan is the result of an operation on a and b that is not a number.
//
//go:noinline
func nan[T float](a, b T) T {
	if a == a {
		a = b
	}
	switch p := any(&a).(type) {
	case *float32:
		if *p == *p {
			*p = math.Float32frombits(signBit32 | inf32)
		}
		*p = math.Float32frombits(math.Float32bits(*p) | quietBit32)
	case *float64:
		if *p == *p {
			*p = math.Float64frombits(0xfff << 52)
		}
		*p = math.Float64frombits(math.Float64bits(*p) | 1<<51)
	}
	return a
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
	case Float16:
		scaleSmall(view[F16](dst), view[F16](src), float32(factor), F16.Float32, ToF16)
	case BFloat16:
		scaleSmall(view[BF16](dst), view[BF16](src), float32(factor), BF16.Float32, ToBF16)
	case Float8E4M3:
		scaleSmall(view[E4M3](dst), view[E4M3](src), float32(factor), E4M3.Float32, ToE4M3)
	case Float8E5M2:
		scaleSmall(view[E5M2](dst), view[E5M2](src), float32(factor), E5M2.Float32, ToE5M2)
	}
}

func scaleSmall[T F16 | BF16 | E4M3 | E5M2](dst, src []T, factor float32, up func(T) float32, down func(float32) T) {
	for i := range dst {
		dst[i] = down(mul(up(src[i]), factor))
	}
}
