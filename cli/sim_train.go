package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/cluster"
	"github.com/weft-fabric/weft/plan"
	"github.com/weft-fabric/weft/sim"
	"github.com/weft-fabric/weft/sim/train"
)

func newSimTrain() *cobra.Command {
	var p presetFlags
	var on, text, framework, routing string
	var jobs int
	var mixed, asJSON bool
	var fail []string
	var slow []string
	var traces string
	var seed uint64
	cmd := &cobra.Command{
		Use:   "train MODEL --cluster CLUSTER --layout LAYOUT",
		Short: "Simulate one training step with contention on the fabric",
		Long: `Price a layout as 'weft plan' does, then run the gradient rings of all its data parallel groups at once on the
cluster's links: with dead parts (--fail) and slow ones (--slow), ECMP or adaptive routing, and several equal jobs
on one fabric (--jobs), side by side or dealt out host by host (--mixed). It says how long the reduction takes, what
of it backward still hides, and the step. --traces DIR writes the step as Chakra execution traces instead, which
'weft sim trace' and ASTRA-sim run.`,
		Example: `  weft sim train llama3-70b --cluster rail --set hosts=16 --layout tp=8,dp=16,micro=1,batch=32,seq=4096
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=8,micro=1,batch=8,seq=4096 --slow n3:nic2=0.5
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=4,micro=1,batch=4,seq=4096 --jobs 2 --mixed --routing ecmp
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
			c, note, err := planCluster(cmd, on, p, l.GPUs()*max(jobs, 1))
			if err != nil {
				return err
			}
			mc, err := plan.NewMachine(c, l.GPUs())
			if err != nil {
				return err
			}
			o, err := fabricOptions(c, routing, seed, fail, slow)
			if err != nil {
				return err
			}
			q := plan.Question{Model: m, Machine: mc, Framework: f, Layout: l}
			if traces != "" {
				return writeTraces(cmd, q, traces)
			}
			r, err := train.Step(c.Graph, q, jobs, mixed, mc.HostGPUs, o)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), r)
			}
			w := cmd.OutOrStdout()
			fmt.Fprintf(w, "model      %s on %d GPUs of %s, %s\n", m.Name, l.GPUs(), c.Name, count(jobs, "job"))
			if note != "" {
				fmt.Fprintln(w, "note      ", note)
			}
			fmt.Fprintf(w, "layout     %s\n", l)
			fmt.Fprintf(w, "gradients  %d rings of %d ranks at once: %.4g s; one of them alone %.4g s; by NCCL's model %.4g s\n", r.Groups*jobs, r.Ranks, r.Reduce, r.Alone, r.Modelled)
			fmt.Fprintf(w, "           the last backward hides %.4g s; limit: %s\n", r.Hidden, r.Limit)
			if r.Shortened {
				fmt.Fprintln(w, "           rings around the bad part were simulated at three shorter lengths; their times lie on a straight line")
			}
			for i, t := range r.Jobs {
				if jobs > 1 {
					fmt.Fprintf(w, "job %d      %.4g s\n", i+1, t)
				}
			}
			fmt.Fprintf(w, "step       %.4g s; planned without contention %.4g s\n", r.Step, r.Planned)
			if !r.Cost.Fits {
				return finding{fmt.Errorf("%s does not fit: a GPU needs %.1f GB more than it has; 'weft plan %s' says what does", l, r.Cost.Over/1e9, args[0])}
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
	fl.BoolVar(&mixed, "mixed", false, "deal jobs out host by host rather than one after the other")
	fl.StringVar(&routing, "routing", "adaptive", "adaptive or ecmp")
	fl.Uint64Var(&seed, "seed", 1, "`SEED` that ECMP hashes with")
	fl.StringArrayVar(&fail, "fail", nil, "a dead `PART`: switch, HOST:NIC, HOST, SWITCH:pPORT or a link; repeatable")
	fl.StringArrayVar(&slow, "slow", nil, "`PART=FACTOR`: a part at a fraction of its rate; repeatable")
	fl.StringVar(&traces, "traces", "", "write the step as Chakra execution traces into `DIR`, one file a rank, and simulate nothing")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	return cmd
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
	fmt.Fprintf(cmd.OutOrStdout(), "wrote %s/step.0.et to step.%d.et (%s) and groups.json (%s)\n", dir, len(all)-1, count(nodes, "node"), count(len(groups), "group"))
	return nil
}
