package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/ckpt"
)

// printCheckpoints prints a table, and below it what is wrong with damaged checkpoints.
func printCheckpoints(out io.Writer, list []ckpt.Entry) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\tstate\tepoch\tranks\ttensors\tsize\tcreated\tfolder")
	for _, e := range list {
		created := "-"
		if !e.Created.IsZero() {
			created = e.Created.Format(time.RFC3339)
		}
		state := string(e.State)
		if e.Emergency {
			state += ", emergency"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%v\t%s\t%s\n", e.Step, state, e.Epoch, e.World, e.Tensors, unit.Bytes(e.Bytes), created, e.Folder)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, e := range list {
		for _, p := range e.Problems {
			fmt.Fprintf(out, "step %d: %s\n", e.Step, p)
		}
	}
	return nil
}

func newCkptList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list PLACE",
		Short: "List checkpoints by step",
		Long: `List checkpoints by step with their state: complete, damaged (manifest or files are
missing or wrong), incomplete (no manifest: being written, or abandoned), foreign
(other programs' files). Data is not read; 'weft ckpt verify' does that.`,
		Example: "  weft ckpt list runs/gpt/ckpt\n  weft ckpt list s3://models/gpt --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, args[0], func(ctx context.Context, s *ckpt.Store) error {
				list, err := s.List(ctx)
				if err != nil {
					return finding{err}
				}
				if asJSON {
					if list == nil {
						list = []ckpt.Entry{}
					}
					return printJSON(cmd.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "no checkpoints in %s\n", args[0])
					return nil
				}
				return printCheckpoints(cmd.OutOrStdout(), list)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
