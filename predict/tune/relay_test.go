package tune

import (
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
)

// TestFiveV100: no cycle of NVLinks passes GPUs 0 to 4 of a DGX-1V, and NCCL goes
// through GPU 0 to reach GPU 4. 37 GB/s were measured; over PCIe it would be 9.
func TestFiveV100(t *testing.T) {
	s := newMachines(t)
	g := s.host("v100")
	gpus := allGPUs(g)
	m, err := NewNCCL(g, gpus[:5], s.c, NCCLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := m.Predict(sched.AllReduce, unit.GiB)
	if bus := float64(p.BusBW) / 1e9; p.Algo != "Ring" || bus < 30 || bus > 46 || p.Limit != "nvlink" {
		t.Errorf("%s at %.1f GB/s, limited by %s; measured 37", p.Algo, bus, p.Limit)
	} else if bus/37-1 > p.Within {
		t.Errorf("37 GB/s were measured, %.1f +-%.0f%% is predicted", bus, 100*p.Within)
	}
	// GPUs 1 and 4 have no NVLink between them: nothing to relay over in a set that NVLink does not join.
	m, err = NewNCCL(g, []topo.NodeID{gpus[1], gpus[4]}, s.c, NCCLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if p := m.Predict(sched.AllReduce, unit.GiB); p.Limit == "nvlink" {
		t.Errorf("1 and 4 alone: %s over %s", p.BusBW, p.Limit)
	}
}
