package cli

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/cost"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
	"github.com/weft-fabric/weft/predict/tune/table"
)

// explanation is the answer of explain; its keys are stable.
type explanation struct {
	Op         string          `json:"op"`
	Bytes      unit.Bytes      `json:"bytes"`
	GPUs       int             `json:"gpus"`
	Nodes      int             `json:"nodes"`
	Prediction tune.Prediction `json:"prediction"`
	Why        []string        `json:"why"`
	Set        []string        `json:"set,omitempty"`
	Table      []tune.Choice   `json:"table"`
	Fitted     *cost.Selection `json:"calibrated,omitempty"`
}

// explainFlags are the flags of weft explain.
type explainFlags struct {
	op, size, cluster, gpus, cal string
	emit                         string
	links                        string
	asJSON, bound                bool
	root                         int
	fail, slow                   []string
	preset                       presetFlags
	nccl                         ncclFlags
}

func newExplain() *cobra.Command {
	var s explainFlags
	cmd := &cobra.Command{
		Use:   "explain [CLUSTER]",
		Short: "Explain a collective's time: chosen algorithm, limiting link, bus bandwidth and wire rate",
		Long: `Explain one collective on one cluster: which algorithm and protocol NCCL chooses and
why, what limits it, why bus bandwidth is not wire rate (or exceeds the NICs'), what
a GPU subset lacks, and what would change the choice.

--bound prints the least time any schedule can take at wire rate, ignoring latency,
with the cut that proves it: for forwarding switches and for switches that compute.

--emit nccl-tuner writes the choices for all collectives and sizes as a table for
libweft.so, NCCL's tuner plug-in (docs/how-to/nccl.md).`,
		Example: `  weft explain --op all-reduce --size 64MiB --cluster examples/rail-1k.yaml
  weft explain dgx-1v --gpus 0,1,4 --size 1GiB
  weft explain superpod-h100 --gpus 'n[0-1]:gpu[0-7]' --size 256MiB
  weft explain dgx-1v --gpus 0-4 --bound --fail 'n0:gpu0 - n0:gpu1'
  weft explain dgx-h100 --emit nccl-tuner`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE:              s.run,
	}
	s.preset.register(cmd)
	s.nccl.register(cmd, "")
	f := cmd.Flags()
	f.StringVar(&s.op, "op", "all-reduce", "`COLLECTIVE`: "+collectiveList())
	f.StringVar(&s.size, "size", "64MiB", "`SIZE` of the larger of input and output")
	f.StringVar(&s.cluster, "cluster", "", "`CLUSTER` file or preset; may be given as the argument, too")
	f.StringVar(&s.gpus, "gpus", "", gpusHelp+"; default: all")
	f.StringVar(&s.cal, "cal", "", "`FILE` of 'weft calibrate': choose by the cluster's own measurements as well")
	f.BoolVar(&s.bound, "bound", false, "the least time any schedule can take, and the cut that proves it")
	f.StringVar(&s.links, "links", "", "with --bound: `FILE` of links, as 'weft algo synth --links' takes it")
	f.IntVar(&s.root, "root", 0, "with --bound: root `RANK` of a rooted collective")
	f.StringArrayVar(&s.fail, "fail", nil, "with --bound: a dead `PART`, as 'weft sim collective' takes it; repeatable")
	f.StringArrayVar(&s.slow, "slow", nil, "with --bound: `PART=FACTOR`, a part at a fraction of its rate; repeatable")
	f.StringVar(&s.emit, "emit", "", "`FORM` of a file to write instead: nccl-tuner, the table of NCCL's tuner plug-in")
	f.BoolVar(&s.asJSON, "json", false, "print as JSON")
	_ = cmd.RegisterFlagCompletionFunc("emit", cobra.FixedCompletions([]string{"nccl-tuner"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(runsRanks(newExplainTransports()), newWayRank())
	return cmd
}

func (s *explainFlags) run(cmd *cobra.Command, args []string) error {
	op, err := sched.ParseCollective(s.op)
	if err != nil {
		return fmt.Errorf("--op: %w", err)
	}
	sizes, err := parseSizes(s.size)
	if err != nil {
		return err
	}
	if len(sizes) != 1 {
		return fmt.Errorf("--size %s: one size is explained at a time", s.size)
	}
	if cmd.Flags().Changed("root") && !op.Rooted() {
		return fmt.Errorf("--root %d: %s has no root; leave it out", s.root, op)
	}
	if s.links != "" {
		if !s.bound || len(args) > 0 || s.cluster != "" {
			return fmt.Errorf("--links is for --bound, instead of a cluster")
		}
		return s.boundLinks(cmd, op, sizes[0])
	}
	c, err := oneCluster(cmd, args, s.cluster, s.preset)
	if err != nil {
		return err
	}
	set, err := explainSet(c.Graph, s.gpus)
	if err != nil {
		return err
	}
	if s.bound {
		return s.boundCluster(cmd, c, set, op, sizes[0])
	}
	if len(s.fail)+len(s.slow) > 0 {
		return fmt.Errorf("--fail and --slow are for --bound; 'weft sim collective' simulates them")
	}
	var cal *tune.Calibration
	if s.cal != "" {
		if cal, err = readCalibration(cmd, s.cal); err != nil {
			return err
		}
	}
	o, err := s.nccl.options()
	if err != nil {
		return err
	}
	switch s.emit {
	case "":
	case "nccl-tuner":
		return emitTuner(cmd.OutOrStdout(), c, set, o, cal)
	default:
		return fmt.Errorf("--emit %q is not known; known: nccl-tuner", s.emit)
	}
	e, err := explain(c, set, op, sizes[0], o, cal)
	if err != nil {
		return err
	}
	if s.asJSON {
		return printJSON(cmd.OutOrStdout(), e)
	}
	return e.print(cmd.OutOrStdout())
}

// boundLinks is --bound for a file of links.
func (s *explainFlags) boundLinks(cmd *cobra.Command, op sched.Collective, size unit.Bytes) error {
	n, err := readLinks(cmd, s.links)
	if err != nil {
		return err
	}
	b, err := boundsOf(n, op, s.root, size)
	if err != nil {
		return err
	}
	return b.write(cmd, n.Name, s.asJSON)
}

// boundCluster is --bound for GPUs of a cluster, of which parts may be dead or slow.
func (s *explainFlags) boundCluster(cmd *cobra.Command, c *cluster.Cluster, set []topo.NodeID, op sched.Collective, size unit.Bytes) error {
	slow, err := parseSlow(s.slow)
	if err != nil {
		return err
	}
	b, err := findBounds(c, set, op, s.root, size, sim.Options{Fail: s.fail, Slow: slow})
	if err != nil {
		return err
	}
	return b.write(cmd, c.Name, s.asJSON)
}

// emitTuner writes what NCCL should run, for its tuner plug-ins.
func emitTuner(w io.Writer, c *cluster.Cluster, set []topo.NodeID, o tune.NCCLOptions, cal *tune.Calibration) error {
	if len(set) < 2 {
		return fmt.Errorf("a collective needs at least two GPUs, not %d", len(set))
	}
	m, err := tune.NewNCCL(c.Graph, set, c.Catalog, o)
	if err != nil {
		return err
	}
	rows, err := m.TunerTable(cal)
	if err != nil {
		return err
	}
	by := "by NCCL's model of this cluster"
	if cal != nil {
		by = "ring or tree by the calibration, the rest by NCCL's model of this cluster"
	}
	return table.Write(w, rows, fmt.Sprintf("%s: %d GPUs on %s, %s", c.Name, m.Ranks(), count(m.Nodes(), "node"), by),
		"NCCL_TUNER_PLUGIN=libweft.so WEFT_NCCL_TABLE=this file, the same on all ranks")
}

// oneCluster loads the cluster that is named as an argument or by --cluster, but not by both.
func oneCluster(cmd *cobra.Command, args []string, flag string, p presetFlags) (*cluster.Cluster, error) {
	switch {
	case len(args) == 1 && flag == "":
		return loadCluster(cmd, args[0], p)
	case len(args) == 0 && flag != "":
		return loadCluster(cmd, flag, p)
	}
	return nil, fmt.Errorf("name one cluster, as CLUSTER or with --cluster")
}

// explainSet is the GPUs asked for, or all of them.
func explainSet(g *topo.Graph, choice string) ([]topo.NodeID, error) {
	if choice != "" {
		return chooseGPUs(g, choice)
	}
	return g.First(topo.GPU, g.Count(topo.GPU)), nil
}

// maxExplained is how many GPUs are simulated for an explanation: 1,024 take a
// second or two.
const maxExplained = 1024

func boundSentences(bounds []boundAnswer) (list []string) {
	for _, x := range bounds {
		text := fmt.Sprintf("No schedule beats %s, bus %s, at wire rate: %s.", x.Rate, x.Bus, x.Why)
		if x.Adds {
			text = fmt.Sprintf("With switches that copy and add, none beats %s, bus %s.", x.Rate, x.Bus)
		}
		list = append(list, text)
	}
	return list
}

// fit adds what measurements say of the cluster, if there are any, and why NCCL is slow on these GPUs of a host.
func (e *explanation) fit(m *tune.NCCL, c *cluster.Cluster, set []topo.NodeID, op sched.Collective, cal *tune.Calibration) (err error) {
	if cal != nil {
		if e.Fitted, err = m.Select(op, e.Bytes, cal); err != nil {
			return err
		}
	}
	if oneHost(c.Graph, set) {
		e.Set, err = tune.WhySlowSet(c.Graph, set, c.Catalog)
	}
	return err
}

// explain asks NCCL's model, and simulates weft's own algorithms beside it where the set is small enough to wait for.
func explain(c *cluster.Cluster, set []topo.NodeID, op sched.Collective, bytes unit.Bytes, o tune.NCCLOptions,
	cal *tune.Calibration) (*explanation, error) {
	if len(set) < 2 {
		return nil, fmt.Errorf("a collective needs at least two GPUs, not %d", len(set))
	}
	m, err := tune.NewNCCL(c.Graph, set, c.Catalog, o)
	if err != nil {
		return nil, err
	}
	e := &explanation{Op: op.String(), Bytes: bytes, GPUs: m.Ranks(), Nodes: m.Nodes(),
		Prediction: m.Predict(op, bytes), Why: m.Explain(op, bytes), Table: m.Table(op, bytes)}
	if whole := c.Graph.First(topo.GPU, len(set)); slices.Equal(whole, set) && len(set) <= maxExplained {
		best, err := sim.Best(c.Graph, op, len(set), bytes,
			sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog)}, sim.Wish{})
		if err != nil {
			return nil, err
		}
		p, res := best.Program, best.Result
		e.Why = append(e.Why,
			fmt.Sprintf("Simulated flow by flow, the best of weft's own algorithms here is %s on %s: %s, bus %s, limited by %s.",
				best.Algo, count(p.Channels(), "channel"), res.Time, res.BusBW, res.Limit))
	}
	if b, err := findBounds(c, set, op, 0, bytes, sim.Options{}); err == nil && len(set) <= maxExplained {
		e.Why = append(e.Why, boundSentences(b.Bounds)...)
	}
	if err := e.fit(m, c, set, op, cal); err != nil {
		return nil, err
	}
	return e, nil
}

func oneHost(g *topo.Graph, set []topo.NodeID) bool {
	for _, n := range set {
		if g.Nodes[n].Host != g.Nodes[set[0]].Host {
			return false
		}
	}
	return true
}

func (e *explanation) print(w io.Writer) error {
	p := &e.Prediction
	fmt.Fprintf(w, "%s of %s on %s of %s: %s %s, %s, bus %s\n\n", e.Op, e.Bytes, count(e.GPUs, "GPU"), count(e.Nodes, "node"), p.Algo, p.Proto,
		p.Time, p.BusBW)
	for _, s := range e.Why {
		fmt.Fprintf(w, "- %s\n", s)
	}
	for _, s := range e.Set {
		fmt.Fprintf(w, "- %s\n", s)
	}
	fmt.Fprintln(w)
	if s := e.Fitted; s != nil {
		fmt.Fprintf(w, "By this cluster's calibration: %s, %s. %s %s\n\n", s.Name, s.Time, s.Reason, s.Change)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NCCL's table\tprotocol\tits estimate\tbus bandwidth\t")
	for _, c := range e.Table {
		if c.Excluded && c.Proto != "Simple" {
			continue // that an algorithm has one protocol only is no news
		}
		if c.Excluded {
			fmt.Fprintf(t, "%s\t%s\t-\t-\t%s\n", c.Algo, c.Proto, c.Reason)
			continue
		}
		mark := ""
		if c.Algo == p.Algo && c.Proto == p.Proto {
			mark = "chosen"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", c.Algo, c.Proto, c.Time, c.BusBW, mark)
	}
	return t.Flush()
}
