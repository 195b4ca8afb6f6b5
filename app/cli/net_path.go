package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/prove"
)

// modelOf reads the files of all switches and of some hosts. Cumulus's own files are not modelled; those of
// FRR for the same plan are.
func modelOf(p *network.Plan, from string, hosts ...string) (*prove.Net, error) {
	if from == "" && (p.Intent.Render.Leaf == "nvue" || p.Intent.Render.Spine == "nvue") {
		p = p.Rendered("frr")
	}
	files, err := provenFiles(p, from)
	if err != nil {
		return nil, err
	}
	for path := range files {
		if part := strings.SplitN(path, "/", 3); part[0] == "hosts" && !slices.Contains(hosts, part[1]) {
			delete(files, path)
		}
	}
	return prove.Load(files)
}

// followPath follows a flow through the files, where they decide.
func followPath(p *network.Plan, path *network.Path, from string) error {
	if !path.Modelled {
		return followInfiniBand(p, path, from)
	}
	n, err := modelOf(p, from, path.From, path.To)
	if err != nil {
		return err
	}
	t := n.Follow(path.From, path.Source, path.Target)
	path.Hops, path.Paths, path.Unreached = t.Hops, t.Paths, t.Why
	return nil
}

// followInfiniBand follows a flow by the subnet manager's files, where its ends are adapters of one fabric.
func followInfiniBand(p *network.Plan, path *network.Path, from string) error {
	if len(path.Hops) < 2 || len(p.Rails) == 0 || !p.Rails[0].InfiniBand {
		return nil
	}
	n, err := modelOf(p, from, path.From, path.To)
	if err != nil {
		return err
	}
	for _, s := range n.Subnets() {
		if a, b := path.Hops[0], path.Hops[len(path.Hops)-1]; s.Has(a) && s.Has(b) {
			path.Hops, path.Paths, path.Unreached = s.Follow(a, b)
			if path.Unreached == "" && s.Guessed() {
				path.Why += "; by the fewest cables, and nue may take more: --from a folder with " + prove.TablesFile(s.Name) + " says which"
			}
		}
	}
	return nil
}

// followContacts follows a packet for every two networks, where the files decide.
func followContacts(p *network.Plan, list []network.Contact, a, b, from string) error {
	if !slices.ContainsFunc(list, func(c network.Contact) bool { return c.FromFiles() }) {
		return nil
	}
	n, err := modelOf(p, from, a, b)
	if err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		if contactAdapters(n, c); !c.Modelled {
			continue
		}
		start := a
		if c.From != c.To && c.Switch != "" { // whatever the host's own routes say
			start = c.Switch
		}
		t := n.Follow(start, c.Source, c.Target)
		c.Reaches = t.Reached
		switch {
		case !t.Reached:
			c.Why = t.Why
		case c.From != c.To:
			c.Why = "packets pass by " + strings.Join(t.Hops, ", ")
		}
	}
	return nil
}

// contactAdapters follows a packet between two adapters by the subnet manager's files, if the contact is theirs.
func contactAdapters(n *prove.Net, c *network.Contact) {
	if c.Adapters[0] == "" {
		return
	}
	for _, s := range n.Subnets() {
		if !s.Has(c.Adapters[0]) || !s.Has(c.Adapters[1]) {
			continue
		}
		hops, _, why := s.Follow(c.Adapters[0], c.Adapters[1])
		c.Reaches, c.Why = why == "", why
		switch {
		case why == "" && s.Guessed():
			c.Why = "joined by the InfiniBand fabric " + s.Name
		case why == "":
			c.Why = "packets pass by " + strings.Join(hops[1:len(hops)-1], ", ")
		}
		return
	}
	c.Reaches, c.Why = false, fmt.Sprintf("no InfiniBand fabric of the files joins %s and %s", c.Adapters[0], c.Adapters[1])
}

func newNetPath() *cobra.Command {
	var f planFlags
	var flow, from string
	var rail int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "path CLUSTER FROM TO",
		Short: "Trace a flow: network, source address, routing table and switches",
		Long: `Say which network a flow takes, from which address to which, and follow it through the
emitted files, as 'weft net prove' does: over which switches, and over how many paths of
equal cost; over InfiniBand, as OpenSM routes by its files. Networks without switches in the
cluster file have no such files; the plan answers for them.`,
		Example: `  weft net path examples/rail-1k.yaml n0 n17 --for checkpoint
  weft net path examples/hpn.yaml n0 n200 --for collective --rail 5`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			path, err := p.Path(args[1], args[2], flow, rail)
			if err == nil {
				err = followPath(p, path, from)
			}
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), path)
			} else {
				printPath(cmd.OutOrStdout(), path)
			}
			if err == nil && path.Unreached != "" {
				return finding{fmt.Errorf("the flow cannot be: %s", path.Unreached)}
			}
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&flow, "for", "collective", "kind of `FLOW`: collective, checkpoint, data, login, bmc, ...")
	cmd.Flags().IntVar(&rail, "rail", 0, "rail of a flow on the backend")
	cmd.Flags().StringVar(&from, "from", "", "`DIR` that 'weft net emit' wrote; default: what it would write")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func newNetReach() *cobra.Command {
	var f planFlags
	var asJSON bool
	var from string
	cmd := &cobra.Command{
		Use:   "reach CLUSTER FROM TO",
		Short: "Show which networks of one host reach which networks of another, and why not",
		Long: `Follow packets between the networks of two hosts through the emitted files, as 'weft net
prove' does: inside a network as the host sends them, and from one network to another as the
switch would take them, whatever the host's routes say; over InfiniBand, by OpenSM's files.
Networks without switches in the cluster file have no such files; the plan answers for them.`,
		Example:           `  weft net reach examples/rail-1k.yaml n0 n17`,
		Args:              cobra.ExactArgs(3),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			list, err := p.Reach(args[1], args[2])
			if err == nil {
				err = followContacts(p, list, args[1], args[2], from)
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), list)
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(t, "%s\t%s\treaches\twhy\n", args[1], args[2])
			for _, c := range list {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.From, c.To, map[bool]string{true: "yes", false: "no"}[c.Reaches], c.Why)
			}
			return t.Flush()
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&from, "from", "", "`DIR` that 'weft net emit' wrote; default: what it would write")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

func printPath(w io.Writer, path *network.Path) {
	fmt.Fprintf(w, "%s from %s to %s: %s network\n", path.Flow, path.From, path.To, path.Network)
	fmt.Fprintf(w, "  from        %s on %s\n  to          %s\n", path.Source, path.Interface, path.Target)
	if path.Table > 0 {
		fmt.Fprintf(w, "  table       %d by %s\n", path.Table, path.Gateway)
	} else if path.Gateway.IsValid() && path.Network == "management" {
		fmt.Fprintf(w, "  gateway     %s\n", path.Gateway)
	}
	fmt.Fprintf(w, "  MTU         %d\n  over        %s\n", path.MTU, strings.Join(path.Hops, " - "))
	if path.Paths > 1 {
		fmt.Fprintf(w, "              the first of %d paths of equal cost\n", path.Paths)
	}
	fmt.Fprintf(w, "  because     %s\n", path.Why)
}
