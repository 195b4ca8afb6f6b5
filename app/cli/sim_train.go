package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim"
	"github.com/weft-fabric/weft/predict/sim/train"
)

func newSimTrain() *cobra.Command {
	var p presetFlags
	var on, text, framework, routing string
	var jobs int
	var others []string
	var mixed, asJSON bool
	var fail []string
	var slow []string
	var traces string
	var seed uint64
	cmd := &cobra.Command{
		Use:   "train MODEL --cluster CLUSTER --layout LAYOUT",
		Short: "Simulate one training step with contention on the fabric",
		Long: `Price a layout as 'weft plan' does, then run each kind of inter-host transfer on the cluster's links, all groups of a
kind at once: gradients, ZeRO 3 gathers, expert all-to-alls, context rings, sends between stages. Parts may be dead
(--fail) or slow (--slow), routing ECMP or adaptive, and several jobs may share the fabric: equal ones (--jobs) or
others (--job 'MODEL LAYOUT'), side by side or host by host (--mixed). The answer compares each transfer with the plan
and gives the resulting step time. --traces DIR writes the step as Chakra execution traces for 'weft sim trace' and
ASTRA-sim.`,
		Example: `  weft sim train llama3-70b --cluster rail --set hosts=16 --layout tp=8,dp=16,micro=1,batch=32,seq=4096
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=8,micro=1,batch=8,seq=4096 --slow n3:nic2=0.5
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=4,micro=1,batch=4,seq=4096 --jobs 2 --mixed --routing ecmp
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=4,micro=1,batch=4,seq=4096 --job 'mixtral-8x7b tp=2,ep=8,dp=16,micro=1,batch=32,seq=4096'
  weft sim train llama3-8b --cluster rail --set hosts=4 --layout tp=8,pp=2,dp=2,micro=1,batch=16,seq=4096 --traces /tmp/step`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := loadModel(cmd, args[0])
			if err != nil {
				return err
			}
			f, err := plan.ParseFramework(framework)
			if err != nil {
				return fmt.Errorf("--framework: %w", err)
			}
			if text == "" {
				return fmt.Errorf("which layout? say --layout tp=8,dp=8,micro=1,batch=64,seq=4096; 'weft plan' finds one")
			}
			l, err := plan.ParseLayout(text, f, 0)
			if err != nil {
				return fmt.Errorf("--layout: %w", err)
			}
			qs := []plan.Question{{Model: m, Framework: f, Layout: l}}
			for range jobs - 1 {
				qs = append(qs, qs[0])
			}
			for _, text := range others {
				q, err := parseTrainJob(cmd, text, f)
				if err != nil {
					return fmt.Errorf("--job %q: %w", text, err)
				}
				qs = append(qs, q)
			}
			if jobs < 1 || jobs > 1024 {
				return fmt.Errorf("--jobs %d: want 1 to 1024", jobs)
			}
			if traces != "" && len(qs) > 1 {
				return fmt.Errorf("--traces writes the step of one job; leave --jobs and --job out")
			}
			total := 0
			for _, q := range qs {
				total += q.Layout.GPUs()
			}
			c, note, err := planCluster(cmd, on, p, total)
			if err != nil {
				return err
			}
			o, err := fabricOptions(c, routing, seed, fail, slow)
			if err != nil {
				return err
			}
			all, err := trainJobs(c, qs, mixed)
			if err != nil {
				return err
			}
			if traces != "" {
				return writeTraces(cmd, all[0].Question, traces)
			}
			r, err := train.Steps(c.Graph, all, o)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			printTrain(cmd.OutOrStdout(), r, c.Name, note)
			if !r.Cost.Fits {
				return finding{fmt.Errorf("%s does not fit: a GPU needs %.1f GB more than it has; 'weft plan %s' says what does",
					l, r.Cost.Over/1e9, args[0])}
			}
			return nil
		},
	}
	p.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&on, "cluster", "", "`CLUSTER`: file, preset, or a kind of host")
	fl.StringVar(&text, "layout", "", "`LAYOUT` as 'weft plan' takes it")
	fl.StringVar(&framework, "framework", "megatron", "whose habits: megatron, fsdp, deepspeed")
	fl.IntVar(&jobs, "jobs", 1, "equal `JOBS` on one fabric")
	fl.StringArrayVar(&others, "job", nil, "another job on the same fabric, `'MODEL LAYOUT'`; repeatable")
	fl.BoolVar(&mixed, "mixed", false, "deal jobs out host by host rather than one after the other")
	fl.StringVar(&routing, "routing", "adaptive", "adaptive or ecmp")
	fl.Uint64Var(&seed, "seed", 1, "`SEED` that ECMP hashes with")
	fl.StringArrayVar(&fail, "fail", nil, "a dead `PART`: switch, HOST:NIC, HOST, SWITCH:pPORT or a link; repeatable")
	fl.StringArrayVar(&slow, "slow", nil, "`PART=FACTOR`: a part at a fraction of its rate; repeatable")
	fl.StringVar(&traces, "traces", "", "write the step as Chakra execution traces into `DIR`, one file per rank, and simulate nothing")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	return cmd
}

