package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim/failures"
)

// trainFlags is what 'plan' is asked.
type trainFlags struct {
	p                                         presetFlags
	cluster, layout, framework, dtype, why    string
	convention, timeline, dir, release, phase string
	schedules                                 string
	like, emit, tokens                        string
	gpus, batch, seq, micro, top              int
	price, factor                             float64
	asJSON                                    bool
	cal                                       string
}

func newPlan() *cobra.Command {
	var f trainFlags
	cmd := &cobra.Command{
		Use:   "plan MODEL --cluster CLUSTER",
		Short: "Predict a training step's time and memory, and find the best layout",
		Long: `Predict what training a model costs on a cluster. With --layout it prices one layout:
seconds per step, tokens per second, MFU, memory by component, energy and money.
Otherwise it searches for the fastest layout that fits, and says why it wins and what
would make it faster.

MODEL is a catalogue name (llama3-70b, deepseek-v3, ...), a Hugging Face config.json or
its folder, a YAML file (docs/reference/plan.md), or a size such as 13B for a GPT of
that size.
With --like FILE the layout comes from a configuration of DeepSpeed, Megatron,
torchtitan, Accelerate or gpt-neox; flags supply what the file lacks.

A step is a sum of kernels, transfers and waiting, times one factor per framework, GPU
and data type, fitted to measured steps. 'nearest' names the most similar measured step
and the model's error there.`,
		Example: `  weft plan llama3-70b --cluster superpod-h100 --gpus 64 --batch 128 --seq 8192
  weft plan gpt3-175b --cluster rail --gpus 1024 --layout tp=8,pp=8,dp=16,micro=1,batch=1024,seq=2048,zero=1
  weft plan llama3-8b --cluster dgx-h100 --batch 128 --seq 8192 --framework fsdp --why step
  weft plan deepseek-v3 --cluster gb200-su --gpus 256 --batch 4096 --seq 4096 --dtype mxfp8 --tokens 14.8T
  weft plan llama3-8b --cluster dgx-h100 --batch 64 --seq 8192 --emit megatron`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return work.Names(), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.p.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.cluster, "cluster", "", "`CLUSTER`: file, preset, or a kind of host, used as often as needed")
	fl.IntVar(&f.gpus, "gpus", 0, "how many `GPUs` of it; default: all")
	fl.IntVar(&f.batch, "batch", 0, "`SEQUENCES` a step, all ranks together")
	fl.IntVar(&f.seq, "seq", 0, "`TOKENS` of a sequence")
	fl.IntVar(&f.micro, "micro", 0, "`SEQUENCES` of a micro-batch, where --like does not say")
	fl.StringVar(&f.layout, "layout", "",
		"price this `LAYOUT`: tp=8,pp=4,dp=16,cp=1,ep=1,micro=1,batch=512,seq=2048,zero=1,schedule=1f1b,recompute=full,dtype=bf16")
	fl.StringVar(&f.framework, "framework", "", "whose habits: megatron, fsdp, deepspeed")
	fl.StringVar(&f.dtype, "dtype", "", "`TYPE` of matrix products in a search: bf16, fp16, fp32, fp8, mxfp8, nvfp4")
	fl.StringVar(&f.phase, "phase", "", "pretrain, sft or lora")
	fl.StringVar(&f.schedules, "schedules", "",
		"pipeline `SCHEDULES` to search, joined by commas, or all; default: those that the framework has")
	fl.StringVar(&f.release, "release", "",
		"`RELEASE` of Megatron-Bridge or NeMo, such as 25.09: layers with experts got faster over the year")
	fl.StringVar(&f.why, "why", "", "also print the tree of terms behind `WHAT`: step or memory")
	fl.StringVar(&f.convention, "convention", "", "count FLOPs by causal, full, hardware or 6n")
	fl.StringVar(&f.tokens, "tokens", "", "also say days, energy and money for `N` tokens, such as 15T")
	fl.Float64Var(&f.price, "price", 0, "`USD` per GPU hour, instead of the catalogue's")
	fl.Float64Var(&f.factor, "factor", 0, "kernels in a running step over kernels alone, instead of the fitted `FACTOR`")
	fl.StringVar(&f.cal, "cal", "", "`FILE` that 'weft calibrate' wrote from your own steps")
	fl.IntVar(&f.top, "top", 5, "how many candidates to print")
	fl.StringVar(&f.like, "like", "", "take the layout from a configuration `FILE` of a training framework")
	fl.StringVar(&f.emit, "emit", "", "write the layout out for `FRAMEWORK`: deepspeed, megatron, torchtitan, accelerate")
	fl.StringVar(&f.timeline, "timeline", "", "draw one step to `FILE`: .svg, or .json for Perfetto")
	fl.StringVarP(&f.dir, "output", "o", "", "`DIR` for the report: HTML, SVG and JSON; or a name that ends in .html, for the page alone")
	fl.BoolVar(&f.asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	for name, values := range map[string][]string{"framework": {"megatron", "fsdp", "deepspeed"}, "why": {"step", "memory"},
		"emit":  {"deepspeed", "megatron", "torchtitan", "accelerate"},
		"dtype": {"bf16", "fp16", "fp32", "fp8", "mxfp8", "nvfp4"}, "convention": {"causal", "full", "hardware", "6n"},
		"phase": {"pretrain", "sft", "lora"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

// namedModel finds a model that is no file here. Of a bare number of parameters, nothing but the size is known.
func namedModel(arg string) (*work.Model, error) {
	if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(arg)) {
		return nil, noFile(arg)
	}
	m, err := work.Named(arg)
	if n, wrong := cluster.ParseCount(arg); err != nil && wrong == nil && n >= 1e6 && n <= 1e15 {
		return work.GPTLike(n), nil
	}
	return m, err
}

// loadModel finds what MODEL means: a file or a folder with a config.json, else a name.
func loadModel(cmd *cobra.Command, arg string) (*work.Model, error) {
	st, err := os.Stat(arg)
	switch {
	case arg != "-" && errors.Is(err, fs.ErrNotExist):
		return namedModel(arg)
	case err == nil && st.IsDir():
		arg = filepath.Join(arg, "config.json")
	}
	data, err := readInput(cmd, arg)
	if err != nil {
		return nil, err
	}
	name := base(arg)
	if name == "config" {
		name = filepath.Base(filepath.Dir(arg))
	}
	m, err := work.Read(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", arg, err)
	}
	return m, nil
}

// planCluster loads a cluster. Of a single host as many are taken as the GPUs need, joined by a rail fabric
// that does not block; the note says so.
func planCluster(cmd *cobra.Command, arg string, p presetFlags, gpus int) (*cluster.Cluster, string, error) {
	if arg == "" {
		return nil, "", fmt.Errorf("which cluster? say --cluster with a file, a preset or a kind of host; 'weft topo build --list' shows them")
	}
	c, err := loadCluster(cmd, arg, p)
	if err != nil {
		return nil, "", err
	}
	if err := stateLinks(c, ""); err != nil {
		return nil, "", err
	}
	have := c.Graph.Count(topo.GPU)
	if gpus <= have || len(c.Graph.Hosts) == 0 {
		return c, "", nil
	}
	if c.Graph.Count(topo.Switch) > 0 {
		return grow(c, arg, p, gpus)
	}
	big, note := severalHosts(c, arg, gpus)
	return big, note, nil
}

// severalHosts makes a cluster of as many hosts like the one of c as the GPUs need, on the first kind of switch in the
// catalogue that they can be joined by; c itself where there is none.
func severalHosts(c *cluster.Cluster, arg string, gpus int) (*cluster.Cluster, string) {
	h, err := c.Catalog.Host(c.Graph.Hosts[0].Model)
	if err != nil || h.GPUs == 0 || h.NIC == "" {
		return c, ""
	}
	hosts := (gpus + h.GPUs - 1) / h.GPUs
	nic, err := c.Catalog.NIC(h.NIC)
	if err != nil {
		return c, ""
	}
	text := ""
	if strings.HasPrefix(h.Name, "gb") {
		hosts = (hosts + 17) / 18 * 18
		text = "nvlink: nvl72\n"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Catalog.Switches)) {
		s := c.Catalog.Switches[name]
		if s.Link != nic.Link || s.Kind == topo.NVLink {
			continue
		}
		file := fmt.Sprintf("name: %s\nhosts:\n  \"n[0-%d]\": %s\n%sfabric:\n  family: rail\n  switch: %s\n",
			c.Name, hosts-1, h.Name, text, s.Name)
		if big, err := cluster.Parse(c.Name, []byte(file), nil); err == nil {
			return big, fmt.Sprintf("%s is one host: %d of them are taken, joined by a rail fabric of %s that does not block",
				arg, hosts, s.Name)
		}
	}
	return c, ""
}

// grow builds a preset with the smallest first parameter that gives it enough GPUs. A parameter that the user has set stays; then,
// and where no value is large enough, there is an error.
func grow(c *cluster.Cluster, arg string, p presetFlags, gpus int) (*cluster.Cluster, string, error) {
	have := c.Graph.Count(topo.GPU)
	short := fmt.Sprintf("%d GPUs are asked for; %s has %d", gpus, c.Name, have)
	presets := cluster.Presets()
	for len(presets) > 0 && (presets[0].Name != arg || len(presets[0].Params) == 0) {
		presets = presets[1:]
	}
	params, _ := p.params() // the preset was built with them
	if len(presets) == 0 {
		return nil, "", errors.New(short)
	}
	size := presets[0].Params[0]
	if n, set := params[size.Name]; set {
		return nil, "", fmt.Errorf("%s; make it larger with --set %s=N (it is %d)", short, size.Name, n)
	}
	least := max(size.Default*min(gpus, mostGrown)/have, size.Default)
	for n := least; n <= least+2 && gpus <= mostGrown; n++ {
		params[size.Name] = n
		big, err := cluster.Preset(arg, params)
		if err != nil {
			continue // some sizes have no fabric
		}
		if got := big.Graph.Count(topo.GPU); got >= gpus {
			return big, fmt.Sprintf("%s has %d GPUs with %s=%d; %s=%d gives it %d", arg, have, size.Name, size.Default, size.Name, n, got),
				stateLinks(big, "")
		}
	}
	return nil, "", fmt.Errorf("%s, and no %s near %d gives it that many; choose a larger preset or write a cluster file",
		short, size.Name, least)
}

// mostGrown is how many GPUs a preset grows to by itself.
const mostGrown = 1 << 20

// answer is what --json prints: the cost of the best or asked layout, and what a search found besides.
type answer struct {
	Model   string  `json:"model"`
	Params  float64 `json:"params"`
	Active  float64 `json:"active_params"`
	MTP     float64 `json:"mtp_params,omitempty"` // of layers that predict further tokens, beside the others
	Cluster string  `json:"cluster"`
	GPU     string  `json:"gpu"`
	*plan.Cost
	Days       float64       `json:"days,omitempty"`
	RealDays   float64       `json:"days_with_failures,omitempty"`
	USD        float64       `json:"usd,omitempty"`
	MWh        float64       `json:"mwh,omitempty"`
	Tokens     float64       `json:"tokens,omitempty"`
	Candidates []row         `json:"candidates,omitempty"`
	Front      []row         `json:"pareto,omitempty"`
	Search     *looked       `json:"search,omitempty"`
	Beside     []string      `json:"runner_up_loses_by,omitempty"`
	Changes    []plan.Change `json:"changes,omitempty"`
	Findings   []string      `json:"findings,omitempty"`
}

type row struct {
	Layout string  `json:"layout"`
	Step   float64 `json:"step_s"`
	MFU    float64 `json:"mfu"`
	Peak   float64 `json:"memory_peak_bytes"`
	USD    float64 `json:"usd_per_step"`
}

type looked struct {
	Looked  int `json:"layouts"`
	TooBig  int `json:"too_big"`
	Bounded int `json:"bounded"`
	Priced  int `json:"priced"`
}

func rowsOf(costs []*plan.Cost) []row {
	var out []row
	for _, c := range costs {
		out = append(out, row{c.LayoutText, c.Step, c.MFU, c.Peak, c.USDPerStep})
	}
	return out
}

// run answers.
func (f *trainFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	q, a, err := f.question(cmd, args)
	if err != nil {
		return err
	}
	if f.layout != "" || f.like != "" {
		if err := q.Layout.Check(q.Model, q.Machine.GPUs); err != nil {
			return err
		}
		if a.Cost, err = plan.Price(*q); err != nil {
			return err
		}
	} else if err := f.search(cmd, q, a); err != nil {
		return err
	}
	if err := f.ownFactor(q, a); err != nil {
		return err
	}
	if err := f.finish(q, a); err != nil {
		return err
	}
	if f.emit != "" {
		return f.write(cmd, q, a)
	}
	if f.timeline != "" {
		if err := f.draw(cmd, q, a); err != nil {
			return err
		}
	}
	if f.dir != "" {
		if err := f.report(cmd, q, a); err != nil {
			return err
		}
	}
	switch {
	case f.asJSON:
		if f.why == "" {
			a.Why = nil
		}
		err = printJSON(cmd.OutOrStdout(), a)
	case f.dir == "":
		err = f.print(cmd.OutOrStdout(), q, a)
	}
	if err != nil {
		return err
	}
	if !a.Fits {
		return finding{fmt.Errorf("%s does not fit: %s over %s of a %s on stage %d%s",
			a.Model, gigabytes(a.Over), gigabytes(a.Capacity), a.GPU, a.Stage, largest(a.Memory))}
	}
	return nil
}

// largest names what takes most of a peak.
func largest(parts []plan.Term) string {
	most := plan.Term{}
	for _, x := range parts {
		if x.Value > most.Value {
			most = x
		}
	}
	if most.Value == 0 {
		return ""
	}
	return fmt.Sprintf("; the largest part is %s, %s: %s", most.Name, gigabytes(most.Value), most.Why)
}

// check refuses values of flags that mean nothing, before anything is read.
func (f *trainFlags) check(cmd *cobra.Command) error {
	if err := f.checkNumbers(cmd.Flags().Changed); err != nil {
		return err
	}
	if err := notEmpty(cmd.Flags()); err != nil {
		return err
	}
	if err := f.checkWords(); err != nil {
		return err
	}
	if f.release != "" && !releases.MatchString(f.release) {
		return fmt.Errorf("--release is %q; want a year and a month, such as 25.09", f.release)
	}
	return nil
}

// checkWords refuses unknown words; small letters and capitals mean the same.
func (f *trainFlags) checkWords() error {
	if f.why != "" && f.why != "step" && f.why != "memory" {
		return fmt.Errorf("--why %q: want step or memory", f.why)
	}
	for name, value := range map[string]*string{"dtype": &f.dtype, "phase": &f.phase} {
		*value = strings.ToLower(*value)
		if *value == "" {
			continue
		}
		if _, err := plan.ParseLayout(name+"="+*value, plan.Megatron, 0); err != nil {
			return fmt.Errorf("--%w", cmp.Or(errors.Unwrap(err), err)) // which begins with its name
		}
	}
	return nil
}

// releases are named by year and month, and some by a patch after them. They are compared as text.
var releases = regexp.MustCompile(`^2[2-9]\.(0[1-9]|1[0-2])(\.\d+)?$`)

// notEmpty refuses flags without a value, as from an unset shell variable: they would count as not given.
func notEmpty(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(x *pflag.Flag) {
		if x.Value.Type() == "string" && x.Value.String() == "" && err == nil {
			err = fmt.Errorf("--%s has no value; give one or leave the flag out", x.Name)
		}
	})
	return err
}

// checkRelease refuses a release where none changes anything.
func (f *trainFlags) checkRelease(m *work.Model, fw plan.Framework) error {
	switch {
	case f.release == "":
	case m.Experts == 0:
		return fmt.Errorf("--release %s would change nothing: releases differ in layers with experts, and %s has none; leave it out",
			f.release, m.Name)
	case fw != plan.Megatron:
		return fmt.Errorf("--release %s would change nothing: it is of Megatron-Bridge or NeMo, and --framework is %s; leave it out",
			f.release, fw)
	}
	return nil
}

// ownFactor says where a factor of the user's comes from, and refuses one with which GPUs would compute faster than they can.
func (f *trainFlags) ownFactor(q *plan.Question, a *answer) error {
	if q.Factor == 0 {
		return nil
	}
	from := "--factor"
	if f.cal != "" {
		from = f.cal
	}
	if rate := a.Rate(q.Model); rate > 1 {
		return fmt.Errorf("%s: with a factor of %g the step would run at %.1f%% of the GPUs' peak; want at least %.2f",
			from, q.Factor, 100*rate, plan.LeastPossible(*q))
	}
	a.FactorFrom = strings.Replace(a.FactorFrom, "given", "of "+from, 1)
	a.Notes = append(a.Notes, "intervals are of errors with fitted factors; how far "+from+" is off, they do not know")
	return nil
}

func (f *trainFlags) checkNumbers(given func(flag string) bool) error {
	for _, x := range []struct {
		name  string
		value float64
		most  float64
	}{{"factor", f.factor, plan.MostFactor}, {"price", f.price, 1e6}} {
		if given(x.name) && !(x.value > 0 && x.value <= x.most) {
			return fmt.Errorf("--%s is %g; it must be above 0 and at most %g", x.name, x.value, x.most)
		}
	}
	if f.top < 0 {
		return fmt.Errorf("--top is %d; it must be at least 0", f.top)
	}
	for _, x := range []struct {
		name  string
		value int
	}{{"gpus", f.gpus}, {"batch", f.batch}, {"seq", f.seq}, {"micro", f.micro}} {
		if given(x.name) && (x.value < 1 || x.value > 1<<26) {
			return fmt.Errorf("--%s is %d; it must be at least 1 and no more than %d", x.name, x.value, 1<<26)
		}
	}
	return nil
}

// question gathers model, machine and layout.
func (f *trainFlags) question(cmd *cobra.Command, args []string) (*plan.Question, *answer, error) {
	a := &answer{}
	var like *plan.Config
	var err error
	if f.like != "" {
		if like, err = f.readLike(cmd, a); err != nil {
			return nil, nil, err
		}
	}
	m, err := f.model(cmd, args, like)
	if err != nil {
		return nil, nil, err
	}
	fw := plan.Megatron
	if like != nil {
		fw = like.Framework
	}
	if f.framework == "" && f.layout == "" && f.like == "" {
		f.framework = f.emit // what is looked for is what the file can say
	}
	if f.framework != "" {
		if fw, err = plan.ParseFramework(f.framework); err != nil {
			return nil, nil, fmt.Errorf("--framework: %w", err)
		}
		if like != nil && fw != like.Framework { // how state is shared, what overlaps and the factor go together
			return nil, nil, fmt.Errorf("--framework is %s, and %s is a configuration of %s; "+
				"leave --framework out, or give the layout by --layout", fw, f.like, like.Framework)
		}
	}
	gpus := f.gpus
	if gpus < 0 {
		return nil, nil, fmt.Errorf("--gpus is %d; it must be at least 1", gpus)
	}
	var layout plan.Layout
	if f.layout != "" {
		if layout, err = f.givenLayout(fw, gpus); err != nil {
			return nil, nil, err
		}
		if gpus == 0 {
			gpus = layout.GPUs()
		}
	}
	if like != nil && gpus == 0 {
		gpus = like.GPUs
	}
	c, note, err := planCluster(cmd, f.cluster, f.p, gpus)
	if err != nil {
		return nil, nil, err
	}
	if f.price > 0 {
		c.Needs.CloudPrice = f.price
	}
	mc, err := plan.NewMachine(c, gpus)
	if err != nil {
		return nil, nil, err
	}
	if f.price > 0 {
		mc.HourFrom = "--price"
	}
	mc.Notes = append(mc.Notes, m.Notes...)
	if note != "" {
		mc.Notes = append(mc.Notes, note)
	}
	if err := f.checkRelease(m, fw); err != nil {
		return nil, nil, err
	}
	if like != nil {
		if layout, err = like.Layout(m, mc.GPUs, plan.Given{Batch: f.batch, Seq: f.seq, Micro: f.micro, Dtype: f.dtype}); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", f.like, err)
		}
		layout.Phase = cmp.Or(f.phase, layout.Phase)
		a.Findings = append(a.Findings, like.Findings...)
		for _, rule := range like.Refusals(layout.GPUs()) {
			a.Findings = append(a.Findings, "Megatron-LM (core 0.18 to 0.20) refuses this file: "+rule)
		}
	}
	if err := mc.Computes(f.dtypeOr(layout)); err != nil {
		return nil, nil, fmt.Errorf("%w; choose one by --dtype, or dtype= in a --layout", err)
	}
	main := *m // counted as makers publish it: layers that predict further tokens apart
	main.MTP = 0
	p := main.Params()
	a.MTP = m.Params().MTP
	a.Model, a.Params, a.Active, a.Cluster, a.GPU = m.Name, p.Total, p.Active, c.Name, mc.GPU.Name
	q := &plan.Question{Model: m, Machine: mc, Framework: fw, Layout: layout, Release: f.release, Factor: f.factor, Why: true}
	if f.cal != "" && f.factor == 0 {
		data, err := readInput(cmd, f.cal)
		if err != nil {
			return nil, nil, err
		}
		if q.Factor, err = plan.ReadFactor(data, fw, mc.GPU.Name, f.dtypeOr(layout)); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", f.cal, err)
		}
	}
	return q, a, nil
}

