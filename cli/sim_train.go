package cli

import (
	"fmt"

	"github.com/spf13/cobra"
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
	var slow map[string]string
	var seed uint64
	cmd := &cobra.Command{
		Use:   "train MODEL --cluster CLUSTER --layout LAYOUT",
		Short: "Simulate one training step with contention on the fabric",
		Long: `Price a layout as 'weft plan' does, then run the gradient rings of all its data parallel groups at once on the
cluster's links: with dead parts (--fail) and slow ones (--slow), ECMP or adaptive routing, and several equal jobs
on one fabric (--jobs), side by side or dealt out host by host (--mixed). It says how long the reduction takes, what
of it backward still hides, and the step.`,
		Example: `  weft sim train llama3-70b --cluster rail --set hosts=16 --layout tp=8,dp=16,micro=1,batch=32,seq=4096
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=8,micro=1,batch=8,seq=4096 --slow n3:nic2=0.5
  weft sim train llama3-8b --cluster rail --set hosts=8 --layout tp=8,dp=4,micro=1,batch=4,seq=4096 --jobs 2 --mixed --routing ecmp`,
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
			o := sim.Options{Catalog: c.Catalog, Measured: true, Costs: sim.DefaultCosts(c.Graph, c.Catalog), Fail: fail, Seed: seed}
			switch routing {
			case "adaptive":
			case "ecmp":
				o.Routing = sim.ECMP
			default:
				return fmt.Errorf("--routing %q: want adaptive or ecmp", routing)
			}
			for name, v := range slow {
				var x float64
				if _, err := fmt.Sscanf(v, "%g", &x); err != nil || x <= 0 || x > 1 {
					return fmt.Errorf("--slow %s=%s: want a fraction of its rate above 0, up to 1", name, v)
				}
				o.Slow = append(o.Slow, sim.Slow{Name: name, Factor: x})
			}
			r, err := train.Step(c.Graph, plan.Question{Model: m, Machine: mc, Framework: f, Layout: l}, jobs, mixed, mc.HostGPUs, o)
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
			for i, t := range r.Jobs {
				if jobs > 1 {
					fmt.Fprintf(w, "job %d      %.4g s\n", i+1, t)
				}
			}
			fmt.Fprintf(w, "step       %.4g s; planned without contention %.4g s\n", r.Step, r.Planned)
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
	fl.StringToStringVar(&slow, "slow", nil, "a part at a fraction of its rate, `PART=FACTOR`")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	return cmd
}
