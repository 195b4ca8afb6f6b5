// Package up brings an elastic training run up on this machine and shows it at
// work: a coordinator, an agent with its ranks, and a page to watch.
//
//	weft up ─┬─ weft coord          embedded etcd, its state in a directory; started again if it dies
//	         ├─ weft rank           one process a rank, each started again if it dies
//	         ├─ weft rank ...
//	         ├─ page                package web, fed by what ranks and coordinator say
//	         └─ drill               kills ranks at random instants, if asked to
//
// Every failure becomes an incident: when it happened, when the last survivor knew,
// when all of them trained again, and what was lost.
package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	watching "github.com/weft-fabric/weft/observe/watch/server"
	"github.com/weft-fabric/weft/run/ckpt"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic/node"
	"github.com/weft-fabric/weft/run/elastic/rank"
	"github.com/weft-fabric/weft/run/launch"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/checkpoint"
	"github.com/weft-fabric/weft/run/train/model"
	"github.com/weft-fabric/weft/view/web"
)

// Options are a run. Program is the only one without a useful zero value.
type Options struct {
	Program []string // the weft binary and what comes before its verbs
	Ranks   int      // 4 if 0
	Min     int      // below which, for half a minute, the run stops with a checkpoint; 1 if 0
	Train   train.Config
	For     time.Duration // how long to train; 0: until told to stop
	Steps   int           // how far to train; 0: no end
	Drill   Drill
	Seed    uint64 // of the drill's instants and victims

	comeBack time.Duration // how long ranks that died are waited for if fewer than Min are at work; half a minute if 0

	lasting time.Duration // how long drills slow, hang and link last; as their constants say if 0

	Ckpt  string // where checkpoints go and come from; empty: a folder that goes with the run
	Every int    // steps between checkpoints; 0: none
	Keep  int

	Batch    bool   // Train.Batch was asked for: a checkpoint of another batch is refused, not followed
	Check    bool   // compare every step's loss with that of an undisturbed run
	Contrast int    // every Contrast steps one without overlap, for comparison
	Command  string // as the page shows it
	Listen   string // of the page; empty: none
	Fallback bool   // any other port will do for the page
	Env      []string

	// Place, where set, puts a rank into another network than this process's: see node.Config.
	Place func(slot int) (words []string, addr string)

	Log     io.Writer                       // progress for people; nil: silence
	Summary io.Writer                       // figures at the end, for people; nil: none
	Ready   func(page, ckpt string)         // called once ranks are being started
	Journal func(at time.Time, line string) // hears every event of the run
}

// UseError is what is wrong with the options rather than with the run.
type UseError struct{ error }

// Unwrap is the error itself.
func (e UseError) Unwrap() error { return e.error }

func wrong(format string, a ...any) error { return UseError{fmt.Errorf(format, a...)} }

func (o *Options) complete() error {
	if o.Ranks == 0 {
		o.Ranks = 4
	}
	if o.Min == 0 {
		o.Min = 1
	}
	if o.comeBack == 0 {
		o.comeBack = 30 * time.Second
	}
	switch {
	case o.Ranks < 1 || o.Ranks > launch.MaxRanks:
		return wrong("%d ranks; give 1 to %d", o.Ranks, launch.MaxRanks)
	case o.Min < 1 || o.Min > o.Ranks:
		return wrong("at least %d of %d ranks; give 1 to %d", o.Min, o.Ranks, o.Ranks)
	case o.For < 0 || o.Steps < 0 || o.Every < 0 || o.Keep < 0 || o.Contrast < 0:
		return wrong("a time or a number of steps below 0 (for %v, steps %d, checkpoint every %d, keep %d)", o.For, o.Steps, o.Every, o.Keep)
	}
	if err := o.Train.Check(o.Ranks); err != nil {
		return UseError{err}
	}
	if slices.ContainsFunc(o.Drill, func(x Exercise) bool { return x.Kind == "link" }) && !slices.Contains(o.Env, "WEFT_TRANSPORT=tcp") {
		return wrong("drill link throttles connections, and ranks of one host have none unless told so; add --transport tcp")
	}
	if o.Check && o.Train.Elastic == train.ScaleRate {
		return wrong("--check compares with a run on %d ranks, and with --elastic rate the batch follows the ranks; use --elastic batch", o.Ranks)
	}
	return nil
}

// turns lets one write at a time.
type turns struct {
	mu sync.Mutex
	to io.Writer
}

func (t *turns) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.to.Write(b)
}

