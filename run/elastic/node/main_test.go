package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/elastic"
)

// role is the environment variable by which the test's own program is started as
// something else.
const role = "WEFT_TEST_NODE"

const token = "0123456789abcdef0123456789abcdef"

// address is that of the coordinator of all tests, each of which has its own job.
var address string

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "coordinator":
		serve()
		return
	case "follower":
		os.Exit(follow())
	case "plain":
		os.Exit(plain())
	case "stubborn":
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGTERM)
		fmt.Printf("pid=%d\n", os.Getpid())
		<-heard
		fmt.Printf("pid=%d\n", os.Getpid())
		time.Sleep(time.Hour) // it does not heed SIGTERM
	case "agent":
		os.Exit(agent())
	}
	at, stop, err := begin()
	address = at
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		stop()
		os.Exit(code)
	}))
}

// begin starts the coordinator.
func begin() (at string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "weft-node-test-")
	if err != nil {
		return "", nil, err
	}
	if os.Getenv("XDG_CACHE_HOME") == "" || address == "" {
		if err := os.Setenv("XDG_CACHE_HOME", dir); err != nil {
			return "", nil, err
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(os.Environ(), role+"=coordinator", "WEFT_TEST_NODE_DIR="+dir+"/state")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), sync.OnceFunc(func() {
		in.Close() // it ends with its input
		_ = cmd.Wait()
		os.RemoveAll(dir)
	}), err
}

// serve is the coordinator's process.
func serve() {
	s, err := coord.Serve(context.Background(), coord.ServerConfig{Dir: os.Getenv("WEFT_TEST_NODE_DIR"), Listen: "127.0.0.1:0", Token: token,
		NoSync: true})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(s.Address())
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = s.Close()
}

// errJob is an error of a job that nobody can mend.
var errJob = errors.New("the text has no letters")

// follower is a program that follows epochs: its steps add up ones. SIGUSR1 ends
// it with code 3, SIGUSR2 breaks the job, SIGTERM has it leave.
type follower struct {
	link  *elastic.Link
	c     *comm.Comm
	e     elastic.Epoch
	steps int64
	fault chan os.Signal
}

// What a follower reports, both with the number of steps taken.
const (
	stepped = "stepped"
	saved   = "saved"
)

func follow() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	f := &follower{fault: make(chan os.Signal, 1)}
	signal.Notify(f.fault, syscall.SIGUSR1, syscall.SIGUSR2)
	link, err := elastic.Connect()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	f.link = link
	fmt.Println("hello of a follower")
	err = elastic.Run(ctx, link, f)
	link.Close(err)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (f *follower) Form(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	f.c, f.e = c, e
	most := []int64{f.steps}
	if err := comm.AllReduce(ctx, c, most, comm.Max); err != nil {
		return err
	}
	f.steps = most[0]
	return nil
}

func (f *follower) Step(ctx context.Context) (bool, error) {
	select {
	case s := <-f.fault:
		if s == syscall.SIGUSR1 {
			fmt.Fprintln(os.Stderr, "last words")
			os.Exit(3)
		}
		return false, errJob
	default:
	}
	ones := []int64{1}
	if err := comm.AllReduce(ctx, f.c, ones, comm.Sum); err != nil {
		return false, err
	}
	f.steps++
	f.link.Progress(int(f.steps), time.Millisecond)
	time.Sleep(2 * time.Millisecond) // what a step takes
	return false, f.link.Report(stepped, f.steps)
}

func (f *follower) Halt(ctx context.Context, c *comm.Comm, e elastic.Epoch) error {
	return f.link.Report(saved, f.steps)
}

