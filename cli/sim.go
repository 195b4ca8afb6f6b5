package cli

import "github.com/spf13/cobra"

func newSim() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate collectives on a cluster: how long, and what limits",
		RunE:  group,
	}
	cmd.AddCommand(newSimCollective())
	return cmd
}
