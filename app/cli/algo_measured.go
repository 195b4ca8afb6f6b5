package cli

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/bench/fit"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/launch"
)

// measuredFlags are those of 'algo synth --measured'.
type measuredFlags struct {
	on, forget   bool
	ranks, turns int
	hosts, rsh   string
	spec         launch.Spec
	links        linkFlags
	lab          labFlag
}

func (m *measuredFlags) register(cmd *cobra.Command) {
	s := cmd.Flags()
	s.BoolVar(&m.on, "measured", false,
		"start ranks, measure the links between their hosts, and keep the programs that beat the runtime's choice there")
	s.IntVarP(&m.ranks, "ranks", "n", 0, "number of ranks, for --measured; default: one per host")
	s.IntVar(&m.turns, "turns", 5, "turns of each program at each size, for --measured; the median counts")
	s.BoolVar(&m.forget, "forget", false, "remove what --measured stored for these ranks and hosts")
	hostFlags(cmd, &m.spec, &m.hosts, &m.rsh)
	m.links.bindTransport(cmd)
	m.lab.bind(cmd)
}

// measuredOnly are flags of --measured, and unmeasured those that it does not take.
var (
	measuredOnly = []string{"ranks", "turns", "forget", "hosts", "rsh", "master-addr", "transport", "lab"}
	unmeasured   = []string{"host", "links", "gpus", "root", "trees", "pieces", "loss", "fail", "slow", "wire", "reached", "to",
		"output", "set"}
)

// newFitRank is the verb that a rank of --measured runs.
func newFitRank() *cobra.Command {
	return &cobra.Command{
		Use: "fit-rank", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ofRank(fit.Main(cmd.Context(), cmd.OutOrStdout()))
		},
	}
}

// runMeasured makes programs for real links.
func (f *synthFlags) runMeasured(cmd *cobra.Command, args []string) error {
	m := &f.measured
	if err := launch.Supported(); err != nil {
		return finding{fmt.Errorf("%s --measured: %w", cmd.CommandPath(), err)}
	}
	cfg, err := f.measuring(cmd, args)
	if err != nil {
		return err
	}
	if m.lab.name != "" {
		err = m.lab.place(cmd, &m.spec, m.hosts)
	} else {
		err = places(cmd, &m.spec, m.hosts, m.rsh)
	}
	if err != nil {
		return err
	}
	if cfg.Ranks == 0 {
		cfg.Ranks = max(len(m.spec.Hosts), 2)
	}
	env, err := m.links.env()
	if err != nil {
		return err
	}
	m.spec.Env = append(m.spec.Env, env...)
	path, err := os.Executable()
	if err != nil {
		return err
	}
	m.spec.Command = []string{path, "fit-rank"}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	m.spec.Signals, m.spec.Stderr, m.spec.Prefix = signals, cmd.ErrOrStderr(), true
	out := cmd.OutOrStdout()
	links, row := func(*fit.Report) {}, func(*fit.Row) {}
	if !f.asJSON {
		links, row = measuredPrinter(out)
	}
	r, err := fit.Measure(cmd.Context(), cfg, m.spec, links, row)
	if err != nil {
		return scarce(err)
	}
	switch {
	case f.asJSON:
		return printJSON(out, r)
	case m.forget:
		fmt.Fprintf(out, "nothing is kept for these ranks in %s\n", r.File)
	case r.Kept == 0:
		fmt.Fprintln(out, "\nno program saves a twentieth: the runtime's own choices stay")
	default:
		fmt.Fprintf(out, "\n%s kept in %s: they run by themselves from the next start of these ranks on these hosts\n",
			count(r.Kept, "program"), r.File)
	}
	return nil
}

func parseCollectives(names string) (ops []sched.Collective, err error) {
	for name := range strings.SplitSeq(names, ",") {
		op, err := sched.ParseCollective(name)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// measuring is what --measured is to measure, as the other flags say.
func (f *synthFlags) measuring(cmd *cobra.Command, args []string) (cfg fit.Config, err error) {
	if len(args) > 0 {
		return cfg, fmt.Errorf("%s with --measured, which measures the hosts that --hosts or --lab names; leave one of them out", args[0])
	}
	for _, name := range unmeasured {
		if l := cmd.Flags().Lookup(name); l != nil && l.Changed {
			return cfg, fmt.Errorf("--%s is not for --measured; see 'weft algo synth --help'", name)
		}
	}
	m := &f.measured
	cfg = fit.Config{Ranks: m.ranks, Channels: f.wish.Channels, Turns: m.turns, Forget: m.forget}
	ops := "all-reduce,all-gather,reduce-scatter"
	if cmd.Flags().Changed("op") {
		ops = f.op
	}
	if cfg.Ops, err = parseCollectives(ops); err != nil {
		return cfg, fmt.Errorf("--op: %w", err)
	}
	size := "256KiB..16MiB"
	if cmd.Flags().Changed("size") {
		size = f.size
	}
	all, err := parseSizes(size)
	if err != nil {
		return cfg, err
	}
	for i := 0; i < len(all); i += 2 { // every fourth: choices change slowly
		cfg.Sizes = append(cfg.Sizes, all[i])
	}
	return cfg, nil
}

// measuredPrinter prints links when they are measured, and a row for each size.
func measuredPrinter(out io.Writer) (links func(*fit.Report), row func(*fit.Row)) {
	return func(r *fit.Report) {
			fmt.Fprintf(out, "%s on %s over %s; links as measured:\n\n%s\n", count(r.Ranks, "rank"), count(r.Hosts, "host"), r.Transport,
				indent(r.Links))
			fmt.Fprintf(out, "%-15s%10s  %-26s%10s%10s%10s%10s  %6s  %s\n", "operation", "size", "runtime's choice", "time", "made", "predicted",
				"bound", "ratio", "program")
		}, func(r *fit.Row) {
			if r.Form == "" {
				fmt.Fprintf(out, "%-15s%10s  %-26s%10s  nothing made: %s\n", r.Op, r.Bytes, r.Own, micros(r.OwnUS), r.Why)
				return
			}
			verdict := "not kept"
			if r.Kept {
				verdict = "kept"
			}
			fmt.Fprintf(out, "%-15s%10s  %-26s%10s%10s%10s%10s  %6.2f  %s; %s\n",
				r.Op, r.Bytes, r.Own, micros(r.OwnUS), micros(r.Took), micros(r.Predicted), micros(r.Bound), r.OwnUS/r.Took, r.Form, verdict)
		}
}

func micros(us float64) string { return unit.Time(us * float64(unit.Microsecond)).String() }

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}
