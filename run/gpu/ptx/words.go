package ptx

import (
	"fmt"
	"math"

	"github.com/weft-fabric/weft/run/reduce"
)

// combine emits acc = acc op src for all elements of a word.
func (k *words) combine(op reduce.Op, acc, src string) {
	switch op {
	case reduce.BAnd, reduce.BOr, reduce.BXor:
		k.line("%s.b%d %s, %s, %s", map[reduce.Op]string{reduce.BAnd: "and", reduce.BOr: "or", reduce.BXor: "xor"}[op], k.width(), acc, acc, src)
		return
	}
	k.lanes(acc, func(lane int) {
		a, b := k.load(acc, lane), k.load(src, lane)
		k.store(acc, lane, k.pair(op, a, b))
	})
}

// finish emits what is left to do once all sources are in a word: Avg divides, PreMulSum multiplies, and what is not a number
// has all bits set.
func (k *words) finish(op reduce.Op, acc string) {
	multiplied := op == reduce.Avg || op == reduce.PreMulSum
	if multiplied {
		k.multiply(op, acc)
	}
	if k.t.Float() {
		k.canonical(acc)
	}
}

// multiply emits the division of Avg and the multiplication of PreMulSum.
func (k *words) multiply(op reduce.Op, acc string) {
	k.lanes(acc, func(lane int) {
		a := k.load(acc, lane)
		switch {
		case op == reduce.Avg && !k.t.Float():
			a = k.divide(a)
		case k.t.Size() == 8 && !k.t.Float():
			a = k.op64("mul.lo.u64", a, k.factor64)
		case !k.t.Float():
			a = k.op32("mul.lo.u32", a, k.factor)
		case k.t == reduce.Float64:
			a = k.op64("mul.rn.f64", a, k.factor64)
		default:
			a = k.op32("mul.rn.f32", a, k.factor)
		}
		k.store(acc, lane, a)
	})
}

// width is the bits of a word.
func (k *words) width() int {
	if k.t.Size() == 8 {
		return 64
	}
	return 32
}

// lanes does something for each element of a word.
func (k *words) lanes(word string, do func(lane int)) {
	for lane := range max(1, 4/k.t.Size()) {
		do(lane)
	}
}

// load emits an element of a word as a register of 32 or 64 bits: integers extended, floats as a float32 or float64.
func (k *words) load(word string, lane int) string {
	bits := 8 * k.t.Size()
	switch k.t {
	case reduce.Int8, reduce.Int16:
		return k.op32("bfe.s32", word, fmt.Sprint(lane*bits), fmt.Sprint(bits))
	case reduce.Uint8, reduce.Uint16:
		return k.op32("bfe.u32", word, fmt.Sprint(lane*bits), fmt.Sprint(bits))
	case reduce.BFloat16:
		if lane == 0 {
			return k.op32("shl.b32", word, "16")
		}
		return k.op32("and.b32", word, hex(0xffff0000))
	case reduce.Float16:
		lo, hi := k.r16(), k.r16()
		k.line("mov.b32 {%s, %s}, %s", lo, hi, word)
		return k.op32("cvt.f32.f16", []string{lo, hi}[lane])
	case reduce.Float8E4M3, reduce.Float8E5M2:
		return k.widen(k.op32("bfe.u32", word, fmt.Sprint(lane*8), "8"))
	}
	return word
}

// store emits an element back into its word, rounded to its type.
func (k *words) store(word string, lane int, value string) {
	bits := fmt.Sprint(8 * k.t.Size())
	switch k.t {
	case reduce.Int8, reduce.Int16, reduce.Uint8, reduce.Uint16:
		k.line("bfi.b32 %s, %s, %s, %d, %s", word, value, word, lane*8*k.t.Size(), bits)
	case reduce.BFloat16:
		k.line("bfi.b32 %s, %s, %s, %d, 16", word, k.toBF16(value), word, 16*lane)
	case reduce.Float16:
		h := k.r16()
		k.line("cvt.rn.f16.f32 %s, %s", h, value)
		k.line("bfi.b32 %s, %s, %s, %d, 16", word, k.op32("cvt.u32.u16", h), word, 16*lane)
	case reduce.Float8E4M3, reduce.Float8E5M2:
		k.line("bfi.b32 %s, %s, %s, %d, 8", word, k.narrow(value), word, 8*lane)
	default:
		if value != word {
			k.line("mov.b%d %s, %s", k.width(), word, value)
		}
	}
}

