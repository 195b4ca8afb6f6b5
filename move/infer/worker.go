package infer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/move/kv"
	"github.com/weft-fabric/weft/move/kvcache"
	"github.com/weft-fabric/weft/move/openai"
	"github.com/weft-fabric/weft/move/xfer"
	"github.com/weft-fabric/weft/run/train/model"
)

// Role is what a worker does.
type Role string

// The roles.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// workerConfig is what a worker is started with, as one line of JSON.
type workerConfig struct {
	Name     string        `json:"name"`
	Role     Role          `json:"role"`
	Model    Model         `json:"model"`
	Token    string        `json:"token"`
	Path     string        `json:"path"`     // of xfer; empty: the shortest
	Rate     unit.Rate     `json:"rate"`     // at most, of what it sends; 0: no limit
	Patience time.Duration `json:"patience"` // that a decode worker waits for a layer
	Cache    string        `json:"cache"`    // address of the cache service; empty: none
}

// order is what a worker is told to do.
type order struct {
	Do     string `json:"do"` // expect, prefill, drop
	ID     int    `json:"id"`
	Prompt []byte `json:"prompt"`
	Count  int    `json:"count"`
	Mode   Mode   `json:"mode"`
	Target []byte `json:"target"` // the decode worker's description, with the region of the request

	Sampling openai.Sampling `json:"sampling"`
	Top      int             `json:"top"` // log probabilities that are wanted; -1: none
}

// event is what a worker tells.
type event struct {
	Event   string        `json:"event"` // ready, expecting, prefilled, token, done, failed
	ID      int           `json:"id"`
	Target  []byte        `json:"target,omitempty"`
	Token   Token         `json:"token"`
	Scores  []Score       `json:"scores,omitempty"` // the token's and the likeliest ones
	Error   string        `json:"error,omitempty"`
	Compute time.Duration `json:"compute,omitempty"` // of the prompt
	Exposed time.Duration `json:"exposed,omitempty"` // from the end of computing until all of the cache has landed
	Bytes   int64         `json:"bytes,omitempty"`
	Path    string        `json:"path,omitempty"`
	Shared  int           `json:"shared,omitempty"` // blocks that came from the cache service
	Waited  time.Duration `json:"waited,omitempty"` // of a decode worker, for layers after the first
	Again   bool          `json:"again,omitempty"`  // the decode worker computed the prompt itself
}

// worker is one process.
type worker struct {
	c     workerConfig
	m     loaded
	agent *xfer.Agent

	out struct {
		sync.Mutex
		*json.Encoder
	}

	prompts int      // read so far, by a prefill worker
	share   *sharing // nil: no cache service

	log io.Writer

	mu   sync.Mutex
	jobs map[int]*landing // of a decode worker
}

// landing is a request whose cache arrives.
type landing struct {
	region *xfer.Region
	mem    []byte

	mu   sync.Mutex
	have []bool // layers
	more chan struct{}
	drop context.CancelFunc
}

// WorkerMain is a worker: orders come in, events go out. It ends when in does.
func WorkerMain(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	if !lines.Scan() {
		return fmt.Errorf("infer: no configuration came: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
	}
	w := &worker{jobs: map[int]*landing{}, log: os.Stderr}
	if err := json.Unmarshal(lines.Bytes(), &w.c); err != nil {
		return fmt.Errorf("infer: configuration: %w", err)
	}
	w.out.Encoder = json.NewEncoder(out)
	var err error
	if w.m, err = w.c.Model.load(); err != nil {
		return err
	}
	w.agent, err = xfer.New(xfer.Config{Name: w.c.Name, Token: w.c.Token, Path: w.c.Path, Limits: xfer.Limits{xfer.Latency: w.c.Rate}})
	if err != nil {
		return err
	}
	defer w.agent.Close()
	if w.c.Cache != "" && w.c.Role == Prefill {
		chain, err := w.c.Model.chain()
		if err != nil {
			return err
		}
		w.share = &sharing{w.c.Model, w.agent, kvcache.Dial(w.c.Cache, w.c.Token, chain.Print()), w.c.Patience / 2}
		defer w.share.client.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { w.notices(ctx) })
	queue := make(chan order, 1024)
	wg.Go(func() {
		for {
			select {
			case o := <-queue:
				w.prefill(ctx, &wg, o)
			case <-ctx.Done():
				return
			}
		}
	})
	w.tell(event{Event: "ready"})
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("infer: order: %w", err)
		}
		switch o.Do {
		case "prefill":
			queue <- o
		case "expect":
			wg.Go(func() { w.decode(ctx, o) })
		case "drop":
			w.mu.Lock()
			if j := w.jobs[o.ID]; j != nil {
				j.drop()
			}
			w.mu.Unlock()
		default:
			return fmt.Errorf("infer: order %q", o.Do)
		}
	}
	return lines.Err()
}

