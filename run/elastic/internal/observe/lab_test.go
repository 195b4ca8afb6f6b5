//go:build linux

package observe

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/internal/nslab"
	"github.com/weft-fabric/weft/run/coord"
	"github.com/weft-fabric/weft/run/internal/member"
)

// The lab makes hosts of network namespaces, with one agent each, and takes hosts
// away. Agents are of three kinds:
//
//	agent   a process of its own that observes the others
//	inside  the same, but all agents are in one process, each with a socket in its own namespace
//	lease   a process of its own that has a lease of a second at an etcd on the first host
//
// With more than 60 hosts raise net.ipv4.neigh.default.gc_thresh3 first: the system
// counts the neighbours of all namespaces together, and drops what goes beyond. On
// a busy machine give the one process of 'inside' a real-time class (chrt -r 1).
//
// The test uses six hosts. The table of docs/reference/tables/membership.md is made by
//
//	WEFT_TEST_HOSTS=60 WEFT_TEST_LOSSES=10 WEFT_TEST_KIND=agent,lease go test ./run/elastic/internal/observe -run Lab -v -timeout 30m
//	WEFT_TEST_HOSTS=200 WEFT_TEST_LOSSES=10 WEFT_TEST_KIND=inside go test ./run/elastic/internal/observe -run Lab -v -timeout 30m
const (
	labRole = "WEFT_TEST_OBSERVE"
	labPort = 4711
	labID   = 1000 // of host 0
)

const labSecret = "0123456789abcdef0123456789abcdef"

// monotonic is a clock that all processes of the machine share.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return t.Nano()
}

// labStats is what an agent or the etcd used.
type labStats struct {
	CPU      time.Duration // of the process, in user and system mode
	Counters Counters
}

func printStats(c Counters) {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	b, err := json.Marshal(labStats{time.Duration(r.Utime.Nano() + r.Stime.Nano()), c})
	if err != nil {
		panic(err)
	}
	fmt.Println("stats", string(b))
}

// labMain is what the test's own program does as an agent or as the etcd.
func labMain(role string) {
	host, _ := strconv.Atoi(os.Getenv("WEFT_TEST_HOST"))
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, role, host, err)
		os.Exit(1)
	}
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	stats := func(c func() Counters) {
		for in.Scan() {
			if in.Text() == "stats" {
				printStats(c())
			}
		}
	}
	none := func() Counters { return Counters{} }
	etcd := nslab.Addr(0, 0).String() + ":2379"
	switch role {
	case "etcd":
		dir, err := os.MkdirTemp("", "weft-observe-")
		if err != nil {
			fail(err)
		}
		defer os.RemoveAll(dir)
		s, err := coord.Serve(context.Background(), coord.ServerConfig{Dir: dir, Listen: etcd, Token: labSecret, NoSync: true})
		if err != nil {
			fail(err)
		}
		fmt.Println("ready")
		stats(none)
		_ = s.Close()
	case "lease":
		ctx := context.Background()
		c, err := coord.Dial(ctx, coord.Config{Endpoints: []string{etcd}, Job: "lab", Token: labSecret, Wait: 2 * time.Minute})
		if err != nil {
			fail(err)
		}
		if _, err := c.Register(ctx, coord.Worker{ID: member.ID(labID + host), Host: fmt.Sprint("h", host), Address: "10.0.0.1:1"}); err != nil {
			fail(err)
		}
		fmt.Println("ready")
		go stats(none)
		for e := range c.WatchWorkers(ctx) {
			if e.Word == coord.Expired {
				fmt.Println("died", e.Worker.ID, monotonic())
			}
		}
	case "agent":
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: nslab.Addr(host, 0).AsSlice(), Port: labPort})
		if err != nil {
			fail(err)
		}
		o, err := Open(Config{ID: member.ID(labID + host), Secret: labSecret, Conn: conn, Member: member.Hosts(), Tell: func(e Event) {
			if e.Kind == member.Died {
				fmt.Println("died", e.ID, monotonic())
			}
		}})
		if err != nil {
			fail(err)
		}
		fmt.Println("ready")
		for in.Scan() {
			f := strings.Fields(in.Text())
			if f[0] == "stats" {
				printStats(o.Counters())
				continue
			}
			number, _ := strconv.ParseUint(f[1], 10, 64)
			var hosts []Host
			for _, w := range f[2:] {
				i, _ := strconv.Atoi(w)
				hosts = append(hosts, Host{member.ID(labID + i), netipPort(i)})
			}
			o.Update(number, hosts)
		}
		o.Close()
	}
}

