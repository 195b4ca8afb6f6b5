package up

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
	"github.com/weft-fabric/weft/run/elastic/node"
	"github.com/weft-fabric/weft/run/elastic/rank"
	"github.com/weft-fabric/weft/run/train"
	"github.com/weft-fabric/weft/view/report"
)

// siteVariable holds what an agent in a process of its own is told, in JSON.
const siteVariable = "WEFT_TEST_SITE"

// siteConfig is the agent of one host of several.
type siteConfig struct {
	Name      string // of the host
	Addr      string
	Endpoints []string
	External  bool // the coordinator is an etcd that others run
	Token     string
	Slots     []int
	Min, Max  int
	Rank      rank.Config
}

// line is what an agent says of one event.
type line struct {
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`
	Slot  int       `json:"slot"`
	Pid   int       `json:"pid,omitempty"`
	Text  string    `json:"text,omitempty"`
	Epoch uint64    `json:"epoch,omitempty"`
	Size  int       `json:"size,omitempty"` // members of the epoch
	Step  int       `json:"step,omitempty"`
	Loss  float64   `json:"loss,omitempty"`
}

// agent is the process of an agent: it says what happens, a line for each event,
// and stops all ranks after the same step when its input ends.
func agent() error {
	var c siteConfig
	if err := json.Unmarshal([]byte(os.Getenv(siteVariable)), &c); err != nil {
		return err
	}
	signal.Ignore(syscall.SIGINT)
	ctx := context.Background()
	client, err := coord.Dial(ctx, coord.Config{Endpoints: c.Endpoints, Job: "drill", Token: c.Token, External: c.External, Wait: limit})
	if err != nil {
		return err
	}
	defer client.Close()
	text, err := json.Marshal(c.Rank)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	n, err := node.New(node.Config{
		Client: client, Policy: coord.Policy{Min: c.Min, Max: c.Max, Settle: 2 * time.Second, Name: c.Name},
		Slots: c.Slots, Command: []string{os.Args[0], "rank"}, Follow: true, Host: c.Name, Addr: c.Addr, Restarts: 1000,
		Env: []string{rank.Env + "=" + string(text), siteVariable + "="}, Stderr: os.Stderr,
		Watch: func(e node.Event) {
			if l, ok := tell(e); ok {
				_ = out.Encode(l)
			}
		},
	})
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		n.Stop()
	}()
	return n.Run(ctx)
}

// tell makes a line of an event, if it is worth one.
func tell(e node.Event) (line, bool) {
	l := line{At: e.At, Kind: e.Kind, Slot: e.Slot, Pid: e.Pid, Text: e.Text}
	switch e.Kind {
	case node.Started, node.Silent, node.Heard, node.GaveUp, node.Trouble:
	case node.Exited:
		l.Text = fate(e.Exit)
	case node.Decided:
		l.Epoch, l.Size, l.Text = e.Epoch.Number, len(e.Epoch.Members), e.Epoch.Reason
	case node.Placed:
		l.Epoch, l.Text = e.Place.Epoch.Number, string(e.Place.Standing)
	case node.Said:
		l.Kind, l.Epoch, l.Text = string(e.Word.Kind), e.Word.Epoch, e.Word.Text
		switch {
		case e.Word.Kind == elastic.Formed, e.Word.Kind == elastic.Failed, e.Word.Kind == elastic.Stuck, e.Word.Kind == elastic.Broken,
			e.Word.Kind == elastic.Knew:
		case e.Word.Name == rank.Stepped:
			var s report.Step
			if json.Unmarshal(e.Word.Data, &s) != nil {
				return l, false
			}
			l.Kind, l.Epoch, l.Step, l.Loss = "step", s.Epoch, s.Step, s.Loss
		default:
			return l, false
		}
	default:
		return l, false
	}
	return l, true
}

// site is an agent's process as the test has it.
type site struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	over chan struct{} // closed when it has ended
	err  error
	errs bytes.Buffer

	mu    sync.Mutex
	lines []line
	mark  int
	news  chan struct{}
}

// open starts an agent; within runs the start where it is to run.
func open(t *testing.T, c siteConfig, within func(func() error) error) *site {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, name: c.Name, over: make(chan struct{}), news: make(chan struct{})}
	s.cmd = bounded.Server(t, os.Args[0], "agent")
	s.cmd.Env = append(os.Environ(), siteVariable+"="+string(text))
	s.cmd.Stderr = &s.errs
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := within(s.cmd.Start); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.over)
		in := bufio.NewScanner(out)
		for in.Scan() {
			var l line
			if json.Unmarshal(in.Bytes(), &l) != nil {
				continue
			}
			s.mu.Lock()
			s.lines = append(s.lines, l)
			close(s.news)
			s.news = make(chan struct{})
			s.mu.Unlock()
		}
		s.err = s.cmd.Wait()
	}()
	t.Cleanup(func() {
		s.in.Close()
		select {
		case <-s.over:
		case <-bounded.After(t, limit):
			t.Errorf("the agent %s does not end", s.name)
			s.cmd.Process.Kill() // its ranks die with it
			<-s.over
		}
		if t.Failed() {
			t.Logf("%s: %v\n%s%s", s.name, s.err, s.errs.String(), script(time.Time{}, s))
		}
	})
	return s
}

// from marks the moment from which on lines are awaited.
func (s *site) from() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark = len(s.lines)
}

// await waits for a line since the mark.
func (s *site) await(what string, want func(line) bool) line {
	s.t.Helper()
	late := bounded.After(s.t, limit)
	s.mu.Lock()
	at := s.mark
	s.mu.Unlock()
	for {
		s.mu.Lock()
		for ; at < len(s.lines); at++ {
			if l := s.lines[at]; want(l) {
				s.mu.Unlock()
				return l
			}
		}
		news := s.news
		s.mu.Unlock()
		select {
		case <-news:
		case <-s.over:
			s.t.Fatalf("%s: waiting for %s: the agent has ended: %v", s.name, what, s.err)
		case <-late:
			s.t.Fatalf("%s: waiting for %s", s.name, what)
		}
	}
}

// at waits until a slot has taken a step in an epoch of size ranks.
func (s *site) at(slot, size int) line {
	s.t.Helper()
	of := map[uint64]int{}
	s.mu.Lock()
	for _, l := range s.lines[:s.mark] {
		if l.Kind == node.Decided {
			of[l.Epoch] = l.Size
		}
	}
	s.mu.Unlock()
	var early []line // steps of epochs whose size is not known yet
	return s.await(fmt.Sprintf("a step of slot %d among %d", slot, size), func(l line) bool {
		if l.Kind == node.Decided {
			of[l.Epoch] = l.Size
			return slices.ContainsFunc(early, func(x line) bool { return of[x.Epoch] == size })
		}
		if l.Kind != "step" || l.Slot != slot {
			return false
		}
		early = append(early, l)
		return of[l.Epoch] == size
	})
}

// ends lets all ranks stop and waits for the agent's end.
func (s *site) ends() {
	s.t.Helper()
	s.in.Close()
	select {
	case <-s.over:
	case <-bounded.After(s.t, limit):
		s.t.Fatalf("the agent %s goes on", s.name)
	}
	if s.err != nil {
		s.t.Errorf("%s: %v\n%s", s.name, s.err, s.errs.String())
	}
}

// compare holds the losses that agents told against those of one process that
// nobody disturbed: every step must be there.
func compare(t *testing.T, cfg train.Config, list ...*site) (steps int, worst float64) {
	t.Helper()
	losses := map[int]float64{}
	for _, s := range list {
		for _, l := range s.lines {
			if l.Kind == "step" {
				losses[l.Step] = l.Loss
				steps = max(steps, l.Step)
			}
		}
	}
	cfg.Layout = train.Layout{}
	alone, err := train.New(context.Background(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	for alone.Taken() < steps {
		s, err := alone.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		loss, ok := losses[s.Step]
		if !ok {
			t.Errorf("nobody took step %d of %d", s.Step, steps)
		}
		worst = max(worst, math.Abs(loss-s.Loss)/s.Loss)
	}
	if worst > 1e-3 {
		t.Errorf("the losses differ by %v", worst)
	}
	return steps, worst
}

// script is what agents said, in the order of time, in seconds since an instant, but
// for steps.
func script(since time.Time, list ...*site) string {
	type entry struct {
		line
		who string
	}
	var all []entry
	for _, s := range list {
		s.mu.Lock()
		for _, l := range s.lines {
			if l.Kind != "step" {
				all = append(all, entry{l, s.name})
			}
		}
		s.mu.Unlock()
	}
	slices.SortStableFunc(all, func(a, b entry) int { return a.At.Compare(b.At) })
	if since.IsZero() && len(all) > 0 {
		since = all[0].At
	}
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "%8.3f s  %s  ", e.At.Sub(since).Seconds(), e.who)
		if e.Slot >= 0 {
			fmt.Fprintf(&b, "slot %d ", e.Slot)
		}
		b.WriteString(e.Kind)
		if e.Epoch > 0 {
			fmt.Fprintf(&b, " epoch %d", e.Epoch)
		}
		if e.Size > 0 {
			fmt.Fprintf(&b, " of %d", e.Size)
		}
		if e.Text != "" {
			b.WriteString(": " + e.Text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// keep writes a transcript where WEFT_TEST_TRANSCRIPTS says, for docs/reference/tables/elastic.md.
func keep(t *testing.T, text string) {
	dir := os.Getenv("WEFT_TEST_TRANSCRIPTS")
	if dir == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+".txt"), []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// here starts what is started on this host.
func here(f func() error) error { return f() }
