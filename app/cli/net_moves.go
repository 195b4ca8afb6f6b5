package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/fabric/network/change"
	"github.com/weft-fabric/weft/fabric/network/emit"
)

// movesRow is weft net moves --json. Keys are stable.
type movesRow struct {
	Name   string           `json:"name"`
	Steps  []change.Step    `json:"steps"`
	Proven []change.Outcome `json:"proven,omitempty"` // of each step; absent without --from
	Broken []string         `json:"broken,omitempty"` // networks whose hosts do not reach one another as they are
}

func newNetMoves() *cobra.Command {
	var f planFlags
	var from string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "moves CLUSTER",
		Short: "Plan a change of a running network: what to unplug and plug in, in which order, and what stays up",
		Long: `List the steps from the network that runs to the one that the cluster file describes:
hosts to drain, cables to unplug and plug in, devices to move, and who takes new files.

Without --from the network that runs is the one in the lock. With --from DIR, the folder
that 'weft net emit' wrote for it, every state on the way is proven from the files in
force: all hosts that are not drained reach one another, at full packet size.

Exit code 1 if a step cuts off hosts that are not drained.`,
		Example: `  weft net emit examples/lab.yaml -o out
  weft net moves examples/lab.yaml --from out`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, lock, _, err := f.locked(cmd, args[0])
			if err != nil {
				return err
			}
			if from == "" && (lock == nil || len(lock.Cables) == 0) {
				return fmt.Errorf("there is no lock with cables to compare with; write one with 'weft net plan %s --write' before the change, or give --from DIR",
					args[0])
			}
			row, err := planMoves(p, lock, from)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(cmd.OutOrStdout(), row)
			} else {
				printMoves(cmd.OutOrStdout(), row)
			}
			for i := range row.Proven {
				if err == nil && row.Proven[i].Broken > 0 {
					err = finding{fmt.Errorf("step %d cuts off hosts that are not drained", i+1)}
				}
			}
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&from, "from", "", "`DIR` that 'weft net emit' wrote for the network that runs")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// planMoves lists the steps, and proves them where the files that are in force are known.
func planMoves(p *network.Plan, lock *network.Lock, from string) (*movesRow, error) {
	row := &movesRow{Name: p.Name}
	if from == "" {
		row.Steps = change.Make(lockedSite(p, lock), plannedSite(p))
		return row, nil
	}
	old, err := provenFiles(p, from)
	if err != nil {
		return nil, err
	}
	now, err := change.Read(old)
	if err != nil {
		return nil, fmt.Errorf("--from %s: %w", from, err)
	}
	fresh, err := provenFiles(p, "")
	if err != nil {
		return nil, err
	}
	next, err := change.Read(fresh)
	if err != nil {
		return nil, err
	}
	now.Only(next)
	row.Steps = change.Make(now, next)
	areas, _ := provenAreas(p)
	areas, broken, err := change.Whole(now, areas)
	if err != nil {
		return nil, err
	}
	if row.Broken = broken; len(areas) == 0 {
		return nil, errors.New("--from: there is no network whose hosts reach one another by these files; see 'weft net prove --from'")
	}
	row.Proven, err = change.Prove(now, next, row.Steps, areas)
	return row, err
}

// plannedSite is the network of a plan, with ports by their names.
func plannedSite(p *network.Plan) change.Site {
	s := change.Site{Racks: map[string]string{}}
	for i := range p.Hosts {
		s.Hosts = append(s.Hosts, p.Hosts[i].Name)
	}
	for i := range p.Switches {
		s.Switches = append(s.Switches, p.Switches[i].Name)
	}
	s.Cables = namedCables(p, p.Cables())
	for name, at := range p.Shelves() {
		s.Racks[name] = at.String()
	}
	return s
}

// lockedSite is the network of a lock, as far as it has cables.
func lockedSite(p *network.Plan, l *network.Lock) change.Site {
	s := change.Site{Racks: map[string]string{}}
	seen := map[string]bool{}
	for _, c := range l.Cables {
		for _, end := range c {
			if seen[end.Device] {
				continue
			}
			seen[end.Device] = true
			if _, host := l.Hosts[end.Device]; host {
				s.Hosts = append(s.Hosts, end.Device)
			} else {
				s.Switches = append(s.Switches, end.Device)
			}
		}
	}
	s.Cables = namedCables(p, l.Cables)
	for name, at := range l.Racks {
		s.Racks[name] = at.String()
	}
	return s
}

// namedCables gives ports of switches their names; those of a switch that is gone keep their numbers.
func namedCables(p *network.Plan, list []network.Cable) (out []network.Cable) {
	switches := map[string]*network.Switch{}
	for i := range p.Switches {
		switches[p.Switches[i].Name] = &p.Switches[i]
	}
	for _, c := range list {
		for i := range c {
			if n, err := strconv.Atoi(c[i].Port); err == nil && switches[c[i].Device] != nil {
				c[i].Port = emit.PortName(p, switches[c[i].Device], n)
			}
		}
		out = append(out, c)
	}
	return out
}

func printMoves(w io.Writer, row *movesRow) {
	unplug, plug, drain := 0, 0, map[string]bool{}
	for i := range row.Steps {
		s := &row.Steps[i]
		unplug, plug = unplug+len(s.Unplug), plug+len(s.Plug)
		for _, h := range s.Drain {
			drain[h] = true
		}
	}
	if len(row.Steps) == 0 {
		fmt.Fprintf(w, "%s: nothing to change\n", row.Name)
		return
	}
	fmt.Fprintf(w, "%s: %s, %s to unplug, %d to plug in, %s to drain\n", row.Name, count(len(row.Steps), "step"), count(unplug, "cable"), plug,
		count(len(drain), "host"))
	for i := range row.Steps {
		printStep(w, i+1, &row.Steps[i])
		if row.Proven == nil {
			continue
		}
		o := &row.Proven[i]
		if o.Broken == 0 {
			fmt.Fprintf(w, "   stays up   all %d pairs of addresses, proven in %s\n", o.Pairs, count(o.States, "state"))
			continue
		}
		fmt.Fprintf(w, "   CUTS OFF   %d cases, such as %s\n", o.Broken, o.Counter[0])
	}
	if len(row.Broken) > 0 {
		fmt.Fprintf(w, "\nnot looked at: %s; hosts do not reach one another there as it is\n", strings.Join(row.Broken, ", "))
	}
	if row.Proven == nil {
		fmt.Fprintln(w, "\nnot proven; --from DIR with the files in force proves every state on the way")
	}
}

func printStep(w io.Writer, number int, s *change.Step) {
	fmt.Fprintf(w, "\n%d. %s\n", number, s.Title)
	line := func(what string, list []string) {
		const most = 8
		if more := len(list) - most; more > 0 {
			list = append(list[:most:most], fmt.Sprintf("and %d more (--json has all)", more))
		}
		if len(list) > 0 {
			fmt.Fprintf(w, "   %-10s %s\n", what, strings.Join(list, ", "))
		}
	}
	cables := func(list []network.Cable) (out []string) {
		for _, c := range list {
			out = append(out, c.String())
		}
		return out
	}
	line("drain", s.Drain)
	line("unplug", cables(s.Unplug))
	line("remove", s.Remove)
	line("move", s.Move)
	line("add", s.Add)
	line("new files", s.Configure)
	line("plug in", cables(s.Plug))
}
