package shared

import (
	"unsafe"

	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/flat"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/reduce"
)

// All-reduce between two ranks on large buffers that the other does not see. Each sums one half, and both halves go by pieces
// through a few slots of the rank that gives them:
//
//	step j    piece j of the given half to its slot, and to where it is saved
//	          piece j-lag of the own half, saved, and the other's from its slot are summed to the output and to the slot
//	          piece j-2 lag of the given half from its slot to the output
//
// A step is done when the other has done the one lag steps before: then both what it gives and what it summed are there. Slots
// stay in the second-level caches, and what is in them goes from core to core twice, to the rank that sums it and back, each time
// to be written there. So of the buffers every line comes from memory once, the saved copy goes there past the caches, and
// nothing else has to. After a failure what was overwritten is as it was saved. A rank that has done its last step needs nothing
// more of the other, nor the other of it.
//
// Without it, through Commit, 2 MiB and 4 MiB take 2.1 times as long, 16 MiB 4.4 times (two Xeon cores, best of 120 turns,
// 2026-11-16). The limit is how many lines a core can wait for at once: to read and write a buffer of 4 MiB in the third-level
// cache takes 200 us, going there and back through slots another 150, and saving the input 130.
const (
	pieceSize = plan.PieceSize // bytes of a slot
	slots     = 8              // more than 2 lag
	lag       = 2              // steps
	blockSize = 8 << 10        // bytes that are moved and then summed at a time
)

// exchange is what an all-reduce by pieces keeps from one operation to the next.
type exchange struct {
	orders []order
	saved  []byte
}

// trade is an all-reduce by pieces under way.
type trade struct {
	*run
	own, given half
	steps      int
	at         int // the order that was used last
}

// half is a part of the buffers that one rank sums.
type half struct {
	lo, hi int
	saved  []byte // the input, as far as it may have been overwritten; nil if it is not
}

// order is a part of the buffers, up to a byte, whose sums begin with one rank's input.
type order struct {
	hi    int
	first int32
}

// piece is where piece k of the half lies in the buffers; there is nothing before the first one and behind the last.
func (h *half) piece(k int) (lo, hi int) {
	if k < 0 {
		return h.lo, h.lo
	}
	return min(h.lo+k*pieceSize, h.hi), min(h.lo+(k+1)*pieceSize, h.hi)
}

// save stores input past the caches before it is overwritten.
func (h *half) save(in []byte, lo, hi int) {
	if h.saved != nil {
		reduce.CopyAway(h.saved[lo-h.lo:hi-h.lo], in[lo:hi])
	}
}

// undo gives back what was overwritten: all of the pieces before one.
func (h *half) undo(in []byte, pieces int) {
	if _, hi := h.piece(pieces - 1); h.saved != nil && pieces > 0 {
		copy(in[h.lo:hi], h.saved)
	}
}

// stepFlag is the flag of a rank that has done a number of steps; allSteps stands for a whole input that was staged instead.
func stepFlag(seq uint64, steps int) uint64 { return seq<<24 + uint64(steps) }

const allSteps = 1<<24 - 1

// byPieces runs an all-reduce in which both ranks give their inputs by pieces.
func (x *run) byPieces() error {
	o, n := x.o, len(x.o.In)
	cut := n / 2 &^ 63
	t := trade{run: x, own: half{lo: 0, hi: cut}, given: half{lo: cut, hi: n}}
	if x.g.Rank == 1 {
		t.own, t.given = t.given, t.own
	}
	if o.Overlap {
		const line = 64
		if cap(x.saved) < n+2*line {
			x.saved = make([]byte, n+2*line)
		}
		b := x.saved[:n+2*line]
		b = b[-uintptr(unsafe.Pointer(&b[0]))%line:]
		own := t.own.hi - t.own.lo
		t.own.saved, t.given.saved = b[:own], b[(own+line-1)&^(line-1):]
	}
	t.steps = (n-cut+pieceSize-1)/pieceSize + 2*lag
	x.setOrders()
	return t.all(o.Call.Seq)
}