func (w *worker) tell(e event) {
	w.out.Lock()
	defer w.out.Unlock()
	_ = w.out.Encode(e) // who does not listen is gone, and the orders end
}

// notice is what goes with a layer.
type notice struct {
	ID    int `json:"id"`
	Layer int `json:"layer"` // -1: all
}

// prefill reads a prompt and sends its cache, all but the last token's, which the decode worker computes itself.
func (w *worker) prefill(ctx context.Context, wg *sync.WaitGroup, o order) {
	fail := func(err error) { w.tell(event{Event: "failed", ID: o.ID, Error: err.Error()}) }
	peer, err := w.agent.Open(o.Target)
	if err != nil {
		fail(err)
		return
	}
	remote, err := peer.Region(regionName(o.ID))
	if err != nil {
		fail(err)
		return
	}
	lay := w.c.Model.layout()
	mem, err := w.agent.Alloc(lay.Bytes())
	if err != nil {
		fail(err)
		return
	}
	w.prompts++
	region, err := w.agent.Register(fmt.Sprintf("prompt %d", w.prompts), xfer.Memory(mem), xfer.MayRead)
	if err != nil {
		_ = w.agent.Free(mem)
		fail(err)
		return
	}
	free := func() {
		_ = region.Release(context.WithoutCancel(ctx)) // nobody reads it; the writes out of it are over
		_ = w.agent.Free(mem)
	}
	start := time.Now()
	shared := 0
	if w.share != nil && len(o.Prompt) > 1 {
		if shared, err = w.share.fetch(ctx, o.Prompt, mem); err != nil {
			fmt.Fprintf(w.log, "the cache service gave nothing for request %d, it is computed: %v\n", o.ID, err)
			shared = 0
		}
	}
	seq, err := w.m.net.Read(w.m.param, w.c.Model.cacheOver(mem), shared*blockTokens)
	if err != nil {
		free()
		fail(err)
		return
	}
	var posted []*xfer.Request
	post := func(layer, layers int, n notice) error {
		moves, err := kv.Moves(lay, lay, w.c.Model.table(), w.c.Model.table(), kv.Part{Layer: layer, Layers: layers, Tokens: len(o.Prompt) - 1})
		if err != nil {
			return err
		}
		var from, to []xfer.Desc
		for _, m := range moves {
			from = append(from, region.At(int64(m.Src), int64(m.Len)))
			to = append(to, remote.At(int64(m.Dst), int64(m.Len)))
		}
		local, err := w.agent.Prepare(nil, from)
		if err != nil {
			return err
		}
		far, err := w.agent.Prepare(peer, to)
		if err != nil {
			return err
		}
		text, err := json.Marshal(n)
		if err != nil {
			return err
		}
		r, err := w.agent.Post(xfer.Transfer{Op: xfer.Write, Local: local, Remote: far, Notice: text, Class: xfer.Latency})
		if err == nil {
			posted = append(posted, r)
		}
		return err
	}
	var hooks model.Hooks
	if o.Mode == Stream && len(o.Prompt) > 1 {
		hooks.Done = func(layer int) error { return post(layer, 1, notice{o.ID, layer}) }
	}
	_, err = seq.Next(o.Prompt[shared*blockTokens:], hooks)
	computed := time.Now()
	if err == nil && o.Mode == Whole && len(o.Prompt) > 1 {
		err = post(0, 0, notice{o.ID, -1})
	}
	// The next prompt is read while this one's last layers are on their way.
	wg.Go(func() {
		defer free()
		e := event{Event: "prefilled", ID: o.ID, Compute: computed.Sub(start), Shared: shared}
		for _, r := range posted {
			if x := r.Wait(ctx); err == nil {
				err = x
			}
			s := r.Poll()
			e.Bytes += s.Landed
			e.Path = s.Path
		}
		e.Exposed = time.Since(computed)
		if err != nil {
			fail(err)
			return
		}
		w.tell(e)
		if w.share != nil {
			if err := w.share.store(ctx, o.Prompt, mem, shared); err != nil && ctx.Err() == nil {
				fmt.Fprintf(w.log, "the cache service did not take the blocks of request %d: %v\n", o.ID, err)
			}
		}
	})
}

