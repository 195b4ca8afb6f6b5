package script

import (
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// What overwrites input in place: the first store to a chunk, but not a copy that
// stays where it is; and not by halves.
func TestFirsts(t *testing.T) {
	out := func(at, n int64) step.Chunks { return step.Chunks{Buf: sched.Out, Index: at, Count: n} }
	in := func(at, n int64) step.Chunks { return step.Chunks{Buf: sched.In, Index: at, Count: n} }
	act := func(op sched.Op, src, dst step.Chunks) action {
		return action{Action: step.Action{Op: op, Src: src, Dst: dst}}
	}
	list := []action{act(sched.Copy, in(0, 4), out(0, 4)), act(sched.RecvReduce, out(0, 2), out(0, 2)),
		act(sched.RecvReduce, out(1, 1), out(1, 1)), act(sched.Copy, in(3, 1), out(2, 1)), act(sched.Recv, step.Chunks{}, out(3, 1))}
	if !firsts(list) {
		t.Error("taken for one that stores by halves")
	}
	for i, want := range []bool{false, true, false, true, true} {
		if list[i].first != want {
			t.Errorf("action %d overwrites input: %t", i, list[i].first)
		}
	}
	if firsts(append(list[:2:2], act(sched.Recv, step.Chunks{}, out(1, 2)))) {
		t.Error("a store of which a half is the first is not told")
	}
	if !firsts(list[:3:3], list[3:]) {
		t.Error("channels that store to different chunks are taken for ones that store to the same")
	}
	if firsts(list[:3:3], []action{act(sched.Recv, step.Chunks{}, out(1, 1))}) {
		t.Error("two channels that store to a chunk are not told")
	}
}
