package comm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/comm/internal/clock"
)

// Ranks that are processes: the test binary starts itself again, once for each
// rank, and a rank finds in its environment what it is to do. Orders come to it
// through one pipe and what it has to tell goes back through another, both as
// JSON, so a parent knows at which point a rank is when it kills or stops it.

const (
	envBody     = "WEFT_TEST_COMM_BODY"
	envListener = "WEFT_TEST_COMM_LISTENER"
	ordersFile  = 3
	eventsFile  = 4
	masterFile  = 5
)

// order is what a rank is to do next; what its fields mean is up to the body.
type order struct {
	Do         string         `json:"do"`
	Op         string         `json:"op,omitempty"`
	Type       string         `json:"type,omitempty"`
	Count      int            `json:"count,omitempty"`
	Root       int            `json:"root,omitempty"`
	Max        bool           `json:"max,omitempty"` // reduce by Max, not by Sum
	Registered bool           `json:"registered,omitempty"`
	InPlace    bool           `json:"inPlace,omitempty"`
	Limit      time.Duration  `json:"limit,omitempty"`
	Delay      time.Duration  `json:"delay,omitempty"`
	Until      string         `json:"until,omitempty"` // a folder: work until "over" is in it, and put "lost.RANK" there when a link or path is lost
	Tell       bool           `json:"tell,omitempty"`  // say so once inside the operation
	Exit       bool           `json:"exit,omitempty"`  // once inside
	Cut        bool           `json:"cut,omitempty"`   // a stream, once inside
	Times      int            `json:"times,omitempty"`
	Seed       uint64         `json:"seed,omitempty"`
	Steps      int            `json:"steps,omitempty"`  // of a trade, after which the rank signals itself
	Pieces     int            `json:"pieces,omitempty"` // of a growing stage, after which it does
	Moves      int            `json:"moves,omitempty"`  // of its port, after which it does
	Signal     syscall.Signal `json:"signal,omitempty"`
}

// event is what a rank tells.
type event struct {
	At       string          `json:"at"`
	Clock    int64           `json:"clock"`
	Began    int64           `json:"began,omitempty"` // of the operation, by the same clock
	Err      string          `json:"err,omitempty"`
	Kind     Kind            `json:"kind,omitempty"`
	Culprits []int           `json:"culprits,omitempty"`
	Data     string          `json:"data,omitempty"`
	Stall    time.Duration   `json:"stall,omitempty"` // the longest time that the process was not scheduled, lately
	Value    json.RawMessage `json:"value,omitempty"`
}

// kid is a rank in its process.
type kid struct {
	c      *Comm // of the whole world
	orders *json.Decoder
	events *json.Encoder
	dup    *Comm // of the case under way
	pulse  pulse
}

// pulse finds out how long the machine let the process wait for a core: with
// more work than cores, time limits of a fraction of a second mean nothing.
type pulse struct {
	worst atomic.Int64
	stop  chan struct{}
	wg    sync.WaitGroup
}

func (p *pulse) start() {
	p.stop = make(chan struct{})
	p.wg.Go(func() {
		const beat = 5 * time.Millisecond
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		for last := clock.Now(); ; {
			select {
			case <-p.stop:
				return
			case <-ticker.C:
			}
			now := clock.Now()
			if late := now - last - int64(beat); late > p.worst.Load() {
				p.worst.Store(late)
			}
			last = now
		}
	})
}

func (p *pulse) end() {
	close(p.stop)
	p.wg.Wait()
}

// bodies are what ranks can do, by name.
var bodies = map[string]func(*kid) error{"serve": (*kid).serve}

