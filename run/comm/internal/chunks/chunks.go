// Package chunks says where the chunks of a program lie in the buffers of a call.
package chunks

import (
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
)

// Layout says where the chunks of a program lie. The larger of in and out has blocks (one for each rank, or one in all). A block
// has Per chunks. The elements of a block are dealt out to its chunks in runs that start at multiples of 64 bytes: the last
// chunks may be short or empty.
type Layout struct {
	Size   int   // bytes of an element
	Per    int   // chunks of a block
	Count  int   // elements of a block, where all have the same number; of a part, elements of the part
	From   int   // of a part: the first element of each block that belongs to it
	Full   int   // of a part: elements of a block; 0 if the layout is of whole blocks
	each   int   // elements of a chunk of a block of Count elements, but for the last ones
	counts []int // elements of each block, where they differ (v-variants), else nil
	starts []int // the first element of each block, where they differ, and the end of the last
}

// New gives the layout of a program's buffers. counts is nil where all blocks have count elements.
func New(p *sched.Program, size, count int, counts []int) Layout {
	s := Layout{Size: size, Per: max(p.NumChunks(sched.In), p.NumChunks(sched.Out)), Count: count, counts: counts}
	if p.Op.Blocks() {
		s.Per /= p.Ranks
	}
	if counts != nil {
		s.starts = make([]int, len(counts)+1)
		for i, c := range counts {
			s.starts[i+1] = s.starts[i] + c
		}
	}
	s.each = s.elements(count)
	return s
}

// elements is how many elements of a block of count are in each of its chunks, but for the last ones. Its divisions are kept
// (each): an operation on a few KiB asks where chunks lie so often that they took a quarter of its time.
func (s *Layout) elements(count int) int {
	if s.Per == 0 || s.Size == 0 {
		return 0
	}
	q := (count + s.Per - 1) / s.Per
	if line := 64 / s.Size; line > 1 {
		q = (q + line - 1) / line * line
	}
	return q
}

// within gives the bytes of a chunk, from the start of its block of count elements.
func (s *Layout) within(count, chunk int) (lo, hi int) {
	if s.Per == 1 {
		return 0, count * s.Size
	}
	q := s.each
	if count != s.Count {
		q = s.elements(count)
	}
	return min(chunk*q, count) * s.Size, min((chunk+1)*q, count) * s.Size
}

// SpansBlocks reports whether a step of a program may take several blocks at once. They
// are neighbours in memory only if each is there as a whole, not a part of its elements.
func SpansBlocks(p *sched.Program) bool {
	var in func(body []sched.Stmt) bool
	in = func(body []sched.Stmt) bool {
		return slices.ContainsFunc(body, func(s sched.Stmt) bool {
			return s.Step != nil && (s.Step.Src.Count != nil || s.Step.Dst.Count != nil) ||
				s.Loop != nil && in(s.Loop.Body) || s.If != nil && (in(s.If.Then) || in(s.If.Else))
		})
	}
	return p.Op.Blocks() && slices.ContainsFunc(p.Groups, func(g sched.Group) bool { return in(g.Body) })
}

// Part gives the layout of a part: some elements of every block, from one on.
func (s *Layout) Part(from, count int) Layout {
	r := *s
	r.From, r.Count, r.Full = from, count, s.Count
	r.each = r.elements(count)
	return r
}

// block gives a block's elements and where they start, in bytes.
func (s *Layout) block(b int) (count, start int) {
	if s.counts == nil && s.Full > 0 {
		return s.Count, (b*s.Full + s.From) * s.Size
	}
	if s.counts == nil {
		return s.Count, b * s.Count * s.Size
	}
	return s.counts[b], s.starts[b] * s.Size
}

// Span gives the bytes of a chunk of in or out of a rank.
func (s *Layout) Span(op sched.Collective, buf sched.Buffer, rank, chunk int) (lo, hi int) {
	if !op.Blocks() {
		lo, hi = s.within(s.Count, chunk)
		return s.From*s.Size + lo, s.From*s.Size + hi
	}
	b, j := chunk, 0
	if s.Per != 1 {
		b, j = chunk/s.Per, chunk%s.Per
	}
	count, start := s.block(b)
	if larger(op, buf) {
		lo, hi = s.within(count, j)
		return start + lo, start + hi
	}
	count, _ = s.block(rank)
	lo, hi = s.within(count, chunk)
	return s.From*s.Size + lo, s.From*s.Size + hi
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

// Bytes gives the length of in or out of a rank.
func (s *Layout) Bytes(op sched.Collective, buf sched.Buffer, rank, ranks int) int {
	if s.counts != nil && larger(op, buf) {
		return s.starts[len(s.counts)] * s.Size
	}
	count := s.Count
	switch {
	case s.counts != nil:
		count = s.counts[rank]
	case s.Full > 0:
		count = s.Full
	}
	if op.Blocks() && larger(op, buf) {
		return ranks * count * s.Size
	}
	return count * s.Size
}

// Alias gives the chunk of in that lies where a chunk of out does when the
// operation is done in place, as NCCL has it: the smaller buffer is the rank's
// own block of the larger one; -1 if there is none.
func (s *Layout) Alias(op sched.Collective, rank, chunk int) int {
	if !op.Blocks() || op == sched.AllToAll {
		return chunk
	}
	if larger(op, sched.Out) { // in is one block of out
		if chunk/s.Per == rank {
			return chunk % s.Per
		}
		return -1
	}
	return rank*s.Per + chunk
}
