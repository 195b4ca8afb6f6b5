// Command gen writes the vector kernels of package reduce: assembly, Go
// declarations and the switch that calls them. It is a module of its own so that
// weft itself does not depend on avo; go generate in the folder above runs it.
//
// A kernel computes bytes [from, to) of one reduction for any number of sources
// and destinations:
//
//	acc = load s0                   four vectors at a time
//	acc = acc op s1                 inner loop over the sources; kernels of few
//	acc = acc op s2 ...             instructions take the first two outside of it
//	store d0, d1 ...
//
// Every vector is complete before it is stored, so that a destination may be a
// source. AVX-512 kernels end with vectors under a byte mask and take any length;
// AVX2 kernels end with single vectors and take whole ones (vectorAVX2 bytes at
// most). With nt set, blocks are stored past the caches: destinations are then
// aligned to the vector. Slices are read by their headers, 24 bytes apart.
// Nothing is prefetched: 1 KiB ahead it cost up to a third of the rate in L1 and
// gained less than 5% in memory.
//
// A kernel of a tree takes up to eight sources and combines neighbours, their results, and so on:
//
//	acc = s0 op s1
//	b = s2 op s3;                     acc = acc op b        if there are more than two
//	c = s4 op s5; b = s6 op s7; c = c op b; acc = acc op c   if there are more than four
//
// A logged kernel has no stores past the caches and keeps the log that log.go
// describes, one round of its loop at a time:
//
//	acc = s0 op s1 op ...           times a factor in kernels of averages
//	store acc to the log's block
//	log's sealed = start + end of the round
//	store acc to d0, d1 ...
//	log's done = start + end of the round
package main

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	header    = 24  // bytes of a slice header; the pointer comes first
	copyBlock = 256 // bytes that copying moves at a time

	// Where a log has its two words and its block.
	logDone   = 0
	logSealed = 8
	logBlock  = 64
)

// kernel is one reduction in vectors.
type kernel struct {
	name   string
	half   bool // vectors in memory are half as wide as those computed with
	unroll int
	step   func(g *gen, acc reg.VecVirtual, b Op) // acc = acc op b; b is a register or memory
	// cheap: a step is an instruction or a few. The second source then has its own
	// copy of it outside the inner loop. long: a step takes longer than memory does,
	// and nothing is gained by storing past the caches.
	cheap, long bool
	logged      bool
	tree        bool         // sources are combined as a tree
	floats      *floatFormat // of a kernel of floats
	mean        *floatFormat // of a kernel that averages
}

// withLog is the kernel that keeps a log, in longer rounds if registers allow: with
// two threads in L2, rounds of eight vectors took 1.00 and 0.99 of the time without
// a log (AVX-512 and AVX2), rounds of four 1.03 and 1.07.
func (k kernel) withLog() kernel {
	k.name, k.logged = k.name+"Logged", true
	if k.cheap && !k.tree {
		k.unroll = 8
	}
	return k
}

// past reports whether the kernel has a loop that stores past the caches.
func (k kernel) past() bool { return !k.long && !k.logged }

func main() {
	isa := flag.String("isa", "", "avx2 or avx512: write that assembly (avo's -out and -stubs); empty: write the calls")
	calls := flag.String("calls", "", "file for the switch over kernels")
	flag.Parse()
	if *isa == "" {
		writeCalls(*calls)
		return
	}
	g := &gen{wide: *isa == "avx512", constants: map[uint64]Mem{}}
	ConstraintExpr("amd64")
	for _, k := range kernels {
		g.reduction(k)
	}
	for _, k := range kernels {
		g.reduction(k.withLog())
	}
	for i := range formats {
		k := formats[i].kernel(sum, "mean").withLog()
		k.mean = &formats[i]
		g.reduction(k)
	}
	for i := range trees {
		k := trees[i].tree(g)
		g.reduction(k)
		g.reduction(k.withLog())
		k = k.withLog()
		k.name, k.mean = "treeMean"+trees[i].name+"Logged", &trees[i]
		g.reduction(k)
	}
	for _, f := range formats {
		g.scaling(f)
	}
	g.copying()
	Generate()
}

// gen emits for one instruction set.
type gen struct {
	wide      bool // AVX-512
	constants map[uint64]Mem
}

func (g *gen) suffix() string {
	if g.wide {
		return "AVX512"
	}
	return "AVX2"
}

// vec is a new register of full width, packed one of the width a kernel's vectors have in memory.
func (g *gen) vec() reg.VecVirtual {
	if g.wide {
		return ZMM()
	}
	return YMM()
}

