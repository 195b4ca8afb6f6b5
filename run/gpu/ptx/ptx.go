// Package ptx generates kernels that reduce GPU memory, as PTX, the assembly language that NVIDIA's driver compiles
// for the GPU at hand. There is one kernel per element type and operation of package reduce, which defines its results
// to the bit:
//
//	Sum ... BXor   dsts = ((s0 op s1) op s2) op ...   every source read once, every destination written once; or in another order
//	Avg            the same sum, divided by the number of sources
//	PreMulSum      dsts = s0 * factor                 what the inputs of such a sum are made of
//
// A kernel takes up to Most sources and destinations of any alignment. If all of them are equal modulo 16 bytes,
// all but the ends are moved 16 bytes at a time. A destination may be one of the sources.
package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
)

// Most is how many sources and how many destinations a kernel takes.
const Most = 64

// Name is the name of the one kernel of a text.
const Name = "weft"

// Params are the parameters of a kernel, in their order and with their sizes in bytes:
//
//	srcs, dsts  addresses, Most of each
//	nsrc, ndst  how many of them count
//	head        elements before the first multiple of 16 bytes
//	body        vectors of 16 bytes after them; 0 if sources and destinations lie differently
//	count       elements in all
//	factor      of Avg and PreMulSum: FactorOf's
//	merges      of kernels in an order, by source: how many results are combined once it is there (reduce.NewOrder)
var Params = []int{8 * Most, 8 * Most, 4, 4, 8, 8, 8, 8, Most}

// Pending is the name of a thread's own memory for partial results, and PendingBytes its length.
const (
	Pending      = "pending"
	PendingBytes = gpu.MostPending * 16 * Unroll
)

// Unroll is how many vectors a thread moves at most before it looks for more.
const Unroll = 4

// words is an operation on one 32-bit or 64-bit word of elements.
type words struct {
	*writer
	t    reduce.Type
	sm   int
	form Form
}

// writer collects a text and hands out registers.
type writer struct {
	b                strings.Builder
	n32, n64, n16    int
	predicates       int
	factor, factor64 string // registers, in the form in which elements are multiplied or divided
}

func (w *writer) line(format string, args ...any) { fmt.Fprintf(&w.b, "\t"+format+";\n", args...) }
func (w *writer) label(name string)               { fmt.Fprintf(&w.b, "%s:\n", name) }

func (w *writer) r32() string { w.n32++; return fmt.Sprintf("%%r%d", w.n32-1) }
func (w *writer) r64() string { w.n64++; return fmt.Sprintf("%%d%d", w.n64-1) }
func (w *writer) r16() string { w.n16++; return fmt.Sprintf("%%h%d", w.n16-1) }
func (w *writer) pred() string {
	w.predicates++
	return fmt.Sprintf("%%p%d", w.predicates-1)
}

// op32 emits an instruction with a new 32-bit result.
func (w *writer) op32(instruction string, args ...string) string {
	r := w.r32()
	w.line("%s %s, %s", instruction, r, strings.Join(args, ", "))
	return r
}

// op64 emits an instruction with a new 64-bit result.
func (w *writer) op64(instruction string, args ...string) string {
	r := w.r64()
	w.line("%s %s, %s", instruction, r, strings.Join(args, ", "))
	return r
}

// test emits a comparison.
func (w *writer) test(instruction string, args ...string) string {
	p := w.pred()
	w.line("%s %s, %s", instruction, p, strings.Join(args, ", "))
	return p
}

// Form says how a kernel combines its sources. Kernels of one type, operation and form are equal.
type Form string

const (
	InTurn   Form = ""    // one source after the other, any number of them
	AnyOrder Form = "any" // as its parameter merges says; partial results wait in the thread's own memory
)

// straight is how many sources a kernel takes that has their order built in: partial results then wait in registers. The loop of
// AnyOrder takes 1.27 times the memory's limit with 4 sources on an H200, this 1.10; with 8 it is 1.30 and 1.09.
const straight = 8

