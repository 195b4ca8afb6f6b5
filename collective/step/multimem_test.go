package step_test

import (
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/step"
)

// Which switches are NVSwitches is told by what they do, under any name.
func TestMultimemByWhatASwitchDoes(t *testing.T) {
	for _, x := range []struct {
		name     string
		spec     algo.Spec
		multimem bool
	}{
		{"nvls", algo.Spec{Op: sched.AllReduce, Ranks: 8}, true},
		{"nvls", algo.Spec{Op: sched.AllReduce, Ranks: 2}, true},
		{"nvls", algo.Spec{Op: sched.ReduceScatter, Ranks: 4}, true},
		{"nvls", algo.Spec{Op: sched.AllGather, Ranks: 4}, true},
		{"nvls-tree", algo.Spec{Op: sched.AllReduce, Ranks: 16, Local: 4}, true},
		{"sharp", algo.Spec{Op: sched.AllReduce, Ranks: 8}, false},
		{"sharp", algo.Spec{Op: sched.AllReduce, Ranks: 16, Local: 4}, false},
		{"sharp", algo.Spec{Op: sched.Barrier, Ranks: 8}, false},
		{"collnet-chain", algo.Spec{Op: sched.AllReduce, Ranks: 16, Local: 4}, false},
		{"collnet-chain", algo.Spec{Op: sched.AllReduce, Ranks: 4, Local: 4}, false},
		{"collnet-direct", algo.Spec{Op: sched.AllReduce, Ranks: 16, Local: 4}, false},
	} {
		a, err := algo.Find(x.name)
		if err != nil {
			t.Fatal(err)
		}
		p, err := a.Program(x.spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Name = "mine"
		code := step.Compile(p)
		for k := range p.Switches {
			if got := code.Multimem(sched.Rank(p.Ranks + k)); got != x.multimem {
				t.Errorf("%s %s of %d ranks: switch %d does what multimem does: %t; want %t", x.name, x.spec.Op, x.spec.Ranks, k, got, x.multimem)
			}
		}
	}
}