func netipPort(host int) netip.AddrPort { return netip.AddrPortFrom(nslab.Addr(host, 0), labPort) }

// agentProcess is a host's agent, as the test sees it.
type agentProcess struct {
	cmd   *exec.Cmd
	own   *Observer // of the kind inside
	in    io.WriteCloser
	ready chan struct{}
	stats chan labStats
}

// lab is the hosts and what their agents said.
type lab struct {
	t      testing.TB
	net    *nslab.Lab
	role   string
	agents []*agentProcess
	alive  []int
	number uint64

	mu    sync.Mutex
	died  map[int]map[int]int64 // lost host -> who says so -> when
	lost  map[int]bool
	wrong map[int]bool // hosts that are called lost and are not
}

func (l *lab) start(host int, role string) *agentProcess {
	l.t.Helper()
	p := &agentProcess{ready: make(chan struct{}), stats: make(chan labStats, 1)}
	if role == "inside" {
		var conn *net.UDPConn
		err := l.net.Do(host, func() (err error) {
			conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: nslab.Addr(host, 0).AsSlice(), Port: labPort})
			return err
		})
		if err == nil {
			p.own, err = Open(Config{ID: member.ID(labID + host), Secret: labSecret, Conn: conn, Member: member.Hosts(), Tell: func(e Event) {
				if e.Kind == member.Died {
					l.hear(host, int(e.ID)-labID, monotonic())
				}
			}})
		}
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { p.own.Close() })
		close(p.ready)
		return p
	}
	p.cmd = bounded.Server(l.t, os.Args[0])
	p.cmd.Env = append(os.Environ(), labRole+"="+role, fmt.Sprint("WEFT_TEST_HOST=", host), "GOMAXPROCS=2")
	p.cmd.Stderr = os.Stderr
	var out io.Reader
	var err error
	if p.in, err = p.cmd.StdinPipe(); err == nil {
		out, err = p.cmd.StdoutPipe()
	}
	if err == nil {
		err = l.net.Do(host, p.cmd.Start)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			f := strings.SplitN(s.Text(), " ", 3)
			switch f[0] {
			case "ready":
				close(p.ready)
			case "stats":
				var st labStats
				_ = json.Unmarshal([]byte(strings.TrimPrefix(s.Text(), "stats ")), &st)
				p.stats <- st
			case "died":
				id, _ := strconv.Atoi(f[1])
				at, _ := strconv.ParseInt(f[2], 10, 64)
				l.hear(host, id-labID, at)
			}
		}
	}()
	return p
}

// hear takes word of a loss.
func (l *lab) hear(by, lost int, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost[by] {
		return // what a host says that is cut off is its own affair
	}
	if !l.lost[lost] {
		l.wrong[lost] = true
		return
	}
	if l.died[lost] == nil {
		l.died[lost] = map[int]int64{}
	}
	if _, ok := l.died[lost][by]; !ok {
		l.died[lost][by] = at
	}
}

func newLab(t testing.TB, role string, hosts int) *lab {
	l := &lab{t: t, net: nslab.New(t, hosts, 1), role: role, died: map[int]map[int]int64{}, lost: map[int]bool{}, wrong: map[int]bool{}}
	await := func(p *agentProcess) {
		select {
		case <-p.ready:
		case <-time.After(2 * time.Minute):
			t.Fatal("an agent does not come up")
		}
	}
	if role == "lease" {
		l.agents = append(l.agents, l.start(0, "etcd"))
		await(l.agents[0])
	} else {
		l.agents = append(l.agents, l.start(0, role))
	}
	for i := 1; i < hosts; i++ {
		l.agents = append(l.agents, l.start(i, role))
	}
	for i, p := range l.agents {
		await(p)
		if i > 0 || role != "lease" {
			l.alive = append(l.alive, i)
		}
	}
	l.update()
	return l
}

