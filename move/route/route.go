// Package route spreads requests of OpenAI's API over several engines (vLLM, SGLang, 'weft up --serve', ...).
//
//	client ──► Router ──► engine 0   prompts that begin alike go to one engine, whose KV cache has the beginning
//	              │  └──► engine 1   unless it has so much to do that computing the beginning again is faster
//	              └── looks after the engines' health every second
//
// A request costs an engine the part of its prompt that the engine has not seen. It goes where that cost, plus what
// waits there already, is least:
//
//	cost(e) = bytes of prompts that wait at e + bytes of this prompt that e has not seen
//
// The router names prompts by their text, 64 bytes at a time, and remembers what it sent where. With Options.Cache it also asks
// the cache that the engines share (shared.go). An engine that reports fewer cached tokens than it should have has evicted them, and the
// router forgets them as well. An engine that was down is believed to have seen nothing.
//
// With Options.Prefill other engines read long prompts first (prefill.go). An engine that lists its models gets requests for those only.
//
// A request that fails before its first token is sent to another engine. After the first token the client gets an error
// event: half an answer is never passed off as a whole one.
package route

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Policy is how an engine is chosen.
type Policy string

// The policies.
const (
	Prefix     Policy = "prefix"      // by cost, as the package describes
	RoundRobin Policy = "round-robin" // one after the other: what Prefix is compared with
)

// Options are those of a router.
type Options struct {
	Engines []string      // their addresses, like http://10.0.0.1:8000
	Prefill []string      // addresses of engines that read long prompts for them
	Long    int           // bytes that the engine has not seen from which on a prompt is long; default: 2 KiB
	Policy  Policy        // default: Prefix
	Cache   string        // address of the cache that the engines share; empty for none
	Token   string        // for it
	TLS     *tls.Config   // towards it, of kvcache.Certificates; nil: it serves plain HTTP
	Look    time.Duration // how long a request waits for the cache's answer; default: 100 ms
	Health  time.Duration
	Log     *slog.Logger
}

// block is how many bytes of a prompt the router names at once: about 16 tokens of English, a block of vLLM's.
const block = 64

// remembered is how many blocks the router remembers per engine: 16 MiB of prompts.
const remembered = 1 << 18

// tries is how many engines a request is sent to, at most: one that crashes engines must not reach all of them.
const tries = 3

// running is what a request costs an engine while it generates, in bytes of prompts.
const running = 256

// Router sends requests to engines.
type Router struct {
	o       Options
	client  *http.Client
	engines []*engine
	shared  *shared // nil without Options.Cache
	stop    context.CancelFunc
	over    sync.WaitGroup

	mu      sync.Mutex
	next    int
	retries int
	broken  int // streams that failed after their first token
	apart   int // prompts that another engine read
	missed  int // prompts that none of those could read
}

// engine is what the router knows of an engine. Router.mu guards it.
type engine struct {
	base    *url.URL
	prefill bool // it reads prompts for others
	up      bool
	why     string          // it is down
	models  map[string]bool // nil: it does not say
	down    chan struct{}   // closed when it goes down
	load    int             // bytes
	seen    *recent
	asked   int
	bytes   int // of prompts
	known   int // bytes of prompts that it had seen
}

// settle fills in defaults and reports what is wrong.
func (o *Options) settle() error {
	if o.Policy == "" {
		o.Policy = Prefix
	}
	if o.Policy != Prefix && o.Policy != RoundRobin {
		return fmt.Errorf("route: policy %q; known: %s, %s", o.Policy, Prefix, RoundRobin)
	}
	if o.Health == 0 {
		o.Health = time.Second
	}
	if o.Long == 0 {
		o.Long = 2 << 10
	}
	if o.Look == 0 {
		o.Look = 100 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.Engines) == 0 {
		return errors.New("route: no engine; want at least one address like http://127.0.0.1:8000")
	}
	return nil
}

