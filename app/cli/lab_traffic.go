package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/lab"
	"github.com/weft-fabric/weft/model/unit"
)

func newLabTraffic() *cobra.Command {
	var asJSON bool
	size := "4MB"
	c := lab.TrafficConfig{}
	cmd := &cobra.Command{
		Use:   "traffic NAME",
		Short: "Send verified TCP traffic between all hosts of a lab, network by network",
		Long: `Send bytes over TCP between every two hosts of a lab, on each rail and in storage, and verify
what arrives. All connections are made at once; those that come about are then measured one
after another. Hosts of two tenants must not reach one another: for them a connection that
comes about is the fault. Exit status 1 says that something is not as planned.`,
		Example: `  weft lab up examples/storage.yaml
  weft lab traffic storage`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: labNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := unit.ParseBytes(size)
			if err != nil {
				return err
			}
			i, err := lab.Find(args[0])
			if err == nil {
				err = i.Enter()
			}
			if err != nil {
				return err
			}
			c.Bytes = int64(n)
			list, err := i.Traffic(c)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), list)
			} else {
				err = lab.PrintTraffic(cmd.OutOrStdout(), list)
			}
			for k := range list {
				if !list[k].AsPlanned() && err == nil {
					err = finding{errors.New("not all traffic is as planned")}
				}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&size, "size", size, "`BYTES` that each connection carries")
	cmd.Flags().DurationVar(&c.Limit, "limit", 5*time.Second, "how long a connection may take to come about, and to carry its bytes")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}