// child is the main of a rank. It leaves nothing behind: no goroutine, arena or
// socket of its own, and says so last.
func child(name string) {
	k := &kid{orders: json.NewDecoder(os.NewFile(ordersFile, "orders")), events: json.NewEncoder(os.NewFile(eventsFile, "events"))}
	if err := k.main(name); err != nil {
		k.say(event{At: "broken", Err: err.Error()})
		fmt.Fprintf(os.Stderr, "rank %s: %v\n", os.Getenv("RANK"), err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (k *kid) main(name string) error {
	if os.Getenv("WEFT_TEST_COMM_FULL_SHM") != "" {
		if err := fillDevShm(); err != nil {
			return err
		}
	}
	cfg, err := FromEnv()
	if err != nil {
		return err
	}
	if os.Getenv(envListener) != "" {
		f := os.NewFile(masterFile, "master")
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		_ = f.Close()
		cfg.Listener = l
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	k.say(event{At: "started"})
	c, err := Join(ctx, cfg)
	if err != nil {
		return err
	}
	k.c = c
	k.say(event{At: "joined"})
	body := bodies[name]
	if body == nil {
		return fmt.Errorf("no body %q", name)
	}
	k.pulse.start()
	err = body(k)
	k.pulse.end()
	if err != nil {
		return err
	}
	if k.dup != nil {
		_ = k.dup.Close() // it may have failed
	}
	if err := k.c.Close(); err != nil {
		return err
	}
	if err := goleak.Find(); err != nil {
		return err
	}
	if left := openFiles(); len(left) > 0 {
		return fmt.Errorf("left open: %v", left)
	}
	k.say(event{At: "left"})
	return nil
}

// fillDevShm gives the process a /dev/shm with room for nothing.
func fillDevShm() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := unix.Mount("tiny", "/dev/shm", "tmpfs", 0, "size=4k"); err != nil {
		return fmt.Errorf("a tiny /dev/shm: %w", err)
	}
	if err := os.WriteFile("/dev/shm/filler", make([]byte, 8<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("/dev/shm is not full: %v", err)
	}
	return nil
}

// openFiles lists the arenas and sockets that the process has open or mapped.
func openFiles() []string {
	var left []string
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		// The count of run/transport/meter is one page for as long as the process lives.
		if strings.Contains(line, "/memfd:") || strings.Contains(line, "/dev/shm/") && !strings.Contains(line, "/dev/shm/weft-meter-") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && (strings.HasPrefix(to, "/memfd:") || strings.HasPrefix(to, "socket:")) {
			left = append(left, to)
		}
	}
	return left
}

func (k *kid) say(e event) {
	if e.Clock == 0 {
		e.Clock = clock.Now()
	}
	if err := k.events.Encode(e); err != nil {
		os.Exit(3) // the parent is gone
	}
}

// tell gives the event of an operation's end.
func tell(at string, err error) event {
	e := event{At: at, Clock: clock.Now()}
	if err != nil {
		e.Err = err.Error()
		var f *Failure
		if errors.As(err, &f) {
			e.Kind, e.Culprits = f.Kind, f.Culprits
		}
	}
	return e
}

// proc is a rank as its parent sees it.
type proc struct {
	t      *testing.T
	rank   int // when it was started
	cmd    *exec.Cmd
	orders io.WriteCloser
	events chan event
	stderr *output
	ended  bool
}

// output is what a rank prints; it may be looked at while the rank goes on.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// procs are the ranks of a world that live, in order.
type procs []*proc

// startProcs starts n ranks with a body and waits until all have joined.
func startProcs(t *testing.T, n int, transport, body string, env ...string) procs {
	t.Helper()
	list := spawn(t, n, transport, body, env...)
	list.joined()
	return list
}

func (list procs) joined() {
	for _, p := range list {
		p.t.Helper()
		p.await("started")
		p.await("joined")
	}
}

// spawn starts n ranks. They end with the test at the latest.
func spawn(t *testing.T, n int, transport, body string, env ...string) procs {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	master, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	port := l.Addr().(*net.TCPAddr).Port
	var list procs
	for rank := range n {
		cmd := bounded.Server(t, "/proc/self/exe")
		cmd.Env = append(os.Environ(), envBody+"="+body, "RANK="+strconv.Itoa(rank), "WORLD_SIZE="+strconv.Itoa(n),
			"LOCAL_RANK="+strconv.Itoa(rank),
			"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port), "WEFT_TRANSPORT="+transport, "WEFT_TOKEN=of the tests", "WEFT_TIMEOUT=30s",
			"WEFT_LOG=off", "GORACE=halt_on_error=1")
		if transport == "mixed" { // two hosts, unless env says otherwise
			cmd.Env = append(cmd.Env, "WEFT_HOST="+strconv.Itoa(2*rank/n))
		}
		for _, kv := range env {
			if hosts, found := strings.CutPrefix(kv, "hosts="); found { // a letter for each rank
				kv = "WEFT_HOST=" + hosts[rank:rank+1]
			}
			cmd.Env = append(cmd.Env, kv)
		}
		if slices.Contains(env, "WEFT_TEST_COMM_FULL_SHM=1") {
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		}
		var extra *os.File
		if rank == 0 {
			cmd.Env = append(cmd.Env, envListener+"=1")
			extra = master
		}
		list = append(list, startProc(t, cmd, rank, extra))
	}
	return list
}

// startProc starts a prepared command as a rank.
func startProc(t *testing.T, cmd *exec.Cmd, rank int, master *os.File) *proc {
	t.Helper()
	ordersR, ordersW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	eventsR, eventsW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{t: t, rank: rank, cmd: cmd, orders: ordersW, events: make(chan event, 1024), stderr: &output{}}
	cmd.Stderr, cmd.Stdout = p.stderr, p.stderr
	cmd.ExtraFiles = []*os.File{ordersR, eventsW}
	if master != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, master)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ordersR.Close()
	eventsW.Close()
	go func() {
		defer close(p.events)
		defer eventsR.Close()
		for d := json.NewDecoder(eventsR); ; {
			var e event
			if d.Decode(&e) != nil {
				return
			}
			p.events <- e
		}
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && p.stderr.String() != "" {
			t.Logf("rank %d: %s", rank, p.stderr)
		}
	})
	return p
}

// patience is how long the parent waits for a rank before it says that it hangs.
const patience = 90 * time.Second

// next gives the next event of a rank; false once there are no more.
func (p *proc) next() (event, bool) {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case e, ok := <-p.events:
		return e, ok
	case <-timer.C:
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // one that is stopped hears nothing
		_ = p.cmd.Wait()
		p.ended = true
		p.t.Fatalf("rank %d hangs:\n%s", p.rank, p.stderr)
	}
	return event{}, false
}

