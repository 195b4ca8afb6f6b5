package shared

import (
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

// direct does the sums and moves that end in the own output, and waits for the readers of the own input where it is borrowed.
func (x *run) direct() error {
	err := x.fillOut()
	// Nothing else can fail after the first store. Saving the input would make operations in place take twice as long
	// (reduce-scatter and all-to-all of 16 MiB, 2026-11-18), so the error says that it is lost.
	x.spoiled = err != nil && x.o.Overlap && (x.all.Borrowed || x.mine.Borrowed() || x.follows())
	return err
}

// fillOut is direct without its account of failures.
func (x *run) fillOut() error {
	if x.o.Op != sched.Broadcast || x.g.Rank != x.o.Root { // which has it where it belongs
		if len(x.own.Sums) > 0 {
			if err := x.sumHere(); err != nil {
				return err
			}
		}
		if len(x.own.Moves) > 0 {
			if err := x.moveHere(); err != nil {
				return err
			}
		}
	}
	switch {
	case x.mine.Borrowed():
		return x.leave(x.own.Readers, nil)
	case x.all.Borrowed:
		return x.leave(nil, nil)
	}
	return nil
}

// sumHere does the sums.
func (x *run) sumHere() error {
	for i := range x.own.Sums {
		k := &x.own.Sums[i]
		lo, hi := x.o.OutSpan(k.Dsts[0])
		if err := x.sum(k, 0, x.o.Out[lo:hi], nil); err != nil {
			return err
		}
	}
	return nil
}

// moveHere does the moves.
func (x *run) moveHere() error {
	stride := plan.Stride(x.call)
	moves := x.own.Moves
	for done, more := 0, true; more; done += stride {
		more = false
		for i := range moves {
			k := &moves[(i+x.own.First)%len(moves)]
			lo, hi := x.o.OutSpan(k.Dsts[0])
			if lo += done; lo >= hi {
				continue
			}
			if hi-lo > stride {
				hi, more = lo+stride, true
			}
			if err := x.move(k.Srcs[0], done, x.o.Out[lo:hi]); err != nil {
				return err
			}
		}
	}
	return nil
}

// move copies a part of a chunk of a rank's input, from a byte of the chunk on.
func (x *run) move(from flat.Chunk, skip int, dst []byte) error {
	v := &x.views[from.Rank]
	at, _ := x.o.InSpan(from)
	at += skip
	switch {
	case v.addr != 0:
		return x.g.Pull(int(from.Rank), v.addr+uintptr(at), dst)
	case v.entry&plan.Growing != 0 && int(from.Rank) != x.g.Rank:
		return x.copyBehind(int(from.Rank), at, dst)
	}
	if src := v.in[at:][:len(dst)]; &src[0] != &dst[0] {
		reduce.Copy(dst, src)
	}
	return nil
}

// pullAtOnce is how many bytes are pulled at a time from all ranks together: they stay in the second-level cache.
const pullAtOnce = 256 << 10

// sum computes a sum into dst, from a byte of its chunks on, and into also if it is not nil.
func (x *run) sum(k *flat.Kernel, from int, dst, also []byte) error {
	if len(dst) == 0 {
		return nil
	}
	pulled := 0
	for _, c := range k.Srcs {
		if x.views[c.Rank].addr != 0 {
			pulled++
		}
		if x.views[c.Rank].entry&plan.Growing != 0 {
			return x.sumBehind(k, dst)
		}
	}
	if pulled > 0 {
		return x.sumPulled(k, pulled, from, dst, also)
	}
	srcs := x.sources(k)
	for i, s := range srcs {
		srcs[i] = s[from:][:len(dst)]
	}
	x.apply(x.o.Type, x.o.Reduce, srcs, k.Order, dst, also)
	return nil
}

// sumPulled is sum where some sources must be pulled, in pieces that stay in the second-level cache.
func (x *run) sumPulled(k *flat.Kernel, pulled, from int, dst, also []byte) error {
	piece := max(pullAtOnce/pulled&^4095, 4096)
	var aside []byte
	if pulled > 1 || op.Overlap(dst, x.o.In) { // else it goes to where the sum will be
		aside = x.private(pulled * piece)
	}
	for at := 0; at < len(dst); at += piece {
		n := min(piece, len(dst)-at)
		x.srcs = x.srcs[:0]
		next := 0
		for _, c := range k.Srcs {
			lo, _ := x.o.InSpan(c)
			v := &x.views[c.Rank]
			if v.addr == 0 {
				x.srcs = append(x.srcs, v.in[lo+from+at:][:n])
				continue
			}
			b := dst[at : at+n]
			if aside != nil {
				b = aside[next:][:n]
			}
			next += piece
			if err := x.g.Pull(int(c.Rank), v.addr+uintptr(lo+from+at), b); err != nil {
				return err
			}
			x.srcs = append(x.srcs, b)
		}
		var more []byte
		if also != nil {
			more = also[at : at+n]
		}
		x.apply(x.o.Type, x.o.Reduce, x.srcs, k.Order, dst[at:at+n], more)
	}
	return nil
}

// private gives memory that nobody else sees.
func (r *Runner) private(n int) []byte {
	if cap(r.scratch) < n {
		r.scratch = make([]byte, n)
	}
	return r.scratch[:n]
}
