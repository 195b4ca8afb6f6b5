package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/topo/format"
)

func newTopoExport() *cobra.Command {
	var p presetFlags
	var to, out, host string
	cmd := &cobra.Command{
		Use:   "export CLUSTER --to DIALECT",
		Short: "Write a topology for another tool",
		Long: `Write a topology for another tool. nccl-xml and nvidia-smi describe one host; --host
selects it in a cluster.`,
		Example: `  weft topo export dgx-a100 --to nccl-xml -o topo.xml
  weft topo export examples/rail-1k.yaml --to nccl-xml --host n17
  weft topo export examples/fat-tree-2tier.yaml --to ibsim -o fabric.net
  weft topo export examples/rail-1k.yaml --to slurm`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := format.Find(to)
			if err != nil || d.Encode == nil {
				return fmt.Errorf("--to: no dialect %q can be written; known: %s", to, strings.Join(dialectNames(true), ", "))
			}
			c, err := loadCluster(cmd, args[0], p)
			if err != nil {
				return err
			}
			if host != "" {
				h, ok := c.Graph.HostByName(host)
				switch {
				case !ok:
					return fmt.Errorf("--host: no host %q in %s", host, args[0])
				case d.EncodeHost == nil:
					return fmt.Errorf("--host: %s describes a whole cluster; leave --host out", to)
				}
				return output(cmd, out, func(w io.Writer) error { return d.EncodeHost(w, c.Graph, h) })
			}
			return output(cmd, out, func(w io.Writer) error { return d.Encode(w, c.Graph) })
		},
	}
	p.register(cmd)
	cmd.Flags().StringVar(&to, "to", "", "dialect: "+strings.Join(dialectNames(true), ", "))
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write; default: standard output")
	cmd.Flags().StringVar(&host, "host", "", "which host of a cluster to write, for dialects that describe one: `NAME`")
	_ = cmd.MarkFlagRequired("to")
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(dialectNames(true), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
