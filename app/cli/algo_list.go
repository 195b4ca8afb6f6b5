package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
)

// algoEntry is an algorithm as --json prints it.
type algoEntry struct {
	Name        string   `json:"name"`
	Collectives []string `json:"collectives"`
	Steps       string   `json:"steps"`
	Sent        string   `json:"sent_per_rank"`
	Best        string   `json:"best"`
	Reference   string   `json:"reference"`
	Inner       bool     `json:"inner"` // may stand inside the domains of a hierarchical all-reduce
	Outer       bool     `json:"outer"` // may stand between them
}

// algoEntries describes the algorithms for a collective, or all of them for 0.
func algoEntries(only sched.Collective) []algoEntry {
	list := []algoEntry{}
	for _, a := range algo.All() {
		if only != 0 && !a.Serves(only) {
			continue
		}
		e := algoEntry{Name: a.Name, Steps: a.Steps, Sent: a.Sent, Best: a.Summary, Reference: a.Reference,
			Inner: algo.IsInner(a, sched.AllReduce), Outer: algo.IsOuter(a, sched.AllReduce)}
		for _, o := range a.Ops {
			e.Collectives = append(e.Collectives, o.String())
		}
		list = append(list, e)
	}
	return list
}

func newAlgoList() *cobra.Command {
	var op string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List algorithms: collectives, steps, bytes per rank, when to use them",
		Long: `List the algorithms with their collectives, steps (messages on the longest chain),
bytes sent per rank as a multiple of S, and best use. n is the number of ranks;
proofs check the formulas.`,
		Example: `  weft algo list
  weft algo list --op all-to-all
  weft algo list --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var only sched.Collective
			if op != "" {
				var err error
				if only, err = sched.ParseCollective(op); err != nil {
					return fmt.Errorf("--op: %w", err)
				}
			}
			list := algoEntries(only)
			if asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			for i, e := range list {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n  best   %s\n  does   %s\n  steps  %s\n  sends  %s\n",
					e.Name, e.Best, strings.Join(e.Collectives, ", "), e.Steps, e.Sent)
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&op, "op", "", "only those that do this `COLLECTIVE`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
