package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/design"
	"github.com/weft-fabric/weft/draw"
)

func newDesign() *cobra.Command {
	var p presetFlags
	var preset, dir, model, link string
	var actual []string
	var asJSON, textbook bool
	cmd := &cobra.Command{
		Use:   "design CLUSTER",
		Short: "Report on a cluster's network: counts, bandwidth, failures, cost, checklist",
		Long: `Report on the network of a cluster file or a preset: counts of everything,
oversubscription and bisection, paths and latency, failures and what each one
costs, redundancy, power and money, growth, and the design checklist answered
item by item. With --params, or 'params' under 'needs' in the file, it also says
what training a model of that size asks of the network. With -o DIR it writes
report.txt, report.json, report.html (one page, the picture in it) and
topology.svg instead of printing. An imported topology may not state the rates of
its links: --link says what they are.`,
		Example: `  weft design examples/rail-1k.yaml
  weft design examples/rail-1k.yaml --params 70B
  weft design examples/rail-1k.yaml -o out
  weft design --preset superpod-h100 --su 3 --json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			var c *cluster.Cluster
			var err error
			switch {
			case preset != "" && len(args) > 0:
				return fmt.Errorf("give a cluster file or --preset, not both: %q and %q", args[0], preset)
			case preset != "":
				params, perr := p.params()
				if perr != nil {
					return perr
				}
				c, err = cluster.Preset(preset, params)
			case len(args) == 1:
				c, err = loadCluster(cmd, args[0], p)
			default:
				return fmt.Errorf("give a cluster file, or --preset NAME; 'weft topo build --list' shows the presets")
			}
			if err != nil {
				return err
			}
			if err := stateLinks(c, link); err != nil {
				return err
			}
			if model != "" {
				if c.Needs.Params, err = cluster.ParseCount(model); err != nil {
					return fmt.Errorf("--params: %w", err)
				}
			}
			if len(actual) > 0 {
				found, err := fabricDrift(c.Graph, actual)
				if err != nil {
					return err
				}
				return tellDrift(cmd, "the design", c.Name+" fabric", found, asJSON, false)
			}
			r, err := design.Analyze(c)
			if err != nil {
				return err
			}
			r.Collectives = design.Collectives(c.Graph)
			if textbook {
				r.Textbook = design.NewTextbook(c.Catalog, r.Economics.Years)
			}
			if dir != "" {
				if err := writeReport(cmd, dir, c, r); err != nil {
					return err
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			if dir != "" {
				return nil
			}
			return r.Text(cmd.OutOrStdout())
		},
	}
	p.register(cmd)
	cmd.Flags().StringVar(&preset, "preset", "", "a known cluster by `NAME` instead of a file")
	cmd.Flags().StringVar(&model, "params", "", "also say what training a model of `N` parameters needs, such as 70B")
	cmd.Flags().StringVar(&link, "link", "", "what links are whose rate an imported topology does not state, such as `ndr`")
	cmd.Flags().StringSliceVar(&actual, "actual", nil, "compare with the fabric that stands: `FILE` with what ibnetdiscover or iblinkinfo printed")
	cmd.Flags().BoolVar(&textbook, "textbook", false, "also check worked figures of introductory texts on GPU clusters")
	cmd.Flags().StringVarP(&dir, "output", "o", "", "`DIR` to write the report to, as text, JSON, HTML and SVG")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	_ = cmd.RegisterFlagCompletionFunc("preset", clusterNames)
	return cmd
}

func writeReport(cmd *cobra.Command, dir string, c *cluster.Cluster, r *design.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var svg bytes.Buffer
	if err := draw.Cluster(&svg, c.Graph, draw.Options{}); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{"report.txt", r.Text},
		{"report.json", func(w io.Writer) error { return printJSON(w, r) }},
		{"report.html", func(w io.Writer) error { return r.HTML(w, svg.String()) }},
		{"topology.svg", func(w io.Writer) error { _, err := w.Write(svg.Bytes()); return err }},
	} {
		if err := output(cmd, filepath.Join(dir, f.name), f.write); err != nil {
			return err
		}
	}
	return nil
}
