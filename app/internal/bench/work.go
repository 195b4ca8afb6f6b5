package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/reduce"
)

// work is an operation on one size, with the type of its elements hidden.
type work interface {
	size(elements int)                                                   // sets the size of what follows
	has(inPlace bool) bool                                               // whether there is such a way to do it
	fill(ctx context.Context, seed uint64, inPlace bool) error           // verifiable inputs, and outputs that are wrong
	zero(ctx context.Context) error                                      // inputs that stay what they are
	call(ctx context.Context, inPlace bool) error                        // once
	wrong(ctx context.Context, seed uint64, inPlace bool) (int64, error) // elements of this rank's result
	free() error                                                         // gives the buffers back
	shape() (count int, bytes int64)                                     // as nccl-tests prints them
}

// newWork gets buffers for up to most elements of the larger buffer.
func newWork(c *comm.Comm, cfg *Config, most int, gpus *gpus) (work, error) {
	switch cfg.Type {
	case reduce.Int8:
		return newTyped[int8](c, cfg, most, gpus)
	case reduce.Uint8:
		return newTyped[uint8](c, cfg, most, gpus)
	case reduce.Int16:
		return newTyped[int16](c, cfg, most, gpus)
	case reduce.Uint16:
		return newTyped[uint16](c, cfg, most, gpus)
	case reduce.Int32:
		return newTyped[int32](c, cfg, most, gpus)
	case reduce.Uint32:
		return newTyped[uint32](c, cfg, most, gpus)
	case reduce.Int64:
		return newTyped[int64](c, cfg, most, gpus)
	case reduce.Uint64:
		return newTyped[uint64](c, cfg, most, gpus)
	case reduce.Float16:
		return newTyped[reduce.F16](c, cfg, most, gpus)
	case reduce.BFloat16:
		return newTyped[reduce.BF16](c, cfg, most, gpus)
	case reduce.Float32:
		return newTyped[float32](c, cfg, most, gpus)
	case reduce.Float64:
		return newTyped[float64](c, cfg, most, gpus)
	case reduce.Float8E4M3:
		return newTyped[reduce.E4M3](c, cfg, most, gpus)
	case reduce.Float8E5M2:
		return newTyped[reduce.E5M2](c, cfg, most, gpus)
	}
	return nil, fmt.Errorf("no buffers for elements of %s", cfg.Type)
}

// typed is a work on elements of T. in and out are as long as the larger buffer
// of the operation; out holds everything where it is in place.
type typed[T reduce.Element] struct {
	c       *comm.Comm
	cfg     *Config
	in, out []T
	total   int   // elements of the larger buffer
	counts  []int // of the ranks' blocks of it
	starts  []int
	opts    []comm.Option
}

// options are what every call of a measurement gets.
func (c *Config) options() (opts []comm.Option) {
	switch {
	case c.program == nil:
	case c.Unproven:
		opts = append(opts, comm.Unproven(c.program))
	default:
		opts = append(opts, comm.Using(c.program))
	}
	if c.Reduce == reduce.PreMulSum && c.Op.Reduces() {
		opts = append(opts, comm.Factor(factor))
	}
	return opts
}

// newTyped allocates the buffers for up to most elements. An all-to-all with uneven blocks needs more at the output
// than at the input.
func newTyped[T reduce.Element](c *comm.Comm, cfg *Config, most int, gpus *gpus) (work, error) {
	w := &typed[T]{c: c, cfg: cfg}
	alloc := func() ([]T, error) { return make([]T, most), nil }
	if gpus == nil && cfg.Buffers == Registered {
		alloc = func() ([]T, error) { return comm.Alloc[T](c, most) }
	}
	var err error
	if w.in, err = alloc(); err != nil {
		return nil, err
	}
	if cfg.Op.Collective == sched.AllToAll && cfg.Op.V {
		// The rank with the largest blocks gets them from everybody.
		n := c.Size()
		most = slices.Max(cfg.Op.counts(n, most)) * n
	}
	if w.out, err = alloc(); err != nil {
		return nil, err
	}
	w.opts = cfg.options()
	if gpus != nil {
		return newOnGPU(w, gpus)
	}
	return w, nil
}

