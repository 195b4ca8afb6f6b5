package shared

import (
	"time"

	"github.com/weft-fabric/weft/run/comm/internal/op"
	"github.com/weft-fabric/weft/run/comm/internal/plan"
	"github.com/weft-fabric/weft/run/transport"
)

// A rank may be stopped in an operation for longer than the others wait for it, and go on when they have given it up:
//
//	rank 0   enter · read ·············· leave: waits … gives up │ the user changes its input, frees it, shrinks
//	rank 1   enter · read ·· (stopped) ························· │ ········· wakes · reads · stores · returns
//
// Three rules keep both sides right, and nobody waits for the rank that is stopped:
//
//  1. An operation is marked as given up, on every board, before any rank returns an error from it (GiveUp).
//  2. A rank that read memory of other ranks' users looks for that mark after its last read (stands): before it returns nil, and
//     before it lets others use sums of what it read. What lies on boards and stages needs no look: their owner writes nothing
//     there after a failure, and gives them back only when every rank has let go of them.
//  3. An output that the others were allowed to store to gets other frames before its owner returns an error
//     (transport.Fencer). Late stores go to the old frames, which are given back when every rank has let go of the board.
//
// model_test.go explores all interleavings of these steps, with each rule and without.

// stands is nil if what was read of other ranks' users is right, and what was stored to the own output.
func (x *run) stands() error {
	if !x.all.Borrowed && len(x.lent) == 0 {
		return nil
	}
	return x.g.Stands(x.o.Call.Seq)
}

// GiveUp marks an operation as given up, before the caller returns an error from it, and makes sure that nobody stores to its output
// any more. It reports whether an input in place is lost, because somebody may have stored to it before, or this rank did.
func (r *Runner) GiveUp(o *op.Op) (lost bool, err error) {
	g, seq := r.g, o.Call.Seq
	for i, b := range g.Boards {
		if i != g.Rank && b != nil {
			b.GiveUp(g.Rank, seq)
		}
	}
	g.Mine().Quit(seq)
	lost = r.spoiled || r.overwrites(o)
	out := r.lent
	r.lent = nil
	if len(out) == 0 || r.allLeft(seq) {
		return lost, nil
	}
	f, ok := g.Memory.(transport.Fencer)
	if !ok { // ranks are goroutines: none of them is stopped while this one runs
		for !r.allLeft(seq) {
			time.Sleep(20 * time.Microsecond)
		}
		return lost, nil
	}
	end, err := f.Fence(out)
	if err == nil {
		r.fences = append(r.fences, end)
	}
	return lost, err
}

// allLeft reports whether no rank stores to others' outputs in an operation any more. One that has not entered it finds it given up
// before it would store.
func (r *Runner) allLeft(seq uint64) bool {
	for i, b := range r.g.Boards {
		if i == r.g.Rank || b == nil || b.Leave().Load() >= seq || b.HasQuit() || r.g.Alive(i) != nil {
			continue
		}
		if entered := b.Entry(seq).Flag().Load() >= seq; entered {
			return false
		}
	}
	return true
}

// overwrites reports whether other ranks may have overwritten the input of an operation that was just marked: nobody stores to outputs
// before all have entered, and who enters later finds the mark. Saving every input that may be overwritten so would take as long as two to
// three such operations (16 MiB, 2026-11-18), so the error says that it is lost.
func (r *Runner) overwrites(o *op.Op) bool {
	if len(r.lent) == 0 || !o.Overlap || o.Mode == plan.Commit || o.Mode == plan.Pieces || o.Mode == plan.Pool {
		return false
	}
	for _, b := range r.g.Boards {
		if b == nil || b.Entry(o.Call.Seq).Flag().Load() < o.Call.Seq {
			return false
		}
	}
	return true
}

// Fences gives what ends the protection of given-up outputs, once no rank can store to them any more, and forgets it.
func (r *Runner) Fences() (ends []func() error) {
	ends, r.fences = r.fences, nil
	return ends
}

// mayLend reports whether the others may store to an output: only if it can be protected from them later.
func mayLend(m transport.Memory, out []byte) bool {
	f, ok := m.(transport.Fencer)
	return !ok || f.Fences(out)
}

// follows reports whether some input that is read is still being staged, so that waiting for it may fail.
func (x *run) follows() bool {
	for _, i := range x.own.Reads {
		if x.views[i].entry&plan.Growing != 0 {
			return true
		}
	}
	return false
}