// run is one under way.
type run struct {
	o       Options
	dir     string // the coordinator's state, and checkpoints that nobody asked to keep
	token   string
	name    string
	port    *launch.Port
	client  *coord.Client
	node    *node.Node
	board   *web.Board
	ledger  *ledger
	shown   web.Job // on the page; guarded by the ledger
	started time.Time
	keeps   bool // checkpoints were asked for

	watch *watching.Server

	mu       sync.Mutex
	master   *launch.Process // the coordinator
	ending   bool
	verdicts []Verdict
}

// Run trains until it is over or ctx ends, and says how it went. The first end of
// ctx lets ranks finish their step; what they do not finish within the grace is
// killed.
func Run(ctx context.Context, o Options) (s Summary, err error) {
	if err := o.complete(); err != nil {
		return s, err
	}
	if o.Log != nil {
		o.Log = &turns{to: o.Log}
	}
	r := &run{o: o, started: time.Now(), name: "up", keeps: o.Ckpt != ""}
	var remove func() error
	if r.dir, remove, err = launch.TempDir("up"); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	if r.o.Ckpt == "" && r.o.Every > 0 {
		r.o.Ckpt = filepath.Join(r.dir, "checkpoints")
	} else if r.o.Ckpt != "" {
		taken, err := r.checkPlace(ctx)
		if err != nil {
			return s, err
		}
		if o.Steps > 0 && taken >= o.Steps {
			return o.takenAlready(taken)
		}
	}
	if r.token, err = launch.NewToken(); err != nil {
		return s, err
	}
	r.board = web.NewBoard()
	if err := r.observe(); err != nil {
		return s, err
	}
	page, stop, err := r.serve()
	if err != nil {
		return s, err
	}
	defer stop()
	ended, err := r.coordinate(ctx)
	if err != nil {
		return s, err
	}
	defer func() {
		r.mu.Lock()
		r.ending = true
		r.mu.Unlock()
		r.killCoordinator()
		<-ended
		r.port.Release()
	}()
	r.client, err = coord.Dial(ctx, coord.Config{Endpoints: []string{r.address()}, Job: r.name, Token: r.token, Wait: time.Minute,
		TTL: coord.OneHost})
	if err != nil {
		return s, err
	}
	defer func() { _ = r.client.Close() }()
	r.ledger = newLedger(r)
	if err := r.agent(); err != nil {
		return s, err
	}
	if o.Ready != nil {
		o.Ready(page, r.o.Ckpt)
	}
	return r.conclude(ctx, r.train(ctx))
}

// takenAlready is the end of a run whose checkpoint has all of its steps.
func (o *Options) takenAlready(taken int) (s Summary, err error) {
	if o.Summary != nil {
		_, err = fmt.Fprintf(o.Summary, "step %d has been taken already: the checkpoint in %s is of step %d; give --steps above that to go on\n",
			o.Steps, o.Ckpt, taken)
	}
	return Summary{Steps: taken, Ranks: o.Ranks, Incidents: []Incident{}}, err
}

// conclude says what came of a run whose training has ended, with err.
func (r *run) conclude(ctx context.Context, err error) (Summary, error) {
	r.over()
	s := r.ledger.summary()
	r.mu.Lock()
	s.Verdicts = slices.Clone(r.verdicts)
	r.mu.Unlock()
	if err == nil && r.o.Check {
		if ctx.Err() != nil { // what ended training does not end this
			ctx = context.WithoutCancel(ctx)
		}
		err = r.check(ctx, &s)
	}
	if r.keeps && s.Steps > 0 {
		if e := r.unsaved(context.WithoutCancel(ctx), &s); err == nil {
			err = e
		}
	}
	if r.o.Summary != nil && s.Steps > 0 {
		if e := s.Print(r.o.Summary); err == nil {
			err = e
		}
	}
	return s, err
}

