package fit_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/app/internal/bench/fit"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/launch"
	"go.uber.org/goleak"
)

// The test binary is also a rank.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		var err error
		switch os.Args[1] {
		case "fit-rank":
			err = fit.Main(context.Background(), os.Stdout)
		case "bench-rank":
			err = bench.Main(context.Background(), os.Stdout)
		default:
			goleak.VerifyTestMain(m)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func spec(verb string) launch.Spec {
	return launch.Spec{Command: []string{os.Args[0], verb}, Stderr: os.Stderr, Prefix: true}
}

// Ranks of one host over sockets: links are measured, programs made, proven, checked and tried. What is kept is what the next ranks
// run, and nothing is kept once it is forgotten.
func TestMeasured(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	cfg := fit.Config{Ranks: 3, Transport: "tcp",
		Ops:   []sched.Collective{sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.Broadcast, sched.Reduce},
		Sizes: []unit.Bytes{64 << 10}, Turns: 1}
	rows := 0
	r, err := fit.Measure(t.Context(), cfg, spec("fit-rank"), func(r *fit.Report) {
		if n, err := synth.Read("measured", r.Links); err != nil || n.Ranks != 3 {
			t.Errorf("links %q: %v", r.Links, err)
		}
	}, func(*fit.Row) { rows++ })
	if err != nil {
		t.Fatal(err)
	}
	if rows != len(cfg.Ops) || len(r.Rows) != rows || r.Hosts != 1 || r.Transport != "tcp" {
		t.Errorf("%d rows told, %d reported, %d hosts over %s", rows, len(r.Rows), r.Hosts, r.Transport)
	}
	for _, row := range r.Rows {
		if row.Form == "" || row.Took <= 0 || row.OwnUS <= 0 || row.Own == "" || row.Predicted < row.Bound*0.999 || row.Bound <= 0 {
			t.Errorf("%+v", row)
		}
		if row.Kept != (row.Took < 0.95*row.OwnUS) {
			t.Errorf("%s: kept %v with %.0f us against %.0f", row.Op, row.Kept, row.Took, row.OwnUS)
		}
	}
	kept, _ := filepath.Glob(filepath.Join(cache, "weft", "programs-tcp-3-*"))
	if (len(kept) == 1) != (r.Kept > 0) {
		t.Errorf("%d programs are kept in %v", r.Kept, kept)
	}
	for _, row := range r.Rows {
		c := bench.Default()
		c.Op, c.Ranks, c.Transport, c.MinBytes, c.MaxBytes, c.Iters, c.Batches, c.Warmup = bench.Op{Collective: row.Op}, 3, "tcp", 64<<10,
			64<<10, 1, 1, 0
		ran, err := bench.Measure(t.Context(), c, spec("bench-rank"), func(bench.Event) {})
		if err != nil {
			t.Fatal(err)
		}
		if synthesised := strings.HasPrefix(ran.Rows[0].Program, "synth"); synthesised != row.Kept || ran.Wrong != 0 {
			t.Errorf("%s runs %s with %d wrong; kept %v", row.Op, ran.Rows[0].Program, ran.Wrong, row.Kept)
		}
	}
	cfg.Forget = true
	if _, err := fit.Measure(t.Context(), cfg, spec("fit-rank"), nil, nil); err != nil {
		t.Fatal(err)
	}
	if kept, _ := filepath.Glob(filepath.Join(cache, "weft", "programs-*")); len(kept) > 0 {
		t.Errorf("not forgotten: %v", kept)
	}
}

func TestRefused(t *testing.T) {
	good := fit.Config{Ranks: 2, Ops: []sched.Collective{sched.AllReduce}, Sizes: []unit.Bytes{1}, Turns: 1}
	for want, spoil := range map[string]func(*fit.Config){
		"at least two":          func(c *fit.Config) { c.Ranks = 1 },
		"0 turns":               func(c *fit.Config) { c.Turns = 0 },
		"goroutines":            func(c *fit.Config) { c.Transport = "mem" },
		"above 0":               func(c *fit.Config) { c.Sizes = nil },
		"all-to-all":            func(c *fit.Config) { c.Ops = append(c.Ops, sched.AllToAll) },
		"from the least on":     func(c *fit.Config) { c.Sizes = []unit.Bytes{2, 1} },
		"want at least one":     func(c *fit.Config) { c.Turns = -1 },
		"known: all-reduce":     func(c *fit.Config) { c.Ops = []sched.Collective{sched.Barrier} },
		"a collective needs":    func(c *fit.Config) { c.Ranks = -3 },
		"want them from":        func(c *fit.Config) { c.Sizes = []unit.Bytes{0} },
		"mem has no links":      func(c *fit.Config) { c.Transport = "mem" },
		"no schedules are made": func(c *fit.Config) { c.Ops = []sched.Collective{sched.Scatter} },
	} {
		c := good
		spoil(&c)
		if _, err := fit.Measure(t.Context(), c, launch.Spec{}, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}
