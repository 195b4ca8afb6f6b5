package reduce

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
)

// Order is the association of a reduction of several sources: which are combined with which. It never changes their order, and as
// a op b is b op a to the bit, association is all that a result depends on. The nil Order is one source after the other.
type Order struct {
	merges []uint8
	folds
	tree *folds // the same by kernels of trees, nil if it is no tree
}

// folds is how a result is computed: the last of them gives it.
type folds struct {
	list  []fold
	room  int  // blocks of scratch
	trees bool // folds are of up to treeWidth operands, combined as a tree
}

// treeWidth is how many sources kernels of trees take.
const treeWidth = 8

// fold combines operands in one pass of a kernel.
type fold struct {
	to int   // a block of scratch; the result is that of the last fold, which has none
	of []int // sources, or ^block of scratch
}

// MostMerged is how many sources an Order may have.
const MostMerged = 1 << 12

// NewOrder is the order of a reduction in postfix form: merges[k] says how often, once source k is there, the last two results that
// are left are combined. So ((s0 s1) (s2 s3)) is 0 1 0 2, and one after the other, which gives nil, 0 1 1 1. In the end one result
// must be left.
func NewOrder(merges []uint8) (*Order, error) {
	if len(merges) > MostMerged {
		return nil, fmt.Errorf("reduce: an order of %d sources; at most %d can be", len(merges), MostMerged)
	}
	o := &Order{merges: merges}
	plain := true
	var left [][]int // results that are left, as what is to be combined one after the other
	used := map[int]bool{}
	for k, m := range merges {
		plain = plain && (int(m) == min(k, 1))
		left = append(left, []int{k})
		for range m {
			if len(left) < 2 {
				return nil, fmt.Errorf("reduce: an order that combines %d results after source %d of %d has too few of them", m, k, len(merges))
			}
			last := left[len(left)-1]
			left = left[:len(left)-1]
			x := last[0]
			if len(last) > 1 {
				x = ^o.fold(last, used)
			}
			left[len(left)-1] = append(left[len(left)-1], x)
		}
	}
	if len(left) != 1 {
		return nil, fmt.Errorf("reduce: an order of %d sources leaves %d results, not one", len(merges), len(left))
	}
	if plain {
		return nil, nil
	}
	o.list = append(o.list, fold{to: -1, of: left[0]})
	if o.room*line > deskSize {
		return nil, fmt.Errorf("reduce: an order with %d partial results at a time; at most %d can be", o.room, deskSize/line)
	}
	if slices.Equal(merges, TreeMerges(len(merges))) {
		o.tree = &folds{trees: true}
		o.tree.list = append(o.tree.list, fold{to: -1, of: o.tree.operands(0, len(merges), map[int]bool{})})
	}
	return o, nil
}

// operands are those whose tree is the tree of sources [lo, hi): sources, or folds of a power of treeWidth of them.
func (f *folds) operands(lo, hi int, used map[int]bool) []int {
	width := 1
	for width*treeWidth < hi-lo {
		width *= treeWidth
	}
	var of []int
	for ; lo < hi; lo += width {
		if to := min(lo+width, hi); to == lo+1 {
			of = append(of, lo)
		} else {
			of = append(of, ^f.fold(f.operands(lo, to, used), used))
		}
	}
	return of
}

// fold adds a fold and gives the block of scratch that it goes to: one that it reads, or a free one.
func (f *folds) fold(of []int, used map[int]bool) int {
	to := -1
	for _, x := range of {
		if x < 0 {
			delete(used, ^x)
			if to < 0 {
				to = ^x
			}
		}
	}
	if to < 0 {
		for to = 0; used[to]; {
			to++
		}
	}
	used[to] = true
	f.room = max(f.room, to+1)
	f.list = append(f.list, fold{to, of})
	return to
}

// Tree is the order of a balanced binary tree over n sources: those of the largest power of two below n, and the rest, each in this
// way. With n sources of which each is such a sum of as many, a power of two, it is the same as over all of them.
func Tree(n int) *Order {
	if n <= 3 {
		return nil
	}
	o, err := NewOrder(TreeMerges(n))
	if err != nil {
		panic(err) // more than MostMerged
	}
	return o
}

// TreeMerges is the postfix form of Tree: see NewOrder.
func TreeMerges(n int) []uint8 {
	merges := make([]uint8, n)
	for k := range merges {
		merges[k] = uint8(bits.TrailingZeros(^uint(k)))
		if k == n-1 {
			merges[k] = uint8(bits.OnesCount(uint(k)))
		}
	}
	return merges
}

// Pending is how many results an order has to keep, at most, while it combines others.
func (o *Order) Pending() int {
	if o == nil {
		return 0
	}
	left, most := 0, 0
	for k, m := range o.merges {
		if m == 0 && k > 0 {
			most = max(most, left)
		}
		left += 1 - int(m)
	}
	return most
}

