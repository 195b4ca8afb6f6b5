package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/weft-fabric/weft/run/launch"
)

// Busy is what else the processors have to do during a comparison. Training hosts
// are full of data loaders, containers have quotas, and virtual machines lose their
// processors to others: times of single operations spread then, and medians of
// batches do not tell.
type Busy struct {
	Hogs  int     `json:"hogs"`  // processes that never wait, beside the ranks
	Quota float64 `json:"quota"` // of the host's processors, that the ranks of a competitor have together; 0 is all
}

// hogEnv, if set, makes a rank's process one that never waits.
const hogEnv = "WEFT_BENCH_HOG"

// hog computes until the process is ended.
func hog(ctx context.Context) {
	for x := uint32(1); ctx.Err() == nil; {
		for range 1 << 20 {
			x = x*1664525 + 1013904223
		}
		runtime.KeepAlive(x)
	}
}

// startHogs starts processes that never wait, and gives what ends them.
func (c *Comparison) startHogs(ctx context.Context) (end func(), err error) {
	if c.Busy.Hogs == 0 {
		return func() {}, nil
	}
	if len(c.Self) == 0 {
		return nil, fmt.Errorf("%d hogs: no command that starts them", c.Busy.Hogs)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = launch.Run(ctx, launch.Spec{N: c.Busy.Hogs, Command: c.Self, Env: []string{hogEnv + "=1"}, Grace: 100 * time.Millisecond,
			Stdout: &lastWords{}, Stderr: &lastWords{}})
	}()
	return func() {
		cancel()
		<-ended
	}, nil
}

// confine gives the ranks of a competitor a quota of their own.
func (c *Comparison) confine(r *competitor) error {
	if c.Busy.Quota == 0 {
		return nil
	}
	q, err := newQuota(c.Busy.Quota * float64(runtime.NumCPU()))
	if err != nil {
		return err
	}
	r.quota = q
	for _, x := range r.ranks {
		pid, err := peerPID(x.Conn)
		if err == nil {
			err = q.add(pid)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// maxEach bounds the operations of a turn that are timed one by one.
const maxEach = 20_000

// each carries out the operation iters times and times each: the time of the slowest
// rank, by operation, and what all ranks' processors worked.
func (c *competitor) each(iters int) (times []time.Duration, cpu time.Duration, err error) {
	answers, err := c.ask("each %d", iters)
	if err != nil {
		return nil, 0, err
	}
	times = make([]time.Duration, iters)
	for i, a := range answers {
		var p int64
		own, err := parseEach(a, iters, &p)
		if err != nil {
			return nil, 0, c.fail("each", fmt.Errorf("rank %d: %w", i, err))
		}
		for k, t := range own {
			times[k] = max(times[k], t)
		}
		cpu += time.Duration(p)
	}
	return times, cpu, nil
}

// onceEach is once with every operation timed by itself.
func (t *turn) onceEach(want time.Duration) error {
	n := min(t.iters, maxEach)
	start := time.Now()
	times, cpu, err := t.each(n)
	if err != nil {
		return err
	}
	for _, d := range times {
		t.times = append(t.times, float64(d))
	}
	t.cpu += cpu
	t.done, t.ran = t.done+n, t.ran+n
	if took := time.Since(start); took > 4*want {
		t.iters = fill(want, took/time.Duration(n))
	}
	return nil
}

// spread fills in the quantiles of operations that were timed one by one.
func (c *Cell) spread(sorted []float64) {
	at := func(q float64) float64 { return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)] / 1e3 }
	c.P50, c.P99 = at(0.5), at(0.99)
	c.Micros = c.P50
}

// yielding are the libraries to compare with on busy processors: those that give way.
func yielding(transport string) []*Peer {
	list := Peers(transport)
	list = slices.DeleteFunc(list, func(p *Peer) bool {
		return p.Name != "open-mpi vader" && p.Name != "open-mpi tcp" && p.Family != Gloo
	})
	for _, p := range list {
		if p.Family == MPI {
			p.Name += ", yielding"
			start := p.start
			p.start = func(bin string, n int, most int64, dir string) launch.Spec {
				s := start(bin, n, most, dir)
				s.Command = slices.Insert(s.Command, 1, "--mca", "mpi_yield_when_idle", "1")
				return s
			}
		}
	}
	return list
}

// IsHog makes this process one that never waits if it was started as such, and
// reports whether it was.
func IsHog(ctx context.Context) bool {
	if os.Getenv(hogEnv) == "" {
		return false
	}
	hog(ctx)
	return true
}
