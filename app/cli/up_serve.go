package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/weft-fabric/weft/app/internal/up"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/infer"
	"github.com/weft-fabric/weft/move/xfer/outside"
	"github.com/weft-fabric/weft/run/train/model"
)

// serveFlags are those of 'up --serve'.
type serveFlags struct {
	on, compare             bool
	o                       infer.Options
	load                    infer.Load
	mode, rate, path, model string
	cache                   string
	rounds                  int
}

func (s *serveFlags) register(f *pflag.FlagSet) {
	f.BoolVar(&s.on, "serve", false, "answer prompts instead of training: prefill and decode workers, the KV cache between them")
	f.IntVar(&s.o.Prefill, "prefill", 1, "with --serve: `WORKERS` that read prompts; 0: decode workers read them")
	f.IntVar(&s.o.Decode, "decode", 1, "with --serve: `WORKERS` that write answers")
	f.StringVar(&s.mode, "mode", string(infer.Stream), "with --serve: how the cache comes: stream (layer by layer), whole or recompute")
	f.IntVar(&s.load.Users, "users", 2,
		"with --serve: `USERS` of a built-in load, who ask again when they have their answer; 0 leaves the workers to clients")
	f.IntVar(&s.load.Most, "requests", 0, "with --serve: how many `REQUESTS`; default: no limit")
	f.IntVar(&s.load.Prompt, "prompt", 384, "with --serve: `TOKENS` of a prompt")
	f.IntVar(&s.load.Answer, "answer", 32, "with --serve: `TOKENS` of an answer")
	f.StringVar(&s.rate, "rate", "", "with --serve: `RATE` at which workers send at most, to see a slower network, like 100MB/s")
	f.StringVar(&s.path, "path", "", "with --serve: `PATH` of transfers: shm, pull, unix, tcp or ucx; default: the shortest")
	f.DurationVar(&s.o.Patience, "patience", 5*time.Second,
		"with --serve: `TIME` that decode waits for a layer before it computes the prompt itself")
	f.IntVar(&s.load.Alike, "alike", 0, "with --serve: `TOKENS` at the beginning of all prompts that are the same")
	f.StringVar(&s.cache, "cache", "",
		"with --serve: share blocks of prompts: `SIZE` of a cache of its own, like 64MiB, or the address of a 'weft kv serve'")
	f.BoolVar(&s.compare, "compare", false, "with --serve: interleave the three modes and compare them with the formula")
	f.IntVar(&s.rounds, "rounds", 7, "with --serve --compare: `REQUESTS` of each mode")
}

// common are the flags of 'up' that --serve has, too.
var common = []string{"serve", "prefill", "decode", "mode", "users", "requests", "prompt", "answer", "rate", "path", "patience", "alike",
	"cache", "compare", "rounds",
	"model", "seed", "for", "listen", "json", "quiet", "drill", "drill-seed", "check", "help"}

// wrong says which flag does not belong.
func (s *serveFlags) wrong(f *pflag.FlagSet) error {
	var bad []string
	f.Visit(func(x *pflag.Flag) {
		if s.on && !slices.Contains(common, x.Name) {
			bad = append(bad, "--"+x.Name)
		}
		if !s.on && slices.Index(common, x.Name) >= 0 && slices.Index(common, x.Name) <= slices.Index(common, "rounds") {
			bad = append(bad, "--"+x.Name)
		}
	})
	switch {
	case len(bad) == 0:
		return nil
	case s.on:
		return fmt.Errorf("%s: of training; leave it out with --serve", strings.Join(bad, ", "))
	}
	return fmt.Errorf("%s: of serving; add --serve", strings.Join(bad, ", "))
}

