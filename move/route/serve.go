package route

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/weft-fabric/weft/model/metrics"
	"github.com/weft-fabric/weft/move/openai"
)

// Handler serves the router: OpenAI's API, /health and /metrics.
func (r *Router) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", r.ask)
	mux.HandleFunc("POST /v1/chat/completions", r.ask)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, q *http.Request) {
		writeJSON(w, map[string]any{"object": "list", "data": r.models(q)})
	})
	mux.HandleFunc("GET /v1/models/{id...}", r.model)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		s := r.Status()
		w.Header().Set("Content-Type", "application/json")
		if s.Up == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(s)
	})
	mux.HandleFunc("GET /metrics", r.metrics)
	mux.HandleFunc("/v1/", openai.NotFound)
	return mux
}

// prefixOf is the text by which a request is routed: what its KV cache depends on, from the beginning.
func prefixOf(q *openai.Request, body []byte) []byte {
	var salt struct {
		Salt  string          `json:"cache_salt"`
		Tools json.RawMessage `json:"tools"`
	}
	_ = json.Unmarshal(body, &salt) // it was read before
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\x00%s\x00%s\x00", q.Model, salt.Salt, salt.Tools)
	b.Write(q.Prompt)
	for _, m := range q.Messages {
		fmt.Fprintf(&b, "%s\x00%s\x00", m.Role, m.Content)
	}
	return b.Bytes()
}

// ask answers a request by one engine after the other, until one has a first token.
func (r *Router) ask(w http.ResponseWriter, q *http.Request) {
	parsed, body, bad := openai.ReadRequest(w, q)
	if bad != nil {
		bad.Write(w)
		return
	}
	text := prefixOf(parsed, body)
	p := prompt{model: parsed.Model, names: names(text), size: len(text), cached: r.has(q, parsed, body, len(text))}
	tried := map[*engine]bool{}
	var last error
	for {
		l, err := r.pick(p, false, tried)
		if err == nil && len(tried) == tries {
			r.done(l, 0, -1)
			err = fmt.Errorf("%d engines failed", tries)
		}
		if err != nil {
			if last != nil {
				err = fmt.Errorf("%w; last: %w", err, last)
			}
			openai.Unavailable(err).Write(w)
			return
		}
		tried[l.e] = true
		if last = r.try(w, q, l, r.readApart(q, p, l, body), parsed.Stream); last == nil || q.Context().Err() != nil {
			return
		}
		r.mu.Lock()
		r.retries++
		r.mu.Unlock()
		r.o.Log.Warn("request goes to another engine", "engine", l.e.base.Host, "error", last)
	}
}

// passed are the headers that engines get of a request, and clients of an answer.
var passed = []string{"Authorization", "Content-Type", "X-Request-Id", "Openai-Organization", "Openai-Project", "Retry-After",
	"Traceparent"}

func pass(from, to http.Header) {
	for _, k := range passed {
		if v := from.Values(k); v != nil {
			to[http.CanonicalHeaderKey(k)] = v
		}
	}
}

// try sends a request to one engine. An error means that the client has got nothing yet.
func (r *Router) try(w http.ResponseWriter, q *http.Request, l *lease, body []byte, stream bool) error {
	prompt, cached := 0, -1
	// The engine is free when the router has the end of its answer. Whoever has read an answer finds it taken off the engine's load.
	done := sync.OnceFunc(func() { r.done(l, prompt, cached) })
	defer done()
	ctx, first, end := l.until(q.Context()) // an engine that goes down after the first token ends by itself
	defer end()
	a, err := r.send(ctx, q, l, body)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if stream && a.StatusCode < 300 {
		return r.relay(ctx, w, a, l, first, done)
	}
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return causeOf(ctx, err)
	}
	first()
	prompt, cached = usageOf(text)
	done()
	pass(a.Header, w.Header())
	w.WriteHeader(a.StatusCode)
	_, _ = w.Write(text) // a client that is gone needs no answer
	return nil
}

// until is ctx until an engine goes down, or until first is called.
func (l *lease) until(ctx context.Context) (_ context.Context, first, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	here := make(chan struct{})
	go func() {
		select {
		case <-l.down:
			cancel(errors.New("the engine does not answer"))
		case <-here:
		case <-ctx.Done():
		}
	}()
	return ctx, func() { close(here) }, func() { cancel(nil) }
}

