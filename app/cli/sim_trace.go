package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim/chakra"
)

func allNodes(traces []*chakra.Trace) (n int) {
	for _, t := range traces {
		n += len(t.Nodes)
	}
	return n
}

// printTraced prints the time of a step, the ranks with the most exposed communication, and the transfers that took longest.
func printTraced(w io.Writer, r *chakra.Result) {
	fmt.Fprintf(w, "time     %.6g s\n", r.Time)
	byExposed := slices.SortedFunc(slices.Values(r.Ranks), func(a, b chakra.RankResult) int {
		return cmp.Or(cmp.Compare(b.Exposed, a.Exposed), a.Rank-b.Rank)
	})
	fmt.Fprintf(w, "\n%6s  %10s  %10s  %10s  %10s  %10s\n", "rank", "end s", "compute s", "transfer s", "exposed s", "waited s")
	for i, x := range byExposed {
		if i == 8 && len(byExposed) > 9 {
			fmt.Fprintf(w, "%6s  and %d ranks with less exposed; --json has all\n", "", len(byExposed)-i)
			break
		}
		fmt.Fprintf(w, "%6d  %10.4g  %10.4g  %10.4g  %10.4g  %10.4g\n", x.Rank, x.End, x.Compute, x.Comm, x.Exposed, x.Waited)
	}
	fmt.Fprintf(w, "\n%-16s  %12s  %6s  %6s  %6s  %10s  %s\n", "transfer", "bytes", "ranks", "groups", "calls", "each s", "how")
	for i, x := range r.Calls {
		if i == 10 && len(r.Calls) > 11 {
			fmt.Fprintf(w, "and %d other kinds of transfers; --json has all\n", len(r.Calls)-i)
			break
		}
		fmt.Fprintf(w, "%-16s  %12.0f  %6d  %6d  %6d  %10.4g  %s; %s\n", x.Op, x.Bytes, x.Ranks, x.Groups, x.Calls, x.Each, x.Algo, x.Limit)
	}
}

