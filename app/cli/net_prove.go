package cli

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/emit"
	"github.com/weft-fabric/weft/fabric/network/prove"
	"github.com/weft-fabric/weft/model/topo/hostlist"
)

// provenHosts is between how many hosts packets are followed unless --hosts says which.
const provenHosts = 48

func newNetProve() *cobra.Command {
	var f planFlags
	var from, hosts string
	cmd := &cobra.Command{
		Use:   "prove CLUSTER",
		Short: "Follow packets through the emitted files, hop by hop, and name those that are lost",
		Long: `Follow packets between all storage and rail addresses, using only the files: every
switch's frr.conf, every host's netplan, and the cable plan. Every equal-cost path must
arrive.

The files are those 'weft net emit' would write, or with --from those in a folder.
InfiniBand, failures, MTUs and filters are not modelled. In large clusters a sample of
distant hosts is used; --hosts names others.

Exit code 1 if a packet is lost.`,
		Example: `  weft net prove examples/storage.yaml
  weft net emit examples/storage.yaml -o out && weft net prove examples/storage.yaml --from out`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := f.load(cmd, args[0])
			if err != nil {
				return err
			}
			wanted, err := chosenHosts(p, hosts)
			if err != nil {
				return err
			}
			files, err := provenFiles(p, from, wanted)
			if err != nil {
				return err
			}
			n, err := prove.Load(files)
			if err != nil {
				return err
			}
			for _, line := range n.Unread {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: the model does not know %s\n", line)
			}
			if len(wanted) < len(p.Hosts) {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: between %d of %d hosts; --hosts names others\n", len(wanted), len(p.Hosts))
			}
			return proveNets(cmd, p, n)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&from, "from", "", "`DIR` that 'weft net emit' wrote; default: what it would write")
	cmd.Flags().StringVar(&hosts, "hosts", "", "`LIST` of hosts between which packets are followed, like n[0-7]")
	return cmd
}

// proveNets follows packets in each network that switches of the files carry.
func proveNets(cmd *cobra.Command, p *network.Plan, n *prove.Net) error {
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "network\tprefix\tpairs\tarrive")
	all, lost := 0, []prove.Trip(nil)
	follow := func(name string, prefix netip.Prefix) {
		pairs, missing := n.Reach(prefix)
		if pairs > 0 {
			fmt.Fprintf(t, "%s\t%s\t%d\t%d\n", name, prefix, pairs, pairs-len(missing))
		}
		all, lost = all+pairs, append(lost, missing...)
	}
	if x := p.Hosts; len(x) > 0 && (x[0].First(network.Storage) == nil || !x[0].First(network.Storage).IB) {
		follow("storage", p.Intent.Storage.Prefix)
	}
	for _, r := range p.Rails {
		if !r.InfiniBand {
			follow(fmt.Sprintf("rail %d", r.Number), r.Prefix)
		}
	}
	if all == 0 {
		return finding{fmt.Errorf("%s has no Ethernet between hosts in storage or on rails: there is nothing to follow", p.Name)}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i, l := range lost {
		if i == 5 {
			fmt.Fprintf(cmd.OutOrStdout(), "and %d more\n", len(lost)-i)
			break
		}
		fmt.Fprintln(cmd.OutOrStdout(), l)
	}
	if len(lost) > 0 {
		return finding{fmt.Errorf("%d of %d packets are lost", len(lost), all)}
	}
	return nil
}

// chosenHosts are those of a list, or some far apart.
func chosenHosts(p *network.Plan, list string) (names []string, err error) {
	if list != "" {
		if names, err = hostlist.Expand(list); err != nil {
			return nil, err
		}
		for _, name := range names {
			if p.Host(name) == nil {
				return nil, fmt.Errorf("--hosts: there is no host %q", name)
			}
		}
		return names, nil
	}
	for i := range p.Hosts {
		if n := len(p.Hosts); n <= provenHosts || i*provenHosts/n != (i-1)*provenHosts/n || i == 0 {
			names = append(names, p.Hosts[i].Name)
		}
	}
	return names, nil
}

// provenFiles are the files to read: of a folder, or what would be emitted; of hosts those chosen.
func provenFiles(p *network.Plan, from string, hosts []string) (map[string][]byte, error) {
	out := map[string][]byte{}
	keep := func(path string) bool {
		part := strings.Split(path, "/")
		return part[0] != "hosts" || len(part) > 1 && slices.Contains(hosts, part[1])
	}
	if from == "" {
		list, err := emit.Make(p, []string{"cables", "frr", "netplan"})
		for _, f := range list {
			if keep(f.Path) {
				out[f.Path] = f.Data
			}
		}
		return out, err
	}
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(from, path)
		if name = filepath.ToSlash(name); err != nil || !keep(name) {
			return err
		}
		out[name], err = os.ReadFile(path)
		return err
	})
	return out, err
}