// FormOf is the form that sums of a type in an order need.
func FormOf(t reduce.Type, op reduce.Op, order *reduce.Order) Form {
	switch {
	case order == nil || !reduce.Ordered(t, op):
		return InTurn
	case len(order.Merges(0)) > straight:
		return AnyOrder
	default:
		return Form(order.Merges(0))
	}
}

// merges is the order that is built into a kernel, or nil.
func (f Form) merges() []byte {
	if f == InTurn || f == AnyOrder {
		return nil
	}
	return []byte(f)
}

// Kernel is the text of the kernel for elements of a type and an operation, for GPUs of a compute capability (70 for 7.0)
// and above. reduce.Check says which there are.
func Kernel(t reduce.Type, op reduce.Op, form Form, sm int) (string, error) {
	version, target := "7.0", 70
	if sm < 70 {
		return "", fmt.Errorf("a GPU of compute capability %d.%d: want 7.0 or above", sm/10, sm%10)
	}
	if sm >= 80 {
		target = 80
	}
	k := &words{writer: &writer{}, t: t, sm: target, form: form}
	var text strings.Builder
	if form == Pieces {
		k.pieces()
		fmt.Fprintf(&text, "// copies of pieces\n.version %s\n.target sm_%d\n.address_size 64\n\n", version, target)
		fmt.Fprintf(&text, ".visible .entry %s(\n\t.param .u64 table,\n\t.param .u32 pieces", Name)
	} else {
		if err := reduce.Check(t, op); err != nil {
			return "", err
		}
		k.body(op)
		fmt.Fprintf(&text, "// %s of %s\n.version %s\n.target sm_%d\n.address_size 64\n\n", op, t, version, target)
		fmt.Fprintf(&text, ".visible .entry %s(\n\t.param .align 8 .b8 srcs[%d],\n\t.param .align 8 .b8 dsts[%d],\n", Name, Params[0], Params[1])
		text.WriteString("\t.param .u32 nsrc,\n\t.param .u32 ndst,\n\t.param .u64 head,\n\t.param .u64 body,\n\t.param .u64 count,\n")
		text.WriteString("\t.param .u64 factor")
	}
	if form == AnyOrder {
		fmt.Fprintf(&text, ",\n\t.param .align 8 .b8 merges[%d]\n)\n{\n\t.local .align 16 .b8 %s[%d];\n", Most, Pending, PendingBytes)
	} else {
		text.WriteString("\n)\n{\n")
	}
	for _, bank := range []struct {
		typ, name string
		n         int
	}{{"pred", "p", k.predicates}, {"b16", "h", k.n16}, {"b32", "r", k.n32}, {"b64", "d", k.n64}} {
		if bank.n > 0 {
			fmt.Fprintf(&text, "\t.reg .%s %%%s<%d>;\n", bank.typ, bank.name, bank.n)
		}
	}
	text.WriteString("\n" + k.b.String() + "}\n")
	return text.String(), nil
}