// New makes a router and looks at each engine once.
func New(ctx context.Context, o Options) (*Router, error) {
	if err := o.settle(); err != nil {
		return nil, err
	}
	dial := &net.Dialer{Timeout: 2 * time.Second}
	r := &Router{o: o,
		client: &http.Client{Transport: &http.Transport{DialContext: dial.DialContext, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}}}
	for i, at := range append(slices.Clone(o.Engines), o.Prefill...) {
		base, err := baseOf(at)
		if err != nil {
			return nil, err
		}
		r.engines = append(r.engines, &engine{base: base, prefill: i >= len(o.Engines), down: make(chan struct{}),
			seen: newRecent(remembered), why: "not asked yet"})
	}
	if o.Cache != "" {
		r.shared = newShared(o.Cache, o.Token, o.TLS)
	}
	ctx, r.stop = context.WithCancel(ctx)
	var first sync.WaitGroup
	for _, e := range r.engines {
		first.Add(1)
		r.over.Go(func() { r.watch(ctx, e, first.Done) })
	}
	first.Wait()
	return r, nil
}

// baseOf reads an engine's address: a URL, with or without /v1, or HOST:PORT.
func baseOf(at string) (*url.URL, error) {
	if _, port, err := net.SplitHostPort(at); err == nil && port != "" && !strings.Contains(at, "/") {
		at = "http://" + at
	}
	base, err := url.Parse(at)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("route: engine %q; want an address like http://127.0.0.1:8000", at)
	}
	base.Path = strings.TrimSuffix(strings.TrimSuffix(base.Path, "/"), "/v1")
	return base, nil
}

// Close ends the looks at engines.
func (r *Router) Close() {
	r.stop()
	r.over.Wait()
	if r.shared != nil {
		r.shared.close()
	}
	r.client.CloseIdleConnections()
}

// watch looks after an engine's health until ctx ends.
func (r *Router) watch(ctx context.Context, e *engine, looked func()) {
	tick := time.NewTicker(r.o.Health)
	defer tick.Stop()
	var models map[string]bool
	for next := 0; ; next-- {
		err := r.healthy(ctx, e)
		if err == nil && next <= 0 {
			models, next = r.modelsOf(ctx, e), looksPerList
		}
		if err != nil {
			next = 0
		}
		r.mark(e, err, models)
		if looked != nil {
			looked()
			looked = nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// healthy asks an engine how it is: engines without /health have a list of models.
func (r *Router) healthy(ctx context.Context, e *engine) error {
	ctx, cancel := context.WithTimeout(ctx, max(2*r.o.Health, time.Second))
	defer cancel()
	var err error
	for _, path := range []string{"/health", "/v1/models"} {
		var q *http.Request
		if q, err = http.NewRequestWithContext(ctx, http.MethodGet, e.base.String()+path, nil); err != nil {
			return err
		}
		var a *http.Response
		if a, err = r.client.Do(q); err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(a.Body, 1<<20))
		a.Body.Close()
		if a.StatusCode < 300 || a.StatusCode == http.StatusUnauthorized {
			return nil
		}
		err = fmt.Errorf("GET %s: %s", path, a.Status)
		if a.StatusCode != http.StatusNotFound {
			break
		}
	}
	return err
}

// looksPerList is how many looks at an engine's health pass before its models are listed again.
const looksPerList = 10

// modelsOf lists an engine's models. It is nil where the engine does not tell, as without a key.
func (r *Router) modelsOf(ctx context.Context, e *engine) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, max(2*r.o.Health, time.Second))
	defer cancel()
	list, err := r.list(ctx, e.base.String(), nil)
	if err != nil || len(list) == 0 {
		return nil
	}
	models := map[string]bool{}
	for _, m := range list {
		if id, _ := m["id"].(string); id != "" {
			models[id] = true
		}
	}
	return models
}

