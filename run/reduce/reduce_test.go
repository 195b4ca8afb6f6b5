package reduce_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

const never = 1 << 62 // no destination is stored past the caches

// combinations calls f for every type and operation that exist.
func combinations(f func(t reduce.Type, op reduce.Op)) {
	for _, t := range reduce.Types() {
		for _, op := range reduce.Ops() {
			if reduce.Check(t, op) == nil {
				f(t, op)
			}
		}
	}
}

// fill writes random bits: half of the elements anything, half of them picked from
// the ends of the exponent's range, where zeros, subnormal numbers, infinities and NaNs are.
// A large buffer repeats them after a prime number of elements, so that no place is another's at any block's distance.
func fill(r *rand.Rand, t reduce.Type, b []byte) {
	size := t.Size()
	top := uint(8)
	switch t {
	case reduce.Float64:
		top = 11
	case reduce.Float16, reduce.Float8E5M2:
		top = 5
	case reduce.Float8E4M3:
		top = 4
	}
	if !t.Float() { // any bits are a value
		size = 8
	}
	var word [8]byte
	drawn := min(len(b), 10_007*size)
	defer func() {
		for done := drawn; done < len(b); {
			done += copy(b[done:], b[:done])
		}
	}()
	for i := 0; i < drawn; i += size {
		v := r.Uint64()
		if t.Float() && v&1 == 0 {
			exponents := uint64(1)<<top - 1
			low := uint(8*size) - 1 - top
			exponent := [...]uint64{0, 0, 1, exponents, exponents, exponents - 1, exponents / 2, exponents/2 + 1}[v>>1&7]
			mantissa := [...]uint64{0, 1, 1 << (low - 1), 1<<low - 1}[v>>4&3]
			if v>>6&1 == 0 {
				mantissa = v >> 8 & (1<<low - 1)
			}
			v = v>>7&1<<(8*size-1) | exponent<<low | mantissa
		}
		binary.LittleEndian.PutUint64(word[:], v)
		copy(b[i:drawn], word[:size])
	}
}

func each(t *testing.T, past int, f func(t *testing.T)) {
	for _, p := range reduce.Paths() {
		t.Run(p, func(t *testing.T) {
			defer reduce.Use(p, past)()
			f(t)
		})
	}
}

// differ names the first element that differs.
func differ(t reduce.Type, got, want []byte) string {
	for i := 0; i < len(got); i += t.Size() {
		if g, w := got[i:i+t.Size()], want[i:i+t.Size()]; !bytes.Equal(g, w) {
			return fmt.Sprintf("element %d of %d is %x, the definition says %x", i/t.Size(), len(got)/t.Size(), g, w)
		}
	}
	return "equal"
}

// Every type and operation, elements 0 to 200, odd addresses, in place or not.
func TestEveryKernelIsTheDefinition(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		combinations(func(typ reduce.Type, op reduce.Op) {
			room := make([]byte, 3*2048)
			fill(r, typ, room)
			want := make([]byte, 1600)
			for n := range 201 {
				n *= typ.Size()
				da, db, dd := r.IntN(64), r.IntN(64), r.IntN(64)
				a, b, dst := room[da:da+n], room[2048+db:2048+db+n], room[4096+dd:4096+dd+n]
				fill(r, typ, a)
				fill(r, typ, b)
				switch r.IntN(3) {
				case 0:
					dst, dd = a, da-4096
				case 1:
					dst, dd = b, db-2048
				}
				reduce.Pair(typ, pairwise(op), want[:n], a, b)
				around := string(room)
				reduce.Apply(typ, op, dst, a, b)
				if !bytes.Equal(dst, want[:n]) {
					t.Fatalf("%v of %d bytes of %v at +%d, +%d, +%d: %s", op, n, typ, da, db, dd, differ(typ, dst, want[:n]))
				}
				// Nothing but dst has changed.
				copy(dst, around[offset(room, dst):])
				if string(room) != around {
					t.Fatalf("%v of %d bytes of %v wrote outside its destination", op, n, typ)
				}
			}
		})
	})
}

func pairwise(op reduce.Op) reduce.Op {
	if op == reduce.Avg || op == reduce.PreMulSum {
		return reduce.Sum
	}
	return op
}

// offset of a slice in the room it was cut from, by their capacities.
func offset(room, part []byte) int { return cap(room) - cap(part) }

