package device

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/gpu"
	"github.com/weft-fabric/weft/run/reduce"
)

// staged is the way through memory of the host, piece by piece:
//
//	from the GPU    piece 2   piece 3   piece 4
//	communicator    piece 1   piece 2   piece 3       at the same time
//	to the GPU      piece 0   piece 1   piece 2
//
// A piece is some elements of every block.
type staged struct {
	entries
	slots  [3]slot
	pinned *pinned // where GPUs sum; nil if the host does
}

// slot is memory of the host for a piece: pinned, and seen by the other ranks of the host.
type slot struct {
	in, out []byte
	left    uint64 // the mark of its last copy from the GPU
	back    uint64 // and of its last copy to it; 0 if there was none
}

func newStaged(ctx context.Context, g *Group) (*staged, error) {
	e, err := newEntries(ctx, g)
	return &staged{entries: e}, err
}

// room gives a slot memory for in bytes of input and out bytes of output.
func (s *staged) room(x *slot, in, out int) error {
	for _, b := range []struct {
		have *[]byte
		want int
	}{{&x.in, in}, {&x.out, out}} {
		if len(*b.have) >= b.want {
			continue
		}
		if err := s.giveBack(b.have); err != nil {
			return err
		}
		size := 4096
		for size < b.want {
			size *= 2
		}
		m, err := comm.Alloc[byte](s.g.c, size)
		if err != nil {
			return err
		}
		if err := s.g.dev.Register(m); err != nil {
			return errors.Join(err, comm.Free(s.g.c, m))
		}
		*b.have = m
	}
	return nil
}

func (s *staged) giveBack(b *[]byte) error {
	if len(*b) == 0 {
		return nil
	}
	err := errors.Join(s.g.dev.Unregister(*b), comm.Free(s.g.c, *b))
	*b = nil
	return err
}

// close gives the slots back.
func (s *staged) close() error {
	var errs []error
	errs = append(errs, s.pinned.close(s.g))
	for i := range s.slots {
		errs = append(errs, s.giveBack(&s.slots[i].in), s.giveBack(&s.slots[i].out))
	}
	return errors.Join(errs...)
}

// piece is elements [from, to) of every block.
type piece struct{ from, to int }

// pieces cuts blocks of count elements, so that a piece of all blocks has about bytes bytes.
func pieces(count, blocks, size, bytes int) []piece {
	per := max(1, bytes/(size*blocks))
	per = (per + 63) / 64 * 64 // whole cache lines
	var list []piece
	for from := 0; from < count; from += per {
		list = append(list, piece{from, min(count, from+per)})
	}
	return list
}

// run carries out an operation; wrong is why this rank cannot take part.
func (s *staged) run(ctx context.Context, w *Work, p *planned, wrong error) error {
	g, c := s.g, &w.call
	if wrong == nil {
		for _, m := range []Memory{c.Src, c.Dst} {
			if m.Count > 0 && wrong == nil {
				_, wrong = g.dev.Segment(m.At, m.Bytes())
			}
		}
	}
	s.begin()
	if err := s.enter(ctx, c, p, wrong); err != nil {
		return err
	}
	if c.Op == sched.Barrier {
		return nil
	}
	if c.Sends != nil {
		if _, err := s.pairs(ctx, c); err != nil {
			return err
		}
	}
	var opts []comm.Option
	if reduces(c.Op) {
		opts = append(opts, comm.Using(p.program))
	}
	if c.Reduce == reduce.PreMulSum {
		opts = append(opts, comm.Factor(c.Factor))
	}
	blocks, count := 1, c.count(g.Size())
	if c.Op.Blocks() {
		blocks = g.Size()
	}
	list := pieces(count, blocks, c.Dst.Type.Size(), g.cfg.Piece)
	if c.Counts != nil {
		list = []piece{{0, -1}} // in one piece: its blocks differ
	}
	err := error(nil)
	if s.sumsOnGPU(c, p) && count > 0 {
		err = s.sum(ctx, c, p, list)
	} else {
		err = s.flow(ctx, c, list, opts)
	}
	if err != nil {
		var f *comm.Failure
		if !errors.As(err, &f) {
			g.c.Abort(err) // the others wait for this rank
			err = fmt.Errorf("%w: %w", errBroken, err)
		}
		return err
	}
	return nil
}

