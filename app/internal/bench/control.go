package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/run/launch"
)

// ControlEnv names the socket on which a rank talks to the benchmark;
// peers/peer.h has the conversation.
const ControlEnv = "WEFT_BENCH_CONTROL"

// BindEnv, if set, keeps each rank on one of the processors, in turn.
const BindEnv = "WEFT_BENCH_BIND"

// ApartEnv, if set, has every competitor's all-reduce leave its input as it is.
const ApartEnv = "WEFT_BENCH_APART"

// patience is how long ranks may take for one answer: starting, or the slowest batch.
const patience = 2 * time.Minute

// competitor is a library in one configuration, with its ranks running. They
// sleep in a read of the control socket unless it is their turn.
type competitor struct {
	peer   *Peer
	ranks  []*rankConn
	cancel context.CancelFunc
	ended  chan struct{} // closed when the processes are gone
	err    error         // how they ended; after ended
	words  lastWords
	quota  *quota // nil if it has all processors
}

type rankConn struct {
	net.Conn
	in *bufio.Scanner
}

// lastWords keeps the end of what the processes of a competitor print.
type lastWords struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *lastWords) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	if over := w.buf.Len() - 2<<10; over > 0 {
		w.buf.Next(over)
	}
	return len(b), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(w.buf.String())
}

// begin starts the ranks of a peer and waits until all have said who they are.
func begin(ctx context.Context, p *Peer, spec launch.Spec, n int) (*competitor, error) {
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "control")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	c := &competitor{peer: p, ranks: make([]*rankConn, n), cancel: cancel, ended: make(chan struct{})}
	spec.Env = append(spec.Env, ControlEnv+"="+socket)
	spec.Stdout, spec.Stderr = &c.words, &c.words
	spec.Grace = time.Second
	go func() {
		_, c.err = launch.Run(ctx, spec)
		close(c.ended)
		l.Close()
	}()
	_ = l.SetDeadline(time.Now().Add(patience))
	for range n {
		conn, err := l.Accept()
		if err == nil {
			err = c.greet(conn)
		}
		if err != nil {
			return nil, c.fail("start", err)
		}
	}
	return c, nil
}

// greet takes the first line of a rank, which says who it is. A rank that comes twice is refused.
func (c *competitor) greet(conn net.Conn) error {
	r := &rankConn{Conn: conn, in: bufio.NewScanner(conn)}
	r.in.Buffer(nil, maxEach*24) // a time is shorter
	line, err := r.read()
	var rank, n int
	if err == nil {
		if _, err = fmt.Sscanf(line, "rank %d of %d", &rank, &n); err != nil || n != len(c.ranks) || rank < 0 || rank >= n ||
			c.ranks[rank] != nil {
			err = fmt.Errorf("a rank introduced itself by %q; want one of %d", line, len(c.ranks))
		}
	}
	if err != nil {
		conn.Close()
		return err
	}
	c.ranks[rank] = r
	return nil
}

func (r *rankConn) read() (string, error) {
	_ = r.SetReadDeadline(time.Now().Add(patience))
	if r.in.Scan() {
		return r.in.Text(), nil
	}
	if err := r.in.Err(); err != nil {
		return "", err
	}
	return "", errors.New("the rank hung up")
}

// fail ends the competitor and says why, with what its processes printed last.
func (c *competitor) fail(during string, err error) error {
	died := false
	select {
	case <-c.ended:
		died = true
	default:
	}
	c.end()
	if died && c.err != nil {
		err = c.err
	}
	var f *launch.Failure
	if words := c.words.String(); words != "" && !errors.As(err, &f) {
		err = fmt.Errorf("%w; last words: %s", err, words)
	}
	return fmt.Errorf("%s: %s: %w", c.peer.Name, during, err)
}

// end hangs up, which ends the ranks, and sees to it that they do.
func (c *competitor) end() {
	for _, r := range c.ranks {
		if r != nil {
			r.Close()
		}
	}
	select {
	case <-c.ended:
	case <-time.After(2 * time.Second):
		c.cancel()
		<-c.ended
	}
	c.cancel()
	if c.quota != nil {
		c.quota.remove()
	}
}

// ask sends one line to every rank and collects their answers by rank.
func (c *competitor) ask(format string, args ...any) ([]string, error) {
	line := fmt.Appendf(nil, format+"\n", args...)
	for _, r := range c.ranks {
		if _, err := r.Write(line); err != nil {
			return nil, c.fail(strings.TrimSpace(string(line)), err)
		}
	}
	answers := make([]string, len(c.ranks))
	for i, r := range c.ranks {
		var err error
		if answers[i], err = r.read(); err != nil {
			return nil, c.fail(strings.TrimSpace(string(line)), fmt.Errorf("rank %d: %w", i, err))
		}
	}
	return answers, nil
}

// errCannot is a peer that does not have the operation or the variant.
var errCannot = errors.New("cannot")

// prepare sets up buffers for op, carries it out once and counts wrong elements.
func (c *competitor) prepare(op, variant string, bytes int64) (wrong int64, err error) {
	answers, err := c.ask("prep %s %s %d", op, variant, bytes)
	if err != nil {
		return 0, err
	}
	for i, a := range answers {
		if why, cannot := strings.CutPrefix(a, "cannot "); cannot {
			return 0, fmt.Errorf("%s %s: %w: %s", c.peer.Name, variant, errCannot, why)
		}
		var n int64
		if _, err := fmt.Sscanf(a, "ready %d", &n); err != nil {
			return 0, c.fail(op, fmt.Errorf("rank %d answered %q", i, a))
		}
		wrong += n
	}
	return wrong, nil
}

// parseEach reads the times of operations, and what the rank's processor worked.
func parseEach(answer string, iters int, cpu *int64) ([]time.Duration, error) {
	words := strings.Fields(answer)
	if len(words) != iters+2 || words[0] != "each" {
		return nil, fmt.Errorf("answered %.40q to a request for %d times", answer, iters)
	}
	times := make([]time.Duration, iters)
	for i, w := range words[1:] {
		v, err := strconv.ParseInt(w, 10, 64)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("answered %q where a time was to be", w)
		}
		if i == 0 {
			*cpu = v
		} else {
			times[i-1] = time.Duration(v)
		}
	}
	return times, nil
}

// batch carries out the operation iters times: the time of the slowest rank, and
// what all ranks' processors worked.
func (c *competitor) batch(iters int) (slowest, cpu time.Duration, err error) {
	answers, err := c.ask("run %d", iters)
	if err != nil {
		return 0, 0, err
	}
	for i, a := range answers {
		var t, p int64
		if _, err := fmt.Sscanf(a, "took %d %d", &t, &p); err != nil {
			return 0, 0, c.fail("run", fmt.Errorf("rank %d answered %q", i, a))
		}
		slowest = max(slowest, time.Duration(t))
		cpu += time.Duration(p)
	}
	return slowest, cpu, nil
}
