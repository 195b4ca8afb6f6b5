package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/run/transport/measure"
)

// simFlags is what 'sim collective' is asked.
type simFlags struct {
	op, size, cluster, host, algo, as, cal, routing, congestion, transport, out string
	channels, pieces, seeds, qps, copies                                        int
	gpus                                                                        string
	seed                                                                        uint64
	fail, slow, jobs                                                            []string
	program, place                                                              string
	unproven                                                                    bool
	memory                                                                      string
	limit                                                                       time.Duration
	pxn, wire, noFold, noSwitches, asJSON                                       bool
	preset                                                                      presetFlags
	nccl                                                                        ncclFlags
}

func newSimCollective() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "collective [CLUSTER]",
		Short: "Simulate a collective: time, bandwidth, and the link that limits it",
		Long: `Simulate a collective on a cluster, flow by flow: every message takes the exact
links of its route and shares them max-min fairly. The simulated program is the one
that 'weft algo verify' proves.

--size takes one size or a doubling range: 8B..1GiB. --algo auto simulates all
algorithms that fit, including those in computing switches, keeps the fastest, and
prints what it left out and why. Parts have the names of 'weft topo': --fail leaf3,
--fail n7:nic2, --slow n7:nic2=0.5. --as nccl answers from measured tables instead:
what NCCL would choose and how long it takes; --as rccl how long RCCL takes.

--routing ecmp hashes every flow to one path, so that flows collide; --qps splits flows
over several queue pairs, hashed one by one; --seeds compares it with adaptive routing.
--routing flowlet hashes a flow anew after 50 us without a packet. --congestion pfc has
switches pause the links that bring more than can leave, with all flows on them; under
dcqcn that ends once senders have slowed down. Both simulate rank by rank, for hundreds of
GPUs. Packet loss is not modelled.

-o trace.json writes a trace for Perfetto or chrome://tracing, -o timeline.svg a
picture of up to sixteen ranks, showing repeated rounds once.`,
		Example: `  weft sim collective --op all-reduce --size 1GiB --cluster examples/rail-1k.yaml
  weft sim collective --op all-reduce --size 8B..1GiB --host dgx-h100 --gpus 8 --as nccl --json
  weft sim collective --size 64MiB..1GiB --host mi300x --as rccl
  weft sim collective --size 64MiB --cluster fat-tree --set hosts=16 --algo hierarchical --routing ecmp --seeds 20
  weft sim collective --cluster rail --set hosts=2 --program mine.xml --size 64MiB
  weft sim collective --cluster rail --set hosts=4 --place 'n[0,2]:gpu[0-7]' --algo ring --size 64MiB
  weft sim collective --cluster rail --set hosts=4 --job 'algo=ring place=n[0-3]:gpu[0-3]' \
      --job 'op=all-to-all size=64MiB algo=pairwise place=n[0-3]:gpu[4-7] start=1ms'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: clusterNames,
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.preset.register(cmd)
	f.nccl.register(cmd, "with --as nccl: ")
	s := cmd.Flags()
	s.StringVar(&f.op, "op", "all-reduce", "`COLLECTIVE`: "+collectiveList())
	s.StringVar(&f.size, "size", "1GiB", "`SIZE` of the larger of input and output, or a range FROM..TO that doubles")
	s.StringVar(&f.cluster, "cluster", "", "`CLUSTER` file or preset; may be given as the argument, too")
	s.StringVar(&f.host, "host", "", "one host of this `KIND`, such as dgx-h100, instead of a cluster")
	s.StringVar(&f.gpus, "gpus", "", gpusHelp+"; default: all")
	s.StringVar(&f.algo, "algo", "auto",
		"`NAME` of the algorithm, see 'weft algo list'; hierarchical/NAME for another than ring between domains; auto for the fastest")
	s.IntVar(&f.channels, "channels", 0, "copies of the pattern side by side; 0 for as many as suit the machine")
	s.IntVar(&f.pieces, "pieces", 0, "how finely trees and chains cut a buffer; 0 for what suits the size")
	s.BoolVar(&f.noSwitches, "no-switches", false, "auto leaves out algorithms that add in switches: NVLink SHARP and SHARP")
	s.StringVar(&f.as, "as", "", "answer as another library would: nccl, rccl")
	s.StringVar(&f.cal, "cal", "", "`FILE` of 'weft calibrate': answer by the model fitted to the cluster's own measurements")
	s.StringArrayVar(&f.fail, "fail", nil, "a dead `PART`: switch, HOST:NIC, HOST, SWITCH:pPORT or a link; repeatable")
	s.StringArrayVar(&f.slow, "slow", nil, "`PART=FACTOR`: a part at a fraction of its rate; repeatable")
	s.BoolVar(&f.pxn, "pxn", false, "between rails, go over NVLink to the GPU at the other rail's NIC first")
	s.StringVar(&f.routing, "routing", "adaptive", "`HOW` switches choose among equal paths: adaptive, ecmp or flowlet")
	s.StringVar(&f.congestion, "congestion", "fair",
		"`WHAT` a full link does to other flows: fair (nothing), pfc (pauses those on the links before it), "+
			"dcqcn (the same, until senders slow down)")
	s.Uint64Var(&f.seed, "seed", 0, "what ECMP and flowlets hash with")
	s.IntVar(&f.qps, "qps", 1, "under ecmp, number of queue pairs that a flow is split over")
	s.IntVar(&f.seeds, "seeds", 0, "under ecmp or flowlet, number of seeds to try: mean and 99th percentile, compared with adaptive routing")
	s.StringVar(&f.transport, "transport", "rdma", "`HOW` bytes pass between GPU and NIC: rdma or tcp")
	s.IntVar(&f.copies, "copies", 1, "this many of the collective at once, on the same GPUs, contending")
	s.StringVar(&f.program, "program", "",
		"simulate the program in `FILE`, a text as 'weft algo show' prints it or MSCCL XML; it is proven first")
	s.BoolVar(&f.unproven, "unproven", false, "simulate the program even if it is not proven")
	s.StringVar(&f.place, "place", "", "the `GPUS` that ranks 0, 1, 2, ... stand on: 0-3 of the first host, or names like n[0-1]:gpu[0-7]")
	s.StringArrayVar(&f.jobs, "job", nil, "another `JOB` at the same time: 'op= size= algo= program= place= start='; repeatable")
	s.BoolVar(&f.wire, "wire", false, "links at wire rate, no software overhead: what the fabric alone would do")
	s.BoolVar(&f.noFold, "no-fold", false, "simulate every rank and every round: later, and exact where the answer is an estimate (~)")
	s.StringVar(&f.memory, "memory", sim.DefaultMemory.String(),
		"estimated `SIZE` of a simulation's records, about half of the process at its peak; what needs more is left out, and the answer says so")
	s.DurationVar(&f.limit, "limit", time.Minute, "CPU `TIME` per size; then auto uses the fastest algorithm so far; 0 for no limit")
	s.BoolVar(&f.asJSON, "json", false, "print as JSON")
	s.StringVarP(&f.out, "output", "o", "", "write a trace: `FILE`.json or FILE.svg")
	return cmd
}

func collectiveList() string {
	var names []string
	for _, c := range sched.Collectives() {
		names = append(names, c.String())
	}
	return strings.Join(names, ", ")
}

// A trace shows at most maxSpans actions of sixteen ranks; up to shownWhole GPUs
// nothing is folded in it.
const (
	maxSpans   = 4000
	shownWhole = 64
)

// What channels and pieces are bounded by.
const (
	maxCopies = 64
	maxPieces = 4096
)

// maxSizes bounds a range of sizes: 1 byte to 1 PiB doubles 50 times.
const maxSizes = 51

// parseSizes reads one size or a range.
func parseSizes(s string) ([]unit.Bytes, error) {
	from, to, ranged := strings.Cut(s, "..")
	low, err := unit.ParseBytes(from)
	if err != nil {
		return nil, fmt.Errorf("--size: %w", err)
	}
	high := low
	if ranged {
		if high, err = unit.ParseBytes(to); err != nil {
			return nil, fmt.Errorf("--size: %w", err)
		}
	}
	switch {
	case low <= 0:
		return nil, fmt.Errorf("--size %s: a collective moves at least one byte", s)
	case high < low:
		return nil, fmt.Errorf("--size %s: the range ends before it begins", s)
	case high >= 1<<50:
		return nil, fmt.Errorf("--size %s: %d bytes are more than any cluster holds; the limit is 1 PiB less a byte", s, int64(high))
	}
	var sizes []unit.Bytes
	for b := low; b <= high && len(sizes) < maxSizes; b *= 2 {
		sizes = append(sizes, b)
	}
	return sizes, nil
}

func parseSlow(list []string) ([]sim.Slow, error) {
	var out []sim.Slow
	for _, s := range list {
		at := strings.LastIndexByte(s, '=')
		if at < 0 {
			return nil, fmt.Errorf("--slow %q: want PART=FACTOR, like --slow n7:nic2=0.5", s)
		}
		v, err := strconv.ParseFloat(s[at+1:], 64)
		if err != nil || math.IsNaN(v) || v <= 0 || v > 1 {
			return nil, fmt.Errorf("--slow %q: a factor is above 0 and at most 1; a dead part goes with --fail", s)
		}
		out = append(out, sim.Slow{Name: s[:at], Factor: v})
	}
	return out, nil
}

// target finds the cluster that is meant.
func (f *simFlags) target(cmd *cobra.Command, args []string) (*cluster.Cluster, error) {
	given := append(args, f.cluster, f.host)
	name, count := "", 0
	for _, g := range given {
		if g != "" {
			name, count = g, count+1
		}
	}
	if count != 1 {
		return nil, fmt.Errorf("say on what to simulate, once: CLUSTER, --cluster or --host KIND, such as --host dgx-h100")
	}
	return loadTarget(cmd, name, f.host, f.preset)
}

func (f *simFlags) run(cmd *cobra.Command, args []string) error {
	op, err := sched.ParseCollective(f.op)
	if err != nil {
		return fmt.Errorf("--op: %w", err)
	}
	sizes, err := parseSizes(f.size)
	if err != nil {
		return err
	}
	o, err := f.options()
	if err != nil {
		return err
	}
	write, err := traceWriter(f.out)
	if err != nil {
		return err
	}
	c, err := f.target(cmd, args)
	if err != nil {
		return err
	}
	gpus, err := f.chosenGPUs(c)
	if err != nil {
		return err
	}
	if answered, err := f.otherAnswer(cmd, c, op, sizes, gpus); answered || err != nil {
		return err
	}
	o.Catalog = c.Catalog
	if !f.wire {
		o.Costs = sim.DefaultCosts(c.Graph, c.Catalog)
	}
	if write != nil {
		o.Trace = maxSpans
		o.Unfolded = o.Unfolded || len(gpus) <= shownWhole
	}
	if len(f.jobs) > 0 || f.program != "" || f.place != "" {
		o.Stop = spent(f.limit, measure.Used)
		return f.overBudget(f.runJobs(cmd, c, len(gpus), o, write))
	}
	if f.unproven {
		return fmt.Errorf("--unproven is for --program; algorithms are proven")
	}
	limitHeap(o.Memory)
	o.Progress = progress(cmd.ErrOrStderr())
	var rows []simRow
	var last *sim.Result
	for _, size := range sizes {
		o.Stop = spent(f.limit, measure.Used)
		row, res, err := f.row(c.Graph, op, len(gpus), size, o, len(sizes) == 1)
		if err != nil {
			return f.overBudget(err)
		}
		rows, last = append(rows, row), res
	}
	if o.Progress != nil {
		fmt.Fprint(cmd.ErrOrStderr(), "\r\033[K")
	}
	if write != nil {
		name := func(_, rank int) string { return c.Graph.NodeName(gpus[min(rank, len(gpus)-1)]) }
		title := fmt.Sprintf("%s of %s on %d GPUs of %s, %s: %s", op, sizes[len(sizes)-1], len(gpus), c.Name, rows[len(rows)-1].Algo, last.Time)
		if err := output(cmd, f.out, func(w io.Writer) error { return write(last.Trace, w, title, name) }); err != nil {
			return err
		}
	}
	if f.asJSON {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	printRows(cmd.OutOrStdout(), rows)
	if len(rows) == 1 {
		fmt.Fprintln(cmd.OutOrStdout())
		printTiers(cmd.OutOrStdout(), last)
		printTried(cmd.OutOrStdout(), rows[0])
		printNeeds(cmd.OutOrStdout(), rows)
	}
	return nil
}

// limitHeap makes the collector work harder near the budget. Without it a process holds up to twice what the simulation keeps.
func limitHeap(budget unit.Bytes) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	debug.SetMemoryLimit(int64(m.HeapAlloc) + int64(budget))
}

// overBudget tells how to go on where a simulation was too large for its budget.
func (f *simFlags) overBudget(err error) error {
	if _, much := errors.AsType[*sim.MemoryError](err); much {
		return finding{fmt.Errorf("%w; use fewer --gpus, another --algo, or more --memory", err)}
	}
	if errors.Is(err, sim.ErrLate) || errors.Is(err, sim.ErrBudget) {
		return finding{fmt.Errorf("no answer after %s of processor time; use fewer --gpus, another --algo, or a longer --limit (0 for none)",
			f.limit)}
	}
	return err
}

// otherAnswer asks a library's model (--as) or measurements (--cal) instead of simulating, where flags say so.
func (f *simFlags) otherAnswer(cmd *cobra.Command, c *cluster.Cluster, op sched.Collective, sizes []unit.Bytes,
	gpus []topo.NodeID) (answered bool, err error) {
	if len(f.jobs) > 0 && (f.program != "" || f.place != "") {
		return false, fmt.Errorf("--job says program= and place= itself; leave --program and --place out")
	}
	if f.as != "" && f.cal != "" {
		return false, fmt.Errorf("--as and --cal are two answers; ask for one")
	}
	if f.as != "" {
		return true, f.asOther(cmd, c, op, sizes, gpus)
	}
	for _, name := range f.nccl.names() {
		if cmd.Flags().Changed(name) {
			return false, fmt.Errorf("--%s is a setting of NCCL's; ask with --as nccl", name)
		}
	}
	if f.cal != "" {
		return true, f.calibrated(cmd, c, op, sizes, gpus)
	}
	return false, nil
}

// options are those of the simulator that the flags ask for.
func (f *simFlags) options() (o sim.Options, err error) {
	o = sim.Options{PXN: f.pxn, Seed: f.seed, Fail: f.fail, Unfolded: f.noFold, Measured: !f.wire}
	if o.Memory, err = unit.ParseBytes(f.memory); err != nil {
		return o, fmt.Errorf("--memory: %w", err)
	}
	if o.Memory <= 0 || f.limit < 0 {
		return o, fmt.Errorf("--memory %s --limit %s: want more than 0 bytes, and 0 or more seconds", f.memory, f.limit)
	}
	if o.Slow, err = parseSlow(f.slow); err != nil {
		return o, err
	}
	if o.Routing, err = choose("--routing", f.routing, routings); err != nil {
		return o, err
	}
	if o.Congestion, err = choose("--congestion", f.congestion, congestions); err != nil {
		return o, err
	}
	if o.Transport, err = choose("--transport", f.transport, map[string]sim.Transport{"rdma": sim.RDMA, "tcp": sim.TCP}); err != nil {
		return o, err
	}
	if f.seeds < 0 || f.seeds > 0 && o.Routing == sim.Adaptive {
		return o, fmt.Errorf("--seeds %d: seeds are for --routing ecmp and flowlet, at least one of them", f.seeds)
	}
	if o.QPs = f.qps; f.qps < 1 || f.qps > 64 || f.qps > 1 && o.Routing != sim.ECMP {
		return o, fmt.Errorf("--qps %d: want 1 to 64, and only with --routing ecmp, not %s", f.qps, f.routing)
	}
	if f.algo != "auto" {
		if _, _, err := sim.Named(f.algo); err != nil {
			return o, fmt.Errorf("--algo: %w", err)
		}
	}
	if f.channels < 0 || f.channels > maxCopies || f.pieces < 0 || f.pieces > maxPieces {
		return o, fmt.Errorf("--channels %d --pieces %d: want 0 to %d channels and 0 to %d pieces", f.channels, f.pieces, maxCopies, maxPieces)
	}
	if f.noSwitches && f.algo != "auto" {
		return o, fmt.Errorf("--no-switches is for --algo auto; leave it out with --algo %s", f.algo)
	}
	if f.copies < 1 || f.copies > 64 {
		return o, fmt.Errorf("--copies %d: want 1 to 64", f.copies)
	}
	return o, nil
}

// chosenGPUs are the GPUs that take part. A simulation of others than the first is one with a placement.
func (f *simFlags) chosenGPUs(c *cluster.Cluster) ([]topo.NodeID, error) {
	all := c.Graph.First(topo.GPU, c.Graph.Count(topo.GPU))
	set := all
	if f.gpus != "" {
		var err error
		if set, err = chooseGPUs(c.Graph, f.gpus); err != nil {
			return nil, err
		}
	}
	switch {
	case len(set) < 2:
		return nil, fmt.Errorf("a collective needs at least two GPUs, not %d", len(set))
	case f.as != "" || f.cal != "" || slices.Equal(set, all[:len(set)]):
		return set, nil
	}
	f.place = f.gpus
	return all, nil
}

// row simulates one size on n GPUs. If it is the only one, the row also says why algorithms were left out.
func (f *simFlags) row(g *topo.Graph, op sched.Collective, n int, size unit.Bytes, o sim.Options, only bool) (simRow, *sim.Result, error) {
	found, err := f.simulate(g, op, n, size, o)
	if err != nil {
		return simRow{}, nil, err
	}
	p, res := found.Program, found.Result
	row := simRow{Op: op.String(), Bytes: int64(size), GPUs: n, Algo: found.Algo, Proto: "simple",
		Channels: p.Channels(),
		Time:     res.Time.Microseconds(), AlgBW: float64(res.AlgBW) / 1e9, BusBW: float64(res.BusBW) / 1e9, Limit: res.Limit,
		Short: res.Shortened, Paused: res.Paused,
		Every: res.Every, Seed: f.seed, Digest: p.Digest()}
	row.tell(found, only)
	if f.seeds > 0 {
		spread, err := sim.Seeds(g, []sim.Job{{Program: p, Size: size}}, o, f.seeds)
		if err != nil {
			return row, nil, err
		}
		row.Mean, row.P99, row.Seeds = spread.Mean.Microseconds(), spread.P99.Microseconds(), f.seeds
		row.Routing = f.routing
	}
	if f.copies > 1 {
		jobs := slices.Repeat([]sim.Job{{Program: p, Size: size}}, f.copies)
		if res, err = sim.Run(g, jobs, o); err != nil {
			return row, nil, err
		}
		each := float64(size.Per(res.Time)) / 1e9
		row.Copies, row.Time, row.Limit, row.Paused = f.copies, res.Time.Microseconds(), res.Limit, res.Paused
		row.AlgBW, row.BusBW = each, each*op.BusFactor(n)
	}
	return row, res, nil
}

// routings and congestions are the words for them.
var (
	routings    = map[string]sim.Routing{"adaptive": sim.Adaptive, "ecmp": sim.ECMP, "flowlet": sim.Flowlets}
	congestions = map[string]sim.Congestion{"fair": sim.FairShares, "pfc": sim.Pauses, "dcqcn": sim.Notices}
)

// simulate runs the algorithm asked for, or all that fit. With seeds, the run
// is under adaptive routing, for the seeds to be compared with.
func (f *simFlags) simulate(g *topo.Graph, op sched.Collective, n int, size unit.Bytes, o sim.Options) (*sim.Found, error) {
	if f.seeds > 0 {
		o.Routing = sim.Adaptive
	}
	wish := sim.Wish{Channels: f.channels, Pieces: f.pieces, NoSwitches: f.noSwitches}
	if f.algo == "auto" {
		return sim.Best(g, op, n, size, o, wish)
	}
	a, outer, err := sim.Named(f.algo)
	if err != nil {
		return nil, err
	}
	wish.Outer = outer
	j, err := wish.Job(a, g, op, n, size, o.Catalog)
	if err != nil {
		return nil, err
	}
	res, err := sim.Run(g, []sim.Job{j}, o)
	return &sim.Found{Algo: f.algo, Program: j.Program, Result: res}, err
}

// choose finds a word among known ones.
func choose[T any](flag, word string, known map[string]T) (T, error) {
	v, ok := known[word]
	if !ok {
		return v, fmt.Errorf("%s %q is unknown; known: %s", flag, word, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	return v, nil
}
