package tune

import (
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// TestCalibrationKnowsItsOperations: points of all-reduce do not answer for
// all-to-all, and say so; with points of both, both are answered.
func TestCalibrationKnowsItsOperations(t *testing.T) {
	model := cost.AlphaBeta{Launch: 5, Alpha: .8, Beta: 1e-3 / 350, Overlap: 1}
	one, err := Calibrate(made(model, .05, sched.AllReduce))
	if err != nil {
		t.Fatal(err)
	}
	f := &one.Links[0]
	for _, op := range []sched.Collective{sched.AllToAll, sched.Gather, sched.Scatter, sched.SendRecv} {
		if _, err := f.Answer(nil, op, "auto", 8, 1, unit.GiB); err == nil || !strings.Contains(err.Error(), "measure "+op.String()) {
			t.Errorf("%s by a log of all-reduce: %v", op, err)
		}
	}
	a, err := f.Answer(nil, sched.AllGather, "auto", 8, 1, unit.MiB)
	if err != nil || len(a.Notes) != 1 || !strings.Contains(a.Notes[0], "no point is of all-gather") {
		t.Errorf("all-gather by a log of all-reduce: %+v, %v", a, err)
	}
	if a, err = f.Answer(nil, sched.AllReduce, "auto", 512, 1, unit.TiB); err != nil || len(a.Notes) != 2 {
		t.Errorf("far outside of the points: %+v, %v", a, err)
	}
	both, err := Calibrate(made(model, .05, sched.AllReduce, sched.AllToAll))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := both.Links[0].Answer(nil, sched.AllToAll, "auto", 8, 1, unit.MiB); err != nil || a.Algo != "direct" || len(a.Notes) > 0 {
		t.Errorf("all-to-all by a log of both: %+v, %v", a, err)
	}
	back, err := ReadCalibration(strings.NewReader(one.String()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := back.Links[0].Answer(nil, sched.AllToAll, "auto", 8, 1, unit.GiB); err == nil {
		t.Error("the file forgot what it was fitted to")
	}
}

// TestAnswersKeepToTheWire: a fit that is faster than the cluster's own wires
// does not make them so.
func TestAnswersKeepToTheWire(t *testing.T) {
	s := newMachines(t)
	for _, machine := range []string{"dgx-h100", "dgx-a100"} {
		for _, shape := range [][2]int{{8, 1}, {16, 2}, {64, 8}} {
			m := s.model(machine, shape[0], shape[1], NCCLOptions{})
			for _, op := range sched.Collectives() {
				f := &LinkFit{Kind: kindOf(shape[1]), Ops: sched.Collectives(), Alpha: Value{Best: 1e-6}, Beta: Value{Best: 1e-6},
					Overlap: Value{Best: 1}}
				a, err := f.Answer(m, op, "auto", shape[0], shape[1], unit.GiB)
				if err != nil {
					t.Fatal(err)
				}
				if want := m.WireTime(op, unit.GiB); a.Time < want || op != sched.Barrier && !a.Floor {
					t.Errorf("%s of 1 GiB on %d GPUs of %s: %s, the wire needs %s", op, shape[0], machine, a.Time, want)
				}
				if p := m.Predict(op, unit.GiB); p.Time < m.WireTime(op, unit.GiB) {
					t.Errorf("%s of 1 GiB on %d GPUs of %s: predicted %s, the wire needs %s", op, shape[0], machine, p.Time, m.WireTime(op, unit.GiB))
				}
			}
		}
	}
}

// What NCCL most likely runs costs the same whether it is asked for by name or not: it is what the points were fitted to.
func TestAnswersByNameAgree(t *testing.T) {
	m := newMachines(t).model("dgx-h100", 16, 2, NCCLOptions{})
	f := &LinkFit{Kind: "between", Ops: sched.Collectives(), Launch: Value{Best: 5}, Alpha: Value{Best: 10}, Beta: Value{Best: 30},
		Overlap: Value{Best: 1}}
	for _, op := range sched.Collectives() {
		auto, err := f.Answer(m, op, "auto", 16, 2, unit.MiB)
		if err != nil {
			t.Fatal(err)
		}
		named, err := f.Answer(m, op, auto.Algo, 16, 2, unit.MiB)
		if err != nil || named.Time != auto.Time || named.Algo != auto.Algo {
			t.Errorf("%s: %s by %s, and %+v, %v by that name", op, auto.Time, auto.Algo, named, err)
		}
	}
}
