package soft

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/gpu/ptx"
	"github.com/weft-fabric/weft/run/reduce"
)

// edges are bytes of which numbers are made that are hard to round: zeros, subnormal numbers, infinities, NaNs.
var edges = []byte{0x00, 0x01, 0x7f, 0x80, 0x81, 0xff, 0x7e, 0x7c, 0xfc, 0x7b, 0x78, 0x08, 0x07, 0x38, 0x3c, 0xbf}

// input fills a buffer, half with edges, half with anything.
func input(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if b[i] = byte(rnd.Uint32()); rnd.IntN(2) == 0 {
			b[i] = edges[rnd.IntN(len(edges))]
		}
	}
	return b
}

// want is what package reduce says.
func want(t reduce.Type, op reduce.Op, srcs [][]byte, order *reduce.Order, factor float64) []byte {
	out := make([]byte, len(srcs[0]))
	if op == reduce.PreMulSum {
		reduce.ScaleTo(t, out, srcs[0], factor)
		return out
	}
	reduce.ApplyAll(t, op, [][]byte{out}, srcs, order)
	reduce.Finish(t, op, out, len(srcs))
	return out
}

// Every kernel gives the bits of package reduce, whatever the number of sources, the length and the alignment, and writes
// nothing else. The text is interpreted; docs/how-to/gpu.md says where it ran on a GPU.
func TestKernelsAreReduce(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 11))
	for _, sm := range []int{70, 90} {
		for _, typ := range reduce.Types() {
			for _, op := range reduce.Ops() {
				if reduce.Check(typ, op) != nil {
					continue
				}
				t.Run(fmt.Sprintf("sm_%d/%s/%s", sm, typ, op), func(t *testing.T) {
					d := New(gpu.Plain)
					d.sm = sm
					defer d.Close()
					for _, elements := range []int{1, 7, 333, 16 * 40} {
						for _, n := range []int{2, 3, 5, 8} {
							try(t, d, rnd, typ, op, elements, n)
						}
					}
				})
			}
		}
	}
}

// try runs one reduction, with addresses that lie alike or differently, in place or not.
func try(t *testing.T, d *Device, rnd *rand.Rand, typ reduce.Type, op reduce.Op, elements, n int) {
	size := typ.Size()
	if op == reduce.PreMulSum {
		n = 1
	}
	r := &gpu.Reduction{Type: typ, Op: op, Bytes: elements * size, Factor: 3}
	if op == reduce.Avg {
		r.Factor = float64(n)
	}
	if n > 3 && rnd.IntN(3) > 0 {
		r.Order = reduce.Tree(n)
	}
	shift := rnd.IntN(16) / size * size
	alike := rnd.IntN(3) > 0
	var srcs [][]byte
	var bases []gpu.Ptr
	get := func() gpu.Ptr {
		p, err := d.Alloc(r.Bytes + 48)
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, p)
		if !alike {
			shift = rnd.IntN(16) / size * size
		}
		return p + 16 + gpu.Ptr(shift)
	}
	for range n {
		p, b := get(), input(rnd, r.Bytes)
		at, err := d.Bytes(p, r.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		copy(at, b)
		srcs, r.Srcs = append(srcs, b), append(r.Srcs, p)
	}
	r.Dsts = []gpu.Ptr{get(), get()}
	if rnd.IntN(2) == 0 {
		r.Dsts[1] = r.Srcs[n-1]
	}
	before := map[gpu.Ptr][]byte{}
	for _, p := range bases {
		b, _ := d.Bytes(p, r.Bytes+48)
		before[p] = bytes.Clone(b)
	}
	if err := d.reduce(r); err != nil {
		t.Fatal(err)
	}
	expected := want(typ, op, srcs, r.Order, 3)
	for _, p := range r.Dsts {
		got, _ := d.Bytes(p, r.Bytes)
		for i := 0; i < len(got); i += size {
			if !bytes.Equal(got[i:i+size], expected[i:i+size]) {
				var from [][]byte
				for _, s := range srcs {
					from = append(from, s[i:i+size])
				}
				t.Fatalf("%d elements of %d sources, element %d: %x, want %x, from %x", elements, n, i/size, got[i:i+size], expected[i:i+size], from)
			}
		}
	}
	for _, p := range bases {
		b, _ := d.Bytes(p, r.Bytes+48)
		for i := range b {
			at := p + gpu.Ptr(i)
			written := false
			for _, q := range r.Dsts {
				written = written || at >= q && at < q+gpu.Ptr(r.Bytes)
			}
			if !written && b[i] != before[p][i] {
				t.Fatalf("byte %d of a buffer was written", i)
			}
		}
		if err := d.Free(p); err != nil {
			t.Fatal(err)
		}
	}
}

