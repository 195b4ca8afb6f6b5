package launch_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
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
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// The test binary is its own rank: WEFT_TEST_RANK names what it does.
func TestMain(m *testing.M) {
	if what, ok := os.LookupEnv("WEFT_TEST_RANK"); ok {
		parts[what]()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

var rank = os.Getenv("RANK")

var parts = map[string]func(){
	"env": func() {
		for _, k := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "WEFT_TOKEN", "EXTRA"} {
			fmt.Printf("%s=%s\n", k, os.Getenv(k))
		}
	},
	"folder": func() {
		dir, _, err := launch.TempDir("test")
		if err != nil {
			panic(err)
		}
		fmt.Println(dir)
		time.Sleep(time.Hour) // until it is killed; select{} ends a process in which nothing else goes on
	},
	"args": func() { fmt.Printf("%q token %d\n", os.Args[1:], len(os.Getenv("WEFT_TOKEN"))) },
	"listing": func() {
		// What any user of the host can read about the parents of this process.
		for pid := os.Getppid(); pid > 1; {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			fmt.Printf("%q\n", line)
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			pid, _ = strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
			if pid == mustInt(os.Getenv("WEFT_TEST_ROOT")) {
				return
			}
		}
	},
	"write": func() {
		// Lines in pieces of every size, on both streams.
		var b bytes.Buffer
		for i := range 2000 {
			fmt.Fprintf(&b, "%s line %d %s\n", rank, i, strings.Repeat("x", i%97))
		}
		b.WriteString(rank + " the last one has no newline")
		for i := 1; b.Len() > 0; i++ {
			piece := b.Next(1 + i*7919%211)
			os.Stdout.Write(piece)
			os.Stderr.Write(piece)
		}
	},
	"fail": func() {
		if rank == "1" {
			for i := range 30 {
				fmt.Fprintf(os.Stderr, "complaint %d\n", i)
			}
			os.Exit(7)
		}
		pause()
	},
	"polite": func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready")
		fmt.Println("asked by", <-c)
	},
	"drain": func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGINT)
		fmt.Println("ready")
		<-c
	},
	"stubborn": func() {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready")
		if rank == "1" && os.Getenv("ALL") == "" {
			os.Exit(3)
		}
		pause()
	},
	"killed": func() {
		if rank == "2" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		pause()
	},
	"parent": func() {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "WEFT_TEST_RANK=pause")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		fmt.Println("child", cmd.Process.Pid)
	},
	"pause": pause,
	"launcher": func() {
		_, err := launch.Run(context.Background(), spec("stay", 3, os.Stdout))
		fmt.Println("came back:", err)
	},
	"stay": func() { // with a process of its own, as a script has
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "WEFT_TEST_RANK=pause")
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		fmt.Printf("pid %d\npid %d\n", os.Getpid(), cmd.Process.Pid)
		pause()
	},
}

func mustInt(s string) int { n, _ := strconv.Atoi(s); return n }

// pause waits for a signal.
func pause() { _ = unix.Pause() }

func spec(what string, n int, out io.Writer) launch.Spec {
	return launch.Spec{
		N: n, Command: []string{os.Args[0]}, Env: []string{"WEFT_TEST_RANK=" + what},
		Stdout: out, Stderr: out, Prefix: true,
	}
}

func start(t *testing.T, s launch.Spec) (launch.Result, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, err := launch.Run(ctx, s)
	if ctx.Err() != nil {
		t.Fatal("the run did not end")
	}
	return res, err
}