func (w *typed[T]) free() error {
	if w.cfg.Buffers != Registered {
		return nil
	}
	return errors.Join(comm.Free(w.c, w.in), comm.Free(w.c, w.out))
}

// size sets how many elements the next calls move. Operations on equal blocks need a multiple of the ranks, and the
// rest is left out.
func (w *typed[T]) size(elements int) {
	n := w.c.Size()
	w.total = elements
	if w.cfg.Op.Blocks() && !w.cfg.Op.V {
		w.total -= elements % n
	}
	if w.cfg.Op.Collective == sched.Barrier {
		w.total = 0
	}
	w.counts = w.cfg.Op.counts(n, w.total)
	w.starts = make([]int, n)
	for r := 1; r < n; r++ {
		w.starts[r] = w.starts[r-1] + w.counts[r-1]
	}
}

func (w *typed[T]) shape() (int, int64) {
	count := w.total
	if w.cfg.Op.Blocks() {
		count /= w.c.Size()
	}
	return count, int64(w.total) * int64(w.cfg.Type.Size())
}

func (w *typed[T]) has(inPlace bool) bool {
	switch w.cfg.Op.Collective {
	case sched.Broadcast:
		return inPlace
	case sched.SendRecv, sched.Barrier:
		return !inPlace
	}
	return !inPlace || !w.cfg.Op.V
}

// block is this rank's block of a larger buffer.
func (w *typed[T]) block(b []T) []T {
	r := w.c.Rank()
	return b[w.starts[r]:][:w.counts[r]]
}

// buffers are what the call is given: the input and the output of this rank.
func (w *typed[T]) buffers(inPlace bool) (src, dst []T) {
	me := w.c.Rank()
	in, out := w.in[:w.total], w.out[:w.total]
	if inPlace {
		in = out
	}
	switch w.cfg.Op.Collective {
	case sched.ReduceScatter, sched.Scatter:
		if inPlace {
			return in, w.block(out)
		}
		return in, out[:w.counts[me]]
	case sched.AllGather, sched.Gather:
		if inPlace {
			return w.block(in), out
		}
		return in[:w.counts[me]], out
	case sched.AllToAll:
		if w.cfg.Op.V {
			return in, w.out[:w.counts[me]*w.c.Size()]
		}
	}
	return in, out
}

func (w *typed[T]) call(ctx context.Context, inPlace bool) error {
	src, dst := w.buffers(inPlace)
	c, root, red := w.c, w.cfg.Root, w.cfg.Reduce
	switch o := w.cfg.Op; {
	case o.Collective == sched.AllReduce && inPlace:
		return comm.AllReduce(ctx, c, dst, red, w.opts...)
	case o.Collective == sched.AllReduce:
		return comm.AllReduceTo(ctx, c, dst, src, red, w.opts...)
	case o.Collective == sched.ReduceScatter && o.V:
		return comm.ReduceScatterV(ctx, c, dst, src, w.counts, red, w.opts...)
	case o.Collective == sched.ReduceScatter:
		return comm.ReduceScatter(ctx, c, dst, src, red, w.opts...)
	case o.Collective == sched.AllGather && o.V:
		return comm.AllGatherV(ctx, c, dst, src, w.counts, w.opts...)
	case o.Collective == sched.AllGather:
		return comm.AllGather(ctx, c, dst, src, w.opts...)
	case o.Collective == sched.Broadcast:
		return comm.Broadcast(ctx, c, dst, root, w.opts...)
	case o.Collective == sched.Reduce:
		return comm.Reduce(ctx, c, dst, src, red, root, w.opts...)
	case o.Collective == sched.AllToAll && o.V:
		return comm.AllToAllV(ctx, c, dst, src, w.received(), w.counts, w.opts...)
	case o.Collective == sched.AllToAll:
		return comm.AllToAll(ctx, c, dst, src, w.opts...)
	case o.Collective == sched.Gather && o.V:
		return comm.GatherV(ctx, c, dst, src, w.counts, root, w.opts...)
	case o.Collective == sched.Gather:
		return comm.Gather(ctx, c, dst, src, root, w.opts...)
	case o.Collective == sched.Scatter && o.V:
		return comm.ScatterV(ctx, c, dst, src, w.counts, root, w.opts...)
	case o.Collective == sched.Scatter:
		return comm.Scatter(ctx, c, dst, src, root, w.opts...)
	case o.Collective == sched.SendRecv:
		return w.exchange(ctx, src, dst)
	}
	return comm.Barrier(ctx, c, w.opts...)
}

