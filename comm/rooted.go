package comm

import (
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// Of an operation that ends at one rank, a gather or a reduce, that rank would do all
// the work while the others wait for it to be done with their memory. Where they see
// its output they do it instead: in a gather each moves its own block there, in a
// reduce, of which all see all inputs, each sums a share of the elements. Large inputs
// that have to be pulled are shared, too: the shares are left where the root sees them.

// lends reports whether a rank's input is seen where it lies.
func (c *Comm) lends(rank int) bool { return c.views[rank].mode&inMask == inPlain }

// shareFrom is the length from which sums are shared, times the ranks where they are
// more than the cores and so have to wait for one another to get one. With 2 ranks on
// two Xeon cores 16 KiB take 1.10 us instead of 1.31, 256 KiB 5.8 instead of 10.5, 4 MiB
// 234 instead of 574; with 8 ranks there 128 KiB take 30 instead of 29, 256 KiB 42
// instead of 92 (2026-11-16). Blocks that are lent at all are always moved by their owners.
const shareFrom = 16 << 10

// mayHelp reports whether this rank may be one that works for the root.
func (c *Comm) mayHelp(o *op) bool {
	if o.red == 0 {
		return c.lends(c.rank)
	}
	return c.lends(c.rank) && len(o.in) >= shareFrom || c.pools(o)
}

// pools reports whether sums are shared though the others do not see the root's output.
func (c *Comm) pools(o *op) bool {
	return o.red != 0 && o.red != reduce.PreMulSum && len(o.in) > growUpTo && c.world.pulls
}

// hearTheRoot waits for the root's entry and, if this rank is to do a share of its sum,
// for those of the others.
func (c *Comm) hearTheRoot(o *op, own *flatRank, all *entries) error {
	err := c.hearThem(o, own.helps[:1], all)
	if err == nil && c.views[o.root].mode&(outSeen|pooled) != 0 {
		err = c.hearThem(o, own.helps[1:], all)
	}
	return err
}

// offer makes an entry say where the root's output lies, if the others may store to
// it, and prepares to do a share of a sum.
func (c *Comm) offer(o *op, line board, mode uint64) (uint64, error) {
	if o.red != 0 {
		if err := c.stages.journal(c.world, c.boards[c.rank]); err != nil {
			return mode, err
		}
		reduce.ResetLog(c.stages.log)
	}
	least := shareFrom
	if c.crowded {
		least *= len(c.members)
	}
	if c.rank != o.root || o.red != 0 && len(o.in) < least || o.red == reduce.PreMulSum {
		return mode, nil
	}
	out, seen := c.world.mem.Handle(o.out)
	if o.red != 0 {
		in, lent := c.world.mem.Handle(o.in)
		switch pools := c.pools(o); {
		case lent && (seen || pools):
			mode = inPlain
			*line.word(wordIn) = uint64(in)
		case pools:
			mode, seen = inPulled, false
			*line.word(wordIn) = uint64(uintptr(unsafe.Pointer(&o.in[0]))) // o holds it for as long as others read it
		default:
			return mode, nil
		}
		if c.pools(o) {
			mode |= pooled
		}
	}
	if seen {
		mode |= outSeen
		*line.word(wordOut) = uint64(out)
	}
	if o.overlap {
		mode |= overlaid
	}
	return mode, nil
}

// allHands reports whether this rank works for the root, or it is the root and the
// others do. All come to the same answer, as it follows from what they entered.
func (c *Comm) allHands(o *op) bool {
	switch {
	case c.rank != o.root && !(c.mayHelp(o) && c.lends(c.rank)) || c.views[o.root].mode&outSeen == 0:
		return false
	case o.op == sched.Gather:
		return true
	}
	for i := range c.members {
		if !c.lends(i) {
			return false
		}
	}
	return true
}

// together does what this rank does for the root.
func (c *Comm) together(o *op) error {
	own := &o.ready.flat.ranks[c.rank]
	if o.op != sched.Gather {
		o.overlaid = c.views[o.root].mode&overlaid != 0
		c.push(o, c.rank, o.overlaid || o.red == reduce.Avg)
		return c.quit(o, own.helps, true)
	}
	if c.rank != o.root {
		c.push(o, c.rank, false)
		return c.quit(o, nil, true)
	}
	c.pushers = c.pushers[:0]
	for k := range own.moves {
		m := &own.moves[k]
		if from := m.srcs[0].rank; int(from) != c.rank && c.lends(int(from)) {
			if n := len(c.pushers); n == 0 || c.pushers[n-1] != from {
				c.pushers = append(c.pushers, from)
			}
			continue
		}
		if lo, hi := o.shape.span(o.op, sched.Out, c.rank, int(m.dsts[0].chunk)); lo < hi {
			if err := c.move(o, m.srcs[0], 0, o.out[lo:hi]); err != nil {
				return err
			}
		}
	}
	return c.quit(o, c.pushers, true)
}

// pool sums this rank's share and leaves it where the root sees it, which copies all of
// them to its output.
func (c *Comm) pool(o *op) error {
	kernels := o.ready.flat.ranks[o.root].sums
	sums, h, err := c.stages.result(c.world, c.shares(o, c.rank))
	if err != nil {
		return err
	}
	for k, rest := 0, sums; k < len(kernels); k++ {
		from, to := c.share(c.rank, o.length(kernels[k].srcs[0]))
		if err := c.sum(o, &kernels[k], from, rest[:to-from], nil); err != nil {
			return err
		}
		rest = rest[to-from:]
	}
	if err := c.meetMid(o.call.Seq, h); err != nil || c.rank != o.root {
		return err
	}
	for i := range c.members {
		h := atomic.LoadUint64(c.boards[i].mid().word(wordResult))
		rest, err := c.world.mem.At(c.members[i], transport.Handle(h), c.shares(o, i))
		if err != nil {
			return err
		}
		for k := range kernels {
			lo, hi := o.shape.span(o.op, sched.Out, c.rank, int(kernels[k].dsts[0].chunk))
			from, to := c.share(i, hi-lo)
			reduce.Copy(o.out[lo+from:lo+to], rest[:to-from])
			rest = rest[to-from:]
		}
	}
	return nil
}

// shares is how many bytes a rank sums for the root.
func (c *Comm) shares(o *op, rank int) (bytes int) {
	kernels := o.ready.flat.ranks[o.root].sums
	for k := range kernels {
		from, to := c.share(rank, o.length(kernels[k].srcs[0]))
		bytes += to - from
	}
	return bytes
}

// pushBlocks moves what a rank lends, this one or one that died, to where the root
// wants it.
func (c *Comm) pushBlocks(o *op, rank int) {
	if v := &c.views[rank]; v.block != 0 {
		var err error
		if v.in, err = c.world.mem.At(c.members[rank], v.block, o.shape.bytes(o.op, sched.In, rank, len(c.members))); err != nil {
			panic(err) // it entered with it and did not leave
		}
	}
	moves := o.ready.flat.ranks[o.root].moves
	for k := range moves {
		m := &moves[k]
		lo, hi := o.shape.span(o.op, sched.Out, o.root, int(m.dsts[0].chunk))
		if int(m.srcs[0].rank) == rank && c.lends(rank) && lo < hi {
			reduce.Copy(c.views[o.root].out[lo:hi], c.source(o, m.srcs[0]))
		}
	}
}

// share is the part of so many bytes that a rank sums for the root.
func (c *Comm) share(rank, bytes int) (from, to int) {
	const line = 64
	part := (bytes/len(c.members) + line) / line * line
	return min(rank*part, bytes), min((rank+1)*part, bytes)
}
