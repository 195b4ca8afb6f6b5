package comm

import (
	"sync/atomic"

	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// couple reports whether an operation is an all-reduce between two.
func (c *Comm) couple(o *op) bool { return len(c.members) == 2 && o.op == sched.AllReduce }

// bothIn reports whether the inputs of two ranks are in a mode.
func (c *Comm) bothIn(mode uint64) bool {
	return c.views[0].mode&inMask == mode && c.views[1].mode&inMask == mode
}

// swap is commit between two, on buffers smaller than those that are traded, in
// which a sum goes where the other's part of it came from. So a line crosses from
// core to core twice and is written by whom it came to; sums left in memory of their
// own cross as often, but there and in the stages every store must first take the
// line from who read it. Between two Xeon cores 32 KiB take 5.5 us so and 10.1 the
// other way, 256 KiB 32 and 42, 1 MiB 165 and 174 (2026-11-15).
func (c *Comm) swap(o *op) error {
	seq := o.call.Seq
	other := int32(1 - c.rank)
	f, theirs := &o.ready.flat.ranks[c.rank], &o.ready.flat.ranks[other]
	own := o.out
	if o.overlap { // the input stays what it is until all sums are there
		own = c.stages.scratch(useOut, len(o.out))
	}
	for k := range f.sums {
		srcs := c.sources(o, &f.sums[k])
		if len(srcs[0]) == 0 {
			continue
		}
		lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(f.sums[k].dsts[0].chunk))
		back := c.source(o, f.sums[k].from(other))
		c.apply(o, srcs, own[lo:hi], back)
	}
	if err := c.meetMid(seq, 0); err != nil {
		return err
	}
	for k := range f.sums {
		if lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(f.sums[k].dsts[0].chunk)); o.overlap {
			copy(o.out[lo:hi], own[lo:hi])
		}
	}
	for _, x := range f.fetches {
		lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(x.chunk))
		from, _ := o.shape.span(o.call.Op, sched.In, c.rank, int(theirs.sums[x.sum].from(int32(c.rank)).chunk))
		copy(o.out[lo:hi], c.staged[from:])
	}
	return nil
}

// meetMid says that the own sums are there, at a handle, and waits for those of
// the others.
func (c *Comm) meetMid(seq uint64, h transport.Handle) error {
	c.phase = summing
	mine := c.boards[c.rank]
	atomic.StoreUint64(mine.mid().word(wordResult), uint64(h))
	mine.mid().flag().RaiseFor(seq, mine.sleepers(), c.waiter)
	for k := 1; k < len(c.members); k++ {
		i := (c.rank + k) % len(c.members)
		if err := c.boards[i].mid().flag().WaitAs(seq, c.boards[i].sleepers(), c.waiter, c.stopFn); err != nil {
			return err
		}
	}
	c.waiter.Settle()
	return nil
}
