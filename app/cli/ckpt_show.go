package cli

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/run/ckpt"
)

func newCkptShow() *cobra.Command {
	var asJSON bool
	var step int64
	cmd := &cobra.Command{
		Use:     "show PLACE",
		Short:   "Show a checkpoint: states, files, tensors and how they are split",
		Example: "  weft ckpt show runs/gpt/ckpt\n  weft ckpt show runs/gpt/ckpt --step 2000 --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withStore(cmd, args[0], func(ctx context.Context, s *ckpt.Store) error {
				m, err := pick(cmd, ctx, s, step)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), m)
				}
				return m.Print(cmd.OutOrStdout())
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the manifest as JSON")
	stepFlag(cmd, &step)
	return cmd
}
