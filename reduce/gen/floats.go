package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// floatFormat says how a vector of a floating-point type becomes vectors of
// float32 (or float64) and back. A vector holds parts of them: a 32-bit lane of a
// bfloat16 vector holds elements of two parts, so that nothing is shuffled.
type floatFormat struct {
	name   string
	double bool
	half   bool
	unroll int
	parts  int
	up     func(g *gen, v Op, part int) reg.VecVirtual      // nil: is one already
	down   func(g *gen, x reg.VecVirtual, part int)         // rounds in place, to the bits of its part
	half16 func(g *gen, x reg.VecVirtual, v reg.VecVirtual) // float16 packs into a narrower register
}

var formats = []floatFormat{
	{name: "Float32", unroll: 4, parts: 1},
	{name: "Float64", unroll: 4, parts: 1, double: true},
	{name: "Float16", unroll: 4, parts: 1, half: true, up: upFloat16, half16: downFloat16},
	{name: "BFloat16", unroll: 4, parts: 2, up: upBFloat16, down: downBFloat16},
	{name: "Float8E4M3", unroll: 1, parts: 4, up: e4m3.up, down: e4m3.down},
	{name: "Float8E5M2", unroll: 1, parts: 4, up: e5m2.up, down: e5m2.down},
}

// apply runs body on every part of v.
func (f floatFormat) apply(g *gen, v reg.VecVirtual, body func(x reg.VecVirtual, part int)) {
	if f.up == nil {
		body(v, 0)
		return
	}
	if f.half16 != nil {
		x := f.up(g, v, 0)
		body(x, 0)
		f.half16(g, x, v)
		return
	}
	var merged reg.VecVirtual
	for part := range f.parts {
		x := f.up(g, v, part)
		body(x, part)
		f.down(g, x, part)
		if merged == nil {
			merged = x
		} else {
			g.or(x, merged, merged)
		}
	}
	if g.wide {
		VMOVDQA64(merged, v)
	} else {
		VMOVDQA(merged, v)
	}
}

func (f floatFormat) step(op operation) func(*gen, reg.VecVirtual, Op) {
	return func(g *gen, a reg.VecVirtual, b Op) {
		if f.parts > 1 {
			b = g.inRegister(b)
		}
		f.apply(g, a, func(x reg.VecVirtual, part int) {
			y := b
			if f.up != nil {
				y = f.up(g, b, part)
			}
			g.float(op, f.double, x, y)
		})
	}
}

func (f floatFormat) kernel(op operation, name string) kernel {
	return kernel{name: name + f.name, half: f.half, unroll: f.unroll, cheap: f.parts == 1, long: f.parts == 4, step: f.step(op)}
}

// factor is the Go type of a factor.
func (f floatFormat) factor() string {
	if f.double {
		return "float64"
	}
	return "float32"
}

// scale multiplies a vector by a factor in every lane.
func (f floatFormat) scale(g *gen, v, factor reg.VecVirtual) {
	f.apply(g, v, func(x reg.VecVirtual, _ int) { g.float(prod, f.double, x, factor) })
}

// float computes a = a op b; a is the first operand, whose NaN wins.
func (g *gen) float(op operation, double bool, a reg.VecVirtual, b Op) {
	add, mul, least2, greatest2, compare := VADDPS, VMULPS, VMINPS, VMAXPS, VCMPPS
	if double {
		add, mul, least2, greatest2, compare = VADDPD, VMULPD, VMINPD, VMAXPD, VCMPPD
	}
	const unordered = 3
	switch op {
	case sum:
		add(b, a, a)
		return
	case prod:
		mul(b, a, a)
		return
	}
	// VMIN gives its second operand where the two are equal: both orders together
	// have both zeros, of which min takes the sign if one has it and max if both do.
	// NaNs come from an addition. (VRANGE knows the order of zeros, but took 9 cycles a
	// vector on one of the two Xeons measured.)
	v, x, y := g.inRegister(b), g.vec(), g.vec()
	if op == least {
		least2(v, a, x)
		least2(a, v, y)
		g.or(y, x, x)
	} else {
		greatest2(v, a, x)
		greatest2(a, v, y)
		g.and(y, x, x)
	}
	if g.wide {
		nan := K()
		compare(Imm(unordered), v, a, nan)
		add(v, a, nan, x)
		VMOVDQA64(x, a)
		return
	}
	nan := g.vec()
	compare(Imm(unordered), v, a, nan)
	add(v, a, y)
	VPBLENDVB(nan, y, x, a)
}

func upFloat16(g *gen, v Op, _ int) reg.VecVirtual {
	x := g.vec()
	VCVTPH2PS(v, x)
	return x
}

func downFloat16(g *gen, x, v reg.VecVirtual) {
	VCVTPS2PH(Imm(0), x, v) // to nearest, ties to even
}

// Part 0 of a bfloat16 vector are the lower halves of its lanes, part 1 the upper ones.
func upBFloat16(g *gen, v Op, part int) reg.VecVirtual {
	x := g.vec()
	if part == 0 {
		VPSLLD(Imm(16), v, x)
	} else {
		g.and(g.c32(0xffff0000), v, x)
	}
	return x
}

