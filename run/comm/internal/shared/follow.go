package shared

import (
	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

// Inputs that the others do not see, and of which all is read, are copied to a stage piece by piece, and their readers follow
// behind: two cores are at it, where a rank that pulls the input leaves its owner idle. A reduce of 4 MiB between two ranks
// takes 3.1 times as long without it, a gather 1.3 times, a broadcast between four ranks 1.5 times (2026-11-16).
const (
	leastPiece = 16 << 10
	mostPiece  = 256 << 10
)

// pieceOf is how long the pieces of an input of n bytes are: an eighth, so that its readers are not far behind.
func pieceOf(n int) int { return min(max(n/8&^4095, leastPiece), mostPiece) }

// fill fills the own stage after the others were told of it.
func (x *run) fill() {
	g, n := x.g, len(x.o.In)
	piece := pieceOf(n)
	for at := 0; at < n; at += piece {
		end := min(at+piece, n)
		reduce.Copy(x.staged[at:end], x.o.In[at:end])
		x.pieces++
		g.Waiter.Settle()
		g.Raise(g.Mine().Staged(), x.pieces)
	}
	g.Waiter.Settle()
}

// follow returns once a rank's growing stage is filled up to a byte.
func (x *run) follow(rank, end int) error {
	v, w := &x.views[rank], &x.g.Wait
	piece := pieceOf(len(v.in))
	want, staged := v.base+uint64((end+piece-1)/piece), x.g.Boards[rank].Staged()
	if staged.Load() >= want {
		return nil
	}
	was := w.Phase
	w.Phase, w.Rank, w.Flag = blame.Input, rank, want
	err := x.g.Await(rank, staged, want)
	w.Phase = was
	return err
}

// copyBehind copies a part of a growing stage, from a byte of its owner's input on, as it is filled.
func (x *run) copyBehind(rank, at int, dst []byte) error {
	in := x.views[rank].in
	piece := pieceOf(len(in))
	for done := 0; done < len(dst); {
		end := min(len(dst), (at+done)/piece*piece+piece-at)
		if err := x.follow(rank, at+end); err != nil {
			return err
		}
		reduce.Copy(dst[done:end], in[at+done:at+end])
		done = end
	}
	return nil
}

// sumBehind computes a sum of which some sources are growing stages, as they are filled. If the sum goes where an input is, that
// input stays as it is until nothing can fail any more.
func (x *run) sumBehind(k *flat.Kernel, dst []byte) error {
	piece := mostPiece
	for _, c := range k.Srcs {
		if v := &x.views[c.Rank]; v.entry&plan.Growing != 0 {
			piece = min(piece, pieceOf(len(v.in)))
		}
	}
	if op.Overlap(dst, x.o.In) {
		piece = len(dst)
	}
	for at := 0; at < len(dst); at += piece {
		end := min(at+piece, len(dst))
		x.srcs = x.srcs[:0]
		for _, c := range k.Srcs {
			lo, _ := x.o.InSpan(c)
			if x.views[c.Rank].entry&plan.Growing != 0 && int(c.Rank) != x.g.Rank {
				if err := x.follow(int(c.Rank), lo+end); err != nil {
					return err
				}
			}
			x.srcs = append(x.srcs, x.views[c.Rank].in[lo+at:lo+end])
		}
		x.apply(x.o.Type, x.o.Reduce, x.srcs, k.Order, dst[at:end], nil)
	}
	return nil
}
