package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/design"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/view/draw"
)

// designFlags are the flags of weft design.
type designFlags struct {
	p                        presetFlags
	preset, dir, model, link string
	actual                   []string
	search                   string
	compare                  bool
	asJSON, textbook         bool
}

func newDesign() *cobra.Command {
	var s designFlags
	cmd := &cobra.Command{
		Use:   "design CLUSTER",
		Short: "Report on a cluster's network: counts, bandwidth, failures, cost, checklist",
		Long: `Report on the network of a cluster file or a preset: counts of everything,
oversubscription and bisection, paths and latency, failures and their cost,
redundancy, power and money, growth, and a design checklist. With --params, or
'params' under 'needs' in the file, it adds what training such a model demands of
the network. -o DIR writes report.txt, report.json, report.html (with pictures),
topology.svg, bill.csv, a picture of every service network, and floor.svg if the file
has a floor. --link states the rate of imported links that have none.

--compare prints several designs side by side; a star marks the better figure. --search
tries known hosts, switches and fabrics for a one-line wish and ranks what fits by
price; -o DIR writes the best as a cluster file. --actual compares a design with an
existing InfiniBand fabric.`,
		Example: `  weft design examples/rail-1k.yaml
  weft design examples/rail-1k.yaml --params 70B
  weft design examples/rail-1k.yaml -o out
  weft design --preset superpod-h100 --su 3 --json
  weft design --compare examples/rail-1k.yaml examples/fat-tree-2tier.yaml
  weft design --search '512 h100, 1:1, under $30M'`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: clusterNames,
		RunE:              s.run,
	}
	s.p.register(cmd)
	cmd.Flags().StringVar(&s.preset, "preset", "", "a known cluster by `NAME` instead of a file")
	cmd.Flags().StringVar(&s.model, "params", "", "also say what training a model of `N` parameters needs, such as 70B")
	cmd.Flags().StringVar(&s.link, "link", "", "the rate of links for which an imported topology states none, such as `ndr`")
	cmd.Flags().BoolVar(&s.compare, "compare", false, "print several cluster files side by side")
	cmd.Flags().StringVar(&s.search, "search", "", "propose designs for a `WISH`, such as '2048 h100, 1:1, under $90M'")
	cmd.Flags().StringSliceVar(&s.actual, "actual", nil,
		"compare with the fabric that stands: `FILE` with what ibnetdiscover or iblinkinfo printed")
	cmd.Flags().BoolVar(&s.textbook, "textbook", false, "also check worked figures of introductory texts on GPU clusters")
	cmd.Flags().StringVarP(&s.dir, "output", "o", "", "`DIR` to write the report to, as text, JSON, HTML and SVG")
	cmd.Flags().BoolVar(&s.asJSON, "json", false, "print the report as JSON")
	_ = cmd.RegisterFlagCompletionFunc("preset", clusterNames)
	return cmd
}

func (s *designFlags) run(cmd *cobra.Command, args []string) error {
	if s.search != "" {
		if len(args) > 0 || s.preset != "" || s.compare {
			return fmt.Errorf("--search proposes designs; leave cluster files, --preset and --compare out")
		}
		return searchDesigns(cmd, s.search, s.dir, s.asJSON)
	}
	if s.compare {
		return compareDesigns(cmd, args, s.p, s.link, s.asJSON)
	}
	c, err := s.cluster(cmd, args)
	if err != nil {
		return err
	}
	if err := stateLinks(c, s.link); err != nil {
		return err
	}
	if s.model != "" {
		if c.Needs.Params, err = cluster.ParseCount(s.model); err != nil {
			return fmt.Errorf("--params: %w", err)
		}
	}
	if len(s.actual) > 0 {
		found, err := fabricDrift(c.Graph, s.actual)
		if err != nil {
			return err
		}
		return tellDrift(cmd, "the design", c.Name+" fabric", found, s.asJSON, false)
	}
	r, err := design.Analyze(c)
	if err != nil {
		return err
	}
	r.Collectives = design.Collectives(c.Graph)
	if s.textbook {
		r.Textbook = design.NewTextbook(c.Catalog, r.Economics.Years)
	}
	if s.dir != "" {
		if err := writeReport(cmd, s.dir, c, r); err != nil {
			return err
		}
	}
	if s.asJSON {
		return printJSON(cmd.OutOrStdout(), r)
	}
	if s.dir != "" {
		return nil
	}
	return r.Text(cmd.OutOrStdout())
}

