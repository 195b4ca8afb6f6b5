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
	var preset, dir string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "design CLUSTER",
		Short: "Report on a cluster's network: counts, bandwidth, failures, cost, checklist",
		Long: `Report on the network of a cluster file or a preset: counts of everything,
oversubscription and bisection, paths and latency, what the model needs, failures
and what each one costs, redundancy, power and money, growth, and the design
checklist answered item by item. With -o DIR it also writes report.txt,
report.json, report.html (one page, the picture in it) and topology.svg.`,
		Example: `  weft design examples/rail-1k.yaml
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
			r, err := design.Analyze(c)
			if err != nil {
				return err
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
