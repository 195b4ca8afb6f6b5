package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/format"
)

func newTopoBuild() *cobra.Command {
	var p presetFlags
	var list, asJSON bool
	cmd := &cobra.Command{
		Use:   "build NAME",
		Short: "Build a known host or cluster: its matrix, links and bandwidths",
		Long: `Build a known host or cluster and print a summary of links and bandwidths; for one
host also the connection matrix, as 'nvidia-smi topo -m' does.`,
		Example: `  weft topo build dgx-h100
  weft topo build superpod-h100 --su 4
  weft topo build dragonfly --set routers=8 --set ports=4 --set global=4
  weft topo build --list`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list && len(args) > 0 {
				return fmt.Errorf("--list shows all that is known; leave out %s or --list", args[0])
			}
			if list || len(args) == 0 {
				return printPresets(cmd.OutOrStdout())
			}
			params, err := p.params()
			if err != nil {
				return err
			}
			c, err := cluster.Preset(args[0], params)
			if err != nil {
				return err
			}
			return printGraph(cmd.OutOrStdout(), c.Graph, asJSON)
		},
	}
	p.register(cmd)
	cmd.Flags().BoolVar(&list, "list", false, "list the known hosts and clusters")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the whole graph as JSON")
	return cmd
}

func printPresets(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, p := range cluster.Presets() {
		params := ""
		for _, q := range p.Params {
			params += fmt.Sprintf(" %s=%d", q.Name, q.Default)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", p.Name, p.Summary, params)
	}
	return t.Flush()
}

// printGraph is what build, import and discover show of a graph.
func printGraph(w io.Writer, g *topo.Graph, asJSON bool) error {
	if asJSON {
		d, err := format.Find("json")
		if err != nil {
			return err
		}
		return d.Encode(w, g)
	}
	if len(g.Hosts) == 1 && g.Count(topo.GPU) > 0 {
		d, err := format.Find("nvidia-smi")
		if err != nil {
			return err
		}
		if err := d.Encode(w, g); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	return printSummary(w, g)
}

func printSummary(w io.Writer, g *topo.Graph) error {
	accelerated, service := 0, 0
	for h := range g.Hosts {
		if slices.ContainsFunc(g.HostNodes(topo.HostID(h)), func(n topo.Node) bool { return n.Kind == topo.GPU }) {
			accelerated++
		} else {
			service++
		}
	}
	fmt.Fprintf(w, "%s: %s with %s", g.Name, count(accelerated, "host"), count(g.Count(topo.GPU), "GPU"))
	if service > 0 {
		fmt.Fprintf(w, ", %s without", count(service, "host"))
	}
	fmt.Fprintf(w, ", %s, %s, %s\n", count(g.Count(topo.NIC), "NIC"), count(g.Count(topo.NVSwitch), "NVSwitch"),
		count(g.Count(topo.Switch), "switch"))
	for _, f := range g.Fabrics {
		fmt.Fprintf(w, "fabric %s: %s", f.Name, f.Family)
		if len(f.Dims) > 0 {
			fmt.Fprintf(w, " %v", f.Dims)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "links\tbetween\tclass\tlanes\teach way, one\teach way, all\tboth ways, all\tlatency\t")
	for _, s := range g.Summary() {
		ends := tierName(s.A, s.Tiers[0]) + "-" + tierName(s.B, s.Tiers[1])
		if !s.Class.Stated() {
			fmt.Fprintf(t, "%d\t%s\tunknown\t\tunknown\tunknown\tunknown\tunknown\t\n", s.Links, ends)
			continue
		}
		all := s.Class.Rate * unitRate(s.Links)
		fmt.Fprintf(t, "%d\t%s\t%s\tx%d\t%s\t%s\t%s\t%s\t\n", s.Links, ends, s.Class.Gen, s.Class.Lanes, s.Class.Rate, all, all.BothWays(),
			s.Class.Latency)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if i := slices.IndexFunc(g.Nodes, func(n topo.Node) bool { return n.Kind == topo.GPU }); i >= 0 {
		printInjection(w, g, topo.NodeID(i))
	}
	return nil
}

// printInjection says what a GPU can send at once, by each of its ways out.
func printInjection(w io.Writer, g *topo.Graph, gpu topo.NodeID) {
	in := g.Injection(gpu)
	fmt.Fprintf(w, "\n%s sends, one way:", g.NodeName(gpu))
	if in.Accelerator > 0 {
		fmt.Fprintf(w, " %s over its own network (%s),", in.Accelerator, in.Accelerator.BothWays())
	}
	fmt.Fprintf(w, " %s over PCIe", in.PCIe)
	if in.NIC > 0 {
		fmt.Fprintf(w, ", %s through %s", in.NIC, g.NodeName(g.Near(gpu)))
	}
	fmt.Fprintln(w)
}

// tierName says "leaf" for a switch of tier 1 and so on.
func tierName(k topo.Kind, tier uint8) string {
	if k == topo.Switch && tier >= 1 && int(tier) <= 3 {
		return []string{"leaf", "spine", "core"}[tier-1]
	}
	return k.String()
}
