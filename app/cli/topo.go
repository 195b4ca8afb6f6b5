package cli

import (
	"github.com/spf13/cobra"
)

func newTopo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Build, show, import, export and discover topologies",
		RunE:  group,
	}
	cmd.AddCommand(newTopoBuild(), newTopoShow(), newTopoImport(), newTopoExport(), newTopoPaths(), newTopoRings(), newTopoDiscover())
	return cmd
}
