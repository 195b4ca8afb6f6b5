package comm

import (
	"slices"

	"github.com/weft-fabric/weft/sched"
)

// shape says where the chunks of a program lie in the buffers of a call. The
// larger of in and out has blocks (one for each rank, or one in all), a block
// has per chunks, and the elements of a block are dealt out to its chunks in
// runs that start at multiples of 64 bytes: the last ones may be short or empty.
type shape struct {
	size   int   // bytes of an element
	per    int   // chunks of a block
	count  int   // elements of a block where all have the same number
	from   int   // the first of them: blocks are of full elements, and this is a run of each
	full   int   // 0 if the run is the block
	counts []int // of the blocks where they differ (v-variants), else nil
	starts []int // of the blocks, in elements, where they differ; a block more than there are
}

// newShape gives the shape of a program's buffers. counts is nil where all
// blocks have count elements.
func newShape(p *sched.Program, size, count int, counts []int) shape {
	s := shape{size: size, per: max(p.NumChunks(sched.In), p.NumChunks(sched.Out)), count: count, counts: counts}
	if p.Op.Blocks() {
		s.per /= p.Ranks
	}
	if counts != nil {
		s.starts = make([]int, len(counts)+1)
		for i, c := range counts {
			s.starts[i+1] = s.starts[i] + c
		}
	}
	return s
}

// within gives the bytes of a chunk of a block of so many elements, from the
// start of the block.
func (s *shape) within(count, chunk int) (lo, hi int) {
	if s.per == 1 {
		return 0, count * s.size
	}
	q := (count + s.per - 1) / s.per
	if line := 64 / s.size; line > 1 {
		q = (q + line - 1) / line * line
	}
	return min(chunk*q, count) * s.size, min((chunk+1)*q, count) * s.size
}

// spansBlocks reports whether a step of a program may take several blocks at once. They
// are neighbours in memory only if each is there as a whole, not a run of its elements.
func spansBlocks(p *sched.Program) bool {
	var in func(body []sched.Stmt) bool
	in = func(body []sched.Stmt) bool {
		return slices.ContainsFunc(body, func(s sched.Stmt) bool {
			return s.Step != nil && (s.Step.Src.Count != nil || s.Step.Dst.Count != nil) ||
				s.Loop != nil && in(s.Loop.Body) || s.If != nil && (in(s.If.Then) || in(s.If.Else))
		})
	}
	return p.Op.Blocks() && slices.ContainsFunc(p.Groups, func(g sched.Group) bool { return in(g.Body) })
}

// run gives the shape of a run of elements of every block.
func (s *shape) run(from, count int) shape {
	r := *s
	r.from, r.count, r.full = from, count, s.count
	return r
}

// block gives a block's elements and where they start, in bytes.
func (s *shape) block(b int) (count, start int) {
	if s.counts == nil && s.full > 0 {
		return s.count, (b*s.full + s.from) * s.size
	}
	if s.counts == nil {
		return s.count, b * s.count * s.size
	}
	return s.counts[b], s.starts[b] * s.size
}

// span gives the bytes of a chunk of in or out of a rank.
func (s *shape) span(op sched.Collective, buf sched.Buffer, rank, chunk int) (lo, hi int) {
	if !op.Blocks() {
		lo, hi = s.within(s.count, chunk)
		return s.from*s.size + lo, s.from*s.size + hi
	}
	b, j := chunk, 0
	if s.per != 1 {
		b, j = chunk/s.per, chunk%s.per
	}
	count, start := s.block(b)
	if larger(op, buf) {
		lo, hi = s.within(count, j)
		return start + lo, start + hi
	}
	count, _ = s.block(rank)
	lo, hi = s.within(count, chunk)
	return s.from*s.size + lo, s.from*s.size + hi
}

// larger reports whether a buffer of a collective with blocks holds all of them.
func larger(op sched.Collective, buf sched.Buffer) bool {
	switch op {
	case sched.AllGather, sched.Gather:
		return buf == sched.Out
	case sched.ReduceScatter, sched.Scatter:
		return buf == sched.In
	}
	return true
}

// bytes gives the length of in or out of a rank.
func (s *shape) bytes(op sched.Collective, buf sched.Buffer, rank, ranks int) int {
	if s.counts != nil && larger(op, buf) {
		return s.starts[len(s.counts)] * s.size
	}
	count := s.count
	switch {
	case s.counts != nil:
		count = s.counts[rank]
	case s.full > 0:
		count = s.full
	}
	if op.Blocks() && larger(op, buf) {
		return ranks * count * s.size
	}
	return count * s.size
}

// alias gives the chunk of in that lies where a chunk of out does when the
// operation is done in place, as NCCL has it: the smaller buffer is the rank's
// own block of the larger one; -1 if there is none.
func (s *shape) alias(op sched.Collective, rank, chunk int) int {
	if !op.Blocks() || op == sched.AllToAll {
		return chunk
	}
	if larger(op, sched.Out) { // in is one block of out
		if chunk/s.per == rank {
			return chunk % s.per
		}
		return -1
	}
	return rank*s.per + chunk
}
