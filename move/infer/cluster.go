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

// attempt is one try of a request on a decode worker.
type attempt struct {
	events chan told
	decode *process
	prefil *process
}

type told struct {
	from *process
	event
}

// Reply is an answer and how it came to be.
type Reply struct {
	ID        int           `json:"id"`
	State     string        `json:"state"` // waiting, prefill, decode, done, failed
	Mode      Mode          `json:"mode"`
	Prompt    int           `json:"prompt_tokens"`
	Tokens    []Token       `json:"-"`
	Count     int           `json:"tokens"`
	First     time.Duration `json:"ttft_ns"` // to the first token
	Each      time.Duration `json:"tpot_ns"` // between tokens, on average
	Compute   time.Duration `json:"prefill_ns"`
	Exposed   time.Duration `json:"exposed_ns"` // of the transfer, after computing
	Bytes     int64         `json:"kv_bytes"`
	Path      string        `json:"path,omitempty"`
	Shared    int           `json:"shared_blocks"` // that came from the cache service
	Waited    time.Duration `json:"waited_ns"`     // of decode, for layers after the first
	Again     bool          `json:"recomputed"`
	Attempts  int           `json:"attempts"` // on decode workers
	Prefills  int           `json:"prefills"`
	PrefillAt string        `json:"prefill_worker,omitempty"`
	DecodeAt  string        `json:"decode_worker,omitempty"`
	Blocks    []string      `json:"blocks"` // names of the prompt's blocks of 16 tokens, shortened
	Where     string        `json:"where"`  // they are
	Error     string        `json:"error,omitempty"`
	Asked     time.Time     `json:"asked"`
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
	c := &Cluster{o: o, token: token, attempts: map[int]*attempt{}, change: make(chan struct{})}
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
	config, err := json.Marshal(workerConfig{Name: p.name, Role: p.role, Model: c.o.Model, Token: c.token, Path: c.o.Path, Rate: c.o.Rate, Patience: c.o.Patience, Cache: c.o.Cache})
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
		err := cmd.Wait()
		c.gone(p, cmd, fmt.Sprintf("%v %s", err, words.String()))
	})
	return nil
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

const (
	maxAttempts = 20
	maxOrders   = 1024 // that wait for one worker
)

// Ask answers a prompt with count tokens.
func (c *Cluster) Ask(ctx context.Context, prompt []byte, count int, mode Mode) (*Reply, error) {
	if err := c.o.Model.check(prompt, count); err != nil {
		return nil, err
	}
	if !slices.Contains(Modes, mode) {
		return nil, fmt.Errorf("infer: mode %q; known: %v", mode, Modes)
	}
	if c.o.Prefill == 0 {
		mode = Recompute
	}
	hashes, err := c.o.Model.hashes(prompt)
	if err != nil {
		return nil, err
	}
	r := &Reply{State: "waiting", Mode: mode, Prompt: len(prompt), Asked: time.Now(), Where: "nowhere yet", Blocks: []string{}}
	for _, h := range hashes {
		r.Blocks = append(r.Blocks, h.String()[:8])
	}
	c.mu.Lock()
	c.asked++
	r.ID = c.asked
	if c.requests = append(c.requests, r); len(c.requests) > 200 {
		c.requests = slices.Delete(c.requests, 0, 100)
	}
	c.mu.Unlock()
	var last time.Time
	for try := range maxAttempts {
		done, err := c.attempt(ctx, r, prompt, count, &last)
		if done {
			return r, nil
		}
		if ctx.Err() != nil || try == maxAttempts-1 {
			c.note(func() { r.State, r.Error, r.Where = "failed", err.Error(), "freed" })
			return r, fmt.Errorf("infer: request %d: %w", r.ID, err)
		}
	}
	panic("not reached")
}

