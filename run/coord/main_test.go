package coord

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/run/internal/member"
	ports "github.com/weft-fabric/weft/run/launch"
)

// role is the environment variable by which the test's own program is started as
// a server, with the configuration as its value.
const role = "WEFT_COORD_TEST_SERVER"

func TestMain(m *testing.M) {
	if conf := os.Getenv(role); conf != "" {
		serve(conf)
		return
	}
	goleak.VerifyTestMain(m)
}

// child is what a server in a process of its own is told.
type child struct {
	Server ServerConfig
	Policy *Policy // if set, the server's process decides as well
	Job    string
}

// serve runs a server until its standard input ends, which it does with the parent.
func serve(conf string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var c child
	if err := json.Unmarshal([]byte(conf), &c); err != nil {
		fail(err)
	}
	ctx := context.Background()
	s, err := Serve(ctx, c.Server)
	if err != nil {
		fail(err)
	}
	if c.Policy != nil {
		client, err := Dial(ctx, Config{Endpoints: []string{s.Address()}, Job: c.Job, Token: c.Server.Token})
		if err != nil {
			fail(err)
		}
		go func() { fail(client.Decide(ctx, *c.Policy)) }()
	}
	fmt.Println(s.Address())
	io.Copy(io.Discard, os.Stdin)
}

// process is a server in a process of its own.
type process struct {
	conf   child
	cmd    *exec.Cmd
	stdin  io.Closer
	addr   string
	output *bytes.Buffer
}

// launch starts a server and does not wait for it.
func launch(t testing.TB, conf child) (p *process, ready func()) {
	t.Helper()
	b, err := json.Marshal(conf)
	if err != nil {
		t.Fatal(err)
	}
	p = &process{conf: conf, cmd: bounded.Server(t, os.Args[0]), output: &bytes.Buffer{}}
	p.cmd.Env = append(os.Environ(), role+"="+string(b))
	p.cmd.Stderr = p.output
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p, func() {
		t.Helper()
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			p.kill()
			t.Fatalf("server did not start: %v\n%s", err, p.output)
		}
		p.addr = strings.TrimSpace(line)
	}
}

func start(t testing.TB, conf child) *process {
	t.Helper()
	p, ready := launch(t, conf)
	ready()
	return p
}

// kill ends the process with SIGKILL and waits for its end.
func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.stdin.Close()
}

// freePort is a port that nobody else is given until the test ends, for servers
// that must be found again at the same place.
func freePort(t testing.TB) string {
	t.Helper()
	p, err := ports.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return fmt.Sprintf("127.0.0.1:%d", p.Number)
}

// settled is how long workers that are to form a job together may be apart, on a busy machine: 1 s, more under the race detector.
const settled = bounded.Limit / 60

// within bounds a test; it is no measure of speed.
func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bounded.Limit/2)
	t.Cleanup(cancel)
	return ctx
}

// stateDir is a directory for a server's state: in memory where the host has such a
// file system, as these tests kill processes, not hosts, and other work on the
// disk would make each write wait.
func stateDir(t testing.TB) string {
	t.Helper()
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		return t.TempDir() + "/c"
	}
	dir, err := os.MkdirTemp(parent, "coordinator-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir + "/c"
}

const testToken = "0123456789abcdef0123456789abcdef"

// single starts one server with a token and a port that it keeps.
func single(t testing.TB, policy *Policy) *process {
	t.Helper()
	return start(t, child{Server: ServerConfig{Dir: stateDir(t), Listen: freePort(t), Token: testToken}, Policy: policy, Job: "job"})
}

// dial connects for workers that are not silent: leases are long enough for a
// machine that stands still for a moment.
func dial(t testing.TB, endpoints ...string) *Client {
	t.Helper()
	return dialTerm(t, OneHost, endpoints...)
}

// dialTerm is dial with leases of a term.
func dialTerm(t testing.TB, term time.Duration, endpoints ...string) *Client {
	t.Helper()
	c, err := Dial(within(t), Config{Endpoints: endpoints, Job: "job", Token: testToken, TTL: term})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func register(t testing.TB, c *Client, id member.ID) *Registration {
	t.Helper()
	r, err := c.Register(within(t), Worker{ID: id, Host: "h", PID: 100 + int(id), Address: fmt.Sprintf("10.0.0.%d:29500", id)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// await takes from a channel until a value is as wanted.
func await[T any](t testing.TB, from <-chan T, what string, want func(T) bool) T {
	t.Helper()
	limit := time.After(bounded.Limit / 2)
	var seen []string
	for {
		select {
		case v, ok := <-from:
			if !ok {
				t.Fatalf("waiting for %s: the channel was closed after %s", what, seen)
			}
			if want(v) {
				return v
			}
			seen = append(seen, fmt.Sprintf("%+v", v))
		case <-limit:
			t.Fatalf("waiting for %s: only %s came", what, strings.Join(seen, "\n"))
		}
	}
}

// lists reports whether an epoch has exactly these members, in rank order.
func lists(ids ...member.ID) func(Epoch) bool {
	return func(e Epoch) bool {
		if len(e.Members) != len(ids) {
			return false
		}
		for i, s := range e.Members {
			if s.ID != ids[i] {
				return false
			}
		}
		return true
	}
}

func wantError(t testing.TB, err, is error, says ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("%v; want %v", err, is)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v; want it to say %q", err, s)
		}
	}
}
