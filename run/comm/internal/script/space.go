package script

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/reduce"
)

// space is where the chunks of an operation lie.
type space struct {
	o    *op.Op
	rank int
	in   []byte
	out  []byte
	tmp  []byte
	padding
	undo *undo

	unsaved bool // in place, and nothing was stored yet
	inPlace bool // the program may read its input where it stores its output
	pieces  bool // in place, and what is overwritten is saved piece by piece
	last    bool // there is no part after this
}

// padding is what of a space depends on nothing but the program and the layout.
type padding struct {
	stride int // of chunks of tmp; and of in and out if they are padded
	padded bool
	ins    int // bytes of in
	outs   int // and of out
}

// at returns the memory of some chunks. It is part of the caller's buffers or of the scratch memory, never a copy.
// Adjacent chunks are one slice; chunks behind the end of an uneven buffer are empty.
func (s *space) at(c step.Chunks) []byte {
	if c.Count == 0 {
		return nil
	}
	if c.Buf == sched.Tmp {
		return s.tmp[int(c.Index)*s.stride:][:int(c.Count)*s.stride]
	}
	b := s.in
	if c.Buf == sched.Out {
		b = s.out
	}
	if s.padded {
		return b[int(c.Index)*s.stride:][:int(c.Count)*s.stride]
	}
	layout := &s.o.Chunks
	if c.Buf == sched.Out && s.o.OutOnly != nil {
		layout = s.o.OutOnly
	}
	lo, hi := layout.Span(s.o.Op, c.Buf, s.rank, int(c.Index))
	if c.Count > 1 {
		_, hi = layout.Span(s.o.Op, c.Buf, s.rank, int(c.Index+c.Count-1))
	}
	return b[lo:max(lo, hi)]
}

// The uses of private scratch.
const (
	useIn = iota
	useOut
	useTmp
	useSaved
)

// scratch gives memory that nobody else sees, by its use.
func (r *Runner) scratch(use, n int) []byte {
	if cap(r.plain[use]) < n {
		r.plain[use] = make([]byte, n)
	}
	return r.plain[use][:n]
}

// makeSpace lays the buffers out. In place, the program reads a copy of the input unless it is proven to run in place, and the
// input survives a failure. A program with scratch moves chunks through it whose length must not depend on which they are, so if
// some are short all are padded.
func (r *Runner) makeSpace(o *op.Op, p *Prepared) *space {
	s, sp := p.Script, &r.space
	*sp = space{o: o, rank: r.g.Rank, in: o.In, out: o.Out, undo: &r.undo}
	if o.Op == sched.Barrier { // has no bytes of its own, and empty messages are not sent
		sp.stride, sp.padded = 1, true
		sp.in, sp.out = r.scratch(useIn, s.in), r.scratch(useOut, s.out)
		sp.tmp = r.scratch(useTmp, s.tmp)
		return sp
	}
	sp.padding = r.pad(o, p)
	if s.tmp > 0 {
		sp.tmp = r.scratch(useTmp, s.tmp*sp.stride)
	}
	// Ranks that are not the root pass on what they do not keep.
	if len(o.In) == 0 && sp.ins > 0 {
		sp.in = r.scratch(useIn, sp.ins)
	}
	if len(o.Out) == 0 && sp.outs > 0 && o.OutOnly == nil {
		sp.out = r.scratch(useOut, sp.outs)
	}
	switch {
	case sp.padded:
		sp.in = r.scratch(useIn, s.in*sp.stride)
		sp.out = r.scratch(useOut, s.out*sp.stride)
		sp.spreadIn(s.in)
	case o.Scaled():
		sp.in = r.scratch(useIn, len(o.In))
		lo, hi := sp.part()
		reduce.ScaleTo(o.Type, sp.in[lo:hi], o.In[lo:hi], o.Factor)
		sp.unsaved = o.Overlap
	case o.Overlap:
		sp.inPlace = p.InPlace()
		sp.pieces = sp.inPlace && s.pieces && !o.Op.Blocks() && len(o.In) >= piecesFrom
		sp.unsaved = !sp.pieces
	}
	if o.Overlap {
		sp.undo.copy = r.scratch(useSaved, len(o.In))
	}
	if sp.unsaved && len(s.channels) > 1 {
		sp.save()
	}
	return sp
}