// body emits the three loops of a kernel: four vectors, one vector, one element at a time.
func (k *words) body(op reduce.Op) {
	size := k.t.Size()
	per := 16 / size
	block, threads, lane, blocks := k.op32("mov.u32", "%ctaid.x"), k.op32("mov.u32", "%ntid.x"), k.op32("mov.u32", "%tid.x"),
		k.op32("mov.u32", "%nctaid.x")
	first := k.op64("mul.wide.u32", block, threads)
	own := k.op64("cvt.u64.u32", lane)
	k.line("add.u64 %s, %s, %s", first, first, own)
	all := k.op64("mul.wide.u32", blocks, threads)
	nsrc, ndst := k.op32("ld.param.u32", "[nsrc]"), k.op32("ld.param.u32", "[ndst]")
	head, body, count := k.op64("ld.param.u64", "[head]"), k.op64("ld.param.u64", "[body]"), k.op64("ld.param.u64", "[count]")
	if op == reduce.Avg || op == reduce.PreMulSum {
		k.factor64 = k.op64("ld.param.u64", "[factor]")
		k.factor = k.op32("cvt.u32.u64", k.factor64)
	}
	srcs, dsts := k.op64("mov.b64", "srcs"), k.op64("mov.b64", "dsts")
	headBytes := k.op64("mul.lo.u64", head, fmt.Sprint(size))
	i, at := k.r64(), k.r64()
	k.line("mov.u64 %s, %s", i, first)
	stride := k.op64("shl.b64", all, "4") // bytes between the vectors of a thread
	unroll := unrollOf(k.t, k.form)
	others := k.op64("mul.lo.u64", all, fmt.Sprint(unroll-1))
	step := k.op64("mul.lo.u64", all, fmt.Sprint(unroll))

	vectors := func(name string, n int, advance string) {
		k.label(name)
		last := i
		if n > 1 {
			last = k.op64("add.u64", i, others)
		}
		done := k.test("setp.ge.u64", last, body)
		k.line("@%s bra %s_END", done, name)
		k.line("shl.b64 %s, %s, 4", at, i)
		k.line("add.u64 %s, %s, %s", at, at, headBytes)
		k.all(op, name, nsrc, ndst, srcs, dsts, at, stride, n, 0)
		k.line("add.u64 %s, %s, %s", i, i, advance)
		k.line("bra %s", name)
		k.label(name + "_END")
	}
	if unroll > 1 {
		vectors("SEVERAL", unroll, step)
	}
	vectors("ONE", 1, all)

	// What is left: elements before the first vector and after the last.
	moved := k.op64("mul.lo.u64", body, fmt.Sprint(per))
	left := k.op64("sub.u64", count, moved)
	k.line("mov.u64 %s, %s", i, first)
	k.label("REST")
	done := k.test("setp.ge.u64", i, left)
	k.line("@%s bra DONE", done)
	behind := k.test("setp.ge.u64", i, head)
	element := k.op64("add.u64", i, moved)
	k.line("selp.b64 %s, %s, %s, %s", element, element, i, behind)
	k.line("mul.lo.u64 %s, %s, %d", at, element, size)
	k.all(op, "REST", nsrc, ndst, srcs, dsts, at, "", 1, size)
	k.line("add.u64 %s, %s, %s", i, i, all)
	k.line("bra REST")
	k.label("DONE")
	k.line("ret")
}

// all emits the reduction of n vectors, or of one element of single bytes, that lie at a distance from the addresses.
func (k *words) all(op reduce.Op, name, nsrc, ndst, srcs, dsts, at, stride string, n, single int) {
	acc := k.registers(n, single)
	address := k.op64("ld.param.u64", "["+srcs+"]")
	k.move("ld", address, at, stride, acc, single)
	switch {
	case op == reduce.PreMulSum:
	case k.form.merges() != nil:
		k.straight(op, at, stride, acc, single)
	default:
		s, table := k.r32(), k.r64()
		k.line("mov.u32 %s, 1", s)
		k.line("mov.u64 %s, %s", table, srcs)
		var merges, top string
		if k.form == AnyOrder {
			merges, top = k.op64("mov.b64", "merges"), k.op64("mov.b64", Pending)
		}
		k.label(name + "_SRC")
		done := k.test("setp.ge.u32", s, nsrc)
		k.line("@%s bra %s_SUM", done, name)
		k.line("add.u64 %s, %s, 8", table, table)
		k.line("ld.param.u64 %s, [%s]", address, table)
		next := k.registers(n, single)
		k.move("ld", address, at, stride, next, single)
		combine := func() { k.each(op, acc, next) }
		if k.form == AnyOrder {
			k.inOrder(name, merges, top, acc, next, combine)
		} else {
			combine()
		}
		k.line("add.u32 %s, %s, 1", s, s)
		k.line("bra %s_SRC", name)
		k.label(name + "_SUM")
	}
	for v := range acc {
		for w := range acc[v] {
			k.finish(op, acc[v][w])
		}
	}
	d, table := k.r32(), k.r64()
	k.line("mov.u32 %s, 0", d)
	k.line("mov.u64 %s, %s", table, dsts)
	k.label(name + "_DST")
	done := k.test("setp.ge.u32", d, ndst)
	k.line("@%s bra %s_STORED", done, name)
	k.line("ld.param.u64 %s, [%s]", address, table)
	k.move("st", address, at, stride, acc, single)
	k.line("add.u64 %s, %s, 8", table, table)
	k.line("add.u32 %s, %s, 1", d, d)
	k.line("bra %s_DST", name)
	k.label(name + "_STORED")
}

