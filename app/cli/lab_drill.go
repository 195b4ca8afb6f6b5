package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/fabric/lab"
	"github.com/weft-fabric/weft/fabric/network/check"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// labDrill are the flags of weft lab drill.
type labDrill struct {
	cfg             lab.DrillConfig
	hosts, size     string
	asJSON, noRanks bool
}

func newLabDrill() *cobra.Command {
	var s labDrill
	var list strings.Builder
	var names []string
	for _, f := range lab.Faults() {
		fmt.Fprintf(&list, "  %-15s %s\n", f.Name, f.Does)
		names = append(names, f.Name)
	}
	cmd := &cobra.Command{
		Use:   "drill NAME [FAULT...]",
		Short: "Break a lab's network and measure packet loss, detection and what the ranks did",
		Long: `Break something in a lab, measure, and repair it; without FAULT, all faults one after
another. Sixteen flows of 500 small packets per second measure the outage. Ranks behind
two leaves run one all-reduce after another; the report has their bus bandwidth before,
during and after the fault, and the share of each rail. The suspect is the cable that
all lost connections crossed and no working one.

` + list.String(),
		Example: `  weft lab drill lab cut-near
  weft lab drill lab data-blackhole --json
  weft lab drill lab --no-ranks`,
		Args: cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return labNames(cmd, args, word)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, f := range args[1:] {
				if !slices.Contains(names, f) {
					return fmt.Errorf("unknown fault %q; known: %s", f, strings.Join(names, ", "))
				}
			}
			if len(args) == 1 {
				args = append(args, names...)
			}
			return s.run(cmd, args[0], args[1:])
		},
	}
	fl := cmd.Flags()
	fl.DurationVar(&s.cfg.Phase, "phase", 3*time.Second, "`TIME` to measure before the fault, and after its repair")
	fl.DurationVar(&s.cfg.During, "during", 6*time.Second, "`TIME` for which the fault stays")
	fl.StringVar(&s.hosts, "hosts", "", "`LIST` of hosts that ranks run on; default: two behind each of two leaves")
	fl.StringVar(&s.size, "bytes", "1M", "`SIZE` of an all-reduce")
	fl.BoolVar(&s.noRanks, "no-ranks", false, "packets only")
	fl.BoolVar(&s.asJSON, "json", false, "print JSON")
	return cmd
}

// run breaks the lab in one way after the other.
func (s *labDrill) run(cmd *cobra.Command, name string, faults []string) error {
	cfg := &s.cfg
	if cfg.Phase < 500*time.Millisecond || cfg.During < time.Second {
		return fmt.Errorf("--phase %s, --during %s; give at least 500ms and 1s", cfg.Phase, cfg.During)
	}
	bytes, err := bench.ParseSize(s.size)
	if err != nil {
		return fmt.Errorf("--bytes: %w", err)
	}
	i, err := lab.Find(name)
	if err != nil {
		return finding{err}
	}
	if err := i.Enter(); err != nil {
		return finding{err}
	}
	if s.hosts != "" {
		if cfg.Hosts, err = labHosts(i, name, s.hosts); err != nil {
			return err
		}
	}
	if !s.noRanks {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		cfg.Program, cfg.Bytes, cfg.Env = []string{exe, "lab-rank", strconv.FormatInt(bytes, 10)}, int(bytes), labEnv(i)
	}
	cfg.Log = func(format string, a ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", a...) }
	cfg.Drift = drift(cmd, i)
	ctx, stop := signal.NotifyContext(cmd.Context(), ending()...)
	defer stop()
	return s.drill(ctx, cmd.OutOrStdout(), i, faults)
}

// labHosts expands a hostlist and refuses what is no host of a lab.
func labHosts(i *lab.Info, name, list string) ([]string, error) {
	hosts, err := hostlist.Expand(list)
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if !slices.Contains(i.Spec.Hosts(), h) {
			return nil, fmt.Errorf("--hosts %s: lab %s has no host %s", list, name, h)
		}
	}
	return hosts, nil
}

// drill prints each report as soon as there is one, since a drill takes a while; JSON is one list at the end.
func (s *labDrill) drill(ctx context.Context, w io.Writer, i *lab.Info, faults []string) error {
	reports := []*lab.Drill{}
	for k, f := range faults {
		d, err := i.Drill(ctx, f, s.cfg)
		if err != nil {
			return finding{fmt.Errorf("%s: %w", f, err)}
		}
		reports = append(reports, d)
		if !s.asJSON {
			if k > 0 {
				fmt.Fprintln(w)
			}
			d.Print(w)
		}
	}
	if s.asJSON {
		return printJSON(w, reports)
	}
	return nil
}

// drift compares a lab with the cluster file that it was made from; nil where the file is gone.
func drift(cmd *cobra.Command, i *lab.Info) func() ([]string, error) {
	var f planFlags
	if i.Spec.File == "" {
		return nil
	}
	p, err := f.load(cmd, i.Spec.File)
	if err != nil {
		return nil
	}
	return func() ([]string, error) {
		r, err := i.Collect()
		if err != nil {
			return nil, err
		}
		out := []string{}
		for _, x := range check.Compare(p.Rendered("frr"), r) {
			if x.State == check.Unknown && !i.Spec.LLDP {
				continue // nobody here hears LLDP
			}
			out = append(out, x.String())
		}
		return out, nil
	}
}

// newLabRank is a rank of a drill.
func newLabRank() *cobra.Command {
	return &cobra.Command{
		Use: "lab-rank BYTES", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := strconv.Atoi(args[0])
			if err != nil {
				return err
			}
			if err := bench.Steady(cmd.Context(), bytes, cmd.OutOrStdout()); err != nil {
				return finding{err}
			}
			return nil
		},
	}
}