func (g *gen) packed(half bool) reg.VecVirtual {
	switch {
	case !half:
		return g.vec()
	case g.wide:
		return YMM()
	}
	return XMM()
}

func (g *gen) unit(half bool) int {
	n := 32
	if g.wide {
		n = 64
	}
	if half {
		n /= 2
	}
	return n
}

// bits is a constant of 32 or 64 bits in memory, for AVX2 repeated over a vector.
func (g *gen) bits(v uint64, size int) Mem {
	key := v<<1 | uint64(size>>3)
	if m, ok := g.constants[key]; ok {
		return m
	}
	m := GLOBL(fmt.Sprintf("c%d_%x%s", size*8, v, g.suffix()), attr.RODATA|attr.NOPTR)
	for at := 0; at < g.unit(false) && (at == 0 || !g.wide); at += size {
		if size == 8 {
			DATA(at, U64(v))
		} else {
			DATA(at, U32(v))
		}
	}
	g.constants[key] = m
	return m
}

// c32 is a constant as an operand: for AVX-512 in a register that a broadcasting
// load fills, as 64 bytes in memory may lie across two lines (the linker aligns to
// 32), which cost a third of the rate of the small floats.
func (g *gen) c32(v uint32) Op {
	m := g.bits(uint64(v), 4)
	if !g.wide {
		return m
	}
	x := g.vec()
	VPBROADCASTD(m, x)
	return x
}

// constant is c32 for vectors that may be packed.
func (g *gen) constant(half bool, v uint32) Op {
	if !half || !g.wide {
		return g.c32(v)
	}
	x := g.packed(half)
	VPBROADCASTD(g.bits(uint64(v), 4), x)
	return x
}

func (g *gen) c64(v uint64) Mem { return g.bits(v, 8) }

func (g *gen) load(m Op, v reg.VecVirtual) {
	if g.wide {
		VMOVDQU64(m, v)
	} else {
		VMOVDQU(m, v)
	}
}

func (g *gen) store(v reg.VecVirtual, m Mem, nt bool) {
	switch {
	case nt:
		VMOVNTDQ(v, m)
	case g.wide:
		VMOVDQU64(v, m)
	default:
		VMOVDQU(v, m)
	}
}

