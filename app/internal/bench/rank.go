package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/reduce"
)

// ConfigEnv holds the Config of a rank as JSON.
const ConfigEnv = "WEFT_BENCH_CONFIG"

// Event is what ranks tell the benchmark, one JSON object a line: every rank who
// it is, and rank 0 the rows.
type Event struct {
	Hello *Hello `json:"hello,omitempty"`
	Row   *Point `json:"row,omitempty"`
}

// Hello is a rank.
type Hello struct {
	Rank      int    `json:"rank"`
	Pid       int    `json:"pid"`
	Host      string `json:"host"`
	Transport string `json:"transport"`
	GPU       *GPU   `json:"gpu,omitempty"` // where buffers are on one
}

// Point is a row of nccl-tests' table.
type Point struct {
	Bytes   int64  `json:"bytes"`
	Count   int    `json:"count"`
	Program string `json:"program"`      // what was run
	Way     string `json:"way"`          // how: flat or script
	Out     *Time  `json:"out_of_place"` // nil where there is no such way
	In      *Time  `json:"in_place"`
	// Limit is the least time that memory of the GPU allows: what must be read and written, at the rate of a plain add that was
	// measured in the same run; 0 on the host.
	Limit float64 `json:"limit_us,omitempty"`
	// Ran is what Predict needs, if the Config asks for it.
	Ran *Ran `json:"ran,omitempty"`
}

// Time is what one way of calling took.
type Time struct {
	Micros  float64 `json:"time_us"`  // of one operation: median over batches of the slowest rank
	Least   float64 `json:"least_us"` // the same of the fastest batch
	AlgBW   float64 `json:"algbw_GBps"`
	BusBW   float64 `json:"busbw_GBps"`
	Wrong   int64   `json:"wrong"` // elements, over all ranks; -1 if not checked
	CPUPerG float64 `json:"cpu_s_per_GB"`
	Iters   int     `json:"iters"` // of a batch
}

// Main is what a rank process does: it serves a comparison if there is a control
// socket, else it measures what ConfigEnv says and writes events to out.
func Main(ctx context.Context, out io.Writer) error {
	if IsHog(ctx) {
		return nil
	}
	env, err := comm.FromEnv()
	if err != nil {
		return err
	}
	if os.Getenv(BindEnv) != "" {
		if err := bind(env.LocalRank); err != nil {
			return err
		}
	}
	c, err := comm.Join(ctx, env)
	if err != nil {
		return err
	}
	if path := os.Getenv(ControlEnv); path != "" {
		err = Serve(ctx, c, path, os.Getenv(buffersEnv))
	} else {
		var cfg Config
		if err = json.Unmarshal([]byte(os.Getenv(ConfigEnv)), &cfg); err != nil {
			return fmt.Errorf("%s: %w", ConfigEnv, err)
		}
		enc := json.NewEncoder(out)
		err = Rank(ctx, c, cfg, func(e Event) error { return enc.Encode(e) })
	}
	if err != nil {
		return err
	}
	if err := comm.Barrier(ctx, c); err != nil {
		return err
	}
	return c.Close()
}

// Rank measures on a communicator; all of its ranks must call it with the same Config.
func Rank(ctx context.Context, c *comm.Comm, cfg Config, emit func(Event) error) error {
	if err := cfg.Complete(); err != nil {
		return err
	}
	host, _ := os.Hostname()
	sizes := cfg.Sizes()
	width := int64(cfg.Type.Size())
	gpus, err := openGPU(ctx, c, &cfg, slices.Max(sizes))
	if err != nil {
		return err
	}
	if err := emit(Event{Hello: &Hello{Rank: c.Rank(), Pid: os.Getpid(), Host: host, Transport: c.Transport(),
		GPU: gpus.hello()}}); err != nil {
		return err
	}
	w, err := newWork(c, &cfg, int(max(slices.Max(sizes)/width, int64(c.Size()))), gpus)
	if err != nil {
		return err
	}
	m := &meter{c: c, cfg: &cfg, w: w}
	var gauged *Gauge
	if cfg.Predict {
		if gauged, err = gauge(ctx, c); err != nil {
			return fmt.Errorf("measuring messages: %w", err)
		}
	}
	for i, bytes := range sizes {
		m.elements, m.used = int(bytes/width), 0
		w.size(m.elements)
		p := &Point{}
		p.Count, p.Bytes = w.shape()
		for _, way := range []struct {
			inPlace bool
			to      **Time
		}{{false, &p.Out}, {true, &p.In}} {
			if !w.has(way.inPlace) || way.inPlace && cfg.Predict && p.Out != nil { // one way is enough to compare with
				continue
			}
			if *way.to, err = m.measure(ctx, p.Bytes, way.inPlace, uint64(2*i)); err != nil {
				return fmt.Errorf("%s of %d bytes: %w", cfg.Op, p.Bytes, err)
			}
		}
		p.Program, p.Way = m.program, m.way
		if gpus != nil {
			p.Way, p.Limit = string(gpus.g.Way()), gpus.limit(cfg.Op, c.Size(), p.Bytes)
			p.Program = gpus.program(&cfg)
		}
		if cfg.Predict {
			if p.Ran, err = ran(c, &cfg, p.Bytes); err != nil {
				return err
			}
			p.Ran.Gauge, p.Ran.Phases = gauged, p.Way == "phases"
		}
		if c.Rank() == 0 {
			if err := emit(Event{Row: p}); err != nil {
				return err
			}
		}
	}
	if err := comm.Barrier(ctx, c); err != nil {
		return err
	}
	return errors.Join(w.free(), gpus.close())
}

