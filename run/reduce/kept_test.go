package reduce_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/run/reduce"
)

// What was overwritten is kept, the sums are Apply's, and nothing beside either is
// touched: every type, lengths around those of the kernels, any address.
func TestApplyKept(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(31, 32))
		for _, typ := range reduce.Types() {
			for round, n := range []int{0, 8, 64, 128, 136, 1024, 4096 + 192, 70_000, 1<<20 + 4096 + 8} {
				const edge = 64
				buf := func() []byte {
					b := make([]byte, n+4*edge)
					fill(r, typ, b)
					return b
				}
				dst, src, kept := buf(), buf(), buf()
				op, off, keptOff := reduce.Sum, edge+8*(round%3), edge+8*(round%2)
				if round%4 == 3 {
					op = reduce.Max
				}
				wantDst, wantKept := bytes.Clone(dst), bytes.Clone(kept)
				copy(wantKept[keptOff:], dst[off:off+n])
				reduce.Portable(typ, op, [][]byte{wantDst[off : off+n]}, [][]byte{dst[off : off+n], src[off : off+n]})
				reduce.ApplyKept(typ, op, dst[off:off+n], src[off:off+n], kept[keptOff:keptOff+n])
				if !bytes.Equal(kept, wantKept) || !bytes.Equal(dst, wantDst) {
					t.Fatalf("%s %s of %d bytes: not what it should be", typ, op, n)
				}
			}
		}
	})
}
