package cli

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/observe/agent/cost"
)

// newAgentCost measures an agent on this host.
func newAgentCost() *cobra.Command {
	var f struct {
		length       time.Duration
		every        []time.Duration
		root, report string
		asJSON       bool
	}
	cmd := &cobra.Command{
		Use:    "cost",
		Hidden: true,
		Short:  "Measure what an agent costs this host",
		Long: `Start an agent and print what it costs: processor time, memory, reads and system calls a
second. It runs twice for each --every: undisturbed for processor time and memory, then
under ptrace, which slows it, for the calls. The first three seconds of each run do not
count.`,
		Example: `  weft agent cost --for 40s
  weft agent cost --for 20s --every 10s,1s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.length < time.Second {
				return fmt.Errorf("--for %s: at least 1s", f.length)
			}
			for _, e := range f.every {
				if e < time.Second {
					return fmt.Errorf("--every %s: at least 1s, as agents sample no faster", e)
				}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			type row struct {
				Every float64 `json:"every_s"`
				cost.Figures
			}
			rows := []row{}
			for _, e := range f.every {
				argv := []string{exe, "agent", "--listen", "127.0.0.1:0", "--interval", e.String()}
				if f.root != "" {
					argv = append(argv, "--root", f.root)
				}
				if f.report != "" {
					argv = append(argv, "--report", f.report)
				}
				x, err := cost.Measure(ctx, 3*time.Second, f.length, argv, os.Environ())
				if err != nil {
					return finding{err}
				}
				rows = append(rows, row{e.Seconds(), x})
			}
			if f.asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"rows": rows})
			}
			out := cmd.OutOrStdout()
			fmt.Fprintln(out, "every    processor    memory   reads/s   system calls/s   most of them")
			for _, r := range rows {
				var most []string
				for _, c := range r.Most[:min(4, len(r.Most))] {
					name := c.Name
					if name == "" {
						name = fmt.Sprintf("#%d", c.Number)
					}
					most = append(most, fmt.Sprintf("%s %.0f", name, c.PerS))
				}
				calls, note := fmt.Sprintf("%.0f", r.Syscalls), strings.Join(most, ", ")
				if r.Syscalls < 0 {
					calls, note = "unknown", r.Why
				}
				fmt.Fprintf(out, "%4.0f s      %5.2f%%   %4.0f MB   %7.0f   %14s   %s\n",
					r.Every, 100*r.CPU, float64(r.Memory)/1e6, r.Reads, calls, note)
			}
			for _, r := range rows {
				if r.Every >= 10 && (r.CPU > 0.01 || r.Memory > 64<<20) {
					return finding{errors.New("at 10 s an agent may take 1% of a core and 64 MiB")}
				}
			}
			return nil
		},
	}
	s := cmd.Flags()
	s.DurationVar(&f.length, "for", 40*time.Second, "`TIME` to measure")
	s.DurationSliceVar(&f.every, "every", []time.Duration{10 * time.Second, time.Second}, "`TIMES` between samples, one row each")
	s.StringVar(&f.root, "root", "", "`DIR` with a copy of another host's sys and proc")
	s.StringVar(&f.report, "report", "", "`ADDRESS` of a server of 'weft watch' that the agent reports to")
	s.BoolVar(&f.asJSON, "json", false, "print as JSON")
	return cmd
}
