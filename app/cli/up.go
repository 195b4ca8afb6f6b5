package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/weft-fabric/weft/app/internal/up"
	"github.com/weft-fabric/weft/run/elastic/rank"
	"github.com/weft-fabric/weft/run/reduce"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/model"
	"github.com/weft-fabric/weft/run/train/pipe"
)

// models are the networks that 'up' trains.
var models = []struct {
	name, summary string
	config        func() model.Config
}{
	{"small", "a GPT of 0.87 million parameters", model.Small},
	{"tiny", "a GPT of 34 thousand parameters", model.Tiny},
	{"mlp", "a multilayer perceptron of 27 thousand parameters", model.TinyMLP},
}

// upFlags are the flags of weft up.
type upFlags struct {
	o                                              up.Options
	name, drill, transport, wire, schedule, follow string
	layers                                         int
	inLab                                          labFlag
	asJSON, quiet, noOverlap, noMirror             bool
	serve                                          serveFlags
}

func newUp() *cobra.Command {
	s := upFlags{o: up.Options{Train: train.Default()}}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a small cluster on this machine: coordinator, training ranks and a live page",
		Long: `Start a coordinator (embedded etcd), train a small GPT on a built-in text in several
processes, and serve a page that shows it. Kill a rank and watch the loss curve
continue: the others notice within milliseconds, continue without it, and readmit it
after its restart.

Ctrl-C, SIGTERM, SIGHUP, --steps and --for let ranks finish their step, save it in
--ckpt and print a summary. Exit code 1 if steps are not saved. A second signal ends
the run at once. A later run continues from --ckpt with the same batch; without --ckpt
checkpoints are removed with the run.

--lab puts the ranks onto a lab's hosts, one per host unless --ranks says otherwise: they
train over the lab's network while routers fail.

--check trains the same steps again, undisturbed, and exits with 1 if a loss differs by
more than rounding explains.

--drill breaks things at random times, seeded by --drill-seed:
  kill:N    N times a working rank gets SIGKILL
  stop:N    N times a working rank gets SIGSTOP, and SIGCONT 3 s later
  coord:N   N times the coordinator gets SIGKILL and is restarted
  slow:N    N times a working rank is late for every step, for 10 s
  hang:N    N times a working rank takes no step for 12 s, but stays alive
  link:N    N times a link between two ranks is throttled, for 10 s (--transport tcp)

The run watches itself like 'weft watch': verdicts name stragglers, slow links and ranks
that block the run, in the output and at /watch/ of the page.

--serve answers prompts instead: prefill workers read them, decode workers generate, and the KV cache is streamed layer by
layer. --compare measures what streaming hides (docs/how-to/kv.md).`,
		Example: `  weft up
  weft up --ranks 8 --tp 2 --pp 2 --zero 1 --for 60s --json
  weft up --drill kill:5 --for 60s
  weft up --drill kill:2,coord:1,stop:1 --for 40s --ckpt /tmp/run
  weft up --drill slow,hang --for 60s
  weft up --steps 200 --listen '' --quiet
  weft up --serve --prefill 2 --decode 2 --drill kill:3 --for 20s --check
  weft up --serve --compare --path tcp --rate 100MB/s`,
		Args: cobra.NoArgs,
		RunE: s.run,
	}
	s.inLab.bind(cmd)
	f := cmd.Flags()
	f.IntVar(&s.o.Ranks, "ranks", 4, "number of ranks, each a process")
	f.IntVar(&s.o.Min, "min", 1, "fewest `RANKS` to go on with; with fewer for 30s the run saves a checkpoint and stops")
	f.IntVar(&s.o.Train.Layout.TP, "tp", 1, "tensor parallel: ranks that share every layer")
	f.IntVar(&s.o.Train.Layout.PP, "pp", 1, "pipeline parallel: stages that share the layers")
	f.IntVar(&s.o.Train.Layout.Zero, "zero", 0, "what replicas share: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too")
	f.StringVar(&s.schedule, "schedule", string(pipe.OneFOneB), "order of passes in a pipeline: 1f1b or gpipe")
	f.StringVar(&s.name, "model", "small", "what to train: small, tiny or mlp")
	f.IntVar(&s.layers, "layers", 0, "layers of the model, if not its own number")
	f.IntVar(&s.o.Train.Batch, "batch", s.o.Train.Batch, "samples of a global batch")
	f.IntVar(&s.o.Train.Micro, "micro", s.o.Train.Micro, "samples of a micro-batch, at most")
	f.Uint64Var(&s.o.Train.Seed, "seed", s.o.Train.Seed, "seed of parameters and data order")
	f.StringVar(&s.wire, "wire", "float32", "`TYPE` of gradients between ranks: float32, bfloat16 or float16")
	f.StringVar(&s.follow, "elastic", string(train.KeepBatch),
		"what stays constant when ranks leave: batch (the rest accumulate more) or rate (batch and learning rate follow)")
	f.BoolVar(&s.noOverlap, "no-overlap", false, "reduce gradients after backward instead of during it")
	f.BoolVar(&s.noMirror, "no-mirror", false,
		"do not keep what one rank alone holds (ZeRO, no replicas) a second time: it then comes from a checkpoint")
	f.IntVar(&s.o.Contrast, "contrast", 8, "one step in every `STEPS` does not overlap, to measure what overlapping hides; 0 for none")
	f.StringVar(&s.transport, "transport", "", "shm or tcp; default: the fastest")
	f.DurationVar(&s.o.For, "for", 0, "`TIME` to train, from the first step on; default: until Ctrl-C")
	f.IntVar(&s.o.Steps, "steps", 0, "step to train to; default: no limit")
	f.StringVar(&s.o.Ckpt, "ckpt", "", "`DIR` or s3://BUCKET/PREFIX of checkpoints to continue from and to write")
	f.IntVar(&s.o.Every, "ckpt-every", 50, "`STEPS` between checkpoints; 0 for none")
	f.IntVar(&s.o.Keep, "ckpt-keep", 3, "latest checkpoints to keep; 0 for all")
	f.StringVar(&s.drill, "drill", "", "what to break: kill:N, stop:N, coord:N, ...; separate several by commas")
	f.Uint64Var(&s.o.Seed, "drill-seed", 1, "seed of the drill's times and victims")
	f.BoolVar(&s.o.Check, "check", false, "at the end, train the same steps undisturbed and compare the losses")
	f.StringVar(&s.o.Listen, "listen", "127.0.0.1:7070", "`ADDRESS` of the page; '' for none")
	f.BoolVar(&s.asJSON, "json", false, "end with one JSON object; progress goes to standard error")
	f.BoolVar(&s.quiet, "quiet", false, "no progress")
	s.serve.register(f)
	var names []string
	for _, m := range models {
		names = append(names, m.name)
	}
	for name, words := range map[string][]string{
		"model": names, "schedule": {string(pipe.OneFOneB), string(pipe.GPipe)}, "wire": {"float32", "bfloat16", "float16"},
		"elastic": {string(train.KeepBatch), string(train.ScaleRate)}, "transport": {"shm", "tcp"},
		"drill": {"kill:", "stop:", "coord:", "slow:", "hang:", "link:"}, "mode": {"stream", "whole", "recompute"},
		"path": {"shm", "pull", "unix", "tcp"}, "zero": {"0", "1", "2", "3"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // all of them are flags
	}
	return cmd
}