// update gives the agents the list of those that are left.
func (l *lab) update() {
	l.number++
	if l.role == "inside" {
		var hosts []Host
		for _, i := range l.alive {
			hosts = append(hosts, Host{member.ID(labID + i), netipPort(i)})
		}
		for _, i := range l.alive {
			l.agents[i].own.Update(l.number, hosts)
		}
	}
	if l.role != "agent" {
		return
	}
	line := fmt.Sprint("list ", l.number)
	for _, i := range l.alive {
		line += fmt.Sprint(" ", i)
	}
	for _, i := range l.alive {
		fmt.Fprintln(l.agents[i].in, line)
	}
}

// take takes a host away and says how long the first and the last of the others took to know.
func (l *lab) take(host int, how func() error) (first, last time.Duration) {
	l.t.Helper()
	l.mu.Lock()
	l.lost[host] = true
	l.mu.Unlock()
	l.alive = slices.DeleteFunc(l.alive, func(i int) bool { return i == host })
	began := monotonic()
	if err := how(); err != nil {
		l.t.Fatal(err)
	}
	known := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.died[host])
	}
	if !bounded.Holds(patience, func() bool { return known() >= len(l.alive) }) {
		l.t.Fatalf("%d of %d know of the loss of host %d", known(), len(l.alive), host)
	}
	l.update()
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []int64
	for _, at := range l.died[host] {
		all = append(all, at)
	}
	return time.Duration(slices.Min(all) - began), time.Duration(slices.Max(all) - began)
}

func (l *lab) kill(host int) func() error {
	if o := l.agents[host].own; o != nil {
		return o.Close
	}
	return l.agents[host].cmd.Process.Kill
}

func (l *lab) cut(host int) func() error { return func() error { return l.net.Cut(host, 0) } }

