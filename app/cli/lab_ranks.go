package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/lab"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/run/launch"
)

// labFlag is --lab of verbs that start ranks: they run on the hosts of a lab, over
// the network that was emitted for it.
type labFlag struct{ name string }

func (f *labFlag) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "lab", "", "`NAME` of a lab whose hosts run the ranks, over all rails of its network; see 'weft lab up'")
	_ = cmd.RegisterFlagCompletionFunc("lab", labNames)
}

// place puts the ranks of a run onto the hosts of the lab, or onto those of
// them that list names. Rank 0 is met on the front end, and data goes over the rails.
func (f *labFlag) place(cmd *cobra.Command, spec *launch.Spec, list string) error {
	i, hosts, err := f.find(cmd, list)
	if err != nil {
		return err
	}
	spec.Hosts, spec.Remote, spec.Addr = hosts, i.Entry("{host}"), i.Spec.Node(hosts[0]).Front
	spec.Env = append(spec.Env, labEnv(i)...)
	return nil
}

// labEnv are the variables with which ranks use the rails of a lab.
func labEnv(i *lab.Info) []string {
	return []string{"WEFT_INTERFACES=" + strings.Join(i.Spec.Rails, ",")}
}

// find gives the lab and the hosts to use.
func (f *labFlag) find(cmd *cobra.Command, list string) (*lab.Info, []string, error) {
	for _, name := range []string{"rsh", "master-addr"} {
		if cmd.Flags().Lookup(name) != nil && cmd.Flags().Changed(name) {
			return nil, nil, fmt.Errorf("--%s with --lab; the lab reaches its hosts itself, so leave one of them out", name)
		}
	}
	i, err := lab.Find(f.name)
	if err != nil {
		return nil, nil, finding{err}
	}
	hosts := i.Spec.Hosts()
	if list != "" {
		wanted, err := hostlist.Expand(list)
		if err != nil {
			return nil, nil, err
		}
		for _, h := range wanted {
			if !slices.Contains(hosts, h) {
				return nil, nil, fmt.Errorf("--hosts %s: lab %s has no host %s; it has %s", list, f.name, h, hostlist.Compress(hosts))
			}
		}
		hosts = wanted
	}
	if len(hosts) == 0 {
		return nil, nil, fmt.Errorf("lab %s has no hosts", f.name)
	}
	return i, hosts, nil
}