// model is the one that is named, or that of the file of --like.
func (f *trainFlags) model(cmd *cobra.Command, args []string, like *plan.Config) (*work.Model, error) {
	switch {
	case len(args) == 1:
		return loadModel(cmd, args[0])
	case like != nil && like.Model != nil:
		return like.Model, nil
	case like != nil:
		return nil, fmt.Errorf("%s names no model; give one: weft plan MODEL --like %s", f.like, f.like)
	}
	return nil, fmt.Errorf("which model? give a name such as llama3-70b, a config.json or a YAML file")
}

// givenLayout is that of --layout, with what other flags say of it.
func (f *trainFlags) givenLayout(fw plan.Framework, gpus int) (layout plan.Layout, err error) {
	if f.like != "" {
		return layout, fmt.Errorf("give --layout or --like, not both")
	}
	if layout, err = plan.ParseLayout(f.layout, fw, gpus); err != nil {
		return layout, fmt.Errorf("--layout: %w", err)
	}
	said := layout
	layout.Batch, layout.Seq = cmp.Or(f.batch, layout.Batch), cmp.Or(f.seq, layout.Seq)
	layout.Dtype, layout.Phase = cmp.Or(f.dtype, layout.Dtype), cmp.Or(f.phase, layout.Phase)
	for _, x := range []struct{ key, layout, flag string }{{"batch", fmt.Sprint(said.Batch), fmt.Sprint(layout.Batch)},
		{"seq", fmt.Sprint(said.Seq), fmt.Sprint(layout.Seq)}, {"dtype", said.Dtype, layout.Dtype}, {"phase", said.Phase, layout.Phase}} {
		if x.layout != x.flag && strings.Contains(","+f.layout, ","+x.key+"=") {
			return layout, fmt.Errorf("--%s is %s, and --layout says %s=%s; leave out one of them", x.key, x.flag, x.key, x.layout)
		}
	}
	return layout, nil
}

