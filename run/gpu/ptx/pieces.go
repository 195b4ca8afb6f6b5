package ptx

import (
	"encoding/binary"

	"github.com/weft-fabric/weft/run/gpu"
)

// Pieces is the form of the kernel that copies many pieces, of no type and operation. Each block of threads copies one after another. A
// piece whose addresses and length are multiples of 16 goes 64 bytes a thread at a time, any other byte by byte. Its parameters:
//
//	table   the address of gpu.Piece after gpu.Piece
//	pieces  how many they are
const Pieces Form = "pieces"

// PieceThreads is how many threads a block of that kernel has, and PieceParams the length of its parameters.
const (
	PieceThreads = 256
	PieceParams  = 12
)

// PieceArguments are its parameters.
func PieceArguments(table gpu.Ptr, pieces int) []byte {
	le := binary.LittleEndian
	b := le.AppendUint64(make([]byte, 0, PieceParams), uint64(table))
	return le.AppendUint32(b, uint32(pieces))
}

// pieces emits the kernel.
func (w *writer) pieces() {
	i, blocks, lane, threads := w.op32("mov.u32", "%ctaid.x"), w.op32("mov.u32", "%nctaid.x"), w.op32("mov.u32", "%tid.x"),
		w.op32("mov.u32", "%ntid.x")
	table, count := w.op64("ld.param.u64", "[table]"), w.op32("ld.param.u32", "[pieces]")
	first, each := w.op64("cvt.u64.u32", lane), w.op64("cvt.u64.u32", threads)
	vector, row := w.op64("shl.b64", first, "4"), w.op64("shl.b64", each, "4")
	rows := w.op64("shl.b64", row, "2")
	others := w.op64("sub.u64", rows, row)
	dst, src, bytes, at := w.r64(), w.r64(), w.r64(), w.r64()

	w.label("PIECE")
	w.line("@%s bra DONE", w.test("setp.ge.u32", i, count))
	entry := w.op64("mul.wide.u32", i, "24")
	w.line("add.u64 %s, %s, %s", entry, entry, table)
	w.line("ld.global.u64 %s, [%s]", dst, entry)
	for _, field := range []string{src, bytes} {
		w.line("add.u64 %s, %s, 8", entry, entry)
		w.line("ld.global.u64 %s, [%s]", field, entry)
	}
	odd := w.op64("or.b64", w.op64("or.b64", dst, src), bytes)
	odd = w.op64("and.b64", odd, "15")
	w.line("mov.u64 %s, %s", at, first)
	w.line("@%s bra BYTES", w.test("setp.gt.u32", w.op32("cvt.u32.u64", odd), "0"))
	w.line("mov.u64 %s, %s", at, vector)
	w.label("SEVERAL")
	w.line("@%s bra ONE", w.test("setp.ge.u64", w.op64("add.u64", at, others), bytes))
	w.rows(Unroll, dst, src, at, row)
	w.line("add.u64 %s, %s, %s", at, at, rows)
	w.line("bra SEVERAL")
	w.label("ONE")
	w.line("@%s bra NEXT", w.test("setp.ge.u64", at, bytes))
	w.rows(1, dst, src, at, row)
	w.line("add.u64 %s, %s, %s", at, at, row)
	w.line("bra ONE")

	w.label("BYTES")
	w.line("@%s bra NEXT", w.test("setp.ge.u64", at, bytes))
	b := w.r32()
	w.line("ld.global.u8 %s, [%s]", b, w.op64("add.u64", src, at))
	w.line("st.global.u8 [%s], %s", w.op64("add.u64", dst, at), b)
	w.line("add.u64 %s, %s, %s", at, at, each)
	w.line("bra BYTES")
	w.label("NEXT")
	w.line("add.u32 %s, %s, %s", i, i, blocks)
	w.line("bra PIECE")
	w.label("DONE")
	w.line("ret")
}

// rows emits the copy of n vectors of a thread, which lie a row apart. All are on their way before the first is stored.
func (w *writer) rows(n int, dst, src, at, row string) {
	from, to := w.op64("add.u64", src, at), w.op64("add.u64", dst, at)
	var loaded []string
	for i := range n {
		if i > 0 {
			from = w.op64("add.u64", from, row)
		}
		v := "{" + w.r32() + ", " + w.r32() + ", " + w.r32() + ", " + w.r32() + "}"
		w.line("ld.global.v4.b32 %s, [%s]", v, from)
		loaded = append(loaded, v)
	}
	for i, v := range loaded {
		if i > 0 {
			to = w.op64("add.u64", to, row)
		}
		w.line("st.global.v4.b32 [%s], %s", to, v)
	}
}
