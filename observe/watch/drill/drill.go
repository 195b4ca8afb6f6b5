// Package drill breaks real ranks on purpose and measures whether weft watch names what
// was broken: which fault, which rank, after how many seconds. Ranks are processes that
// run collectives over TCP; an agent and a server watch them as they would any job.
package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/server"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/fault"
	"github.com/weft-fabric/weft/run/launch"
)

// Env names the folder in which a patient finds its orders.
const Env = "WEFT_TEST_ORDERS"

// Patient is the program of a rank: an all-reduce of 1 MiB, a rest of 20 ms, and so on
// until it is ended.
func Patient(ctx context.Context) error {
	if os.Getenv(hogEnv) != "" {
		return hog(ctx)
	}
	cfg, err := comm.FromEnv()
	if err != nil {
		return err
	}
	c, err := comm.Join(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	orders := fault.Take(os.Getenv(Env), c.Rank())
	data := make([]float32, 1<<18)
	gathered := make([]float32, len(data)*c.Size())
	var eaten [][]byte
	for ctx.Err() == nil {
		o := orders.Now()
		rest := 20 * time.Millisecond
		switch o.What {
		case "slow":
			rest += o.Time
		case "hang":
			<-ctx.Done()
			return nil
		case "mismatch":
			if err := comm.AllGather(ctx, c, gathered, data); err != nil {
				return err
			}
			continue
		case "exit":
			os.Exit(int(o.Bytes))
		case "write":
			if err := os.WriteFile(filepath.Join(os.Getenv(Env), "disk", "checkpoint"), make([]byte, o.Bytes), 0o644); err != nil {
				return err
			}
		case "eat":
			for n := int64(0); n < o.Bytes && len(eaten)<<20 < int(o.Bytes); n += 1 << 20 {
				b := make([]byte, 1<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
				eaten = append(eaten, b)
			}
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return nil
		}
		if err := comm.AllReduce(ctx, c, data, comm.Sum); err != nil {
			return err
		}
	}
	return nil
}

// Fault is something to break.
type Fault struct {
	Name   string
	Kinds  []string // incidents that name it
	Limit  float64  // seconds within which the verdict must come
	inject func(t *trial, victim int) (undo func(), err error)
}

// hangLimit is the time limit for hangs in drills, in seconds: faults are to be named soon.
const hangLimit = 5.0

// Faults are the kinds there are.
var Faults = []Fault{
	{"late rank", []string{"straggler"}, 5, func(t *trial, v int) (func(), error) { return t.order(v, "slow 60ms") }},
	{"stopped rank", []string{"rank-stopped"}, 5, func(t *trial, v int) (func(), error) {
		return func() { t.signal(v, syscall.SIGCONT) }, t.signal(v, syscall.SIGSTOP)
	}},
	{"dying rank", []string{"rank-dead"}, 5, func(t *trial, v int) (func(), error) { return nil, t.signal(v, syscall.SIGKILL) }},
	{"hanging rank", []string{"hang"}, hangLimit + 5, func(t *trial, v int) (func(), error) { return t.order(v, "hang") }},
	{"rank in another collective", []string{"mismatch"}, 5, func(t *trial, v int) (func(), error) { return t.order(v, "mismatch") }},
	{"slow link", []string{"slow-link", "slow-sender", "slow-receiver"}, 5, (*trial).throttle},
	{"full memory", []string{"memory-full"}, 5, (*trial).fill},
}

// throttle slows the link from a rank to the one that it sends most to.
func (t *trial) throttle(rank int) (func(), error) {
	peer, most := -1, 0.0
	for _, l := range t.server.View().Links {
		for _, c := range l.Cells {
			if c.From == rank && c.Bytes > most {
				peer, most = c.To, c.Bytes
			}
		}
	}
	if peer < 0 {
		return nil, fmt.Errorf("rank %d was not seen to send anything", rank)
	}
	t.want = []int{rank, peer}
	_, undo, err := fault.Throttle(t.pid(rank), t.pid(peer), 4e6)
	return undo, err
}

// errSkip is a fault that cannot be injected here.
var errSkip = errors.New("not run")

// Row is a line of the table.
type Row struct {
	Fault    string    `json:"fault"`
	Injected int       `json:"injected"`
	Detected int       `json:"detected"`
	Right    int       `json:"right_subject"`
	Seconds  []float64 `json:"seconds"` // to each verdict
	Limit    float64   `json:"limit_s"`
	Others   int       `json:"other_alarms"` // incidents that named something else meanwhile
	Note     string    `json:"note,omitempty"`
}

// Table is the result of drills.
type Table struct {
	Rows        []Row    `json:"rows"`
	Healthy     float64  `json:"healthy_s"` // of undisturbed running
	FalseAlarms int      `json:"false_alarms"`
	Alarms      []string `json:"alarms,omitempty"`
	Hogs        int      `json:"hogs,omitempty"`
	Load        float64  `json:"load_average,omitempty"` // over the last minute of the healthy job
}

// Options of drills.
type Options struct {
	Program []string // starts a patient
	Ranks   int      // 4 if 0
	Trials  int      // of each fault; 1 if 0
	Faults  []string // names; all if empty
	Healthy time.Duration
	Hogs    int // busy processes next to the ranks of the healthy job
	Log     io.Writer
}

// Check refuses options that no drill can be run with.
func (o *Options) Check() error {
	if o.Ranks < 2 && o.Ranks != 0 {
		return fmt.Errorf("--ranks %d: a job that others wait in has at least 2", o.Ranks)
	}
	if o.Hogs < 0 {
		return fmt.Errorf("--hogs %d: want 0 or more", o.Hogs)
	}
	var known []string
	for _, f := range Faults {
		known = append(known, f.Name)
	}
	for _, name := range o.Faults {
		if name != "none" && !slices.Contains(known, name) {
			return fmt.Errorf("--faults: no fault %q; known: none, %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// Run injects every fault and gives the table.
func Run(ctx context.Context, o Options) (Table, error) {
	o.Ranks = cmp.Or(o.Ranks, 4)
	o.Trials = max(o.Trials, 1)
	if o.Log == nil {
		o.Log = io.Discard
	}
	var t Table
	for _, f := range Faults {
		if len(o.Faults) > 0 && !slices.Contains(o.Faults, f.Name) {
			continue
		}
		row := Row{Fault: f.Name, Limit: f.Limit}
		for k := range o.Trials {
			victim := (k*7 + 1) % o.Ranks
			if err := o.one(ctx, f, victim, &row); errors.Is(err, errSkip) {
				row.Note = err.Error()
				break
			} else if err != nil {
				return t, fmt.Errorf("%s, trial %d: %w", f.Name, k+1, err)
			}
		}
		t.Rows = append(t.Rows, row)
	}
	if o.Healthy > 0 {
		if err := o.undisturbed(ctx, &t); err != nil {
			return t, err
		}
	}
	return t, ctx.Err()
}

// one injects a fault once.
func (o *Options) one(ctx context.Context, f Fault, victim int, row *Row) (failed error) {
	t, err := o.start(ctx, hangLimit)
	if err != nil {
		return err
	}
	defer func() { failed = errors.Join(failed, t.stop()) }()
	before := len(t.alarms())
	at := time.Now()
	undo, err := f.inject(t, victim)
	if err != nil {
		return err
	}
	if undo != nil {
		defer undo()
	}
	row.Injected++
	want := t.want
	if want == nil {
		want = []int{victim}
	}
	slices.Sort(want)
	deadline := time.After(time.Duration((f.Limit + 10) * float64(time.Second)))
	for {
		for _, i := range t.alarms()[before:] {
			if !slices.Contains(f.Kinds, i.Kind) {
				continue
			}
			took := i.Began - float64(at.UnixNano())/1e9
			row.Detected++
			row.Seconds = append(row.Seconds, took)
			// Everything on the way of a sender or receiver is named by it.
			if slices.Equal(i.Subject.Ranks, want) || i.Kind != f.Kinds[0] && len(i.Subject.Ranks) == 1 &&
				slices.Contains(want, i.Subject.Ranks[0]) {
				row.Right++
			}
			for _, x := range t.alarms()[before:] {
				if !slices.Contains(f.Kinds, x.Kind) && x.Began <= i.Began {
					row.Others++
				}
			}
			fmt.Fprintf(o.Log, "%-28s %5.1f s  %s\n", f.Name, took, i.Verdict)
			return nil
		}
		select {
		case <-t.heard:
		case <-deadline:
			fmt.Fprintf(o.Log, "%-28s no verdict; heard of %v; links %+v\n", f.Name, kinds(t.alarms()[before:]), t.server.View().Links)
			row.Others += len(t.alarms()) - before
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func kinds(list []watch.Incident) (out []string) {
	for _, i := range list {
		out = append(out, i.Verdict)
	}
	return out
}

// trial is a job that runs, watched.
type trial struct {
	n      int
	dir    string
	server *server.Server
	cancel context.CancelFunc
	over   chan error
	wg     sync.WaitGroup
	heard  chan struct{}
	cgroup string
	hang   float64 // the limit for hangs; 0 is the server's own
	want   []int   // ranks that must be named; nil is the victim alone

	mu    sync.Mutex
	procs map[int]*launch.Process
	list  []watch.Incident
}

// atWork counts the ranks that have done enough operations for the server to know what is usual.
func (t *trial) atWork() (n int) {
	rows, _ := t.server.Rows("", "", 0, 100)
	for _, r := range rows {
		if r.Seq > 60 {
			n++
		}
	}
	return n
}

// start starts a job and waits until it is seen at work.
func (o *Options) start(ctx context.Context, hang float64) (*trial, error) {
	t := &trial{n: o.Ranks, hang: hang, procs: map[int]*launch.Process{}, over: make(chan error, 1), heard: make(chan struct{}, 64)}
	var err error
	if t.dir, err = os.MkdirTemp("", "weft-drill-"); err != nil {
		return nil, err
	}
	t.server, err = server.New(server.Config{Watch: t.config(), Dir: t.store(), Notice: t.notice})
	if err != nil {
		return nil, err
	}
	ctx, t.cancel = context.WithCancel(ctx)
	c := agent.Default()
	c.Host, c.Pulse, c.Ranks = "drill-host", 500*time.Millisecond, t.processes
	c.Send = func(_ context.Context, r *watch.Report) (watch.Answer, error) { return t.server.Take(r) }
	a := agent.New(c)
	t.wg.Add(2)
	go func() { defer t.wg.Done(); a.Run(ctx) }()
	go func() { defer t.wg.Done(); t.server.Run(ctx) }()
	job, stop := context.WithCancel(ctx)
	cancel := t.cancel
	t.cancel = func() { stop(); cancel() }
	go func() {
		_, err := launch.Run(job, launch.Spec{N: o.Ranks, Command: o.Program, Grace: -1, KeepGoing: true,
			Env: []string{"WEFT_TRANSPORT=tcp", "WEFT_WATCH=" + t.dir, "WEFT_FLIGHT_DIR=" + t.dir, "WEFT_TIMEOUT=60s", Env + "=" + t.dir,
				"WEFT_LOG=off"},
			Started: func(p *launch.Process) { t.mu.Lock(); t.procs[p.Rank] = p; t.mu.Unlock() }})
		t.over <- err
	}()
	limit := time.Now().Add(40 * time.Second)
	for {
		done := t.atWork()
		if done == o.Ranks && t.senders() == o.Ranks {
			break
		}
		select {
		case err := <-t.over:
			t.over <- err
			t.stop()
			return nil, fmt.Errorf("the ranks ended: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(limit) {
			t.stop()
			return nil, fmt.Errorf("%d of %d ranks were at work after 40 s", done, o.Ranks)
		}
	}
	return t, nil
}

// senders is how many ranks were seen to send.
func (t *trial) senders() int {
	from := map[int]bool{}
	for _, l := range t.server.View().Links {
		for _, c := range l.Cells {
			from[c.From] = true
		}
	}
	return len(from)
}

// stop ends what the trial started and removes its files. Stopped processes are continued first, or they could not end.
// The error says whether a replay of the recording disagreed.
func (t *trial) stop() error {
	t.mu.Lock()
	for _, p := range t.procs {
		_ = syscall.Kill(p.Pid, syscall.SIGCONT)
	}
	t.mu.Unlock()
	t.cancel()
	<-t.over
	t.wg.Wait()
	unlike := t.replayed()
	if t.cgroup != "" {
		_ = os.Remove(t.cgroup)
	}
	return errors.Join(unlike, os.RemoveAll(t.dir))
}

func (t *trial) config() watch.Config { return watch.Config{Title: "drill", Hang: t.hang} }

// store is where the server keeps what it heard.
func (t *trial) store() string { return filepath.Join(t.dir, "store") }

// replayed judges what the server kept again. The incidents must be those that it told.
func (t *trial) replayed() error {
	var again []string
	words := func(i watch.Incident) string { return fmt.Sprintf("%s %v at %.1f", i.Kind, i.Subject, i.Began) }
	err := server.Replay(t.store(), t.config(), 0, 1e18, func(_ float64, _ *watch.Machine, news []watch.Incident) bool {
		for _, i := range news {
			if i.Ended == 0 {
				again = append(again, words(i))
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	var live []string
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.list {
		live = append(live, words(i))
	}
	if !slices.Equal(live, again) {
		return fmt.Errorf("live %q, in a replay %q", live, again)
	}
	return nil
}

func (t *trial) notice(i watch.Incident) {
	if i.Ended > 0 {
		return
	}
	t.mu.Lock()
	t.list = append(t.list, i)
	t.mu.Unlock()
	select {
	case t.heard <- struct{}{}:
	default:
	}
}

// alarms are the incidents of the job so far; the state of the host is not its matter.
func (t *trial) alarms() (out []watch.Incident) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, i := range t.list {
		if i.Kind != "check" {
			out = append(out, i)
		}
	}
	return out
}

// processes are the ranks of this job alone, that still run.
func (t *trial) processes() (list []doctor.Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for rank, p := range t.procs {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid)); err == nil && !strings.Contains(string(b), ") Z ") {
			list = append(list, doctor.Process{Host: "drill-host", PID: p.Pid, Rank: rank, World: t.n, Job: "drill", Local: rank,
				Env: map[string]string{"WEFT_WATCH": t.dir, "WEFT_FLIGHT_DIR": t.dir}})
		}
	}
	return list
}

func (t *trial) pid(rank int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.procs[rank].Pid
}

func (t *trial) signal(rank int, s syscall.Signal) error { return syscall.Kill(t.pid(rank), s) }

func (t *trial) order(rank int, text string) (func(), error) {
	return func() { _ = fault.Give(t.dir, rank, "") }, fault.Give(t.dir, rank, text)
}

// fill lets a rank use up the memory that its control group may use.
func (t *trial) fill(rank int) (func(), error) {
	const limit = 192 << 20
	base, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(base); err != nil {
		base, file = "/sys/fs/cgroup", "memory.max"
	}
	dir := filepath.Join(base, fmt.Sprintf("weft-drill-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("%w: a memory control group needs root: %v", errSkip, err)
	}
	t.cgroup = dir
	for f, v := range map[string]string{file: strconv.Itoa(limit), "cgroup.procs": strconv.Itoa(t.pid(rank))} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(v), 0o644); err != nil {
			os.Remove(dir)
			return nil, fmt.Errorf("%w: a memory control group needs root: %v", errSkip, err)
		}
	}
	// What the process had before it moved is not counted here.
	return t.order(rank, fmt.Sprintf("eat %d", limit*97/100))
}