func (f *trainFlags) dtypeOr(l plan.Layout) string {
	switch {
	case l.Dtype != "":
		return l.Dtype
	case f.dtype != "":
		return f.dtype
	}
	return "bf16"
}

// missing names the flags that a search cannot do without: what a layout that is given would say.
func (f *trainFlags) missing(m *work.Model) (flags []string) {
	if f.batch < 1 {
		flags = append(flags, "--batch SEQUENCES")
	}
	if f.seq < 1 && m.CNN == nil {
		flags = append(flags, "--seq TOKENS")
	}
	return flags
}

// compare says what the second best layout spends its time on where the best one does not, and what would have to change
// for another one to be the best.
func (a *answer) compare(q plan.Question, candidates []*plan.Cost) {
	var layouts []plan.Layout
	for _, c := range candidates {
		layouts = append(layouts, c.Layout)
	}
	a.Changes = plan.Changes(q, layouts)
	if len(layouts) > 1 {
		q.Layout = layouts[1]
		if c, err := plan.Price(q); err == nil {
			a.Beside = plan.Beside(a.Cost, c)
		}
	}
}

// search looks for the best layout.
func (f *trainFlags) search(cmd *cobra.Command, q *plan.Question, a *answer) (err error) {
	if missing := f.missing(q.Model); len(missing) > 0 {
		return fmt.Errorf("a search needs %s; or give a whole --layout", strings.Join(missing, " and "))
	}
	w := plan.Wish{Batch: f.batch, Seq: f.seq, Dtype: f.dtype, Phase: f.phase, Release: f.release, Factor: q.Factor, Reserve: .05,
		Top: max(f.top, 2)}
	if w.Schedules, err = plan.ParseSchedules(f.schedules); err != nil {
		return fmt.Errorf("--schedules: %w", err)
	}
	if !f.asJSON && isTerminal(cmd.ErrOrStderr()) {
		w.Progress = func(priced int, best float64) {
			fmt.Fprintf(cmd.ErrOrStderr(), "\r%d layouts priced, best %.4g s ", priced, best)
		}
		defer fmt.Fprint(cmd.ErrOrStderr(), "\r")
	}
	found, err := plan.Search(q.Model, q.Machine, q.Framework, w)
	if err != nil {
		return err
	}
	a.Search = &looked{found.TooBig + found.Bounded + found.Priced, found.TooBig, found.Bounded, found.Priced}
	if found.Best == nil {
		q.Layout = found.Over.Layout
		a.Cost, err = plan.Price(*q)
		return err
	}
	a.Candidates, a.Front = rowsOf(found.Candidates[:min(len(found.Candidates), f.top)]), rowsOf(found.Front)
	q.Layout = found.Best.Layout
	if a.Cost, err = plan.Price(*q); err != nil {
		return err
	}
	a.compare(*q, found.Candidates)
	if a.Verdict == plan.VerdictUnsure {
		a.Findings = append(a.Findings, surer(*q, found.Front, a.Step)...)
	}
	return nil
}

