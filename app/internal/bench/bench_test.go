package bench_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/predict/tune"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/reduce"
	"go.uber.org/goleak"
)

// The test binary is also a rank.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "bench-rank" {
		if err := bench.Main(context.Background(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var self = []string{os.Args[0], "bench-rank"}

func quick(op bench.Op, n int) bench.Config {
	c := bench.Default()
	c.Op, c.Ranks, c.MinBytes, c.MaxBytes, c.StepFactor = op, n, 1, 40_000, 37
	c.Iters, c.Warmup, c.Batches = 1, 0, 1
	return c
}

func measure(t *testing.T, c bench.Config) *bench.Report {
	t.Helper()
	r, err := bench.Measure(t.Context(), c, launch.Spec{Command: self, Stderr: os.Stderr, Prefix: true}, func(bench.Event) {})
	if err != nil {
		t.Fatalf("%s, %d ranks, %s, %s: %v", c.Op, c.Ranks, c.Type, c.Reduce, err)
	}
	return r
}

// Every operation gives right results, in place and not.
func TestEveryOperation(t *testing.T) {
	for _, op := range bench.Ops() {
		for _, n := range bounded.First(2, 5, 1, 2) {
			c := quick(op, n)
			c.Transport, c.Root = "mem", n/2
			r := measure(t, c)
			want := 2
			if op.Collective == sched.Barrier {
				want = 1
			}
			if len(r.Rows) < want || r.Wrong != 0 {
				t.Errorf("%s, %d ranks: %d rows, %d wrong", op, n, len(r.Rows), r.Wrong)
			}
			for _, row := range r.Rows {
				if row.Out == nil && row.In == nil {
					t.Errorf("%s of %d bytes was not measured", op, row.Bytes)
				}
			}
		}
	}
}

// With new sizes every call of a row has one of its own, and results are still verified on the row's size.
func TestNewSizes(t *testing.T) {
	all, err := comm.Local(2)
	if err != nil {
		t.Fatal(err)
	}
	op, err := bench.ParseOp("all-reduce")
	if err != nil {
		t.Fatal(err)
	}
	c := quick(op, 2)
	c.MinBytes, c.MaxBytes, c.Iters, c.Batches, c.Fresh = 4096, 4096, 10, 3, true
	c.Buffers = bench.Plain
	var wg sync.WaitGroup
	for _, m := range all {
		wg.Go(func() {
			if err := bench.Rank(context.Background(), m, c, func(e bench.Event) error {
				if e.Row != nil && (e.Row.Bytes != 4096 || e.Row.In.Wrong != 0 || e.Row.Out.Wrong != 0) {
					t.Errorf("%+v", e.Row)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sizes := map[uint64]int{}
	for _, r := range all[0].Flight().Records() {
		sizes[r.Count]++
	}
	if len(sizes) < 60 {
		t.Errorf("60 timed calls had %d sizes: %v", len(sizes), sizes)
	}
	for _, m := range all {
		_ = m.Close()
	}
}

// Every type and reduction.
func TestEveryTypeAndReduction(t *testing.T) {
	for i, typ := range reduce.Types() {
		for k, red := range reduce.Ops() {
			c := quick(bench.Op{Collective: sched.AllReduce}, 3)
			c.Type, c.Reduce, c.Transport, c.MinBytes = typ, red, "mem", 40_000
			if reduce.Check(typ, red) != nil {
				if err := c.Complete(); err == nil {
					t.Errorf("%s of %s is not refused", red, typ)
				}
				continue
			}
			if !bounded.Long() && (i+k)%3 != 0 {
				continue
			}
			if r := measure(t, c); r.Wrong != 0 || len(r.Rows) != 1 {
				t.Errorf("%s of %s: %d wrong in %d rows", red, typ, r.Wrong, len(r.Rows))
			}
		}
	}
}

// Processes over each transport, registered and plain.
func TestProcesses(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, buffers := range []string{bench.Registered, bench.Plain} {
			c := quick(bench.Op{Collective: sched.AllReduce}, 3)
			c.Transport, c.Require, c.Buffers = transport, transport, buffers
			r := measure(t, c)
			pids := map[int]bool{}
			for i, h := range r.Ranks {
				pids[h.Pid] = true
				if h.Rank != i || h.Transport != transport {
					t.Errorf("%s: rank %d is %+v", transport, i, h)
				}
			}
			if len(pids) != 3 || len(r.Rows) != 3 || r.Wrong != 0 {
				t.Errorf("%s, %s: %d processes, %d rows, %d wrong", transport, buffers, len(pids), len(r.Rows), r.Wrong)
			}
		}
	}
}

// A program by name and as a text is what runs.
func TestAlgorithmByNameAndText(t *testing.T) {
	c := quick(bench.Op{Collective: sched.AllReduce}, 3)
	c.Transport, c.Algo = "mem", "ring"
	for _, row := range measure(t, c).Rows {
		if row.Program != "ring" {
			t.Errorf("%d bytes: ran %q", row.Bytes, row.Program)
		}
	}
	c.Algo, c.Program = "", "nonsense"
	if err := c.Complete(); err == nil {
		t.Error("a program that is none was taken")
	}
}

// What is printed is read by what reads nccl-tests' logs.
func TestPrintedTableReadsAsNCCLTests(t *testing.T) {
	for _, op := range bench.Ops() {
		if op.Collective == sched.Barrier || op.V {
			continue
		}
		c := quick(op, 3)
		c.Transport = "mem"
		var out bytes.Buffer
		p := bench.NewPrinter(&out, c, false)
		r, err := bench.Measure(t.Context(), c, launch.Spec{}, p.Event)
		if err != nil {
			t.Fatal(err)
		}
		p.Foot(r)
		points, err := tune.ReadNCCLTests(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatalf("%s: %v\n%s", op, err, out.String())
		}
		var want []tune.Point
		for _, row := range r.Rows {
			for _, x := range []*bench.Time{row.Out, row.In} {
				if x != nil {
					want = append(want, tune.Point{Op: op.Collective, GPUs: 3})
				}
			}
		}
		if len(points) != len(want) {
			t.Fatalf("%s: %d points, want %d\n%s", op, len(points), len(want), out.String())
		}
		for i, got := range points {
			if got.Op != want[i].Op || got.GPUs != 3 || got.Nodes != 1 {
				t.Errorf("%s: point %d is %+v", op, i, got)
			}
		}
	}
}

func TestConfigNamesTheMistake(t *testing.T) {
	for want, change := range map[string]func(*bench.Config){
		"0 ranks":             func(c *bench.Config) { c.Ranks = 0 },
		"-b at most -e":       func(c *bench.Config) { c.MinBytes = 100; c.MaxBytes = 10 },
		"-f above 1":          func(c *bench.Config) { c.StepFactor = 1 },
		"stay 0":              func(c *bench.Config) { c.MinBytes = 0 },
		"raise -i":            func(c *bench.Config) { c.StepBytes = 1 },
		"root 2 of 2 ranks":   func(c *bench.Config) { c.Root = 2 },
		"want one of them":    func(c *bench.Config) { c.Algo = "ring"; c.Program = "x" },
		`unknown algorithm`:   func(c *bench.Config) { c.Algo = "no-such" },
		"none below 0":        func(c *bench.Config) { c.Warmup = -1 },
		`buffers "elsewhere"`: func(c *bench.Config) { c.Buffers = "elsewhere" },
		"-o band with -d":     func(c *bench.Config) { c.Reduce = reduce.BAnd },
	} {
		c := bench.Default()
		change(&c)
		if err := c.Complete(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestSizes(t *testing.T) {
	c := bench.Default()
	c.MinBytes, c.MaxBytes, c.StepFactor, c.Ranks = 1, 100, 2, 3
	if got := fmt.Sprint(c.Sizes()); got != "[4 8 16 32 64]" {
		t.Errorf("by factor: %s", got)
	}
	c.Op.Collective = sched.AllGather
	if got := fmt.Sprint(c.Sizes()); got != "[12 24 60]" {
		t.Errorf("blocks: %s", got)
	}
	c.Op.Collective, c.StepBytes, c.MinBytes = sched.AllReduce, 40, 0
	if got := fmt.Sprint(c.Sizes()); got != "[4 40 80]" {
		t.Errorf("by step: %s", got)
	}
}

// A rank that cannot go on ends the run, and is named.
func TestRankThatFails(t *testing.T) {
	c := quick(bench.Op{Collective: sched.AllReduce}, 2)
	c.Transport, c.Require = "tcp", "shm"
	_, err := bench.Measure(t.Context(), c, launch.Spec{Command: self}, func(bench.Event) {})
	var f *launch.Failure
	if !errors.As(err, &f) || !strings.Contains(err.Error(), "shm") {
		t.Errorf("error %v", err)
	}
}
