package serve

import (
	"strings"
	"testing"
)

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
				if r.TPOT.P50 < p.TPOT*.995 && r.PerGPU > p.PerGPU*1.005 {
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

// A copy that runs four requests at once gives no more to 64 users than to four: the longer queue is on no frontier, and the answer says
// what requests wait for.
func TestFrontierLeavesOutQueues(t *testing.T) {
	e := engine(t, "llama3-70b", "dgx-h100", Layout{}, "fp8")
	e.Most = 4
	layout := Layout{TP: 8, PP: 1, Replicas: 1}
	var loads []Load
	for _, users := range []int{64, 4, 16} {
		loads = append(loads, Load{Concurrency: users, Input: 1000, Output: 200, Requests: 320, Seed: 1})
	}
	if points := Frontier(e, []Layout{layout}, loads, 0, 0); len(points) != 1 || points[0].Users != 4 {
		t.Errorf("want four users alone: %+v", points)
	}
	e.Layout = layout
	if r := serve(t, e, loads[0]); !strings.Contains(r.Limit, "at most 4 at once") {
		t.Errorf("64 users of four places: limit %q", r.Limit)
	}
	e.Layout = Layout{TP: 4, PP: 1, Replicas: 1, Prefill: 1}
	if r := serve(t, e, loads[0]); !strings.Contains(r.Limit, "at most 4 at once") {
		t.Errorf("64 users of four places, prompts apart: limit %q", r.Limit)
	}
}

// What figures do not show is said: users in step, and drafts as good as another model's.
func TestNotes(t *testing.T) {
	e := engine(t, "llama3-70b", "dgx-h100", Layout{}, "fp8")
	if n := e.Notes(Load{Rate: 3}); len(n) != 0 {
		t.Errorf("%q", n)
	}
	e.Drafts = 1
	said := strings.Join(e.Notes(Load{Concurrency: 8}), "\n")
	if !strings.Contains(said, "--spread") || !strings.Contains(said, "right 70% of the time") ||
		!strings.Contains(said, "llama3-70b is not known to have a layer that predicts further tokens") {
		t.Errorf("%q", said)
	}
	e.Accept = Accepted // what the command gives where nobody says a share
	if said := strings.Join(e.Notes(Load{Concurrency: 8}), "\n"); !strings.Contains(said, "right 70% of the time") {
		t.Errorf("%q", said)
	}
	e = engine(t, "deepseek-v3", "dgx-h200", Layout{}, "fp8")
	e.Drafts, e.Accept = 1, .8
	if n := e.Notes(Load{Concurrency: 8, Spread: .1}); len(n) != 0 {
		t.Errorf("%q", n)
	}
}
