package infer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/run/launch"
)

// Options are what a cluster of workers is made of.
type Options struct {
	Model    Model
	Prefill  int      // workers that read prompts; 0: decode workers read them
	Decode   int      // workers that write answers
	Program  []string // that calls WorkerMain on its standard input and output
	Path     string   // of xfer; empty: the shortest
	Rate     unit.Rate
	Patience time.Duration // that a decode worker waits for a layer; 0: 5 s
	// Silence is how long a decode worker may say nothing before its request goes to another one; 0: four times Patience, and 10 s.
	Silence time.Duration
	// Cache is the address of a cache service through which prefill workers share what prompts have in common; Token is what it
	// asks for. With CacheMemory the cluster starts one of its own, of CacheMemory bytes.
	Cache       string
	CacheMemory int64
	Token       string
	Log         *slog.Logger
}

// Cluster is the workers of one model, each a process, and the requests on them.
type Cluster struct {
	o     Options
	token string
	cache *ownCache       // nil: none, or not its own
	stats *kvcache.Client // of the cache; nil: none
	begun time.Time

	mu       sync.Mutex
	workers  []*process
	attempts map[int]*attempt
	next     int
	closing  bool
	change   chan struct{} // closed and made anew when a worker comes or goes
	requests []*Reply      // the last ones
	asked    int
	wg       sync.WaitGroup
}

// process is one place of a worker: processes in it come and go.
type process struct {
	name     string
	role     Role
	cmd      *exec.Cmd
	in       io.WriteCloser
	orders   chan []byte // to the process of the moment
	live     bool
	silent   bool // it owes an answer, and others are asked instead
	load     int  // requests
	restarts int
	last     string
	done     int
}

// Check reports what is wrong with options.
func (o Options) Check() error {
	if o.Decode < 1 || o.Prefill < 0 || o.Decode > 64 || o.Prefill > 64 {
		return fmt.Errorf("infer: %d prefill and %d decode workers; want 0 to 64 and 1 to 64", o.Prefill, o.Decode)
	}
	if o.Patience < 0 || o.Silence < 0 || o.Rate < 0 {
		return fmt.Errorf("infer: patience %s, silence %s, rate %v: below 0", o.Patience, o.Silence, o.Rate)
	}
	if o.Path != "" && !slices.Contains(paths, o.Path) {
		return fmt.Errorf("infer: path %q; known: %s", o.Path, strings.Join(paths, ", "))
	}
	if o.CacheMemory > 0 && o.Cache != "" {
		return fmt.Errorf("infer: a cache service at %s and one of %v of its own; want one of them", o.Cache, unit.Bytes(o.CacheMemory))
	}
	if _, err := o.Model.load(); err != nil {
		return err
	}
	if least := o.Model.blockBytes(); o.CacheMemory < 0 || o.CacheMemory > 0 && o.CacheMemory < least {
		return fmt.Errorf("infer: a cache of %v; a block alone has %v", unit.Bytes(o.CacheMemory), unit.Bytes(least))
	}
	return nil
}

// paths are those between processes of a host.
var paths = []string{"shm", "pull", "unix", "tcp", "ucx"}

// Start starts the workers and waits until all are ready.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.Patience == 0 {
		o.Patience = 5 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = 4*o.Patience + 10*time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	token := o.Token
	if o.Cache == "" {
		var err error
		if token, err = launch.NewToken(); err != nil {
			return nil, err
		}
	}
	c := &Cluster{o: o, token: token, begun: time.Now(), attempts: map[int]*attempt{}, change: make(chan struct{})}
	if o.CacheMemory > 0 {
		var err error
		if c.cache, err = startCache(o, token); err != nil {
			return nil, fmt.Errorf("infer: %w", err)
		}
		c.o.Cache = c.cache.address
	}
	if c.o.Cache != "" {
		c.stats = kvcache.Dial(c.o.Cache, token, "")
		ask, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := c.stats.Stat(ask)
		cancel()
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("infer: %w", err)
		}
	}
	for i := range o.Prefill {
		c.workers = append(c.workers, &process{name: fmt.Sprintf("p%d", i), role: Prefill})
	}
	for i := range o.Decode {
		c.workers = append(c.workers, &process{name: fmt.Sprintf("d%d", i), role: Decode})
	}
	for _, p := range c.workers {
		if err := c.start(p); err != nil {
			c.Close()
			return nil, err
		}
	}
	for {
		c.mu.Lock()
		ready, change := 0, c.change
		var broken string
		for _, p := range c.workers {
			if p.live {
				ready++
			} else if p.restarts > 2 {
				broken = fmt.Sprintf("worker %s does not start: %s", p.name, p.last)
			}
		}
		c.mu.Unlock()
		if ready == len(c.workers) {
			return c, nil
		}
		if broken != "" {
			c.Close()
			return nil, errors.New(broken)
		}
		select {
		case <-change:
		case <-ctx.Done():
			c.Close()
			return nil, fmt.Errorf("infer: %d of %d workers are ready: %w", ready, len(c.workers), ctx.Err())
		}
	}
}

