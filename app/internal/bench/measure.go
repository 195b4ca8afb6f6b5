package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/launch"
)

// Report is a run with its results.
type Report struct {
	Config Config   `json:"config"`
	Ranks  []*Hello `json:"ranks"`
	Rows   []*Point `json:"rows"`
	AvgBus float64  `json:"avg_busbw_GBps"` // over all rows and both ways
	Wrong  int64    `json:"wrong"`
}

// Measure starts the ranks as spec says, with spec.Command starting one (Main),
// or as goroutines of this process for the mem transport. Events are handed to
// tell as they come, ranks before rows.
func Measure(ctx context.Context, cfg Config, spec launch.Spec, tell func(Event)) (*Report, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if err := cfg.prove(); err != nil {
		return nil, err
	}
	m := &measurement{report: &Report{Config: cfg, Ranks: make([]*Hello, cfg.Ranks)}, tell: tell}
	var err error
	if cfg.Transport == "mem" {
		err = m.local(ctx, cfg)
	} else {
		err = m.launch(ctx, cfg, spec)
	}
	m.report.sum()
	if err != nil {
		return m.report, err
	}
	if m.err != nil {
		return m.report, m.err
	}
	return m.report, m.report.judge()
}

// measurement collects events of ranks, which come from several goroutines.
type measurement struct {
	mu     sync.Mutex
	report *Report
	hellos int
	early  []Event // rows that came before all ranks were known
	tell   func(Event)
	err    error
}

// event takes what a rank tells. Rows that come before all ranks have said who they are wait, so that the heading is
// printed first.
func (m *measurement) event(e Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Hello != nil {
		if r := e.Hello.Rank; r < 0 || r >= len(m.report.Ranks) || m.report.Ranks[r] != nil {
			return fmt.Errorf("an unexpected rank %d of %d", r, len(m.report.Ranks))
		}
		m.report.Ranks[e.Hello.Rank] = e.Hello
		if m.hellos++; m.hellos == len(m.report.Ranks) {
			for _, h := range m.report.Ranks {
				m.tell(Event{Hello: h})
			}
			for _, e := range m.early {
				m.tell(e)
			}
		}
	}
	if e.Row != nil {
		m.report.Rows = append(m.report.Rows, e.Row)
		if m.hellos < len(m.report.Ranks) {
			m.early = append(m.early, e)
		} else {
			m.tell(e)
		}
	}
	return nil
}

// local runs the ranks as goroutines.
func (m *measurement) local(ctx context.Context, cfg Config) error {
	cs, err := comm.Local(cfg.Ranks)
	if err != nil {
		return err
	}
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			if errs[i] = Rank(ctx, c, cfg, m.event); errs[i] != nil {
				c.Abort(errs[i])
			}
		})
	}
	wg.Wait()
	for _, c := range cs {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// launch runs them as processes.
func (m *measurement) launch(ctx context.Context, cfg Config, spec launch.Spec) error {
	text, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	spec.N = cfg.Ranks
	spec.Env = append(slices.Clone(spec.Env), ConfigEnv+"="+string(text))
	if cfg.Transport != "" {
		spec.Env = append(spec.Env, "WEFT_TRANSPORT="+cfg.Transport)
	}
	if cfg.Require != "" {
		spec.Env = append(spec.Env, "WEFT_REQUIRE="+cfg.Require)
	}
	if cfg.Bind {
		spec.Env = append(spec.Env, BindEnv+"=1")
	}
	if cfg.Floor > 0 {
		spec.Env = append(spec.Env, fmt.Sprintf("WEFT_FLOOR=%gGB/s", float64(cfg.Floor)/1e9))
	}
	spec.Capture = func(int) io.Writer { return EachLine(m.heard) }
	_, err = launch.Run(ctx, spec)
	return err
}

// heard takes a line that a rank wrote.
func (m *measurement) heard(line []byte) {
	var e Event
	err := json.Unmarshal(line, &e)
	if err == nil {
		err = m.event(e)
	}
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.err == nil {
			m.err = fmt.Errorf("a rank wrote %q: %w", line, err)
		}
	}
}

// EachLine gives a writer that hands every line it gets to a function, whole and without its end.
func EachLine(f func(line []byte)) io.Writer { return &eachLine{f: f} }

type eachLine struct {
	f    func([]byte)
	held []byte // of a line that has not ended
}

func (e *eachLine) Write(b []byte) (int, error) {
	e.held = append(e.held, b...)
	for {
		line, rest, whole := bytes.Cut(e.held, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		e.f(line)
		e.held = rest
	}
}

// ErrWrong is a result that was not right; ErrSlow one below the floor.
var (
	ErrWrong = errors.New("wrong results")
	ErrSlow  = errors.New("below the floor")
)

// sum averages the bus bandwidth over all times, in place and out of place, as nccl-tests does, and adds up wrong
// elements.
func (r *Report) sum() {
	bus, n := 0.0, 0
	r.Wrong = 0
	for _, p := range r.Rows {
		for _, t := range []*Time{p.Out, p.In} {
			if t != nil {
				bus, n = bus+t.BusBW, n+1
				r.Wrong += max(t.Wrong, 0)
			}
		}
	}
	if n > 0 {
		r.AvgBus = bus / float64(n)
	}
}

// judge says what is not as it must be.
func (r *Report) judge() error {
	if r.Wrong > 0 {
		var where []string
		for _, p := range r.Rows {
			if p.Out != nil && p.Out.Wrong > 0 || p.In != nil && p.In.Wrong > 0 {
				where = append(where, unit.Bytes(p.Bytes).String())
			}
		}
		return fmt.Errorf("%w: %d elements, at %s", ErrWrong, r.Wrong, strings.Join(where, ", "))
	}
	return r.slow()
}

// slow says if the largest size stays below the bus bandwidth that was demanded, in place and out of it.
func (r *Report) slow() error {
	if r.Config.Floor == 0 || len(r.Rows) == 0 {
		return nil
	}
	last := r.Rows[len(r.Rows)-1]
	best := 0.0
	for _, t := range []*Time{last.Out, last.In} {
		if t != nil {
			best = max(best, t.BusBW)
		}
	}
	if got := unit.Rate(best * 1e9); got < r.Config.Floor {
		return fmt.Errorf("bus bandwidth at %s: %s, %w of %s", unit.Bytes(last.Bytes), got, ErrSlow, r.Config.Floor)
	}
	return nil
}
