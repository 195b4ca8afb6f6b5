package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/format"
)

// dialectNames lists the dialects that can be read, or those that can be written.
func dialectNames(write bool) []string {
	var names []string
	for _, d := range format.Dialects() {
		if write && d.Encode != nil || !write && d.Decode != nil {
			names = append(names, d.Name)
		}
	}
	return names
}

func namedDialect(name string) (d format.Dialect, err error) {
	if name == "" {
		return d, nil
	}
	if d, err = format.Find(name); err != nil || d.Decode == nil {
		return d, fmt.Errorf("--from: no dialect %q can be read; known: %s", name, strings.Join(dialectNames(false), ", "))
	}
	return d, nil
}

func detectDialect(file string, data []byte) (format.Dialect, error) {
	d, ok := format.Detect(data)
	if !ok || d.Decode == nil {
		return d, fmt.Errorf("%s is in no dialect that can be told from its text; say which with --from %s",
			file, strings.Join(dialectNames(false), "|"))
	}
	return d, nil
}

func newTopoImport() *cobra.Command {
	var from, out, link string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Read another tool's topology, show it, and save it as JSON",
		Long: `Read another tool's topology and print a summary. Without --from the dialect is
detected. -o writes weft's own JSON, which is lossless and which every command accepts
as CLUSTER. Missing rates are shown as unknown; --link states them.`,
		Example: `  weft topo import --from nccl-xml topo.xml
  nvidia-smi topo -m | weft topo import --from nvidia-smi -
  ibnetdiscover | weft topo import --from ibnetdiscover - -o fabric.json
  weft topo import --from slurm topology.conf --link ndr -o fabric.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := namedDialect(from)
			if err != nil {
				return err
			}
			data, err := readInput(cmd, args[0])
			if err != nil {
				return err
			}
			if from == "" {
				if d, err = detectDialect(args[0], data); err != nil {
					return err
				}
			}
			g, err := decode(d, args[0], data)
			if err != nil {
				return err
			}
			if link != "" {
				c := &cluster.Cluster{Name: base(args[0]), Graph: g, Catalog: catalog.Default()}
				if err := stateLinks(c, link); err != nil {
					return err
				}
				g = c.Graph
			}
			for _, n := range format.Notes(g) {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", n)
			}
			if out != "" {
				return output(cmd, out, func(w io.Writer) error { return printGraph(w, g, true) })
			}
			return printGraph(cmd.OutOrStdout(), g, asJSON)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "dialect: "+strings.Join(dialectNames(false), ", "))
	cmd.Flags().StringVar(&link, "link", "", "the rate of links for which the text states none, such as `ndr`")
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write the graph to, as JSON")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the whole graph as JSON")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions(dialectNames(false), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
