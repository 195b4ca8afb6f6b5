package comm

import (
	"errors"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// push stores the sums of a rank, this one or one that died, to all outputs, or what
// it does for the root. An heir does all of it again: with a log, what is done is
// skipped; without, inputs and outputs are apart and the same is stored once more.
func (c *Comm) push(o *op, rank int, logged bool) {
	f := o.ready.flat
	whose := rank
	if f.rooted {
		whose = o.root
		c.pushBlocks(o, rank)
	}
	done := 0
	for i := range f.ranks[whose].sums {
		k := &f.ranks[whose].sums[i]
		srcs := c.sources(o, k)
		o.dsts = o.dsts[:0]
		for _, d := range k.dsts {
			lo, hi := o.shape.span(o.call.Op, sched.Out, int(d.rank), int(d.chunk))
			o.dsts = append(o.dsts, c.views[d.rank].out[lo:hi])
		}
		size := len(srcs[0]) // of a part
		if near := size * len(o.dsts); o.call.Seq%2 == 1 && near >= turnFrom && size < turnUpTo {
			size = turnPart
		}
		first, hi := 0, len(srcs[0])
		if f.rooted {
			first, hi = c.share(rank, hi)
		}
		for hi > first {
			lo := max((hi-1)/size*size, first)
			dsts, srcs := o.cut(o.dsts, srcs, lo, hi)
			if logged {
				reduce.ApplyAllLogged(o.t, o.red, dsts, srcs, c.journal(rank), done)
				done += hi - lo
			} else {
				reduce.ApplyAll(o.t, o.red, dsts, srcs)
			}
			hi = lo
		}
	}
}

// Sums of more than a cache holds are computed from the front and from the back in
// turn. What was touched last is still in the cache then, be it by the operation before
// or by who filled the buffer from its front on. In place, two ranks take 200 us for
// 4 MiB always from the front and 156 so, 389 and 333 for 8 (two Xeon cores with 2 MiB
// of L2 each, 2026-11-16). What is stored past the caches has no use for it.
const (
	turnFrom = 2 << 20 // bytes of all destinations
	turnUpTo = 8 << 20 // bytes of one
	turnPart = 64 << 10
)

// cut takes the same part of all of some destinations and sources.
func (o *op) cut(dsts, srcs [][]byte, lo, hi int) (d, s [][]byte) {
	if hi-lo == len(srcs[0]) {
		return dsts, srcs
	}
	o.parts = o.parts[:0]
	for _, b := range dsts {
		o.parts = append(o.parts, b[lo:hi])
	}
	for _, b := range srcs {
		o.parts = append(o.parts, b[lo:hi])
	}
	return o.parts[:len(dsts)], o.parts[len(dsts):]
}

// journal is a rank's.
func (c *Comm) journal(rank int) []byte {
	if rank == c.rank {
		return c.stages.log
	}
	b, err := c.world.mem.At(c.members[rank], transport.Handle(*c.boards[rank].mid().word(wordLog)), reduce.LogSize)
	if err != nil {
		panic(err) // the rank wrote it down itself, before it entered
	}
	return b
}

// quit says that this rank is done with everybody's memory and waits for those
// that use its own. If they pushed, what a rank that died left undone is done by
// its heir.
func (c *Comm) quit(o *op, readers []int32, pushed bool) error {
	seq := o.call.Seq
	c.phase, c.heirs, c.readers = leaving, pushed && o.op != sched.Gather, readers // what a root gathers nobody else misses
	mine := c.boards[c.rank]
	c.waiter.Settle()
	mine.leave().RaiseFor(seq, mine.sleepers(), c.waiter)
	for _, i := range readers {
		flag := c.boards[i].leave()
		for {
			err := flag.WaitAs(seq, c.boards[i].sleepers(), c.waiter, c.stopFn)
			if err == nil {
				break
			}
			if !errors.Is(err, errInherit) {
				return err
			}
			for j, m := range c.members {
				if j != c.rank && c.world.ep.Alive(m) != nil && c.boards[j].leave().Load() < seq {
					if pushed {
						c.push(o, j, o.overlaid || o.red == reduce.Avg)
					}
					c.boards[j].leave().Post(seq)
					c.boards[j].leave().Wake() // its sleepers are counted apart
				}
			}
		}
	}
	return nil
}

// heir reports whether this rank is the lowest that lives.
func (c *Comm) heir() bool {
	for i, m := range c.members {
		if i == c.rank {
			return true
		}
		if c.world.ep.Alive(m) == nil {
			return false
		}
	}
	return false
}
