package serve

import "testing"

// Which layout is best depends on the load: one copy over all GPUs for few users, several copies for many. Every run of every
// layout and load is compared with every point of the frontier, pair by pair.
func TestFrontierOverLoads(t *testing.T) {
	e := engine(t, "llama3-70b", "dgx-h100", Layout{}, "fp8")
	load := Load{Concurrency: 16, Input: 1024, Output: 64, Requests: 200, Seed: 1}
	layouts, loads := []Layout{{TP: 8, PP: 1, Replicas: 1}, {TP: 4, PP: 1, Replicas: 2}, {TP: 2, PP: 1, Replicas: 4}}, load.Loads()
	points := Frontier(e, layouts, loads, 0, 0)
	if len(points) < 4 {
		t.Fatalf("%d points of %d loads: %+v", len(points), len(loads), points)
	}
	if first, last := points[0], points[len(points)-1]; first.Layout == last.Layout || first.Users != 1 || last.Users < 256 {
		t.Errorf("from %+v to %+v", first, last)
	}
	met := 0
	for _, l := range layouts {
		for _, at := range loads {
			x := e
			x.Layout = l
			r := serve(t, x, at)
			for _, p := range points {
				if r.TPOT.P50 < p.TPOT && r.PerGPU > p.PerGPU {
					t.Errorf("%s at %s beats %+v: %g s, %g tokens/s", l, at, p, r.TPOT.P50, r.PerGPU)
				}
				if r.TPOT.P50 == p.TPOT && r.PerGPU == p.PerGPU && at.Concurrency == p.Users && l == p.Layout {
					met++
				}
			}
		}
	}
	if met != len(points) {
		t.Errorf("%d of %d points are what a run of their own gives", met, len(points))
	}
	for _, p := range Frontier(e, layouts, loads, 0, .02) {
		if p.TPOT > .02 {
			t.Errorf("%+v misses the limit of 20 ms", p)
		}
	}
}
