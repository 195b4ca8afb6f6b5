package openai

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
	"unicode/utf8"
)

// Handler serves the API of an engine.
func Handler(e Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{"object": "list", "data": []any{entry(e.Card())}})
	})
	mux.HandleFunc("GET /v1/models/{id}", func(w http.ResponseWriter, r *http.Request) {
		if bad := (&Request{Model: r.PathValue("id")}).knownModel(nil, e); bad != nil {
			bad.Write(w)
			return
		}
		reply(w, entry(e.Card()))
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { serve(w, r, e, false) })
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { serve(w, r, e, true) })
	mux.HandleFunc("/v1/", NotFound)
	return mux
}

// NotFound answers requests for what the API does not have here.
func NotFound(w http.ResponseWriter, r *http.Request) {
	e := Invalid("", "%s %s is not supported here; known: GET /v1/models, POST /v1/completions, POST /v1/chat/completions",
		r.Method, r.URL.Path)
	e.Status, e.Code = http.StatusNotFound, "unknown_url"
	e.Write(w)
}

func entry(c Card) map[string]any {
	return map[string]any{"id": c.ID, "object": "model", "created": c.Created, "owned_by": c.Owner, "max_model_len": c.Context}
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that is gone needs no answer
}

// call is one request on its way.
type call struct {
	wish   *wish
	jobs   []Job
	engine Engine
	head   map[string]any // what the answer and each of its events begin with
	stream *Stream        // nil: the answer is one object

	mu      sync.Mutex
	choices []choice
	cached  int
}

// choice is one answer as far as it came.
type choice struct {
	text   text
	shown  string
	tokens int
	scores []scored
	role   bool // the stream has named the speaker
	finish string
}

// scored is a token and where its text begins.
type scored struct {
	Token
	at int
}

// serve answers one request, as a whole or as a stream. Nothing is written to a client that has gone.
func serve(w http.ResponseWriter, r *http.Request, e Engine, chat bool) {
	id := rand.Text()
	w.Header().Set("X-Request-Id", "req-"+id)
	q, _, bad := ReadRequest(w, r)
	var c *call
	if bad == nil {
		c, bad = newCall(q, e, chat, id)
	}
	if bad != nil {
		bad.Write(w)
		return
	}
	if c.wish.stream {
		c.stream = NewStream(w)
	}
	if bad = c.run(r.Context()); r.Context().Err() == nil { // somebody listens
		c.end(w, bad)
	}
}

// end sends how a request ended.
func (c *call) end(w http.ResponseWriter, bad *Error) {
	switch {
	case bad != nil && (c.stream == nil || !c.stream.Begun()):
		bad.Write(w)
	case c.stream != nil:
		if bad == nil && c.wish.usage {
			c.event([]any{}, c.usage())
		}
		c.stream.End(bad)
	default:
		reply(w, c.whole())
	}
}

// newCall checks a request and prepares an answer with one choice per prompt and n.
func newCall(q *Request, e Engine, chat bool, id string) (*call, *Error) {
	wish, bad := q.check(e, chat)
	if bad != nil {
		return nil, bad
	}
	jobs, bad := wish.jobs(e.Card())
	if bad != nil {
		return nil, bad
	}
	object, prefix := "text_completion", "cmpl-"
	switch {
	case chat && wish.stream:
		object, prefix = "chat.completion.chunk", "chatcmpl-"
	case chat:
		object, prefix = "chat.completion", "chatcmpl-"
	}
	c := &call{wish: wish, jobs: jobs, engine: e, choices: make([]choice, len(jobs))}
	c.head = map[string]any{"id": prefix + id, "object": object, "created": time.Now().Unix(), "model": q.Model}
	for i := range c.choices {
		c.choices[i].text.stop = wish.stop
	}
	return c, nil
}

// run generates all choices side by side; the first that fails ends the others.
func (c *call) run(ctx context.Context) *Error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	for i := range c.jobs {
		wg.Go(func() {
			if err := c.choice(ctx, i); err != nil {
				stop(err)
			}
		})
	}
	over := make(chan struct{})
	go func() { defer close(over); wg.Wait() }()
	tick := time.NewTicker(KeepAlive / 3)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return asError(context.Cause(ctx))
		case <-tick.C:
			if c.stream != nil {
				c.stream.Quiet()
			}
		}
	}
}

func asError(err error) *Error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return e
	}
	return Unavailable(err)
}

// choice generates one answer.
func (c *call) choice(ctx context.Context, i int) error {
	x := &c.choices[i]
	if err := c.echo(i); err != nil {
		return err
	}
	cached, err := c.engine.Generate(ctx, c.jobs[i], func(t Token) bool {
		at := utf8.RuneCountInString(x.shown)
		x.tokens++
		piece := x.text.add(t.Bytes)
		x.shown += piece
		var scores []scored
		if c.wish.top >= 0 {
			scores = []scored{{t, at}}
			x.scores = append(x.scores, scores...)
		}
		if piece != "" || scores != nil {
			c.show(i, piece, scores)
		}
		return !x.text.stopped
	})
	if err != nil {
		return err
	}
	rest := x.text.end()
	x.shown += rest
	x.finish = "length"
	if x.text.stopped {
		x.finish = "stop"
	}
	c.mu.Lock()
	if i%c.wish.n == 0 { // the choices of one prompt read it once
		c.cached += cached
	}
	c.mu.Unlock()
	if rest != "" {
		c.show(i, rest, nil)
	}
	c.last(i)
	return nil
}

