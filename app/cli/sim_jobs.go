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

// job makes what is asked for ready: the program and where it stands. What was found says how the program was chosen.
func (j jobFlags) job(cmd *cobra.Command, c *cluster.Cluster, gpus int, wish sim.Wish, unproven bool,
	o sim.Options) (out sim.Job, found *sim.Found, err error) {
	sizes, err := parseSizes(j.size)
	if err != nil {
		return out, nil, err
	}
	if len(sizes) > 1 {
		return out, nil, fmt.Errorf("size %s: jobs and programs have one size", j.size)
	}
	out.Size = sizes[0]
	if out.Start, err = unit.ParseTime(j.start); err != nil || out.Start < 0 {
		return out, nil, fmt.Errorf("start %q: want a time from 0 on, like 100us", j.start)
	}
	set := c.Graph.First(topo.GPU, gpus)
	if j.place != "" {
		if set, err = parseGPUs(c.Graph, j.place); err != nil {
			return out, nil, fmt.Errorf("place %s: %w", j.place, err)
		}
	}
	if j.program != "" {
		if found, err = j.written(cmd, unproven); err == nil && j.place == "" {
			if len(set) < found.Program.Ranks {
				return out, nil, fmt.Errorf("%s is for %d ranks; %s has %d GPUs", j.program, found.Program.Ranks, c.Name, len(set))
			}
			set = set[:found.Program.Ranks]
		}
	} else {
		found, err = j.chosen(c, set, out.Size, wish, o)
	}
	if err != nil {
		return out, nil, err
	}
	out.Program = found.Program
	out.Place, err = sim.PlaceOn(c.Graph, out.Program, set)
	return out, found, err
}

// written is a program in a file, which is proven first.
func (j jobFlags) written(cmd *cobra.Command, unproven bool) (*sim.Found, error) {
	p, err := loadProgram(cmd, j.program, fmt.Errorf("no file %s", j.program))
	if err != nil {
		return nil, err
	}
	if !unproven {
		if _, err := verify.Program(p); err != nil {
			return nil, finding{fmt.Errorf("%s is not proven: %w; --unproven simulates it nevertheless", j.program, err)}
		}
	}
	return &sim.Found{Algo: p.Name, Program: p}, nil
}

// chosen is the program of the algorithm that is asked for, or of the fastest.
func (j jobFlags) chosen(c *cluster.Cluster, set []topo.NodeID, size unit.Bytes, wish sim.Wish, o sim.Options) (*sim.Found, error) {
	op, err := sched.ParseCollective(j.op)
	if err != nil {
		return nil, fmt.Errorf("op: %w", err)
	}
	if j.algo == "auto" {
		if j.place != "" {
			wish.On = set
		}
		return sim.Best(c.Graph, op, len(set), size, o, wish)
	}
	a, outer, err := sim.Named(j.algo)
	if err != nil {
		return nil, err
	}
	wish.Outer = outer
	found := &sim.Found{Algo: j.algo}
	if j.place == "" {
		found.Program, err = wish.Program(a, c.Graph, op, len(set), size, o.Catalog)
	} else {
		found.Program, err = wish.PlacedOn(a, c.Graph, op, set, size, o.Catalog)
	}
	return found, err
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
	var founds []*sim.Found
	for i, a := range asked {
		j, found, err := a.job(cmd, c, gpus, wish, f.unproven, plain)
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
		jobs, founds = append(jobs, j), append(founds, found)
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
		rows[i].simRow = simRow{Op: p.Op.String(), Bytes: int64(jobs[i].Size), GPUs: p.Ranks, Algo: founds[i].Algo, Proto: "simple",
			Channels: p.Channels(), Seed: f.seed, Paused: res.Paused, Digest: p.Digest(), Every: res.Every,
			Time: (r.End - r.Start).Microseconds(), AlgBW: float64(r.AlgBW) / 1e9, BusBW: float64(r.BusBW) / 1e9}
		rows[i].tell(founds[i], len(jobs) == 1)
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
	if len(rows) == 1 {
		printTried(out, rows[0].simRow)
	}
	plainRows := make([]simRow, len(rows))
	for i, r := range rows {
		plainRows[i] = r.simRow
	}
	printNeeds(out, plainRows)
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
		fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%d\t%s\t%s%s\t%s\t%.2f GB/s\t%s\n",
			i+1, r.Op, unit.Bytes(r.Bytes), r.GPUs, r.Algo, r.Channels, us(r.Start), r.about(), us(r.Time), us(r.Alone), r.BusBW, r.Limit)
	}
	return t.Flush()
}
