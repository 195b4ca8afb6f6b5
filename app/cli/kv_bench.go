package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/run/transport/measure"
)

func newKVBench() *cobra.Command {
	var blocks int
	var last time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the radix tree's calls per second with each policy",
		Long: `Measure the radix tree of blocks on one core. The tree is full. Each round is a lookup, a lock, an insert of eight blocks
that evicts as many, and an unlock. Use the CPU-time figures on a busy machine: wall time includes other work.`,
		Example: `  weft kv bench
  weft kv bench --blocks 1000000 --for 3s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if blocks < 8 || blocks > 1<<26 {
				return fmt.Errorf("--blocks %d: want 8 to %d", blocks, 1<<26)
			}
			if last <= 0 {
				return fmt.Errorf("--for %s: want more than nothing", last)
			}
			type row struct {
				Policy    kv.Policy `json:"policy"`
				Blocks    int       `json:"blocks"`
				Calls     int       `json:"calls"`
				Clock     float64   `json:"calls_per_s"`
				Processor float64   `json:"calls_per_processor_s"`
			}
			var rows []row
			for _, p := range kv.Policies {
				c := kv.NewChurn(p, blocks, 1)
				before, began, calls := measure.Used(), time.Now(), 0
				for time.Since(began) < last {
					for range 1000 {
						c.Step()
					}
					calls += 1000
				}
				clock, used := time.Since(began).Seconds(), (measure.Used() - before).Seconds()
				r := row{Policy: p, Blocks: blocks, Calls: calls, Clock: float64(calls) / clock}
				if used > 0 {
					r.Processor = float64(calls) / used
				}
				rows = append(rows, r)
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "a full tree of %d blocks\n", blocks)
			t := newTable(cmd.OutOrStdout())
			fmt.Fprintln(t, "policy\tcalls a second\tcalls a second of a processor")
			for _, r := range rows {
				fmt.Fprintf(t, "%s\t%.2f million\t%.2f million\n", r.Policy, r.Clock/1e6, r.Processor/1e6)
			}
			return t.Flush()
		},
	}
	cmd.Flags().IntVar(&blocks, "blocks", 1<<17, "size of the tree")
	cmd.Flags().DurationVar(&last, "for", time.Second, "`TIME` for each policy")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
