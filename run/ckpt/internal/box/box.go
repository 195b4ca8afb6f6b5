// Package box is the arithmetic of shards: which elements of a tensor a shard
// holds, where they lie in the shard's own memory, and what two shards share.
//
// A Region is a box of the tensor (a split along any dimensions) or a range of
// the tensor flattened in row-major order (what ZeRO and FSDP cut). Both are
// lists of runs: stretches that are contiguous in the flattened tensor and in the
// shard's memory alike, ascending in both. All questions are answered by walking
// two such lists side by side.
//
//	tensor 4 x 6, box at (1,2) of shape 2 x 3       the same as runs of the flattened tensor
//	  . . . . . .
//	  . . # # # .                                   [ 8,11) at 0
//	  . . # # # .                                   [14,17) at 3
//	  . . . . . .
package box

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// Region says which elements of a tensor of shape Global a shard holds. With as
// many dimensions as Global it is a box: Shape from Offset on. With one dimension
// where Global has another number of them, it is a range of the flattened tensor.
type Region struct {
	Global, Offset, Shape []int
}

// Whole is the region of all elements.
func Whole(global []int) Region {
	return Region{Global: global, Offset: make([]int, len(global)), Shape: global}
}

// Range is the region of n elements of the flattened tensor from the given one on.
func Range(global []int, from, n int) Region {
	return Region{Global: global, Offset: []int{from}, Shape: []int{n}}
}

// Flat reports whether the region is a range of the flattened tensor. For a
// tensor of one dimension box and range are the same.
func (r Region) Flat() bool { return len(r.Shape) == 1 && len(r.Global) != 1 }

// maxElements bounds a tensor so that its bytes, at up to 16 an element, fit an int64.
const maxElements = math.MaxInt64 / 16

// Elements is the number of elements of a shape; an error if a length is negative
// or the number too large for any memory. A shape without dimensions has one.
func Elements(shape []int) (int, error) {
	n := 1
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative length", shape)
		}
	}
	if slices.Contains(shape, 0) {
		return 0, nil
	}
	for _, d := range shape {
		if d > maxElements/n {
			return 0, fmt.Errorf("shape %v has more than %d elements", shape, maxElements)
		}
		n *= d
	}
	return n, nil
}

// Check reports what is wrong with a region: other dimensions than the tensor's,
// or elements that lie outside it.
func (r Region) Check() error {
	total, err := Elements(r.Global)
	if err != nil {
		return err
	}
	if len(r.Offset) != len(r.Shape) {
		return fmt.Errorf("offset %v and shape %v have different numbers of dimensions", r.Offset, r.Shape)
	}
	bounds := r.Global
	if r.Flat() {
		bounds = []int{total}
	}
	if len(r.Shape) != len(bounds) {
		return fmt.Errorf("a shard of shape %v in a tensor of shape %v: want %d dimensions, or one for a range of the flattened tensor",
			r.Shape, r.Global, len(r.Global))
	}
	for d, n := range r.Shape {
		if n < 0 || r.Offset[d] < 0 || r.Offset[d] > bounds[d] || n > bounds[d]-r.Offset[d] {
			return fmt.Errorf("a shard of shape %v at %v reaches out of the tensor's shape %v", r.Shape, r.Offset, bounds)
		}
	}
	return nil
}

// Len is the number of elements of a region that Check accepts.
func (r Region) Len() int {
	n := 1
	for _, d := range r.Shape {
		n *= d
	}
	return n
}

// runs is a region as count runs of n elements each.
type runs struct {
	count, n int
	start    int   // of the first run in the flattened tensor
	outer    []int // lengths of the dimensions that number the runs
	stride   []int // of the same dimensions in the flattened tensor
}

// newRuns splits a region of a row-major array into runs of adjacent elements: n elements each, count of them, the
// first at start. outer and stride say how the others follow.
func newRuns(r Region) runs {
	size := r.Len()
	if size == 0 {
		return runs{}
	}
	if r.Flat() {
		return runs{count: 1, n: size, start: r.Offset[0]}
	}
	// Dimensions behind the last one that is cut are whole: they and the cut one
	// make a run.
	last := len(r.Shape) - 1
	inner := 1
	for last >= 0 && r.Shape[last] == r.Global[last] {
		inner *= r.Shape[last]
		last--
	}
	w := runs{count: 1, n: inner}
	stride := inner
	if last >= 0 {
		w.n = inner * r.Shape[last]
		w.start = r.Offset[last] * inner
		stride = inner * r.Global[last]
	}
	for d := last - 1; d >= 0; d-- {
		w.start += r.Offset[d] * stride
		if r.Shape[d] > 1 {
			w.outer = append(w.outer, r.Shape[d])
			w.stride = append(w.stride, stride)
		}
		w.count *= r.Shape[d]
		stride *= r.Global[d]
	}
	return w
}

// at is where run i starts in the flattened tensor.
func (w *runs) at(i int) int {
	pos := w.start
	for d, n := range w.outer { // the innermost dimension first
		pos += i % n * w.stride[d]
		i /= n
	}
	return pos
}

// from is the first run that ends behind pos.
func (w *runs) from(pos int) int {
	if w.count == 0 || w.start+w.n > pos {
		return 0
	}
	return sort.Search(w.count, func(i int) bool { return w.at(i)+w.n > pos })
}

// Overlap calls yield for every stretch of n elements that both regions of one
// tensor hold: at element i of a's memory and element j of b's. Stretches ascend
// in both. Its time is that of the runs of both between the first and the last
// stretch; Check must accept both.
func Overlap(a, b Region, yield func(i, j, n int)) {
	x, y := newRuns(a), newRuns(b)
	if x.count == 0 || y.count == 0 {
		return
	}
	i, j := x.from(y.start), y.from(x.start)
	for i < x.count && j < y.count {
		p, q := x.at(i), y.at(j)
		low, high := max(p, q), min(p+x.n, q+y.n)
		if low < high {
			yield(i*x.n+low-p, j*y.n+low-q, high-low)
		}
		if p+x.n <= q+y.n {
			i++
		} else {
			j++
		}
	}
}

// Segment is a stretch of elements to copy: from element From of a part's memory
// to element To of the wanted region's.
type Segment struct {
	Part, From, To, Len int
}

// Gap is a stretch of a wanted region's elements that no part holds.
type Gap struct{ From, Len int }

// Plan says how to fill the wanted region from parts of the same tensor, every
// element once; where several parts hold it, from the one that comes first in the
// list for the stretch. Segments ascend in To. What no part holds is in gaps.
func Plan(want Region, parts []Region) (segments []Segment, gaps []Gap) {
	var all []Segment
	for p, part := range parts {
		Overlap(want, part, func(i, j, n int) {
			all = append(all, Segment{Part: p, From: j, To: i, Len: n})
		})
	}
	slices.SortFunc(all, func(a, b Segment) int {
		if a.To != b.To {
			return a.To - b.To
		}
		return a.Part - b.Part
	})
	next := 0
	for _, s := range all {
		if s.To+s.Len <= next {
			continue
		}
		if s.To > next {
			gaps = append(gaps, Gap{next, s.To - next})
		} else if cut := next - s.To; cut > 0 {
			s.To, s.From, s.Len = s.To+cut, s.From+cut, s.Len-cut
		}
		segments = append(segments, s)
		next = s.To + s.Len
	}
	if end := want.Len(); next < end {
		gaps = append(gaps, Gap{next, end - next})
	}
	return segments, gaps
}
