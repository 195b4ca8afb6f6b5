package drill

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/evidence"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/server"
	"github.com/weft-fabric/weft/run/fault"
)

// These drills go through the real launcher: 'weft run --watch' starts the ranks, an
// agent finds them by their environment, and a rank is killed for good.

// weftRun is a job that 'weft run' started, watched by an agent and a server that keeps
// what it hears.
type weftRun struct {
	t      *testing.T
	dir    string // --watch
	store  string
	server *server.Server
	config watch.Config
	cmd    *exec.Cmd
	ended  chan error
	heard  chan struct{}
	shut   func() // ends the agent and the server

	mu   sync.Mutex
	list []watch.Incident
}

// built is where weft lies; TestMain removes it.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// weftBinary builds weft once for all tests.
func weftBinary(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "weft-drill-"); built.err != nil {
			return
		}
		var out []byte
		if out, built.err = bounded.Within(t, bounded.Build, "go", "build", "-o", built.dir,
			"github.com/weft-fabric/weft").CombinedOutput(); built.err != nil {
			built.err = fmt.Errorf("%w\n%s", built.err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "weft")
}

func startWeftRun(t *testing.T, ranks int, flags ...string) *weftRun {
	t.Helper()
	w := newRun(t)
	args := append([]string{"run", "-n", strconv.Itoa(ranks), "--watch", w.dir, "--transport", "tcp"}, flags...)
	w.start(ranks, weftBinary(t), append(args, "--", os.Args[0], "patient")...)
	return w
}

// newRun is a server that keeps what it hears, and an agent that tells it of a job that will be started.
func newRun(t *testing.T) *weftRun {
	t.Helper()
	w := serveRun(t)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); w.agent("n0", w.ranks).Run(ctx) }()
	end := w.shut
	w.shut = func() { cancel(); <-over; end() }
	t.Cleanup(w.shut)
	return w
}

// serveRun is a server that keeps what it hears.
func serveRun(t *testing.T) *weftRun {
	t.Helper()
	w := &weftRun{t: t, dir: t.TempDir(), store: t.TempDir(), heard: make(chan struct{}, 1), ended: make(chan error, 1),
		config: watch.Config{Title: "drill", Hang: 3}}
	var err error
	if w.server, err = server.New(server.Config{Watch: w.config, Dir: w.store, Notice: w.notice}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { defer wg.Done(); w.server.Run(ctx) }()
	w.shut = func() { cancel(); wg.Wait() }
	t.Cleanup(w.shut)
	return w
}

// agent makes one that reports as a host.
func (w *weftRun) agent(host string, ranks func() []doctor.Process) *agent.Agent {
	c := agent.Default()
	c.Host, c.Pulse, c.Ranks = host, 250*time.Millisecond, ranks
	c.Send = func(_ context.Context, r *watch.Report) (watch.Answer, error) {
		defer w.notify()
		return w.server.Take(r)
	}
	return agent.New(c)
}

// start starts a job with a launcher, and waits until its ranks are seen at work.
func (w *weftRun) start(ranks int, launcher string, args ...string) {
	w.t.Helper()
	w.cmd = bounded.Within(w.t, 2*time.Minute, launcher, args...)
	w.t.Cleanup(w.killAll) // ranks outlive some launchers that are killed
	w.cmd.Env = append(os.Environ(), Env+"="+w.dir, "WEFT_WATCH="+w.dir, "WEFT_TRANSPORT=tcp", "WEFT_TIMEOUT=60s", "WEFT_LOG=off")
	w.cmd.Stdout, w.cmd.Stderr = io.Discard, w.t.Output()
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() { w.ended <- w.cmd.Wait(); w.notify() }()
	w.atWork(ranks)
}

// atWork waits until all ranks are seen at work.
func (w *weftRun) atWork(ranks int) {
	w.t.Helper()
	w.await("all ranks at work", func() bool {
		rows, _ := w.server.Rows("", "", 0, 100)
		return len(rows) == ranks && !slices.ContainsFunc(rows, func(r watch.Row) bool { return r.Seq < 20 })
	})
}

// ranks finds the processes of this run as an agent does, and no others of the machine.
func (w *weftRun) ranks() (list []doctor.Process) {
	c := &doctor.Case{}
	evidence.Ranks(c, "n0")
	for _, p := range c.Processes {
		if p.Env["WEFT_WATCH"] == w.dir {
			list = append(list, p)
		}
	}
	return list
}

func (w *weftRun) notify() {
	select {
	case w.heard <- struct{}{}:
	default:
	}
}

func (w *weftRun) notice(i watch.Incident) {
	if i.Ended == 0 && i.Kind != "check" {
		w.mu.Lock()
		w.list = append(w.list, i)
		w.mu.Unlock()
	}
	w.notify()
}

// incidents are those of the job so far, as they opened.
func (w *weftRun) incidents() []watch.Incident {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.list)
}

// await waits until something is so; every report and incident is a reason to look.
func (w *weftRun) await(what string, so func() bool) {
	w.t.Helper()
	limit := time.After(90 * time.Second)
	for !so() {
		select {
		case <-w.heard:
		case <-limit:
			w.t.Fatalf("no %s in time; incidents %v, jobs %+v", what, kinds(w.incidents()), w.server.View().Jobs)
		}
	}
}