// run serves until the load is done.
func (s *serveFlags) run(cmd *cobra.Command, o up.Options, asJSON, quiet bool) error {
	kills, stops, err := s.settle(cmd, o)
	if err != nil {
		return err
	}
	log := io.Discard
	if !quiet {
		log = cmd.ErrOrStderr()
	}
	s.o.Log = slog.New(slog.NewTextHandler(log, nil))
	ctx, stop := signal.NotifyContext(cmd.Context(), ending()...)
	defer stop()
	context.AfterFunc(ctx, stop)
	c, err := infer.Start(ctx, s.o)
	if err != nil {
		return finding{err}
	}
	defer c.Close()
	out := cmd.OutOrStdout()
	said := out // what is told on the way
	if asJSON || quiet {
		said = io.Discard
	}
	if o.Listen != "" {
		server, err := servePage(said, o, c)
		if err != nil {
			return finding{err}
		}
		defer server.Close()
	}
	if s.compare {
		rows, err := c.Compare(ctx, s.load, s.rounds)
		if err != nil {
			return finding{err}
		}
		if asJSON {
			return printJSON(out, rows)
		}
		return s.printModes(out, rows)
	}
	if o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.For)
		defer cancel()
	}
	begun := time.Now()
	tally, err := s.drive(ctx, said, c, kills, stops, o.Seed)
	st := c.Status()
	if asJSON {
		if e := printJSON(out, struct {
			infer.Tally
			infer.Status
		}{tally, st}); e != nil {
			return e
		}
	} else {
		s.printTally(out, tally, st, time.Since(begun))
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return finding{err}
	}
	return nil
}

// settle makes the settings of the cluster and of its load out of the flags, and counts the kills and stops of the drill.
func (s *serveFlags) settle(cmd *cobra.Command, o up.Options) (kills, stops int, err error) {
	s.o.Model = infer.Small()
	switch s.model {
	case "small":
	case "tiny":
		s.o.Model.Config = model.Tiny()
		s.o.Model.Config.Context = 160
		if !cmd.Flags().Changed("prompt") {
			s.load.Prompt = 96
		}
	default:
		return 0, 0, fmt.Errorf("--model %q with --serve; known: small, tiny", s.model)
	}
	s.o.Model.Seed, s.load.Seed, s.load.Check, s.load.Mode = o.Train.Seed, o.Train.Seed, o.Check, infer.Mode(s.mode)
	if s.rate != "" {
		if s.o.Rate, err = unit.ParseRate(s.rate); err != nil {
			return 0, 0, fmt.Errorf("--rate: %w", err)
		}
	}
	if err := s.load.Fits(s.o.Model); err != nil {
		return 0, 0, err
	}
	if s.cache != "" {
		if _, _, err := net.SplitHostPort(s.cache); err == nil {
			s.o.Cache, s.o.Token = s.cache, os.Getenv("WEFT_TOKEN")
		} else if n, err := unit.ParseBytes(s.cache); err == nil && n > 0 {
			s.o.CacheMemory = int64(n)
		} else {
			return 0, 0, fmt.Errorf("--cache %q: want a size, like 64MiB, or HOST:PORT of a 'weft kv serve'", s.cache)
		}
	}
	for _, x := range o.Drill {
		switch x.Kind {
		case "kill":
			kills += x.Count
		case "stop":
			stops += x.Count
		default:
			return 0, 0, fmt.Errorf("--drill %s: with --serve there are kill and stop", x.Kind)
		}
	}
	s.o.Path = s.path
	switch {
	case s.o.Patience <= 0:
		return 0, 0, fmt.Errorf("--patience %s: want more than nothing", s.o.Patience)
	case o.For < 0:
		return 0, 0, fmt.Errorf("--for %s: want more than nothing", o.For)
	case s.compare && (s.rounds < 1 || s.o.Prefill < 1):
		return 0, 0, fmt.Errorf("--compare with --rounds %d and --prefill %d: want at least 1 of each", s.rounds, s.o.Prefill)
	case !s.compare && cmd.Flags().Changed("rounds"):
		return 0, 0, errors.New("--rounds needs --compare")
	}
	if o.Listen != "" {
		if _, err := hostPort(o.Listen, 0); err != nil {
			return 0, 0, fmt.Errorf("--listen %w", err)
		}
	}
	if err := s.o.Check(); err != nil {
		return 0, 0, err
	}
	s.o.Program = append(o.Program, "serve-worker")
	return kills, stops, nil
}