// cluster is the one cluster that was asked for: a file or a preset.
func (s *designFlags) cluster(cmd *cobra.Command, args []string) (*cluster.Cluster, error) {
	switch {
	case len(args) > 1:
		return nil, fmt.Errorf("%d cluster files; give one, or --compare", len(args))
	case s.preset != "" && len(args) > 0:
		return nil, fmt.Errorf("give a cluster file or --preset, not both: %q and %q", args[0], s.preset)
	case s.preset != "":
		params, err := s.p.params()
		if err != nil {
			return nil, err
		}
		return cluster.Preset(s.preset, params)
	case len(args) == 1:
		return loadCluster(cmd, args[0], s.p)
	}
	return nil, fmt.Errorf("give a cluster file, or --preset NAME; 'weft topo build --list' shows the presets")
}

func writeReport(cmd *cobra.Command, dir string, c *cluster.Cluster, r *design.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var svg bytes.Buffer
	if err := draw.Cluster(&svg, c.Graph, draw.Options{}); err != nil {
		return err
	}
	more, err := besidePictures(c, r)
	if err != nil {
		return err
	}
	type file struct {
		name  string
		write func(io.Writer) error
	}
	files := []file{
		{"report.txt", r.Text},
		{"report.json", func(w io.Writer) error { return printJSON(w, r) }},
		{"report.html", func(w io.Writer) error { return r.HTML(w, svg.String(), more...) }},
		{"topology.svg", func(w io.Writer) error { _, err := w.Write(svg.Bytes()); return err }},
		{"bill.csv", r.BillCSV},
	}
	for _, p := range more {
		files = append(files, file{p.Name + ".svg", func(w io.Writer) error { _, err := io.WriteString(w, p.SVG); return err }})
	}
	for _, f := range files {
		if err := output(cmd, filepath.Join(dir, f.name), f.write); err != nil {
			return err
		}
	}
	return nil
}

// besidePictures draws the networks beside the compute fabrics, and the floor.
func besidePictures(c *cluster.Cluster, r *design.Report) ([]design.Picture, error) {
	var out []design.Picture
	for _, n := range r.Networks {
		if n.Graph == nil {
			continue
		}
		var svg bytes.Buffer
		title := n.Name + " network of " + c.Name
		if !n.Counted {
			title += ", as weft would build it"
		}
		if err := draw.Cluster(&svg, n.Graph, draw.Options{Title: title}); err != nil {
			return nil, err
		}
		out = append(out, design.Picture{Section: "networks", Name: n.Name, SVG: svg.String()})
	}
	if c.Floor != nil {
		var svg bytes.Buffer
		if err := draw.Floor(&svg, c.Floor, c.Name); err != nil {
			return nil, err
		}
		out = append(out, design.Picture{Section: "floor", Name: "floor", SVG: svg.String()})
	}
	return out, nil
}

// compareDesigns prints several designs side by side.
func compareDesigns(cmd *cobra.Command, args []string, p presetFlags, link string, asJSON bool) error {
	if len(args) < 2 {
		return fmt.Errorf("%s to compare; give at least two, presets or cluster files", count(len(args), "design"))
	}
	var list []*design.Report
	for i, name := range args {
		c, err := loadCluster(cmd, name, p)
		if err != nil {
			return err
		}
		if err := stateLinks(c, link); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d  %s\n", i+1, len(args), c.Name)
		r, err := design.Analyze(c)
		if err != nil {
			return err
		}
		list = append(list, r)
	}
	c := design.Compare(list)
	if asJSON {
		return printJSON(cmd.OutOrStdout(), c)
	}
	_, err := io.WriteString(cmd.OutOrStdout(), c.Text())
	return err
}

// searchDesigns proposes designs.
func searchDesigns(cmd *cobra.Command, text, dir string, asJSON bool) error {
	w, err := design.ParseWish(text)
	if err != nil {
		return fmt.Errorf("--search: %w", err)
	}
	f, err := design.Search(w, nil, func(done, of int) {
		if done > 0 && done%20 == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d tried\n", done, of)
		}
	})
	if err != nil {
		return fmt.Errorf("--search: %w", err)
	}
	if dir != "" && len(f.Proposals) > 0 {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cluster.yaml"), []byte(f.Proposals[0].Cluster), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s\n", filepath.Join(dir, "cluster.yaml"))
	}
	if asJSON {
		err = printJSON(cmd.OutOrStdout(), f)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), f.Text(8))
	}
	if err != nil {
		return err
	}
	if len(f.Proposals) == 0 || !f.Proposals[0].Fits {
		return finding{fmt.Errorf("nothing that is known fits %q", text)}
	}
	return nil
}
