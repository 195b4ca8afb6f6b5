package route

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// With Options.Prefill the engine that answers need not read a long prompt:
//
//	client ──► Router ──► prefill engine   reads the prompt, answers one token and says where its KV blocks are
//	              └─────► engine           loads those blocks, and generates
//
// This is vLLM's protocol: the field kv_transfer_params asks for it, and carries what the one engine says to the other, which the
// router does not look into. Engines with a shared cache (weft.vllm) say nothing, and find the blocks there.

// remoteDecode asks an engine to read a prompt whose answer another one generates.
const remoteDecode = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,` +
	`"remote_host":null,"remote_port":null}`

var errRefused = errors.New("the request is refused")

// prefillTries is how many engines are asked to read a prompt. After that the engine that answers reads it.
const prefillTries = 2

// readApart has another engine read the prompt, if that is long for the engine that is to answer, and returns the body for that one.
func (r *Router) readApart(q *http.Request, p prompt, l *lease, body []byte) []byte {
	if len(r.o.Prefill) == 0 || costOf(p.size, l.known*block, p.cached) < r.o.Long {
		return body
	}
	fields, ask, ok := prefillBody(body)
	if !ok {
		return body
	}
	if q.Header.Get("X-Request-Id") == "" { // the engines' logs, and some of their connectors, name a request by it
		q.Header.Set("X-Request-Id", rand.Text())
	}
	params, err := r.prefill(q, p, ask)
	switch {
	case err == nil:
		r.generating(l)
		r.count(&r.apart)
	case q.Context().Err() == nil && !errors.Is(err, errRefused): // else the engine that answers says what is wrong with the request
		r.count(&r.missed)
		r.o.Log.Warn("no prefill engine reads the prompt", "error", err)
	}
	if params == nil {
		return body
	}
	fields["kv_transfer_params"] = params
	return encode(fields)
}

// prefill asks one engine after the other to read a prompt, and returns what it says to the engine that answers; nil: nothing.
func (r *Router) prefill(q *http.Request, p prompt, ask []byte) (params json.RawMessage, err error) {
	tried := map[*engine]bool{}
	for range prefillTries {
		l, none := r.pick(p, true, tried)
		if none != nil && err == nil {
			err = none
		}
		if none != nil {
			return nil, err
		}
		tried[l.e] = true
		if params, err = r.read(q, l, ask); err == nil || q.Context().Err() != nil || errors.Is(err, errRefused) {
			return params, err
		}
	}
	return nil, err
}

func (r *Router) count(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

// prefillBody is a request that only reads the prompt, next to the fields of the one that answers. Several prompts or answers are not read
// apart, nor is what names its own transfer.
func prefillBody(body []byte) (fields map[string]json.RawMessage, ask []byte, ok bool) {
	if json.Unmarshal(body, &fields) != nil || fields["kv_transfer_params"] != nil {
		return nil, nil, false
	}
	var n int
	_ = json.Unmarshal(fields["n"], &n) // what is no number is refused later
	if n > 1 || several(fields["prompt"]) {
		return nil, nil, false
	}
	one := make(map[string]json.RawMessage, len(fields)+3)
	for k, v := range fields {
		one[k] = v
	}
	delete(one, "stream_options")
	delete(one, "min_tokens")
	one["stream"], one["max_tokens"] = json.RawMessage("false"), json.RawMessage("1")
	if one["max_completion_tokens"] != nil {
		one["max_completion_tokens"] = json.RawMessage("1")
	}
	one["kv_transfer_params"] = json.RawMessage(remoteDecode)
	return fields, encode(one), true
}

// several reports whether a field is a list of prompts: texts or lists of tokens. A list of one is not taken apart either.
func several(prompt json.RawMessage) bool {
	var list []json.RawMessage
	var token int
	return json.Unmarshal(prompt, &list) == nil && len(list) > 0 && json.Unmarshal(list[0], &token) != nil
}

// encode writes fields that were read from JSON.
func encode(fields map[string]json.RawMessage) []byte {
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err) // each was JSON
	}
	return text
}

// read has one engine read a prompt, and returns what it says to the engine that answers.
func (r *Router) read(q *http.Request, l *lease, ask []byte) (json.RawMessage, error) {
	defer r.done(l, 0, -1)
	ctx, _, end := l.until(q.Context())
	defer end()
	a, err := r.send(ctx, q, l, ask)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.e.base.Host, err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxEvent))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", l.e.base.Host, causeOf(ctx, err))
	}
	if a.StatusCode >= 300 {
		return nil, fmt.Errorf("%s: %s: %w", l.e.base.Host, a.Status, errRefused)
	}
	var got struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return nil, fmt.Errorf("%s: its answer: %w", l.e.base.Host, err)
	}
	if string(got.Params) == "null" {
		got.Params = nil
	}
	return got.Params, nil
}
