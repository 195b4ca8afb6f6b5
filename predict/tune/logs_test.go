package tune

import (
	"math"
	"os"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
)

// notFitted reads points of eight A100 that no constant was fitted to.
func notFitted(t testing.TB) []Point {
	t.Helper()
	f, err := os.Open(dataDir + "a100_not_fitted.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	points, err := ReadPoints(f)
	if err != nil {
		t.Fatal(err)
	}
	return points
}

// TestLogsNobodyFitted compares predictions with logs of eight A100 that no
// constant was fitted to. One thread drives all eight GPUs there (nThread 1 nGpus
// 8), so that launching alone takes 35 us, and 87 us for all-to-all, several times
// what the fitted points show with a process for each GPU. Small sizes are
// therefore printed and not judged.
func TestLogsNobodyFitted(t *testing.T) {
	s := newMachines(t)
	all := notFitted(t)
	for _, op := range []sched.Collective{sched.AllReduce, sched.ReduceScatter, sched.AllToAll} {
		t.Run(op.String(), func(t *testing.T) {
			points := slices.DeleteFunc(slices.Clone(all), func(p Point) bool { return p.Op != op })
			m := s.model("dgx-a100", 8, 1, NCCLOptions{})
			var errs [bands][]float64
			for _, p := range points {
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
