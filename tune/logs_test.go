package tune

import (
	"math"
	"testing"

	"github.com/weft-fabric/weft/sched"
)

// TestLogsNobodyFitted compares predictions with logs of eight A100 that no
// constant was fitted to. One thread drives all eight GPUs there (nThread 1 nGpus
// 8), so that launching alone takes 35 us, and 87 us for all-to-all, several times
// what the fitted points show with a process for each GPU. Small sizes are
// therefore printed and not judged.
func TestLogsNobodyFitted(t *testing.T) {
	s := newMachines(t)
	for name, op := range map[string]sched.Collective{"8xA100-allreduce.log": sched.AllReduce, "8xA100-reducescatter.log": sched.ReduceScatter, "8xA100-alltoall.log": sched.AllToAll} {
		t.Run(op.String(), func(t *testing.T) {
			points, err := ReadNCCLTestsAs(openLog(t, name), op)
			if err != nil {
				t.Fatal(err)
			}
			m := s.model("dgx-a100", 8, 1, NCCLOptions{})
			var errs [bands][]float64
			for _, p := range points {
				if p.Bytes == 0 || p.InPlace {
					continue
				}
				e := math.Abs(m.Predict(op, p.Bytes).Time.Seconds()/p.Time.Seconds() - 1)
				errs[bandOf(float64(p.Bytes))] = append(errs[bandOf(float64(p.Bytes))], e)
			}
			for b := range bands {
				t.Logf("%-16s %s (median | 90th | worst) over %d points", b, three(errs[b]), len(errs[b]))
			}
			if e := quantile(errs[large], .5); e > .10 {
				t.Errorf("64 MiB and up: median %s, at most 10%% wanted", percent(e))
			}
		})
	}
}