// flow moves pieces: the next one from the GPU while the communicator has this one and the last one goes back.
func (s *staged) flow(ctx context.Context, c *Call, list []piece, opts []comm.Option) error {
	for i := range list {
		if i == 0 {
			if err := s.fetch(ctx, c, list[0], &s.slots[0]); err != nil {
				return err
			}
		}
		if i+1 < len(list) {
			if err := s.fetch(ctx, c, list[i+1], &s.slots[(i+1)%len(s.slots)]); err != nil {
				return err
			}
		}
		x := &s.slots[i%len(s.slots)]
		if err := s.g.until(ctx, func() (bool, error) { return s.g.gpuQ.Reached(x.left) }); err != nil {
			return err
		}
		if err := s.host(ctx, c, list[i], x, opts); err != nil {
			return err
		}
		if err := s.store(c, list[i], x); err != nil {
			return err
		}
	}
	return s.g.wait(ctx, s.g.backQ)
}

// part is a stretch of a buffer, and where it lies in a slot.
type part struct{ at, in, elements int }

// parts are the stretches of a buffer that a piece consists of.
func (s *staged) parts(c *Call, p piece, m Memory, all bool) []part {
	switch {
	case m.Count == 0:
		return nil
	case p.to < 0:
		return []part{{0, 0, m.Count}}
	case !all:
		return []part{{p.from, 0, p.to - p.from}}
	}
	var list []part
	n, count := p.to-p.from, c.count(s.g.Size())
	for b := range s.g.Size() {
		list = append(list, part{b*count + p.from, b * n, n})
	}
	return list
}

// total is the elements of parts.
func total(list []part) int {
	n := 0
	for _, x := range list {
		n += x.elements
	}
	return n
}

// fetch begins to copy a piece of the input to the host.
func (s *staged) fetch(ctx context.Context, c *Call, p piece, x *slot) error {
	if x.back != 0 { // what was there before must have gone to the GPU
		if err := s.g.until(ctx, func() (bool, error) { return s.g.backQ.Reached(x.back) }); err != nil {
			return err
		}
	}
	size := c.Dst.Type.Size()
	in, out := s.parts(c, p, c.Src, c.larger(true)), s.parts(c, p, c.Dst, c.larger(false))
	if err := s.room(x, total(in)*size, total(out)*size); err != nil {
		return err
	}
	if c.Op != sched.Broadcast || s.g.Rank() == c.Root {
		for _, y := range in {
			if err := s.g.gpuQ.Out(x.in[y.in*size:][:y.elements*size], c.Src.At+gpu.Ptr(y.at*size)); err != nil {
				return err
			}
		}
	}
	var err error
	x.left, err = s.g.gpuQ.Mark()
	return err
}

// store begins to copy a piece of the output to the GPU.
func (s *staged) store(c *Call, p piece, x *slot) error {
	size := c.Dst.Type.Size()
	from := x.out
	if c.Op == sched.Broadcast {
		from = x.in
		if s.g.Rank() == c.Root {
			return nil
		}
	}
	for _, y := range s.parts(c, p, c.Dst, c.larger(false)) {
		if err := s.g.backQ.In(c.Dst.At+gpu.Ptr(y.at*size), from[y.in*size:][:y.elements*size]); err != nil {
			return err
		}
	}
	var err error
	x.back, err = s.g.backQ.Mark()
	return err
}