// All 2^16 pairs of 8-bit floats, and every 16-bit float beside a few others, under every operation.
func TestEveryPattern(t *testing.T) {
	for _, typ := range []reduce.Type{reduce.Float8E4M3, reduce.Float8E5M2, reduce.Float16, reduce.BFloat16} {
		for _, op := range []reduce.Op{reduce.Sum, reduce.Prod, reduce.Min, reduce.Max, reduce.Avg} {
			t.Run(fmt.Sprintf("%s/%s", typ, op), func(t *testing.T) {
				var a, b []byte
				for x := range 1 << 16 {
					if typ.Size() == 1 {
						a, b = append(a, byte(x)), append(b, byte(x>>8))
						continue
					}
					other := [...]uint16{0x0000, 0x8000, 0x3c01, 0x0001, 0x7bff, 0xfc00, 0x7e01, 0x3f80, 0x4049, 0x8003}[x%10]
					a, b = append(a, byte(x), byte(x>>8)), append(b, byte(other), byte(other>>8))
				}
				d := New(gpu.Plain)
				defer d.Close()
				r := &gpu.Reduction{Type: typ, Op: op, Bytes: len(a), Factor: 2}
				for _, s := range [][]byte{a, b, a} {
					p, err := d.Alloc(len(a))
					if err != nil {
						t.Fatal(err)
					}
					at, _ := d.Bytes(p, len(a))
					copy(at, s)
					r.Srcs = append(r.Srcs, p)
				}
				r.Srcs, r.Dsts = r.Srcs[:2], r.Srcs[2:]
				if err := d.reduce(r); err != nil {
					t.Fatal(err)
				}
				got, _ := d.Bytes(r.Dsts[0], len(a))
				expected := want(typ, op, [][]byte{a, b}, nil, 0)
				for i := 0; i < len(got); i += typ.Size() {
					if n := typ.Size(); !bytes.Equal(got[i:i+n], expected[i:i+n]) {
						t.Fatalf("%x and %x: %x, want %x", a[i:i+n], b[i:i+n], got[i:i+n], expected[i:i+n])
					}
				}
			})
		}
	}
}

// A kernel that leaves its memory is found.
func TestStrayAddressesAreFound(t *testing.T) {
	d := New(gpu.Plain)
	defer d.Close()
	p, err := d.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	r := &gpu.Reduction{Type: reduce.Float32, Op: reduce.Sum, Srcs: []gpu.Ptr{p, p}, Dsts: []gpu.Ptr{p}, Bytes: 128}
	if err := d.reduce(r); err == nil {
		t.Error("a kernel read 64 bytes behind its buffer, and nobody noticed")
	}
	if err := d.Free(p); err != nil {
		t.Error(err)
	}
	if err := d.Free(p); err == nil {
		t.Error("memory was given back twice, and nobody noticed")
	}
}

// Pieces of any length and alignment, inside the GPU and from and to memory of the host, are copied; nothing beside them is written.
func TestPieces(t *testing.T) {
	const room = 1 << 16
	d, rnd := New(gpu.Plain), rand.New(rand.NewPCG(5, 6))
	defer d.Close()
	a, err := d.Alloc(room)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Alloc(room)
	if err != nil {
		t.Fatal(err)
	}
	host := make([]byte, room)
	seen, err := d.Seen(host)
	if err != nil {
		t.Fatal(err)
	}
	inA, _ := d.Bytes(a, room)
	inB, _ := d.Bytes(b, room)
	q := d.UserQueue()
	defer q.Close()
	for turn, x := range []struct {
		dst, src gpu.Ptr
		to, from []byte
	}{{a, b, inA, inB}, {a, seen, inA, host}, {seen, b, host, inB}} {
		for round := range 20 {
			copy(x.to, input(rnd, room))
			copy(x.from, input(rnd, room))
			want := bytes.Clone(x.to)
			var list []gpu.Piece
			for at := 0; ; {
				n, gap, from := rnd.IntN(2000), rnd.IntN(40), rnd.IntN(room-2000)
				if round%2 == 0 { // whole vectors
					at, n, from = at&^15, n&^15, from&^15
				}
				if at+n > room {
					break
				}
				copy(want[at:][:n], x.from[from:])
				list = append(list, gpu.Piece{Dst: x.dst + gpu.Ptr(at), Src: x.src + gpu.Ptr(from), Bytes: uint64(n)})
				at += n + gap
			}
			if err := q.Pieces(list); err != nil {
				t.Fatal(err)
			}
			mark, err := q.Mark()
			for done := false; !done && err == nil; {
				done, err = q.Reached(mark)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(x.to, want) {
				t.Fatalf("direction %d, round %d: %d pieces came out wrong", turn, round, len(list))
			}
		}
	}
}

// What the kernels are interpreted from is one text a kernel, and all compile here.
func TestEveryKernelIsRead(t *testing.T) {
	for _, sm := range []int{70, 80} {
		for _, typ := range reduce.Types() {
			for _, op := range reduce.Ops() {
				if reduce.Check(typ, op) != nil {
					continue
				}
				for _, form := range []ptx.Form{ptx.InTurn, ptx.AnyOrder, ptx.FormOf(reduce.Float32, reduce.Sum, reduce.Tree(5))} {
					text, err := ptx.Kernel(typ, op, form, sm)
					if err != nil {
						t.Fatal(err)
					}
					if _, err := compile(text); err != nil {
						t.Errorf("%s of %s: %v", op, typ, err)
					}
				}
			}
		}
	}
}
