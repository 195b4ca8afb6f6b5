package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/msccl"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/rings"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/tune"
	"github.com/weft-fabric/weft/run/transport/measure"
	"github.com/weft-fabric/weft/view/draw"
)

// synthesis is the answer of 'algo synth'; its keys are stable.
type synthesis struct {
	Op       string      `json:"op"`
	GPUs     []string    `json:"gpus"`
	Bound    boundAnswer `json:"bound"`
	Trees    int         `json:"trees"`
	Height   int         `json:"height"`
	Rate     unit.Rate   `json:"rate_bytes_per_second"` // of the trees
	Share    float64     `json:"share_of_bound"`
	Made     float64     `json:"made_in_seconds"`
	NCCL     unit.Rate   `json:"nccl_rings_bytes_per_second,omitempty"`
	Sizes    []synthSize `json:"sizes,omitempty"`
	Program  string      `json:"program"` // its digest
	Channels int         `json:"channels"`
	Proof    string      `json:"proof"`
	Free     *synthSize  `json:"without_limits,omitempty"` // the last size without --channels and --trees

	program *sched.Program
	form    string
	ways    string // an example of messages that are split
}

type synthSize struct {
	Bytes   unit.Bytes `json:"bytes"`
	Form    string     `json:"form"`
	Time    unit.Time  `json:"time_ps,omitempty"`
	Rate    unit.Rate  `json:"rate_bytes_per_second,omitempty"`
	Share   float64    `json:"share_of_bound"`
	Builtin string     `json:"builtin,omitempty"`
	Own     unit.Time  `json:"builtin_time_ps,omitempty"`
	Slower  bool       `json:"slower_than_builtin,omitempty"`
	Stopped bool       `json:"stopped_at_limit,omitempty"` // forms were left out
	Split   bool       `json:"messages_split,omitempty"`   // over ways of different length
	Lost    string     `json:"lost,omitempty"`             // why it is less than the bound
}

type synthFlags struct {
	op, host, gpus, links, size, to, out string
	wish                                 sim.SynthWish
	fail, slow                           []string
	wire, reach, asJSON                  bool
	limit                                time.Duration
	preset                               presetFlags
	measured                             measuredFlags
	named                                *synth.Net // of --links, with the names that its file has
}