// prepare settles what ranks are started with. In a lab, this process is then in one of its hosts.
func (s *upFlags) prepare(cmd *cobra.Command) error {
	if err := s.training(cmd); err != nil {
		return err
	}
	if err := s.intoLab(cmd); err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program's own file: %w", err)
	}
	s.o.Program = []string{exe}
	s.o.Command = strings.Join(append([]string{"weft"}, os.Args[1:]...), " ")
	s.o.Fallback = !cmd.Flags().Changed("listen")
	s.o.Batch = cmd.Flags().Changed("batch")
	s.tell(cmd)
	return nil
}

func printIndented(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

func (s *upFlags) run(cmd *cobra.Command, args []string) (err error) {
	if err := s.serve.wrong(cmd.Flags()); err != nil {
		return err
	}
	if s.serve.on {
		return s.answerPrompts(cmd)
	}
	if err := s.prepare(cmd); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), ending()...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends this process, and its ranks die with it
	sum, err := up.Run(ctx, s.o)
	if s.asJSON && (err == nil || sum.Steps > 0) {
		if e := printIndented(cmd.OutOrStdout(), sum); e != nil {
			return e
		}
	}
	if err != nil && !errors.As(err, new(up.UseError)) {
		return finding{err}
	}
	return err
}

// answerPrompts is weft up --serve.
func (s *upFlags) answerPrompts(cmd *cobra.Command) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program's own file: %w", err)
	}
	if s.o.Drill, err = up.ParseDrill(s.drill); err != nil {
		return err
	}
	s.o.Program, s.o.Fallback, s.serve.model = []string{exe}, !cmd.Flags().Changed("listen"), s.name
	return s.serve.run(cmd, s.o, s.asJSON, s.quiet)
}