// echo begins a choice with its prompt, if that is wanted.
func (c *call) echo(i int) error {
	if !c.wish.echo {
		return nil
	}
	var prompt text
	x := &c.choices[i]
	for _, id := range c.jobs[i].Prompt {
		b, err := c.engine.Decode(id)
		if err != nil {
			return err
		}
		x.shown += prompt.add(b)
	}
	x.shown += prompt.end()
	c.show(i, x.shown, nil)
	return nil
}

// show sends a piece of a choice's text.
func (c *call) show(i int, piece string, scores []scored) {
	if c.stream == nil {
		return
	}
	if !c.wish.chat {
		c.event([]any{map[string]any{"index": i, "text": piece, "logprobs": c.scores(scores), "finish_reason": nil}}, nil)
		return
	}
	c.speak(i)
	c.delta(i, map[string]any{"content": piece}, scores, nil)
}

// speak names the speaker of a chat's answer, once.
func (c *call) speak(i int) {
	if !c.choices[i].role {
		c.choices[i].role = true
		c.delta(i, map[string]any{"role": "assistant", "content": ""}, nil, nil)
	}
}

// last sends how a choice ended.
func (c *call) last(i int) {
	switch {
	case c.stream == nil:
	case c.wish.chat:
		c.speak(i)
		c.delta(i, map[string]any{}, nil, c.choices[i].finish)
	default:
		c.event([]any{map[string]any{"index": i, "text": "", "logprobs": nil, "finish_reason": c.choices[i].finish}}, nil)
	}
}

func (c *call) delta(i int, delta map[string]any, scores []scored, finish any) {
	c.event([]any{map[string]any{"index": i, "delta": delta, "logprobs": c.scores(scores), "finish_reason": finish}}, nil)
}

func (c *call) event(choices []any, usage any) {
	e := map[string]any{"choices": choices}
	for k, v := range c.head {
		e[k] = v
	}
	if c.wish.usage {
		e["usage"] = usage
	}
	c.stream.Send(e)
}

// whole is the answer in one object.
func (c *call) whole() any {
	e := map[string]any{"usage": c.usage()}
	for k, v := range c.head {
		e[k] = v
	}
	list := []any{}
	for i := range c.choices {
		x := &c.choices[i]
		one := map[string]any{"index": i, "finish_reason": x.finish, "logprobs": c.scores(x.scores)}
		if c.wish.chat {
			one["message"] = map[string]any{"role": "assistant", "content": x.shown, "refusal": nil}
		} else {
			one["text"] = x.shown
		}
		list = append(list, one)
	}
	e["choices"] = list
	return e
}

func (c *call) usage() *Usage {
	u := &Usage{Details: &PromptDetails{c.cached}}
	for _, p := range c.wish.prompts {
		u.Prompt += len(p)
	}
	for i := range c.choices {
		u.Completion += c.choices[i].tokens
	}
	u.Total = u.Prompt + u.Completion
	return u
}

// scores are log probabilities in the form of completions or of chats.
func (c *call) scores(list []scored) any {
	if list == nil {
		return nil
	}
	if c.wish.chat {
		return chatScores(list)
	}
	names, values, tops, offsets := []string{}, []float64{}, []map[string]float64{}, []int{}
	for _, s := range list {
		names, values, offsets = append(names, name(s.Bytes)), append(values, s.Score), append(offsets, s.at)
		top := map[string]float64{name(s.Bytes): s.Score}
		for _, t := range s.Top {
			top[name(t.Bytes)] = t.Score
		}
		tops = append(tops, top)
	}
	return map[string]any{"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}
}

// chatScores formats scores as chats have them, with the bytes of each token: a token may be half a character.
func chatScores(list []scored) any {
	one := func(t Token) map[string]any {
		bytes := []int{} // a list of numbers, not the text that Go makes of bytes
		for _, b := range t.Bytes {
			bytes = append(bytes, int(b))
		}
		return map[string]any{"token": name(t.Bytes), "logprob": t.Score, "bytes": bytes}
	}
	content := []any{}
	for _, s := range list {
		x, tops := one(s.Token), []any{}
		for _, t := range s.Top {
			tops = append(tops, one(t))
		}
		x["top_logprobs"] = tops
		content = append(content, x)
	}
	return map[string]any{"content": content, "refusal": nil}
}

// name is the text of a token, or its bytes in the API's notation where it is only a part of a character.
func name(b []byte) string {
	if whole(b) == len(b) {
		if s := valid(b); s == string(b) {
			return s
		}
	}
	s := "bytes:"
	for _, x := range b {
		s += fmt.Sprintf("\\x%02x", x)
	}
	return s
}
