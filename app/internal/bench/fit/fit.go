// Package fit makes programs for measured links. It measures every pair of hosts, makes
// schedules for them (synth), interleaves them with the runtime's own choice, and stores
// those that save at least 5%. The next Join uses them.
//
//	Measure   starts the ranks and collects their results
//	Main      what a rank does
package fit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/launch"
)

// ConfigEnv holds the Config of a rank as JSON.
const ConfigEnv = "WEFT_BENCH_FIT"

// Config is what to make programs for.
type Config struct {
	Ranks     int                `json:"ranks"`
	Transport string             `json:"transport,omitempty"` // "" for what the runtime takes
	Ops       []sched.Collective `json:"ops"`
	Sizes     []unit.Bytes       `json:"sizes"` // of the larger buffer, from the least on
	Channels  int                `json:"channels,omitempty"`
	Turns     int                `json:"turns"`  // of each program at each size
	Forget    bool               `json:"forget"` // only take away what is kept
}

// Check says what cannot be done.
func (c *Config) Check() error {
	switch {
	case c.Ranks < 2:
		return fmt.Errorf("%d ranks; a collective needs at least two", c.Ranks)
	case c.Turns < 1:
		return fmt.Errorf("%d turns; want at least one", c.Turns)
	case c.Transport == "mem":
		return errors.New("transport mem has no links: its ranks are goroutines of one process")
	case len(c.Sizes) == 0 || !slices.IsSorted(c.Sizes) || c.Sizes[0] < 1:
		return fmt.Errorf("sizes %v; want them from the least on, above 0", c.Sizes)
	}
	for _, op := range c.Ops {
		if !serves(op) {
			return fmt.Errorf("no schedules are made for %s; known: all-reduce, all-gather, reduce-scatter, broadcast, reduce", op)
		}
	}
	return nil
}

func serves(op sched.Collective) bool {
	return op == sched.AllReduce || op == sched.AllGather || op == sched.ReduceScatter || op == sched.Broadcast || op == sched.Reduce
}

// Report is what came of it; its keys are stable.
type Report struct {
	Ranks     int    `json:"ranks"`
	Hosts     int    `json:"hosts"`
	Transport string `json:"transport"`
	Links     string `json:"links"` // as 'weft algo synth --links' reads them
	Rows      []*Row `json:"rows"`
	Kept      int    `json:"kept"`
	File      string `json:"file"` // where programs are kept
}

// Row is one operation at one size.
type Row struct {
	Op        sched.Collective `json:"op"`
	Bytes     unit.Bytes       `json:"bytes"`
	Own       string           `json:"own"` // the runtime's choice
	OwnUS     float64          `json:"own_us"`
	Form      string           `json:"form"`         // the best program that was made, in words
	Predicted float64          `json:"predicted_us"` // what the simulation says of it
	Bound     float64          `json:"bound_us"`     // the least that any schedule takes on these links
	Took      float64          `json:"took_us"`
	Kept      bool             `json:"kept"`
	Why       string           `json:"why,omitempty"` // there is no such program
}

// event is what ranks tell, one JSON object a line.
type event struct {
	Report *Report `json:"report,omitempty"` // the head, before the rows
	Row    *Row    `json:"row,omitempty"`
	Done   *Report `json:"done,omitempty"`
}

// Measure starts the ranks as spec says, with spec.Command starting one (Main). What
// is known is told as it comes: the links, then the rows.
func Measure(ctx context.Context, cfg Config, spec launch.Spec, links func(*Report), row func(*Row)) (*Report, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	spec.N = cfg.Ranks
	spec.Env = append(slices.Clone(spec.Env), ConfigEnv+"="+string(text))
	if cfg.Transport != "" {
		spec.Env = append(spec.Env, "WEFT_TRANSPORT="+cfg.Transport)
	}
	m := &collector{links: links, row: row}
	spec.Capture = func(int) io.Writer { return bench.EachLine(m.heard) }
	if _, err := launch.Run(ctx, spec); err != nil {
		return nil, err
	}
	if m.err != nil {
		return nil, m.err
	}
	if m.report == nil {
		return nil, errors.New("rank 0 ended without a report")
	}
	return m.report, nil
}

// collector takes what rank 0 tells; the others tell nothing.
type collector struct {
	mu     sync.Mutex
	links  func(*Report)
	row    func(*Row)
	report *Report
	err    error
}

// heard takes a line of a rank's output. The first that cannot be read is the error; later ones are its consequence.
func (m *collector) heard(line []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var e event
	err := json.Unmarshal(line, &e)
	switch {
	case err != nil && m.err == nil:
		m.err = fmt.Errorf("a rank wrote %q: %w", line, err)
	case e.Report != nil:
		m.links(e.Report)
	case e.Row != nil:
		m.row(e.Row)
	case e.Done != nil:
		m.report = e.Done
	}
}

// Main is what a rank process does.
func Main(ctx context.Context, out io.Writer) error {
	env, err := comm.FromEnv()
	if err != nil {
		return err
	}
	var cfg Config
	if err := json.Unmarshal([]byte(os.Getenv(ConfigEnv)), &cfg); err != nil {
		return fmt.Errorf("%s: %w", ConfigEnv, err)
	}
	env.Timeout = max(env.Timeout, 15*time.Minute) // the others wait while rank 0 makes programs
	env.Measure = true                             // what was made before does not take part
	c, err := comm.Join(ctx, env)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(out)
	if err := Rank(ctx, c, cfg, func(e any) error { return enc.Encode(e) }); err != nil {
		return err
	}
	if err := comm.Barrier(ctx, c); err != nil {
		return err
	}
	return c.Close()
}

// Rank measures, makes and tries programs; all ranks of a world call it. Rank 0 keeps
// those that won and tells.
func Rank(ctx context.Context, c *comm.Comm, cfg Config, tell func(any) error) error {
	if err := cfg.Check(); err != nil {
		return err
	}
	r := &Report{Ranks: c.Size(), Hosts: slices.Max(c.Hosts()) + 1, Transport: c.Transport()}
	var made []comm.Made
	if !cfg.Forget {
		rates, err := measure(ctx, c)
		if err != nil {
			return fmt.Errorf("measuring the links between hosts: %w", err)
		}
		r.Links = rates.text()
		if c.Rank() == 0 {
			if err := tell(event{Report: r}); err != nil {
				return err
			}
		}
		for _, op := range cfg.Ops {
			for i, size := range cfg.Sizes {
				t, err := newTrial(ctx, c, &cfg, op, size, rates)
				if err != nil {
					return fmt.Errorf("%s of %s: %w", op, size, err)
				}
				row, best, err := t.run(ctx)
				if err != nil {
					return fmt.Errorf("%s of %s: %w", op, size, err)
				}
				r.Rows = append(r.Rows, row)
				if row.Kept {
					to := int64(1) << 62
					if i+1 < len(cfg.Sizes) {
						to = int64(4*elements(cfg.Sizes[i+1], c.Size())) - 1
					}
					made = append(made, comm.Made{Op: op, From: int64(4 * elements(size, c.Size())), To: to, Form: row.Form, Program: best, Took: row.Took,
						Instead: row.Own, Would: row.OwnUS})
				}
				if c.Rank() == 0 {
					if err := tell(event{Row: row}); err != nil {
						return err
					}
				}
			}
		}
	}
	if c.Rank() != 0 {
		return nil
	}
	var err error
	r.Kept = len(made)
	if r.File, err = c.KeepMade(made); err != nil {
		return err
	}
	return tell(event{Done: r})
}