// send sends a request's body to one engine and returns its answer, which another engine would not give better.
func (r *Router) send(ctx context.Context, q *http.Request, l *lease, body []byte) (*http.Response, error) {
	up, err := http.NewRequestWithContext(ctx, q.Method, l.base+q.URL.Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	pass(q.Header, up.Header)
	a, err := r.client.Do(up)
	if dial := new(net.OpError); errors.As(err, &dial) && dial.Op == "dial" {
		r.mark(l.e, err, nil)
	}
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	if a.StatusCode >= 500 || a.StatusCode == http.StatusTooManyRequests {
		defer a.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(a.Body, 1000))
		return nil, fmt.Errorf("%s: %s", a.Status, text)
	}
	return a, nil
}

// causeOf is why a request ended, if the router ended it.
func causeOf(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// usageOf reads from an answer how many tokens its prompt had and how many were cached; -1: it does not say.
func usageOf(text []byte) (prompt, cached int) {
	var a struct {
		Usage *openai.Usage `json:"usage"`
	}
	if json.Unmarshal(text, &a) != nil || a.Usage == nil || a.Usage.Details == nil {
		return 0, -1
	}
	return a.Usage.Prompt, a.Usage.Details.Cached
}

// relay passes a stream on, one whole event at a time. An error before the first means that the client has got nothing. done is called
// before the last.
func (r *Router) relay(ctx context.Context, w http.ResponseWriter, a *http.Response, l *lease, first, done func()) error {
	in := bufio.NewReaderSize(a.Body, 64<<10)
	flush := http.NewResponseController(w)
	begun := false
	for {
		event, err := nextEvent(in)
		if err == nil && !begun {
			begun = true
			first()
			r.generating(l)
			pass(a.Header, w.Header())
			w.Header().Set("Cache-Control", "no-cache")
			w.Header().Set("X-Accel-Buffering", "no")
			w.WriteHeader(a.StatusCode)
		}
		if err != nil && !begun {
			return causeOf(ctx, err)
		}
		last := bytes.HasPrefix(event, []byte("data: [DONE]"))
		if err != nil || last {
			done()
		}
		if err != nil {
			r.cut(w, l, err)
			_ = flush.Flush()
			return nil
		}
		_, _ = w.Write(event)
		_ = flush.Flush()
		if last {
			return nil
		}
	}
}

// cut ends a stream whose engine did not end it.
func (r *Router) cut(w http.ResponseWriter, l *lease, err error) {
	r.mu.Lock()
	r.broken++
	r.mu.Unlock()
	r.o.Log.Warn("an engine ended in the middle of an answer", "engine", l.e.base.Host, "error", err)
	text, _ := json.Marshal(map[string]any{"error": openai.Unavailable(fmt.Errorf("engine %s ended in the middle of the answer: %w",
		l.e.base.Host, err))})
	_, _ = fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", text)
}

// maxEvent is the most that one event may have.
const maxEvent = 4 << 20

// nextEvent reads up to and with the next empty line. Comments are passed on with the event that follows.
func nextEvent(in *bufio.Reader) (event []byte, err error) {
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		event = append(event, line...)
		if len(bytes.TrimRight(line, "\r\n")) == 0 && bytes.Contains(event, []byte("data:")) {
			return event, nil
		}
		if len(event) > maxEvent {
			return nil, fmt.Errorf("an event has more than %d bytes", maxEvent)
		}
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}

// model describes one model.
func (r *Router) model(w http.ResponseWriter, q *http.Request) {
	for _, m := range r.models(q) {
		if m["id"] == q.PathValue("id") {
			writeJSON(w, m)
			return
		}
	}
	bad := openai.Invalid("model", "no engine that is up has the model %q", q.PathValue("id"))
	bad.Status, bad.Code = http.StatusNotFound, "model_not_found"
	bad.Write(w)
}

// models lists what the engines have, each model once.
func (r *Router) models(q *http.Request) []map[string]any {
	have, list := map[string]bool{}, []map[string]any{}
	for _, base := range r.ups() {
		got, err := r.list(q.Context(), base, q.Header)
		for _, m := range got {
			if id, _ := m["id"].(string); err == nil && !have[id] { // its health will show an error
				have[id] = true
				list = append(list, m)
			}
		}
	}
	return list
}

// list asks an engine for its models.
func (r *Router) list(ctx context.Context, base string, from http.Header) ([]map[string]any, error) {
	up, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	pass(from, up.Header)
	a, err := r.client.Do(up)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	var got struct {
		Data []map[string]any `json:"data"`
	}
	err = json.NewDecoder(io.LimitReader(a.Body, maxEvent)).Decode(&got)
	return got.Data, err
}

func (r *Router) ups() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.engines {
		if e.up && !e.prefill {
			list = append(list, e.base.String())
		}
	}
	return list
}

