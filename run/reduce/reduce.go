// Package reduce is what a reduction computes on bytes: element types, operations,
// and dst = a op b over buffers of any length and alignment.
//
//	Apply           dst = a op b
//	ApplyN          dst = ((s0 op s1) op s2) op ...   one pass, every source read once
//	ApplyAll        the same into several destinations, in the same pass; or in another Order, such as a Tree's
//	ApplyAllLogged  the same, so that another process can finish it if this one is killed
//	Scale           dst = dst * factor
//	Finish          what is left to do after the last operand: of Avg, the division by the count
//	Copy            past the caches where the destination is too large for them
//
// Every result is defined to the bit, so that it depends neither on the
// processor nor on how a buffer was cut into pieces:
//
//   - Integers wrap around. Floats round to nearest, ties to even, and keep
//     subnormal numbers.
//   - float16, bfloat16 and the two 8-bit floats are widened to float32 for each
//     operation and rounded once after it, also between the operands of ApplyN.
//   - 8-bit floats saturate: what is larger than the largest finite number,
//     infinity included, becomes that number (448 and 57344), as NVIDIA's
//     conversions with satfinite do and as OCP's OFP8 calls saturating mode.
//   - An operation with a NaN gives a NaN, Min and Max included, and so do inf - inf
//     and 0 * inf. It is always the same one: all bits are set. So a op b and b op a
//     have the same bits, whatever NaNs they were given. (Processors keep one
//     operand's payload; which one depends on the order.)
//   - Min and Max hold -0 for smaller than +0.
//
// On amd64 the work is done by AVX-512 (F, BW, DQ, VL) or AVX2 kernels where the
// processor has them, else and on every other architecture by plain Go; all
// three give the same bits. Calls start no goroutines and allocate nothing.
package reduce

import (
	"fmt"
	"math"
	"strings"
)

// Type is the type of a buffer's elements, in the byte order of the machine.
type Type uint8

// The element types.
const (
	Int8 Type = iota + 1
	Uint8
	Int16
	Uint16
	Int32
	Uint32
	Int64
	Uint64
	Float16
	BFloat16
	Float32
	Float64
	Float8E4M3 // OCP OFP8: no infinity, one NaN for each sign, largest number 448
	Float8E5M2 // OCP OFP8: upper half of a float16, largest number 57344
)

var types = [...]struct {
	name string
	size int
}{
	{"no type", 0},
	{"int8", 1}, {"uint8", 1}, {"int16", 2}, {"uint16", 2}, {"int32", 4}, {"uint32", 4}, {"int64", 8}, {"uint64", 8},
	{"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"float8_e4m3", 1}, {"float8_e5m2", 1},
}

// Other names in use: nccl-tests' first, then PyTorch's.
var typeAliases = map[string]Type{
	"half": Float16, "float": Float32, "double": Float64, "fp8_e4m3": Float8E4M3, "fp8_e5m2": Float8E5M2,
	"float8_e4m3fn": Float8E4M3, "bf16": BFloat16, "f16": Float16, "f32": Float32, "f64": Float64,
	"i8": Int8, "u8": Uint8, "i16": Int16, "u16": Uint16, "i32": Int32, "u32": Uint32, "i64": Int64, "u64": Uint64,
}

// Types lists all types in the order of their values.
func Types() []Type {
	var list []Type
	for t := Int8; t.Valid(); t++ {
		list = append(list, t)
	}
	return list
}

// Valid reports whether t is one of the types above.
func (t Type) Valid() bool { return t != 0 && int(t) < len(types) }

// Size is the number of bytes an element takes; zero for what is no type.
func (t Type) Size() int {
	if !t.Valid() {
		return 0
	}
	return types[t].size
}

// Float reports whether elements are floating-point numbers.
func (t Type) Float() bool { return t >= Float16 && t <= Float8E5M2 }

func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return types[t].name
}

// ParseType takes what String gives, and the names of nccl-tests and PyTorch.
func ParseType(s string) (Type, error) {
	for t := Int8; t.Valid(); t++ {
		if types[t].name == s {
			return t, nil
		}
	}
	if t, ok := typeAliases[s]; ok {
		return t, nil
	}
	var names []string
	for _, t := range Types() {
		names = append(names, t.String())
	}
	return 0, fmt.Errorf("unknown element type %q; known: %s", s, strings.Join(names, ", "))
}

// MarshalText and UnmarshalText make types names in JSON.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

func (t *Type) UnmarshalText(b []byte) (err error) {
	*t, err = ParseType(string(b))
	return err
}

// Op is a reduction.
type Op uint8

// The reductions.
const (
	Sum Op = iota + 1
	Prod
	Min
	Max
	Avg       // Sum, and Finish divides by the number of operands; floats are multiplied with its rounded inverse
	PreMulSum // Sum of operands that were multiplied by a factor (ScaleTo)
	BAnd
	BOr
	BXor
)

var ops = [...]string{"no operation", "sum", "prod", "min", "max", "avg", "premulsum", "band", "bor", "bxor"}

// Ops lists all reductions in the order of their values.
func Ops() []Op {
	var list []Op
	for o := Sum; o.Valid(); o++ {
		list = append(list, o)
	}
	return list
}

// Valid reports whether o is one of the reductions above.
func (o Op) Valid() bool { return o != 0 && int(o) < len(ops) }

func (o Op) String() string {
	if !o.Valid() {
		return fmt.Sprintf("operation %d", uint8(o))
	}
	return ops[o]
}

// ParseOp takes what String gives, and nccl-tests' mulsum.
func ParseOp(s string) (Op, error) {
	for o := Sum; o.Valid(); o++ {
		if ops[o] == s {
			return o, nil
		}
	}
	if s == "mulsum" {
		return PreMulSum, nil
	}
	return 0, fmt.Errorf("unknown reduction %q; known: %s", s, strings.Join(ops[1:], ", "))
}

// MarshalText and UnmarshalText make reductions names in JSON.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

func (o *Op) UnmarshalText(b []byte) (err error) {
	*o, err = ParseOp(string(b))
	return err
}

// pairwise is the operation between two operands: averages and sums of scaled
// inputs add.
func (o Op) pairwise() Op {
	if o == Avg || o == PreMulSum {
		return Sum
	}
	return o
}

// Check reports whether op exists for elements of type t.
func Check(t Type, op Op) error {
	switch {
	case !t.Valid():
		return fmt.Errorf("reduce: %v under %v: no such type", t, op)
	case !op.Valid():
		return fmt.Errorf("reduce: %v of %v: no such operation", op, t)
	case op >= BAnd && t.Float():
		return fmt.Errorf("reduce: %v of %v: bits of floats are not reduced; use an integer type of %d bytes", op, t, t.Size())
	}
	return nil
}

// CheckScale reports whether elements of type t can be multiplied by factor:
// floats by anything, integers by whole numbers that the type's range holds.
func CheckScale(t Type, factor float64) error {
	if !t.Valid() {
		return fmt.Errorf("reduce: scale %v: no such type", t)
	}
	if t.Float() {
		return nil
	}
	bits := 8 * t.Size()
	low, high := 0.0, math.Ldexp(1, bits)
	if t.signed() {
		low, high = -math.Ldexp(1, bits-1), math.Ldexp(1, bits-1)
	}
	if factor >= low && factor < high && factor == math.Trunc(factor) {
		return nil
	}
	return fmt.Errorf("reduce: scale %v by %v: integers take whole factors from %.0f up to below %.0f", t, factor, low, high)
}

func (t Type) signed() bool { return t == Int8 || t == Int16 || t == Int32 || t == Int64 }
