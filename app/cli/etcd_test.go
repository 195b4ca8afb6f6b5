package cli_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/launch"
)

// plainEtcd starts an etcd as its own program: the one that WEFT_ETCD names, or the
// server of the module that this one requires. It has no TLS and no users.
func plainEtcd(t *testing.T) (at string, kill func()) {
	t.Helper()
	program := os.Getenv("WEFT_ETCD")
	if program == "" {
		program = filepath.Join(t.TempDir(), "etcd")
		cmd := bounded.Within(t, bounded.Build, "go", "build", "-o", program, "go.etcd.io/etcd/server/v3")
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	var urls []string
	for range 2 {
		p, err := launch.HoldPort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Release)
		urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d", p.Number))
	}
	cmd := bounded.Server(t, program, "--data-dir", t.TempDir(), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "default="+urls[1])
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	bounded.Until(t, patience, "an answer of etcd at "+urls[0], func() bool {
		answer, err := http.Get(urls[0] + "/health")
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return strings.TrimPrefix(urls[0], "http://"), end
}

// program is this test's own binary under the name of weft, which testscript put there.
func program(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("weft")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// launcher is a 'weft run' under test.
type launcher struct {
	t     *testing.T
	cmd   *exec.Cmd
	mu    sync.Mutex
	lines []string
	news  chan struct{}
	ended chan struct{}
	code  int
}

func launcherOf(t *testing.T, env []string, args ...string) *launcher {
	t.Helper()
	l := &launcher{t: t, cmd: bounded.Server(t, args[0], args[1:]...), news: make(chan struct{}), ended: make(chan struct{})}
	l.cmd.Env = append(os.Environ(), env...)
	r, w := io.Pipe()
	l.cmd.Stdout, l.cmd.Stderr = w, w
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for in := bufio.NewScanner(r); in.Scan(); {
			l.mu.Lock()
			l.lines = append(l.lines, in.Text())
			close(l.news)
			l.news = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	go func() {
		defer close(l.ended)
		_ = l.cmd.Wait()
		w.Close()
		<-read
		l.code = l.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill()
		<-l.ended
	})
	return l
}

const patience = time.Minute

// find waits until n lines match and gives their first groups.
func (l *launcher) find(n int, pattern string) []string {
	l.t.Helper()
	re := regexp.MustCompile(pattern)
	late := time.After(patience)
	for {
		l.mu.Lock()
		var got []string
		for _, line := range l.lines {
			if m := re.FindStringSubmatch(line); m != nil {
				got = append(got, m[len(m)-1])
			}
		}
		news := l.news
		l.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-news:
		case <-late:
			l.t.Fatalf("%d lines match %q, want %d:\n%s", len(got), pattern, n, l.text())
		case <-l.ended:
			select {
			case <-news:
			default:
				l.t.Fatalf("it ended with %d; %d lines match %q, want %d:\n%s", l.code, len(got), pattern, n, l.text())
			}
		}
	}
}

func (l *launcher) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// ends waits for the launcher's exit code.
func (l *launcher) ends() int {
	l.t.Helper()
	select {
	case <-l.ended:
		return l.code
	case <-time.After(patience):
		l.t.Fatalf("the launcher goes on:\n%s", l.text())
		return -1
	}
}

// The lines of docs/how-to/launching.md with an etcd that others run: two nodes meet under a
// token, the ranks of each are neighbours, a node with another token is told at once,
// and when the etcd is gone for good the launchers say so and end.
func TestRunWithAPlainEtcd(t *testing.T) {
	weft := program(t)
	at, kill := plainEtcd(t)
	args := []string{weft, "run", "--nodes", "2", "--nproc", "4", "--min", "2", "--max", "8", "--coord", "etcd://" + at, "--ckpt",
		"/shared/run7", "--coord-timeout", "4s",
		"--", "sh", "-c", `echo "rank $RANK of $WORLD_SIZE, pid $$"; sleep 1000 & wait`}
	token := []string{"WEFT_TOKEN=0123456789abcdef0123456789abcdef"}
	nodes := []*launcher{launcherOf(t, token, args...), launcherOf(t, token, args...)}
	for _, n := range nodes {
		var ranks []int
		for _, r := range n.find(4, `rank (\d+) of 8,`) {
			v, err := strconv.Atoi(r)
			if err != nil {
				t.Fatal(err)
			}
			ranks = append(ranks, v)
		}
		ranks = ranks[len(ranks)-4:] // the last ones: a node that is late by more than a lease makes all start again
		slices.Sort(ranks)
		if len(ranks) != 4 || ranks[3]-ranks[0] != 3 || ranks[0]%4 != 0 {
			t.Errorf("a node has ranks %v:\n%s", ranks, n.text())
		}
	}
	stranger := launcherOf(t, []string{"WEFT_TOKEN=another"}, args...)
	if code := stranger.ends(); code != 2 || !strings.Contains(stranger.text(), "another token") {
		t.Errorf("another token: code %d\n%s", code, stranger.text())
	}
	kill()
	for _, n := range nodes {
		n.find(1, "the coordinator at "+regexp.QuoteMeta(at)+" has not answered for")
		pids := n.find(1, `of 8, pid (\d+)`)
		pid, err := strconv.Atoi(pids[len(pids)-1])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	for _, n := range nodes {
		if code := n.ends(); code != 1 || !strings.Contains(n.text(), "ranks of this host wait for it; start it again, then this job") {
			t.Errorf("code %d\n%s", code, n.text())
		}
	}
}

// A node that waits for the first one to come does not wait for one with another token.
func TestRunWithAnotherToken(t *testing.T) {
	weft := program(t)
	p, err := launch.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	node := func(rank, token string) *launcher {
		return launcherOf(t, []string{"WEFT_TOKEN=" + token}, weft, "run", "--nodes", "2", "--node-rank", rank, "--nproc", "1",
			"--rdzv-endpoint", fmt.Sprintf("127.0.0.1:%d", p.Number), "--", "true")
	}
	node("0", "0123456789abcdef")
	second := node("1", "fedcba9876543210")
	if code := second.ends(); code != 2 || !strings.Contains(second.text(), "another token: set WEFT_TOKEN to the same value") {
		t.Errorf("code %d\n%s", code, second.text())
	}
}

// Signals to a launcher: a terminal that is closed asks ranks to end and starts none
// again; a second signal ends their grace; a launcher that was killed leaves a folder
// that goes with the next start.
func TestRunAndSignals(t *testing.T) {
	weft := program(t)
	tmp := "TMPDIR=" + t.TempDir()
	for _, c := range []struct {
		name    string
		args    []string
		signals []syscall.Signal
	}{
		{"hangup", nil, []syscall.Signal{syscall.SIGHUP}},
		{"twice", []string{"--grace", "1h"}, []syscall.Signal{syscall.SIGINT, syscall.SIGINT}},
		{"hangup and a signal", []string{"--grace", "1h"}, []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM}},
	} {
		t.Run(c.name, func(t *testing.T) {
			trap := "exit 0"
			if len(c.signals) > 1 {
				trap = "echo asked"
			}
			l := launcherOf(t, []string{tmp}, append(append([]string{weft, "run", "--nproc", "2"}, c.args...), "--", "sh", "-c",
				`trap "`+trap+`" TERM; echo "began $RANK"; while :; do sleep 0.05; done`)...)
			l.find(2, `began (\d)`)
			if err := l.cmd.Process.Signal(c.signals[0]); err != nil {
				t.Fatal(err)
			}
			if len(c.signals) > 1 {
				l.find(2, "(asked)")
				if err := l.cmd.Process.Signal(c.signals[1]); err != nil {
					t.Fatal(err)
				}
			}
			if code := l.ends(); code != 1 {
				t.Errorf("code %d\n%s", code, l.text())
			}
			if n := strings.Count(l.text(), "began"); n != 2 {
				t.Errorf("%d processes were started:\n%s", n, l.text())
			}
		})
	}
	l := launcherOf(t, []string{tmp}, weft, "run", "--nproc", "1", "--", "sh", "-c", "echo began; sleep 1000 & wait")
	l.find(1, "began")
	if err := l.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	l.ends()
	folders := func() []string {
		list, _ := filepath.Glob(filepath.Join(strings.TrimPrefix(tmp, "TMPDIR="), "weft-*"))
		return list
	}
	if n := len(folders()); n != 1 {
		t.Fatalf("%d folders are left, want that of the launcher that was killed", n)
	}
	if code := launcherOf(t, []string{tmp}, weft, "run", "--nproc", "1", "--", "true").ends(); code != 0 {
		t.Errorf("code %d", code)
	}
	if left := folders(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A coordinator that is not there is said within the time that is given for it.
func TestRunWithoutItsCoordinator(t *testing.T) {
	weft := program(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // it accepts and says nothing
	out, err := bounded.Command(t, weft, "run", "--coord", "etcd://"+ln.Addr().String(), "--coord-timeout", "1s", "--nproc", "1", "--",
		"true").CombinedOutput()
	if code := err.(*exec.ExitError).ExitCode(); code != 1 || !strings.Contains(string(out), "the coordinator does not answer") {
		t.Errorf("code %d\n%s", code, out)
	}
}