func newAlgoSynth() *cobra.Command {
	f := synthFlags{}
	cmd := &cobra.Command{
		Use:   "synth [CLUSTER]",
		Short: "Synthesise the best schedule for a machine, with a proof that none is faster",
		Long: `Make a schedule for exactly these GPUs and links: whole hosts, GPU subsets,
meshes, dead and slow links. weft computes the exact bound with the cut that proves
it, packs trees (paths for an all-to-all) that reach it, and proves and simulates their program next to its
own algorithms. -o writes it: .weft as text, .xml as MSCCL, .json as an MSCCL++ plan,
.svg as a picture. 'weft bench --program' runs it.

--links FILE takes any network, one link per line: 'r0 r1 25GB/s' for one direction,
'r0 - leaf 400Gb/s' for both; r0, r1, ... are ranks, other names are switches.

--size takes a range, 1KiB..1GiB, and picks the fastest form for each size.
--channels limits the channels; the answer says what that costs.

--measured starts ranks on this host, on --hosts or in a --lab, measures every pair
of hosts, makes programs for these links, and runs them interleaved with the
runtime's own choice. Programs that save at least 5% are stored in the cache folder
on rank 0's host and used whenever as many ranks meet on the same hosts. Run it again
after links have changed; --forget removes the stored programs.`,
		Example: `  weft algo synth --host dgx-1v --gpus 0-4 --op all-reduce
  weft algo synth --host mi300x --fail 'n0:gpu0 - n0:gpu1' --op all-reduce
  weft algo synth --host dgx-1v --op all-gather --channels 16 -o ag.weft
  weft algo synth --host dgx-1v --gpus 0-2 --size 1KiB..1MiB
  weft algo synth rail --set hosts=2 --op all-gather
  weft algo synth --measured -n 4 --transport tcp --size 1MiB
  weft algo synth --measured -n 8 --hosts a,b,c,d --rsh 'ip netns exec {host}' --master-addr 10.0.0.1`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.measured.on || f.measured.forget {
				if err := checkSettings(cmd); err != nil {
					return err
				}
				return f.runMeasured(cmd, args)
			}
			for _, name := range measuredOnly {
				if cmd.Flags().Changed(name) {
					return fmt.Errorf("--%s is for --measured; see 'weft algo synth --help'", name)
				}
			}
			return f.run(cmd, args)
		},
	}
	f.preset.register(cmd)
	f.measured.register(cmd)
	s := cmd.Flags()
	s.StringVar(&f.op, "op", "all-reduce",
		"`COLLECTIVE`: all-reduce, all-gather, reduce-scatter, broadcast, reduce, all-to-all; for --measured a list, by default the first three")
	s.StringVar(&f.host, "host", "", "one host of this `KIND`, such as dgx-1v, instead of a cluster")
	s.StringVar(&f.links, "links", "", "`FILE` of links instead of a cluster, one per line: r0 r1 25GB/s")
	s.StringVar(&f.gpus, "gpus", "", gpusHelp+"; default: all")
	s.StringVar(&f.size, "size", "1GiB", "`SIZE` of the larger of input and output, or a range FROM..TO that doubles")
	s.IntVar(&f.wish.Root, "root", 0, "root `RANK` of a rooted collective")
	s.IntVar(&f.wish.Channels, "channels", 0, "most channels to use; 0 for no limit")
	s.IntVar(&f.wish.Trees, "trees", 0, "most trees to use; 0 for no limit")
	s.IntVar(&f.wish.Pieces, "pieces", 0, "pieces a tree's share is cut into; 0 for what suits the size")
	s.Float64Var(&f.wish.Loss, "loss", sim.DefaultLoss, "share of the bound that may be given up for fewer trees; 0 for none")
	s.StringArrayVar(&f.fail, "fail", nil, "a dead `PART`: switch, HOST:NIC, HOST, SWITCH:pPORT or a link; repeatable")
	s.StringArrayVar(&f.slow, "slow", nil, "`PART=FACTOR`: a part at a fraction of its rate; repeatable")
	s.DurationVar(&f.limit, "limit", time.Minute, "CPU `TIME` for simulations per size; then the best form so far is used; 0 for no limit")
	s.BoolVar(&f.wire, "wire", false, "simulate without software overhead: what the fabric alone would do")
	s.BoolVar(&f.reach, "reached", false, "links at the rate that software reaches rather than the wire rate")
	s.StringVar(&f.to, "to", "",
		"`FORM` of what is written: weft, msccl, mscclpp or svg; nccl-tuner for the table of NCCL's tuner, where NCCL's own patterns are as good; default: by the ending of -o, else weft")
	s.StringVarP(&f.out, "output", "o", "", "`FILE` for the program; '-' for standard output")
	s.BoolVar(&f.asJSON, "json", false, "print as JSON")
	return cmd
}

// target finds what is meant: GPUs of a cluster, or a network whose links are
// not the same in both directions.
func (f *synthFlags) target(cmd *cobra.Command, args []string) (*cluster.Cluster, []topo.NodeID, *synth.Net, error) {
	given := args
	for _, g := range []string{f.host, f.links} {
		if g != "" {
			given = append(given, g)
		}
	}
	if len(given) != 1 {
		return nil, nil, nil, fmt.Errorf("say for what to make a schedule, once: CLUSTER, --host KIND, such as --host dgx-1v, or --links FILE")
	}
	if f.links != "" {
		if f.gpus != "" {
			return nil, nil, nil, fmt.Errorf("--gpus is for clusters; %s says which ranks there are", f.links)
		}
		n, err := readLinks(cmd, f.links)
		if err != nil {
			return nil, nil, nil, err
		}
		g, set, ok := n.Graph()
		c := &cluster.Cluster{Name: n.Name, Graph: g, Catalog: catalog.Default()}
		f.named = n
		if !ok {
			if len(f.fail)+len(f.slow) > 0 {
				return nil, nil, nil, fmt.Errorf("--fail and --slow need links that are the same both ways; edit %s", f.links)
			}
			return c, nil, n, nil
		}
		return c, set, nil, nil
	}
	c, err := loadTarget(cmd, given[0], f.host, f.preset)
	if err != nil {
		return nil, nil, nil, err
	}
	set, err := explainSet(c.Graph, f.gpus)
	return c, set, nil, err
}

