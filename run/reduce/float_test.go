package reduce_test

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"
	"time"
	"unsafe"

	"github.com/weft-fabric/weft/run/reduce"
)

var nan, inf = math.NaN(), math.Inf(1)

// format describes a small float by its numbers of bits, to compute values anew.
type format struct {
	mantissa, exponent uint
	codes              int
	largest            float64 // finite
	value              func(code int) float32
	round              func(f float32) int
}

var formats = map[string]format{
	"float16": {10, 5, 1 << 16, 65504, func(c int) float32 { return reduce.F16(c).Float32() },
		func(f float32) int { return int(reduce.ToF16(f)) }},
	"bfloat16": {7, 8, 1 << 16, 0x1.fep127, func(c int) float32 { return reduce.BF16(c).Float32() },
		func(f float32) int { return int(reduce.ToBF16(f)) }},
	"e4m3": {3, 4, 1 << 8, 448, func(c int) float32 { return reduce.E4M3(c).Float32() },
		func(f float32) int { return int(reduce.ToE4M3(f)) }},
	"e5m2": {2, 5, 1 << 8, 57344, func(c int) float32 { return reduce.E5M2(c).Float32() },
		func(f float32) int { return int(reduce.ToE5M2(f)) }},
}

// meaning computes a code's value from the words of the format's description.
func (f format) meaning(code int) float64 {
	sign := 1.0
	if code >= f.codes/2 {
		sign, code = -1, code-f.codes/2
	}
	e, m := code>>f.mantissa, float64(code&(1<<f.mantissa-1))
	bias := 1<<(f.exponent-1) - 1
	top := 1<<f.exponent - 1
	switch {
	case f.largest == 448 && code == 0x7f:
		return nan
	case f.largest != 448 && e == top && m == 0:
		return sign * inf
	case f.largest != 448 && e == top:
		return nan
	case e == 0:
		return sign * math.Ldexp(m, 1-bias-int(f.mantissa))
	}
	return sign * math.Ldexp(m+math.Ldexp(1, int(f.mantissa)), e-bias-int(f.mantissa))
}

func TestCodesHaveTheirValues(t *testing.T) {
	for name, f := range formats {
		for code := range f.codes {
			got, want := float64(f.value(code)), f.meaning(code)
			if got != want && (got == got || want == want) || math.Signbit(got) != math.Signbit(want) && want == want {
				t.Fatalf("%s: code %#x is %v, want %v", name, code, got, want)
			}
		}
	}
}

// Between two neighbours the nearer one is taken, in the middle the even one; just
// off the middle it is never the wrong one. Beyond the largest: infinity for 16 bits, the largest for 8.
func TestRoundingToNearestEven(t *testing.T) {
	for name, f := range formats {
		for code := 0; f.meaning(code) < f.largest; code++ {
			lo, hi := f.meaning(code), f.meaning(code+1)
			sum := new(big.Float).Add(big.NewFloat(lo), big.NewFloat(hi))
			middle64, _ := sum.Quo(sum, big.NewFloat(2)).Float64()
			middle := float32(middle64) // exact: one bit more than the format has
			even := code + code&1
			for v, want := range map[float32]int{
				float32(lo): code, float32(hi): code + 1, middle: even,
				math.Nextafter32(middle, 0):            code,
				math.Nextafter32(middle, float32(inf)): code + 1,
			} {
				if got := f.round(v); got != want {
					t.Fatalf("%s: %v (%x) becomes %#x, want %#x", name, v, math.Float32bits(v), got, want)
				}
				if got := f.round(-v); got != want+f.codes/2 {
					t.Fatalf("%s: %v becomes %#x, want %#x", name, -v, got, want+f.codes/2)
				}
			}
		}
		for _, big := range []float32{float32(f.largest) * 1.1, math.MaxFloat32, float32(inf)} {
			got, want := f.meaning(f.round(big)), f.largest
			if f.codes == 1<<16 && float64(big) > f.largest && (name == "float16" || big > math.MaxFloat32) {
				want = inf
			}
			if name == "bfloat16" {
				want = inf
			}
			if got != want {
				t.Errorf("%s: %v becomes %v, want %v", name, big, got, want)
			}
		}
	}
}

