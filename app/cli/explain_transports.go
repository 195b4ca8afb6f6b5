package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/run/transport/measure"
)

func newExplainTransports() *cobra.Command {
	o := measure.Default()
	var (
		size   string
		asJSON bool
		calls  bool
	)
	cmd := &cobra.Command{
		Use:   "transports",
		Short: "Compare sockets, shared memory, UCX and RDMA: copies, system calls, CPU time, latency, bandwidth",
		Long: `Measure the transports between two processes on this machine: latency of 8 bytes,
bandwidth and CPU time of long messages, and system calls that move data (traced in a
separate run). Transports without hardware here are modelled and marked; those without
their library say which one is missing.`,
		Example: `  weft explain transports
  weft explain transports --ways tcp,shm --size 64K --for 100ms
  weft explain transports --ways shm,tcp,ucx-posix --perftest
  weft explain transports --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			message, err := messageSize(size)
			if err != nil {
				return err
			}
			if o.For < time.Millisecond || o.For > time.Minute {
				return fmt.Errorf("--for %s: want 1ms to 1m", o.For)
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.Command, o.Message, o.Trace = []string{exe, "explain", "way-rank"}, message, calls
			if !asJSON {
				o.Told = func(name string) { fmt.Fprintf(cmd.ErrOrStderr(), "measuring %s\n", name) }
			}
			rows, err := measure.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]any{"transports": rows})
			}
			return printWays(cmd.OutOrStdout(), rows)
		},
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&o.Ways, "ways", nil, "`NAMES` of those to measure: "+strings.Join(measure.Names(), ", ")+"; default: all")
	fl.StringVar(&size, "size", "1MiB", "`SIZE` of long messages")
	fl.DurationVar(&o.For, "for", o.For, "`TIME` per figure and transport")
	fl.BoolVar(&calls, "calls", true, "count system calls, with a tracer (ptrace)")
	fl.BoolVar(&o.Alone, "perftest", false, "add what ucx_perftest reaches below each UCX transport")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("ways", cobra.FixedCompletions(measure.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printWays prints the table, and what its columns leave out.
func printWays(w io.Writer, rows []measure.Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "way\tkind\tcopies\tsystem calls\tprocessor\t8 B, one way\tbest\tbandwidth\torigin")
	fmt.Fprintln(t, "\t\t\ta MiB\ts a GB\tus\tus\tGB/s\t")
	for _, r := range rows {
		if r.Origin == "absent" {
			fmt.Fprintf(t, "%s\t%s\t%g\t-\t-\t-\t-\t-\t%s\n", r.Name, r.Kind, r.Copies, r.Origin)
			continue
		}
		calls := "-"
		if r.Counted {
			calls = fmt.Sprintf("%.3g", r.Calls)
		}
		fmt.Fprintf(t, "%s\t%s\t%g\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, r.Kind, r.Copies, calls, known(r.CPU), known(r.Latency), known(r.Best),
			known(r.Bandwidth), r.Origin)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, r := range rows {
		if _, err := fmt.Fprintf(w, "%s: %s\n", r.Name, wayNotes(r)); err != nil {
			return err
		}
	}
	return nil
}

// wayNotes says what the columns have no room for: why bytes are copied, what carries them, and which calls were counted.
func wayNotes(r measure.Row) string {
	parts := []string{"copies " + r.CopiesWhy}
	if r.Over != "" && r.Over != r.Name {
		parts = append(parts, "over "+r.Over)
	}
	if len(r.CallNames) > 0 {
		parts = append(parts, "calls of 64 messages: "+strings.Join(r.CallNames, ", "))
	}
	if r.Note != "" {
		parts = append(parts, r.Note)
	}
	return strings.Join(parts, "; ")
}

func messageSize(text string) (int, error) {
	sizes, err := parseSizes(text)
	if err != nil {
		return 0, err
	}
	if len(sizes) != 1 || sizes[0] < 64 || sizes[0] > 1<<30 {
		return 0, fmt.Errorf("--size %s: want one size from 64 bytes to 1 GiB", text)
	}
	return int(sizes[0]), nil
}

// known is a figure, or a dash where there is none.
func known(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g", v)
}

// newWayRank is the verb that one of two processes runs.
func newWayRank() *cobra.Command {
	var traced bool
	cmd := &cobra.Command{
		Use: "way-rank", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if traced {
				exe, err := os.Executable()
				if err != nil {
					return err
				}
				return measure.Trace(cmd.Context(), []string{exe, "explain", "way-rank"}, cmd.OutOrStdout())
			}
			return measure.Main(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&traced, "traced", false, "count the system calls of another process that runs this verb")
	return cmd
}
