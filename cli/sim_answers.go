package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/cost"
	"github.com/weft-fabric/weft/sched"
	"github.com/weft-fabric/weft/topo"
	"github.com/weft-fabric/weft/tune"
	"github.com/weft-fabric/weft/unit"
)

// asOther answers with another library's choice.
func (f *simFlags) asOther(cmd *cobra.Command, c *cluster.Cluster, op sched.Collective, sizes []unit.Bytes, gpus []topo.NodeID) error {
	if f.as != "nccl" {
		return fmt.Errorf("--as %q is unknown; known: nccl", f.as)
	}
	m, err := tune.NewNCCL(c.Graph, gpus, c.Catalog, tune.NCCLOptions{})
	if err != nil {
		return err
	}
	var rows []simRow
	for _, size := range sizes {
		p := m.Predict(op, size)
		rows = append(rows, simRow{Op: op.String(), Bytes: int64(size), GPUs: len(gpus), Algo: p.Algo, Proto: p.Proto, Channels: p.Channels,
			Time: p.Time.Microseconds(), AlgBW: float64(p.AlgBW) / 1e9, BusBW: float64(p.BusBW) / 1e9, Limit: p.Limit, Nearest: p.Nearest, Error: p.Error})
	}
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	printRows(cmd.OutOrStdout(), rows)
	return nil
}

// calibrated answers by the model that was fitted to the cluster's own
// measurements: for the algorithm asked for, or else for the one whose steps the
// fit counted, which is the first in tune's list.
func (f *simFlags) calibrated(cmd *cobra.Command, c *cluster.Cluster, op sched.Collective, sizes []unit.Bytes, gpus []topo.NodeID) error {
	hosts := map[topo.HostID]bool{}
	for _, n := range gpus {
		hosts[c.Graph.Nodes[n].Host] = true
	}
	cal, err := readCalibration(cmd, f.cal)
	if err != nil {
		return err
	}
	link, err := cal.Link(len(hosts))
	if err != nil {
		return fmt.Errorf("%s: %w", f.cal, err)
	}
	algos, err := cost.Algos(op, len(gpus))
	if err != nil {
		return err
	}
	chosen := algos[0]
	if f.algo != "auto" {
		at := slices.IndexFunc(algos, func(a cost.Algo) bool { return a.Name == f.algo })
		if at < 0 {
			var names []string
			for _, a := range algos {
				names = append(names, a.Name)
			}
			return fmt.Errorf("--algo %s: a calibration answers for %s", f.algo, strings.Join(names, ", "))
		}
		chosen = algos[at]
	}
	var rows []simRow
	for _, size := range sizes {
		t := link.Model().Time(chosen.Cost(size))
		algbw := float64(size.Per(t)) / 1e9
		rows = append(rows, simRow{Op: op.String(), Bytes: int64(size), GPUs: len(gpus), Algo: chosen.Name, Proto: "fitted", Channels: 1,
			Time: t.Microseconds(), AlgBW: algbw, BusBW: algbw * op.BusFactor(len(gpus)), Error: link.MedianError,
			Limit:   fmt.Sprintf("links %s, fitted", link.Kind),
			Nearest: fmt.Sprintf("%d points of %s to %s on %d to %d GPUs", link.Points, link.From, link.To, link.MinGPUs, link.MaxGPUs)})
	}
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	printRows(cmd.OutOrStdout(), rows)
	fmt.Fprintf(cmd.OutOrStdout(), "fitted to %s; median error %.1f%%\n", rows[0].Nearest, 100*link.MedianError)
	return nil
}
