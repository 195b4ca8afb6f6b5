package comm

import (
	"runtime"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
)

// Inputs that the others do not see, and of which all is read by one rank or by
// several, are copied to a stage piece after piece, and those who read them follow
// behind: two cores are at it, where a rank that pulls the input leaves its owner
// idle. What many ranks read is copied once by the system's standards, too: every
// pull of a page costs as much again as copying it.

const (
	growFrom = 512 << 10 // between two ranks
	growUpTo = 8 << 20   // longer inputs are pulled, as a stage stays for as long as the communicator

	leastPiece = 16 << 10
	mostPiece  = 256 << 10
)

// pieceOf is how long the pieces of an input of n bytes are: an eighth, so that
// who follows is not far behind.
func pieceOf(n int) int { return min(max(n/8&^4095, leastPiece), mostPiece) }

// grows reports whether an input of n bytes is left in a growing stage.
func (c *Comm) grows(o *op, n int) bool {
	if n < pullMoves || n > growUpTo || o.red == reduce.PreMulSum {
		return false
	}
	switch o.op {
	case sched.Broadcast:
		return len(c.members) > 2 || n >= growFrom
	case sched.Reduce:
		return n >= growFrom
	case sched.Gather: // one rank reads each: it takes an idle core to be worth it
		return n >= growFrom && c.world.local <= runtime.NumCPU()
	case sched.AllGather:
		return len(c.members) > 2
	}
	return false
}

// grow fills the own stage after the others were told of it.
func (c *Comm) grow(o *op) {
	mine := c.boards[c.rank]
	n := len(o.in)
	piece := pieceOf(n)
	for at := 0; at < n; at += piece {
		end := min(at+piece, n)
		reduce.Copy(c.staged[at:end], o.in[at:end])
		c.grown++
		c.waiter.Settle()
		mine.staged().RaiseFor(c.grown, mine.sleepers(), c.waiter)
	}
	c.waiter.Settle()
}

// follow returns once a rank's growing stage is filled up to a place.
func (c *Comm) follow(o *op, rank, end int) error {
	v := &c.views[rank]
	piece := pieceOf(len(v.in))
	want := v.base + uint64((end+piece-1)/piece)
	b := c.boards[rank]
	if b.staged().Load() >= want {
		return nil
	}
	was := c.phase
	c.phase, c.followed, c.wanted = following, rank, want
	err := b.staged().WaitAs(want, b.sleepers(), c.waiter, c.stopFn)
	c.phase = was
	return err
}

// copyBehind copies a part of a growing stage, which begins at a place of its
// owner's input, as it is filled.
func (c *Comm) copyBehind(o *op, rank, at int, dst []byte) error {
	v := &c.views[rank]
	piece := pieceOf(len(v.in))
	for done := 0; done < len(dst); {
		end := min(len(dst), (at+done)/piece*piece+piece-at)
		if err := c.follow(o, rank, at+end); err != nil {
			return err
		}
		reduce.Copy(dst[done:end], v.in[at+done:at+end])
		done = end
	}
	return nil
}

// sumBehind computes a sum of which some sources are growing stages, as they are
// filled. If the sum goes where an input is, that input stays as it is until
// nothing can fail any more.
func (c *Comm) sumBehind(o *op, k *kernel, dst []byte) error {
	piece := mostPiece
	for _, s := range k.srcs {
		if v := &c.views[s.rank]; v.mode&growing != 0 {
			piece = min(piece, pieceOf(len(v.in)))
		}
	}
	if overlap(dst, o.in) {
		piece = len(dst)
	}
	for at := 0; at < len(dst); at += piece {
		end := min(at+piece, len(dst))
		o.srcs = o.srcs[:0]
		for _, s := range k.srcs {
			lo, _ := o.shape.span(o.call.Op, sched.In, int(s.rank), int(s.chunk))
			if c.views[s.rank].mode&growing != 0 && int(s.rank) != c.rank {
				if err := c.follow(o, int(s.rank), lo+end); err != nil {
					return err
				}
			}
			o.srcs = append(o.srcs, c.views[s.rank].in[lo+at:lo+end])
		}
		c.apply(o, o.srcs, dst[at:end], nil)
	}
	return nil
}