// surer names the fastest layout of the front that fits for sure.
func surer(q plan.Question, front []*plan.Cost, step float64) []string {
	for _, c := range front {
		q.Layout, q.Why = c.Layout, false
		if c, err := plan.Price(q); err == nil && c.Verdict == plan.VerdictFits {
			return []string{fmt.Sprintf("memory is within the error of the prediction; %s takes %.4g s (%+.1f%%) and fits for sure with %s",
				c.LayoutText, c.Step, 100*(c.Step/step-1), gigabytes(c.Peak))}
		}
	}
	return nil
}

// finish adds what follows from flags.
func (f *trainFlags) finish(q *plan.Question, a *answer) error {
	a.Notes = append(append([]string{}, q.Machine.Notes...), a.Notes...)
	if f.convention != "" {
		c, err := work.ParseConvention(f.convention)
		if err != nil {
			return fmt.Errorf("--convention: %w", err)
		}
		if a.MFU > 0 {
			ratio := a.MFUs[string(c)] / a.MFU
			a.TFLOPS, a.MFU, a.Convention = a.TFLOPS*ratio, a.MFU*ratio, c
		}
	}
	if f.tokens != "" {
		n, err := cluster.ParseCount(f.tokens)
		if err != nil {
			return fmt.Errorf("--tokens: %w", err)
		}
		if n > 1e18 {
			return fmt.Errorf("--tokens is %s; it must be at most 1e18", f.tokens)
		}
		steps := n / (float64(a.Layout.Batch) * float64(max(a.Layout.Seq, 1)))
		a.Tokens, a.Days, a.USD, a.MWh = n, steps*a.Step/86400, steps*a.USDPerStep, steps*a.EnergyJ/3.6e9
		if a.RealDays, err = realDays(q, a.Days); err != nil {
			return err
		}
	}
	return nil
}

