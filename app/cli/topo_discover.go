package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/observe/probe"
)

func newTopoDiscover() *cobra.Command {
	var root, out string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "discover",
		Short: "Discover this host's GPUs, PCIe tree, NVLink, NICs and NUMA nodes",
		Long: `Read this host from /sys, and its NVLinks from NVIDIA's management library if
installed. --root reads a copy of another host's /sys, which has no NVLinks.`,
		Example: `  weft topo discover
  weft topo discover --root /mnt/other-host -o host.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := os.Hostname()
			if err != nil || root != "/" {
				name = "host"
			}
			found, err := probe.Host(root, name, catalog.Default())
			if err != nil {
				return err
			}
			for _, n := range found.Notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", n)
			}
			if out != "" {
				return output(cmd, out, func(w io.Writer) error { return printGraph(w, found.Graph, true) })
			}
			return printGraph(cmd.OutOrStdout(), found.Graph, asJSON)
		},
	}
	cmd.Flags().StringVar(&root, "root", "/", "`DIR` that holds sys/")
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write the graph to, as JSON")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the whole graph as JSON")
	return cmd
}
