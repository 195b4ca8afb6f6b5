package cli

import (
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/watch"
)

func newWatch() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "watch",
		Short:   "Watch a cluster with Prometheus and Grafana: rules and dashboard for the agents",
		Long:    `Write what Prometheus and Grafana need to watch the hosts on which 'weft agent' runs.`,
		Example: `  weft watch export -o monitoring`,
		RunE:    group,
	}
	cmd.AddCommand(newWatchExport())
	return cmd
}

func newWatchExport() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write alerting rules for Prometheus and a dashboard for Grafana",
		Long: `Write weft.rules.yml and weft.dashboard.json into a folder. The rules raise an alert for
every check that agents make, for agents that are silent, GPUs that spin in a
collective, ports that are slower than their peers, and rails that carry too little.`,
		Example: `  weft watch export -o monitoring`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			board, err := watch.Dashboard()
			if err != nil {
				return err
			}
			for name, text := range map[string]string{"weft.rules.yml": watch.Rules(), "weft.dashboard.json": string(board) + "\n"} {
				if err := output(cmd, filepath.Join(dir, name), func(w io.Writer) error { _, err := io.WriteString(w, text); return err }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&dir, "output", "o", ".", "`DIR` to write to")
	return cmd
}