// unsaved counts the steps that no checkpoint has, as the checkpoints themselves say; it is an error if there are any.
func (r *run) unsaved(ctx context.Context, s *Summary) error {
	store, err := ckpt.Open(ctx, r.o.Ckpt, ckpt.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	m, _, err := store.Latest(ctx)
	if err != nil && !errors.Is(err, ckpt.ErrNone) {
		return fmt.Errorf("whether step %d is saved is not known: %w", s.Steps, err)
	}
	s.Unsaved = s.Steps
	if m != nil {
		s.Unsaved = s.Steps - int(m.Step)
	}
	if s.Unsaved <= 0 {
		s.Unsaved = 0
		return nil
	}
	return fmt.Errorf("the last %d steps are not saved: the run ended after step %d, the newest checkpoint in %s is of step %d%s; make it possible to write there and run the same again",
		s.Unsaved, s.Steps, r.o.Ckpt, s.Steps-s.Unsaved, r.ledger.whyUnsaved())
}

// checkPlace finds out before anything starts whether checkpoints can be written
// and whether those that are there are of this run.
func (r *run) checkPlace(ctx context.Context) (taken int, err error) {
	if parent, _, ok := ckpt.Within(r.o.Ckpt); ok {
		return 0, wrong("%s is the folder of one checkpoint; give the folder it lies in: --ckpt %s", r.o.Ckpt, parent)
	}
	store, err := ckpt.Open(ctx, r.o.Ckpt, ckpt.Options{})
	if err != nil {
		return 0, UseError{err}
	}
	defer func() { _ = store.Close() }()
	if !strings.Contains(r.o.Ckpt, "://") {
		if err := os.MkdirAll(r.o.Ckpt, 0o755); err != nil {
			return 0, wrong("checkpoints cannot be kept: %v; give a folder that can be made", err)
		}
		f, err := os.CreateTemp(r.o.Ckpt, ".weft-probe-*")
		if err != nil {
			return 0, wrong("checkpoints cannot be kept in %s: %v; give a folder that can be written to", r.o.Ckpt, err)
		}
		_ = f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return 0, wrong("checkpoints cannot be kept in %s: %v", r.o.Ckpt, err)
		}
	}
	m, damaged, err := store.Latest(ctx)
	if errors.Is(err, ckpt.ErrNone) && len(damaged) == 0 {
		return 0, nil
	}
	if errors.Is(err, ckpt.ErrNone) {
		return 0, fmt.Errorf("every checkpoint is damaged: mend them, or move them away to begin from the seed: %w", err)
	}
	if err != nil {
		return 0, UseError{err}
	}
	have, err := checkpoint.Meta(m)
	if err != nil {
		return 0, UseError{err}
	}
	want := r.o.Train
	if have.Model != want.Model || have.Seed != want.Seed {
		return 0,
			wrong("the checkpoint of step %d in %s is of another run: %s with seed %d, asked for is %s with seed %d; continue that one with its --model and --seed, or give another --ckpt",
				m.Step, r.o.Ckpt, describe(have.Model), have.Seed, describe(want.Model), want.Seed)
	}
	batch := have.Batch
	if want.Elastic == train.ScaleRate { // samples of a replica stay
		batch = (have.Batch + have.Layout.DP - 1) / have.Layout.DP * want.Layout.Fit(r.o.Ranks).DP
	}
	if batch != want.Batch && r.o.Batch {
		return 0,
			wrong("the checkpoint of step %d in %s was trained with --batch %d, asked for is --batch %d; continue with %d, or give another --ckpt",
				m.Step, r.o.Ckpt, batch, want.Batch, batch)
	}
	r.o.Train.Batch = batch
	return int(m.Step), nil
}

// describe is a model in a few words.
func describe(m model.Config) string {
	return fmt.Sprintf("%s: %d layers of width %d, context %d", m.Kind, m.Layers, m.Width, m.Context)
}

// serve starts the page.
func (r *run) serve() (page string, stop func(), err error) {
	if r.o.Listen == "" {
		return "", func() {}, nil
	}
	ln, err := net.Listen("tcp", r.o.Listen)
	if err != nil && r.o.Fallback {
		host, _, _ := net.SplitHostPort(r.o.Listen)
		ln, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return "", nil, wrong("the page cannot be served at %s: %v; give another --listen ADDRESS, or --listen '' for no page", r.o.Listen, err)
	}
	s := &http.Server{Handler: r.pages(), ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		_ = s.Serve(ln) // until Close
	}()
	return "http://" + ln.Addr().String(), func() {
		r.board.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx) // so that pages hear of the end; who does not listen is cut off
		_ = s.Close()
		wg.Wait()
	}, nil
}

func (r *run) address() string { return fmt.Sprintf("127.0.0.1:%d", r.port.Number) }