// parseTrainJob reads 'MODEL LAYOUT'.
func parseTrainJob(cmd *cobra.Command, text string, f plan.Framework) (plan.Question, error) {
	words := strings.Fields(text)
	if len(words) != 2 {
		return plan.Question{}, fmt.Errorf("want a model and a layout, like 'llama3-8b tp=8,dp=4,micro=1,batch=4,seq=4096'")
	}
	m, err := loadModel(cmd, words[0])
	if err != nil {
		return plan.Question{}, err
	}
	l, err := plan.ParseLayout(words[1], f, 0)
	return plan.Question{Model: m, Framework: f, Layout: l}, err
}

// trainJobs gives jobs their GPUs. Jobs with as many GPUs share a machine.
func trainJobs(c *cluster.Cluster, qs []plan.Question, mixed bool) ([]train.Job, error) {
	machines := map[int]*plan.Machine{}
	var asked []int
	for i := range qs {
		n := qs[i].Layout.GPUs()
		if machines[n] == nil {
			mc, err := plan.NewMachine(c, n)
			if err != nil {
				return nil, err
			}
			machines[n] = mc
		}
		qs[i].Machine = machines[n]
		asked = append(asked, n)
	}
	places, err := train.Deal(c.Graph, asked, mixed, qs[0].Machine.HostGPUs)
	if err != nil {
		return nil, err
	}
	var all []train.Job
	for i, q := range qs {
		all = append(all, train.Job{Question: q, Place: places[i]})
	}
	return all, nil
}

func printTrain(w io.Writer, r *train.Result, on, note string) {
	one := r.Steps[0]
	fmt.Fprintf(w, "model      %s on %d GPUs of %s, %s\n", one.Model, one.GPUs, on, count(len(r.Steps), "job"))
	if note != "" {
		fmt.Fprintln(w, "note      ", note)
	}
	fmt.Fprintf(w, "layout     %s\n", one.Layout)
	if r.Reduce > 0 {
		fmt.Fprintf(w, "gradients  %d groups of %d ranks at once: %.4g s; by the plan %.4g s; one group alone %.4g s\n",
			r.Groups, r.Ranks, r.Reduce, r.Modelled, r.Alone)
		fmt.Fprintf(w, "           the last backward hides %.4g s\n", r.Hidden)
	}
	if len(r.Transfers) > 0 {
		fmt.Fprintf(w, "\n%-5s  %-17s  %-14s  %6s  %6s  %10s  %11s  %s\n",
			"job", "transfer", "operation", "ranks", "groups", "bytes", "x planned", "limit")
		for _, t := range r.Transfers {
			fmt.Fprintf(w, "%-5d  %-17s  %-14s  %6d  %6d  %10s  %11.3f  %s\n", t.Job, t.Kind, t.Op, t.Ranks, t.Groups, unit.Bytes(t.Bytes),
				t.Times, t.Limit)
		}
		fmt.Fprintln(w)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, "note      ", n)
	}
	if r.Shortened {
		fmt.Fprintln(w, "note       rings around the bad part were simulated at three shorter lengths; their times lie on a straight line")
	}
	if len(r.Steps) > 1 {
		for i, j := range r.Steps {
			fmt.Fprintf(w, "job %-5d  %s on %d GPUs: %.4g s per step; planned alone %.4g s\n", i+1, j.Model, j.GPUs, j.Step, j.Planned)
		}
	}
	fmt.Fprintf(w, "step       %.4g s; planned without contention %.4g s\n", r.Step, r.Planned)
}

// fabricOptions is how a training step or its traces run on a cluster's fabric.
func fabricOptions(c *cluster.Cluster, routing string, seed uint64, fail, slow []string) (sim.Options, error) {
	o := sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog), Fail: fail, Seed: seed}
	switch routing {
	case "adaptive":
	case "ecmp":
		o.Routing = sim.ECMP
	default:
		return o, fmt.Errorf("--routing %q: want adaptive or ecmp", routing)
	}
	var err error
	o.Slow, err = parseSlow(slow)
	return o, err
}

// writeTraces writes a step into a folder: a trace a rank, and the groups.
func writeTraces(cmd *cobra.Command, q plan.Question, dir string) error {
	all, groups, err := train.Traces(q)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	nodes := 0
	for _, t := range all {
		nodes += len(t.Nodes)
		var b bytes.Buffer
		if err := t.Write(&b); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("step.%d.et", t.Rank)), b.Bytes(), 0o666); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(groups, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "groups.json"), append(text, '\n'), 0o666); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "wrote %s/step.0.et to step.%d.et (%s) and groups.json (%s)\n",
		dir, len(all)-1, count(nodes, "node"), count(len(groups), "group"))
	return nil
}