// plain is a program that does not follow epochs: it prints what it is told and
// waits. SIGUSR1 ends it with code 3, SIGUSR2 with 0, SIGTERM with 143 as is usual.
func plain() int {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM)
	var say []string
	for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
		"TORCHELASTIC_RESTART_COUNT", "GROUP_RANK", "GROUP_WORLD_SIZE", "WEFT_SLOT", "WEFT_EPOCH", "WEFT_TOKEN", "OWN"} {
		say = append(say, name+"="+os.Getenv(name))
	}
	fmt.Printf("pid=%d %s\n", os.Getpid(), strings.Join(say, " "))
	switch <-end {
	case syscall.SIGUSR1:
		return 3
	case syscall.SIGUSR2:
		return 0
	}
	return 143
}

// limit bounds what a test waits for; it is no measure of speed.
const limit = 45 * time.Second

// house is an agent under test.
type house struct {
	t    *testing.T
	n    *Node
	end  context.CancelFunc
	done chan error

	mu     sync.Mutex
	events []Event
	lines  []string // of standard output
	mark   int      // event from which on await looks
	news   chan struct{}
}

// Write takes a line of standard output.
func (h *house) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")...)
	h.wake()
	return len(b), nil
}

func (h *house) wake() {
	close(h.news)
	h.news = make(chan struct{})
}

// jobOf is the name of a test's job, another one each time that it is run.
func jobOf(t *testing.T) string {
	jobs.Lock()
	defer jobs.Unlock()
	if jobs.of[t] == 0 {
		jobs.of[t] = len(jobs.of) + 1
	}
	return fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), jobs.of[t])
}

var jobs = struct {
	sync.Mutex
	of map[*testing.T]int
}{of: map[*testing.T]int{}}

// open sets an agent to work, with a job of the test's name.
func open(t *testing.T, verb string, set func(*Config)) *house {
	t.Helper()
	return openAt(t, address, verb, set)
}

// openAt does so with a coordinator of the test's own.
func openAt(t *testing.T, address, verb string, set func(*Config)) *house {
	t.Helper()
	h := &house{t: t, news: make(chan struct{}), done: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// No host falls silent here, and none loses its places because the machine stands still for a moment.
	client, err := coord.Dial(ctx, coord.Config{Endpoints: []string{address}, Job: jobOf(t), Token: token, TTL: coord.OneHost})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Client: client, Command: []string{os.Args[0]}, Env: []string{role + "=" + verb}, Follow: verb == "follower",
		Host: "here", Settle: 200 * time.Millisecond, Stdout: h,
		Watch: func(e Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.events = append(h.events, e)
			h.wake()
		}}
	set(&cfg)
	if cfg.Policy.Settle == 0 {
		cfg.Policy.Settle = 200 * time.Millisecond
	}
	if h.n, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	run, end := context.WithCancel(context.Background())
	h.end = end
	go func() { h.done <- h.n.Run(run) }()
	t.Cleanup(func() {
		end()
		if err := h.ends(); err == nil && t.Failed() {
			t.Log("the agent has ended")
		}
		client.Close()
		for pid := range h.pids() {
			if syscall.Kill(pid, 0) == nil {
				t.Errorf("process %d is left", pid)
			}
		}
	})
	return h
}

// ends waits for the agent's end.
func (h *house) ends() error {
	h.t.Helper()
	select {
	case err := <-h.done:
		h.done <- err
		return err
	case <-time.After(limit):
		h.t.Fatal("the agent goes on")
		return nil
	}
}

// signal sends one to the process of a slot; what is awaited from then on is what
// follows.
func (h *house) signal(i int, sig syscall.Signal) int {
	h.mu.Lock()
	h.mark = len(h.events)
	h.mu.Unlock()
	return h.n.Signal(i, sig)
}

// await waits for an event since the last signal; each is shown to want once.
func (h *house) await(what string, want func(Event) bool) Event {
	h.t.Helper()
	late := time.After(limit)
	h.mu.Lock()
	next := h.mark
	h.mu.Unlock()
	for {
		h.mu.Lock()
		for next < len(h.events) {
			e := h.events[next]
			next++
			if want(e) {
				h.mu.Unlock()
				return e
			}
		}
		news := h.news
		h.mu.Unlock()
		select {
		case <-news:
		case <-late:
			h.t.Fatalf("waiting for %s: it did not come; %s", what, h.story())
		}
	}
}

