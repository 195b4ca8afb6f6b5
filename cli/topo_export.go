package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/topo/format"
)

func newTopoExport() *cobra.Command {
	var p presetFlags
	var to, out string
	cmd := &cobra.Command{
		Use:   "export CLUSTER --to DIALECT",
		Short: "Write a topology for another tool",
		Example: `  weft topo export dgx-a100 --to nccl-xml -o topo.xml
  weft topo export examples/fat-tree-2tier.yaml --to ibsim -o fabric.net
  weft topo export examples/rail-1k.yaml --to slurm`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := format.Find(to)
			if err != nil {
				return fmt.Errorf("--to: %w", err)
			}
			if d.Encode == nil {
				return fmt.Errorf("--to: %s can only be read; these can be written: %s", to, strings.Join(dialectNames(true), ", "))
			}
			c, err := loadCluster(cmd, args[0], p)
			if err != nil {
				return err
			}
			return output(cmd, out, func(w io.Writer) error { return d.Encode(w, c.Graph) })
		},
	}
	p.register(cmd)
	cmd.Flags().StringVar(&to, "to", "", "dialect: "+strings.Join(dialectNames(true), ", "))
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write; standard output without it")
	_ = cmd.MarkFlagRequired("to")
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(dialectNames(true), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
