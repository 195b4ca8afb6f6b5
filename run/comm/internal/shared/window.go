package shared

import (
	"github.com/weft-fabric/weft/run/comm/internal/blame"
	"github.com/weft-fabric/weft/run/comm/internal/board"
	"github.com/weft-fabric/weft/run/comm/internal/group"
	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
)

// Ranks wait only for those whose inputs they read: the root of a broadcast for nobody, the others for the root; the root of a
// reduction for all, the others for nobody. So a rank may be operations ahead of another, and may not write again what the
// other has yet to read. The rules:
//
//  1. What a rank reads of another's board or stages in operation v it has read before it enters v+1.
//  2. A rank writes the entry and the call of operation v once all ranks entered v-63, so that by rule 1 nobody reads those of
//     v-64, which lie in the same place, any more. The same goes for a small input, with 16 in place of 64, and for a stage,
//     with the number of operations since it was last used.
//  3. Memory that is read where it lies (lent) is waited for at the end of its operation, by its owner, for its readers
//     (leave).
//
// Nobody waits in a circle: the rank that entered the fewest operations is waited for by others, but all ranks entered what it
// needs. A rank that has to wait by rule 2 waits until the others are half a window ahead of that, so that a look at their
// entries, 0.1 us each, is needed once in many operations only.
//
// Calls are compared by whoever reads an entry, and by whoever looks at one by rule 2. Every signature has that of the operation
// before mixed in. So ranks that differ in a call that was not compared differ in all that follow, and the first entry
// that one reads of the other tells. Then the calls on both boards tell in which operation it was.
type window struct {
	low    uint64              // all ranks entered this operation
	staged [plan.Stages]uint64 // the operations that used the stages last
}

// awaitAll returns once all ranks entered operation w, which this rank did before.
func (r *Runner) awaitAll(o *op.Op, w uint64) error {
	g := r.g
	mine := g.Mine().Entry(w).LoadSig()
	for k := 1; k < g.Size(); k++ {
		i := (g.Rank + k) % g.Size()
		line := g.Boards[i].Entry(w)
		if line.Flag().Load() < w {
			if o.Began == 0 {
				r.record(o)
			}
			if err := g.Await(i, line.Flag(), w); err != nil {
				return err
			}
		}
		// The signature is that of w unless the rank is about to write its entry of w+64.
		if line.LoadSig() != mine && g.Boards[i].Entry(w+board.Window-1).Flag().Load() < w+board.Window-1 {
			return &Mismatch{Rank: i}
		}
	}
	r.window.low = w
	return nil
}

// Mismatch says that a rank entered a call that differs from this rank's, now or before.
type Mismatch struct{ Rank int }

func (*Mismatch) Error() string { return "ranks entered different calls" }

// mayEnter returns once the entry of an operation may be written, or with a failure: a rank that waits for nobody would not
// hear of it otherwise.
func (r *Runner) mayEnter(o *op.Op) error {
	r.g.Wait.Phase, r.g.Wait.Seq = blame.Entry, o.Call.Seq
	if r.g.Mine().NoticeWord().Load() != 0 {
		if err := r.g.Heard(); err != nil {
			return err
		}
	}
	if by := r.g.Mine().WasGivenUp(o.Call.Seq); by >= 0 {
		return &group.GivenUp{By: by}
	}
	if seq := o.Call.Seq; seq-r.window.low >= board.Window {
		return r.awaitAll(o, seq-board.Window/2)
	}
	return nil
}

// mayWriteSmall returns once the small input of an operation may be written.
func (r *Runner) mayWriteSmall(o *op.Op) error {
	if seq := o.Call.Seq; seq-r.window.low >= board.SmallWindow {
		return r.awaitAll(o, seq-board.SmallWindow/2)
	}
	return nil
}

// mayStage returns once the stage of an operation may be written.
func (r *Runner) mayStage(o *op.Op) error {
	seq := o.Call.Seq
	last := &r.window.staged[plan.StageOf(seq, len(o.In))]
	if *last >= r.window.low && *last > 0 {
		w := *last + 1
		if seq-*last == plan.Stages {
			w = seq - plan.Stages/2
		}
		if err := r.awaitAll(o, w); err != nil {
			return err
		}
	}
	*last = seq
	return nil
}

// Arrive enters an operation whose input nobody reads and waits until all ranks have, comparing their calls.
func (r *Runner) Arrive(o *op.Op) error {
	if err := r.mayEnter(o); err != nil {
		return err
	}
	g, seq := r.g, o.Call.Seq
	line := g.Mine().Entry(seq)
	line.SetSig(o.Sig)
	line.SetEntry(0)
	o.Call.Put(g.Mine().Call(seq))
	g.Mine().SetBegan(seq, o.Began)
	g.Raise(line.Flag(), seq)
	for k := 1; k < g.Size(); k++ {
		i := (g.Rank + k) % g.Size()
		line := g.Boards[i].Entry(seq)
		if err := g.Await(i, line.Flag(), seq); err != nil {
			return err
		}
		if line.LoadSig() != o.Sig {
			return &Mismatch{Rank: i}
		}
	}
	g.Waiter.Settle()
	r.window.low = seq
	return nil
}