// coordinate starts the coordinator, and starts it again whenever it dies.
func (r *run) coordinate(ctx context.Context) (ended chan struct{}, err error) {
	if r.port, err = launch.HoldPort(); err != nil {
		return nil, err
	}
	command := append(append([]string{}, r.o.Program...), "coord", "--dir", filepath.Join(r.dir, "coordinator"), "--listen", r.address(),
		"--job", r.name, "--no-sync")
	exits := make(chan *launch.Process, 1)
	start := func() error {
		p, err := launch.Start(launch.Command{Rank: -1, Args: command, Env: []string{"WEFT_TOKEN=" + r.token}}, exits)
		if err != nil {
			return fmt.Errorf("the coordinator: %w", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.master = p
		if r.ending {
			p.Kill()
		}
		return nil
	}
	if err := start(); err != nil {
		r.port.Release()
		return nil, err
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		for p := range exits {
			exit := p.Wait()
			r.mu.Lock()
			over := r.ending
			r.mu.Unlock()
			if over {
				return
			}
			r.note("coordinator", -1, "%s; it is started again on its directory", fate(exit))
			timer := time.NewTimer(500 * time.Millisecond) // one that cannot start must not be started without end
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			if err := start(); err != nil {
				r.note("error", -1, "%v", err)
				return
			}
		}
	}()
	return ended, nil
}

func (r *run) killCoordinator() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.master != nil {
		r.master.Kill()
	}
}

// saving is how long ranks that were told to stop have to end, with a checkpoint.
const saving = time.Minute

// agent makes the node's agent.
func (r *run) agent() error {
	// Checkpoints of launches must not mix, should one be killed while it writes.
	own, err := launch.NewToken()
	if err != nil {
		return err
	}
	text, err := json.Marshal(rank.Config{Run: r.name + "-" + own[:8], Train: r.o.Train, Steps: r.o.Steps, Contrast: r.o.Contrast,
		Ckpt: r.o.Ckpt, Every: r.o.Every, Last: r.keeps, Keep: r.o.Keep, Orders: r.orders()})
	if err != nil {
		return err
	}
	slots := make([]int, r.o.Ranks)
	for i := range slots {
		slots[i] = i
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	// What ranks print goes to the page, and their last words are in what the agent tells.
	var screen launch.Screen
	log := func(slot int) io.Writer {
		return launch.Lines(lines(func(at time.Time, text string) { r.board.Log(slot, at, text) }), &screen, func() string { return "" })
	}
	r.node, err = node.New(node.Config{
		Client: r.client, Policy: coord.Policy{Min: r.o.Min, Max: r.o.Ranks, Settle: 2 * time.Second, Return: r.o.comeBack, Name: "up"},
		Slots: slots, Command: append(append([]string{}, r.o.Program...), "rank"), Follow: true, Host: host, Restarts: 1000, Grace: saving,
		Place: r.o.Place, Env: append([]string{rank.Env + "=" + string(text), "WEFT_FLIGHT=1024", "WEFT_WATCH=" + r.lives()}, r.o.Env...),
		Watch:  r.ledger.watch,
		Output: func(_, local int, _, _ io.Writer) (io.Writer, io.Writer) { return log(local), log(local) },
	})
	return err
}

// lines takes whole lines.
type lines func(at time.Time, text string)

func (f lines) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		f(time.Now(), strings.TrimRight(line, "\r\n"))
	}
	return len(b), nil
}

// train lets the node work until it is over.
func (r *run) train(ctx context.Context) error {
	hard, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	var wg sync.WaitGroup
	defer wg.Wait()
	drills, endDrills := context.WithCancel(ctx)
	defer endDrills()
	wg.Add(3)
	go func() {
		defer wg.Done()
		r.look(drills)
	}()
	go func() {
		defer wg.Done()
		r.ledger.report(drills)
	}()
	go func() {
		defer wg.Done()
		r.limit(drills)
		r.node.Stop()
	}()
	err := r.node.Run(hard)
	var failure *launch.Failure
	if errors.As(err, &failure) {
		return fmt.Errorf("a rank failed again and again: %w", failure)
	}
	return err
}

// limit returns when training is to stop: its time is up and the drill is over, or
// ctx has ended.
func (r *run) limit(ctx context.Context) {
	if !r.ledger.first(ctx) {
		return
	}
	var end <-chan time.Time
	if r.o.For > 0 {
		timer := time.NewTimer(r.o.For)
		defer timer.Stop()
		end = timer.C
	}
	if len(r.o.Drill) > 0 {
		if !r.drill(ctx) {
			return
		}
		if r.o.For == 0 {
			return
		}
	}
	select {
	case <-end:
	case <-ctx.Done():
	}
}

// Transport is the environment of ranks that use a transport other than the fastest.
func Transport(kind string) ([]string, error) {
	switch kind {
	case "":
		return nil, nil
	case "shm", "tcp":
		return []string{"WEFT_TRANSPORT=" + kind}, nil
	}
	return nil, wrong("transport %q; known: shm, tcp", kind)
}
