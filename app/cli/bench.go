package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/bench"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/reduce"
)

// benchFlags are what the verb takes, in nccl-tests' letters where it has them.
type benchFlags struct {
	cfg                                              bench.Config
	min, max, step, ranks, redop, dtype, floor       string
	plain, registered, json, cpu, compare, predict   bool
	program, output, hosts, rsh, sizes, spaces, rate string
	rails                                            int
	best, apart, explain, spread, canonical          bool
	hogs                                             int
	quota                                            string
	rounds                                           int
	batch                                            time.Duration
	spec                                             launch.Spec
	links                                            linkFlags
	lab                                              labFlag
	rail                                             railFlags
}

func newBench() *cobra.Command {
	f := &benchFlags{cfg: bench.Default()}
	cmd := &cobra.Command{
		Use:   "bench [OPERATION...]",
		Short: "Benchmark and verify collectives between processes, as nccl-tests does",
		Long: `Start ranks on this host or on others and measure an operation over a range of
sizes, with nccl-tests' flags and columns. Results are verified bit for bit. The time
is the slowest rank's, the median over batches.

OPERATION is all-reduce by default; known are
` + wrap(operations(), 78) + `

-n is the number of ranks; nccl-tests' -n is --iters here. Buffers are registered
(allocated by the library, mapped by peers) unless --plain.

--lab runs one rank on every host of a lab, or -n ranks, over the lab's network: see
'weft lab up'.

--device cuda puts the buffers on GPUs; several ranks may share one. The header names
the path and the reason: direct (ranks map each other's memory) or staged (through
the host). WEFT_CUDA or --require demands one. The last columns are the least time
one GPU's memory allows, from a plain add measured in the same run, and the in-place
time divided by it. --device soft is a software GPU that runs the same kernels
slowly.

--compare also measures Open MPI, MPICH, Gloo and PyTorch's Gloo where installed, and
the host memory's limit, interleaved in one run. The table has medians; ratios are
the other's time over weft's. Programs for the others are compiled on first use and
cached.

--predict measures message times where the operations run, then the operations. Then
it simulates the same programs with these message times and prints both. ~ marks
times whose own spread is over 25%.

--spread times every operation separately on a busy machine: --hogs starts processes
that never wait, --quota limits each competitor's CPU share. The table has the median
and the 99th percentile; ratios are the better of Open MPI (yielding) and Gloo over
weft. Medians below 1, and 99th percentiles below a third, are bold.`,
		Example: `  weft bench all-reduce -b 8 -e 64M -f 2 -n 4
  weft bench all-gather -n 2 -d bfloat16 --transport tcp --cpu
  weft bench all-reduce -n 4 --algo ring -b 1M -e 1M
  weft bench all-reduce -n 2 --hosts a,b --rsh 'ip netns exec {host}' --master-addr 10.0.0.1
  weft bench all-reduce -n 8 --hosts a,b --rsh 'ip netns exec {host} {command}' --master-addr 10.0.0.1 --explain
  weft bench all-reduce -n 16 --hosts 'n[0-1]' --cluster examples/lab.yaml --explain
  weft bench all-reduce -n 4 --require shm --floor 5GB/s
  weft bench all-reduce -n 2 --transport tcp --tls -b 1M -e 1M
  weft bench all-reduce -n 4 --device cuda -d bfloat16 -b 8 -e 256M -f 8 --require direct
  weft bench all-reduce -n 2 --device soft -b 1K -e 4K
  weft bench --compare -n 2,4,8 --sizes 8,32K,1M,16M
  weft bench --compare all-reduce -n 2 --sizes 1M,2M --out-of-place
  weft bench --compare all-gather broadcast --transport tcp
  weft bench --compare all-reduce --namespaces 2x4 --sizes 8,32K,1M
  weft bench --compare all-reduce --namespaces 2x1,4x2 --rails 2 --rate 1Gb/s --sizes 1M
  weft bench --compare --canonical all-reduce reduce -n 4 --sizes 8,1M
  weft bench --predict all-reduce all-gather --namespaces 2x2 --rate 1Gb/s -b 64K -e 4M -f 8
  weft bench --predict all-reduce -n 4 --transport tcp -b 1M -e 1M
  weft bench --compare --spread --hogs 2 -n 2,4 --sizes 8,256K,8M --batch 100ms
  weft bench --compare --spread --quota 50% -n 2 --sizes 8,256K --transport tcp`,
		ValidArgs: strings.Split(operations(), ", "),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r := f.cfg.Require; r == "direct" || r == "staged" {
				if f.cfg.Device == "" {
					return fmt.Errorf("--require %s is a path between GPUs; add --device cuda", r)
				}
				f.cfg.DeviceWay, f.cfg.Require = r, ""
			}
			for _, x := range [][2]string{{"transport", f.cfg.Transport}, {"require", f.cfg.Require}} {
				if err := comm.CheckTransport(x[1]); err != nil {
					return fmt.Errorf("--%s: unknown transport %q; known: shm, tcp, mixed, mem, ucx, ucx:TRANSPORT with more of them after commas",
						x[0], x[1])
				}
				if err := comm.CheckNamed(x[1]); err != nil {
					return fmt.Errorf("--%s %s: %w", x[0], x[1], err)
				}
			}
			// ucx:rc is required of ucx, with or without a choice of its transports.
			same := func(a, b string) bool { return a == b || strings.HasPrefix(a, "ucx") && strings.HasPrefix(b, "ucx") }
			if r, t := f.cfg.Require, f.cfg.Transport; r != "" && (t != "" && !same(r, t) || r == "mem" && t == "") {
				return fmt.Errorf("--require %s with --transport %q; want the same for both, or no --transport and shm or tcp required", r, t)
			}
			if f.cfg.Transport == "mem" && f.hosts != "" {
				return fmt.Errorf("--hosts %s with --transport mem, whose ranks are goroutines of one process; leave out one of them", f.hosts)
			}
			if f.compare {
				if err := unused(cmd, "is not for --compare", aloneFlags); err != nil {
					return err
				}
				return f.runCompare(cmd, args)
			}
			if f.predict {
				if err := unused(cmd, "is not for --predict",
					append(slices.Clone(notPredict), without(compareFlags, "namespaces", "rails", "rate")...)); err != nil {
					return err
				}
				return f.runPredict(cmd, args)
			}
			if err := unused(cmd, "is for --compare and --predict", []string{"namespaces", "rails", "rate"}); err != nil {
				return err
			}
			if err := unused(cmd, "is for --compare", compareFlags); err != nil {
				return err
			}
			return f.run(cmd, args)
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.min, "minbytes", "b", "8", "smallest `SIZE`: bytes, or with K, M, G powers of 1024")
	fl.StringVarP(&f.max, "maxbytes", "e", "64M", "largest `SIZE`")
	fl.StringVarP(&f.step, "stepbytes", "i", "", "`SIZE` to add from row to row, instead of -f")
	fl.Float64VarP(&f.cfg.StepFactor, "stepfactor", "f", 2, "factor from row to row")
	fl.StringVarP(&f.ranks, "ranks", "n", "2", "number of ranks; with --compare a list such as 2,4,8")
	fl.StringVarP(&f.redop, "op", "o", "sum", "`REDUCTION`: sum, prod, min, max, avg, premulsum, band, bor, bxor")
	fl.StringVarP(&f.dtype, "datatype", "d", "float32",
		"`TYPE` of elements: int8 to uint64, float16, bfloat16, float32, float64, float8_e4m3, float8_e5m2")
	fl.IntVarP(&f.cfg.Root, "root", "r", 0, "`RANK` that is the root")
	fl.BoolVarP(&f.cfg.Check, "check", "c", true, "verify results")
	fl.IntVar(&f.cfg.Iters, "iters", 0, "operations per batch; default: as many as take 20 ms")
	fl.IntVarP(&f.cfg.Warmup, "warmup_iters", "w", 5, "operations before the first batch")
	fl.BoolVar(&f.cfg.Fresh, "new-sizes", false, "time every call on a size that was not seen before, up to a quarter shorter than the row's")
	fl.IntVar(&f.cfg.Batches, "batches", 5, "batches, of which the median counts")
	fl.StringVar(&f.cfg.Transport, "transport", "",
		"`NAME`: shm, tcp, mixed (shared memory inside hosts, tcp between), ucx or ucx:TRANSPORT,... (by that library), or mem for ranks that are goroutines; default: the fastest of shm, tcp and mixed")
	fl.StringVar(&f.cfg.Require, "require", "",
		"`TRANSPORT` that must be used (ucx:rc: messages over UCX's rc), or with --device the path, direct or staged; anything else is an error")
	fl.StringVar(&f.cfg.Device, "device", "", "`DEVICE` that buffers are on: cuda, or soft for a GPU in software; default: the host")
	fl.StringVar(&f.floor, "floor", "", "least `RATE`, like 5GB/s, of links and of bus bandwidth at the largest size; less is an error")
	fl.BoolVar(&f.registered, "registered", true, "buffers from the library, which peers map")
	fl.BoolVar(&f.plain, "plain", false, "buffers from anywhere")
	fl.StringVar(&f.cfg.Algo, "algo", "", "`ALGORITHM` to use; see 'weft algo list'")
	fl.StringVar(&f.program, "program", "", "`FILE` with the program to use, which is proven first; see 'weft algo show'")
	fl.BoolVar(&f.cfg.Unproven, "unproven", false, "run the program even if it is not proven: it may hang or be wrong")
	fl.BoolVar(&f.cpu, "cpu", false, "also CPU seconds of all ranks per GB moved")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	fl.StringVar(&f.output, "output", "", "`FILE` to write to instead of standard output")
	fl.BoolVar(&f.compare, "compare", false, "compare with other libraries")
	fl.StringVar(&f.sizes, "sizes", "8,4K,32K,256K,1M,2M,16M,64M", "`LIST` of sizes for --compare")
	fl.StringVar(&f.spaces, "namespaces", "",
		"`HOSTSxRANKS`, such as 2x4, or a list, for --compare and --predict: hosts are network namespaces of this machine, joined by a switch")
	fl.BoolVar(&f.predict, "predict", false, "simulate the programs that ran on the links that were measured, and print both times")
	fl.IntVar(&f.rails, "rails", 1, "`NUMBER` of networks between the hosts of --namespaces")
	fl.StringVar(&f.rate, "rate", "", "`RATE` of each of them, like 1Gb/s; default: no limit")
	fl.IntVar(&f.rounds, "rounds", 15, "turns of each competitor at a size, for --compare; the median counts")
	fl.DurationVar(&f.batch, "batch", 10*time.Millisecond,
		"`TIME` per turn, for --compare: long enough to hide wake-ups, short enough to dodge other work")
	fl.BoolVar(&f.cfg.Bind, "bind", false, "pin every rank to one CPU: less noise on a busy machine")
	fl.BoolVar(&f.explain, "explain", false,
		"also print how each pair of ranks communicates, and which program is chosen at which size, and why")
	fl.BoolVar(&f.best, "best", false, "the fastest turn counts, for --compare, not the median")
	fl.BoolVar(&f.spread, "spread", false,
		"for --compare: time every operation separately; medians and 99th percentiles of weft, Open MPI (yielding) and Gloo")
	fl.IntVar(&f.hogs, "hogs", 0, "`NUMBER` of busy processes next to the ranks, for --compare; with --spread")
	fl.StringVar(&f.quota, "quota", "", "CPU `SHARE` for each competitor's ranks, like 50%, by a control group, for --compare; with --spread")
	fl.BoolVar(&f.canonical, "canonical", false, "for --compare: only what canonical sums (WEFT_CANONICAL=1) cost")
	fl.BoolVar(&f.apart, "out-of-place", false, "all-reduce has an input and an output, for --compare, not one buffer")
	hostFlags(cmd, &f.spec, &f.hosts, &f.rsh)
	f.lab.bind(cmd)
	f.rail.bind(cmd)
	f.links.bind(cmd)
	return cmd
}