func newSimTrace() *cobra.Command {
	var p presetFlags
	var on, groups, routing string
	var peak, memory float64
	var asJSON bool
	var fail, slow []string
	var seed uint64
	cmd := &cobra.Command{
		Use:   "trace DIR|FILE... --cluster CLUSTER",
		Short: "Run Chakra execution traces (ASTRA-sim's format) on a cluster",
		Long: `Run a job's execution traces, one file per rank (NAME.RANK.et, or Chakra's JSON as NAME.RANK.json), on a cluster's GPUs
in order. A node starts when its dependencies are done. A rank's computations run one after another, its CPU's
separately; a group's collectives run in order; messages start when both ends are ready. Collectives run on the fabric's
links with all disjoint groups of equal size at once, by the fastest of a few algorithms.

A computation takes its stated time, or operations and bytes at --peak and --memory (default: the cluster's GPU). The
answer has the end of the step, each rank's time, and the longest transfers. Groups come from groups.json or
comm_group.json next to the traces, or from --groups.`,
		Example: `  weft sim train llama3-8b --cluster rail --set hosts=4 --layout tp=8,pp=2,dp=2,micro=1,batch=16,seq=4096 --traces /tmp/step
  weft sim trace /tmp/step --cluster rail --set hosts=4
  weft sim trace /tmp/step --cluster rail --set hosts=4 --slow n1:nic0=0.25 --json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			traces, gs, err := readTraces(args, groups)
			if err != nil {
				return err
			}
			c, note, err := planCluster(cmd, on, p, len(traces))
			if err != nil {
				return fmt.Errorf("%d ranks have traces: %w", len(traces), err)
			}
			m := chakra.Machine{Graph: c.Graph, Peak: peak * 1e12, Memory: memory * 1e9}
			c.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { m.GPUs = append(m.GPUs, id) })
			if m.Options, err = fabricOptions(c, routing, seed, fail, slow); err != nil {
				return err
			}
			if mc, err := plan.NewMachine(c, min(len(traces), len(m.GPUs))); err == nil {
				if m.Peak == 0 {
					m.Peak = mc.Chip.Peak["bf16"]
				}
				if m.Memory == 0 {
					m.Memory = mc.Chip.HBM
				}
			}
			r, err := chakra.Run(traces, gs, m)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "traces   %s, %s, on %s\n", count(len(traces), "rank"), count(allNodes(traces), "node"), c.Name)
			if note != "" {
				fmt.Fprintln(w, "note    ", note)
			}
			printTraced(w, r)
			return nil
		},
	}
	p.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&on, "cluster", "", "`CLUSTER`: file, preset, or a kind of host")
	fl.StringVar(&groups, "groups", "", "`FILE` of process groups, {\"NAME\": [RANK, ...]}")
	fl.Float64Var(&peak, "peak", 0, "`TFLOPS` of a GPU for computations without a stated time")
	fl.Float64Var(&memory, "memory", 0, "`GB/s` of a GPU's memory for computations without a stated time")
	fl.StringVar(&routing, "routing", "adaptive", "adaptive or ecmp")
	fl.Uint64Var(&seed, "seed", 1, "`SEED` that ECMP hashes with")
	fl.StringArrayVar(&fail, "fail", nil, "a dead `PART`: switch, HOST:NIC, HOST, SWITCH:pPORT or a link; repeatable")
	fl.StringArrayVar(&slow, "slow", nil, "`PART=FACTOR`: a part at a fraction of its rate; repeatable")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	return cmd
}

var traceName = regexp.MustCompile(`(\d+)\.(et|chakra|json)$`)

// tracesIn lists the traces of a folder: protobuf, or JSON where there is none.
func tracesIn(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, ending := range []string{".et", ".json"} {
		var files []string
		for _, e := range entries {
			if filepath.Ext(e.Name()) == ending && traceName.MatchString(e.Name()) {
				files = append(files, filepath.Join(dir, e.Name()))
			}
		}
		if len(files) > 0 {
			return files
		}
	}
	return nil
}

// readTraces reads the traces of a job: a folder, or files whose names end in RANK.et.
func readTraces(args []string, groups string) ([]*chakra.Trace, chakra.Groups, error) {
	files := args
	if st, err := os.Stat(args[0]); err != nil {
		return nil, nil, err
	} else if st.IsDir() {
		if len(args) > 1 {
			return nil, nil, fmt.Errorf("%s is a folder: give one folder, or files", args[0])
		}
		for _, name := range []string{"groups.json", "comm_group.json"} {
			if _, err := os.Stat(filepath.Join(args[0], name)); err == nil && groups == "" {
				groups = filepath.Join(args[0], name)
			}
		}
		if files = tracesIn(args[0]); len(files) == 0 {
			return nil, nil, fmt.Errorf("%s has no file NAME.RANK.et or NAME.RANK.json", args[0])
		}
	}
	var all []*chakra.Trace
	for _, path := range files {
		m := traceName.FindStringSubmatch(path)
		if m == nil {
			return nil, nil, fmt.Errorf("%s: its name does not say the rank; want NAME.RANK.et", path)
		}
		rank, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, nil, fmt.Errorf("%s: rank %s: %w", path, m[1], err)
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		t, err := chakra.Read(f, rank)
		f.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *chakra.Trace) int { return a.Rank - b.Rank })
	for i, t := range all {
		switch {
		case i > 0 && all[i-1].Rank == t.Rank:
			return nil, nil, fmt.Errorf("two files are of rank %d", t.Rank)
		case t.Rank != i:
			return nil, nil, fmt.Errorf("there is no trace of rank %d; ranks are 0 to %d", i, len(all)-1)
		}
	}
	if groups == "" {
		return all, nil, nil
	}
	f, err := os.Open(groups)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	gs, err := chakra.ReadGroups(f)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", groups, err)
	}
	return all, gs, nil
}