// pid is the process of a rank.
func (w *weftRun) pid(rank int) int {
	w.t.Helper()
	rows, _ := w.server.Rows("", "", 0, 100)
	for _, r := range rows {
		if r.Rank == rank {
			return r.PID
		}
	}
	w.t.Fatalf("rank %d is not seen", rank)
	return 0
}

func (w *weftRun) signal(rank int, s syscall.Signal) {
	w.t.Helper()
	if err := syscall.Kill(w.pid(rank), s); err != nil {
		w.t.Fatal(err)
	}
}

// kill ends a rank for good.
func (w *weftRun) kill(rank int) {
	w.t.Helper()
	w.signal(rank, syscall.SIGKILL)
}

// over waits until the run and the server's word of it are over, and says how.
func (w *weftRun) over() string {
	w.t.Helper()
	how := ""
	w.await("end of the job", func() bool {
		for _, j := range w.server.View().Jobs {
			how = j.End
		}
		return how != ""
	})
	return how
}

// said is what counts of an incident, live and in a replay.
func said(list []watch.Incident) (out []string) {
	for _, i := range list {
		verdict, _, _ := strings.Cut(i.Verdict, ";")
		out = append(out, fmt.Sprintf("%s %v %s", i.Kind, i.Subject.Ranks, verdict))
	}
	return out
}

// replayed gives the incidents of what the server kept, judged again in virtual time.
func (w *weftRun) replayed() (list []watch.Incident) {
	w.t.Helper()
	err := server.Replay(w.store, w.config, 0, 1e18, func(_ float64, _ *watch.Machine, news []watch.Incident) bool {
		for _, i := range news {
			if i.Ended == 0 && i.Kind != "check" {
				list = append(list, i)
			}
		}
		return true
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func TestKilledRankIsNamed(t *testing.T) {
	w := startWeftRun(t, 4)
	w.await("collective with a prediction", func() bool {
		return slices.ContainsFunc(w.server.View().Collectives, func(c watch.CollectiveView) bool {
			return c.Op == "all-reduce" && c.Predicted > 0 && c.Against == c.Took/c.Predicted
		})
	})
	w.kill(2)
	w.await("verdict", func() bool { return len(w.incidents()) > 0 })
	if how := w.over(); how != "failed by rank 2" {
		t.Errorf("the job %q, want failed by rank 2", how)
	}
	list := w.incidents()
	if len(list) != 1 || list[0].Kind != "rank-dead" || !slices.Equal(list[0].Subject.Ranks, []int{2}) ||
		!strings.Contains(list[0].Verdict, "SIGKILL") {
		t.Errorf("incidents %q, want rank 2, killed by SIGKILL, and nobody else", said(list))
	}
	if again := said(w.replayed()); !slices.Equal(again, said(list)) {
		t.Errorf("live %q, in a replay %q", said(list), again)
	}
}

func TestKilledRankOfAHungJobIsNamed(t *testing.T) {
	w := startWeftRun(t, 4)
	if err := fault.Give(w.dir, 1, "hang"); err != nil {
		t.Fatal(err)
	}
	w.await("hang", func() bool { return len(w.incidents()) > 0 })
	w.kill(3)
	w.await("verdict", func() bool { return len(w.incidents()) > 1 })
	if how := w.over(); how != "failed by rank 3" {
		t.Errorf("the job %q, want failed by rank 3", how)
	}
	list := w.incidents()
	if len(list) != 2 || list[0].Kind != "hang" || !slices.Equal(list[0].Subject.Ranks, []int{1}) ||
		list[1].Kind != "rank-dead" || !slices.Equal(list[1].Subject.Ranks, []int{3}) || !strings.Contains(list[1].Verdict, "SIGKILL") {
		t.Errorf("incidents %q, want that rank 1 hangs and then that rank 3 was killed", said(list))
	}
	if again := said(w.replayed()); !slices.Equal(again, said(list)) {
		t.Errorf("live %q, in a replay %q", said(list), again)
	}
}

// TestSurvivorsAreNotNamed: with --keep-going the others wait for the dead rank until
// their own limit; that is its consequence.
func TestSurvivorsAreNotNamed(t *testing.T) {
	w := startWeftRun(t, 4, "--keep-going", "--env", "WEFT_TIMEOUT=8s")
	w.kill(2)
	w.over()
	list := w.incidents()
	if len(list) != 1 || list[0].Kind != "rank-dead" || !slices.Equal(list[0].Subject.Ranks, []int{2}) {
		t.Errorf("incidents %q, want rank 2 alone", said(list))
	}
}

func TestCancelledRunNamesNobody(t *testing.T) {
	w := startWeftRun(t, 2)
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if how := w.over(); how != "cancelled" {
		t.Errorf("the job %q, want cancelled", how)
	}
	if list := w.incidents(); len(list) > 0 {
		t.Errorf("incidents %q of a run that was cancelled", said(list))
	}
}