// Large buffers: blocks, stretches of a kernel call, stores past the caches.
func TestLargeBuffers(t *testing.T) {
	const n = 1<<20 + 1<<13 // more than one stretch
	for _, past := range []int{never, 1 << 16} {
		t.Run(fmt.Sprint("past=", past < never), func(t *testing.T) {
			each(t, past, func(t *testing.T) {
				if strings.HasSuffix(t.Name(), "/portable") {
					t.Skip("the portable path is the definition at any length")
				}
				r := rand.New(rand.NewPCG(3, 4))
				var bufs [4][]byte
				for i := range bufs {
					bufs[i] = make([]byte, n+128)
				}
				fill(r, reduce.Float32, bufs[0])
				fill(r, reduce.BFloat16, bufs[1])
				combinations(func(typ reduce.Type, op reduce.Op) {
					if op != reduce.Sum && op != reduce.Max {
						return
					}
					for i, off := range [][3]int{{0, 0, 0}, {8, 16, 24}, {1, 3, 5}} {
						if !bounded.Long() && (i+int(typ)+int(op))%3 != 0 {
							continue
						}
						length := n - r.IntN(64)*8
						a, b := bufs[0][off[0]:off[0]+length], bufs[1][off[1]:off[1]+length]
						dst, want := bufs[2][off[2]:off[2]+length], bufs[3][:length]
						reduce.Pair(typ, op, want, a, b)
						reduce.Apply(typ, op, dst, a, b)
						if !bytes.Equal(dst, want) {
							t.Fatalf("%v of %d bytes of %v at %v: %s", op, length, typ, off, differ(typ, dst, want))
						}
					}
				})
			})
		})
	}
}

// All pairs of 8-bit floats; every 16-bit float with partners that are drawn.
func TestEveryBitPattern(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(5, 6))
		a, b, dst, want := make([]byte, 1<<17), make([]byte, 1<<17), make([]byte, 1<<17), make([]byte, 1<<17)
		combinations(func(typ reduce.Type, op reduce.Op) {
			if typ.Size() > 2 || op == reduce.Avg || op == reduce.PreMulSum {
				return
			}
			rounds := 4
			for i := range 1 << 16 {
				binary.LittleEndian.PutUint16(a[2*i:], uint16(i))
			}
			fill(r, typ, b)
			if typ.Size() == 1 {
				rounds = 1
				for i := range 1 << 16 {
					a[i], b[i] = byte(i), byte(i>>8)
				}
			}
			for range rounds {
				reduce.Pair(typ, op, want, a, b)
				reduce.Apply(typ, op, dst, a, b)
				if !bytes.Equal(dst, want) {
					t.Fatalf("%v of %v: %s", op, typ, differ(typ, dst, want))
				}
				fill(r, typ, b)
			}
		})
	})
}

// ApplyN and ApplyAll are chains of Apply, whichever source a destination is.
func TestManySourcesAreAChain(t *testing.T) {
	each(t, 512, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 8))
		combinations(func(typ reduce.Type, op reduce.Op) {
			for _, ns := range []int{1, 2, 3, 4, 5, 8, 17} {
				n := r.IntN(300) * typ.Size()
				srcs := make([][]byte, ns)
				for i := range srcs {
					off := r.IntN(32)
					srcs[i] = make([]byte, n+off)[off:]
					fill(r, typ, srcs[i])
				}
				want := bytes.Clone(srcs[0])
				for _, s := range srcs[1:] {
					reduce.Apply(typ, op, want, want, s)
				}
				dsts := [][]byte{make([]byte, n), make([]byte, n+1)[1:]}
				if r.IntN(2) == 0 {
					dsts[0] = srcs[r.IntN(ns)]
				}
				if r.IntN(2) == 0 {
					dsts = append(dsts, srcs[ns-1])
				}
				one := make([]byte, n)
				reduce.ApplyN(typ, op, one, srcs...)
				reduce.ApplyAll(typ, op, dsts, srcs, nil)
				for i, d := range append(dsts, one) {
					if !bytes.Equal(d, want) {
						t.Fatalf("%v of %d x %d bytes of %v into destination %d: %s", op, ns, n, typ, i, differ(typ, d, want))
					}
				}
			}
		})
	})
}

func TestScaleIsTheDefinition(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(9, 10))
		for _, typ := range reduce.Types() {
			for n := range 201 {
				off := r.IntN(32)
				src := make([]byte, n*typ.Size()+off)[off:]
				fill(r, typ, src)
				factors := []float64{1, 3, 17}
				if typ.Float() {
					factors = []float64{1.0 / 3, 0.125, -1e-30, 3e38, 0, nan, inf}
				}
				factor := factors[r.IntN(len(factors))]
				want, dst := make([]byte, len(src)), make([]byte, len(src))
				if typ.Float() {
					reduce.PortableScale(typ, want, src, factor)
				} else {
					for range int(factor) {
						reduce.Pair(typ, reduce.Sum, want, want, src)
					}
				}
				reduce.ScaleTo(typ, dst, src, factor)
				reduce.Scale(typ, src, factor)
				if !bytes.Equal(dst, want) || !bytes.Equal(src, want) {
					t.Fatalf("%d %v times %v: %s", n, typ, factor, differ(typ, dst, want))
				}
			}
		}
	})
}

func TestCopy(t *testing.T) {
	each(t, 1024, func(t *testing.T) {
		r := rand.New(rand.NewPCG(11, 12))
		room, src := make([]byte, 3<<20), make([]byte, 3<<20)
		fill(r, reduce.Uint8, src)
		for range 300 {
			n, to, from := r.IntN(4096), r.IntN(100), r.IntN(100)
			if r.IntN(50) == 0 {
				n += 2 << 20
			}
			clear(room[:n+256])
			dst := room[to : to+n]
			reduce.Copy(dst, src[from:from+n])
			if !bytes.Equal(dst, src[from:from+n]) || room[to+n] != 0 || to > 0 && room[to-1] != 0 {
				t.Fatalf("copy of %d bytes from +%d to +%d", n, from, to)
			}
		}
	})
}