// exchange sends to the next rank and receives from the one before.
func (w *typed[T]) exchange(ctx context.Context, src, dst []T) error {
	n, me := w.c.Size(), w.c.Rank()
	return comm.SendRecv(ctx, w.c, dst, src, (me+n-1)%n, (me+1)%n, w.opts...)
}

// received are the lengths that this rank gets in all-to-all-v: every rank sends
// counts[p] elements to rank p, so all that this rank gets are as long as its own.
func (w *typed[T]) received() []int {
	return slices.Repeat([]int{w.counts[w.c.Rank()]}, w.c.Size())
}

func (w *typed[T]) zero(context.Context) error {
	clear(w.in[:w.total])
	clear(w.out)
	return nil
}

// poison marks outputs that nothing was written to: the opposite of the right bits.
func poison[T reduce.Element](b []T) {
	raw := reduce.Bytes(b)
	for i := range raw {
		raw[i] = 0xa5
	}
}

// fill writes this rank's data into the input. Data are those of the position in
// the whole vector where the operation reduces, and of the rank elsewhere.
func (w *typed[T]) fill(_ context.Context, seed uint64, inPlace bool) error {
	me, n := w.c.Rank(), w.c.Size()
	src, dst := w.buffers(inPlace)
	poison(dst)
	if w.cfg.Op.Reduces() {
		tile(src, contributions[T](w.cfg.Reduce, n, me, seed), 0)
		return nil
	}
	if w.cfg.Op.Rooted() && me != w.cfg.Root && w.cfg.Op.Collective != sched.Gather {
		return nil // only the root has an input
	}
	tile(src, bits[T](me, seed), 0)
	return nil
}

// wrong compares this rank's result with the right one.
func (w *typed[T]) wrong(_ context.Context, seed uint64, inPlace bool) (int64, error) {
	return w.differ(seed, inPlace), nil
}

// differ counts the elements that are not right.
func (w *typed[T]) differ(seed uint64, inPlace bool) (count int64) {
	me, n, root := w.c.Rank(), w.c.Size(), w.cfg.Root
	_, dst := w.buffers(inPlace)
	switch w.cfg.Op.Collective {
	case sched.AllReduce:
		return wrong(dst, reduced[T](w.cfg.Reduce, n, seed), 0)
	case sched.Reduce:
		if me == root {
			return wrong(dst, reduced[T](w.cfg.Reduce, n, seed), 0)
		}
	case sched.ReduceScatter:
		return wrong(dst, reduced[T](w.cfg.Reduce, n, seed), w.starts[me])
	case sched.Broadcast:
		return wrong(dst, bits[T](root, seed), 0)
	case sched.Scatter:
		return wrong(dst, bits[T](root, seed), w.starts[me])
	case sched.SendRecv:
		return wrong(dst, bits[T]((me+n-1)%n, seed), 0)
	case sched.AllGather, sched.Gather:
		if w.cfg.Op.Collective == sched.Gather && me != root {
			return 0
		}
		for r := range n {
			count += wrong(dst[w.starts[r]:][:w.counts[r]], bits[T](r, seed), 0)
		}
	case sched.AllToAll:
		mine := w.counts[me]
		for r := range n {
			count += wrong(w.out[r*mine:][:mine], bits[T](r, seed), w.starts[me])
		}
	}
	return count
}