// servePage serves the page of the cluster, and says where.
func servePage(out io.Writer, o up.Options, c *infer.Cluster) (*http.Server, error) {
	ln, err := net.Listen("tcp", o.Listen)
	if err != nil && o.Fallback {
		host, _, _ := net.SplitHostPort(o.Listen)
		ln, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", o.Listen, err)
	}
	server := &http.Server{Handler: c.Handler(), ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(ln)
	fmt.Fprintf(out, "page        http://%s\n", ln.Addr())
	fmt.Fprintf(out, "api         http://%s/v1, model %s\n", ln.Addr(), infer.Name)
	return server, nil
}

// drive puts the load on the cluster while the drill breaks its workers, and says every two seconds how it goes.
func (s *serveFlags) drive(ctx context.Context, out io.Writer, c *infer.Cluster, kills, stops int, seed uint64) (infer.Tally, error) {
	begun := time.Now()
	over, broken := make(chan struct{}), make(chan struct{})
	work, end := context.WithCancel(ctx)
	go func() { defer close(broken); c.Break(work, kills, stops, seed) }()
	go func() {
		defer close(over)
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for asked := -1; ; {
			select {
			case <-tick.C:
				st := c.Status()
				if st.Asked == asked {
					continue
				}
				asked = st.Asked
				fmt.Fprintf(out, "%8.3f s  %d requests%s\n", time.Since(begun).Seconds(), st.Asked, spreads(st))
			case <-work.Done():
				return
			}
		}
	}()
	tally, err := c.Drive(ctx, s.load)
	end()
	<-over
	<-broken
	return tally, err
}

// printTally says how it went.
func (s *serveFlags) printTally(out io.Writer, tally infer.Tally, st infer.Status, took time.Duration) {
	if s.load.Users == 0 {
		tally.Requests = st.Asked
	}
	fmt.Fprintf(out, "requests    %d in %.1f s, %d failed%s\n", tally.Requests, took.Seconds(), tally.Failed, spreads(st))
	for _, w := range st.Workers {
		fmt.Fprintf(out, "worker      %s %s: %d done, %d restarts\n", w.Name, w.Role, w.Done, w.Restarts)
	}
	if k := st.Cache; k != nil {
		fmt.Fprintf(out, "cache       %s: %d of %d blocks found, %d stored, %v by transfers%s\n",
			k.Address, k.Found, k.Asked, k.Stored, unit.Bytes(k.Moved), k.Error)
	}
	if s.load.Check {
		fmt.Fprintf(out, "checked     %d answers, %d differ from one process's\n", tally.Checked, tally.Wrong)
	}
}

// printModes prints the ways in which a cache can come, side by side.
func (s *serveFlags) printModes(out io.Writer, rows []infer.Row) error {
	fmt.Fprintf(out, "prompts of %d tokens, %v of KV cache, %d layers; interleaved medians of %d requests per mode\n",
		s.load.Prompt, unit.Bytes(rows[0].Bytes), s.o.Model.Config.Layers, s.rounds)
	t := newTable(out)
	fmt.Fprintln(t, "cache comes\tfirst token\tbetween tokens\tprefill\ttransfer exposed\tby the formula\thidden")
	for _, r := range rows {
		hidden, exposed, formula, prefill := "", "", "", ""
		if r.Mode != infer.Recompute {
			exposed, formula, prefill = short(r.Exposed), short(r.Formula), short(r.Prefill)
		}
		if r.Mode == infer.Stream {
			hidden = fmt.Sprintf("%.0f%%", 100*r.Hidden)
		}
		if r.Mode == infer.Cached {
			formula, hidden = "", fmt.Sprintf("%d blocks from the cache", r.Shared)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Mode, short(r.TTFT), short(r.TPOT), prefill, exposed, formula, hidden)
	}
	return t.Flush()
}

func spreads(s infer.Status) (text string) {
	for i, x := range s.TTFT {
		text += fmt.Sprintf("; %s: first token %s (p99 %s), between tokens %s", x.Mode, short(x.P50), short(x.P99), short(s.TPOT[i].P50))
	}
	return text
}

// short is a time with three digits.
func short(d time.Duration) string {
	if d >= time.Second {
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.3g ms", float64(d)/1e6)
}

// newOutsideAgent is what programs in other languages start for their transfers.
func newOutsideAgent() *cobra.Command {
	return &cobra.Command{
		Use: "xfer-agent", Hidden: true, Short: "The agent of a program in another language, which speaks JSON to it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := outside.Main(cmd.InOrStdin(), cmd.OutOrStdout()); err != nil {
				return finding{err}
			}
			return nil
		},
	}
}

// newServeWorker is what 'up --serve' starts its workers with.
func newServeWorker() *cobra.Command {
	return &cobra.Command{
		Use: "serve-worker", Hidden: true, Short: "One worker of 'weft up --serve'", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := infer.WorkerMain(cmd.InOrStdin(), cmd.OutOrStdout()); err != nil {
				return finding{err}
			}
			return nil
		},
	}
}
