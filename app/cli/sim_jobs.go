package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

// jobFlags is one job that 'sim collective' is asked to run beside others.
type jobFlags struct{ op, size, algo, program, place, start string }

// jobRow is one job's answer; its keys are stable.
type jobRow struct {
	simRow
	Start float64 `json:"start_us"`
	Alone float64 `json:"alone_us"` // the time it takes without the others
}

// parseJob reads 'op=all-to-all size=64MiB algo=pairwise place=n[0-3]:gpu[0-7] start=1ms'.
func parseJob(s string) (jobFlags, error) {
	j := jobFlags{op: "all-reduce", size: "1GiB", algo: "auto", start: "0us"}
	keys := map[string]*string{"op": &j.op, "size": &j.size, "algo": &j.algo, "program": &j.program, "place": &j.place, "start": &j.start}
	given := map[string]bool{}
	for _, word := range strings.Fields(s) {
		key, value, ok := strings.Cut(word, "=")
		at := keys[key]
		if !ok || at == nil || given[key] {
			return j, fmt.Errorf("--job %q: %q; want each of op=, size=, algo=, program=, place=, start= at most once", s, word)
		}
		*at, given[key] = value, true
	}
	if given["program"] && (given["algo"] || given["op"]) {
		return j, fmt.Errorf("--job %q: a program says itself what it does; leave algo= and op= out", s)
	}
	return j, nil
}

// job makes what is asked for ready: the program and where it stands.
func (j jobFlags) job(cmd *cobra.Command, c *cluster.Cluster, gpus int, wish sim.Wish, unproven bool, o sim.Options) (sim.Job, error) {
	var out sim.Job
	sizes, err := parseSizes(j.size)
	if err != nil {
		return out, err
	}
	if len(sizes) > 1 {
		return out, fmt.Errorf("size %s: jobs and programs have one size", j.size)
	}
	out.Size = sizes[0]
	if out.Start, err = unit.ParseTime(j.start); err != nil || out.Start < 0 {
		return out, fmt.Errorf("start %q: want a time from 0 on, like 100us", j.start)
	}
	var set []topo.NodeID
	if j.place != "" {
		if set, err = parseGPUs(c.Graph, j.place); err != nil {
			return out, fmt.Errorf("place %s: %w", j.place, err)
		}
	} else {
		set = c.Graph.First(topo.GPU, gpus)
	}
	switch {
	case j.program != "":
		if out.Program, err = loadProgram(cmd, j.program, fmt.Errorf("no file %s", j.program)); err != nil {
			return out, err
		}
		if !unproven {
			if _, err := verify.Program(out.Program); err != nil {
				return out, finding{fmt.Errorf("%s is not proven: %w; --unproven simulates it nevertheless", j.program, err)}
			}
		}
		if j.place == "" {
			if len(set) < out.Program.Ranks {
				return out, fmt.Errorf("%s is for %d ranks; %s has %d GPUs", j.program, out.Program.Ranks, c.Name, len(set))
			}
			set = set[:out.Program.Ranks]
		}
	default:
		op, err := sched.ParseCollective(j.op)
		if err != nil {
			return out, fmt.Errorf("op: %w", err)
		}
		switch {
		case j.algo == "auto":
			if j.place != "" {
				wish.On = set
			}
			best, err := sim.Best(c.Graph, op, len(set), out.Size, o, wish)
			if err != nil {
				return out, err
			}
			out.Program = best.Program
		default:
			a, outer, err := sim.Named(j.algo)
			if err != nil {
				return out, err
			}
			wish.Outer = outer
			if j.place == "" {
				out.Program, err = wish.Program(a, c.Graph, op, len(set), out.Size, o.Catalog)
			} else {
				out.Program, err = wish.PlacedOn(a, c.Graph, op, set, out.Size, o.Catalog)
			}
			if err != nil {
				return out, err
			}
		}
	}
	out.Place, err = sim.PlaceOn(c.Graph, out.Program, set)
	return out, err
}

func repeated(set []topo.NodeID) topo.NodeID {
	seen := map[topo.NodeID]bool{}
	for _, n := range set {
		if seen[n] {
			return n
		}
		seen[n] = true
	}
	return topo.None
}

