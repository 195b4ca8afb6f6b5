package main

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// constant is a float32 in every lane of a register.
func (g *gen) constant(f float32) reg.VecVirtual { return g.pattern(math.Float32bits(f)) }

func (g *gen) pattern(bits uint32) reg.VecVirtual {
	m, ok := g.constants[bits]
	if !ok {
		m = ConstData(fmt.Sprintf("c%08x%s", bits, g.suffix()), U32(bits))
		g.constants[bits] = m
	}
	v := g.vec()
	VBROADCASTSS(m, v)
	return v
}

// exp replaces x by its exponential, step by step as in package mat.
func (g *gen) exp(x reg.VecVirtual) {
	c := g.constant
	// Of two operands of which one is NaN these give the first named here: x.
	VMAXPS(x, c(-87.33654), x)
	VMINPS(x, c(88.02969), x)
	t, n, y := g.vec(), g.vec(), g.vec()
	VMULPS(c(1.44269504), x, t)
	VADDPS(c(12582912), t, t)
	VSUBPS(c(12582912), t, n)
	VMULPS(c(0.693359375), n, y)
	VSUBPS(y, x, x)
	VMULPS(c(-2.12194440e-4), n, y)
	VSUBPS(y, x, x)
	VMULPS(c(1.9875691500e-4), x, y)
	VADDPS(c(1.3981999507e-3), y, y)
	for _, a := range []float32{8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		VMULPS(x, y, y)
		VADDPS(c(a), y, y)
	}
	VMULPS(x, y, y)
	VMULPS(x, y, y)
	VADDPS(x, y, y)
	VADDPS(c(1), y, y)
	near := uint32(0x4b400000)
	VPADDD(g.pattern(127-near), t, t)
	VPSLLD(Imm(23), t, t)
	VMULPS(t, y, x)
}

const (
	geluA = 1.5957691216
	geluB = 0.0713548163
)

// gate gives the sigmoid of gelu's argument, and x squared.
func (g *gen) gate(x reg.VecVirtual) (s, square reg.VecVirtual) {
	s, square = g.vec(), g.vec()
	VMULPS(x, x, square)
	VMULPS(g.constant(geluB), square, s)
	VADDPS(g.constant(geluA), s, s)
	VMULPS(x, s, s)
	zero := g.vec()
	g.zero(zero)
	VSUBPS(s, zero, s)
	g.exp(s)
	one := g.constant(1)
	VADDPS(one, s, s)
	VDIVPS(s, one, s)
	return s, square
}

// elements emits a kernel over whole vectors.
func (g *gen) elements(name, params string, body func(at func(param string) Mem)) {
	TEXT(name+g.suffix(), attr.NOSPLIT, "func(vectors int, "+params+")")
	Pragma("noescape")
	count := Load(Param("vectors"), GP64())
	offset := GP64()
	XORQ(offset, offset)
	bases := map[string]reg.Register{}
	for _, p := range []string{"dst", "grad", "src"} {
		if p != "grad" || name == "geluBack" {
			bases[p] = Load(Param(p), GP64())
		}
	}
	Label("loop")
	body(func(param string) Mem { return Mem{Base: bases[param], Index: offset, Scale: 1} })
	ADDQ(I32(g.unit()), offset)
	DECQ(count)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func (g *gen) allElements() {
	g.elements("exp", "dst, src *float32, shift float32", func(at func(string) Mem) {
		x, shift := g.vec(), g.vec()
		m, err := Param("shift").Resolve()
		if err != nil {
			panic(err)
		}
		VBROADCASTSS(m.Addr, shift)
		VMOVUPS(at("src"), x)
		VSUBPS(shift, x, x)
		g.exp(x)
		VMOVUPS(x, at("dst"))
	})
	g.elements("gelu", "dst, src *float32", func(at func(string) Mem) {
		x := g.vec()
		VMOVUPS(at("src"), x)
		s, _ := g.gate(x)
		VMULPS(x, s, s)
		VMOVUPS(s, at("dst"))
	})
	g.elements("geluBack", "dst, grad, src *float32", func(at func(string) Mem) {
		x, y, rest := g.vec(), g.vec(), g.vec()
		VMOVUPS(at("src"), x)
		s, slope := g.gate(x)
		VMULPS(g.constant(3*geluB), slope, slope)
		VADDPS(g.constant(geluA), slope, slope)
		VMULPS(x, s, y)
		VMOVUPS(y, at("dst"))
		VSUBPS(s, g.constant(1), rest)
		VMULPS(y, rest, rest)
		VMULPS(slope, rest, rest)
		VADDPS(rest, s, s)
		VMULPS(at("grad"), s, s)
		VMOVUPS(s, at("grad"))
	})
}