// mark notes how an engine is, and its models. Who waits for the first token of one that went down is told.
func (r *Router) mark(e *engine, err error, models map[string]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.models = models
	switch {
	case err == nil && !e.up:
		e.up, e.why = true, ""
		r.o.Log.Info("engine is up", "engine", e.base.Host)
	case err != nil && e.up:
		e.up = false
		close(e.down)
		e.down, e.seen = make(chan struct{}), newRecent(remembered)
		r.o.Log.Warn("engine is down", "engine", e.base.Host, "error", err)
	}
	if err != nil {
		e.why = err.Error()
	}
}

// lease is an engine that has a request.
type lease struct {
	e     *engine
	down  <-chan struct{}
	names []uint64 // of the prompt's blocks
	known int      // blocks that the engine had seen
	cost  int
	base  string
}

// costOf is what reading a prompt costs an engine that has seen some of its bytes, while a cache has some from the beginning on.
func costOf(size, seen, cached int) int {
	seen = min(seen, size)
	loads := max(min(cached, size)-seen, 0)
	return size - seen - loads + loads/loadShare
}

// A prompt is what a request is routed by.
type prompt struct {
	model  string
	names  []uint64 // of its blocks
	size   int      // bytes
	cached int      // bytes from the beginning on that the shared cache has
}

// can are the engines of a kind that are up, have the model and were not tried. Where no engine lists the model, one of them says so.
func (r *Router) can(p prompt, prefill bool, tried map[*engine]bool) (list []*engine) {
	for i := range r.engines {
		if e := r.engines[(r.next+i)%len(r.engines)]; e.prefill == prefill && e.up {
			list = append(list, e)
		}
	}
	has := func(e *engine) bool { return e.models[p.model] }
	if slices.ContainsFunc(list, has) {
		list = slices.DeleteFunc(list, func(e *engine) bool { return !has(e) })
	} else if prefill {
		list = slices.DeleteFunc(list, func(e *engine) bool { return e.models != nil })
	}
	return slices.DeleteFunc(list, func(e *engine) bool { return tried[e] })
}

// pick takes the engine for a prompt, of those that were not tried yet.
func (r *Router) pick(p prompt, prefill bool, tried map[*engine]bool) (*lease, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best *engine
	least, known := 0, 0
	for _, e := range r.can(p, prefill, tried) {
		had := e.seen.match(p.names)
		cost := e.load + costOf(p.size, had*block, p.cached)
		if best == nil || r.o.Policy == Prefix && cost < least {
			best, least, known = e, cost, had
		}
	}
	if best == nil {
		return nil, r.none(p, prefill, tried)
	}
	r.next = (r.next + 1) % len(r.engines)
	l := &lease{e: best, down: best.down, names: p.names, known: known, cost: costOf(p.size, known*block, p.cached) + running,
		base: best.base.String()}
	best.load += l.cost
	best.asked++
	best.bytes += p.size
	best.known += min(known*block, p.size)
	best.seen.add(p.names)
	return l, nil
}

// none says why no engine can take a request.
func (r *Router) none(p prompt, prefill bool, tried map[*engine]bool) error {
	var why []string
	for _, e := range r.engines {
		if !e.up && e.prefill == prefill {
			why = append(why, fmt.Sprintf("%s: %s", e.base.Host, e.why))
		}
	}
	switch {
	case len(why) == 0 && len(tried) == 0:
		return fmt.Errorf("no engine has the model %q", p.model)
	case len(why) == 0:
		return errors.New("every engine failed")
	}
	return fmt.Errorf("no engine is left: %s", strings.Join(why, "; "))
}

// reading is over: the request now costs what generating does.
func (r *Router) generating(l *lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.e.load -= l.cost - running
	l.cost = running
}

// done gives an engine back. Fewer cached tokens than the router believed (-1: unknown) are forgotten.
func (r *Router) done(l *lease, prompt, cached int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.e.load -= l.cost
	if cached < 0 || prompt <= 0 || l.known == 0 {
		return
	}
	// A block's share of the tokens, less one block that did not fill a page of the engine's.
	if had := len(l.names) * cached / prompt; had < l.known-1 {
		l.e.seen.forget(l.names[had:])
	}
}