// host runs the collective of a piece on the host.
func (s *staged) host(ctx context.Context, c *Call, p piece, x *slot, opts []comm.Option) error {
	size := c.Dst.Type.Size()
	in := x.in[:total(s.parts(c, p, c.Src, c.larger(true)))*size]
	out := x.out[:total(s.parts(c, p, c.Dst, c.larger(false)))*size]
	if !reduces(c.Op) {
		return s.move(ctx, c, in, out)
	}
	switch c.Dst.Type {
	case reduce.Int8:
		return sums[int8](ctx, s.g.c, c, in, out, opts)
	case reduce.Uint8:
		return sums[uint8](ctx, s.g.c, c, in, out, opts)
	case reduce.Int16:
		return sums[int16](ctx, s.g.c, c, in, out, opts)
	case reduce.Uint16:
		return sums[uint16](ctx, s.g.c, c, in, out, opts)
	case reduce.Int32:
		return sums[int32](ctx, s.g.c, c, in, out, opts)
	case reduce.Uint32:
		return sums[uint32](ctx, s.g.c, c, in, out, opts)
	case reduce.Int64:
		return sums[int64](ctx, s.g.c, c, in, out, opts)
	case reduce.Uint64:
		return sums[uint64](ctx, s.g.c, c, in, out, opts)
	case reduce.Float16:
		return sums[reduce.F16](ctx, s.g.c, c, in, out, opts)
	case reduce.BFloat16:
		return sums[reduce.BF16](ctx, s.g.c, c, in, out, opts)
	case reduce.Float32:
		return sums[float32](ctx, s.g.c, c, in, out, opts)
	case reduce.Float64:
		return sums[float64](ctx, s.g.c, c, in, out, opts)
	case reduce.Float8E4M3:
		return sums[reduce.E4M3](ctx, s.g.c, c, in, out, opts)
	}
	return sums[reduce.E5M2](ctx, s.g.c, c, in, out, opts)
}

// sums runs a collective that computes.
func sums[T reduce.Element](ctx context.Context, h *comm.Comm, c *Call, in, out []byte, opts []comm.Option) error {
	src, dst := elements[T](in), elements[T](out)
	switch {
	case c.Op == sched.AllReduce:
		return comm.AllReduceTo(ctx, h, dst, src, c.Reduce, opts...)
	case c.Op == sched.Reduce:
		return comm.Reduce(ctx, h, dst, src, c.Reduce, c.Root, opts...)
	case c.Counts != nil:
		return comm.ReduceScatterV(ctx, h, dst, src, c.Counts, c.Reduce, opts...)
	}
	return comm.ReduceScatter(ctx, h, dst, src, c.Reduce, opts...)
}

// elements is memory as elements of a type.
func elements[T reduce.Element](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(T))))
}

// move runs a collective that only moves, on bytes.
func (s *staged) move(ctx context.Context, c *Call, in, out []byte) error {
	h := s.g.c
	counts, sends := make([]int, len(c.Counts)), make([]int, len(c.Sends))
	for i, k := range c.Counts {
		counts[i] = k * c.Dst.Type.Size()
	}
	for i, k := range c.Sends {
		sends[i] = k * c.Dst.Type.Size()
	}
	switch c.Op {
	case sched.Broadcast:
		return comm.Broadcast(ctx, h, in, c.Root)
	case sched.AllToAll:
		if c.Counts != nil {
			return comm.AllToAllV(ctx, h, out, in, counts, sends)
		}
		return comm.AllToAll(ctx, h, out, in)
	case sched.AllGather:
		if c.Counts != nil {
			return comm.AllGatherV(ctx, h, out, in, counts)
		}
		return comm.AllGather(ctx, h, out, in)
	case sched.Gather:
		if c.Counts != nil {
			return comm.GatherV(ctx, h, out, in, counts, c.Root)
		}
		return comm.Gather(ctx, h, out, in, c.Root)
	}
	if c.Counts != nil {
		return comm.ScatterV(ctx, h, out, in, counts, c.Root)
	}
	return comm.Scatter(ctx, h, out, in, c.Root)
}