// loss drops a share of the packets that come to every host.
func (l *lab) loss(percent int) error {
	rule := fmt.Sprintf("table ip weft {\n chain in {\n type filter hook input priority 0;\n iifname r0 numgen random mod 100 < %d drop\n }\n}",
		percent)
	for i := range l.agents {
		err := l.net.Do(i, func() error {
			cmd := bounded.Command(l.t, "nft", "-f", "-")
			cmd.Stdin = strings.NewReader("add table ip weft\ndelete table ip weft\n" + rule + "\n")
			out, err := cmd.CombinedOutput()
			if err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// settle waits until every agent has heard others of its present list.
func (l *lab) settle() {
	l.t.Helper()
	if l.role == "lease" {
		return // an agent is ready once it is registered
	}
	heard := func(i int) uint64 {
		var c Counters
		if l.role == "inside" {
			c = l.agents[i].own.Counters()
		} else {
			fmt.Fprintln(l.agents[i].in, "stats")
			c = (<-l.agents[i].stats).Counters
		}
		return c.Received
	}
	const enough = 4 // an answer to a question of its own among them
	before := map[int]uint64{}
	for _, i := range l.alive {
		before[i] = heard(i)
	}
	waiting := 0
	if !bounded.Holds(patience, func() bool {
		waiting = 0
		for _, i := range l.alive {
			if heard(i) < before[i]+enough {
				waiting++
			}
		}
		return waiting == 0
	}) {
		l.t.Fatalf("%d of %d agents have not heard another", waiting, len(l.alive))
	}
}

// usage is what all agents and the etcd used in a time in which nothing happens.
func (l *lab) usage(length time.Duration) (cpu time.Duration, etcd time.Duration, sent, bytes uint64) {
	l.t.Helper()
	sum := func(sign int) {
		if l.role == "inside" {
			var r unix.Rusage
			if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
				l.t.Fatal(err)
			}
			cpu += time.Duration(sign) * time.Duration(r.Utime.Nano()+r.Stime.Nano())
			for _, i := range l.alive {
				c := l.agents[i].own.Counters()
				sent += uint64(sign) * c.Sent
				bytes += uint64(sign) * c.SentBytes
			}
			return
		}
		ask := append([]int{}, l.alive...)
		if l.role == "lease" {
			ask = append(ask, 0)
		}
		for _, i := range ask {
			fmt.Fprintln(l.agents[i].in, "stats")
		}
		for _, i := range ask {
			s := <-l.agents[i].stats
			if i == 0 && l.role == "lease" {
				etcd += time.Duration(sign) * s.CPU
				continue
			}
			cpu += time.Duration(sign) * s.CPU
			sent += uint64(sign) * s.Counters.Sent
			bytes += uint64(sign) * s.Counters.SentBytes
		}
	}
	sum(-1)
	time.Sleep(length) // what is used in this time is measured
	sum(1)
	n := time.Duration(len(l.alive))
	scale := float64(length) / float64(time.Second)
	return time.Duration(float64(cpu/n) / scale), time.Duration(float64(etcd) / scale), uint64(float64(sent) / scale / float64(n)),
		uint64(float64(bytes) / scale / float64(n))
}

func quantile(list []time.Duration, q float64) time.Duration {
	slices.SortFunc(list, cmp.Compare[time.Duration])
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

// Hosts are killed and cut off, with and without loss on the network; every agent
// that is left hears of every loss.
func TestLabHosts(t *testing.T) {
	hosts, losses := 6, 1
	if s := os.Getenv("WEFT_TEST_HOSTS"); s != "" {
		hosts, _ = strconv.Atoi(s)
		losses, _ = strconv.Atoi(cmp.Or(os.Getenv("WEFT_TEST_LOSSES"), "5"))
	}
	if testing.Short() {
		t.Skip("starts processes in network namespaces")
	}
	for _, role := range strings.Split(cmp.Or(os.Getenv("WEFT_TEST_KIND"), "agent"), ",") {
		t.Run(role, func(t *testing.T) {
			l := newLab(t, role, hosts)
			l.settle()
			if hosts > 6 {
				cpu, etcd, sent, bytes := l.usage(5 * time.Second)
				t.Logf("%s, %d hosts, quiet: an agent takes %v of a processor a second, sends %d datagrams and %d bytes; etcd takes %v",
					role, len(l.alive), cpu, sent, bytes, etcd)
			}
			next := 1
			row := func(name string, how func(int) func() error) {
				t.Helper()
				l.mu.Lock()
				clear(l.wrong)
				l.mu.Unlock()
				began := time.Now()
				var first, last []time.Duration
				for range losses {
					f, e := l.take(next, how(next))
					first, last = append(first, f), append(last, e)
					next++
					l.settle()
				}
				if role == "inside" {
					stalls := uint64(0)
					for _, i := range l.alive {
						stalls += l.agents[i].own.Counters().Stalled
					}
					t.Logf("so far an agent did not run for two intervals %.1f times", float64(stalls)/float64(len(l.alive)))
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				t.Logf("%s, %d hosts, %s: %d losses; first knows p50 %v, p99 %v; all know p50 %v, p99 %v; %d hosts lost by mistake in %.0f s",
					role, hosts, name, losses,
					quantile(first, 0.5).Round(time.Millisecond), quantile(first, 0.99).Round(time.Millisecond),
					quantile(last, 0.5).Round(time.Millisecond), quantile(last, 0.99).Round(time.Millisecond), len(l.wrong), time.Since(began).Seconds())
			}
			row("agent killed", l.kill)
			row("host cut off", l.cut)
			if _, err := exec.LookPath("nft"); err != nil || hosts <= 6 {
				return
			}
			for _, percent := range []int{1, 5, 10} {
				if err := l.loss(percent); err != nil {
					t.Logf("no loss can be made here: %v", err)
					return
				}
				row(fmt.Sprintf("agent killed, %d%% loss", percent), l.kill)
			}
		})
	}
}
