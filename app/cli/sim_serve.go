package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/work"
	"github.com/weft-fabric/weft/predict/plan"
	"github.com/weft-fabric/weft/predict/sim/serve"
)

// simServe are the flags of weft sim serve.
type simServe struct {
	p                                                                                      presetFlags
	on, weights, kv, trace, engine, routing                                                string
	fail, slow                                                                             []string
	gpus, tp, pp, dp, ep, replicas, prefill, users, in, out, requests, chunk, most, drafts int
	rate, memory, reuse, tier, spread, factor, compute, ttft, tpot, price, accept          float64
	seed                                                                                   uint64
	asJSON, apart                                                                          bool
}

func newSimServe() *cobra.Command {
	var s simServe
	cmd := &cobra.Command{
		Use:   "serve MODEL --cluster CLUSTER",
		Short: "Simulate inference: time to first token, time per token, throughput, cost",
		Long: `Simulate serving step by step: continuous batching, chunked prompts, a bounded KV cache, and model copies on
1, 2, 4, ... GPUs. --tp runs one layout; otherwise all are tried, and the best at this load is printed first. Which layout
is best depends on the load, so the answer ends with the frontier: tokens/s per GPU against time per token over lighter and
heavier loads. --ttft and --tpot set limits for 90% of the requests. With --prefill separate copies handle prompts and send
the KV cache over the fabric.

Load is a closed loop of --users, random arrivals at --rate, or a --trace from Mooncake, Azure or BurstGPT. --engine
models the habits of vLLM, SGLang or TensorRT-LLM.`,
		Example: `  weft sim serve llama3-70b --cluster dgx-h100 --weights fp8 --users 64 --input 1000 --output 500
  weft sim serve deepseek-v3 --cluster dgx-h200 --weights fp8 --engine sglang --tp 1 --dp 8 --ep 8 --users 64
  weft sim serve deepseek-v3 --cluster superpod-h100 --gpus 128 --weights fp8 --kv fp8 --users 8192 --input 2000 --output 1000 --drafts 1
  weft sim serve llama3-8b --cluster dgx-h100 --tp 1 --rate 20 --input 2000 --output 200 --json
  weft sim serve llama3-70b --cluster dgx-h100 --gpus 16 --weights fp8 --tp 2 --replicas 6 --prefill 2 --rate 10 --input 4000 --output 300
  weft sim serve llama3-70b --cluster dgx-h100 --gpus 16 --weights fp8 --tp 2 --replicas 4 --prefill 4 --rate 6 --slow n1:nic0=0.02`,
		Args: cobra.ExactArgs(1),
		RunE: s.run,
	}
	s.p.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&s.on, "cluster", "", "`CLUSTER`: file, preset, or a kind of host")
	fl.IntVar(&s.gpus, "gpus", 0, "how many `GPUs`; default: all")
	fl.IntVar(&s.tp, "tp", 0, "`GPUs` per copy; default: try all")
	fl.IntVar(&s.dp, "dp", 0, "`GROUPS` of tp GPUs inside a copy that attend to different requests and share the experts, with --tp")
	fl.IntVar(&s.ep, "ep", 0, "`GPUs` that whole experts are spread over, with --tp; the others of a copy cut them")
	fl.IntVar(&s.pp, "pp", 1, "pipeline `STAGES` of a copy")
	fl.IntVar(&s.replicas, "replicas", 0, "`COPIES` of the model; default: as many as fit")
	fl.IntVar(&s.prefill, "prefill", 0, "further `COPIES` that take prompts only")
	fl.BoolVar(&s.apart, "apart", false, "also try prefill and decode on copies of their own")
	fl.StringVar(&s.weights, "weights", "bf16",
		"`TYPE` of the weights: bf16, fp8, fp4, or int4 (of models with experts, their routed experts only)")
	fl.IntVar(&s.drafts, "drafts", 0, "`TOKENS` guessed ahead per step by the model's own draft layer (MTP)")
	fl.Float64Var(&s.accept, "accept", serve.Accepted, "`SHARE` of drafts that are right, given that those before are")
	fl.StringVar(&s.kv, "kv", "bf16", "`TYPE` of the KV cache: bf16, fp8")
	fl.IntVar(&s.users, "users", 16, "`USERS` that ask again when they have their answer")
	fl.Float64Var(&s.rate, "rate", 0, "`REQUESTS` a second, at random, instead of users")
	fl.StringVar(&s.trace, "trace", "", "`FILE` with arrivals, in Mooncake's or Azure's form")
	fl.IntVar(&s.in, "input", 1024, "`TOKENS` of a prompt")
	fl.IntVar(&s.out, "output", 256, "`TOKENS` of an answer")
	fl.IntVar(&s.requests, "requests", 0, "how many `REQUESTS`; default: ten per user")
	fl.IntVar(&s.chunk, "chunk", 0, "most prompt `TOKENS` per step, instead of the engine's")
	fl.StringVar(&s.engine, "engine", "vllm", "whose habits: vllm, sglang, trtllm")
	fl.Float64Var(&s.spread, "spread", 0, "`SHARE` of --input and --output that a request may be shorter, at random")
	fl.IntVar(&s.most, "most", 0, "`REQUESTS` that run at once at most; default: as many as memory allows")
	fl.Float64Var(&s.memory, "memory", .9, "`SHARE` of the memory that the engine takes")
	fl.Float64Var(&s.reuse, "reuse", 0, "`SHARE` of prompts that is in the cache already; a trace with hash_ids says it itself")
	fl.Float64Var(&s.tier, "tier", 0,
		"`GB/s` at which a GPU loads what is in the cache, from host memory or a store; without it, it is in the GPU's memory")
	fl.Float64Var(&s.factor, "factor", 0, "decode steps of a server over the sum of their kernels, instead of the engine's `FACTOR`")
	fl.Float64Var(&s.compute, "compute", 0, "the same for what prompts add to a step: `FACTOR`")
	fl.Float64Var(&s.ttft, "ttft", 0, "limit of the first token in `SECONDS`, for 90% of the requests")
	fl.Float64Var(&s.tpot, "tpot", 0, "limit of a token in `SECONDS`, for 90% of the requests")
	fl.Float64Var(&s.price, "price", 0, "`USD` per GPU hour, instead of the catalogue's")
	fl.StringVar(&s.routing, "routing", "adaptive", "of KV transfers: adaptive or ecmp")
	fl.StringArrayVar(&s.fail, "fail", nil, "a dead `PART` that KV transfers go around; repeatable")
	fl.StringArrayVar(&s.slow, "slow", nil, "`PART=FACTOR`: a part at a fraction of its rate for KV transfers; repeatable")
	fl.Uint64Var(&s.seed, "seed", 1, "`SEED` of the arrivals")
	fl.BoolVar(&s.asJSON, "json", false, "print JSON")
	_ = cmd.RegisterFlagCompletionFunc("cluster", clusterNames)
	_ = cmd.RegisterFlagCompletionFunc("engine", cobra.FixedCompletions([]string{"vllm", "sglang", "trtllm"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (s *simServe) run(cmd *cobra.Command, args []string) error {
	m, err := loadModel(cmd, args[0])
	if err != nil {
		return err
	}
	if m.BothWays {
		return fmt.Errorf("%s is an encoder: it writes no tokens one after the other, and there is nothing to decode", m.Name)
	}
	if cmd.Flags().Changed("rate") && !(s.rate > 0 && s.rate < 1e9) {
		return fmt.Errorf("--rate is %g; it must be above 0", s.rate)
	}
	if err := simServeFlags(cmd); err != nil {
		return err
	}
	c, note, err := planCluster(cmd, s.on, s.p, s.gpus)
	if err != nil {
		return err
	}
	if s.price > 0 {
		c.Needs.CloudPrice = s.price
	}
	mc, err := plan.NewMachine(c, s.gpus)
	if err != nil {
		return err
	}
	load, err := s.readLoad(cmd)
	if err != nil {
		return err
	}
	e, err := s.engineOn(c, mc, m)
	if err != nil {
		return err
	}
	tries, err := s.try(e, load)
	if err != nil {
		return err
	}
	if len(tries) == 0 || tries[0].Result == nil {
		why := "no layout divides its heads"
		if len(tries) > 0 {
			why = tries[0].Why
		}
		return finding{fmt.Errorf("%s cannot be served on %d %s: %s", m.Name, mc.GPUs, mc.GPU.Name, why)}
	}
	e.Intervals(load, tries)
	a := newServeAnswer(m.Name, load, tries)
	a.Notes = e.Notes(load)
	if len(load.Trace) == 0 {
		a.Frontier = serve.Frontier(e, layoutsOf(tries), load.Loads(), s.ttft, s.tpot)
	}
	if s.asJSON {
		return printJSON(cmd.OutOrStdout(), a)
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s, %s weights, %s KV cache on %d %s at %s%s; %d requests, seed %d\n",
		m.Name, s.weights, s.kv, mc.GPUs, mc.GPU.Name, load, s.lengths(), tries[0].Result.Requests, s.seed)
	for _, n := range append([]string{note}, a.Notes...) {
		if n != "" {
			fmt.Fprintln(w, n)
		}
	}
	if err := printTries(w, load, tries); err != nil {
		return err
	}
	return printFrontier(w, a.Frontier)
}

// lengths says how long prompts and answers are, unless a trace does.
func (s *simServe) lengths() string {
	if s.trace != "" {
		return ""
	}
	return fmt.Sprintf(" (%d tokens in, %d out)", s.in, s.out)
}

// layoutsOf are the layouts that ran.
func layoutsOf(tries []serve.Try) (out []serve.Layout) {
	for _, t := range tries {
		if t.Result != nil {
			out = append(out, t.Layout)
		}
	}
	return out
}

// readLoad is who asks: users, arrivals at random, or a trace.
func (s *simServe) readLoad(cmd *cobra.Command) (serve.Load, error) {
	load := serve.Load{Concurrency: s.users, Rate: s.rate, Input: s.in, Output: s.out, Requests: s.requests, Spread: s.spread, Seed: s.seed}
	if s.rate > 0 {
		load.Concurrency = 0
	}
	if s.trace == "" {
		if s.requests == 0 {
			load.Requests = max(10*s.users, 200)
		}
		return load, nil
	}
	data, err := readInput(cmd, s.trace)
	if err != nil {
		return load, err
	}
	if load.Trace, err = serve.ReadTrace(data); err != nil {
		return load, fmt.Errorf("%s: %w", s.trace, err)
	}
	if s.requests > 0 && cmd.Flags().Changed("requests") {
		load.Trace = load.Trace[:min(s.requests, len(load.Trace))]
	}
	return load, nil
}

// checkTypes refuses types that engines do not keep weights or KV in. KV caches of four bits are none that they have.
func (s *simServe) checkTypes() error {
	for name, v := range map[string]string{"--weights": s.weights, "--kv": s.kv} {
		if !slices.Contains([]string{"bf16", "fp8", "fp4", "int4"}, v) || name == "--kv" && strings.HasSuffix(v, "4") {
			return fmt.Errorf("%s %q: want bf16 or fp8, or fp4 or int4 for weights", name, v)
		}
	}
	return nil
}

// engineOn is the engine that the flags describe, without a layout.
func (s *simServe) engineOn(c *cluster.Cluster, mc *plan.Machine, m *work.Model) (e serve.Engine, err error) {
	if err := s.checkTypes(); err != nil {
		return e, err
	}
	kind, err := serve.KindNamed(s.engine)
	if err != nil {
		return e, fmt.Errorf("--engine: %w", err)
	}
	e = serve.Engine{Model: m, Machine: mc, Weights: s.weights, KV: s.kv, Most: s.most, Memory: s.memory, Reuse: s.reuse, Tier: s.tier * 1e9,
		Drafts: s.drafts, Accept: s.accept}
	e.Take(kind)
	if s.chunk != 0 {
		e.Chunk = s.chunk
	}
	if s.factor > 0 {
		e.Factor = s.factor
	}
	if s.compute > 0 {
		e.Compute = s.compute
	}
	if len(s.fail)+len(s.slow) > 0 && s.prefill == 0 && !s.apart {
		return e, fmt.Errorf("--fail and --slow are for KV caches that cross the fabric, and here none does; add --prefill N or --apart")
	}
	e.Fabric, err = fabricOptions(c, s.routing, s.seed, s.fail, s.slow)
	return e, err
}

// try runs the layout of --tp, or all of them, the best first.
func (s *simServe) try(e serve.Engine, load serve.Load) ([]serve.Try, error) {
	if s.tp == 0 {
		return serve.Layouts(e, load, s.ttft, s.tpot, s.apart), nil
	}
	replicas := s.replicas
	if replicas == 0 {
		replicas = max(e.Machine.GPUs/(s.tp*max(s.dp, 1)*s.pp)-s.prefill, 1)
	}
	e.Layout = serve.Layout{TP: s.tp, PP: s.pp, DP: s.dp, EP: s.ep, Replicas: replicas, Prefill: s.prefill}
	r, err := serve.Run(e, load)
	if err != nil {
		return nil, err
	}
	r.Judge(s.ttft, s.tpot)
	return []serve.Try{{Result: r, Layout: e.Layout}}, nil
}

// serveAnswer is what --json prints: the best layout under a load, the others, why it is the best there, and the frontier over loads.
type serveAnswer struct {
	Model string `json:"model"`
	*serve.Result
	Load     string          `json:"load"` // that the figures are for
	Users    int             `json:"users,omitempty"`
	Rate     float64         `json:"requests_per_s,omitempty"`
	Others   []*serve.Result `json:"others,omitempty"`
	Reasons  []string        `json:"reasons"`
	Notes    []string        `json:"notes,omitempty"`
	Frontier []serve.Point   `json:"frontier,omitempty"` // throughput per GPU against time per token, over loads
}

func newServeAnswer(model string, load serve.Load, tries []serve.Try) serveAnswer {
	a := serveAnswer{Model: model, Result: tries[0].Result, Load: load.String(), Users: load.Concurrency, Rate: load.Rate,
		Reasons: append(serve.Reasons(load, tries), serve.Refused(tries)...)}
	for _, t := range tries[1:] {
		if t.Result != nil {
			a.Others = append(a.Others, t.Result)
		}
	}
	return a
}

// printFrontier shows what is best at other loads, from the shortest time per token to the most tokens per GPU.
func printFrontier(w io.Writer, points []serve.Point) error {
	if len(points) == 0 {
		return nil
	}
	fmt.Fprintln(w, "frontier: no layout and load has both a shorter time per token and more tokens/s per GPU")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "load\ttoken p50\tfirst token p50\ttokens/s per GPU\tlayout")
	for _, p := range points {
		fmt.Fprintf(t, "%s\t%.2f ms\t%.3f s\t%.0f\t%s\n", serve.Load{Concurrency: p.Users, Rate: p.Rate}, 1e3*p.TPOT, p.TTFT, p.PerGPU, p.Name)
	}
	return t.Flush()
}

func printTries(w io.Writer, load serve.Load, tries []serve.Try) error {
	best := tries[0].Result
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "layout\tfirst token p50\tp99\ttoken p50\tp99\ttokens/s\tper GPU\tUSD/M tokens\tlimit")
	for _, x := range tries {
		name, r := x.Layout, x.Result
		if r == nil {
			continue
		}
		fmt.Fprintf(t, "%s\t%.3f s\t%.3f s\t%.2f ms\t%.2f ms\t%.0f\t%.0f\t%.3f\t%s\n",
			name, r.TTFT.P50, r.TTFT.P99, 1e3*r.TPOT.P50, 1e3*r.TPOT.P99, r.Total, r.PerGPU, r.USD, r.Limit)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, best.Off())
	if len(tries) > 1 || best.Misses != "" {
		for _, why := range append(serve.Reasons(load, tries), serve.Refused(tries)...) {
			fmt.Fprintln(w, why)
		}
	}
	if best.KVLimit != "" {
		fmt.Fprintf(w, "KV caches cross the fabric layer by layer and are there %.2f ms (p50), %.2f ms (p99) after their prompts; limit: %s\n",
			1e3*best.Transfer.P50, 1e3*best.Transfer.P99, best.KVLimit)
	}
	return nil
}

// simServeFlags refuses values of flags that mean nothing, and flags that would have no effect.
func simServeFlags(cmd *cobra.Command) error {
	fl := cmd.Flags()
	if err := notEmpty(fl); err != nil {
		return err
	}
	for _, x := range []struct {
		name     string
		from, to float64
		want     string
	}{
		{"users", 1, 1e6, "at least 1"}, {"input", 1, 1e8, "at least 1 token"}, {"output", 1, 1e8, "at least 1 token"},
		{"requests", 0, 1e8, "a number from 0 on"}, {"gpus", 1, 1e9, "at least 1"},
		{"tp", 1, 1e6, "at least 1"}, {"pp", 1, 1e6, "at least 1"}, {"dp", 1, 1e6, "at least 1"}, {"ep", 1, 1e6, "at least 1"},
		{"replicas", 1, 1e6, "at least 1"}, {"prefill", 0, 1e6, "a number from 0 on"},
		{"chunk", 1, 1e8, "at least 1 token"}, {"most", 1, 1e8, "at least 1"}, {"memory", 1e-6, 1, "a share above 0 and at most 1"},
		{"reuse", 0, 1, "a share of 0 to 1"}, {"spread", 0, 1, "a share of 0 to 1"}, {"drafts", 0, 16, "0 to 16 tokens"},
		{"accept", 1e-9, 1, "a share above 0 and at most 1"},
		{"tier", 1e-9, 1e6, "GB/s above 0"}, {"ttft", 1e-9, 1e9, "seconds above 0"}, {"tpot", 1e-9, 1e9, "seconds above 0"},
		{"price", 1e-9, 1e6, "USD above 0, and at most 1e6"},
		// Kernels alone reach half to nine tenths of the rates of memory and compute.
		{"factor", .5, 100, "0.5 to 100; below that a GPU would read faster than its memory can"},
		{"compute", .4, 100, "0.4 to 100; below that a GPU would compute faster than its peak"},
	} {
		f := fl.Lookup(x.name)
		if v, err := strconv.ParseFloat(f.Value.String(), 64); f.Changed && (err != nil || !(v >= x.from && v <= x.to)) {
			return fmt.Errorf("--%s is %s; want %s", x.name, f.Value, x.want)
		}
	}
	if fl.Changed("accept") && !fl.Changed("drafts") {
		return fmt.Errorf("--accept is for tokens guessed ahead: say --drafts, too")
	}
	return checkLayoutFlags(fl)
}

// checkLayoutFlags refuses parts of a layout where all layouts are tried.
func checkLayoutFlags(fl *pflag.FlagSet) error {
	if fl.Changed("tp") {
		return nil
	}
	for _, name := range []string{"pp", "dp", "ep", "replicas", "prefill"} {
		if fl.Changed(name) {
			return fmt.Errorf("--%s is for one layout: say --tp, too; default: all layouts are tried (--apart also with prefill and decode apart)",
				name)
		}
	}
	return nil
}