func TestRanksLearnTheirPlace(t *testing.T) {
	var out bytes.Buffer
	s := spec("env", 3, &out)
	s.Env = append(s.Env, "EXTRA=a b")
	res, err := start(t, s)
	if err != nil || res.Code() != 0 {
		t.Fatal(err, out.String())
	}
	got := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:3], b[:3]) })
	port := regexp.MustCompile(`MASTER_PORT=\d+`).FindString(out.String())
	token := regexp.MustCompile(`WEFT_TOKEN=[0-9a-f]{32}`).FindString(out.String())
	var want []string
	for r := range 3 {
		for _, l := range []string{fmt.Sprintf("RANK=%d", r), "WORLD_SIZE=3", fmt.Sprintf("LOCAL_RANK=%d", r), "LOCAL_WORLD_SIZE=3",
			"MASTER_ADDR=127.0.0.1", port, token, "EXTRA=a b"} {
			want = append(want, fmt.Sprintf("[%d] %s", r, l))
		}
	}
	if !slices.Equal(got, want) || port == "" || token == "" {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestLinesStayWhole(t *testing.T) {
	var out bytes.Buffer
	if _, err := start(t, spec("write", 4, &out)); err != nil {
		t.Fatal(err)
	}
	// Every line comes twice, once from each stream, and each stream is in order.
	next := map[string]map[int]int{}
	for line := range strings.Lines(out.String()) {
		var r, i int
		var rest string
		if strings.HasSuffix(line, "has no newline\n") {
			continue
		}
		n, _ := fmt.Sscanf(line, "[%d] "+line[1:2]+" line %d %s", &r, &i, &rest)
		if n < 2 || rest != strings.Repeat("x", i%97) {
			t.Fatalf("torn line %q", line)
		}
		key := strconv.Itoa(r)
		if next[key] == nil {
			next[key] = map[int]int{}
		}
		next[key][i]++
	}
	for r := range 4 {
		seen := next[strconv.Itoa(r)]
		if len(seen) != 2000 {
			t.Errorf("rank %d: %d lines, want 2000", r, len(seen))
		}
		for i, n := range seen {
			if n != 2 {
				t.Errorf("rank %d: line %d came %d times", r, i, n)
			}
		}
	}
	if n := strings.Count(out.String(), "the last one has no newline\n"); n != 8 {
		t.Errorf("%d last lines, want 8", n)
	}
}

func TestSingleRankIsNotPrefixed(t *testing.T) {
	var out bytes.Buffer
	s := spec("args", 1, &out)
	s.Prefix = false
	s.Command = append(s.Command, "one", "two words")
	if _, err := start(t, s); err != nil {
		t.Fatal(err)
	}
	if want := "[\"one\" \"two words\"] token 32\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

func TestFailureNamesRankAndLastWords(t *testing.T) {
	var out bytes.Buffer
	res, err := start(t, spec("fail", 4, &out))
	var f *launch.Failure
	if !errors.As(err, &f) {
		t.Fatal(err)
	}
	if f.Exit.Rank != 1 || f.Exit.Code != 7 || res.Code() != 7 {
		t.Errorf("blamed %+v, exit code %d", f.Exit, res.Code())
	}
	if len(f.Exit.Stderr) != 10 || f.Exit.Stderr[9] != "complaint 29" || f.Exit.Stderr[0] != "complaint 20" {
		t.Errorf("last words %q", f.Exit.Stderr)
	}
	if !strings.HasPrefix(err.Error(), "rank 1 (pid ") ||
		!strings.Contains(err.Error(), "exited with code 7; its last words:\n  complaint 20\n") {
		t.Errorf("message %q", err)
	}
	for _, e := range res.Exits {
		if e.Rank != 1 && e.Signal != syscall.SIGTERM {
			t.Errorf("%v, want SIGTERM", e)
		}
	}
}

func TestWordsAfterSIGTERMComeThrough(t *testing.T) {
	s := spec("polite", 1, nil)
	pr, pw := io.Pipe()
	s.Stdout = pw
	signals := make(chan os.Signal, 1)
	s.Signals = signals
	lines := make(chan []string)
	go func() {
		var list []string
		for sc := bufio.NewScanner(pr); sc.Scan(); {
			if list = append(list, sc.Text()); len(list) == 1 {
				signals <- syscall.SIGTERM
			}
		}
		lines <- list
	}()
	_, err := start(t, s)
	pw.Close()
	if got := <-lines; err != nil || !slices.Equal(got, []string{"[0] ready", "[0] asked by terminated"}) {
		t.Errorf("%v, %q", err, got)
	}
}

func TestStubbornRanksAreKilledAfterTheGrace(t *testing.T) {
	s := spec("stubborn", 3, io.Discard)
	s.Grace = 50 * time.Millisecond
	res, err := start(t, s)
	if res.Code() != 3 || err == nil {
		t.Errorf("code %d, %v", res.Code(), err)
	}
	for _, r := range []int{0, 2} {
		// A rank that has not come to ignoring SIGTERM yet dies of it.
		if e := res.Exits[r]; e.Signal == 0 {
			t.Errorf("%v", e)
		}
	}
}

func TestSignalThatEndedARankIsTheCode(t *testing.T) {
	res, err := start(t, spec("killed", 4, io.Discard))
	if res.Code() != 128+9 || res.Cause.Exit.Rank != 2 {
		t.Errorf("code %d, %v", res.Code(), err)
	}
	if err == nil || !strings.Contains(err.Error(), "was ended by SIGKILL") {
		t.Errorf("message %v", err)
	}
}

// lineFunc is called with every line.
type lineFunc func(line string)

func (f lineFunc) Write(b []byte) (int, error) { f(strings.TrimSpace(string(b))); return len(b), nil }

func TestSignalsAreHandedOn(t *testing.T) {
	signals := make(chan os.Signal, 2)
	n := 0
	s := spec("drain", 3, lineFunc(func(string) {
		if n++; n == 3 {
			signals <- syscall.SIGINT
		}
	}))
	s.Signals = signals
	if res, err := start(t, s); err != nil || res.Code() != 0 {
		t.Errorf("ranks that drained: code %d, %v", res.Code(), err)
	}
}

func TestSecondSignalKills(t *testing.T) {
	signals := make(chan os.Signal, 2)
	n := 0
	s := spec("stubborn", 2, lineFunc(func(string) {
		if n++; n == 2 {
			signals <- syscall.SIGINT
			signals <- syscall.SIGINT
		}
	}))
	s.Env = append(s.Env, "ALL=1")
	s.Signals = signals
	s.Grace = time.Hour
	res, err := start(t, s)
	if res.Code() != 128+9 || err == nil || !strings.Contains(err.Error(), "after SIGINT was handed on to all") {
		t.Errorf("code %d, %v", res.Code(), err)
	}
}

func TestContextEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	s := spec("stay", 3, lineFunc(func(string) { cancel(why) }))
	res, err := launch.Run(ctx, s)
	if !errors.Is(err, why) {
		t.Errorf("error %v", err)
	}
	for _, e := range res.Exits {
		if e.Pid != 0 {
			gone(t, e.Pid)
		}
	}
}

// gone fails unless the process ends by itself soon; it need not be a child.
func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // ESRCH
	}
	defer unix.Close(fd)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, 10_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			t.Errorf("process %d is still there", pid)
		}
		return
	}
}