// start starts the process of a place, and starts it again when it ends.
func (c *Cluster) start(p *process) error {
	config, err := json.Marshal(workerConfig{Name: p.name, Role: p.role, Model: c.o.Model, Token: c.token, Path: c.o.Path, Rate: c.o.Rate,
		Patience: c.o.Patience, Cache: c.o.Cache})
	if err != nil {
		return err
	}
	cmd := exec.Command(c.o.Program[0], c.o.Program[1:]...)
	cmd.SysProcAttr = own()
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var words tail
	cmd.Stderr = &words
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("infer: worker %s: %w", p.name, err)
	}
	orders, over := make(chan []byte, maxOrders), make(chan struct{})
	orders <- config
	c.mu.Lock()
	p.cmd, p.in, p.orders = cmd, in, orders
	if c.closing {
		_ = cmd.Process.Kill()
	}
	c.mu.Unlock()
	// A worker that was stopped reads nothing, and its pipe fills: nobody but this waits for it.
	c.wg.Go(func() {
		for {
			select {
			case text := <-orders:
				_, _ = in.Write(append(text, '\n')) // a worker that is gone is noticed below
			case <-over:
				return
			}
		}
	})
	c.wg.Go(func() {
		defer close(over)
		c.listen(p, out)
		err := cmd.Wait()
		c.gone(p, cmd, fmt.Sprintf("%v %s", err, words.String()))
	})
	return nil
}

// listen takes what a worker tells, a line each, until it closes its output.
func (c *Cluster) listen(p *process, out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			c.o.Log.Error("a worker told nonsense", "worker", p.name, "error", err)
			continue
		}
		c.hear(p, e)
	}
}

// hear takes an event of a worker.
func (c *Cluster) hear(p *process, e event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.silent = false
	if e.Event == "ready" {
		p.live = true
		c.wake()
		return
	}
	if a := c.attempts[e.ID]; a != nil {
		a.events <- told{p, e} // as large as all that can come
	}
}

func (c *Cluster) wake() {
	close(c.change)
	c.change = make(chan struct{})
}

// gone notes the end of a process and starts another.
func (c *Cluster) gone(p *process, cmd *exec.Cmd, how string) {
	c.mu.Lock()
	p.live, p.silent, p.last = false, false, how
	p.restarts++
	closing, n := c.closing, p.restarts
	for _, a := range c.attempts {
		if a.decode == p || a.prefil == p {
			a.events <- told{p, event{Event: "gone", Error: how}}
		}
	}
	c.wake()
	c.mu.Unlock()
	if closing {
		return
	}
	c.o.Log.Warn("a worker ended and is started again", "worker", p.name, "pid", cmd.Process.Pid, "how", how)
	if n > 3 {
		time.Sleep(min(time.Duration(n)*50*time.Millisecond, time.Second)) // one that cannot start is not started without end
	}
	if err := c.start(p); err != nil {
		c.o.Log.Error("a worker does not start", "worker", p.name, "error", err)
	}
}

// tail keeps the last words of a worker.
type tail struct {
	sync.Mutex
	b []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.Lock()
	defer t.Unlock()
	if t.b = append(t.b, p...); len(t.b) > 2000 {
		t.b = t.b[len(t.b)-2000:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.Lock()
	defer t.Unlock()
	return string(t.b)
}

// pick takes the live worker of a role with the least to do, one that speaks before one that does not, and waits for one if there is none.
func (c *Cluster) pick(ctx context.Context, role Role) (*process, error) {
	for {
		c.mu.Lock()
		var best *process
		for _, p := range c.workers {
			if p.role == role && p.live && (best == nil || best.silent && !p.silent || best.silent == p.silent && p.load < best.load) {
				best = p
			}
		}
		if best != nil {
			best.load++
		}
		change, closing := c.change, c.closing
		c.mu.Unlock()
		if best != nil {
			return best, nil
		}
		if closing {
			return nil, errors.New("infer: the cluster is closed")
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, fmt.Errorf("infer: no %s worker is there: %w", role, ctx.Err())
		}
	}
}

func (c *Cluster) order(p *process, o order) {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err) // bytes and numbers
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case p.orders <- text:
	default: // it has not read for so long that it is of no use: its end comes as an event, and another takes its place
		_ = p.cmd.Process.Kill()
	}
}

// Signal sends a signal to the process of a worker: p0, d1.
func (c *Cluster) Signal(name string, s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.workers {
		if p.name == name {
			if p.cmd == nil || !p.live {
				return fmt.Errorf("infer: worker %s is not running at the moment", name)
			}
			return p.cmd.Process.Signal(s)
		}
	}
	return fmt.Errorf("infer: no worker %q", name)
}

// Close ends the workers.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.closing = true
	c.wake()
	for _, p := range c.workers {
		if p.in != nil {
			p.in.Close()
		}
		if p.cmd != nil && p.cmd.Process != nil {
			_ = p.cmd.Process.Signal(os.Kill) // they hold nothing that must be put away
		}
	}
	c.mu.Unlock()
	c.wg.Wait()
	if c.stats != nil {
		c.stats.Close()
	}
	if c.cache != nil {
		c.cache.close()
	}
}