// Merges is the postfix form of an order of n sources.
func (o *Order) Merges(n int) []uint8 {
	if o != nil {
		return o.merges
	}
	merges := make([]uint8, n)
	for k := 1; k < n; k++ {
		merges[k] = 1
	}
	return merges
}

// desk is where partial results lie, block by block, so that they stay in L1.
type desk struct {
	room [deskSize]byte
	srcs [][]byte
	dsts [][]byte
}

const deskSize = 16 << 10

var desks = sync.Pool{New: func() any { return new(desk) }}

// Ordered reports whether the bits of a result depend on the order. Integers wrap around, and of minima and maxima one is left.
func Ordered(t Type, op Op) bool { return t.Float() && (op.pairwise() == Sum || op == Prod) }

// each computes bytes [from, n) a block at a time. last does the last fold of a block, of the desk's sources into its destinations.
func (f *folds) each(t Type, op Op, dsts, srcs [][]byte, from, n int, last func(d *desk, from, to int)) {
	d := desks.Get().(*desk)
	size := deskSize / max(f.room, 1) &^ (line - 1)
	for to := min(n, from+size); from < n; from, to = to, min(n, to+size) {
		for i := range f.list {
			x := &f.list[i]
			d.srcs = d.srcs[:0]
			for _, k := range x.of {
				if k < 0 {
					d.srcs = append(d.srcs, d.room[^k*size:][:to-from])
				} else {
					d.srcs = append(d.srcs, srcs[k][from:to])
				}
			}
			if x.to >= 0 {
				d.dsts = append(d.dsts[:0], d.room[x.to*size:][:to-from])
				f.vectors(t, op, d.dsts, d.srcs, 0, to-from, false)
				continue
			}
			d.dsts = d.dsts[:0]
			for _, b := range dsts {
				d.dsts = append(d.dsts, b[from:to])
			}
			last(d, from, to)
		}
	}
	clear(d.srcs[:cap(d.srcs)])
	clear(d.dsts[:cap(d.dsts)])
	desks.Put(d)
}

// vectors combines bytes [from, n) of the sources of a fold.
func (f *folds) vectors(t Type, op Op, dsts, srcs [][]byte, from, n int, past bool) {
	if f.trees {
		treeVectors(t, dsts, srcs, from, n, past)
	} else {
		vectorsFrom(t, op, dsts, srcs, from, n, past)
	}
}

// of is how a reduction is done in this order.
func (o *Order) of(t Type, op Op, srcs [][]byte) *folds {
	if len(srcs) != len(o.merges) {
		panic(fmt.Errorf("reduce: %d sources in an order of %d", len(srcs), len(o.merges)))
	}
	if o.tree != nil && op == Sum && treeKernels(t) {
		return o.tree
	}
	return &o.folds
}

// apply computes the reduction of n bytes into every destination.
func (o *Order) apply(t Type, op Op, dsts, srcs [][]byte, n int) {
	f := o.of(t, op, srcs)
	from, past := 0, pastAll(t, dsts, srcs, n)
	part := func(from, n int, past bool) {
		if len(f.list) == 1 {
			f.vectors(t, op, dsts, srcs, from, n, past)
			return
		}
		f.each(t, op, dsts, srcs, from, n, func(d *desk, from, to int) { f.vectors(t, op, d.dsts, d.srcs, 0, to-from, past) })
	}
	if past {
		from = lead(dsts[0])
		part(0, from, false)
	}
	part(from, n, past)
}

// logged computes bytes [from, n) with a log.
func (o *Order) logged(t Type, op Op, dsts, srcs [][]byte, log []byte, start, from, n int) {
	f := o.of(t, op.pairwise(), srcs)
	if len(f.list) == 1 {
		f.logged(t, op, dsts, srcs, len(srcs), log, start, from, n)
		return
	}
	f.each(t, op.pairwise(), dsts, srcs, from, n, func(d *desk, from, to int) {
		f.logged(t, op, d.dsts, d.srcs, len(srcs), log, start+from, 0, to-from)
	})
}

// logged combines the sources of a fold, partial results of count sources in all.
func (f *folds) logged(t Type, op Op, dsts, srcs [][]byte, count int, log []byte, start, from, n int) {
	if f.trees {
		treeLogged(t, op, dsts, srcs, count, log, start, from, n)
	} else {
		logged(t, op, dsts, srcs, count, log, start, from, n)
	}
}

// small combines a few bytes of up to treeWidth sources as a tree: dst gets what kernels leave.
func small(t Type, dst []byte, srcs [][]byte, from int) {
	var room [treeWidth][line]byte
	n := len(dst)
	for i, s := range srcs {
		copy(room[i][:n], s[from:])
	}
	for width := 1; width < len(srcs); width *= 2 {
		for i := 0; i+width < len(srcs); i += 2 * width {
			pair(t, Sum, room[i][:n], room[i][:n], room[i+width][:n])
		}
	}
	copy(dst, room[0][:n])
}