func (g *gen) reduction(k kernel) {
	how := "nt bool"
	if k.logged {
		how = "log *byte, start int"
	}
	if k.mean != nil {
		how += ", factor " + k.mean.factor()
	}
	TEXT(k.name+g.suffix(), attr.NOSPLIT, "func(dsts *[]byte, nd int, srcs *[]byte, ns int, from, to int, "+how+")")
	Pragma("noescape")
	dsts, nd := Load(Param("dsts"), GP64()), Load(Param("nd"), GP64())
	srcs, ns := Load(Param("srcs"), GP64()), Load(Param("ns"), GP64())
	at, end := Load(Param("from"), GP64()), Load(Param("to"), GP64())
	log, position := GP64(), GP64()
	if k.logged {
		Load(Param("log"), log)
	}
	// seal makes a block that ends at next ready to be stored. A logged one it writes to the log, and says so.
	seal := func(label string, acc []reg.VecVirtual, next Mem) {
		if k.mean != nil {
			factor := g.broadcast(k.mean)
			for _, v := range acc {
				k.mean.scale(g, v, factor)
			}
		}
		if k.floats != nil {
			k.floats.settle(g, acc, label)
		}
		if !k.logged {
			return
		}
		for i, v := range acc {
			g.store(v, Mem{Base: log, Disp: logBlock + i*g.unit(k.half)}, false)
		}
		Load(Param("start"), position)
		next.Index, next.Scale = position, 1
		LEAQ(next, position)
		MOVQ(position, Mem{Base: log, Disp: logSealed})
	}
	// done says that all destinations have the block.
	done := func() {
		if k.logged {
			MOVQ(position, Mem{Base: log, Disp: logDone})
		}
	}
	s0, s1, d0 := GP64(), GP64(), GP64()
	MOVQ(Mem{Base: srcs}, s0)
	MOVQ(Mem{Base: dsts}, d0)
	first := 1
	if k.cheap || k.tree {
		MOVQ(Mem{Base: srcs, Disp: header}, s1)
		first = 2
	}
	if !k.tree { // which finds all of them in their places
		ADDQ(Imm(uint64(first*header)), srcs)
	}
	ADDQ(Imm(header), dsts)
	if !k.tree {
		SUBQ(Imm(uint64(first)), ns)
	}
	DECQ(nd)

	unit := g.unit(k.half)
	size := unit * k.unroll
	cursor, count, p := GP64(), GP64(), GP64()
	// each runs body for what is left of a list of slices, none included.
	each := func(label string, list, n reg.Register, body func(base reg.Register)) {
		TESTQ(n, n)
		JZ(LabelRef(label + "_done"))
		MOVQ(list, cursor)
		MOVQ(n, count)
		Label(label)
		MOVQ(Mem{Base: cursor}, p)
		body(p)
		ADDQ(Imm(header), cursor)
		DECQ(count)
		JNZ(LabelRef(label))
		Label(label + "_done")
	}
	several := func(n int) []reg.VecVirtual {
		list := make([]reg.VecVirtual, n)
		for i := range list {
			list[i] = g.packed(k.half)
		}
		return list
	}
	// combine computes acc out of all sources: load fills a vector from a source, step combines one with a source.
	combine := func(label string, acc []reg.VecVirtual, load, step func(v reg.VecVirtual, base reg.Register, i int)) {
		of := func(list []reg.VecVirtual, base reg.Register, do func(v reg.VecVirtual, base reg.Register, i int)) {
			for i, v := range list {
				do(v, base, i)
			}
		}
		of(acc, s0, load)
		if k.cheap || k.tree {
			of(acc, s1, step)
		}
		if !k.tree {
			each(label+"_sources", srcs, ns, func(base reg.Register) { of(acc, base, step) })
			return
		}
		// pair is source i and the next one, if there is one.
		pair := func(list []reg.VecVirtual, i int) {
			MOVQ(Mem{Base: srcs, Disp: i * header}, p)
			of(list, p, load)
			CMPQ(ns, Imm(uint64(i+1)))
			JLE(LabelRef(fmt.Sprintf("%s_single%d", label, i)))
			MOVQ(Mem{Base: srcs, Disp: (i + 1) * header}, p)
			of(list, p, step)
			Label(fmt.Sprintf("%s_single%d", label, i))
		}
		join := func(a, b []reg.VecVirtual) {
			for i := range a {
				k.step(g, a[i], b[i])
			}
		}
		b, c := several(len(acc)), several(len(acc))
		CMPQ(ns, Imm(2))
		JLE(LabelRef(label + "_combined"))
		pair(b, 2)
		join(acc, b)
		CMPQ(ns, Imm(4))
		JLE(LabelRef(label + "_combined"))
		pair(c, 4)
		CMPQ(ns, Imm(6))
		JLE(LabelRef(label + "_six"))
		pair(b, 6)
		join(c, b)
		Label(label + "_six")
		join(acc, c)
		Label(label + "_combined")
	}
	place := func(base reg.Register, i int) Mem { return Mem{Base: base, Index: at, Scale: 1, Disp: i * unit} }
	stores := func(label string, acc []reg.VecVirtual, nt bool) {
		for i, v := range acc {
			g.store(v, place(d0, i), nt)
		}
		each(label, dsts, nd, func(base reg.Register) {
			for i, v := range acc {
				g.store(v, place(base, i), nt)
			}
		})
	}
	// A kernel that takes one vector at a time needs nothing but the tail.
	if k.unroll > 1 {
		acc, left := several(k.unroll), GP64()
		next := func() {
			ADDQ(I32(size), at)
			JMP(LabelRef("block"))
		}
		Label("block")
		MOVQ(end, left)
		SUBQ(at, left)
		CMPQ(left, I32(size))
		JL(LabelRef("tail"))
		combine("block", acc,
			func(v reg.VecVirtual, base reg.Register, i int) { g.load(place(base, i), v) },
			func(v reg.VecVirtual, base reg.Register, i int) { k.step(g, v, place(base, i)) })
		seal("block", acc, Mem{Base: at, Disp: size})
		if k.past() {
			past := Load(Param("nt"), GP8())
			TESTB(past, past)
			JNZ(LabelRef("past"))
		}
		stores("block_targets", acc, false)
		done()
		next()
		if k.past() {
			Label("past")
			stores("past_targets", acc, true)
			next()
		}
	}

	Label("tail")
	left := GP64()
	MOVQ(end, left)
	SUBQ(at, left)
	acc, b := g.packed(k.half), g.packed(k.half)
	if g.wide {
		JLE(LabelRef("done"))
		mask, bits, next := K(), GP64(), GP64()
		if k.logged || k.unroll == 1 { // else less than a block is left
			LEAQ(Mem{Base: at, Disp: unit}, next)
			CMPQ(next, end)
			CMOVQGT(end, next)
			MOVQ(next, left)
			SUBQ(at, left)
		}
		MOVQ(I32(-1), bits)
		BZHIQ(left, bits, bits) // the instruction reads eight bits of it
		KMOVQ(bits, mask)
		combine("tail", []reg.VecVirtual{acc},
			func(v reg.VecVirtual, base reg.Register, _ int) { VMOVDQU8_Z(place(base, 0), mask, v) },
			func(v reg.VecVirtual, base reg.Register, _ int) {
				VMOVDQU8_Z(place(base, 0), mask, b)
				k.step(g, v, b)
			})
		seal("tail", []reg.VecVirtual{acc}, Mem{Base: next})
		VMOVDQU8(acc, mask, place(d0, 0))
		each("tail_targets", dsts, nd, func(base reg.Register) { VMOVDQU8(acc, mask, place(base, 0)) })
	} else {
		CMPQ(left, I32(unit))
		JL(LabelRef("done"))
		combine("tail", []reg.VecVirtual{acc},
			func(v reg.VecVirtual, base reg.Register, _ int) { g.load(place(base, 0), v) },
			func(v reg.VecVirtual, base reg.Register, _ int) { k.step(g, v, place(base, 0)) })
		seal("tail", []reg.VecVirtual{acc}, Mem{Base: at, Disp: unit})
		g.store(acc, place(d0, 0), false)
		each("tail_targets", dsts, nd, func(base reg.Register) { g.store(acc, place(base, 0), false) })
	}
	done()
	ADDQ(I32(unit), at)
	JMP(LabelRef("tail"))
	Label("done")
	if k.past() {
		nt := Load(Param("nt"), GP8())
		TESTB(nt, nt)
		JZ(LabelRef("return"))
		SFENCE() // stores past the caches become visible in order with what follows
		Label("return")
	}
	VZEROUPPER()
	RET()
}