func TestNothingIsAllocated(t *testing.T) {
	each(t, 1024, func(t *testing.T) {
		a, b, dst := bytes.Repeat([]byte{0xff}, 4096), make([]byte, 4096), make([]byte, 4096)
		combinations(func(typ reduce.Type, op reduce.Op) {
			if n := testing.AllocsPerRun(3, func() {
				reduce.Apply(typ, op, dst, a, b)
				reduce.ApplyN(typ, op, dst, a, b, a)
				reduce.Scale(typ, dst, 2)
				reduce.Finish(typ, op, dst, 3)
			}); n != 0 {
				t.Errorf("%v of %v allocates %v times", op, typ, n)
			}
		})
	})
}

func TestCheckNamesBoth(t *testing.T) {
	err := reduce.Check(reduce.BFloat16, reduce.BXor)
	if err == nil || !strings.Contains(err.Error(), "bxor of bfloat16") || !strings.Contains(err.Error(), "integer type of 2 bytes") {
		t.Errorf("bxor of bfloat16: %v", err)
	}
	if reduce.Check(0, reduce.Sum) == nil || reduce.Check(reduce.Int8, 0) == nil || reduce.Check(99, 99) == nil {
		t.Error("what is no type or no operation passes")
	}
	count := 0
	combinations(func(reduce.Type, reduce.Op) { count++ })
	if want := 8*9 + 6*6; count != want {
		t.Errorf("%d pairs of type and operation, want %d", count, want)
	}
}

func TestNamesGoBothWays(t *testing.T) {
	for _, typ := range reduce.Types() {
		if got, err := reduce.ParseType(typ.String()); got != typ || err != nil {
			t.Errorf("%v reads as %v, %v", typ, got, err)
		}
	}
	for _, op := range reduce.Ops() {
		if got, err := reduce.ParseOp(op.String()); got != op || err != nil {
			t.Errorf("%v reads as %v, %v", op, got, err)
		}
	}
	if _, err := reduce.ParseType("int4"); err == nil || !strings.Contains(err.Error(), `"int4"; known: int8, `) {
		t.Error(err)
	}
	if _, err := reduce.ParseOp("xor"); err == nil || !strings.Contains(err.Error(), `"xor"; known: sum, `) {
		t.Error(err)
	}
	if typ, _ := reduce.ParseType("half"); typ != reduce.Float16 {
		t.Error("nccl-tests' name for float16 is not known")
	}
}

func TestMistakesPanic(t *testing.T) {
	b := make([]byte, 16)
	for name, f := range map[string]func(){
		"lengths":         func() { reduce.Apply(reduce.Int8, reduce.Sum, b, b[:8], b) },
		"part of element": func() { reduce.Apply(reduce.Int64, reduce.Sum, b[:9], b[:9], b[:9]) },
		"no source":       func() { reduce.ApplyN(reduce.Int8, reduce.Sum, b) },
		"bits of floats":  func() { reduce.Apply(reduce.Float32, reduce.BOr, b, b, b) },
		"third of an int": func() { reduce.Scale(reduce.Int32, b, 1.0/3) },
		"factor past int": func() { reduce.Scale(reduce.Int8, b, 128) },
		"copy":            func() { reduce.Copy(b, b[:3]) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// FuzzKernels holds every path against the definition on given bytes.
func FuzzKernels(f *testing.F) {
	f.Add(uint8(11), uint8(1), uint8(3), []byte("\x00\x00\x80\x7f\x00\x00\x80\xff\x01\x00\xc0\x7f........"))
	f.Add(uint8(9), uint8(3), uint8(0), bytes.Repeat([]byte{0x7c, 0xff, 0x00}, 100))
	f.Add(uint8(13), uint8(4), uint8(1), bytes.Repeat([]byte{0x7f, 0x80, 0x01, 0x08}, 200))
	f.Fuzz(func(t *testing.T, typ, op, off uint8, data []byte) {
		ty, o := reduce.Type(typ%14+1), reduce.Op(op%9+1)
		if reduce.Check(ty, o) != nil {
			return
		}
		n := len(data) / 3 / ty.Size() * ty.Size()
		srcs := [][]byte{data[:n], data[n : 2*n], data[2*n : 3*n]}
		want := make([]byte, n)
		reduce.Portable(ty, o, [][]byte{want}, srcs)
		for _, p := range reduce.Paths() {
			restore := reduce.Use(p, 256)
			dst := make([]byte, n+int(off))[off:]
			reduce.ApplyN(ty, o, dst, srcs...)
			restore()
			if !bytes.Equal(dst, want) {
				t.Fatalf("%s: %v of %v: %s", p, o, ty, differ(ty, dst, want))
			}
		}
	})
}