// plain makes a program for a network that cannot be simulated.
func (f *synthFlags) plain(net *synth.Net, op sched.Collective, sizes []unit.Bytes) (*synthesis, error) {
	start := time.Now()
	p, err := net.Make(op, f.wish.Root, synth.Wish{Loss: f.wish.Loss, Trees: f.wish.Trees})
	if err != nil {
		return nil, err
	}
	pieces := f.wish.Pieces
	if pieces == 0 {
		pieces = p.Pieces(sizes[len(sizes)-1], 10*unit.Microsecond)
	}
	a := &synthesis{Op: op.String(), GPUs: net.Names[:net.Ranks], Bound: newBoundAnswer(p.Bound), Trees: len(p.Ways), Height: p.Height(),
		Rate: p.Rate, Share: p.Share()}
	for lanes := 0; ; lanes = max(lanes/2, 1) {
		if a.program, err = p.Program("synth", pieces, lanes); err != nil {
			return nil, err
		}
		if f.wish.Channels == 0 || a.program.Channels() <= f.wish.Channels {
			break
		}
		if lanes == 1 {
			return nil, fmt.Errorf("the least program has %d channels, more than %d; bound it with --trees", a.program.Channels(), f.wish.Channels)
		}
		if lanes == 0 {
			lanes = 8
		}
	}
	a.Made = time.Since(start).Seconds()
	a.Program, a.Channels = a.program.Digest(), a.program.Channels()
	rep, err := verify.Program(a.program)
	if err != nil {
		return nil, disproof{err}
	}
	a.Proof = reportLine(rep)
	a.form = fmt.Sprintf("%s of up to %s, %s", count(a.Trees, "tree"), count(a.Height, "hop"), count(pieces, "piece"))
	return a, nil
}

func (f *synthFlags) run(cmd *cobra.Command, args []string) error {
	op, err := sched.ParseCollective(f.op)
	if err != nil {
		return fmt.Errorf("--op: %w", err)
	}
	sizes, err := parseSizes(f.size)
	if err != nil {
		return err
	}
	if cmd.Flags().Changed("root") && !op.Rooted() {
		return fmt.Errorf("--root %d: %s has no root; leave it out", f.wish.Root, op)
	}
	if err := f.wished(); err != nil {
		return err
	}
	c, set, net, err := f.target(cmd, args)
	if err != nil {
		return err
	}
	o := sim.Options{Catalog: c.Catalog, Fail: f.fail, Measured: f.reach}
	if !f.wire && net == nil {
		o.Costs = sim.DefaultCosts(c.Graph, c.Catalog)
	}
	if o.Slow, err = parseSlow(f.slow); err != nil {
		return err
	}
	var a *synthesis
	if net != nil {
		a, err = f.plain(net, op, sizes)
	} else {
		a, err = f.make(cmd, c, set, op, sizes, o)
	}
	if err != nil {
		return err
	}
	report := cmd.OutOrStdout()
	if f.out == "-" || f.to != "" && f.out == "" { // which has the program
		report = cmd.ErrOrStderr()
	}
	switch {
	case f.to == "nccl-tuner":
		err = a.writeTuner(cmd, c, set, f)
	case f.out != "" || f.to != "":
		err = writeProgram(cmd, a.program, f.to, f.out)
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(report, a)
	}
	return a.print(report, c.Name)
}

// wished checks the numbers of the wish; 0 leaves a choice to the search.
func (f *synthFlags) wished() error {
	w := &f.wish
	if f.limit < 0 {
		return fmt.Errorf("--limit %s: want 0 or more", f.limit)
	}
	if min(w.Channels, w.Trees, w.Pieces) < 0 || w.Pieces > 1<<12 || !(w.Loss >= 0 && w.Loss < 1) {
		return fmt.Errorf("--channels %d --trees %d --pieces %d --loss %g: want 0 or more, at most %d pieces, and a loss below 1",
			w.Channels, w.Trees, w.Pieces, w.Loss, 1<<12)
	}
	return nil
}