// broadcast fills a register with the parameter factor.
func (g *gen) broadcast(f *floatFormat) reg.VecVirtual {
	m, err := Param("factor").Resolve()
	if err != nil {
		log.Fatal(err)
	}
	v := g.vec()
	if f.double {
		VBROADCASTSD(m.Addr, v)
	} else {
		VBROADCASTSS(m.Addr, v)
	}
	return v
}

// scaling multiplies by a factor, which is a float32 for types narrower than that.
func (g *gen) scaling(f floatFormat) {
	TEXT("scale"+f.name+g.suffix(), attr.NOSPLIT, "func(dst, src *byte, from, to int, factor "+f.factor()+")")
	Pragma("noescape")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	at, end := Load(Param("from"), GP64()), Load(Param("to"), GP64())
	factor := g.broadcast(&f)
	unit := g.unit(f.half)
	acc, left := g.packed(f.half), GP64()
	step := func(label string) {
		f.scale(g, acc, factor)
		f.settle(g, []reg.VecVirtual{acc}, label)
	}
	Label("loop")
	MOVQ(end, left)
	SUBQ(at, left)
	CMPQ(left, I32(unit))
	JL(LabelRef("tail"))
	g.load(Mem{Base: src, Index: at, Scale: 1}, acc)
	step("loop")
	g.store(acc, Mem{Base: dst, Index: at, Scale: 1}, false)
	ADDQ(I32(unit), at)
	JMP(LabelRef("loop"))
	Label("tail")
	if g.wide {
		CMPQ(left, I32(0))
		JLE(LabelRef("done"))
		mask, bits := K(), GP64()
		MOVQ(I32(-1), bits)
		BZHIQ(left, bits, bits)
		KMOVQ(bits, mask)
		VMOVDQU8_Z(Mem{Base: src, Index: at, Scale: 1}, mask, acc)
		step("tail")
		VMOVDQU8(acc, mask, Mem{Base: dst, Index: at, Scale: 1})
		Label("done")
	}
	VZEROUPPER()
	RET()
}

