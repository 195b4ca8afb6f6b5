package up

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic/rank"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/run/train/model"
)

// The test's own program has the verbs that a run starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "coord":
			exit(coordinator(os.Args[2:]))
		case "rank":
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			exit(rank.Main(ctx))
		case "agent":
			exit(agent())
		}
	}
	// Ranks measure the machine once for all tests, and what runs leave behind is
	// looked for in a folder of their own.
	dir, err := os.MkdirTemp("", "weft-test-of-up-")
	if err != nil {
		exit(err)
	}
	os.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	os.Setenv("TMPDIR", filepath.Join(dir, "tmp"))
	if err := os.Mkdir(os.Getenv("TMPDIR"), 0o700); err != nil {
		exit(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		for _, what := range leftOver() {
			fmt.Fprintln(os.Stderr, "left behind:", what)
			code = 1
		}
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func coordinator(args []string) error {
	var c coord.ServerConfig
	f := flag.NewFlagSet("coord", flag.ContinueOnError)
	f.StringVar(&c.Dir, "dir", "", "")
	f.StringVar(&c.Listen, "listen", "", "")
	f.StringVar(&c.Job, "job", "", "")
	f.BoolVar(&c.NoSync, "no-sync", false, "")
	f.StringVar(&c.Name, "name", "", "")
	peers := f.String("peers", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *peers != "" {
		c.Peers = strings.Split(*peers, ",")
	}
	c.Token = os.Getenv("WEFT_TOKEN")
	s, err := coord.Serve(context.Background(), c)
	if err != nil {
		return err
	}
	return <-s.Err()
}

// leftOver is what runs have left: processes and temporary folders. Their shared memory has no names, and so ends with them;
// what has one is of other programs that run beside the test.
func leftOver() (list []string) {
	for _, p := range children() {
		list = append(list, fmt.Sprintf("process %d: %s", p.pid, p.verb))
	}
	found, _ := os.ReadDir(os.TempDir())
	for _, e := range found {
		if strings.HasPrefix(e.Name(), "weft-up-") {
			list = append(list, "folder "+e.Name())
		}
	}
	return list
}

// process is a child of this one.
type process struct {
	pid  int
	verb string // coord or rank
	slot int
}

// children are those that this process has, by what the kernel says.
func children() (list []process) {
	found, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range found {
		text, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(text)) {
			p := process{slot: -1}
			p.pid, _ = strconv.Atoi(s)
			args, _ := os.ReadFile("/proc/" + s + "/cmdline")
			if parts := strings.Split(string(args), "\x00"); len(parts) > 1 {
				p.verb = parts[1]
			}
			env, _ := os.ReadFile("/proc/" + s + "/environ")
			for _, v := range strings.Split(string(env), "\x00") {
				if slot, ok := strings.CutPrefix(v, "WEFT_SLOT="); ok {
					p.slot, _ = strconv.Atoi(slot)
				}
			}
			list = append(list, p)
		}
	}
	return list
}

// limit bounds what a test waits for; it is no measure of speed.
const limit = time.Minute

// tiny is a run that takes a few milliseconds a step.
func tiny() train.Config {
	c := train.Default()
	c.Model, c.Batch, c.Micro = model.Tiny(), 16, 4
	return c
}

// show is a run under test.
type show struct {
	t    *testing.T
	stop context.CancelFunc
	over chan struct{}
	sum  Summary
	err  error

	stood func() time.Duration // how long the machine stood still

	mu    sync.Mutex
	lines []string
	mark  int
	news  chan struct{}
}

func (s *show) note(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
	close(s.news)
	s.news = make(chan struct{})
}

// begin starts a run.
func begin(t *testing.T, o Options) *show {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &show{t: t, stop: cancel, over: make(chan struct{}), news: make(chan struct{}), stood: bounded.StoodStill(t)}
	o.Program = []string{os.Args[0]}
	o.Journal = func(_ time.Time, line string) { s.note(line) }
	if o.Train.Batch == 0 {
		o.Train = tiny()
	}
	go func() {
		defer close(s.over)
		s.sum, s.err = Run(ctx, o)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-s.over:
		case <-bounded.After(t, limit):
			t.Errorf("the run does not end; %s", s.story())
			return
		}
		for _, p := range children() {
			t.Errorf("process %d (%s) is left", p.pid, p.verb)
		}
		if t.Failed() {
			t.Log(s.story())
		}
	})
	return s
}