// spent says from now on whether more processor time was used than a limit allows: a busy machine finds what an
// idle one does. It is nil for no limit.
func spent(limit time.Duration, used func() time.Duration) func() bool {
	if limit == 0 {
		return nil
	}
	start := used()
	return func() bool { return used()-start > limit }
}

// mostBeside is the number of GPUs up to which weft's own algorithms are simulated beside.
const mostBeside = 256

// asFast is the share of a form's time from which on weft's own algorithm is as fast.
const asFast = 0.99

// wellReached is the share of the bound from which the answer does not say what is lost.
const wellReached = 0.97

// asGood is the share of the bound from which NCCL's own patterns will do.
const asGood = 0.95

// writeTuner writes the table of NCCL's tuner, where no schedule is much faster than NCCL's own patterns: they only have to be chosen.
func (a *synthesis) writeTuner(cmd *cobra.Command, c *cluster.Cluster, set []topo.NodeID, f *synthFlags) error {
	switch {
	case a.NCCL == 0:
		return fmt.Errorf("--to nccl-tuner: NCCL's patterns are counted for an all-reduce of GPUs of one host with nothing slow; 'weft explain --emit nccl-tuner' writes the table for others")
	case len(f.fail) > 0:
		return fmt.Errorf("--to nccl-tuner: NCCL's model has no dead links; 'weft explain --emit nccl-tuner' writes the whole machine's table")
	case float64(a.NCCL) < asGood*float64(a.Bound.Rate):
		return finding{fmt.Errorf("NCCL's own patterns reach %s, and schedules for these links %s of at most %s: no choice among NCCL's makes up for that; write the program with --to msccl or mscclpp",
			a.NCCL, a.Rate, a.Bound.Rate)}
	}
	return output(cmd, f.out, func(w io.Writer) error { return emitTuner(w, c, set, tune.NCCLOptions{}, nil) })
}

// writeProgram writes a program in the form that is named, or else that the file's name says.
func writeProgram(cmd *cobra.Command, p *sched.Program, to, out string) error {
	write := func(w io.Writer) error {
		_, err := io.WriteString(w, p.String())
		return err
	}
	byName := map[string]string{".svg": "svg", ".xml": "msccl", ".json": "mscclpp"}[filepath.Ext(out)]
	switch form := cmp.Or(to, byName, "weft"); form {
	case "weft":
	case "svg":
		write = func(w io.Writer) error { return draw.Program(w, p) }
	case "msccl":
		write = func(w io.Writer) error { return msccl.Encode(w, p) }
	case "mscclpp":
		write = func(w io.Writer) error { return msccl.EncodePlan(w, p) }
	default:
		return fmt.Errorf("--to %q: known: weft, msccl, mscclpp, svg, nccl-tuner", form)
	}
	return output(cmd, out, write)
}

