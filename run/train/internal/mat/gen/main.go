// Command gen writes the vector kernels of package mat. It is a module of its own
// so that weft itself does not depend on avo; go generate in the folder above runs
// it.
//
// A kernel computes one tile of C, rows x columns, over a stretch of k:
//
//	acc[i][j] = C[i][j] or zero
//	acc[i][j] = fma(A[i][p], B[p][j], acc[i][j])   for p ascending
//	C[i][j] = acc[i][j]
//
// B is packed: the columns of a tile follow one another for every p. A is read
// where it lies by broadcasting loads, with a stride between rows and one along k,
// so that its transpose costs nothing. There is a kernel for every number of rows
// up to a whole tile, so that the last rows of a matrix are no waste.
//
// Kernels of single elements (exp, gelu) round every product and sum by itself, in
// the order of package mat's Go code, and take whole vectors.
//
// Tiles are 12 x 32 with AVX-512 (24 accumulators, two vectors of B) and 6 x 16
// with AVX2 (12 accumulators, two vectors of B, one broadcast).
package main

import (
	"flag"
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const columns = 2 // vectors of a tile's row

func main() {
	isa := flag.String("isa", "", "avx2 or avx512")
	flag.Parse()
	g := &gen{wide: *isa == "avx512", constants: map[uint32]Mem{}}
	ConstraintExpr("amd64")
	for rows := 1; rows <= g.rows(); rows++ {
		g.tile(rows)
	}
	g.allElements()
	Generate()
}

// gen emits for one instruction set.
type gen struct {
	wide      bool // AVX-512
	constants map[uint32]Mem
}

func (g *gen) suffix() string {
	if g.wide {
		return "AVX512"
	}
	return "AVX2"
}

func (g *gen) rows() int {
	if g.wide {
		return 12
	}
	return 6
}

func (g *gen) unit() int {
	if g.wide {
		return 64
	}
	return 32
}

func (g *gen) vec() reg.VecVirtual {
	if g.wide {
		return ZMM()
	}
	return YMM()
}

func (g *gen) zero(v reg.VecVirtual) {
	if g.wide {
		VPXORD(v, v, v)
	} else {
		VPXOR(v, v, v)
	}
}

// places gives the address of each row: three rows share a pointer, which a
// stride once and twice leads to the others.
func places(rows int, base, stride reg.Register) (at []Mem, pointers []reg.GPVirtual) {
	for i := 0; i < rows; i++ {
		if i%3 == 0 {
			p := GP64()
			if i == 0 {
				MOVQ(base, p)
			} else {
				last := pointers[len(pointers)-1]
				LEAQ(Mem{Base: last, Index: stride, Scale: 2}, p)
				ADDQ(stride, p)
			}
			pointers = append(pointers, p)
		}
		m := Mem{Base: pointers[len(pointers)-1]}
		if i%3 > 0 {
			m.Index, m.Scale = stride, uint8(i%3)
		}
		at = append(at, m)
	}
	return at, pointers
}

func (g *gen) tile(rows int) {
	TEXT(fmt.Sprintf("tile%d%s", rows, g.suffix()), attr.NOSPLIT, "func(k int, a *float32, row, step int, b, c *float32, ldc int, add bool)")
	Pragma("noescape")
	k := Load(Param("k"), GP64())
	a, row, step := Load(Param("a"), GP64()), Load(Param("row"), GP64()), Load(Param("step"), GP64())
	b := Load(Param("b"), GP64())
	unit := g.unit()
	for _, r := range []reg.Register{row, step} {
		SHLQ(Imm(2), r)
	}
	acc := make([][columns]reg.VecVirtual, rows)
	for i := range acc {
		for j := range acc[i] {
			acc[i][j] = g.vec()
		}
	}
	outs := func(label string, body func(m Mem, v reg.VecVirtual)) {
		c, ldc := Load(Param("c"), GP64()), Load(Param("ldc"), GP64())
		SHLQ(Imm(2), ldc)
		for i := range acc {
			for j, v := range acc[i] {
				body(Mem{Base: c, Disp: j * unit}, v)
			}
			if i < rows-1 {
				ADDQ(ldc, c)
			}
		}
	}
	add := Load(Param("add"), GP8())
	TESTB(add, add)
	JZ(LabelRef("zeros"))
	outs("load", func(m Mem, v reg.VecVirtual) { VMOVUPS(m, v) })
	JMP(LabelRef("start"))
	Label("zeros")
	for i := range acc {
		for _, v := range acc[i] {
			g.zero(v)
		}
	}
	Label("start")
	at, pointers := places(rows, a, row)
	TESTQ(k, k)
	JZ(LabelRef("done"))
	Label("loop")
	var right [columns]reg.VecVirtual
	for j := range right {
		right[j] = g.vec()
		VMOVUPS(Mem{Base: b, Disp: j * unit}, right[j])
	}
	for i := range acc {
		if g.wide {
			for j, v := range acc[i] {
				VFMADD231PS_BCST(at[i], right[j], v)
			}
			continue
		}
		left := g.vec()
		VBROADCASTSS(at[i], left)
		for j, v := range acc[i] {
			VFMADD231PS(left, right[j], v)
		}
	}
	for _, p := range pointers {
		ADDQ(step, p)
	}
	ADDQ(I32(columns*unit), b)
	DECQ(k)
	JNZ(LabelRef("loop"))
	Label("done")
	outs("store", func(m Mem, v reg.VecVirtual) { VMOVUPS(v, m) })
	VZEROUPPER()
	RET()
}