// newBenchRank is the verb that a rank runs.
func newBenchRank() *cobra.Command {
	return &cobra.Command{
		Use: "bench-rank", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ofRank(bench.Main(cmd.Context(), cmd.OutOrStdout()))
		},
	}
}

func operations() string {
	var names []string
	for _, o := range bench.Ops() {
		names = append(names, o.String())
	}
	return strings.Join(names, ", ")
}

// Flags of one of the two ways to measure, which the other would pass over.
var (
	compareFlags = []string{"sizes", "namespaces", "rails", "rate", "rounds", "batch", "best", "out-of-place", "spread", "hogs", "quota",
		"canonical"}
	aloneFlags = []string{"minbytes", "maxbytes", "stepbytes", "stepfactor", "iters", "warmup_iters", "new-sizes", "batches", "datatype",
		"op", "root",
		"check", "algo", "program", "unproven", "plain", "registered", "device", "require", "floor", "explain", "hosts", "rsh", "master-addr",
		"lab", "tls", "checksum", "outage"}
)

// notPredict are flags that --predict would pass over.
var notPredict = []string{"new-sizes", "device", "lab", "tls", "checksum", "outage", "cpu", "require", "floor", "explain"}

// without is a list without some of it.
func without(list []string, some ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(some, s) })
}

