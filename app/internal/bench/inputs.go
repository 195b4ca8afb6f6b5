package bench

import (
	"bytes"
	"fmt"

	"github.com/weft-fabric/weft/run/reduce"
)

// Verifiable inputs, after nccl-tests' idea: every rank's data follow from its
// number, the position and a seed, and the right result is known to the bit
// whatever the order of reduction, because no partial result is rounded.
//
//	sum, avg, mulsum   whole numbers so small that all partial sums are exact in
//	                   the type; with more ranks than the type can count, only
//	                   some contribute. Integers wrap and take any value for sum
//	prod               1, 2 and their negatives, at most 6 of them not 1 or -1
//	min, max           small whole numbers
//	band, bor          one rank has any bits, the others more, or fewer, than it
//	bxor               any bits
//	no reduction       any bits
//
// Values repeat after period elements, a prime: data that is shifted by a block,
// a chunk or a cache line never looks right, and filling and comparing run at
// the speed of memory.
const period = 8191

// factor is what PreMulSum multiplies with here.
const factor = 2

// mix is a hash of its arguments (the finalizer of splitmix64).
func mix(x ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, v := range x {
		h += v + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// exact is the largest n such that the type holds every whole number up to n.
func exact(t reduce.Type) int64 {
	switch t {
	case reduce.Float8E5M2:
		return 8
	case reduce.Float8E4M3:
		return 16
	case reduce.BFloat16:
		return 1 << 8
	case reduce.Float16:
		return 1 << 11
	case reduce.Float32:
		return 1 << 24
	case reduce.Int8:
		return 1<<7 - 1
	case reduce.Uint8:
		return 1<<8 - 1
	case reduce.Int16:
		return 1<<15 - 1
	case reduce.Uint16:
		return 1<<16 - 1
	}
	return 1 << 31
}

func signed(t reduce.Type) bool {
	return t != reduce.Uint8 && t != reduce.Uint16 && t != reduce.Uint32 && t != reduce.Uint64
}

// contribution is what a rank of n brings to the reduction at position k of the
// period, as a whole number that the type holds, or bits of an integer.
func contribution(t reduce.Type, op reduce.Op, n, rank int, seed uint64, k int) int64 {
	h := mix(seed, uint64(k), uint64(rank))
	small := func(m int64) int64 {
		if signed(t) {
			return int64(h%uint64(2*m+1)) - m
		}
		return int64(h % uint64(m+1))
	}
	// among says whether the rank is one of those m whose turn it is at k.
	among := func(m int64) bool {
		return (uint64(rank)+mix(seed, uint64(k)))%uint64(n) < uint64(m)
	}
	switch op {
	case reduce.Sum, reduce.Avg, reduce.PreMulSum:
		if op == reduce.Sum && !t.Float() {
			return int64(h)
		}
		most := exact(t)
		if op == reduce.PreMulSum {
			most /= factor
		}
		if each := most / int64(n); each > 0 {
			return small(min(each, 100))
		}
		if !among(most) {
			return 0
		}
		return small(1)
	case reduce.Prod:
		v := int64(1)
		if h&1 == 1 && among(6) {
			v = 2
		}
		if h&2 == 2 && signed(t) {
			v = -v
		}
		return v
	case reduce.Min, reduce.Max:
		return small(min(exact(t), 100))
	case reduce.BAnd, reduce.BOr:
		// One rank has the result, and the others more or fewer bits: were all
		// at random, many ranks would always come to 0 or to all ones.
		if result := int64(mix(seed, uint64(k), 1<<40)); among(1) {
			return result
		} else if op == reduce.BAnd {
			return result | int64(h)
		} else {
			return result & int64(h)
		}
	}
	return int64(h)
}

// element makes a value of the type from a whole number that it holds; integers
// take the low bits.
func element[T reduce.Element](v int64) (x T) {
	switch p := any(&x).(type) {
	case *int8:
		*p = int8(v)
	case *uint8:
		*p = uint8(v)
	case *int16:
		*p = int16(v)
	case *uint16:
		*p = uint16(v)
	case *int32:
		*p = int32(v)
	case *uint32:
		*p = uint32(v)
	case *int64:
		*p = v
	case *uint64:
		*p = uint64(v)
	case *reduce.F16:
		*p = reduce.ToF16(float32(v))
	case *reduce.BF16:
		*p = reduce.ToBF16(float32(v))
	case *float32:
		*p = float32(v)
	case *float64:
		*p = float64(v)
	case *reduce.E4M3:
		*p = reduce.ToE4M3(float32(v))
	case *reduce.E5M2:
		*p = reduce.ToE5M2(float32(v))
	}
	return x
}

// contributions is one period of a rank's input to a reduction.
func contributions[T reduce.Element](op reduce.Op, n, rank int, seed uint64) []T {
	t := reduce.TypeOf[T]()
	out := make([]T, period)
	for k := range out {
		out[k] = element[T](contribution(t, op, n, rank, seed, k))
	}
	return out
}

// combined is what a reduction does, in integers that are exact in every type: the check shares no code with the
// kernels.
func combined(op reduce.Op, v, x int64) int64 {
	switch op {
	case reduce.Prod:
		return v * x
	case reduce.Min:
		return min(v, x)
	case reduce.Max:
		return max(v, x)
	case reduce.BAnd:
		return v & x
	case reduce.BOr:
		return v | x
	case reduce.BXor:
		return v ^ x
	default:
		return v + x
	}
}

// reduced is one period of the right result of a reduction over n ranks.
func reduced[T reduce.Element](op reduce.Op, n int, seed uint64) []T {
	t := reduce.TypeOf[T]()
	out := make([]T, period)
	for k := range out {
		v := contribution(t, op, n, 0, seed, k)
		for r := 1; r < n; r++ {
			v = combined(op, v, contribution(t, op, n, r, seed, k))
		}
		if op == reduce.PreMulSum {
			v *= factor
		}
		out[k] = element[T](v)
	}
	if op == reduce.Avg {
		reduce.Finish(t, op, reduce.Bytes(out), n)
	}
	return out
}

// bits is one period of a rank's data for operations that only move them.
func bits[T reduce.Element](rank int, seed uint64) []T {
	out := make([]T, period)
	b := reduce.Bytes(out)
	for i := range b {
		b[i] = byte(mix(seed, uint64(rank), uint64(i)) >> 24)
	}
	return out
}

// tile fills dst with a period, beginning at position at.
func tile[T reduce.Element](dst, p []T, at int) {
	n := copy(dst, p[at%period:])
	for n < len(dst) {
		n += copy(dst[n:], p)
	}
}

// wrong counts the elements of got that differ from the period beginning at at.
func wrong[T reduce.Element](got, p []T, at int) (count int64) {
	size := reduce.TypeOf[T]().Size()
	for len(got) > 0 {
		part := p[at%period:]
		part = part[:min(len(part), len(got))]
		a, b := reduce.Bytes(got[:len(part)]), reduce.Bytes(part)
		if !bytes.Equal(a, b) {
			for i := 0; i < len(a); i += size {
				if !bytes.Equal(a[i:i+size], b[i:i+size]) {
					count++
				}
			}
		}
		got, at = got[len(part):], at+len(part)
	}
	return count
}

// check says whether a reduction exists for a type, and names what does.
func check(t reduce.Type, op reduce.Op) error {
	if err := reduce.Check(t, op); err != nil {
		return fmt.Errorf("-o %s with -d %s: %w", op, t, err)
	}
	return nil
}