// batchTime is what a batch takes if its length is not given.
const batchTime = 20 * time.Millisecond

// meter measures one work.
type meter struct {
	c            *comm.Comm
	cfg          *Config
	w            work
	program, way string

	elements int // of the row
	used     int // sizes below it
}

// fresh is a size that was not used yet in this row; once all have been, they begin again.
func (m *meter) fresh() int {
	m.used++
	return m.elements - m.used%max(m.elements/4, 1)
}

// measure times one size and checks it before and after, with other data: a run that goes wrong only once it is warm is
// found too. Wrong is -1 if nothing is checked.
func (m *meter) measure(ctx context.Context, bytes int64, inPlace bool, seed uint64) (*Time, error) {
	t := &Time{Wrong: -1, Iters: m.cfg.Iters}
	if m.cfg.Check {
		n, err := m.verify(ctx, inPlace, seed)
		if err != nil {
			return nil, err
		}
		t.Wrong = n
	}
	if err := m.warm(ctx, inPlace); err != nil {
		return nil, err
	}
	if t.Iters == 0 {
		var err error
		if t.Iters, err = m.calibrate(ctx, inPlace); err != nil {
			return nil, err
		}
	}
	var times []float64
	cpu := int64(0)
	for range m.cfg.Batches {
		ns, used, err := m.batch(ctx, inPlace, t.Iters)
		if err != nil {
			return nil, err
		}
		times, cpu = append(times, float64(ns)/float64(t.Iters)), cpu+used
	}
	m.w.size(m.elements)
	if m.cfg.Check {
		n, err := m.verify(ctx, inPlace, seed+1)
		if err != nil {
			return nil, err
		}
		t.Wrong += n
	}
	m.rates(t, bytes, times, cpu)
	return t, nil
}

// warm makes the calls that are not timed. Buffers hold zeros then, as sums over sums would grow beyond all numbers.
func (m *meter) warm(ctx context.Context, inPlace bool) error {
	if err := m.w.zero(ctx); err != nil {
		return err
	}
	for range m.cfg.Warmup {
		if err := m.w.call(ctx, inPlace); err != nil {
			return err
		}
	}
	return nil
}

// rates works out bandwidths of the batches' times in nanoseconds, and processor time over all bytes that moved.
func (m *meter) rates(t *Time, bytes int64, times []float64, cpu int64) {
	slices.Sort(times)
	ns := median(times)
	t.Micros, t.Least = ns/1e3, times[0]/1e3
	if ns > 0 {
		t.AlgBW = float64(bytes) / ns
		t.BusBW = t.AlgBW * m.cfg.Op.BusFactor(m.c.Size())
	}
	if moved := t.BusBW * ns * float64(m.c.Size()) * float64(t.Iters*m.cfg.Batches) / 1e9; moved > 0 {
		t.CPUPerG = float64(cpu) / 1e9 / moved
	}
}

// verify carries out the operation once on verifiable inputs and counts wrong
// elements over all ranks.
func (m *meter) verify(ctx context.Context, inPlace bool, seed uint64) (int64, error) {
	seed = mix(seed, uint64(m.cfg.Op.Collective))
	if err := m.w.fill(ctx, seed, inPlace); err != nil {
		return 0, err
	}
	if err := m.w.call(ctx, inPlace); err != nil {
		return 0, err
	}
	if r := m.c.Flight().Records(); len(r) > 0 && m.cfg.Op.Collective != sched.SendRecv {
		m.program, m.way = r[len(r)-1].Program, r[len(r)-1].Way
	}
	n, err := m.w.wrong(ctx, seed, inPlace)
	if err != nil {
		return 0, err
	}
	return m.all(ctx, []int64{n}, comm.Sum)
}

// all reduces one number over all ranks.
func (m *meter) all(ctx context.Context, v []int64, op reduce.Op) (int64, error) {
	err := comm.AllReduce(ctx, m.c, v, op)
	return v[0], err
}

// calibrate finds how many operations take batchTime. All ranks find the same,
// as they see the same times.
func (m *meter) calibrate(ctx context.Context, inPlace bool) (int, error) {
	iters := 1
	for step := 0; ; step++ {
		ns, _, err := m.batch(ctx, inPlace, iters)
		if err != nil {
			return 0, err
		}
		per := max(1, ns/int64(iters))
		want := int(min(maxIters, max(1, int64(batchTime)/per)))
		if ns >= int64(batchTime)/2 || step > 0 && want <= iters {
			return want, nil
		}
		iters = min(want, iters*16)
	}
}

// batch gives the time of the slowest rank and the processor time of all, in
// nanoseconds.
func (m *meter) batch(ctx context.Context, inPlace bool, iters int) (ns, cpu int64, err error) {
	if err := comm.Barrier(ctx, m.c); err != nil {
		return 0, 0, err
	}
	used, start := processorTime(), time.Now()
	for range iters {
		if m.cfg.Fresh {
			m.w.size(m.fresh())
		}
		if err := m.w.call(ctx, inPlace); err != nil {
			return 0, 0, err
		}
	}
	ns = int64(time.Since(start))
	cpu = processorTime() - used
	if m.c.Transport() == "mem" && m.c.Rank() != 0 {
		cpu = 0 // one process: rank 0 counts for all
	}
	if ns, err = m.all(ctx, []int64{ns}, comm.Max); err != nil {
		return 0, 0, err
	}
	cpu, err = m.all(ctx, []int64{cpu}, comm.Sum)
	return ns, cpu, err
}

// processorTime is what this process used so far, in nanoseconds.
func processorTime() int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
