package verify

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// canonical reports whether all outputs are sums in the canonical order.
func (w *world) canonical() bool {
	if !w.p.Op.Reduces() || w.p.Op == sched.Barrier {
		return false
	}
	chunks := int64(w.p.NumChunks(sched.In))
	want := map[int64]hash{} // by block that contributions are named by
	for r := range w.mem {
		base := w.at(sched.Rank(r), step.Chunks{Buf: sched.Out}).Index
		for c := int64(0); c < int64(w.p.NumChunks(sched.Out)); {
			label, _, ok := promise(w.p, sched.Rank(r), c, w.per)
			if !ok {
				break
			}
			got, ok := w.mem[r][sched.Out].find(base + c)
			if !ok {
				return false
			}
			b, next := int64(0), got.hi-base
			if w.turns {
				b = label * w.n / chunks
				next = c + 1
			}
			how, known := want[b]
			if !known {
				if int64(len(want)+1)*w.n > maxTrees {
					return false
				}
				how = treeOf(0, w.n, b, w.n)
				want[b] = how
			}
			if got.how != how {
				return false
			}
			c = next
		}
	}
	return true
}

// maxTrees is how many contributions are looked at to name canonical sums.
const maxTrees = 1 << 24

// treeOf is the canonical sum of ranks [lo, hi), relative to a block.
func treeOf(lo, hi, block, n int64) hash {
	if hi-lo == 1 {
		return leaf(lo, block, n)
	}
	half := int64(1)
	for 2*half < hi-lo {
		half *= 2
	}
	return sum(treeOf(lo, lo+half, block, n), treeOf(lo+half, hi, block, n))
}