func TestGrandchildrenDieWithTheirRank(t *testing.T) {
	var out bytes.Buffer
	if _, err := start(t, spec("parent", 2, &out)); err != nil {
		t.Fatal(err)
	}
	pids := regexp.MustCompile(`child (\d+)`).FindAllStringSubmatch(out.String(), -1)
	if len(pids) != 2 {
		t.Fatalf("output %q", out.String())
	}
	for _, p := range pids {
		gone(t, mustInt(p[1]))
	}
}

func TestRanksDieWithTheLauncher(t *testing.T) {
	cmd := bounded.Command(t, os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TEST_RANK=launcher")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for sc := bufio.NewScanner(pipe); len(pids) < 6 && sc.Scan(); {
		_, pid, ok := strings.Cut(sc.Text(), "pid ")
		if !ok {
			t.Errorf("launcher said %q", sc.Text())
		}
		pids = append(pids, mustInt(pid))
	}
	if len(pids) != 6 {
		t.Errorf("%d processes, want three ranks with a child each", len(pids))
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range pids {
		gone(t, pid)
	}
}

func TestHeldPort(t *testing.T) {
	held, err := launch.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	for range 200 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if _, port, _ := net.SplitHostPort(l.Addr().String()); port == strconv.Itoa(held.Number) {
			t.Error("a held port was given to another")
		}
		l.Close()
	}
	for _, host := range []string{"127.0.0.1", "0.0.0.0", ""} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(held.Number)))
		if err != nil {
			t.Errorf("rank 0 cannot listen: %v", err)
			continue
		}
		l.Close()
	}
}