// training puts the flags of model and layout together.
func (s *upFlags) training(cmd *cobra.Command) (err error) {
	if s.o.Ranks < 1 || s.o.Min < 1 {
		return fmt.Errorf("--ranks %d, --min %d; at least 1 of each is needed", s.o.Ranks, s.o.Min)
	}
	if s.o.Train.Model, err = findModel(s.name); err != nil {
		return err
	}
	if cmd.Flags().Changed("layers") {
		if s.layers < 1 {
			return fmt.Errorf("--layers %d; a model has at least 1", s.layers)
		}
		s.o.Train.Model.Layers = s.layers
	}
	if s.o.Drill, err = up.ParseDrill(s.drill); err != nil {
		return err
	}
	if s.o.Env, err = up.Transport(s.transport); err != nil {
		return err
	}
	if s.o.Train.Wire, err = reduce.ParseType(s.wire); err != nil {
		return fmt.Errorf("--wire: %w", err)
	}
	s.o.Train.Schedule, s.o.Train.Elastic, s.o.Train.Overlap = pipe.Kind(s.schedule), train.Elastic(s.follow), !s.noOverlap
	s.o.Train.Mirror = !s.noMirror
	if s.noOverlap {
		s.o.Contrast = 0
	}
	return nil
}

// intoLab places the ranks on the hosts of --lab.
func (s *upFlags) intoLab(cmd *cobra.Command) error {
	if s.inLab.name == "" {
		return nil
	}
	i, hosts, err := s.inLab.find(cmd, "")
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("ranks") {
		s.o.Ranks = len(hosts)
	}
	s.o.Env = append(s.o.Env, labEnv(i)...)
	s.o.Place = func(slot int) ([]string, string) {
		h := hosts[slot%len(hosts)]
		return i.Entry(h), i.Spec.Node(h).Front
	}
	return nil
}

// tell says where progress and the summary are printed.
func (s *upFlags) tell(cmd *cobra.Command) {
	out := cmd.OutOrStdout()
	if s.asJSON {
		out = io.Discard
	}
	s.o.Summary = out
	if !s.quiet {
		s.o.Log = cmd.ErrOrStderr()
		if !s.asJSON {
			s.o.Log = out
		}
	}
	s.o.Ready = func(page, ckpt string) {
		if s.o.Log == nil {
			return
		}
		if page != "" {
			fmt.Fprintf(s.o.Log, "page        %s\n", page)
		}
		if ckpt != "" && s.o.Ckpt != "" {
			fmt.Fprintf(s.o.Log, "checkpoints %s\n", ckpt)
		}
	}
}

func findModel(name string) (model.Config, error) {
	known := ""
	for _, m := range models {
		if m.name == name {
			return m.config(), nil
		}
		known += fmt.Sprintf(", %s (%s)", m.name, m.summary)
	}
	return model.Config{}, fmt.Errorf("--model %q; known: %s", name, known[2:])
}

// newRank is what 'up' starts its ranks with.
func newRank() *cobra.Command {
	return &cobra.Command{
		Use: "rank", Hidden: true, Short: "One rank of 'weft up'", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			signal.Ignore(syscall.SIGINT) // of a terminal: the agent says when to stop
			if err := rank.Main(ctx); err != nil {
				return finding{err}
			}
			return nil
		},
	}
}
