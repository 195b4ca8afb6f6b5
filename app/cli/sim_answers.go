package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/tune"
)

// ncclFlags are NCCL's own knobs.
type ncclFlags struct {
	algo, proto, nvls string
	collnet           bool
}

func (n *ncclFlags) register(cmd *cobra.Command, when string) {
	s := cmd.Flags()
	s.StringVar(&n.algo, "nccl-algo", "", when+"`LIST` of algorithms as NCCL_ALGO has it: Ring,Tree or ^NVLS")
	s.StringVar(&n.proto, "nccl-proto", "", when+"`LIST` of protocols as NCCL_PROTO has it: LL,LL128,Simple or ^LL")
	s.StringVar(&n.nvls, "nvls", "on", when+"on, or off as by NCCL_NVLS_ENABLE=0")
	s.BoolVar(&n.collnet, "collnet", false, when+"a network that reduces (SHARP) is enabled, as by NCCL_COLLNET_ENABLE=1")
}

func (n *ncclFlags) names() []string { return []string{"nccl-algo", "nccl-proto", "nvls", "collnet"} }

// options turns the knobs into what tune takes.
func (n *ncclFlags) options() (tune.NCCLOptions, error) {
	o := tune.NCCLOptions{CollNet: n.collnet}
	off, err := choose("--nvls", n.nvls, map[string]bool{"on": false, "off": true})
	if err != nil {
		return o, err
	}
	o.NoNVLS = off
	if o.Algos, err = ncclList("--nccl-algo", n.algo, tune.NCCLAlgos()); err != nil {
		return o, err
	}
	o.Protos, err = ncclList("--nccl-proto", n.proto, tune.NCCLProtos())
	return o, err
}

// ncclList reads a list of names, all but the named ones after ^, as NCCL does.
func ncclList(flag, list string, known []string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	rest, not := strings.CutPrefix(list, "^")
	var named []string
	for word := range strings.SplitSeq(rest, ",") {
		at := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, strings.TrimSpace(word)) })
		if at < 0 {
			return nil, fmt.Errorf("%s %q is unknown; known: %s", flag, word, strings.Join(known, ", "))
		}
		named = append(named, known[at])
	}
	if !not {
		return named, nil
	}
	left := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return slices.Contains(named, k) })
	if len(left) == 0 {
		return nil, fmt.Errorf("%s %s leaves none", flag, list)
	}
	return left, nil
}

// honours refuses flags that were given and would change nothing.
func honours(cmd *cobra.Command, answer, instead string, known ...string) error {
	var ignored []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(known, f.Name) {
			ignored = append(ignored, "--"+f.Name)
		}
	})
	if len(ignored) == 0 {
		return nil
	}
	return fmt.Errorf("%s does not know %s: %s", answer, strings.Join(ignored, ", "), instead)
}

// what every answer honours.
var asked = []string{"op", "size", "cluster", "host", "gpus", "su", "set", "json"}

// asOther answers with another library's choice.
func (f *simFlags) asOther(cmd *cobra.Command, c *cluster.Cluster, op sched.Collective, sizes []unit.Bytes, gpus []topo.NodeID) error {
	if f.as == "rccl" {
		return f.asRCCL(cmd, c, op, sizes, gpus)
	}
	if f.as != "nccl" {
		return fmt.Errorf("--as %q is unknown; known: nccl, rccl", f.as)
	}
	if err := honours(cmd, "--as nccl", "it answers from NCCL's tables for a healthy cluster; leave --as out to simulate",
		slices.Concat(asked, []string{"as"}, f.nccl.names())...); err != nil {
		return err
	}
	o, err := f.nccl.options()
	if err != nil {
		return err
	}
	m, err := tune.NewNCCL(c.Graph, gpus, c.Catalog, o)
	if err != nil {
		return err
	}
	if what := m.Blind(); what != "" {
		return fmt.Errorf("--as nccl: %s; leave --as out to simulate it", what)
	}
	var rows []simRow
	for _, size := range sizes {
		p := m.Predict(op, size)
		if p.Excluded {
			return fmt.Errorf("--as nccl: %s of %s: %s", op, size, p.Reason)
		}
		rows = append(rows, predictedRow(&p, op, size, len(gpus)))
	}
	return f.printPredicted(cmd, rows, "")
}

