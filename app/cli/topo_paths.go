package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/paths"
	"github.com/weft-fabric/weft/model/unit"
)

func newTopoPaths() *cobra.Command {
	var p presetFlags
	var size, link string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "paths CLUSTER FROM TO",
		Short: "Rank the paths between two endpoints by bandwidth and latency, with reasons",
		Example: `  weft topo paths examples/rail-1k.yaml n0:gpu0 n17:gpu5
  weft topo paths dgx-a100 gpu0 gpu7 --size 8B`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := unit.ParseBytes(size)
			if err != nil {
				return fmt.Errorf("--size: %w", err)
			}
			if bytes < 0 {
				return fmt.Errorf("--size is %s; it must not be negative", size)
			}
			c, err := loadCluster(cmd, args[0], p)
			if err != nil {
				return err
			}
			if err := stateLinks(c, link); err != nil {
				return err
			}
			a, err := c.Graph.Lookup(args[1])
			if err != nil {
				return err
			}
			b, err := c.Graph.Lookup(args[2])
			if err != nil {
				return err
			}
			found, err := paths.Between(c.Graph, a, b, c.Catalog)
			if errors.Is(err, topo.ErrUnreachable) {
				return finding{err}
			}
			if err != nil {
				return err
			}
			paths.Rank(found, bytes)
			if asJSON {
				return printJSON(cmd.OutOrStdout(), paths.Reports(c.Graph, found, bytes))
			}
			return paths.Print(cmd.OutOrStdout(), c.Graph, found, bytes)
		},
	}
	p.register(cmd)
	cmd.Flags().StringVar(&size, "size", "64MiB", "rank by the time a message of this `SIZE` takes")
	cmd.Flags().StringVar(&link, "link", "", "the rate of links for which an imported topology states none, such as `ndr`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