// whole writes a number without an exponent: four digits, or all before the point.
func whole(v float64) string {
	if v >= 1e3 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}

func gigabytes(b float64) string { return fmt.Sprintf("%.1f GB", b/1e9) }

// realDays is how long days of training take with failures: built-in rates, saves to a store of 100 GB/s, and as many spares as are enough.
func realDays(q *plan.Question, days float64) (float64, error) {
	gpus := q.Layout.GPUs()
	hosts := max(gpus/max(q.Machine.HostGPUs, 1), 1)
	parts := failures.Parts{Hosts: hosts, GPUs: gpus, NICs: gpus, Ports: gpus, Leaves: hosts / 32, HostsPerLeaf: 32}
	save := failures.CheckpointBytes(q.Model.Params().Total) / 100e9
	r, err := failures.Best(failures.Job{Hosts: hosts, GPUs: gpus, Hazards: failures.Hazards(parts, nil), Detect: 30, Timeout: 600,
		Localise: 300,
		Requeue:  failures.Requeue(gpus), InPlace: 60, Kept: .5, Spares: failures.Enough, Days: min(max(days, 30), 365),
		Tiers: []failures.Tier{{Name: "store", Stall: save, Load: save}}}, 4, 1)
	if err != nil {
		return 0, err
	}
	return days / max(r.Goodput, 1e-6), nil
}