func (c *Cluster) note(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// attempt tries a request on one decode worker, with what is left of it.
func (c *Cluster) attempt(ctx context.Context, r *Reply, prompt []byte, count int, last *time.Time) (bool, error) {
	text := slices.Clone(prompt)
	for _, t := range r.Tokens {
		text = append(text, t.Token)
	}
	d, err := c.pick(ctx, Decode)
	if err != nil {
		return false, err
	}
	a := &attempt{events: make(chan told, 2*count+4*maxAttempts+64), decode: d}
	c.mu.Lock()
	c.next++
	id := c.next
	c.attempts[id] = a
	r.Attempts++
	r.State, r.DecodeAt = "waiting", d.name
	c.mu.Unlock()
	defer c.note(func() {
		delete(c.attempts, id)
		d.load--
		if a.prefil != nil {
			a.prefil.load--
		}
	})
	c.order(d, order{Do: "expect", ID: id, Prompt: text, Count: count - len(r.Tokens), Mode: r.Mode})
	var target []byte
	landed := false
	prefill := func() error {
		p, err := c.pick(ctx, Prefill)
		if err != nil {
			return err
		}
		c.note(func() {
			if a.prefil != nil {
				a.prefil.load--
			}
			a.prefil = p
			r.Prefills++
			r.State, r.PrefillAt, r.Where = "prefill", p.name, p.name
		})
		c.order(p, order{Do: "prefill", ID: id, Prompt: text, Mode: r.Mode, Target: target})
		return nil
	}
	quiet := time.NewTimer(c.o.Silence)
	defer quiet.Stop()
	for {
		var e told
		select {
		case e = <-a.events:
			if e.from == d {
				quiet.Reset(c.o.Silence)
			}
		case <-quiet.C:
			c.note(func() { d.silent = true })
			c.order(d, order{Do: "drop", ID: id})
			c.o.Log.Warn("a decode worker says nothing; its request goes to another", "worker", d.name, "request", r.ID, "for", c.o.Silence)
			return false, fmt.Errorf("decode worker %s has been silent for %s", d.name, c.o.Silence)
		case <-ctx.Done():
			c.order(d, order{Do: "drop", ID: id})
			return false, ctx.Err()
		}
		switch {
		case e.Event == "expecting":
			if target = e.Target; r.Mode != Recompute && len(text) > 1 {
				if err := prefill(); err != nil {
					return false, err
				}
			}
		case e.Event == "prefilled":
			landed = true
			c.note(func() {
				e.from.done++
				r.Compute, r.Exposed, r.Bytes, r.Path, r.Shared, r.Where = e.Compute, e.Exposed, e.Bytes, e.Path, e.Shared, d.name
			})
		case e.Event == "token":
			now := time.Now()
			c.note(func() {
				if len(r.Tokens) == 0 {
					r.First = now.Sub(r.Asked)
				} else {
					n := time.Duration(len(r.Tokens))
					r.Each = (r.Each*(n-1) + now.Sub(*last)) / n
				}
				*last = now
				r.Tokens = append(r.Tokens, e.Token)
				r.Count, r.State, r.Where = len(r.Tokens), "decode", d.name
			})
		case e.Event == "done":
			c.note(func() {
				e.from.done++
				r.State, r.Waited, r.Again, r.Where = "done", e.Waited, r.Again || e.Again, "freed"
			})
			// What the prefill worker has to say of its transfer comes a little later, or not at all.
			if r.Mode != Recompute && !landed && !e.Again && len(text) > 1 {
				c.await(ctx, a, r, d)
			}
			return true, nil
		case e.from == d: // failed or gone
			return false, fmt.Errorf("decode worker %s: %s", d.name, e.Error)
		case e.from == a.prefil && !landed:
			c.o.Log.Info("a prompt is read again", "request", r.ID, "worker", e.from.name, "why", e.Error)
			if r.Prefills >= maxAttempts {
				return false, fmt.Errorf("prefill worker %s: %s", e.from.name, e.Error)
			}
			if err := prefill(); err != nil {
				return false, err
			}
		}
	}
}

// await takes the figures of a prefill that ended after its answer did. They are late as a layer may be.
func (c *Cluster) await(ctx context.Context, a *attempt, r *Reply, d *process) {
	t := time.NewTimer(c.o.Patience)
	defer t.Stop()
	for {
		select {
		case e := <-a.events:
			if e.Event == "prefilled" {
				c.note(func() {
					e.from.done++
					r.Compute, r.Exposed, r.Bytes, r.Path, r.Shared = e.Compute, e.Exposed, e.Bytes, e.Path, e.Shared
				})
			}
			if e.Event == "prefilled" || e.Event == "failed" || e.Event == "gone" && e.from != d {
				return
			}
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Signal sends a signal to the process of a worker: p0, d1.
func (c *Cluster) Signal(name string, s syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.workers {
		if p.name == name {
			if p.cmd == nil || !p.live {
				return fmt.Errorf("infer: worker %s is not there at the moment", name)
			}
			return p.cmd.Process.Signal(s)
		}
	}
	return fmt.Errorf("infer: no worker %q", name)
}

// WorkerStatus is how a worker stands.
type WorkerStatus struct {
	Name     string `json:"name"`
	Role     Role   `json:"role"`
	Pid      int    `json:"pid"`
	Live     bool   `json:"live"`
	Silent   bool   `json:"silent,omitempty"` // it owes an answer for longer than it may
	Load     int    `json:"requests"`
	Done     int    `json:"done"`
	Restarts int    `json:"restarts"`
	Last     string `json:"last,omitempty"` // how the process before ended
}

// Status is how a cluster stands, the latest request first.
type Status struct {
	Model    Model          `json:"model"`
	Workers  []WorkerStatus `json:"workers"`
	Asked    int            `json:"asked"`
	Requests []Reply        `json:"requests"`
	TTFT     []Spread       `json:"ttft"`
	TPOT     []Spread       `json:"tpot"`
	Cache    *CacheStatus   `json:"cache,omitempty"`
}

// CacheStatus is how the cache service stands, as far as it answers.
type CacheStatus struct {
	Address string `json:"address"`
	Blocks  int    `json:"blocks"` // in memory
	Room    int    `json:"room"`
	Asked   int64  `json:"asked"`
	Found   int64  `json:"found"`
	Stored  int64  `json:"stored"`
	Moved   int64  `json:"bytes_by_transfers"`
	Error   string `json:"error,omitempty"`
}

// cacheStatus asks the cache service.
func (c *Cluster) cacheStatus() *CacheStatus {
	if c.stats == nil {
		return nil
	}
	out := &CacheStatus{Address: c.o.Cache}
	ctx, cancel := context.WithTimeout(context.Background(), c.o.Patience)
	defer cancel()
	s, err := c.stats.Stat(ctx)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	for _, t := range s.Tenants {
		out.Blocks, out.Room = out.Blocks+t.Memory, out.Room+t.Room
	}
	n := s.Counters
	out.Asked, out.Found, out.Stored, out.Moved = n.Asked, n.Asked-n.Missed, n.Stored, n.Moved
	return out
}

// Spread is how a time varies over the last requests of a mode.
type Spread struct {
	Mode  Mode          `json:"mode"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
}

func spread(mode Mode, list []time.Duration) Spread {
	if len(list) == 0 {
		return Spread{Mode: mode}
	}
	slices.Sort(list)
	return Spread{mode, len(list), list[len(list)/2], list[min(len(list)-1, len(list)*99/100)]}
}

// Status tells how the cluster stands.
func (c *Cluster) Status() Status {
	cache := c.cacheStatus()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{Cache: cache, Model: c.o.Model, Asked: c.asked, Workers: []WorkerStatus{}, Requests: []Reply{}}
	for _, p := range c.workers {
		x := WorkerStatus{Name: p.name, Role: p.role, Live: p.live, Silent: p.silent, Load: p.load, Done: p.done, Restarts: p.restarts, Last: p.last}
		if p.cmd != nil && p.cmd.Process != nil {
			x.Pid = p.cmd.Process.Pid
		}
		s.Workers = append(s.Workers, x)
	}
	for i := len(c.requests) - 1; i >= 0; i-- {
		s.Requests = append(s.Requests, *c.requests[i])
	}
	for _, m := range Modes {
		var first, each []time.Duration
		for _, r := range c.requests {
			if r.Mode == m && r.State == "done" {
				first = append(first, r.First)
				if r.Count > 1 {
					each = append(each, r.Each)
				}
			}
		}
		if len(first) > 0 {
			s.TTFT, s.TPOT = append(s.TTFT, spread(m, first)), append(s.TPOT, spread(m, each))
		}
	}
	return s
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
