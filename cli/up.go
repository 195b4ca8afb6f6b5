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
	"github.com/weft-fabric/weft/elastic/rank"
	"github.com/weft-fabric/weft/reduce"
	"github.com/weft-fabric/weft/train"
	"github.com/weft-fabric/weft/train/model"
	"github.com/weft-fabric/weft/train/pipe"
	"github.com/weft-fabric/weft/up"
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

func newUp() *cobra.Command {
	o := up.Options{Train: train.Default()}
	var name, drill, transport, wire, schedule, follow string
	var layers int
	var inLab labFlag
	var asJSON, quiet, noOverlap, noMirror bool
	var serve serveFlags
	cmd := &cobra.Command{
		Use:   "up",
		Short: "A whole cluster on this machine: coordinator, ranks training, a page to watch",
		Long: `Start a coordinator (embedded etcd), train a small GPT on a text that is
part of weft in several processes, and serve a page that shows it at work. Kill a
rank and watch the loss curve go on: the others notice within milliseconds, go on
without it, and take it in again when it has been restarted.

Ctrl-C, SIGTERM and SIGHUP let ranks finish their step, save it in --ckpt and print
how the run went; so does the end that --steps or --for set. A second signal ends the
run at once. A later run continues from --ckpt, with the batch it had; without --ckpt
checkpoints go with the run.

--lab puts the ranks onto the hosts of a lab, one on each unless --ranks says otherwise:
they train over the network that was emitted for it, while routers fail.

--check trains the same steps again, undisturbed. Exit code 1 if a loss differs by
more than rounding explains.

--drill breaks things on purpose, at random instants that follow from --drill-seed:
  kill:N    N times a rank at work gets SIGKILL
  stop:N    N times a rank at work gets SIGSTOP, and SIGCONT 3 s later
  coord:N   N times the coordinator gets SIGKILL and is started again
  slow:N    N times a rank at work comes late to every step, for 10 s
  hang:N    N times a rank at work takes no step for 12 s, and lives
  link:N    N times what a rank sends to another is throttled, for 10 s (--transport tcp)

The run is watched as 'weft watch' watches a cluster: verdicts name who is late, which
link is slow and who holds the run up, in what is printed and at /watch/ of the page.

--serve answers prompts instead: prefill workers read them, decode workers write the answers, and the KV cache goes from
one to the other layer by layer. --compare measures what that hides. docs/kv.md.`,
		Example: `  weft up
  weft up --ranks 8 --tp 2 --pp 2 --zero 1 --for 60s --json
  weft up --drill kill:5 --for 60s
  weft up --drill kill:2,coord:1,stop:1 --for 40s --ckpt /tmp/run
  weft up --drill slow,hang --for 60s
  weft up --steps 200 --listen '' --quiet
  weft up --serve --prefill 2 --decode 2 --drill kill:3 --for 20s --check
  weft up --serve --compare --path tcp --rate 100MB/s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := serve.wrong(cmd.Flags()); err != nil {
				return err
			}
			if serve.on {
				exe, err := os.Executable()
				if err != nil {
					return fmt.Errorf("this program's own file: %w", err)
				}
				if o.Drill, err = up.ParseDrill(drill); err != nil {
					return err
				}
				o.Program, o.Fallback, serve.model = []string{exe}, !cmd.Flags().Changed("listen"), name
				return serve.run(cmd, o, asJSON, quiet)
			}
			if o.Ranks < 1 || o.Min < 1 {
				return fmt.Errorf("--ranks %d, --min %d; at least 1 of each is needed", o.Ranks, o.Min)
			}
			if o.Train.Model, err = findModel(name); err != nil {
				return err
			}
			if layers > 0 {
				o.Train.Model.Layers = layers
			}
			if o.Drill, err = up.ParseDrill(drill); err != nil {
				return err
			}
			if o.Env, err = up.Transport(transport); err != nil {
				return err
			}
			if o.Train.Wire, err = reduce.ParseType(wire); err != nil {
				return fmt.Errorf("--wire: %w", err)
			}
			o.Train.Schedule, o.Train.Elastic, o.Train.Overlap = pipe.Kind(schedule), train.Elastic(follow), !noOverlap
			o.Train.Mirror = !noMirror
			if noOverlap {
				o.Contrast = 0
			}
			if inLab.name != "" {
				i, hosts, err := inLab.find(cmd, "")
				if err != nil {
					return err
				}
				if !cmd.Flags().Changed("ranks") {
					o.Ranks = len(hosts)
				}
				o.Env = append(o.Env, labEnv(i)...)
				o.Place = func(slot int) ([]string, string) {
					h := hosts[slot%len(hosts)]
					return i.Entry(h), i.Spec.Node(h).Front
				}
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("this program's own file: %w", err)
			}
			o.Program = []string{exe}
			o.Command = strings.Join(append([]string{"weft"}, os.Args[1:]...), " ")
			o.Fallback = !cmd.Flags().Changed("listen")
			out := cmd.OutOrStdout()
			if asJSON {
				out = io.Discard
			}
			o.Summary = out
			if !quiet {
				o.Log = cmd.ErrOrStderr()
				if !asJSON {
					o.Log = out
				}
			}
			o.Ready = func(page, ckpt string) {
				if o.Log == nil {
					return
				}
				if page != "" {
					fmt.Fprintf(o.Log, "page        %s\n", page)
				}
				if ckpt != "" && o.Ckpt != "" {
					fmt.Fprintf(o.Log, "checkpoints %s\n", ckpt)
				}
			}
			o.Batch = cmd.Flags().Changed("batch")
			ctx, stop := signal.NotifyContext(cmd.Context(), ending()...)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends this process, and its ranks die with it
			s, err := up.Run(ctx, o)
			if asJSON && (err == nil || s.Steps > 0) {
				text, e := json.MarshalIndent(s, "", "  ")
				if e != nil {
					return e
				}
				if _, e := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text); e != nil {
					return e
				}
			}
			if err != nil && !errors.As(err, new(up.UseError)) {
				return finding{err}
			}
			return err
		},
	}
	inLab.bind(cmd)
	f := cmd.Flags()
	f.IntVar(&o.Ranks, "ranks", 4, "number of ranks, each a process")
	f.IntVar(&o.Min, "min", 1, "fewest `RANKS` to go on with; with fewer for 30s the run saves a checkpoint and stops")
	f.IntVar(&o.Train.Layout.TP, "tp", 1, "tensor parallel: ranks that share every layer")
	f.IntVar(&o.Train.Layout.PP, "pp", 1, "pipeline parallel: stages that share the layers")
	f.IntVar(&o.Train.Layout.Zero, "zero", 0, "what replicas share: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too")
	f.StringVar(&schedule, "schedule", string(pipe.OneFOneB), "order of passes in a pipeline: 1f1b or gpipe")
	f.StringVar(&name, "model", "small", "what to train: small, tiny or mlp")
	f.IntVar(&layers, "layers", 0, "layers of the model, if not its own number")
	f.IntVar(&o.Train.Batch, "batch", o.Train.Batch, "samples of a global batch")
	f.IntVar(&o.Train.Micro, "micro", o.Train.Micro, "samples of a micro-batch, at most")
	f.Uint64Var(&o.Train.Seed, "seed", o.Train.Seed, "seed of parameters and data order")
	f.StringVar(&wire, "wire", "float32", "`TYPE` of gradients between ranks: float32, bfloat16 or float16")
	f.StringVar(&follow, "elastic", string(train.KeepBatch), "what stays when ranks go: batch (the rest accumulate more) or rate (batch and learning rate follow)")
	f.BoolVar(&noOverlap, "no-overlap", false, "reduce gradients after backward instead of during it")
	f.BoolVar(&noMirror, "no-mirror", false, "do not keep what one rank alone holds (ZeRO, no replicas) a second time: it then comes from a checkpoint")
	f.IntVar(&o.Contrast, "contrast", 8, "one step in every `STEPS` does not overlap, to measure what overlapping hides; 0 for none")
	f.StringVar(&transport, "transport", "", "shm or tcp; without it the fastest")
	f.DurationVar(&o.For, "for", 0, "`TIME` to train, from the first step on; without it until Ctrl-C")
	f.IntVar(&o.Steps, "steps", 0, "step to train to; without it no end")
	f.StringVar(&o.Ckpt, "ckpt", "", "`DIR` or s3://BUCKET/PREFIX of checkpoints to continue from and to keep")
	f.IntVar(&o.Every, "ckpt-every", 50, "`STEPS` between checkpoints; 0 for none")
	f.IntVar(&o.Keep, "ckpt-keep", 3, "latest checkpoints that stay; 0 for all")
	f.StringVar(&drill, "drill", "", "what to break: kill:N, stop:N, coord:N, several with commas")
	f.Uint64Var(&o.Seed, "drill-seed", 1, "seed of the drill's instants and victims")
	f.BoolVar(&o.Check, "check", false, "at the end, train the same steps undisturbed and compare the losses")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:7070", "`ADDRESS` of the page; '' for none")
	f.BoolVar(&asJSON, "json", false, "end with one JSON object; progress goes to standard error")
	f.BoolVar(&quiet, "quiet", false, "no progress")
	serve.register(f)
	var names []string
	for _, m := range models {
		names = append(names, m.name)
	}
	for name, words := range map[string][]string{
		"model": names, "schedule": {string(pipe.OneFOneB), string(pipe.GPipe)}, "wire": {"float32", "bfloat16", "float16"},
		"elastic": {string(train.KeepBatch), string(train.ScaleRate)}, "transport": {"shm", "tcp"}, "drill": {"kill:", "stop:", "coord:", "slow:", "hang:", "link:"}, "mode": {"stream", "whole", "recompute"}, "path": {"shm", "pull", "unix", "tcp"}, "zero": {"0", "1", "2", "3"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // all of them are flags
	}
	return cmd
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