// memoryVerdict says whether a plan fits, and whether that is sure.
func memoryVerdict(a *answer) string {
	switch {
	case !a.Fits && a.Verdict == plan.VerdictUnsure:
		return fmt.Sprintf("probably does NOT fit, %s too much", gigabytes(a.Over))
	case !a.Fits:
		return fmt.Sprintf("does NOT fit, %s too much", gigabytes(a.Over))
	case a.Verdict == plan.VerdictUnsure:
		return "probably fits, with less to spare than the prediction may be off"
	}
	return "fits"
}

// print writes the answer for people.
func (f *trainFlags) print(w io.Writer, q *plan.Question, a *answer) error {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	active := ""
	if a.Active < a.Params*.95 {
		active = fmt.Sprintf(", %.3gB active", a.Active/1e9)
	}
	if a.MTP > 0 {
		active += fmt.Sprintf(", and %.3gB that predict further tokens", a.MTP/1e9)
	}
	line("model", "%s: %.4gB parameters%s", a.Model, a.Params/1e9, active)
	gpus := fmt.Sprint(a.GPUs)
	if a.GPUs < q.Machine.GPUs {
		gpus = fmt.Sprintf("%d of %d", a.GPUs, q.Machine.GPUs)
	}
	line("machine", "%s %s of %s: %d per host, %d per fast domain, %s", gpus, a.GPU, a.Cluster, q.Machine.HostGPUs, q.Machine.Domain, nicOf(q))
	line("layout", "%s", a.LayoutText)
	unit := "tokens"
	if q.Model.CNN != nil {
		unit = "images"
	}
	line("step", "%.4g s, %s %s/s per GPU, %.0f TFLOP/s per GPU (%s), MFU %.1f%%",
		a.Step, whole(a.TokensPerS), unit, a.TFLOPS, a.Convention, 100*a.MFU)
	if a.Interval != nil {
		line("", "%s", a.Interval)
	}
	line("", "%.1f%% idle in the pipeline, %.1f%% transfers that nothing hides", 100*a.Bubble, 100*a.Shown)
	line("memory", "%s state, %s at peak of %s on stage %d: %s", gigabytes(a.State), gigabytes(a.Peak), gigabytes(a.Capacity), a.Stage,
		memoryVerdict(a))
	if a.MemoryInterval != nil {
		line("", "%s", a.MemoryInterval)
	}
	if a.Days > 0 {
		line("run", "%.4g tokens: %.1f days, %.4g MWh, $%.4g at $%.2f a GPU hour (%s)",
			a.Tokens, a.Days, a.MWh, a.USD, q.Machine.Hour, q.Machine.HourFrom)
		line("",
			"%.1f days with failures at the rates of Llama 3's cluster, and a checkpoint store of 100 GB/s; 'weft sim failures' takes your own",
			a.RealDays)
	}
	if n := a.Nearest; n != nil {
		line("nearest", "%s: %s, measured %.4g s, model %+.1f%%", n.ID, n.What, n.Step, 100*n.Error)
		if n.Remark != "" {
			line("", "%s", n.Remark)
		}
	}
	line("factor", "%.3f: %s", a.Factor, a.FactorFrom)
	for _, n := range a.Notes {
		line("note", "%s", n)
	}
	for _, n := range a.Findings {
		line("finding", "%s", n)
	}
	if a.Search != nil {
		line("search", "%d layouts priced; %d layouts or families of them cannot be faster by their bound, %d do not fit",
			a.Search.Priced, a.Search.Bounded, a.Search.TooBig)
	}
	for i, c := range a.Candidates {
		line(fmt.Sprintf("  %d.", i+1), "%.4g s  MFU %.1f%%  %s  %s", c.Step, 100*c.MFU, gigabytes(c.Peak), c.Layout)
	}
	if len(a.Front) > 1 {
		last := a.Front[len(a.Front)-1]
		line("front", "from %.4g s with %s to %.4g s with %s: %s", a.Front[0].Step, gigabytes(a.Front[0].Peak), last.Step, gigabytes(last.Peak),
			last.Layout)
	}
	if len(a.Beside) > 0 {
		line("second", "loses by %s", strings.Join(a.Beside, ", "))
	}
	for _, c := range a.Changes {
		line("faster with", "%s: %.4g s, %+.1f%%", c.What, c.Step, -100*c.Gain)
	}
	switch f.why {
	case "step":
		fmt.Fprintln(w)
		printTerm(w, *a.Why, 0)
	case "memory":
		fmt.Fprintln(w)
		printTerm(w, plan.Term{Name: "memory at peak", Value: a.Peak, Unit: "B", Why: fmt.Sprintf("of a rank of stage %d", a.Stage),
			Terms: a.Memory}, 0)
	}
	return nil
}

func printTerm(w io.Writer, t plan.Term, depth int) {
	value := fmt.Sprintf("%.4g %s", t.Value, t.Unit)
	if t.Unit == "B" {
		value = gigabytes(t.Value)
	}
	if t.Note { // explains its neighbours, and does not add to them
		value = "(" + value + ")"
	}
	fmt.Fprintf(w, "%-52s %12s", strings.Repeat("  ", depth)+t.Name, value)
	if t.Why != "" {
		fmt.Fprintf(w, "   %s", t.Why)
	}
	fmt.Fprintln(w)
	for _, x := range t.Terms {
		printTerm(w, x, depth+1)
	}
}