// EngineStatus is how an engine stands.
type EngineStatus struct {
	Engine   string `json:"engine"`
	Prefill  bool   `json:"prefill,omitempty"` // it reads prompts for others
	Up       bool   `json:"up"`
	Error    string `json:"error,omitempty"`
	Waiting  int    `json:"waiting_bytes"` // of prompts, and what is generated as its share
	Requests int    `json:"requests"`
	Prompts  int    `json:"prompt_bytes"`
	Known    int    `json:"known_prompt_bytes"` // that the engine had seen before, as far as the router knows
}

// Status is how a router stands.
type Status struct {
	Policy  Policy         `json:"policy"`
	Up      int            `json:"up"`
	Retries int            `json:"retries"`
	Broken  int            `json:"broken_streams"`
	Apart   int            `json:"prefilled_prompts"` // that another engine read
	Missed  int            `json:"failed_prefills"`   // where none of those could
	Engines []EngineStatus `json:"engines"`
	Cache   *CacheStatus   `json:"cache,omitempty"`
}

// CacheStatus is what a router knows of the cache that its engines share.
type CacheStatus struct {
	Address string `json:"address"`
	Looks   int    `json:"looks"`
	Matched int    `json:"matched_prompt_bytes"` // that it had
	Error   string `json:"error,omitempty"`
}

// Status tells how the router stands.
func (r *Router) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Status{Policy: r.o.Policy, Retries: r.retries, Broken: r.broken, Apart: r.apart, Missed: r.missed}
	for _, e := range r.engines {
		if e.up && !e.prefill {
			s.Up++
		}
		s.Engines = append(s.Engines, EngineStatus{e.base.Host, e.prefill, e.up, e.why, e.load, e.asked, e.bytes, e.known})
	}
	if c := r.shared; c != nil {
		c.mu.Lock()
		s.Cache = &CacheStatus{c.address, c.looks, c.matched, c.why}
		c.mu.Unlock()
	}
	return s
}

// metrics serves the figures for Prometheus. What an engine had seen before is counted in bytes of prompts, as the
// router sees text and no tokens.
func (r *Router) metrics(w http.ResponseWriter, q *http.Request) {
	s, m := r.Status(), &metrics.Page{}
	m.Add("weft_router_retries_total", metrics.Counter, "Requests that went to another engine before their first token.", float64(s.Retries))
	m.Add("weft_router_broken_streams_total", metrics.Counter, "Answers whose engine ended after the first token.", float64(s.Broken))
	m.Add("weft_router_prefilled_prompts_total", metrics.Counter, "Prompts that a prefill engine read.", float64(s.Apart))
	m.Add("weft_router_failed_prefills_total", metrics.Counter, "Prompts that no prefill engine could read.", float64(s.Missed))
	if s.Cache != nil {
		m.Add("weft_router_cache_matched_bytes_total", metrics.Counter, "Bytes of prompts that the shared cache had.", float64(s.Cache.Matched))
	}
	for _, e := range s.Engines {
		up := 0.0
		if e.Up {
			up = 1
		}
		m.Add("weft_router_engine_up", metrics.Gauge, "1 if the engine answers.", up, "engine", e.Engine)
		m.Add("weft_router_requests_total", metrics.Counter, "Requests sent to the engine.", float64(e.Requests), "engine", e.Engine)
		m.Add("weft_router_prompt_bytes_total", metrics.Counter, "Bytes of prompts sent to the engine.", float64(e.Prompts), "engine", e.Engine)
		m.Add("weft_router_known_prompt_bytes_total", metrics.Counter, "Bytes of prompts that the engine had seen.",
			float64(e.Known), "engine", e.Engine)
	}
	m.ServeHTTP(w, q)
}