// pair emits a op b.
func (k *words) pair(op reduce.Op, a, b string) string {
	suffix := "u32"
	switch {
	case k.t == reduce.Float64:
		suffix = "f64"
	case k.t.Float():
		suffix = "f32"
	case k.t == reduce.Int64:
		suffix = "s64"
	case k.t == reduce.Uint64:
		suffix = "u64"
	case k.t == reduce.Int8, k.t == reduce.Int16, k.t == reduce.Int32:
		suffix = "s32"
	}
	emit := k.op32
	if k.width() == 64 {
		emit = k.op64
	}
	switch {
	case op == reduce.Min || op == reduce.Max:
		name := "min"
		if op == reduce.Max {
			name = "max"
		}
		r := emit(name+"."+suffix, a, b)
		if k.t.Float() { // min and max would give the other one for a NaN
			p := k.test("setp.nan."+suffix, a, b)
			k.line("selp.b%d %s, %s, %s, %s", k.width(), r, k.ones(), r, p)
		}
		return r
	case op == reduce.Prod && k.t.Float():
		return emit("mul.rn."+suffix, a, b)
	case op == reduce.Prod:
		return emit("mul.lo."+suffix, a, b)
	case k.t.Float(): // rn: a sum is never joined with a product
		return emit("add.rn."+suffix, a, b)
	}
	return emit("add."+suffix, a, b)
}

// ones is a word with all bits set.
func (k *words) ones() string {
	if k.width() == 64 {
		return hex(math.MaxUint64)
	}
	return hex(math.MaxUint32)
}

// canonical emits that elements that are not a number have all bits set.
func (k *words) canonical(acc string) {
	switch k.t {
	case reduce.Float32, reduce.Float64:
		p := k.test(fmt.Sprintf("setp.nan.f%d", k.width()), acc, acc)
		k.line("selp.b%d %s, %s, %s, %s", k.width(), acc, k.ones(), acc, p)
		return
	case reduce.Float8E4M3, reduce.Float8E5M2:
		return // narrow has seen to it
	}
	least := map[reduce.Type]uint64{reduce.Float16: 0x7c00, reduce.BFloat16: 0x7f80}[k.t] // infinity
	k.lanes(acc, func(lane int) {
		abs := k.op32("bfe.u32", acc, fmt.Sprint(16*lane), "15")
		p := k.test("setp.gt.u32", abs, hex(least))
		with := k.op32("or.b32", acc, hex(uint64(0xffff)<<(16*lane)))
		k.line("selp.b32 %s, %s, %s, %s", acc, with, acc, p)
	})
}

// divide emits an element of a sum divided by the number of sources. The sum is extended again: it may have wrapped around.
func (k *words) divide(a string) string {
	switch k.t {
	case reduce.Int64:
		return k.op64("div.s64", a, k.factor64)
	case reduce.Uint64:
		return k.op64("div.u64", a, k.factor64)
	case reduce.Int8, reduce.Int16, reduce.Int32:
		return k.op32("div.s32", a, k.factor)
	}
	return k.op32("div.u32", a, k.factor)
}

// toBF16 emits the upper half of a float32, rounded to nearest and ties to even.
func (k *words) toBF16(value string) string {
	if k.sm >= 80 {
		h := k.r16()
		k.line("cvt.rn.bf16.f32 %s, %s", h, value)
		return k.op32("cvt.u32.u16", h)
	}
	odd := k.op32("bfe.u32", value, "16", "1")
	sum := k.op32("add.u32", value, "32767")
	sum = k.op32("add.u32", sum, odd)
	half := k.op32("shr.u32", sum, "16")
	p := k.test("setp.nan.f32", value, value)
	return k.op32("selp.b32", hex(0xffff), half, p)
}