func TestWrongSpecsNameTheMistake(t *testing.T) {
	for want, s := range map[string]launch.Spec{
		"0 ranks; want 1 to 4096":      {Command: []string{"true"}},
		"no command":                   {N: 1},
		"3 hosts for 2 ranks":          {N: 2, Command: []string{"true"}, Hosts: []string{"a", "b", "c"}},
		"MASTER_PORT 70000":            {N: 1, Command: []string{"true"}, Port: 70000},
		"names no {host}":              {N: 1, Command: []string{"true"}, Hosts: []string{"a"}, Remote: launch.Remote{"ssh"}},
		`no-such-program": executable`: {N: 2, Command: []string{"no-such-program"}},
		"/no/such/folder: no such":     {N: 2, Command: []string{"true"}, Dir: "/no/such/folder"},
	} {
		if _, err := launch.Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestRemoteHosts(t *testing.T) {
	for _, template := range []string{
		"env HERE={host} sh -c {command}", // as ssh: the command is one word for a shell
		"env HERE={host} {command}",       // as ip netns exec with the command named: it gets a shell
		"env HERE={host}",                 // as ip netns exec: the command's words follow
	} {
		remote, err := launch.ParseRemote(template)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var out []string
		s := spec("args", 5, lineFunc(func(l string) { mu.Lock(); out = append(out, l); mu.Unlock() }))
		s.Command = append(s.Command, "it's", `"a" $HOME \n`, "", "line\nbreak")
		s.Hosts, s.Remote = []string{"a", "b"}, remote
		res, err := start(t, s)
		if err != nil {
			t.Fatalf("%s: %v", template, err)
		}
		slices.Sort(out)
		for r, l := range out {
			if want := fmt.Sprintf("[%d] %q token 32", r, s.Command[1:]); l != want {
				t.Errorf("%s: got %s, want %s", template, l, want)
			}
		}
		var hosts []string
		for _, e := range res.Exits {
			hosts = append(hosts, e.Host)
		}
		if !slices.Equal(hosts, []string{"a", "a", "b", "b", "b"}) {
			t.Errorf("ranks on %v", hosts)
		}
	}
}

// The ranks of a host get what is meant for it, and no others.
func TestEnvironmentOfAHost(t *testing.T) {
	for _, hosts := range [][]string{{"a", "b"}, nil} {
		var mu sync.Mutex
		var out []string
		s := spec("args", 3, lineFunc(func(l string) { mu.Lock(); out = append(out, l); mu.Unlock() }))
		s.Command, s.Hosts = []string{"sh", "-c", "echo on $RAILS"}, hosts
		s.HostEnv = map[string][]string{"a": {"RAILS=of a"}, "b": {"RAILS=of b"}, "": {"RAILS=of this"}}
		want := []string{"[0] on of this", "[1] on of this", "[2] on of this"}
		if hosts != nil {
			s.Remote = launch.Remote{"env", "HERE={host}"}
			want = []string{"[0] on of a", "[1] on of b", "[2] on of b"}
		}
		if _, err := start(t, s); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(out); !slices.Equal(out, want) {
			t.Errorf("hosts %q: %q, want %q", hosts, out, want)
		}
	}
}

func TestTokenIsNotAmongTheArguments(t *testing.T) {
	var out bytes.Buffer
	s := spec("listing", 1, &out)
	s.Token = "a-secret-of-this-run"
	t.Setenv("WEFT_COORD_PASSWORD", "a-password-of-the-etcd")
	s.Env = append(s.Env, fmt.Sprintf("WEFT_TEST_ROOT=%d", os.Getpid()))
	s.Hosts, s.Remote = []string{"a"}, launch.Remote{"env", "HERE={host}", "sh", "-c", "{command}"}
	if _, err := start(t, s); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "RANK=0") || strings.Contains(out.String(), s.Token) || strings.Contains(out.String(), "a-password") {
		t.Errorf("arguments\n%s", out.String())
	}
}

func TestRemoteRankFailsAndIsStopped(t *testing.T) {
	s := spec("fail", 3, io.Discard)
	s.Hosts, s.Remote = []string{"a", "b", "c"}, launch.Remote{"env", "HERE={host}", "sh", "-c", "{command}"}
	res, err := start(t, s)
	if res.Code() != 7 || res.Cause.Exit.Rank != 1 || !strings.Contains(err.Error(), "on b) exited with code 7") {
		t.Errorf("code %d, %v", res.Code(), err)
	}
}
