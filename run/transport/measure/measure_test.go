//go:build linux

package measure

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/run/transport/ucx"
)

// The test binary is the ranks, too.
func TestMain(m *testing.M) {
	if os.Getenv(envTask) == "" {
		os.Exit(m.Run())
	}
	rank := func() error { return Main(context.Background(), os.Stdin, os.Stdout) }
	if slices.Contains(os.Args, "--traced") {
		rank = func() error { return Trace(context.Background(), os.Args[:1], os.Stdout) }
	}
	if err := rank(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func options(ways ...string) Options {
	return Options{Command: os.Args[:1], Ways: ways, For: 5 * time.Millisecond, Message: 64 << 10}
}

// Two processes exchange bytes over every way that is here; the others say what they lack.
func TestWays(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 55*time.Second)
	defer cancel()
	o := options()
	if _, err := ucx.Version(); err != nil {
		t.Log(err)
	} else {
		o.Ways = []string{"tcp", "shm", "ucx-cma", "rdma"} // the others are of the same kinds
	}
	rows, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		switch {
		case r.Origin == "modelled" && r.Kind == "RDMA" && r.Note != "":
		case r.Origin == "absent" && r.Kind == "UCX" && r.Note != "":
		case r.Origin == "measured" && r.Latency >= r.Best && r.Best > 0 && r.Bandwidth > 0 && r.CPU > 0 && r.Over != "":
		default:
			t.Errorf("%+v", r)
		}
	}
}

// A tracer counts system calls: one a message at least over sockets, none that move data in shared memory but those of Go's own.
func TestCalls(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 55*time.Second)
	defer cancel()
	o := options("tcp", "shm")
	o.Trace, o.Message = true, 256<<10
	rows, err := Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if !r.Counted {
			t.Skipf("%s: this machine does not let one process trace another: %s", r.Name, r.Note)
		}
	}
	if rows[0].Calls < 4 || rows[1].Calls > rows[0].Calls {
		t.Errorf("system calls a MiB: %g over tcp (%v), %g in shared memory (%v)",
			rows[0].Calls, rows[0].CallNames, rows[1].Calls, rows[1].CallNames)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, o := range []Options{options("nosuch"), {Message: 1, For: time.Second}, {Message: 100}} {
		if _, err := Run(context.Background(), o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// The table of ucx_perftest is read by the names of its columns.
func TestPerftestTable(t *testing.T) {
	got, err := parsePerftest("# a remark\niterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n20000,0.241,0.953,0.953,8.00,8.00,1048878,1048878\n")
	if err != nil || got["50.0_percentile_lat"] != 0.241 || got["overall_bw"] != 8 {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "iterations,a", "iterations,a\n1", "iterations,a\n1,x"} {
		if got, err := parsePerftest(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

// FuzzPerftest: whatever a program prints, a table is read or refused.
func FuzzPerftest(f *testing.F) {
	for _, s := range []string{"iterations,50.0%,avg\n1,2,3\n", "x\niterations,a\n1\n", "iterations,a,b\n1\n", "iterations,\n",
		"iterations,a\n1,z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := parsePerftest(text); err == nil && len(got) == 0 {
			t.Errorf("%q: an empty table", text)
		}
	})
}