func downBFloat16(g *gen, x reg.VecVirtual, part int) {
	r := g.vec()
	VPSRLD(Imm(16), x, r)
	g.and(g.c32(1), r, r)
	VPADDD(g.c32(0x7fff), r, r)
	if g.wide {
		number := K()
		VCMPPS(Imm(7), x, x, number) // ordered; a NaN is cut, its quiet bit is set already
		VPADDD(r, x, number, x)
	} else {
		number := g.vec()
		VCMPPS(Imm(7), x, x, number)
		g.and(number, r, r)
		VPADDD(r, x, x)
	}
	if part == 0 {
		VPSRLD(Imm(16), x, x)
	} else {
		g.and(g.c32(0xffff0000), x, x)
	}
}

// float8 is an 8-bit format: bits of mantissa, bias of the exponent, code of the
// largest number.
type float8 struct {
	mantissa, bias, largest uint32
}

var (
	e4m3 = float8{3, 7, 0x7e}
	e5m2 = float8{2, 15, 0x7b}
)

// where sets x to y in the lanes that test selects.
func (g *gen) where(test, y Op, x reg.VecVirtual) {
	if g.wide {
		VMOVDQA32(y, test, x)
	} else {
		VPBLENDVB(test, y, x, x)
	}
}

// greater compares 32-bit lanes with signs: x > y.
func (g *gen) greater(x, y Op) Op {
	if g.wide {
		k := K()
		VPCMPD(Imm(6), y, x, k)
		return k
	}
	v := g.vec()
	if m, ok := x.(Mem); ok {
		VMOVDQU(m, v)
		x = v
	}
	VPCMPGTD(y, x, v)
	return v
}

// up widens the elements in byte part of each lane. Magnitudes go where a
// float32 has exponent and mantissa and the bias is corrected; a subnormal number
// is read as the fraction of a normal one, from which the one is taken away, since
// arithmetic on subnormal float32 is slow.
func (f float8) up(g *gen, v Op, part int) reg.VecVirtual {
	top, magnitude, x, sign := g.vec(), g.vec(), g.vec(), g.vec()
	if part < 3 {
		VPSLLD(Imm(uint64(24-8*part)), v, top)
	} else {
		g.load(v, top)
	}
	g.and(g.c32(1<<31), top, sign)
	g.and(g.c32(0x7f<<24), top, magnitude)
	VPSRLD(Imm(uint64(1+f.mantissa)), magnitude, magnitude)
	shift := (127 - f.bias) << 23
	VPADDD(g.c32(shift), magnitude, x)

	fraction := g.vec()
	VPADDD(g.c32(1<<23), x, fraction)
	VSUBPS(g.c32(shift+1<<23), fraction, fraction)
	g.where(g.greater(g.c32(1<<23), magnitude), fraction, x)
	if f.mantissa == 3 {
		// One code is NaN.
		g.where(g.greater(magnitude, g.c32(0x7e<<20)), g.c32(0x7fc00000), x)
	} else {
		// The largest exponent means infinity and NaN.
		special := g.vec()
		g.or(g.c32(0xff<<23), magnitude, special)
		g.where(g.greater(magnitude, g.c32(31<<23-1)), special, x)
	}
	g.or(sign, x, x)
	return x
}

// down rounds to nearest, ties to even, and leaves the code in byte part of the lane.
func (f float8) down(g *gen, x reg.VecVirtual, part int) {
	abs, r, small := g.vec(), g.vec(), g.vec()
	shift := 23 - f.mantissa
	g.and(g.c32(1<<31-1), x, abs)
	g.and(g.c32(1<<31), x, x)
	VPSRLD(Imm(24), x, x)

	VPSRLD(Imm(uint64(shift)), abs, r)
	g.and(g.c32(1), r, r)
	VPADDD(abs, r, r)
	VPADDD(g.c32(1<<(shift-1)-1), r, r)
	VPSRLD(Imm(uint64(shift)), r, r)
	VPSUBD(g.c32((127-f.bias)<<f.mantissa), r, r)
	VPMINSD(g.c32(f.largest), r, r)

	// Below the smallest normal number an addition rounds to its last place.
	magic := (127 + 23 + 1 - f.bias - f.mantissa) << 23
	VADDPS(g.c32(magic), abs, small)
	VPSUBD(g.c32(magic), small, small)
	g.where(g.greater(g.c32((128-f.bias)<<23), abs), small, r)

	nan := g.vec()
	if f.mantissa == 3 {
		g.load(g.c32(0x7f), nan)
	} else {
		VPSRLD(Imm(uint64(shift)), abs, nan)
		g.and(g.c32(0x7f), nan, nan)
	}
	g.where(g.greater(abs, g.c32(0xff<<23)), nan, r)
	g.or(r, x, x)
	if part > 0 {
		VPSLLD(Imm(uint64(8*part)), x, x)
	}
}