// all does all steps.
func (t *trade) all(seq uint64) error {
	g := t.g
	g.Wait.Phase = blame.Pieces
	mine, other := g.Mine().Steps().Flag(), g.Boards[1-g.Rank].Steps().Flag()
	for s := range t.steps {
		if s >= lag {
			g.Wait.Flag = stepFlag(seq, s-lag+1)
			if err := g.Await(1-g.Rank, other, g.Wait.Flag); err != nil {
				t.own.undo(t.o.In, s-lag)
				t.given.undo(t.o.In, s-2*lag)
				return err
			}
		}
		t.step(s)
		// A rank that sleeps is woken when this one has to wait for it, some steps later.
		g.Raise(mine, stepFlag(seq, s+1))
	}
	g.Waiter.Settle()
	return nil
}

// step moves a piece each way and sums one.
func (t *trade) step(step int) {
	o, slotsHere, slotsThere := t.o, t.staged, t.views[1-t.g.Rank].in
	slot := func(k int) int { return max(k, 0) % slots * pieceSize }
	give, sum, back := slot(step), slot(step-lag), slot(step-2*lag)
	giveLo, giveHi := t.given.piece(step)
	sumLo, sumHi := t.own.piece(step - lag)
	backLo, backHi := t.given.piece(step - 2*lag)
	for at := 0; at < pieceSize; at += blockSize {
		g, s, b := min(giveLo+at, giveHi), min(sumLo+at, sumHi), min(backLo+at, backHi)
		gEnd, sEnd, bEnd := min(g+blockSize, giveHi), min(s+blockSize, sumHi), min(b+blockSize, backHi)
		other := slotsThere[sum+at:][:sEnd-s]
		for s < sEnd && t.orders[t.at].hi <= s {
			t.at++
		}
		if gEnd-g == blockSize && sEnd-s == blockSize && bEnd-b == blockSize && sEnd <= t.orders[t.at].hi {
			x := reduce.Trade{In: &o.In[g], Slot: &slotsHere[give+at], Own: &o.In[s], Sum: &o.Out[s], Other: &other[0], Out: &o.Out[b],
				Back: &slotsHere[back+at]}
			if t.own.saved != nil {
				x.Kept, x.Saved = &t.given.saved[g-t.given.lo], &t.own.saved[s-t.own.lo]
			}
			x.Do(o.Type, o.Reduce, int(t.orders[t.at].first) == t.g.Rank, blockSize)
			if o.Reduce == reduce.Avg {
				reduce.Finish(o.Type, o.Reduce, o.Out[s:sEnd], 2)
				copy(other, o.Out[s:sEnd])
			}
			continue
		}
		t.given.save(o.In, g, gEnd)
		copy(slotsHere[give+at:], o.In[g:gEnd])
		t.own.save(o.In, s, sEnd)
		copy(o.Out[b:bEnd], slotsHere[back+at:])
		t.sumBlock(s, sEnd, other)
	}
}

// sumBlock sums a block of the own half and the other's, in the order that the program has.
func (t *trade) sumBlock(s, end int, other []byte) {
	o := t.o
	for s < end {
		for t.orders[t.at].hi <= s {
			t.at++
		}
		to := min(end, t.orders[t.at].hi)
		first, second := o.In[s:to], other[:to-s]
		if int(t.orders[t.at].first) != t.g.Rank {
			first, second = second, first
		}
		t.srcs = append(t.srcs[:0], first, second)
		t.apply(o.Type, o.Reduce, t.srcs, nil, o.Out[s:to], other[:to-s])
		s, other = to, other[to-s:]
	}
}

// setOrders finds the order of the sums as the program has it: both ranks compute the same bits, whichever of them sums a part.
func (x *run) setOrders() {
	x.orders = x.orders[:0]
	for r := range x.o.Form.Size() {
		for _, k := range x.o.Form.Rank(r).Sums {
			first := k.Srcs[0]
			lo, hi := x.o.OutSpan(flat.Chunk{Rank: int32(x.g.Rank), Index: first.Index}) // of an all-reduce, in and out
			if lo == hi {
				continue
			}
			at := len(x.orders)
			x.orders = append(x.orders, order{})
			for ; at > 0 && x.orders[at-1].hi > lo; at-- {
				x.orders[at] = x.orders[at-1]
			}
			x.orders[at] = order{hi, first.Rank}
		}
	}
}