// copying stores whole blocks past the caches, to a destination aligned to the vector.
func (g *gen) copying() {
	TEXT("copyPast"+g.suffix(), attr.NOSPLIT, "func(dst, src *byte, blocks int)")
	Pragma("noescape")
	dst, src := Load(Param("dst"), GP64()), Load(Param("src"), GP64())
	blocks := Load(Param("blocks"), GP64())
	unit := g.unit(false)
	Label("loop")
	vectors := make([]reg.VecVirtual, copyBlock/unit)
	for i := range vectors {
		vectors[i] = g.vec()
		g.load(Mem{Base: src, Disp: i * unit}, vectors[i])
	}
	for i, v := range vectors {
		g.store(v, Mem{Base: dst, Disp: i * unit}, true)
	}
	ADDQ(I32(copyBlock), src)
	ADDQ(I32(copyBlock), dst)
	DECQ(blocks)
	JNZ(LabelRef("loop"))
	SFENCE()
	VZEROUPPER()
	RET()
}

// writeCalls writes the kernels' numbers and the switches that call them: calls
// through function values would move their arguments to the heap.
func writeCalls(file string) {
	var b bytes.Buffer
	b.WriteString("// Code generated by run/reduce/gen. DO NOT EDIT.\n\npackage reduce\n\n")
	b.WriteString("// kernel numbers the vector kernels; zero is none.\ntype kernel uint8\n\nconst (\n\t_ kernel = iota\n")
	for _, k := range kernels {
		fmt.Fprintf(&b, "\t%s\n", k.name)
	}
	b.WriteString(")\n\n")
	const buffers = "dsts *[]byte, nd int, srcs *[]byte, ns, from, to int"
	ofKernels := func(named, arguments string) (cases string) {
		for _, k := range kernels {
			cases += fmt.Sprintf("case %s:\n%s%sSUFFIX(%s)\n", k.name, k.name, named, arguments)
		}
		return cases
	}
	ofTypes := func(verb, named, arguments string) (cases string) {
		for _, f := range trees {
			cases += fmt.Sprintf("case %s:\n%s%s%sSUFFIX(%s)\n", f.name, verb, f.name, named, arguments)
		}
		return cases
	}
	ofFormats := func(formats []floatFormat, verb, named, arguments string) (cases string) {
		for _, f := range formats {
			factor := "float32(factor)"
			if f.double {
				factor = "factor"
			}
			cases += fmt.Sprintf("case %s:\n%s%s%sSUFFIX(%s, %s)\n", f.name, verb, f.name, named, arguments, factor)
		}
		return cases
	}
	for _, f := range []struct{ comment, signature, over, cases string }{
		{"call runs a kernel.",
			"call(k kernel, wide bool, " + buffers + ", nt bool)", "k",
			ofKernels("", "dsts, nd, srcs, ns, from, to, nt")},
		{"callLogged runs a kernel that keeps a log.",
			"callLogged(k kernel, wide bool, " + buffers + ", log *byte, start int)", "k",
			ofKernels("Logged", "dsts, nd, srcs, ns, from, to, log, start")},
		{"callMean runs the averaging kernel of a floating-point type, which keeps a log.",
			"callMean(t Type, wide bool, " + buffers + ", log *byte, start int, factor float64)", "t",
			ofFormats(formats, "mean", "Logged", "dsts, nd, srcs, ns, from, to, log, start")},
		{"callTree runs the summing kernel of a floating-point type that takes up to treeWidth sources as a tree.",
			"callTree(t Type, wide bool, " + buffers + ", nt bool)", "t",
			ofTypes("tree", "", "dsts, nd, srcs, ns, from, to, nt")},
		{"callTreeLogged is callTree with a log.",
			"callTreeLogged(t Type, wide bool, " + buffers + ", log *byte, start int)", "t",
			ofTypes("tree", "Logged", "dsts, nd, srcs, ns, from, to, log, start")},
		{"callTreeMean is callMean for a tree.",
			"callTreeMean(t Type, wide bool, " + buffers + ", log *byte, start int, factor float64)", "t",
			ofFormats(trees, "treeMean", "Logged", "dsts, nd, srcs, ns, from, to, log, start")},
		{"callScale runs the scaling kernel of a floating-point type.",
			"callScale(t Type, wide bool, dst, src *byte, from, to int, factor float64)", "t",
			ofFormats(formats, "scale", "", "dst, src, from, to")},
	} {
		fmt.Fprintf(&b, "// %s\nfunc %s {\nif wide {\nswitch %s {\n%s}\nreturn\n}\nswitch %s {\n%s}\n}\n\n", f.comment, f.signature,
			f.over, strings.ReplaceAll(f.cases, "SUFFIX", "AVX512"), f.over, strings.ReplaceAll(f.cases, "SUFFIX", "AVX2"))
	}
	src, err := format.Source(b.Bytes())
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(file, src, 0o666); err != nil {
		log.Fatal(err)
	}
}
