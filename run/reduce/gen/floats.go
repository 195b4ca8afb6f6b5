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
	bits   int
	inf    uint32 // of less than 32 bits: the code above which NaNs are
	unroll int
	parts  int
	up     func(g *gen, v Op, part int) reg.VecVirtual      // nil: is one already
	down   func(g *gen, x reg.VecVirtual, part int)         // rounds in place, to the bits of its part
	half16 func(g *gen, x reg.VecVirtual, v reg.VecVirtual) // float16 packs into a narrower register
}

var formats = []floatFormat{
	{name: "Float32", bits: 32, unroll: 4, parts: 1},
	{name: "Float64", bits: 64, unroll: 4, parts: 1, double: true},
	{name: "Float16", bits: 16, inf: 0x7c00, unroll: 4, parts: 1, half: true, up: upFloat16, half16: downFloat16},
	{name: "BFloat16", bits: 16, inf: 0x7f80, unroll: 4, parts: 2, up: upBFloat16, down: downBFloat16},
	{name: "Float8E4M3", bits: 8, inf: 0x7e, unroll: 1, parts: 4, up: e4m3.up, down: e4m3.down},
	{name: "Float8E5M2", bits: 8, inf: 0x7c, unroll: 1, parts: 4, up: e5m2.up, down: e5m2.down},
}

// trees are the formats that have kernels of trees. Steps of 8-bit floats take longer than partial results in L1 do.
var trees = formats[:4]

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
	return kernel{name: name + f.name, half: f.half, unroll: f.unroll, cheap: f.parts == 1, long: f.parts == 4, step: f.step(op), floats: &f}
}

// tree is the kernel that sums up to eight sources as a tree. AVX2 has 16 registers, three of which a vector takes here.
func (f floatFormat) tree(g *gen) kernel {
	k := f.kernel(sum, "tree")
	k.tree = true
	if !g.wide {
		k.unroll = min(k.unroll, 2)
	}
	return k
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

// float computes a = a op b. If one of them is a NaN, so is a: settle makes it the one that all results have.
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

// settle sets all bits of the NaNs in v, so that a op b and b op a are the same bits whichever NaNs come together. A NaN stays
// one whatever is added, so once before a block is stored is enough, and only a block that has one takes the time for it.
func (f *floatFormat) settle(g *gen, v []reg.VecVirtual, label string) {
	any := f.nans(g, v[:min(f.together(), len(v))])
	for i := f.together(); i < len(v); i += f.together() {
		if more := f.nans(g, v[i:min(i+f.together(), len(v))]); g.wide {
			KORQ(more, any, any)
		} else {
			VPOR(more, any, any)
		}
	}
	if g.wide {
		KORTESTQ(any, any)
	} else {
		VPTEST(any, any)
	}
	JZ(LabelRef(label + "_settled"))
	for i, x := range v {
		nans := f.nans(g, v[i:i+1])
		if g.wide {
			set := g.packed(f.half)
			map[int]func(k, set Op){8: VPMOVM2B, 16: VPMOVM2W, 32: VPMOVM2D, 64: VPMOVM2Q}[f.bits](nans, set)
			nans = set
		}
		g.or(nans, x, x)
	}
	Label(label + "_settled")
}

// together is how many vectors one comparison looks at: x is unordered to y if one of them is a NaN, and above looks at the
// largest code.
func (f *floatFormat) together() int {
	if f.bits >= 32 {
		return 2
	}
	return 8
}

// nans are the lanes of vectors that hold a NaN, in a mask or a vector.
func (f *floatFormat) nans(g *gen, v []reg.VecVirtual) (lanes Op) {
	lanes = g.packed(f.half)
	if g.wide {
		lanes = K()
	}
	const unordered = 3
	switch first, last := v[0], v[len(v)-1]; {
	case f.bits == 32:
		VCMPPS(Imm(unordered), last, first, lanes)
	case f.bits == 64:
		VCMPPD(Imm(unordered), last, first, lanes)
	default:
		f.above(g, v, lanes)
	}
	return lanes
}

// above finds NaNs of less than 32 bits: without its sign a NaN is more than infinity.
func (f *floatFormat) above(g *gen, v []reg.VecVirtual, lanes Op) {
	all, most, compare, compareWide, double := uint32(0x01010101), VPMAXUB, VPCMPGTB, VPCMPUB, VPADDB
	if f.bits == 16 {
		all, most, compare, compareWide, double = 0x00010001, VPMAXUW, VPCMPGTW, VPCMPUW, VPADDW
	}
	abs := make([]reg.VecVirtual, len(v))
	for i := range v {
		abs[i] = g.packed(f.half)
		if g.wide {
			double(v[i], v[i], abs[i])
		} else {
			g.and(g.c32(all*(1<<(f.bits-1)-1)), v[i], abs[i])
		}
		if i > 0 {
			most(abs[i], abs[0], abs[0])
		}
	}
	const greater = 6
	if g.wide {
		compareWide(Imm(greater), g.constant(f.half, all*(2*f.inf)), abs[0], lanes)
	} else {
		compare(g.c32(all*f.inf), abs[0], lanes)
	}
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
