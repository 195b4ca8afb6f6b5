package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/launch"
)

// predicted is a row of bench --predict.
type predicted struct {
	Hosts     int     `json:"hosts"`
	Ranks     int     `json:"ranks"`
	Op        string  `json:"op"`
	Bytes     int64   `json:"bytes"`
	Program   string  `json:"program"`
	Measured  float64 `json:"measured_us"`
	Simulated float64 `json:"simulated_us"`
	Ratio     float64 `json:"ratio"`  // simulated over measured
	Spread    float64 `json:"spread"` // of what was measured: the middle batch over the fastest

	Point *bench.Point `json:"point"` // what was measured, and what ran
}

// prediction is what bench --predict found.
type prediction struct {
	Rows    []predicted `json:"rows"`
	Within  int         `json:"within_25_percent"`
	Doubted bool        `json:"links_doubtful"`
}

// runPredict measures operations, simulates the programs that ran on the links that were measured, and compares.
func (f *benchFlags) runPredict(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		args = []string{"all-reduce"}
	}
	layouts, err := f.layouts(cmd)
	if err != nil {
		return err
	}
	if len(layouts) == 0 && f.hosts == "" && f.cfg.Transport != "tcp" {
		return fmt.Errorf("--predict simulates messages, and ranks of one host read one another's memory; want --namespaces 2x4, --hosts, or --transport tcp")
	}
	if len(layouts) == 0 {
		if err := places(cmd, &f.spec, f.hosts, f.rsh); err != nil {
			return err
		}
	}
	if f.spec.Command, err = self(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var out prediction
	measure := func(spec launch.Spec, ranks, hosts int) error {
		f.ranks = strconv.Itoa(ranks)
		spec.Stderr, spec.Prefix = cmd.ErrOrStderr(), true
		spec.Env = append(spec.Env, "WEFT_MEASURE=1")
		gauge := &bench.Gauge{} // of these hosts, measured before each operation
		var reports []*bench.Report
		for _, op := range args {
			if err := f.read(cmd, []string{op}); err != nil {
				return err
			}
			f.cfg.Predict = true
			r, err := bench.Measure(ctx, f.cfg, spec, func(bench.Event) {})
			if err != nil {
				return err
			}
			if len(r.Rows) > 0 {
				gauge.Add(r.Rows[0].Ran.Gauge)
			}
			reports = append(reports, r)
		}
		for i, r := range reports {
			for _, p := range r.Rows {
				p.Ran.Gauge = gauge
				row, err := predict(args[i], p, hosts, ranks)
				if err != nil {
					return fmt.Errorf("simulating %s of %s: %w", args[i], unit.Bytes(p.Bytes), err)
				}
				out.Rows, out.Doubted = append(out.Rows, row), out.Doubted || p.Ran.Links.Doubtful
				if math.Abs(row.Ratio-1) <= 0.25 {
					out.Within++
				}
			}
		}
		return nil
	}
	if len(layouts) == 0 {
		n, err := strconv.Atoi(f.ranks)
		if err != nil {
			return fmt.Errorf("-n %q: want a number of ranks; lists are for --compare", f.ranks)
		}
		if err := measure(f.spec, n, distinct(f.spec.Hosts)); err != nil {
			return err
		}
	}
	for _, l := range layouts {
		if err := l.with(ctx, func(n *bench.Namespaces) error {
			return measure(n.Spec(l.Hosts*l.Ranks, f.spec.Command), l.Hosts*l.Ranks, l.Hosts)
		}); err != nil {
			return fmt.Errorf("--namespaces %dx%d: %w", l.Hosts, l.Ranks, err)
		}
	}
	return output(cmd, f.output, func(w io.Writer) error {
		if f.json {
			return printJSON(w, &out)
		}
		return out.print(w)
	})
}

// predict simulates a row: out of place, as programs are written, where there is such a way. In place comm keeps what is overwritten
// besides. The fastest batch counts, as the fastest of its rounds does where links are measured: what else runs only makes them longer.
func predict(op string, p *bench.Point, hosts, ranks int) (predicted, error) {
	t := p.Out
	if t == nil {
		t = p.In
	}
	if t == nil || p.Ran == nil {
		return predicted{}, errors.New("it was not measured")
	}
	time, err := p.Ran.Predict(p.Bytes, t.Iters)
	if err != nil {
		return predicted{}, err
	}
	row := predicted{Hosts: hosts, Ranks: ranks, Op: op, Bytes: p.Bytes, Program: p.Ran.Name, Measured: t.Least,
		Simulated: float64(time) / float64(unit.Microsecond), Point: p}
	row.Ratio, row.Spread = row.Simulated/row.Measured, t.Micros/t.Least
	return row, nil
}

// distinct is how many hosts a list names, each of them once or for several ranks; an empty list is this one.
func distinct(hosts []string) int {
	return max(len(slices.Compact(slices.Sorted(slices.Values(hosts)))), 1)
}

func (x *prediction) print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tw, "| hosts\t| ranks\t| op\t| bytes\t| program\t| measured us\t| simulated us\t| simulated/measured |")
	fmt.Fprintln(tw, "| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| ---\t| --- |")
	mean, unsure := 0.0, 0
	for _, r := range x.Rows {
		ratio := fmt.Sprintf("%.2f", r.Ratio)
		if math.Abs(r.Ratio-1) > 0.25 {
			ratio = "**" + ratio + "**"
		}
		mean += math.Log(r.Ratio) / float64(len(x.Rows))
		if r.Spread > 1.25 {
			ratio, unsure = ratio+" ~", unsure+1
		}
		fmt.Fprintf(tw, "| %d\t| %d\t| %s\t| %s\t| %s\t| %.1f\t| %.1f\t| %s |\n",
			r.Hosts, r.Ranks, r.Op, unit.Bytes(r.Bytes), r.Program, r.Measured, r.Simulated, ratio)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "# within 25%%: %d of %d\n# geometric mean: %.2f\n", x.Within, len(x.Rows), math.Exp(mean))
	if unsure > 0 {
		fmt.Fprintf(w, "# ~ the middle batch took more than 25%% longer than the fastest: %d\n", unsure)
	}
	if x.Doubted {
		fmt.Fprintln(w, "# links were measured beside other work: they are doubtful")
	}
	return nil
}

// with makes the layout's hosts for as long as f runs.
func (l *layout) with(ctx context.Context, f func(*bench.Namespaces) error) (err error) {
	n, err := bench.NewNamespaces(ctx, l.Wiring)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return f(n)
}
