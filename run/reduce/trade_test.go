package reduce_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/weft-fabric/weft/run/reduce"
)

// Every block is where it belongs and nothing beside it is touched, at any address
// of the buffers, in place and not.
func TestTrade(t *testing.T) {
	each(t, never, func(t *testing.T) {
		r := rand.New(rand.NewPCG(21, 22))
		const n, room = 4 * reduce.TradeUnit, 4*reduce.TradeUnit + 256
		for round := range 200 {
			var from, to [9][]byte
			at := func(k int, aligned bool) *byte {
				b := make([]byte, room)
				fill(r, reduce.Uint8, b)
				off := r.IntN(100)
				if aligned {
					off = int(-uintptr(unsafe.Pointer(&b[0])) % 64)
				}
				from[k], to[k] = bytes.Clone(b), b
				return &b[off]
			}
			x := reduce.Trade{In: at(0, false), Slot: at(1, false), Own: at(3, false), Sum: at(4, false), Other: at(5, false), Out: at(7, false),
				Back: at(8, false)}
			kept := round%2 == 0
			if kept {
				x.Kept, x.Saved = at(2, true), at(6, true)
			}
			if round%3 == 0 {
				x.Sum = x.Own
			}
			typ, op, ownFirst := reduce.Types()[round%len(reduce.Types())], reduce.Sum, round%5 < 2
			if round%4 == 3 {
				op = reduce.Max
			}
			x.Do(typ, op, ownFirst, n)
			off := func(k int, p *byte) int { return int(uintptr(unsafe.Pointer(p)) - uintptr(unsafe.Pointer(&to[k][0]))) }
			move := func(d int, dp *byte, s int, sp *byte) {
				copy(from[d][off(d, dp):][:n], from[s][off(s, sp):][:n])
			}
			own, other := bytes.Clone(from[3][off(3, x.Own):][:n]), bytes.Clone(from[5][off(5, x.Other):][:n])
			if !ownFirst {
				own, other = other, own
			}
			sum := make([]byte, n)
			reduce.Portable(typ, op, [][]byte{sum}, [][]byte{own, other})
			move(1, x.Slot, 0, x.In)
			move(7, x.Out, 8, x.Back)
			if kept {
				move(2, x.Kept, 0, x.In)
				move(6, x.Saved, 3, x.Own)
			}
			into := 4
			if x.Sum == x.Own {
				into = 3
			}
			copy(from[into][off(into, x.Sum):], sum)
			copy(from[5][off(5, x.Other):], sum)
			for k := range to {
				if !bytes.Equal(to[k], from[k]) {
					t.Fatalf("round %d: block %d is not what it should be", round, k)
				}
			}
		}
	})
}
