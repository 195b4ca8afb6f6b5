package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/view/draw"
)

func newTopoShow() *cobra.Command {
	var p presetFlags
	var out, hosts string
	cmd := &cobra.Command{
		Use:   "show CLUSTER",
		Short: "Draw a topology as SVG: tiers, pods, rails, and host insides on request",
		Example: `  weft topo show examples/rail-1k.yaml -o fabric.svg
  weft topo show examples/rail-1k.yaml --hosts 'n[0-1]' -o hosts.svg
  weft topo show dgx-1v -o cube-mesh.svg`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if ext := filepath.Ext(out); ext != "" && !strings.EqualFold(ext, ".svg") {
				return fmt.Errorf("-o %s: pictures are written as SVG only; name the file %s.svg", out, strings.TrimSuffix(out, ext))
			}
			var names []string
			if hosts != "" {
				var err error
				if names, err = hostlist.Expand(hosts); err != nil {
					return fmt.Errorf("--hosts: %w", err)
				}
				if len(names) > draw.MaxHosts {
					return fmt.Errorf("--hosts names %d hosts; the insides of at most %d are drawn in one picture", len(names), draw.MaxHosts)
				}
			}
			c, err := loadCluster(cmd, args[0], p)
			if err != nil {
				return err
			}
			for _, h := range names {
				if _, ok := c.Graph.HostByName(h); !ok {
					return fmt.Errorf("--hosts: no host %q in %s", h, args[0])
				}
			}
			o := draw.Options{Title: c.Name, Hosts: names}
			return output(cmd, out, func(w io.Writer) error { return draw.Cluster(w, c.Graph, o) })
		},
	}
	p.register(cmd)
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write; default: standard output")
	cmd.Flags().StringVar(&hosts, "hosts", "", "draw the insides of these hosts too, a `HOSTLIST` like n[0-1]")
	return cmd
}
