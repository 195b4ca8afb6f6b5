package tune

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
)

// TestAlphaBetaFromTopology: without calibration a large ring all-reduce comes
// within a tenth of the prediction.
func TestAlphaBetaFromTopology(t *testing.T) {
	s := newMachines(t)
	for _, name := range []string{"dgx-a100", "dgx-h100", "dgx-b200", "dgx-1v"} {
		m := s.model(name, 8, 1, NCCLOptions{Algos: []string{"Ring"}})
		algos, _ := cost.Algos(sched.AllReduce, 8)
		got := m.AlphaBeta().Time(algos[0].Cost(4 * unit.GiB)).Microseconds()
		want := m.Predict(sched.AllReduce, 4*unit.GiB).Time.Microseconds()
		if math.Abs(got/want-1) > .1 {
			t.Errorf("%s: %.0f us by alpha and beta, %.0f predicted", name, got, want)
		}
	}
}

// TestSelectOnTopology: trees for small and rings for large buffers between
// nodes, and the calibration's word instead of the constants' where there is one.
func TestSelectOnTopology(t *testing.T) {
	s := newMachines(t)
	m := s.model("dgx-h100", 128, 16, NCCLOptions{})
	small, err := m.Select(sched.AllReduce, 1024, nil)
	if err != nil {
		t.Fatal(err)
	}
	large, err := m.Select(sched.AllReduce, 64*unit.GiB, nil)
	if err != nil {
		t.Fatal(err)
	}
	if small.Name == "ring" || large.Name != "ring" {
		t.Errorf("%s for 1 KiB, %s for 64 GiB: %s", small.Name, large.Name, large.Reason)
	}
	cal := &Calibration{Links: []LinkFit{{Kind: "between", Alpha: Value{Best: 1e-12}, Beta: Value{Best: 1}, Overlap: Value{Best: 1}}}}
	free, err := m.Select(sched.AllReduce, 1024, cal)
	if err != nil {
		t.Fatal(err)
	}
	if free.Name != "ring" { // steps cost nothing there, and a ring sends the least
		t.Errorf("%s by the calibration: %s", free.Name, free.Reason)
	}
	if _, err := s.model("dgx-h100", 8, 1, NCCLOptions{}).Select(sched.AllReduce, 8, cal); err == nil {
		t.Error("a calibration between nodes answers for one node")
	}
}