// asRCCL answers as AMD's library would.
func (f *simFlags) asRCCL(cmd *cobra.Command, c *cluster.Cluster, op sched.Collective, sizes []unit.Bytes, gpus []topo.NodeID) error {
	if err := honours(cmd, "--as rccl", "it answers from measurements of healthy machines; leave --as out to simulate",
		slices.Concat(asked, []string{"as"})...); err != nil {
		return err
	}
	m, err := tune.NewRCCL(c.Graph, gpus, c.Catalog)
	if err != nil {
		return fmt.Errorf("--as rccl: %w; leave --as out to simulate", err)
	}
	var rows []simRow
	for _, size := range sizes {
		p, err := m.Predict(op, size)
		if err != nil {
			return fmt.Errorf("--as rccl: %s of %s: %w; leave --as out to simulate", op, size, err)
		}
		rows = append(rows, predictedRow(&p, op, size, len(gpus)))
	}
	return f.printPredicted(cmd, rows, "; these are few: "+rows[len(rows)-1].Nearest)
}

func predictedRow(p *tune.Prediction, op sched.Collective, size unit.Bytes, gpus int) simRow {
	return simRow{Op: op.String(), Bytes: int64(size), GPUs: gpus, Algo: p.Algo, Proto: p.Proto, Channels: p.Channels,
		Time: p.Time.Microseconds(), AlgBW: float64(p.AlgBW) / 1e9, BusBW: float64(p.BusBW) / 1e9, Limit: p.Limit, Nearest: p.Nearest,
		Error: p.Error, Within: p.Within}
}

func (f *simFlags) printPredicted(cmd *cobra.Command, rows []simRow, few string) error {
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	printRows(cmd.OutOrStdout(), rows)
	fmt.Fprintf(cmd.OutOrStdout(), "± is what nine of ten measurements stayed within that were left out of the fit%s\n", few)
	return nil
}

func countHosts(g *topo.Graph, parts []topo.NodeID) int {
	hosts := map[topo.HostID]bool{}
	for _, n := range parts {
		hosts[g.Nodes[n].Host] = true
	}
	return len(hosts)
}

func printRowNotes(w io.Writer, rows []simRow) {
	for _, r := range rows {
		for _, note := range r.Notes {
			fmt.Fprintf(w, "%s: %s\n", unit.Bytes(r.Bytes), note)
		}
	}
}

// calibrated answers by the model that was fitted to the cluster's own
// measurements: for the algorithm asked for, or else for what NCCL most likely ran.
func (f *simFlags) calibrated(cmd *cobra.Command, c *cluster.Cluster, op sched.Collective, sizes []unit.Bytes, gpus []topo.NodeID) error {
	if err := honours(cmd, "--cal", "it answers from measurements of a healthy cluster; leave --cal out to simulate",
		slices.Concat(asked, []string{"cal", "algo"})...); err != nil {
		return err
	}
	cal, err := readCalibration(cmd, f.cal)
	if err != nil {
		return err
	}
	nodes := 0
	m, err := tune.NewNCCL(c.Graph, gpus, c.Catalog, tune.NCCLOptions{})
	if err == nil {
		nodes = m.Nodes()
	} else { // GPUs that NCCL's model does not know
		nodes = countHosts(c.Graph, gpus)
	}
	link, err := cal.Link(nodes)
	if err != nil {
		return fmt.Errorf("%s: %w", f.cal, err)
	}
	var rows []simRow
	for _, size := range sizes {
		a, err := link.Answer(m, op, f.algo, len(gpus), nodes, size)
		if err != nil {
			return fmt.Errorf("%s: %w", f.cal, err)
		}
		algbw := float64(size.Per(a.Time)) / 1e9
		row := simRow{Op: op.String(), Bytes: int64(size), GPUs: len(gpus), Algo: a.Algo, Proto: "fitted", Channels: 1,
			Time: a.Time.Microseconds(), AlgBW: algbw, BusBW: algbw * op.BusFactor(len(gpus)), Error: link.MedianError, Within: link.P90Error,
			Notes:   a.Notes,
			Limit:   fmt.Sprintf("links %s, fitted", link.Kind),
			Nearest: fmt.Sprintf("%d points of %s to %s on %d to %d GPUs", link.Points, link.From, link.To, link.MinGPUs, link.MaxGPUs)}
		if a.Floor {
			row.Limit, row.Error, row.Within = "the wires of this cluster", 0, 0
		}
		rows = append(rows, row)
	}
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	printRows(cmd.OutOrStdout(), rows)
	printRowNotes(cmd.OutOrStdout(), rows)
	fmt.Fprintf(cmd.OutOrStdout(),
		"fitted to %s; nine of ten of these, left out of the fit, are predicted within %.1f%%, half within %.1f%%\n",
		rows[0].Nearest, 100*link.P90Error, 100*link.MedianError)
	return nil
}
