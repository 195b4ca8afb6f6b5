package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/comm"
	"github.com/weft-fabric/weft/run/launch"
)

// Line is a line of the table: the same work in two ways.
type Line struct {
	What     string `json:"what"`
	SendRecv string `json:"send_recv"`
	Transfer string `json:"transfer"`
}

// said is what a rank prints.
type said struct {
	Join  float64 `json:"join_s"`
	Each  float64 `json:"each_s"`
	CPU   float64 `json:"cpu_s"`
	Error string  `json:"error,omitempty"`
	After float64 `json:"after_s"`
}

const (
	moves    = 11
	lateness = 300 * time.Millisecond
)

// Rank is a rank of Compare: rank 0 sends size bytes to rank 1, or to all others (broadcast), which answer. A mode "late" has rank 1 come
// late, "killed" has it die.
func Rank(ctx context.Context, out io.Writer, mode, size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	cfg, err := comm.FromEnv()
	if err != nil {
		return err
	}
	began := time.Now()
	c, err := comm.Join(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	s := said{Join: time.Since(began).Seconds()}
	buf, err := comm.Alloc[int32](c, n/4)
	if err != nil {
		return err
	}
	word := make([]int32, 1)
	cache := reslice(int64(n))
	once := func() error {
		switch mode {
		case "share":
			return comm.AllReduce(ctx, c, buf, comm.Sum)
		case "reslice":
			return cache.sendRecv(ctx, c)
		case "broadcast":
			if err := comm.Broadcast(ctx, c, buf, 0); err != nil {
				return err
			}
			return comm.Barrier(ctx, c)
		}
		if c.Rank() == 0 {
			if err := comm.Send(ctx, c, buf, 1); err != nil {
				return err
			}
			return comm.Recv(ctx, c, word, 1)
		}
		if err := comm.Recv(ctx, c, buf, 0); err != nil {
			return err
		}
		return comm.Send(ctx, c, word, 0)
	}
	if err := once(); err != nil {
		return err
	}
	if mode == "late" || mode == "killed" {
		if c.Rank() == 1 {
			if mode == "killed" {
				os.Exit(0) // without Close: for the other, this rank died
			}
			time.Sleep(lateness) // that is the lateness that is measured
		}
		began := time.Now()
		if err := once(); err != nil {
			s.Error = err.Error()
		}
		s.After = time.Since(began).Seconds()
	} else {
		cpu := cpuTime()
		var times []float64
		count := moves
		if mode == "share" {
			count = shared
		}
		for range count {
			began := time.Now()
			if err := once(); err != nil {
				return err
			}
			times = append(times, time.Since(began).Seconds())
		}
		s.Each, s.CPU = median(times), (cpuTime()-cpu).Seconds()/float64(count)
	}
	if c.Rank() == 0 {
		return json.NewEncoder(out).Encode(s)
	}
	return nil
}

// ranks runs Rank in n processes and gives what rank 0 said.
func (c *Config) ranks(ctx context.Context, n int, mode string, size int64, env ...string) (said, error) {
	var out bytes.Buffer
	var mu sync.Mutex
	exe := c.Command[0]
	_, err := launch.Run(ctx, launch.Spec{N: n, Command: []string{exe, "xfer", "rank", mode, strconv.FormatInt(size, 10)}, Env: env,
		Stderr: os.Stderr, KeepGoing: true, Grace: time.Second,
		Capture: func(rank int) io.Writer {
			if rank != 0 {
				return io.Discard
			}
			return lockedWriter{&mu, &out}
		}})
	mu.Lock()
	defer mu.Unlock()
	var s said
	if e := json.Unmarshal(out.Bytes(), &s); e != nil {
		if err == nil {
			err = fmt.Errorf("rank 0 said %q", out.String())
		}
		return s, err
	}
	return s, nil
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

// transfers is the same work by agents: this process writes into memory of n others.
type transfers struct {
	agent *xfer.Agent
	kids  []*Child
	join  time.Duration
	local *xfer.List
	far   []*xfer.List
}

// transfers starts an agent, connects it to n peers and moves the bytes once. Unless it is nil, what it returns has to
// be closed, even if there is an error.
func (c *Config) transfers(ctx context.Context, n int, size int64) (*transfers, error) {
	t := &transfers{}
	began := time.Now()
	var err error
	if t.agent, err = xfer.New(xfer.Config{Name: "prefill", Token: c.Token, Timeout: 10 * time.Second}); err != nil {
		return nil, err
	}
	b, err := t.agent.Alloc(int(size))
	if err != nil {
		return t, err
	}
	r, err := t.agent.Register("local", xfer.Memory(b), 0)
	if err != nil {
		return t, err
	}
	if t.local, err = t.agent.Prepare(nil, []xfer.Desc{r.At(0, size)}); err != nil {
		return t, err
	}
	for range n {
		if err := t.add(ctx, c, size); err != nil {
			return t, err
		}
	}
	if err := t.once(ctx); err != nil {
		return t, err
	}
	t.join = time.Since(began)
	return t, nil
}

// target is the region of a peer.
type target struct {
	peer   *xfer.Peer
	region *xfer.Remote
}

func (t *transfers) peerRegion(i int) (target, error) {
	p, err := t.agent.Open(t.kids[i].Hello.Description)
	if err != nil {
		return target{}, err
	}
	r, err := p.Region("target")
	return target{p, r}, err
}

// add starts one more peer.
func (t *transfers) add(ctx context.Context, c *Config, size int64) error {
	k, err := Start(ctx, append(slices.Clone(c.Command), "--name", fmt.Sprintf("decode%d", len(t.kids)), "--region",
		fmt.Sprintf("target=host:%d", size), "--quiet"), "WEFT_TOKEN="+c.Token)
	if err != nil {
		return err
	}
	t.kids = append(t.kids, k)
	p, err := t.agent.Open(k.Hello.Description)
	if err != nil {
		return err
	}
	far, err := p.Region("target")
	if err != nil {
		return err
	}
	l, err := t.agent.Prepare(p, []xfer.Desc{far.At(0, size)})
	if err != nil {
		return err
	}
	t.far = append(t.far, l)
	return nil
}

// once writes to all peers at once, with a notice.
func (t *transfers) once(ctx context.Context) error {
	var qs []*xfer.Request
	for _, f := range t.far {
		q, err := t.agent.Post(xfer.Transfer{Op: xfer.Write, Local: t.local, Remote: f, Notice: []byte{1}})
		if err != nil {
			return err
		}
		qs = append(qs, q)
	}
	var errs []error
	for _, q := range qs {
		errs = append(errs, q.Wait(ctx))
	}
	return errors.Join(errs...)
}

func (t *transfers) close() {
	if t.agent != nil {
		t.agent.Close()
	}
	for _, k := range t.kids {
		k.Stop()
	}
}

func (t *transfers) cpu(ctx context.Context) float64 {
	sum := cpuTime().Seconds()
	for _, k := range t.kids {
		s, _ := k.CPU(ctx)
		sum += s
	}
	return sum
}

// Compare moves the same bytes in both ways.
func Compare(ctx context.Context, c Config, sizes []int64) ([]Line, error) {
	var out []Line
	ms := func(s float64) string { return fmt.Sprintf("%.2f ms", s*1e3) }
	var first said
	var joined time.Duration
	work := func(mode string, n int, size int64, what string) error {
		r, err := c.ranks(ctx, n+1, mode, size)
		if err != nil {
			return fmt.Errorf("%s by send and receive: %w", what, err)
		}
		t, err := c.transfers(ctx, n, size)
		if t != nil {
			defer t.close()
		}
		if err != nil {
			return fmt.Errorf("%s by transfers: %w", what, err)
		}
		if len(out) == 0 {
			first, joined = r, t.join
		}
		before := t.cpu(ctx)
		var times []float64
		for range moves {
			began := time.Now()
			if err := t.once(ctx); err != nil {
				return err
			}
			times = append(times, time.Since(began).Seconds())
		}
		used := (t.cpu(ctx) - before) / moves
		rate := func(s float64) string { return unit.Rate(float64(n) * float64(size) / s).String() }
		each := median(times)
		out = append(out, Line{what, fmt.Sprintf("%s, %s, %s of a processor at the sender", ms(r.Each), rate(r.Each), ms(r.CPU)),
			fmt.Sprintf("%s, %s, %s of a processor, all processes", ms(each), rate(each), ms(used))})
		return nil
	}
	for _, size := range sizes {
		if err := work("move", 1, size, fmt.Sprintf("%v, one to one", unit.Bytes(size))); err != nil {
			return out, err
		}
	}
	last := sizes[len(sizes)-1]
	if err := work("broadcast", 3, last, fmt.Sprintf("%v, one to three", unit.Bytes(last))); err != nil {
		return out, err
	}
	line, err := c.reslice(ctx, last)
	if err != nil {
		return out, err
	}
	out = append(out, line)
	out = append(out, Line{"start, until the first bytes are there", ms(first.Join) + " to meet, all at once",
		ms(joined.Seconds()) + " with a new process, each for itself"})

	// One side late.
	r, err := c.ranks(ctx, 2, "late", last)
	if err != nil {
		return out, err
	}
	t, err := c.transfers(ctx, 1, last)
	if t != nil {
		defer t.close()
	}
	if err != nil {
		return out, err
	}
	began := time.Now()
	err = t.once(ctx) // the peer's program does nothing at all; its agent takes the bytes
	out = append(out, Line{fmt.Sprintf("the receiver is %v late", lateness), "the sender waits: " + ms(r.After),
		fmt.Sprintf("the bytes are there after %s; the notice waits for it", ms(time.Since(began).Seconds()))})
	if err != nil {
		return out, err
	}

	// One more joins.
	began = time.Now()
	if err = t.add(ctx, &c, last); err == nil {
		err = t.once(ctx)
	}
	if err != nil {
		return out, err
	}
	out = append(out, Line{"one more joins", "a new communicator: all stop and meet again",
		"nobody stops; it has its first bytes after " + ms(time.Since(began).Seconds())})

	// One side killed.
	if r, err = c.ranks(ctx, 2, "killed", last); err != nil {
		return out, err
	}
	t.far = t.far[:1]
	t.kids[0].Kill()
	began = time.Now()
	err = t.once(ctx)
	f := (*xfer.Failure)(nil)
	who := "nobody"
	if errors.As(err, &f) {
		who = f.Who
	}
	out = append(out, Line{"the receiver is killed", fmt.Sprintf("an error after %s: %s", ms(r.After), firstLine(r.Error)),
		fmt.Sprintf("an error after %s that names %s; requests with others go on", ms(time.Since(began).Seconds()), who)})
	out = append(out,
		Line{"order", "messages of a pair keep their order", "requests have none; a notice comes after its own bytes"},
		Line{"who takes part", "both sides call, with the same size", "one side posts; the other has registered memory"},
		Line{"memory", "host memory, GPU memory by its transport", "host memory, files, objects, each with each"},
		Line{"reductions", "all-reduce and its kin", "none: use comm"})
	return out, nil
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 100 {
		s = s[:100] + "..."
	}
	return s
}