func (s *show) story() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "the journal:\n  " + strings.Join(s.lines, "\n  ")
}

// await waits for a line of the journal since the last kill.
func (s *show) await(words ...string) string {
	s.t.Helper()
	late := bounded.After(s.t, limit)
	for {
		s.mu.Lock()
		news := s.news
		for _, l := range s.lines[s.mark:] {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) }) {
				s.mu.Unlock()
				return l
			}
		}
		s.mu.Unlock()
		select {
		case <-news:
		case <-s.over:
			s.t.Fatalf("waiting for %q: the run has ended: %v", words, s.err)
		case <-late:
			s.t.Fatalf("waiting for %q", words)
		}
	}
}

// hurt sends a signal to a child: kind is coord or rank, and slot is of a rank.
func (s *show) hurt(sig syscall.Signal, verb string, slot int) int {
	s.t.Helper()
	s.mu.Lock()
	s.mark = len(s.lines)
	s.mu.Unlock()
	for _, p := range children() {
		if p.verb == verb && p.slot == slot {
			if err := syscall.Kill(p.pid, sig); err != nil {
				s.t.Fatal(err)
			}
			return p.pid
		}
	}
	s.t.Fatalf("no %s of slot %d among %v", verb, slot, children())
	return 0
}

// ends waits for the run's end.
func (s *show) ends() (Summary, error) {
	s.t.Helper()
	select {
	case <-s.over:
		return s.sum, s.err
	case <-bounded.After(s.t, limit):
		s.t.Fatal("the run goes on")
		return Summary{}, nil
	}
}

// checked ends a run that is compared with an undisturbed one: every step from one
// on has the loss that it would have had.
func (s *show) checked(from int) Summary {
	s.t.Helper()
	sum, err := s.ends()
	if err != nil {
		s.t.Fatal(err)
	}
	if sum.Checked != sum.Steps-from+1 || sum.Steps < from {
		s.t.Errorf("%d losses of steps %d to %d were compared", sum.Checked, from, sum.Steps)
	}
	// The sums of gradients over other numbers of ranks round differently.
	if sum.Deviation == nil || *sum.Deviation > 1e-3 {
		s.t.Errorf("the losses differ by %v", sum.Deviation)
	}
	return sum
}

// counted runs a scenario whose summary counts its faults, and no more. Where that is wrong and the machine itself stood still for
// longer than half a lease, leases may have ended because of that: then the scenario runs again.
func counted(t *testing.T, scenario func() (s *show, sum Summary, right bool)) (*show, Summary) {
	t.Helper()
	for range 4 {
		s, sum, right := scenario()
		stood := s.stood()
		if right || stood <= coord.TTL/2 {
			if !right {
				t.Errorf("%+v", sum)
			}
			return s, sum
		}
		t.Logf("the machine stood still for %v, and a lease lasts %v: %+v", stood, coord.TTL, sum)
	}
	t.Fatal("the machine stood still in every run")
	return nil, Summary{}
}

// A count that is wrong is an error, unless the machine stood still: then the next run counts.
func TestCountsAgain(t *testing.T) {
	runs := 0
	_, sum := counted(t, func() (*show, Summary, bool) {
		stood := []time.Duration{coord.TTL, coord.TTL, 0}[runs]
		runs++
		return &show{stood: func() time.Duration { return stood }}, Summary{Steps: runs}, runs == 3
	})
	if runs != 3 || sum.Steps != 3 {
		t.Errorf("%d runs, %+v", runs, sum)
	}
}

func isUse(err error) bool { return errors.As(err, new(UseError)) }

// contents are the files of a folder.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		all[path] = string(bytes.Clone(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
