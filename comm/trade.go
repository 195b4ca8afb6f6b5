package comm

import (
	"sync/atomic"
	"unsafe"

	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/transport"
)

// All-reduce between two ranks on large buffers that the other does not see. Each
// sums one half, and both halves go by pieces through a few slots of the rank that
// gives them:
//
//	step j    piece j of the given half to its slot, and to where it is kept
//	          piece j-lag of the own half, kept, and the other's from its slot
//	          are summed to the output and to the slot
//	          piece j-2 lag of the given half from its slot to the output
//
// A step is done when the other has done the one lag steps before: then both what
// it gives and what it summed are there. Slots stay in the second-level caches, and
// what is in them goes from core to core twice, to who sums it and back, each time
// to be written there. So of the buffers every line comes from memory once, the kept
// copy goes there past the caches, and nothing else has to. After a failure what was
// overwritten is as it was kept. Who has done its last step needs nothing more of
// the other, nor the other of it.
//
// Microseconds between two Xeon cores with 2 MiB of second-level cache each, in
// place, medians of 9 turns of C programs that do the same (2026-11-15); staged: all
// of the input is copied to where the other sees it, and all sums are computed by
// both; pulled: process_vm_readv of a half each and then of its sums, with nothing
// kept, as MPI does it:
//
//	           swap  staged  pulled  trade
//	  1 MiB     120     151     240    132
//	1.5 MiB     224     244     318    160
//	  2 MiB     344     350     369    235
//	  4 MiB     753     687     589    479
//	  8 MiB    1489    1377    1156    951
//	 16 MiB    4975    4098    2925   1995
//	 64 MiB   25506   21454   20040   9427
//
// This program takes 1.1 times as long as the C program. The limit is how many lines
// a core can wait for at once: to read and write the buffer, 4 MiB, where it is in
// the third-level cache takes 200 us, going there and back through slots another 150,
// and keeping the input 130.
const (
	tradeFrom  = 5 << 18  // bytes of the input; below, swap is as fast
	tradePiece = 16 << 10 // bytes of a slot
	tradeSlots = 8        // more than 2 lag
	tradeLag   = 2        // steps
	tradeBlock = 8 << 10  // bytes that are moved and then summed at a time
)

// trade is an all-reduce by pieces under way.
type trade struct {
	own, given half
	pieces     int    // of either half
	step       int    // how many are done
	awaits     uint64 // the other's flag that is waited for
	runs       []run
	at         int // the run that was summed last
}

// half is a part of the buffers that one rank sums.
type half struct {
	lo, hi int
	kept   []byte // the input, as far as it may have been overwritten; nil if it is not
}

// run is a part of the buffers, up to a byte, whose sums begin with one rank's input.
type run struct {
	hi    int
	first int32
}

// piece is where piece k of the half lies in the buffers; there is nothing before
// the first one and behind the last.
func (h *half) piece(k int) (lo, hi int) {
	if k < 0 {
		return h.lo, h.lo
	}
	return min(h.lo+k*tradePiece, h.hi), min(h.lo+(k+1)*tradePiece, h.hi)
}

// keep stores input past the caches before it is overwritten.
func (h *half) keep(in []byte, lo, hi int) {
	if h.kept != nil {
		reduce.CopyAway(h.kept[lo-h.lo:hi-h.lo], in[lo:hi])
	}
}

// undo gives back what was overwritten: all of the pieces before one.
func (h *half) undo(in []byte, pieces int) {
	if _, hi := h.piece(pieces - 1); h.kept != nil && pieces > 0 {
		copy(in[h.lo:hi], h.kept)
	}
}

// trades reports whether an input that the other does not see is given by pieces.
func (c *Comm) trades(o *op, f *flat) bool {
	return f.pushes && c.couple(o) && len(o.in) >= tradeFrom && o.red != reduce.PreMulSum &&
		(!o.overlap || unsafe.SliceData(o.in) == unsafe.SliceData(o.out))
}

// stepFlag is the flag of a rank that has done so many steps; allSteps stands for a
// whole input that was staged instead.
func stepFlag(seq uint64, steps int) uint64 { return seq<<24 + uint64(steps) }

const allSteps = 1<<24 - 1

// trade carries an all-reduce out of which both ranks give their inputs by pieces.
func (c *Comm) trade(o *op) error {
	t, n := &o.trade, len(o.in)
	cut := n / 2 &^ 63
	t.own, t.given = half{lo: 0, hi: cut}, half{lo: cut, hi: n}
	if c.rank == 1 {
		t.own, t.given = t.given, t.own
	}
	if o.overlap {
		const line = 64
		room := c.stages.scratch(useKept, n+2*line)
		room = room[-uintptr(unsafe.Pointer(&room[0]))%line:]
		t.own.kept, t.given.kept = room[:t.own.hi-t.own.lo], room[(t.own.hi-t.own.lo+line-1)&^(line-1):]
	}
	t.pieces, t.step, t.at = (n-cut+tradePiece-1)/tradePiece, 0, 0
	t.setRuns(c, o)
	c.phase = trading
	mine, theirs := c.boards[c.rank], c.boards[1-c.rank]
	for t.step < t.pieces+2*tradeLag {
		if t.step >= tradeLag {
			t.awaits = stepFlag(o.call.Seq, t.step-tradeLag+1)
			if err := theirs.steps().WaitAs(t.awaits, theirs.sleepers(), c.waiter, c.stopFn); err != nil {
				t.own.undo(o.in, t.step-tradeLag)
				t.given.undo(o.in, t.step-2*tradeLag)
				return err
			}
		}
		c.tradeStep(o, t.step)
		t.step++
		// Who sleeps is woken when this rank has to wait for it, some steps later.
		mine.steps().RaiseFor(stepFlag(o.call.Seq, t.step), mine.sleepers(), c.waiter)
	}
	c.waiter.Settle()
	return nil
}