// blocks are the smallest and the largest block of input and output; the larger buffer has all blocks, on every rank.
func (r *Runner) blocks(o *op.Op, p *Prepared) (least, most int) {
	least = -1
	for _, x := range [...]struct {
		buf sched.Buffer
		n   int
	}{{sched.In, p.Script.in}, {sched.Out, p.Script.out}} {
		for k := range x.n {
			lo, hi := o.Chunks.Span(o.Op, x.buf, r.g.Rank, k)
			most = max(most, hi-lo)
			if least < 0 || hi-lo < least {
				least = hi - lo
			}
		}
	}
	return least, most
}

// pad works out the padding that the layout asks for, or knows it of the operation before.
func (r *Runner) pad(o *op.Op, p *Prepared) padding {
	usual := o.Counts == nil && o.Chunks.Full == 0
	if usual && p.padding != nil {
		return *p.padding
	}
	n := r.g.Size()
	l := &padding{ins: o.InBytes(r.g.Rank, n), outs: o.OutBytes(r.g.Rank, n)}
	var least int
	least, l.stride = r.blocks(o, p)
	if least != l.stride {
		l.padded = p.Script.tmp > 0 || !p.Straight(o.Counts != nil)
	}
	if usual {
		p.padding = l
	}
	return *l
}

// spreadIn copies the input to padded chunks.
func (s *space) spreadIn(n int) {
	if len(s.o.In) == 0 {
		return
	}
	for k := range n {
		lo, hi := s.o.Chunks.Span(s.o.Op, sched.In, s.rank, k)
		dst := s.in[k*s.stride:][:s.stride]
		if s.o.Scaled() {
			reduce.ScaleTo(s.o.Type, dst[:hi-lo], s.o.In[lo:hi], s.o.Factor)
		} else {
			copy(dst, s.o.In[lo:hi])
		}
		clear(dst[hi-lo:])
	}
}

// gatherOut takes the result out of padded buffers; more says that the operation may still fail after it.
func (s *space) gatherOut(p *sched.Program, n int, more bool) {
	if more && s.o.Overlap {
		s.save()
	}
	if p.Op == sched.Barrier || (p.Op == sched.Reduce || p.Op == sched.Gather) && s.rank != p.Root {
		return
	}
	for k := range n {
		lo, hi := s.o.Chunks.Span(s.o.Op, sched.Out, s.rank, k)
		copy(s.o.Out[lo:hi], s.out[k*s.stride:])
	}
}

// part is where the input of the part under way begins and ends, where that is one piece of memory; else the whole input.
func (s *space) part() (lo, hi int) {
	c := &s.o.Chunks
	if c.Full == 0 || s.o.Op.Blocks() {
		return 0, len(s.o.In)
	}
	return c.From * c.Size, (c.From + c.Count) * c.Size
}

// save keeps a copy of what the part under way may overwrite. With a single channel that can wait until the first store: what
// was sent before is on its way by then, and the input is in the caches. The copy of a large one is not: it is needed only if
// the operation fails.
func (s *space) save() {
	s.unsaved = false
	lo, hi := s.part()
	if n := len(s.undo.spans); lo < hi && (n == 0 || s.undo.spans[n-1].hi != hi) { // else it is that of the part before, too
		s.undo.save(s.o.In[lo:hi])
	}
	if !s.o.Scaled() && !s.inPlace {
		s.in = s.undo.copy
	}
}

// saveFirst copies what an action is about to overwrite of the input.
func (s *space) saveFirst(a *action, b []byte) {
	if s.pieces && a.first && len(b) > 0 {
		s.undo.save(b)
	}
}