// each emits the combination of vectors with others, into the first.
func (k *words) each(op reduce.Op, to, with [][]string) {
	for v := range to {
		for w := range to[v] {
			k.combine(op, to[v][w], with[v][w])
		}
	}
}

// straight emits the reduction of as many sources as the kernel's order has. The first is loaded already. What is combined last is
// the first's registers, as it is the leftmost operand.
func (k *words) straight(op reduce.Op, at, stride string, first [][]string, single int) {
	waiting := [][][]string{first}
	for s, merges := range k.form.merges() {
		if s > 0 {
			next := k.registers(len(first), single)
			k.move("ld", k.op64("ld.param.u64", fmt.Sprintf("[srcs+%d]", 8*s)), at, stride, next, single)
			waiting = append(waiting, next)
		}
		for range merges {
			last := len(waiting) - 1
			k.each(op, waiting[last-1], waiting[last])
			waiting = waiting[:last]
		}
	}
}

// inOrder emits what is to be done with the next source: as many results are combined as the order says. One that has to wait goes
// to the thread's own memory.
func (k *words) inOrder(name, merges, top string, acc, next [][]string, combine func()) {
	k.line("add.u64 %s, %s, 1", merges, merges)
	left := k.op32("ld.param.u8", "["+merges+"]")
	some := k.test("setp.gt.u32", left, "0")
	k.line("@%s bra %s_MERGE", some, name)
	k.pending("st", top, acc)
	k.line("add.u64 %s, %s, %d", top, top, 16*len(acc))
	for v := range acc {
		for w := range acc[v] {
			k.line("mov.b%d %s, %s", k.width(), acc[v][w], next[v][w])
		}
	}
	k.line("bra %s_NEXT", name)
	k.label(name + "_MERGE")
	combine()
	k.line("sub.u32 %s, %s, 1", left, left)
	last := k.test("setp.eq.u32", left, "0")
	k.line("@%s bra %s_NEXT", last, name)
	k.line("sub.u64 %s, %s, %d", top, top, 16*len(acc))
	k.pending("ld", top, next)
	k.line("bra %s_MERGE", name)
	k.label(name + "_NEXT")
}

// pending loads or stores a partial result.
func (k *words) pending(instruction, top string, regs [][]string) {
	p := top
	for i, v := range regs {
		if i > 0 {
			p = k.op64("add.u64", top, fmt.Sprint(16*i))
		}
		what, list := fmt.Sprintf("v%d.b%d", len(v), k.width()), "{"+strings.Join(v, ", ")+"}"
		if len(v) == 1 {
			what, list = fmt.Sprintf("b%d", k.width()), v[0]
		}
		if instruction == "ld" {
			k.line("ld.local.%s %s, [%s]", what, list, p)
		} else {
			k.line("st.local.%s [%s], %s", what, p, list)
		}
	}
}