// resume waits until a rank has stopped itself, which it may do after the others gave up, and lets it go on.
func (p *proc) resume() {
	p.t.Helper()
	bounded.Until(p.t, patience, fmt.Sprintf("rank %d to stop", p.rank), func() bool { return bounded.Stopped(p.cmd.Process.Pid) })
	p.signal(syscall.SIGCONT)
}

// await gives the next event, which must be of a name.
func (p *proc) await(at string) event {
	p.t.Helper()
	e, ok := p.next()
	if !ok || e.At != at {
		p.t.Fatalf("rank %d tells %+v (%t) and not %q\n%s", p.rank, e, ok, at, p.stderr)
	}
	return e
}

// order tells a rank what to do. A rank that is dead cannot hear it.
func (p *proc) order(o order) {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	_, _ = p.orders.Write(append(b, '\n'))
}

func (list procs) order(o order) {
	for _, p := range list {
		p.order(o)
	}
}

// await gives an event of a name from every rank.
func (list procs) await(at string) []event {
	var all []event
	for _, p := range list {
		p.t.Helper()
		all = append(all, p.await(at))
	}
	return all
}

// all orders something of every rank and waits for the event of the same name.
func (list procs) all(o order) []event {
	list.order(o)
	return list.await(o.Do)
}

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends a rank and waits for its end.
func (p *proc) kill() {
	if p.ended {
		return
	}
	p.ended = true
	_ = p.cmd.Process.Kill()
	_ = p.orders.Close()
	for range p.events { // until its end of the pipe is closed
	}
	_ = p.cmd.Wait()
}

// wait waits for the end of a rank that ends by itself.
func (p *proc) wait() {
	p.ended = true
	_ = p.orders.Close()
	for range p.events {
	}
	_ = p.cmd.Wait()
}

// finish lets all ranks leave and checks that they leave nothing behind.
func (list procs) finish() {
	for _, p := range list {
		p.order(order{Do: "leave"})
	}
	for _, p := range list {
		p.t.Helper()
		for {
			e, ok := p.next()
			if !ok {
				p.t.Errorf("rank %d ended without leaving\n%s", p.rank, p.stderr)
				break
			}
			if e.At == "broken" {
				p.t.Errorf("rank %d: %s", p.rank, e.Err)
				break
			}
			if e.At == "left" {
				break
			}
		}
	}
	for _, p := range list {
		pid := p.cmd.Process.Pid
		_ = p.orders.Close()
		for range p.events {
		}
		p.ended = true
		if err := p.cmd.Wait(); err != nil {
			p.t.Errorf("rank %d: %v\n%s", p.rank, err, p.stderr)
		}
		if err := syscall.Kill(pid, 0); err == nil {
			p.t.Errorf("rank %d is still there", p.rank)
		}
		if p.stderr.String() != "" {
			p.t.Errorf("rank %d said: %s", p.rank, p.stderr)
		}
	}
}

// without is the list without one of its ranks.
func (list procs) without(i int) procs {
	return append(append(procs{}, list[:i]...), list[i+1:]...)
}