// small is what an 8-bit float is made of.
type small struct{ mantissa, bias, most uint32 }

func (k *words) small() small {
	if k.t == reduce.Float8E4M3 {
		return small{3, 7, 0x7e}
	}
	return small{2, 15, 0x7b}
}

// widen emits an 8-bit float as a float32, as reduce does it.
func (k *words) widen(x string) string {
	f := k.small()
	shift := (127 - f.bias) << 23
	sign := k.op32("and.b32", x, hex(0x80))
	sign = k.op32("shl.b32", sign, "24")
	low := k.op32("and.b32", x, hex(0x7f))
	magnitude := k.op32("shl.b32", low, fmt.Sprint(23-f.mantissa))
	normal := k.op32("add.u32", magnitude, hex(uint64(shift)))
	// Subnormal: the mantissa as a fraction of the smallest normal number.
	one := shift + 1<<23
	part := k.op32("add.u32", magnitude, hex(uint64(one)))
	part = k.op32("sub.rn.f32", part, float(one))
	p := k.test("setp.lt.u32", magnitude, hex(1<<23))
	r := k.op32("selp.b32", part, normal, p)
	if k.t == reduce.Float8E4M3 {
		p = k.test("setp.eq.u32", low, hex(0x7f))
		r = k.op32("selp.b32", hex(0x7fc00000), r, p)
	} else {
		high := k.op32("or.b32", magnitude, hex(0x7f800000))
		p = k.test("setp.ge.u32", magnitude, hex(31<<23))
		r = k.op32("selp.b32", high, r, p)
	}
	return k.op32("or.b32", r, sign)
}

// narrow emits a float32 as an 8-bit float, as reduce does it: rounded to nearest and ties to even, and no larger than the
// largest number. What is not a number has all bits set.
func (k *words) narrow(value string) string {
	f := k.small()
	shift := 23 - f.mantissa
	abs := k.op32("and.b32", value, hex(0x7fffffff))
	sign := k.op32("shr.u32", value, "24")
	sign = k.op32("and.b32", sign, hex(0x80))
	// Below the smallest normal number the addition of a power of two rounds.
	magic := (127 + 23 + 1 - f.bias - f.mantissa) << 23
	below := k.op32("add.rn.f32", abs, float(magic))
	below = k.op32("sub.u32", below, hex(uint64(magic)))
	odd := k.op32("bfe.u32", abs, fmt.Sprint(shift), "1")
	above := k.op32("add.u32", abs, fmt.Sprint(1<<(shift-1)-1))
	above = k.op32("add.u32", above, odd)
	above = k.op32("shr.u32", above, fmt.Sprint(shift))
	above = k.op32("sub.u32", above, fmt.Sprint((127-f.bias)<<f.mantissa))
	p := k.test("setp.lt.u32", abs, hex(uint64(128-f.bias)<<23))
	r := k.op32("selp.b32", below, above, p)
	r = k.op32("min.u32", r, fmt.Sprint(f.most))
	r = k.op32("or.b32", r, sign)
	p = k.test("setp.nan.f32", value, value)
	return k.op32("selp.b32", hex(0xff), r, p)
}

func hex(v uint64) string { return fmt.Sprintf("0x%x", v) }

// float is a float32 by its bits, as an operand of an instruction on floats.
func float(bits uint32) string { return fmt.Sprintf("0f%08X", bits) }

// FactorOf is what a kernel multiplies elements with (PreMulSum) or divides them by (Avg, with the number of sources), as the
// parameter of the kernel: reduce.ScaleTo and reduce.Finish say which.
func FactorOf(t reduce.Type, op reduce.Op, factor float64) uint64 {
	switch {
	case op == reduce.Avg && !t.Float():
		return uint64(factor)
	case op == reduce.Avg:
		factor = 1 / factor
	}
	switch {
	case t == reduce.Float64:
		return math.Float64bits(factor)
	case t.Float():
		return uint64(math.Float32bits(float32(factor)))
	case factor < 0:
		return uint64(int64(factor))
	}
	return uint64(factor)
}