// The rules for NaNs and zeros, as the package's comment states them.
func TestNaNsAndZeros(t *testing.T) {
	const (
		quietA, quietB = 0x7fc00001, 0xffd00002
		signalling     = 0xff800003
		one, plus      = 0x3f800000, 0x7f800000
		minus          = 0xff800000
		negZero        = 0x80000000
		only           = 0xffffffff // the NaN of every result
	)
	cases := []struct {
		op         reduce.Op
		a, b, want uint32
	}{
		{reduce.Sum, quietA, quietB, only},
		{reduce.Sum, quietB, quietA, only},
		{reduce.Sum, one, quietB, only},
		{reduce.Sum, signalling, quietA, only},
		{reduce.Sum, one, signalling, only},
		{reduce.Sum, plus, minus, only},
		{reduce.Prod, plus, 0, only},
		{reduce.Prod, quietA, plus, only},
		{reduce.Min, one, quietA, only},
		{reduce.Min, quietB, one, only},
		{reduce.Max, minus, signalling, only},
		{reduce.Min, 0, negZero, negZero},
		{reduce.Min, negZero, 0, negZero},
		{reduce.Max, 0, negZero, 0},
		{reduce.Max, negZero, 0, 0},
		{reduce.Sum, negZero, negZero, negZero},
		{reduce.Sum, negZero, 0, 0},
		{reduce.Sum, 1, 1, 2}, // subnormal
		{reduce.Prod, 0x00800000, 0x3f000000, 0x00400000},
	}
	each(t, never, func(t *testing.T) {
		for _, c := range cases {
			// Enough elements that vectors and what is left over both see it.
			a, b, dst := make([]byte, 4*100), make([]byte, 4*100), make([]byte, 4*100)
			for i := range 100 {
				binary.LittleEndian.PutUint32(a[4*i:], c.a)
				binary.LittleEndian.PutUint32(b[4*i:], c.b)
			}
			reduce.Apply(reduce.Float32, c.op, dst, a, b)
			for i := range 100 {
				if got := binary.LittleEndian.Uint32(dst[4*i:]); got != c.want {
					t.Fatalf("%08x %v %08x is %08x at %d, want %08x", c.a, c.op, c.b, got, i, c.want)
				}
			}
		}
	})
}

func TestFinishAverages(t *testing.T) {
	f := []float32{3, -9}
	reduce.Finish(reduce.TypeOf[float32](), reduce.Avg, reduce.Bytes(f), 4)
	if f[0] != 0.75 || f[1] != -2.25 {
		t.Error(f)
	}
	i := []int8{7, -7, 127}
	reduce.Finish(reduce.TypeOf[int8](), reduce.Avg, reduce.Bytes(i), 300)
	if i[0] != 0 || i[1] != 0 || i[2] != 0 {
		t.Error(i)
	}
	u := []uint64{math.MaxUint64}
	reduce.Finish(reduce.TypeOf[uint64](), reduce.Avg, reduce.Bytes(u), 2)
	if u[0] != math.MaxUint64/2 {
		t.Error(u)
	}
	s := []int32{-7}
	reduce.Finish(reduce.TypeOf[int32](), reduce.Sum, reduce.Bytes(s), 2)
	reduce.Finish(reduce.TypeOf[int32](), reduce.Avg, reduce.Bytes(s), 2)
	if s[0] != -3 {
		t.Error(s)
	}
}

func TestTypesOfElements(t *testing.T) {
	sizes := map[reduce.Type]int{
		reduce.TypeOf[int8](): 1, reduce.TypeOf[uint8](): 1, reduce.TypeOf[int16](): 2, reduce.TypeOf[uint16](): 2,
		reduce.TypeOf[int32](): 4, reduce.TypeOf[uint32](): 4, reduce.TypeOf[int64](): 8, reduce.TypeOf[uint64](): 8,
		reduce.TypeOf[reduce.F16](): 2, reduce.TypeOf[reduce.BF16](): 2, reduce.TypeOf[float32](): 4, reduce.TypeOf[float64](): 8,
		reduce.TypeOf[reduce.E4M3](): 1, reduce.TypeOf[reduce.E5M2](): 1,
	}
	if len(sizes) != len(reduce.Types()) {
		t.Errorf("%d types of elements, %d types", len(sizes), len(reduce.Types()))
	}
	type seconds float32
	type rank int
	type flag uint8
	type half reduce.F16
	for _, x := range []struct{ have, want reduce.Type }{
		{reduce.TypeOf[int](), [...]reduce.Type{4: reduce.Int32, 8: reduce.Int64}[unsafe.Sizeof(int(0))]},
		{reduce.TypeOf[seconds](), reduce.Float32},
		{reduce.TypeOf[time.Duration](), reduce.Int64},
		{reduce.TypeOf[flag](), reduce.Uint8},
		{reduce.TypeOf[half](), reduce.Uint16},
	} {
		if x.have != x.want {
			t.Errorf("a type defined as %v is %v", x.want, x.have)
		}
	}
	if reduce.TypeOf[rank]() != reduce.TypeOf[int]() || reduce.TypeOf[uint]().Size() != reduce.TypeOf[int]().Size() {
		t.Error(reduce.TypeOf[rank](), reduce.TypeOf[uint]())
	}
	for typ, size := range sizes {
		if typ.Size() != size {
			t.Errorf("%v takes %d bytes, its element %d", typ, typ.Size(), size)
		}
	}
}
