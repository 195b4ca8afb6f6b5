package shared

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

// Of an operation that ends at one rank, a gather or a reduce, that rank would do all the work while the others wait for it to be
// done with their memory. Where they see its output they do it instead (Share): in a gather each moves its own block there, in a
// reduce, where all see all inputs, each sums a share of the elements. Large inputs that have to be pulled are shared, too: the
// shares are left where the root sees them (Pool).

// share does what this rank does for the root.
func (x *run) share() error {
	if x.o.Op == sched.Gather {
		return x.shareGather()
	}
	if err := x.g.Stands(x.o.Call.Seq); err != nil { // see allLeft
		return err
	}
	logged := x.views[x.o.Root].entry&plan.Overlaid != 0 || x.o.Reduce == reduce.Avg
	x.storeShare(x.g.Rank, logged)
	return x.leave(x.own.Helps, func(dead int) { x.storeShare(dead, logged) })
}

// storeShare stores the share of a rank, this one or one that died, to the root's output.
func (x *run) storeShare(rank int, logged bool) {
	sums, done := x.o.Form.Rank(x.o.Root).Sums, 0
	for i := range sums {
		lo, hi := x.shareOf(rank, x.length(&sums[i]))
		done += x.storeSum(&sums[i], lo, hi, rank, logged, done)
	}
}

// shareGather moves the own block to the root's output. The root moves those of ranks whose memory it cannot lend its output to,
// and waits for the others; what it gathers nobody else misses, so it does a dead rank's part itself.
func (x *run) shareGather() error {
	inherit := func(dead int) { x.moveBlocks(dead) }
	if x.g.Rank != x.o.Root {
		x.moveBlocks(x.g.Rank)
		return x.leaveTo(nil, inherit, false)
	}
	var movers []int32 // ranks that move their blocks here
	for i := range x.own.Moves {
		k := &x.own.Moves[i]
		if from := k.Srcs[0].Rank; int(from) != x.g.Rank && x.lends(int(from)) {
			if n := len(movers); n == 0 || movers[n-1] != from {
				movers = append(movers, from)
			}
			continue
		}
		if lo, hi := x.o.OutSpan(k.Dsts[0]); lo < hi {
			if err := x.move(k.Srcs[0], 0, x.o.Out[lo:hi]); err != nil {
				return err
			}
		}
	}
	return x.leaveTo(movers, inherit, false)
}

// lends reports whether a rank's input is seen where it lies.
func (x *run) lends(rank int) bool { return x.views[rank].entry.Input() == plan.Lent }

// moveBlocks moves what a rank lends, this one or one that died, to where the root wants it.
func (x *run) moveBlocks(rank int) {
	if v := &x.views[rank]; v.block != 0 {
		var err error
		if v.in, err = x.g.At(rank, v.block, x.o.InBytes(rank, x.g.Size())); err != nil {
			panic(err) // it entered with it and did not leave
		}
	}
	moves := x.o.Form.Rank(x.o.Root).Moves
	for i := range moves {
		k := &moves[i]
		lo, hi := x.o.OutSpan(k.Dsts[0])
		if int(k.Srcs[0].Rank) == rank && x.lends(rank) && lo < hi {
			reduce.Copy(x.views[x.o.Root].out[lo:hi], x.source(k.Srcs[0]))
		}
	}
}

// pool sums this rank's share and leaves it where the root sees it. The root copies all shares to its output.
func (x *run) pool() error {
	kernels := x.o.Form.Rank(x.o.Root).Sums
	sums, h, err := x.staging.result(x.shareBytes(kernels, x.g.Rank))
	if err != nil {
		return err
	}
	for i, rest := 0, sums; i < len(kernels); i++ {
		from, to := x.shareOf(x.g.Rank, x.length(&kernels[i]))
		if err := x.sum(&kernels[i], from, rest[:to-from], nil); err != nil {
			return err
		}
		rest = rest[to-from:]
	}
	if err := x.meet(h); err != nil || x.g.Rank != x.o.Root {
		return err
	}
	for i := range x.g.Members {
		rest, err := x.g.At(i, x.g.Boards[i].Mid().Where(), x.shareBytes(kernels, i))
		if err != nil {
			return err
		}
		for k := range kernels {
			lo, hi := x.o.OutSpan(kernels[k].Dsts[0])
			from, to := x.shareOf(i, hi-lo)
			reduce.Copy(x.o.Out[lo+from:lo+to], rest[:to-from])
			rest = rest[to-from:]
		}
	}
	return nil
}

// shareBytes is how many bytes a rank sums for the root.
func (x *run) shareBytes(kernels []flat.Kernel, rank int) (bytes int) {
	for i := range kernels {
		from, to := x.shareOf(rank, x.length(&kernels[i]))
		bytes += to - from
	}
	return bytes
}

// shareOf is the part of n bytes that a rank sums for the root.
func (x *run) shareOf(rank, n int) (from, to int) {
	const line = 64
	part := (n/x.g.Size() + line) / line * line
	return min(rank*part, n), min((rank+1)*part, n)
}