func regionName(id int) string { return fmt.Sprintf("request %d", id) }

// notices hands what lands to the requests that wait for it.
func (w *worker) notices(ctx context.Context) {
	for {
		x, err := w.agent.NextNotice(ctx)
		if err != nil {
			return
		}
		var n notice
		if json.Unmarshal(x.Data, &n) != nil {
			continue // not of ours
		}
		w.mu.Lock()
		j := w.jobs[n.ID]
		w.mu.Unlock()
		if j == nil {
			continue
		}
		j.mu.Lock()
		switch {
		case x.Err != nil: // it is written again, maybe by another worker, or computed when its time is over
		case n.Layer == -1:
			for i := range j.have {
				j.have[i] = true
			}
		case n.Layer >= 0 && n.Layer < len(j.have):
			j.have[n.Layer] = true
		}
		close(j.more)
		j.more = make(chan struct{})
		j.mu.Unlock()
	}
}

var errLate = errors.New("the layer did not come in time")

// wait returns when a layer has landed.
func (j *landing) wait(ctx context.Context, layer int, limit time.Duration) error {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		j.mu.Lock()
		have, more := j.have[layer], j.more
		j.mu.Unlock()
		if have {
			return nil
		}
		select {
		case <-more:
		case <-t.C:
			return fmt.Errorf("layer %d: %w (%s)", layer, errLate, limit)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// decode answers a prompt.
func (w *worker) decode(ctx context.Context, o order) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fail := func(err error) { w.tell(event{Event: "failed", ID: o.ID, Error: err.Error()}) }
	mem, err := w.agent.Alloc(w.c.Model.layout().Bytes())
	if err != nil {
		fail(err)
		return
	}
	region, err := w.agent.Register(regionName(o.ID), xfer.Memory(mem), xfer.MayWrite)
	if err != nil {
		_ = w.agent.Free(mem)
		fail(err)
		return
	}
	j := &landing{region: region, mem: mem, have: make([]bool, w.c.Model.Config.Layers), more: make(chan struct{}), drop: cancel}
	w.mu.Lock()
	w.jobs[o.ID] = j
	w.mu.Unlock()
	// From here on nobody writes to the memory: what is under way is failed, what comes later finds no region.
	var once sync.Once
	fence := func() {
		once.Do(func() {
			_ = region.Release(context.WithoutCancel(ctx))
			w.mu.Lock()
			delete(w.jobs, o.ID)
			w.mu.Unlock()
		})
	}
	defer func() {
		fence()
		_ = w.agent.Free(mem)
	}()
	w.tell(event{Event: "expecting", ID: o.ID, Target: w.agent.Describe(region)})

	var waited time.Duration
	again := o.Mode == Recompute || len(o.Prompt) == 1
	cache := w.c.Model.cacheOver(mem)
	last := len(o.Prompt) - 1
	seq, err := w.m.net.Read(w.m.param, cache, last)
	var scores []float32
	if err == nil && !again {
		scores, err = seq.Next(o.Prompt[last:], model.Hooks{Need: func(layer int) error {
			start := time.Now()
			err := j.wait(ctx, layer, w.c.Patience)
			if layer > 0 {
				waited += time.Since(start)
			}
			return err
		}})
		again = errors.Is(err, errLate)
	}
	if again && ctx.Err() == nil {
		fence()
		if seq, err = w.m.net.Read(w.m.param, cache, 0); err == nil {
			scores, err = seq.Next(o.Prompt, model.Hooks{})
		}
	}
	for i := 0; err == nil && ctx.Err() == nil; i++ {
		t := Token{pick(o.Sampling, scores, len(o.Prompt)+i), sumOf(scores)}
		w.tell(event{Event: "token", ID: o.ID, Token: t, Scores: chances(scores, t.Token, o.Top)})
		if i == 0 {
			fence() // the whole cache has been read
		}
		if i+1 == o.Count {
			w.tell(event{Event: "done", ID: o.ID, Waited: waited, Again: again && o.Mode != Recompute && last > 0})
			return
		}
		scores, err = seq.Next([]byte{t.Token}, model.Hooks{})
	}
	if ctx.Err() != nil {
		return // dropped
	}
	fail(err)
}
