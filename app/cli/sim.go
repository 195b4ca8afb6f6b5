package cli

import "github.com/spf13/cobra"

func newSim() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate collectives, training steps, failures and serving on a cluster",
		RunE:  group,
	}
	cmd.AddCommand(newSimCollective(), newSimFailures(), newSimServe(), newSimTrace(), newSimTrain())
	return cmd
}