func (f *synthFlags) make(cmd *cobra.Command, c *cluster.Cluster, set []topo.NodeID, op sched.Collective, sizes []unit.Bytes,
	o sim.Options) (*synthesis, error) {
	a := &synthesis{Op: op.String()}
	for _, n := range set {
		a.GPUs = append(a.GPUs, c.Graph.NodeName(n))
	}
	bar := newProofBar(cmd.ErrOrStderr())
	defer bar.clear()
	for i, size := range sizes {
		bar.show(fmt.Sprintf("%s of %s: trees", op, size))
		start := time.Now()
		f.wish.Tell = func(form string) { bar.show(fmt.Sprintf("%s of %s: %s", op, size, form)) }
		f.wish.Stop = spent(f.limit, measure.Used)
		f.wish.Split = true
		s, err := sim.Synthesise(c.Graph, set, op, size, o, f.wish)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			a.Made = time.Since(start).Seconds()
		}
		b := s.Plan.Bound
		a.Bound = newBoundAnswer(b)
		a.Trees, a.Height, a.Rate, a.Share = len(s.Plan.Ways), s.Plan.Height(), s.Plan.Rate, s.Plan.Share()
		a.program, a.Program, a.Channels = s.Program, s.Program.Digest(), s.Program.Channels()
		row := synthSize{Bytes: size, Form: s.Form, Stopped: s.Stopped, Split: s.Split}
		if s.Result != nil {
			row.Time, row.Rate, row.Share, row.Lost = s.Result.Time, s.Result.AlgBW, float64(s.Result.AlgBW/b.Rate), s.Lost(size)
			if len(set) <= mostBeside { // of more, weft's own algorithms take longer to simulate than the program to make
				bar.show(fmt.Sprintf("%s of %s: weft's own algorithms", op, size))
				beside := o
				beside.Stop = spent(f.limit, measure.Used)
				if own, err := ownBest(c.Graph, set, op, f.wish.Root, size, beside); err == nil {
					row.Builtin, row.Own = own.Program.Name, own.Result.Time
					row.Slower = float64(row.Own) < asFast*float64(row.Time)
				}
			}
		}
		if s.Split {
			a.ways = splitWords(s.Plan, f.named)
		}
		a.Sizes, a.form = append(a.Sizes, row), s.Form
	}
	if (f.wish.Channels > 0 || f.wish.Trees > 0) && len(set) <= synth.MostShallow {
		bar.show("what the limits cost")
		a.Free = f.unlimited(c.Graph, set, op, sizes[len(sizes)-1], o)
	}
	if f.named != nil && len(f.fail)+len(f.slow) == 0 { // the same bound, in the words of the file
		if b, err := f.named.Bounds(op, f.wish.Root, false); err == nil && b.Exact.RatString() == a.Bound.Exact {
			a.Bound, a.GPUs = newBoundAnswer(b), f.named.Names[:f.named.Ranks]
		}
	}
	bar.show("proof")
	prove := verify.Program
	if len(set) > 16 { // whether it may run in place takes long to find out
		prove = verify.Right
	}
	rep, err := prove(a.program)
	if err != nil {
		return nil, disproof{err}
	}
	a.Proof = reportLine(rep)
	if op == sched.AllReduce && oneHost(c.Graph, set) {
		if g, err := sim.Without(c.Graph, f.fail); err == nil && len(f.slow) == 0 {
			if r, err := rings.Search(g, set, c.Catalog, rings.Options{}); err == nil {
				a.NCCL = max(r.RingBus, r.TreeBus) * unit.Rate(len(set)) / unit.Rate(2*(len(set)-1))
			}
		}
	}
	return a, nil
}

// unlimited is what could be made without the limits of channels and trees; nil where nothing can.
func (f *synthFlags) unlimited(g *topo.Graph, set []topo.NodeID, op sched.Collective, size unit.Bytes, o sim.Options) *synthSize {
	free := f.wish
	free.Channels, free.Trees = 0, 0
	free.Stop = spent(f.limit, measure.Used)
	s, err := sim.Synthesise(g, set, op, size, o, free)
	if err != nil || s.Result == nil {
		return nil
	}
	return &synthSize{Bytes: size, Form: fmt.Sprintf("%s on %s", s.Form, count(s.Program.Channels(), "channel")), Time: s.Result.Time,
		Rate:  s.Result.AlgBW,
		Share: float64(s.Result.AlgBW / s.Plan.Bound.Rate), Stopped: s.Stopped}
}

// splitWords says how the first pair of ranks splits its messages.
func splitWords(p *synth.Plan, named *synth.Net) string {
	routes := p.Routes()
	if len(routes) == 0 {
		return ""
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(routes)), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) })
	name := func(v int) string {
		if named != nil {
			return strings.TrimPrefix(p.Net.Names[v], "n0:")
		}
		return p.Net.Names[v]
	}
	var parts []string
	for _, s := range routes[first] {
		if s.From != first[0] {
			continue
		}
		way := "directly"
		if s.To != first[1] {
			way = "over " + name(s.To)
		}
		parts = append(parts, fmt.Sprintf("%.3g%% %s", 100*s.Part, way))
	}
	return fmt.Sprintf("%s sends %s %s", name(first[0]), name(first[1]), strings.Join(parts, ", "))
}