// tradeStep moves a piece each way and sums one.
func (c *Comm) tradeStep(o *op, step int) {
	t := &o.trade
	slots, others := c.staged, c.views[1-c.rank].in
	slot := func(k int) int { return max(k, 0) % tradeSlots * tradePiece }
	give, sum, back := slot(step), slot(step-tradeLag), slot(step-2*tradeLag)
	giveLo, giveHi := t.given.piece(step)
	sumLo, sumHi := t.own.piece(step - tradeLag)
	backLo, backHi := t.given.piece(step - 2*tradeLag)
	for at := 0; at < tradePiece; at += tradeBlock {
		g, s, b := min(giveLo+at, giveHi), min(sumLo+at, sumHi), min(backLo+at, backHi)
		gEnd, sEnd, bEnd := min(g+tradeBlock, giveHi), min(s+tradeBlock, sumHi), min(b+tradeBlock, backHi)
		other := others[sum+at:][:sEnd-s]
		for s < sEnd && t.runs[t.at].hi <= s {
			t.at++
		}
		if gEnd-g == tradeBlock && sEnd-s == tradeBlock && bEnd-b == tradeBlock && sEnd <= t.runs[t.at].hi {
			x := reduce.Trade{In: &o.in[g], Slot: &slots[give+at], Own: &o.in[s], Sum: &o.out[s], Other: &other[0], Out: &o.out[b], Back: &slots[back+at]}
			if t.own.kept != nil {
				x.Kept, x.Saved = &t.given.kept[g-t.given.lo], &t.own.kept[s-t.own.lo]
			}
			x.Do(o.t, o.red, int(t.runs[t.at].first) == c.rank, tradeBlock)
			if o.red == reduce.Avg {
				reduce.Finish(o.t, o.red, o.out[s:sEnd], 2)
				copy(other, o.out[s:sEnd])
			}
			continue
		}
		t.given.keep(o.in, g, gEnd)
		copy(slots[give+at:], o.in[g:gEnd])
		t.own.keep(o.in, s, sEnd)
		copy(o.out[b:bEnd], slots[back+at:])
		for s < sEnd {
			for t.runs[t.at].hi <= s {
				t.at++
			}
			end := min(sEnd, t.runs[t.at].hi)
			first, second := o.in[s:end], other[:end-s]
			if int(t.runs[t.at].first) != c.rank {
				first, second = second, first
			}
			o.srcs = append(o.srcs[:0], first, second)
			c.apply(o, o.srcs, o.out[s:end], other[:end-s])
			s, other = end, other[end-s:]
		}
	}
}

// setRuns finds the order of the sums as the program has it: both ranks compute the
// same bits whoever of them sums a part.
func (t *trade) setRuns(c *Comm, o *op) {
	t.runs = t.runs[:0]
	for r := range o.ready.flat.ranks {
		for k := range o.ready.flat.ranks[r].sums {
			s := &o.ready.flat.ranks[r].sums[k]
			lo, hi := o.shape.span(o.call.Op, sched.Out, c.rank, int(s.srcs[0].chunk)) // of an all-reduce, in and out
			if lo == hi {
				continue
			}
			at := len(t.runs)
			t.runs = append(t.runs, run{})
			for ; at > 0 && t.runs[at-1].hi > lo; at-- {
				t.runs[at] = t.runs[at-1]
			}
			t.runs[at] = run{hi, s.srcs[0].rank}
		}
	}
}

// stageInstead stages the input of a rank that would have given it by pieces to one
// that gives its own otherwise, having memory that the other sees for example.
func (c *Comm) stageInstead(o *op) error {
	c.phase = trading
	o.trade.awaits = stepFlag(o.call.Seq, allSteps)
	for i := range c.members {
		v, b := &c.views[i], c.boards[i]
		switch {
		case v.mode&inMask != inSlots:
			continue
		case i == c.rank:
			stage, h, _, err := c.stages.input(c.world, o.call.Seq, len(o.in), true)
			if err != nil {
				return err
			}
			reduce.Copy(stage, o.in)
			c.staged = stage
			atomic.StoreUint64(b.stepLine().word(wordStage), uint64(h))
			b.steps().RaiseFor(o.trade.awaits, b.sleepers(), c.waiter)
			c.waiter.Settle()
		default:
			if err := b.steps().WaitAs(o.trade.awaits, b.sleepers(), c.waiter, c.stopFn); err != nil {
				return err
			}
			var err error
			h := transport.Handle(atomic.LoadUint64(b.stepLine().word(wordStage)))
			if v.in, err = c.world.mem.At(c.members[i], h, len(o.in)); err != nil {
				return err
			}
		}
		v.mode = v.mode&^inMask | inStage
	}
	return nil
}