// unused says so if one of some flags is given.
func unused(cmd *cobra.Command, why string, names []string) error {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s %s; see 'weft bench --help'", name, why)
		}
	}
	return nil
}

// self is the command that starts one of our ranks.
func self() ([]string, error) {
	path, err := os.Executable()
	return []string{path, "bench-rank"}, err
}

// run measures one operation.
func (f *benchFlags) run(cmd *cobra.Command, args []string) error {
	for i := range args {
		if err := f.links.apart(args[i:][:1]); err != nil {
			return err
		}
	}
	if len(args) > 1 {
		return fmt.Errorf("%d operations; want one, or --compare", len(args))
	}
	if f.lab.name != "" {
		if err := f.lab.place(cmd, &f.spec, f.hosts); err != nil {
			return err
		}
		if !cmd.Flags().Changed("ranks") {
			f.ranks = strconv.Itoa(len(f.spec.Hosts))
		}
	}
	if err := f.read(cmd, args); err != nil {
		return err
	}
	var err error
	if f.spec.Command, err = self(); err != nil {
		return err
	}
	if f.lab.name == "" {
		if err := places(cmd, &f.spec, f.hosts, f.rsh); err != nil {
			return err
		}
	}
	if err := f.rail.place(cmd, &f.spec); err != nil {
		return err
	}
	links, err := f.links.env()
	if err != nil {
		return err
	}
	f.spec.Env = append(f.spec.Env, links...)
	if f.explain {
		f.spec.Env = append(f.spec.Env, "WEFT_EXPLAIN=1")
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	f.spec.Signals, f.spec.Stderr, f.spec.Prefix = signals, cmd.ErrOrStderr(), true
	var verdict error
	err = output(cmd, f.output, func(w io.Writer) error {
		tell := func(bench.Event) {}
		p := bench.NewPrinter(w, f.cfg, f.cpu)
		if !f.json {
			tell = p.Event
		}
		if f.cfg.Unproven {
			fmt.Fprintf(cmd.ErrOrStderr(), "weft: %s runs without a proof: it may hang or compute something else\n", f.program)
		}
		r, err := bench.Measure(cmd.Context(), f.cfg, f.spec, tell)
		if errors.Is(err, bench.ErrWrong) || errors.Is(err, bench.ErrSlow) || errors.Is(err, bench.ErrUnproven) {
			verdict, err = finding{err}, nil
		}
		if err != nil {
			return scarce(err)
		}
		if f.json {
			return printJSON(w, r)
		}
		if r != nil {
			p.Foot(r)
		}
		return nil
	})
	return errors.Join(err, verdict)
}

// refuseIgnored refuses flags that the operation takes no notice of.
func (f *benchFlags) refuseIgnored(cmd *cobra.Command) error {
	op := f.cfg.Op
	for _, x := range []struct {
		flag, name, lacks string
		idle              bool
	}{
		{"-o", "op", "reduces nothing", !op.Reduces()},
		{"-r", "root", "has no root", !op.Rooted()},
		{"-b", "minbytes", "has no size", op.Collective == sched.Barrier},
		{"-e", "maxbytes", "has no size", op.Collective == sched.Barrier},
		{"-i", "stepbytes", "has no size", op.Collective == sched.Barrier},
		{"-f", "stepfactor", "has no size", op.Collective == sched.Barrier},
		{"-d", "datatype", "has no elements", op.Collective == sched.Barrier},
		{"--plain", "plain", "has no buffers", op.Collective == sched.Barrier},
		{"--registered", "registered", "has no buffers", op.Collective == sched.Barrier},
		{"--floor", "floor", "has no bandwidth", op.Collective == sched.Barrier},
	} {
		if v := cmd.Flags().Lookup(x.name); v.Changed && x.idle {
			return fmt.Errorf("%s %s: %s %s; leave it out", x.flag, v.Value, op, x.lacks)
		}
	}
	return nil
}

// read fills in the Config from the flags.
func (f *benchFlags) read(cmd *cobra.Command, args []string) (err error) {
	if len(args) == 1 {
		if f.cfg.Op, err = bench.ParseOp(args[0]); err != nil {
			return err
		}
	}
	if err := f.refuseIgnored(cmd); err != nil {
		return err
	}
	for _, x := range []struct {
		flag, text string
		to         *int64
	}{{"-b", f.min, &f.cfg.MinBytes}, {"-e", f.max, &f.cfg.MaxBytes}, {"-i", f.step, &f.cfg.StepBytes}} {
		if x.text == "" {
			continue
		}
		if *x.to, err = bench.ParseSize(x.text); err != nil {
			return fmt.Errorf("%s: %w", x.flag, err)
		}
	}
	if f.step != "" && f.cfg.StepBytes == 0 {
		return fmt.Errorf("-i %s: the next row would have the same size; want bytes above 0, or -f", f.step)
	}
	if f.cfg.Ranks, err = strconv.Atoi(f.ranks); err != nil {
		return fmt.Errorf("-n %q: want a number of ranks; lists are for --compare", f.ranks)
	}
	if f.cfg.Reduce, err = reduce.ParseOp(f.redop); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	if f.cfg.Type, err = reduce.ParseType(f.dtype); err != nil {
		return fmt.Errorf("-d: %w", err)
	}
	if f.floor != "" {
		if f.cfg.Floor, err = unit.ParseRate(f.floor); err != nil {
			return fmt.Errorf("--floor: %w", err)
		}
	}
	if f.plain || !f.registered {
		f.cfg.Buffers = bench.Plain
	}
	if f.program != "" {
		p, err := loadProgram(cmd, f.program, fmt.Errorf("no file %s", f.program))
		if err != nil {
			return fmt.Errorf("--program %w", err)
		}
		f.cfg.Program = p.String()
	}
	return f.cfg.Complete()
}