// ownBest is the fastest of weft's own algorithms without switches that add:
// with rings in the best order where all GPUs take part, in the order given else.
func ownBest(g *topo.Graph, set []topo.NodeID, op sched.Collective, root int, size unit.Bytes, o sim.Options) (*sim.Found, error) {
	if root == 0 && slices.Equal(set, g.First(topo.GPU, len(set))) {
		return sim.Best(g, op, len(set), size, o, sim.Wish{NoSwitches: true, Plain: true})
	}
	return sim.BestOn(g, set, op, root, size, o)
}

func (a *synthesis) print(w io.Writer, name string) error {
	fmt.Fprintf(w, "%s on %s of %s\n\n", a.Op, count(len(a.GPUs), "GPU"), name)
	t := newTable(w)
	a.Bound.print(t)
	made := "trees"
	if a.Op == sched.AllToAll.String() {
		made = "paths"
	}
	fmt.Fprintf(t, made+"\t%d of up to %s: %s, %.4g%% of the bound\n", a.Trees, count(a.Height, "hop"), a.Rate, 100*a.Share)
	fmt.Fprintf(t, "program\t%s on %s, digest %s\n", a.form, count(a.Channels, "channel"), a.Program)
	fmt.Fprintf(t, "\t%s\n", a.Proof)
	if a.NCCL > 0 {
		fmt.Fprintf(t, "NCCL's patterns\t%s at wire rate: the most rings or trees that fit\n", a.NCCL)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(a.Sizes) == 0 {
		_, err := fmt.Fprintln(w, "\nnot simulated: links differ by direction")
		return err
	}
	if a.Sizes[0].Time == 0 {
		why := "too many GPUs of which no two are alike"
		if a.Sizes[0].Stopped {
			why = "one form took longer than --limit allows"
		}
		_, err := fmt.Fprintln(w, "\nnot simulated:", why)
		return err
	}
	fmt.Fprintln(w, "\nsimulated:")
	t = newTable(w)
	fmt.Fprintln(t, "size\ttime\tbandwidth\tof the bound\tform\tweft's own best\t")
	for _, s := range a.Sizes {
		own := "-"
		if s.Builtin != "" {
			own = fmt.Sprintf("%s, %s, %.2f times as long", s.Builtin, s.Own, float64(s.Own)/float64(s.Time))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.4g%%\t%s\t%s\t\n", s.Bytes, s.Time, s.Rate, 100*s.Share, s.Form, own)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if last := a.Sizes[len(a.Sizes)-1]; last.Lost != "" && last.Share < wellReached {
		fmt.Fprintf(w, "\nof the bound at %s are lost: %s\n", last.Bytes, last.Lost)
	}
	if f := a.Free; f != nil {
		last := a.Sizes[len(a.Sizes)-1]
		fmt.Fprintf(w, "\nthe limits cost %.3g%% of the rate at %s: without them %s, %.4g%% of the bound, %s\n",
			100*max(1-float64(last.Rate/f.Rate), 0), last.Bytes, f.Rate, 100*f.Share, f.Form)
	}
	for i := 0; i < len(a.Sizes); i++ { // runs of sizes where the same is faster
		s, to := a.Sizes[i], i
		for s.Slower && to+1 < len(a.Sizes) && a.Sizes[to+1].Slower && a.Sizes[to+1].Builtin == s.Builtin {
			to++
		}
		if s.Slower {
			at := "at " + s.Bytes.String()
			if to > i {
				at = fmt.Sprintf("from %s to %s", s.Bytes, a.Sizes[to].Bytes)
			}
			fmt.Fprintf(w, "\n%s weft's own %s takes less time: use that one, 'weft algo show %s -n %d --op %s'\n",
				at, s.Builtin, s.Builtin, len(a.GPUs), a.Op)
			i = to
		}
	}
	if i := slices.IndexFunc(a.Sizes, func(s synthSize) bool { return s.Split }); i >= 0 {
		fmt.Fprintf(w,
			"\nfrom %s on messages are split over paths of different length, as the bound needs: %s. 'weft sim' and most machines use the shortest path only and reach less\n",
			a.Sizes[i].Bytes, a.ways)
	}
	for _, s := range a.Sizes {
		if s.Stopped {
			fmt.Fprintf(w, "\nat %s not all forms were simulated in the processor time of --limit: a longer one may find a faster form\n", s.Bytes)
		}
	}
	return nil
}
