package cli

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/run/launch"
)

// railFlags say which networks of a host carry the ranks' data.
type railFlags struct {
	plan planFlags
	file string
}

func (f *railFlags) bind(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "cluster", "",
		"cluster `FILE` whose rails the ranks use: the back-end addresses that its network plan gives each host; WEFT_RAILS=discover finds them on the hosts instead")
}

// place gives the ranks of each host its rails. Hosts are known by their names in the file; without a list of hosts it is this one.
func (f *railFlags) place(cmd *cobra.Command, spec *launch.Spec) error {
	if f.file == "" {
		return nil
	}
	plan, err := f.plan.load(cmd, f.file)
	if err != nil {
		return err
	}
	hosts := spec.Hosts
	if len(hosts) == 0 {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		hosts = []string{name}
	}
	spec.HostEnv = map[string][]string{}
	for _, h := range hosts {
		rails, err := railsOf(plan, f.file, h)
		if err != nil {
			return err
		}
		key := h
		if len(spec.Hosts) == 0 {
			key = ""
		}
		spec.HostEnv[key] = []string{"WEFT_INTERFACES=" + strings.Join(rails, ",")}
	}
	return nil
}

// railsOf are the addresses of a host's rails, in their order.
func railsOf(plan *network.Plan, file, host string) (list []string, err error) {
	h := plan.Host(host)
	if h == nil {
		return nil, fmt.Errorf("--cluster %s: it has no host %s; it has %d, of which the first is %s",
			file, host, len(plan.Hosts), plan.Hosts[0].Name)
	}
	for _, x := range h.Interfaces {
		if x.Role == network.Backend && x.Addr.IsValid() && x.Bond == "" {
			list = append(list, netip.PrefixFrom(x.Addr.Addr(), x.Addr.Addr().BitLen()).String())
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("--cluster %s: host %s has no address on a rail; give network.backend.prefix, see 'weft net plan'", file, host)
	}
	return list, nil
}
