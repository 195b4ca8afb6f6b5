package reduce

import (
	"math"
	"reflect"
	"unsafe"
)

// F16 is an IEEE 754 binary16 number by its bits.
type F16 uint16

// BF16 is the upper half of a float32.
type BF16 uint16

// E4M3 is an 8-bit float of OCP's OFP8 by its bits: 4 bits of exponent, bias 7.
type E4M3 uint8

// E5M2 is an 8-bit float of OCP's OFP8 by its bits: 5 bits of exponent, bias 15.
type E5M2 uint8

// Element is what a typed buffer may hold: numbers, and types defined as one. int
// and uint have the size that the processor gives them. F16, BF16, E4M3 and E5M2
// are floats; another type defined as uint16 or uint8 is an integer.
type Element interface {
	~int8 | ~uint8 | ~int16 | ~uint16 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint | ~float32 | ~float64
}

// TypeOf is the Type of T.
func TypeOf[T Element]() Type {
	switch any(*new(T)).(type) { // the usual ones first: calls on 8 bytes ask, too
	case float32:
		return Float32
	case BF16:
		return BFloat16
	case int8:
		return Int8
	case uint8:
		return Uint8
	case int16:
		return Int16
	case uint16:
		return Uint16
	case int32:
		return Int32
	case uint32:
		return Uint32
	case int64:
		return Int64
	case uint64:
		return Uint64
	case F16:
		return Float16
	case float64:
		return Float64
	case E4M3:
		return Float8E4M3
	case E5M2:
		return Float8E5M2
	}
	return typeOfKind(reflect.TypeFor[T]())
}

// typeOfKind is the Type of int, uint and types defined as a number.
func typeOfKind(t reflect.Type) Type {
	signed, unsigned := [...]Type{1: Int8, 2: Int16, 4: Int32, 8: Int64}, [...]Type{1: Uint8, 2: Uint16, 4: Uint32, 8: Uint64}
	switch t.Kind() {
	case reflect.Float32:
		return Float32
	case reflect.Float64:
		return Float64
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return signed[t.Size()]
	}
	return unsigned[t.Size()]
}

// Bytes is the memory of s, not a copy.
func Bytes[T Element](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// view is the memory of b as elements, not a copy. The address may be unaligned:
// amd64 and arm64 load elements from anywhere.
func view[T Element](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

const (
	signBit32  = 1 << 31
	quietBit32 = 1 << 22
	inf32      = 0xff << 23
)

// widen makes a float32 of a magnitude with m bits of mantissa, moved to
// the float32's place for them, and an exponent with the given bias.
func widen(sign, magnitude uint32, bias uint32) float32 {
	shift := (127 - bias) << 23
	if magnitude < 1<<23 {
		// Subnormal: the mantissa as a fraction of the smallest normal number.
		one := math.Float32frombits(shift + 1<<23)
		f := math.Float32frombits(magnitude+shift+1<<23) - one
		return math.Float32frombits(sign | math.Float32bits(f))
	}
	return math.Float32frombits(sign | (magnitude + shift))
}

// Float32 is exact; a signalling NaN becomes a quiet one.
func (x F16) Float32() float32 {
	sign, magnitude := uint32(x&0x8000)<<16, uint32(x&0x7fff)<<13
	if magnitude >= 31<<23 {
		if magnitude > 31<<23 {
			magnitude |= quietBit32
		}
		return math.Float32frombits(sign | inf32 | magnitude)
	}
	return widen(sign, magnitude, 15)
}

// Float32 is exact.
func (x BF16) Float32() float32 { return math.Float32frombits(uint32(x) << 16) }

// Float32 is exact.
func (x E4M3) Float32() float32 {
	sign := uint32(x&0x80) << 24
	if x&0x7f == 0x7f {
		return math.Float32frombits(sign | inf32 | quietBit32)
	}
	return widen(sign, uint32(x&0x7f)<<20, 7)
}

// Float32 is exact.
func (x E5M2) Float32() float32 {
	sign, magnitude := uint32(x&0x80)<<24, uint32(x&0x7f)<<21
	if magnitude >= 31<<23 {
		return math.Float32frombits(sign | inf32 | magnitude)
	}
	return widen(sign, magnitude, 15)
}

// narrow rounds the magnitude of a number to a format with m bits of mantissa
// and an exponent with the given bias, to nearest and ties to even. The result
// runs on past the format's largest number where f does.
func narrow(abs uint32, m, bias uint32) uint32 {
	shift := 23 - m
	if abs < (128-bias)<<23 {
		// Below the smallest normal number the steps are equal: adding a power of two whose
		// last place is one such step lets the addition round.
		magic := (127 + 23 + 1 - bias - m) << 23
		return math.Float32bits(math.Float32frombits(abs)+math.Float32frombits(magic)) - magic
	}
	abs += 1<<(shift-1) - 1 + abs>>shift&1
	return abs>>shift - (127-bias)<<m
}

// ToF16 rounds to nearest, ties to even; what is too large becomes infinity.
func ToF16(f float32) F16 {
	u := math.Float32bits(f)
	sign, abs := F16(u>>16&0x8000), u&^signBit32
	if abs > inf32 {
		return sign | 0x7e00 | F16(abs>>13&0x3ff)
	}
	return sign | F16(min(narrow(abs, 10, 15), 0x7c00))
}

// ToBF16 rounds to nearest, ties to even; what is too large becomes infinity.
func ToBF16(f float32) BF16 {
	u := math.Float32bits(f)
	if u&^signBit32 > inf32 {
		return BF16(u>>16 | quietBit32>>16)
	}
	return BF16((u + 0x7fff + u>>16&1) >> 16)
}

// ToE4M3 rounds to nearest, ties to even; what is too large becomes 448.
func ToE4M3(f float32) E4M3 {
	u := math.Float32bits(f)
	sign, abs := E4M3(u>>24&0x80), u&^signBit32
	if abs > inf32 {
		return sign | 0x7f
	}
	return sign | E4M3(min(narrow(abs, 3, 7), 0x7e))
}

// ToE5M2 rounds to nearest, ties to even; what is too large becomes 57344.
func ToE5M2(f float32) E5M2 {
	u := math.Float32bits(f)
	sign, abs := E5M2(u>>24&0x80), u&^signBit32
	if abs > inf32 {
		return sign | 0x7e | E5M2(abs>>21&3)
	}
	return sign | E5M2(min(narrow(abs, 2, 15), 0x7b))
}
