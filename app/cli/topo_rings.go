package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/hostlist"
	"github.com/weft-fabric/weft/model/topo/rings"
	"github.com/weft-fabric/weft/predict/sim"
)

// ringsAnswer is what was found, and what no schedule beats.
type ringsAnswer struct {
	rings.Report
	Bounds []boundAnswer `json:"schedule_bounds,omitempty"`
}

func (b boundAnswer) sentence() string {
	adds := ""
	if b.Adds {
		adds = " in switches that add"
	}
	return fmt.Sprintf("no schedule of %s%s beats bus %s on the wire: %s", b.Op, adds, b.Bus, b.Why)
}

func newTopoRings() *cobra.Command {
	var p presetFlags
	var gpus string
	var o rings.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rings CLUSTER",
		Short: "Find the best rings and trees over a host's GPUs, and their bus bandwidth",
		Example: `  weft topo rings dgx-1v
  weft topo rings dgx-1v --gpus 0-3
  nvidia-smi topo -m | weft topo rings - --gpus 0,1,4`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Budget < 0 {
				return fmt.Errorf("--budget is %d; it must be 0, for the default, or more", o.Budget)
			}
			c, err := loadCluster(cmd, args[0], p)
			if err != nil {
				return err
			}
			set, err := chooseGPUs(c.Graph, gpus)
			if err != nil {
				return err
			}
			r, err := rings.Search(c.Graph, set, c.Catalog, o)
			if err != nil {
				return err
			}
			answer := ringsAnswer{Report: r.Report(c.Graph)}
			for _, op := range []sched.Collective{sched.AllReduce, sched.AllGather} {
				if b, err := findBounds(c, set, op, 0, 0, sim.Options{}); err == nil {
					answer.Bounds = append(answer.Bounds, b.Bounds...)
				}
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), answer)
			}
			if err := r.Print(cmd.OutOrStdout(), c.Graph); err != nil {
				return err
			}
			for _, b := range answer.Bounds {
				fmt.Fprintln(cmd.OutOrStdout(), b.sentence())
			}
			return nil
		},
	}
	p.register(cmd)
	cmd.Flags().StringVar(&gpus, "gpus", "", gpusHelp+"; default: all of the first host")
	cmd.Flags().IntVar(&o.Budget, "budget", 0, "search steps before giving up on a proof; 0 for the default")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// gpusHelp describes --gpus wherever it may name GPUs.
const gpusHelp = "which `GPUS`: 16 for the first 16; 0-3 or 0,1,4 of the first host; or names like n[0-1]:gpu[0-7]"

// chooseGPUs reads --gpus.
func chooseGPUs(g *topo.Graph, choice string) ([]topo.NodeID, error) {
	set, err := parseGPUs(g, choice)
	if err != nil {
		return nil, fmt.Errorf("--gpus %s: %w", choice, err)
	}
	return set, nil
}

// parseGPUs reads a choice of GPUs: one number is how many, several are GPUs of the first host, nothing is all of that host.
func parseGPUs(g *topo.Graph, choice string) ([]topo.NodeID, error) {
	if len(g.Hosts) == 0 {
		return nil, fmt.Errorf("%s has no hosts", g.Name)
	}
	if n, err := strconv.Atoi(choice); err == nil {
		if have := g.Count(topo.GPU); n < 1 || n > have {
			return nil, fmt.Errorf("%s has %d; a number says how many", g.Name, have)
		}
		return g.First(topo.GPU, n), nil
	}
	if choice == "" {
		var set []topo.NodeID
		for i, n := range g.HostNodes(0) {
			if n.Kind == topo.GPU {
				set = append(set, g.Hosts[0].First+topo.NodeID(i))
			}
		}
		return set, nil
	}
	if strings.Trim(choice, "0123456789,-") == "" {
		choice = g.Hosts[0].Name + ":gpu[" + choice + "]"
	}
	names, err := hostlist.Expand(choice)
	if err != nil {
		return nil, err
	}
	return lookupGPUs(g, names)
}

// lookupGPUs finds GPUs by their names.
func lookupGPUs(g *topo.Graph, names []string) ([]topo.NodeID, error) {
	var set []topo.NodeID
	for _, name := range names {
		n, err := g.Lookup(name)
		if err != nil {
			return nil, err
		}
		if g.Nodes[n].Kind != topo.GPU {
			return nil, fmt.Errorf("%s is a %s", name, g.Nodes[n].Kind)
		}
		set = append(set, n)
	}
	if twice := repeated(set); twice != topo.None {
		return nil, fmt.Errorf("%s stands twice", g.NodeName(twice))
	}
	return set, nil
}
