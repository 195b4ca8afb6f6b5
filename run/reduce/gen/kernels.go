package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

type operation int

const (
	sum operation = iota
	prod
	least
	greatest
)

var operationNames = []string{"sum", "prod", "min", "max"}

// kernels in the order of their numbers. Sums, products and bits do not ask for
// the sign of an integer.
var kernels = func() []kernel {
	var list []kernel
	for width, size := range []string{"8", "16", "32", "64"} {
		list = append(list,
			kernel{name: "sumInt" + size, unroll: 4, cheap: true, step: sumInt(width)},
			kernel{name: "prodInt" + size, unroll: 4, cheap: true, step: prodInt(width)},
			kernel{name: "minInt" + size, unroll: 4, cheap: true, step: boundInt(width, least, true)},
			kernel{name: "maxInt" + size, unroll: 4, cheap: true, step: boundInt(width, greatest, true)},
			kernel{name: "minUint" + size, unroll: 4, cheap: true, step: boundInt(width, least, false)},
			kernel{name: "maxUint" + size, unroll: 4, cheap: true, step: boundInt(width, greatest, false)})
	}
	list = append(list,
		kernel{name: "andBits", unroll: 4, cheap: true, step: func(g *gen, a reg.VecVirtual, b Op) { g.and(b, a, a) }},
		kernel{name: "orBits", unroll: 4, cheap: true, step: func(g *gen, a reg.VecVirtual, b Op) { g.or(b, a, a) }},
		kernel{name: "xorBits", unroll: 4, cheap: true, step: func(g *gen, a reg.VecVirtual, b Op) { g.xor(b, a, a) }})
	for _, f := range formats {
		for op, name := range operationNames {
			list = append(list, f.kernel(operation(op), name))
		}
	}
	return list
}()

// and, or, xor: the instructions' names differ between the sets.
func (g *gen) and(x, y, to Op) {
	if g.wide {
		VPANDD(x, y, to)
	} else {
		VPAND(x, y, to)
	}
}

func (g *gen) or(x, y, to Op) {
	if g.wide {
		VPORD(x, y, to)
	} else {
		VPOR(x, y, to)
	}
}

func (g *gen) xor(x, y, to Op) {
	if g.wide {
		VPXORD(x, y, to)
	} else {
		VPXOR(x, y, to)
	}
}

// inRegister gives b in a register.
func (g *gen) inRegister(b Op) reg.VecVirtual {
	if v, ok := b.(reg.VecVirtual); ok {
		return v
	}
	v := g.vec()
	g.load(b, v)
	return v
}

func sumInt(width int) func(*gen, reg.VecVirtual, Op) {
	add := []func(...Op){VPADDB, VPADDW, VPADDD, VPADDQ}[width]
	return func(g *gen, a reg.VecVirtual, b Op) { add(b, a, a) }
}

func prodInt(width int) func(*gen, reg.VecVirtual, Op) {
	return func(g *gen, a reg.VecVirtual, b Op) {
		switch {
		case width == 0:
			// Bytes as the halves of words: the low half of a product does not depend on what is above its factors.
			b := g.inRegister(b)
			x, y := g.vec(), g.vec()
			VPSRLW(Imm(8), a, x)
			VPSRLW(Imm(8), b, y)
			VPMULLW(y, x, x)
			VPSLLW(Imm(8), x, x)
			VPMULLW(b, a, a)
			g.and(g.c32(0x00ff00ff), a, a)
			g.or(x, a, a)
		case width == 1:
			VPMULLW(b, a, a)
		case width == 2:
			VPMULLD(b, a, a)
		case g.wide:
			VPMULLQ(b, a, a)
		default:
			// 64 bits of low*low + (low*high + high*low) << 32.
			b := g.inRegister(b)
			x, y := g.vec(), g.vec()
			VPSRLQ(Imm(32), a, x)
			VPMULUDQ(b, x, x)
			VPSRLQ(Imm(32), b, y)
			VPMULUDQ(y, a, y)
			VPADDQ(y, x, x)
			VPSLLQ(Imm(32), x, x)
			VPMULUDQ(b, a, a)
			VPADDQ(x, a, a)
		}
	}
}

func boundInt(width int, op operation, signed bool) func(*gen, reg.VecVirtual, Op) {
	direct := map[operation]map[bool][]func(...Op){
		least:    {true: {VPMINSB, VPMINSW, VPMINSD, VPMINSQ}, false: {VPMINUB, VPMINUW, VPMINUD, VPMINUQ}},
		greatest: {true: {VPMAXSB, VPMAXSW, VPMAXSD, VPMAXSQ}, false: {VPMAXUB, VPMAXUW, VPMAXUD, VPMAXUQ}},
	}[op][signed][width]
	return func(g *gen, a reg.VecVirtual, b Op) {
		if g.wide || width < 3 {
			direct(b, a, a)
			return
		}
		// AVX2 compares 64 bits with signs only: unsigned numbers are moved into that range.
		b = g.inRegister(b)
		x, y := Op(a), b
		if !signed {
			u, v := g.vec(), g.vec()
			g.xor(g.c64(1<<63), a, u)
			g.xor(g.c64(1<<63), b, v)
			x, y = u, v
		}
		above := g.vec() // a > b
		VPCMPGTQ(y, x, above)
		if op == least {
			VPBLENDVB(above, b, a, a)
		} else {
			VPBLENDVB(above, a, b, a)
		}
	}
}