// runJobs simulates programs of the user's own, on GPUs of their own, side by side.
func (f *simFlags) runJobs(cmd *cobra.Command, c *cluster.Cluster, gpus int, o sim.Options, write traceFunc) error {
	asked, err := f.askedJobs(cmd)
	if err != nil {
		return err
	}
	wish := sim.Wish{Channels: f.channels, Pieces: f.pieces, NoSwitches: f.noSwitches}
	plain := o
	plain.Trace, plain.Progress = 0, nil
	var jobs []sim.Job
	var rows []jobRow
	for i, a := range asked {
		j, err := a.job(cmd, c, gpus, wish, f.unproven, plain)
		if err == nil && len(asked) > 1 {
			one := j
			one.Start = 0
			var alone *sim.Result
			if alone, err = sim.Run(c.Graph, []sim.Job{one}, plain); err == nil {
				rows = append(rows, jobRow{Alone: alone.Time.Microseconds()})
			}
		}
		if err != nil {
			if len(f.jobs) > 0 {
				return fmt.Errorf("--job %q: %w", f.jobs[i], err)
			}
			return err
		}
		jobs = append(jobs, j)
	}
	res, err := sim.Run(c.Graph, jobs, o)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		rows = []jobRow{{Alone: res.Time.Microseconds()}}
	}
	for i, r := range res.Jobs {
		p := jobs[i].Program
		rows[i].Start = r.Start.Microseconds()
		rows[i].simRow = simRow{Op: p.Op.String(), Bytes: int64(jobs[i].Size), GPUs: p.Ranks, Algo: p.Name, Proto: "simple",
			Channels: p.Channels(), Seed: f.seed, Paused: res.Paused, Digest: p.Digest(),
			Time: (r.End - r.Start).Microseconds(), AlgBW: float64(r.AlgBW) / 1e9, BusBW: float64(r.BusBW) / 1e9}
		if r.End == slices.MaxFunc(res.Jobs, func(a, b sim.JobResult) int { return int(a.End - b.End) }).End {
			rows[i].Limit = res.Limit
		}
	}
	if write != nil {
		name := func(job, rank int) string {
			place := jobs[job].Place
			return c.Graph.NodeName(place[min(rank, len(place)-1)])
		}
		title := fmt.Sprintf("%s on %s: %s", count(len(jobs), "job"), c.Name, res.Time)
		if err := output(cmd, f.out, func(w io.Writer) error { return write(res.Trace, w, title, name) }); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	if f.asJSON {
		return printJSON(out, rows)
	}
	if err := printJobs(out, rows); err != nil {
		return err
	}
	fmt.Fprintln(out)
	printTiers(out, res)
	return nil
}

// askedJobs are those of --job, or the one that --program and --place describe.
func (f *simFlags) askedJobs(cmd *cobra.Command) (asked []jobFlags, err error) {
	both := []string{"cluster", "host", "su", "set", "json", "gpus", "fail", "slow", "pxn", "routing", "congestion", "seed",
		"transport", "wire", "no-fold", "output", "unproven", "memory", "limit"}
	switch {
	case len(f.jobs) > 0:
		err = honours(cmd, "--job", "say it in the job: op=, size=, algo=, program=, place=, start=",
			append(both, "job", "channels", "pieces", "no-switches")...)
	case f.program != "":
		err = honours(cmd, "--program", "the program says it itself", append(both, "program", "place", "size")...)
	default:
		err = honours(cmd, "--place", "leave it out", append(both, "op", "algo", "place", "size", "channels", "pieces", "no-switches")...)
	}
	if err != nil {
		return nil, err
	}
	if len(f.jobs) == 0 {
		return []jobFlags{{op: f.op, size: f.size, algo: f.algo, program: f.program, place: f.place, start: "0us"}}, nil
	}
	for _, s := range f.jobs {
		j, err := parseJob(s)
		if err != nil {
			return nil, err
		}
		asked = append(asked, j)
	}
	return asked, nil
}

func printJobs(out io.Writer, rows []jobRow) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "job\toperation\tsize\tGPUs\tprogram\tchannels\tstart\ttime\talone\tbusbw\tlimit")
	us := func(v float64) unit.Time { return unit.Time(v * 1e6) }
	for i, r := range rows {
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%.2f GB/s\t%s\n",
			i+1, r.Op, unit.Bytes(r.Bytes), r.GPUs, r.Algo, r.Channels, us(r.Start), us(r.Time), us(r.Alone), r.BusBW, r.Limit)
	}
	return t.Flush()
}