// story is what happened, but for steps and words of life.
func (h *house) story() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, e := range h.events {
		if e.Word.Kind == elastic.Beat || e.Word.Kind == elastic.Report {
			continue
		}
		fmt.Fprintf(&b, "\n  slot %d pid %d %s %s %s", e.Slot, e.Pid, e.Kind, e.Text, e.Word.Kind)
		switch e.Kind {
		case Decided:
			fmt.Fprintf(&b, "epoch %d of %d: %s", e.Epoch.Number, len(e.Epoch.Members), e.Epoch.Reason)
		case Placed:
			fmt.Fprintf(&b, "%s in epoch %d: %s", e.Place.Standing, e.Place.Epoch.Number, e.Place.Why)
		}
	}
	return b.String()
}

// pids are the processes that were started, and their slots.
func (h *house) pids() map[int]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[int]int{}
	for _, e := range h.events {
		if e.Kind == Started {
			all[e.Pid] = e.Slot
		}
	}
	return all
}

// count is the number of events of a kind.
func (h *house) count(kind string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, e := range h.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// steps waits until a slot has taken a step in an epoch of that number of members.
func (h *house) steps(slot, members int) {
	h.t.Helper()
	var number uint64 // of the epoch
	formed := false
	h.await(fmt.Sprintf("a step of slot %d among %d", slot, members), func(e Event) bool {
		if e.Slot != slot {
			return false
		}
		if e.Kind == Placed && e.Place.Standing == coord.Active && len(e.Place.Epoch.Members) == members {
			number = e.Place.Epoch.Number
		}
		formed = formed || number > 0 && e.Word.Kind == elastic.Formed && e.Word.Epoch >= number
		return formed && e.Word.Name == stepped
	})
}

// times is true for the nth event that want is true for.
func times(n int, want func(Event) bool) func(Event) bool {
	return func(e Event) bool {
		if want(e) {
			n--
		}
		return n == 0
	}
}

// told is what a plain process printed.
type told map[string]string

// prints waits until n processes altogether have printed what they are told, and
// gives all of it by pid.
func (h *house) prints(n int) map[string]told {
	h.t.Helper()
	var all map[string]told
	h.until(fmt.Sprintf("%d processes to say something", n), func() bool {
		all = h.told()
		return len(all) >= n
	})
	return all
}

// told is what processes have printed, by pid; the caller holds mu. One may print
// before the agent knows that it has started, and is not to be signalled until then.
func (h *house) told() map[string]told {
	started := map[string]bool{}
	for _, e := range h.events {
		if e.Kind == Started {
			started[pid(e.Pid)] = true
		}
	}
	all := map[string]told{}
	for _, l := range h.lines {
		one := told{}
		for _, f := range strings.Fields(l) {
			name, value, _ := strings.Cut(f, "=")
			one[name] = value
		}
		if started[one["pid"]] {
			all[one["pid"]] = one
		}
	}
	return all
}

// alive reports whether a process has not ended; the caller holds mu.
func (h *house) alive(p string) bool {
	for _, e := range h.events {
		if e.Kind == Exited && pid(e.Pid) == p {
			return false
		}
	}
	return true
}

// until waits for cond, which is called with mu held.
func (h *house) until(what string, cond func() bool) {
	h.t.Helper()
	late := time.After(limit)
	for {
		h.mu.Lock()
		met, news := cond(), h.news
		h.mu.Unlock()
		if met {
			return
		}
		select {
		case <-news:
		case <-late:
			h.t.Fatalf("waiting for %s: it did not come; %s", what, h.story())
		}
	}
}

func pid(p int) string { return fmt.Sprint(p) }
