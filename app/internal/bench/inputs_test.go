package bench

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/reduce"
)

// Every order of reduction gives the bits that are expected, for every type,
// reduction and number of ranks.
func TestInputsAreExactInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, typ := range reduce.Types() {
		for _, op := range reduce.Ops() {
			if reduce.Check(typ, op) != nil {
				continue
			}
			for _, n := range bounded.First(2, 1, 3, 24) {
				switch typ {
				case reduce.Int8:
					anyOrder[int8](t, rng, op, n)
				case reduce.Uint8:
					anyOrder[uint8](t, rng, op, n)
				case reduce.Int16:
					anyOrder[int16](t, rng, op, n)
				case reduce.Uint16:
					anyOrder[uint16](t, rng, op, n)
				case reduce.Int32:
					anyOrder[int32](t, rng, op, n)
				case reduce.Uint32:
					anyOrder[uint32](t, rng, op, n)
				case reduce.Int64:
					anyOrder[int64](t, rng, op, n)
				case reduce.Uint64:
					anyOrder[uint64](t, rng, op, n)
				case reduce.Float16:
					anyOrder[reduce.F16](t, rng, op, n)
				case reduce.BFloat16:
					anyOrder[reduce.BF16](t, rng, op, n)
				case reduce.Float32:
					anyOrder[float32](t, rng, op, n)
				case reduce.Float64:
					anyOrder[float64](t, rng, op, n)
				case reduce.Float8E4M3:
					anyOrder[reduce.E4M3](t, rng, op, n)
				case reduce.Float8E5M2:
					anyOrder[reduce.E5M2](t, rng, op, n)
				default:
					t.Fatalf("no case for %s", typ)
				}
			}
		}
	}
}

func anyOrder[T reduce.Element](t *testing.T, rng *rand.Rand, op reduce.Op, n int) {
	t.Helper()
	typ := reduce.TypeOf[T]()
	seed := rng.Uint64()
	var parts [][]byte
	for r := range n {
		in := reduce.Bytes(contributions[T](op, n, r, seed))
		if op == reduce.PreMulSum {
			reduce.Scale(typ, in, factor)
		}
		parts = append(parts, in)
	}
	rng.Shuffle(n, func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	// Any two neighbours are reduced until one is left: a random tree.
	for len(parts) > 1 {
		i := rng.IntN(len(parts) - 1)
		reduce.Apply(typ, op, parts[i], parts[i], parts[i+1])
		parts = append(parts[:i+1], parts[i+2:]...)
	}
	reduce.Finish(typ, op, parts[0], n)
	want := reduced[T](op, n, seed)
	if !bytes.Equal(parts[0], reduce.Bytes(want)) {
		t.Errorf("%s %s of %d ranks: the order matters", typ, op, n)
	}
	distinct := map[T]bool{}
	for _, v := range want {
		distinct[v] = true
	}
	if least := 2; len(distinct) < least && !(op == reduce.Avg && n >= 8) {
		t.Errorf("%s %s of %d ranks: %d different results; a mistake could go unseen", typ, op, n, len(distinct))
	}
}

// Every element that differs is counted, and no other.
func TestWrongCountsEveryElement(t *testing.T) {
	p := reduced[float32](reduce.Sum, 3, 7)
	for _, at := range []int{0, 1, period - 1, 5 * period, 12345} {
		got := make([]float32, 3*period+17)
		tile(got, p, at)
		if n := wrong(got, p, at); n != 0 {
			t.Errorf("at %d: %d of a right result", at, n)
		}
		if n := wrong(got, p, at+1); n < int64(len(got))*9/10 {
			t.Errorf("at %d: only %d of %d elements that are shifted by one", at, n, len(got))
		}
		for _, i := range []int{0, 1, period, len(got) - 1} {
			got[i]++
		}
		if n := wrong(got, p, at); n != 4 {
			t.Errorf("at %d: %d wrong, want 4", at, n)
		}
	}
}

func TestCountsAddUp(t *testing.T) {
	for _, op := range Ops() {
		for n := 1; n <= 9; n++ {
			for _, total := range []int{0, n, 7 * n, 100 * n} {
				sum := 0
				for _, k := range op.counts(n, total) {
					if k < 0 {
						t.Errorf("%s: %d ranks, %d elements: a block of %d", op, n, total, k)
					}
					sum += k
				}
				if sum != total {
					t.Errorf("%s: %d ranks: blocks of %d elements in all, want %d", op, n, sum, total)
				}
			}
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"8", "64M", "1g", "4KiB", "3MB", "", "-1", "9999999999G", "0x10", "1e3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if n < 0 || err != nil && n != 0 {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	})
}

func FuzzParseOp(f *testing.F) {
	for _, s := range []string{"all-reduce", "all_reduce_perf", "AllToAllV", "", "reduce"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		o, err := ParseOp(s)
		if err != nil {
			return
		}
		if back, err := ParseOp(o.String()); err != nil || back != o {
			t.Errorf("%q is %s, which is %s, %v", s, o, back, err)
		}
	})
}