// registers are those for n vectors of 16 bytes, or for one element.
func (k *words) registers(n, single int) [][]string {
	list := make([][]string, n)
	for i := range list {
		per := 4
		if k.t.Size() == 8 {
			per = 2
		}
		if single > 0 {
			per = 1
		}
		for range per {
			if k.t.Size() == 8 {
				list[i] = append(list[i], k.r64())
			} else {
				list[i] = append(list[i], k.r32())
			}
		}
	}
	return list
}

// move loads or stores vectors, or one element of single bytes.
func (k *words) move(instruction, address, at, stride string, regs [][]string, single int) {
	p := k.op64("add.u64", address, at)
	for i, v := range regs {
		if i > 0 {
			p = k.op64("add.u64", p, stride)
		}
		what, list := "v4.b32", "{"+strings.Join(v, ", ")+"}"
		if k.t.Size() == 8 {
			what = "v2.b64"
		}
		if single > 0 {
			what, list = map[int]string{1: "u8", 2: "u16", 4: "b32", 8: "b64"}[single], v[0]
			if single == 2 { // 16-bit loads have 16-bit registers
				h := k.r16()
				if instruction == "ld" {
					k.line("ld.global.u16 %s, [%s]", h, p)
					k.line("cvt.u32.u16 %s, %s", list, h)
				} else {
					k.line("cvt.u16.u32 %s, %s", h, list)
					k.line("st.global.u16 [%s], %s", p, h)
				}
				continue
			}
		}
		if instruction == "ld" {
			k.line("ld.global.%s %s, [%s]", what, list, p)
		} else {
			k.line("st.global.%s [%s], %s", what, p, list)
		}
	}
}

// Arguments are the parameters of a kernel for a reduction, one behind the other.
func Arguments(r *gpu.Reduction) []byte {
	total := 0
	for _, n := range Params {
		total += n
	}
	form := FormOf(r.Type, r.Op, r.Order)
	if form != AnyOrder {
		total -= Most
	}
	b := make([]byte, total)
	le := binary.LittleEndian
	for i, list := range [2][]gpu.Ptr{r.Srcs, r.Dsts} {
		for j, p := range list {
			le.PutUint64(b[8*(Most*i+j):], uint64(p))
		}
	}
	head, body := r.Aligned()
	at := b[16*Most:]
	le.PutUint32(at, uint32(len(r.Srcs)))
	le.PutUint32(at[4:], uint32(len(r.Dsts)))
	le.PutUint64(at[8:], head)
	le.PutUint64(at[16:], body)
	le.PutUint64(at[24:], uint64(r.Bytes/r.Type.Size()))
	if r.Op == reduce.Avg || r.Op == reduce.PreMulSum {
		le.PutUint64(at[32:], FactorOf(r.Type, r.Op, r.Factor))
	}
	if form == AnyOrder {
		copy(at[40:], r.Order.Merges(len(r.Srcs)))
	}
	return b
}

// Threads is how many threads a block of a kernel has.
const Threads = 256

// Blocks is how many blocks a reduction is worth on a GPU, by its number of multiprocessors. Those that move four vectors at a time have
// one for every four: an H200 adds so at 4.2 TB/s, and at 4.0 if fewer blocks take turns.
func Blocks(r *gpu.Reduction, units int) int {
	work, most := uint64(r.Bytes/r.Type.Size()), uint64(units)*16
	if _, body := r.Aligned(); body > 0 {
		work = body
		if n := uint64(unrollOf(r.Type, FormOf(r.Type, r.Op, r.Order))); n > 1 {
			work, most = (body+n-1)/n, math.MaxInt32
		}
	}
	return int(max(1, min((work+Threads-1)/Threads, most)))
}

// unrollOf is how many vectors kernels move at a time: one where conversions of 8-bit floats take longer than their memory.
func unrollOf(t reduce.Type, form Form) int {
	switch {
	case t == reduce.Float8E4M3 || t == reduce.Float8E5M2:
		return 1
	case form.merges() != nil: // 1.09 of the limit with 8 sources, where 4 vectors take 1.11 and one 1.13
		return 2
	}
	return Unroll
}
