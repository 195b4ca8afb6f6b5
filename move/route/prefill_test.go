//go:build unix

package route

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A reader is an engine as vLLM's behave with a KV connector: asked for a remote decode it reads the prompt, answers one token, and says
// where its blocks are; given such words it need not read the prompt. It notes what it was asked.
type reader struct {
	name, model string
	status      int  // of its answers; 0: 200
	silent      bool // its connector says nothing, as weft.vllm
	down        bool

	mu    sync.Mutex
	asked []map[string]any
}

func (e *reader) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.URL.Path == "/v1/models" {
		writeJSON(w, map[string]any{"object": "list", "data": []any{map[string]any{"id": e.model, "object": "model"}}})
		return
	}
	if q.Method == http.MethodGet {
		if e.down {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		panic(err)
	}
	var ask map[string]any
	if err := json.Unmarshal(body, &ask); err != nil {
		panic(err)
	}
	ask["id"] = q.Header.Get("X-Request-Id")
	e.asked = append(e.asked, ask)
	if e.status != 0 {
		http.Error(w, "no", e.status)
		return
	}
	answer := map[string]any{"choices": []any{map[string]any{"index": 0, "text": e.name, "finish_reason": "length"}}}
	if kv, ok := ask["kv_transfer_params"].(map[string]any); ok && kv["do_remote_decode"] == true && !e.silent {
		answer["kv_transfer_params"] = map[string]any{"do_remote_prefill": true, "do_remote_decode": false,
			"remote_engine_id": e.name, "remote_block_ids": []any{[]any{1.0, 2.0}}, "tp_size": 8}
	}
	writeJSON(w, answer)
}

func (e *reader) took() []map[string]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.asked
	e.asked = nil
	return list
}

func serveReaders(t *testing.T, readers ...*reader) (at []string) {
	t.Helper()
	for _, e := range readers {
		s := httptest.NewServer(e)
		t.Cleanup(s.Close)
		at = append(at, s.URL)
	}
	return at
}

func newReaders(t *testing.T, o Options, engines, prefill []*reader) front {
	t.Helper()
	o.Engines, o.Prefill = serveReaders(t, engines...), serveReaders(t, prefill...)
	return newFront(t, 0, o)
}

// post sends a request, and returns the answering engine's name and the status.
func (f front) post(t *testing.T, fields map[string]any) (string, int) {
	t.Helper()
	body, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.Post(f.url+"/v1/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var a struct{ Choices []struct{ Text string } }
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil && r.StatusCode < 300 {
		t.Fatal(err)
	}
	if len(a.Choices) == 0 {
		return "", r.StatusCode
	}
	return a.Choices[0].Text, r.StatusCode
}

func TestPromptsAreReadApart(t *testing.T) {
	answers, reads := &reader{name: "d", model: "m"}, &reader{name: "p", model: "m"}
	f := newReaders(t, Options{}, []*reader{answers}, []*reader{reads})
	long := strings.Repeat("a long prompt ", 300)
	ask := map[string]any{"model": "m", "prompt": long, "max_tokens": 40, "min_tokens": 9, "temperature": 0.5, "stop": []any{"x"}}

	// The engine that reads gets one token to answer; the other one the request as it came, and what the first has said.
	if name, status := f.post(t, ask); name != "d" || status != 200 {
		t.Fatalf("%q answered, %d", name, status)
	}
	p, d := reads.took(), answers.took()
	if len(p) != 1 || len(d) != 1 {
		t.Fatalf("the reader was asked %d times, the other %d times", len(p), len(d))
	}
	if p[0]["max_tokens"] != 1.0 || p[0]["stream"] != false || p[0]["min_tokens"] != nil || p[0]["prompt"] != long || p[0]["stop"] == nil ||
		p[0]["temperature"] != 0.5 {
		t.Errorf("the reader was asked %v", p[0])
	}
	want := maps.Clone(ask)
	want["kv_transfer_params"] = map[string]any{"do_remote_prefill": true, "do_remote_decode": false, "remote_engine_id": "p",
		"remote_block_ids": []any{[]any{1.0, 2.0}}, "tp_size": 8.0}
	want["max_tokens"], want["min_tokens"], want["id"] = 40.0, 9.0, p[0]["id"]
	if fmt.Sprint(d[0]) != fmt.Sprint(want) || p[0]["id"] == "" {
		t.Errorf("asked %v\nwant  %v", d[0], want)
	}

	// What the engine has seen, and what is short or more than one answer, it reads by itself.
	for name, change := range map[string]map[string]any{"seen": {}, "short": {"prompt": "short"},
		"several": {"prompt": []any{long + "1", long + "2"}},
		"tokens":  {"prompt": []any{slices.Repeat([]any{1}, 3000)}}, "two answers": {"prompt": long[1:], "n": 2},
		"its own transfer": {"prompt": long[2:], "kv_transfer_params": map[string]any{"do_remote_prefill": true}}} {
		q := maps.Clone(ask)
		maps.Copy(q, change)
		if who, status := f.post(t, q); who != "d" || status != 200 || len(reads.took()) != 0 || len(answers.took()) != 1 {
			t.Errorf("%s: %q answered, %d, or the other engine was asked", name, who, status)
		}
	}
	if q := maps.Clone(ask); true {
		q["prompt"] = slices.Repeat([]any{7}, 3000)
		if who, _ := f.post(t, q); who != "d" || len(reads.took()) != 1 {
			t.Errorf("one list of tokens was not read apart; %q answered", who)
		}
	}
	if s := f.Status(); s.Apart != 2 || s.Missed != 0 || s.Up != 1 || s.Engines[0].Waiting+s.Engines[1].Waiting != 0 || !s.Engines[1].Prefill {
		t.Errorf("%+v", s)
	}
}

// Where prefill engines fail, the engine that answers reads the prompt.
func TestPrefillFails(t *testing.T) {
	long := strings.Repeat("another long prompt ", 300)
	for name, c := range map[string]struct {
		engines []*reader
		asked   int // of all prefill engines
		missed  int
		params  bool
	}{
		"one of two fails":    {[]*reader{{status: 500, model: "m"}, {name: "q", model: "m"}}, 2, 0, true},
		"both fail":           {[]*reader{{status: 500, model: "m"}, {status: 503, model: "m"}}, 2, 1, false},
		"it is down":          {[]*reader{{down: true, model: "m"}}, 0, 1, false},
		"it has other models": {[]*reader{{name: "o", model: "o"}}, 0, 1, false},
		"it refuses":          {[]*reader{{status: 400, model: "m"}, {status: 400, model: "m"}}, 1, 0, false},
		"a shared cache":      {[]*reader{{name: "s", model: "m", silent: true}}, 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			answers := &reader{name: "d", model: "m"}
			f := newReaders(t, Options{}, []*reader{answers}, c.engines)
			who, status := f.post(t, map[string]any{"model": "m", "prompt": long})
			d := answers.took()
			if who != "d" || status != 200 || len(d) != 1 {
				t.Fatalf("%q answered, %d; it was asked %d times", who, status, len(d))
			}
			asked := 0
			for _, e := range c.engines {
				asked += len(e.took())
			}
			if asked != c.asked || f.Status().Missed != c.missed {
				t.Errorf("prefill engines were asked %d times, want %d; %+v", asked, c.asked, f.Status())
			}
			if (d[0]["kv_transfer_params"] != nil) != c.params {
				t.Errorf("the engine that answers got %v", d[0]["kv_transfer_params"])
			}
		})
	}
}

// Requests go to the engines that have the model, also when another one has seen the prompt.
func TestModelsOfEngines(t *testing.T) {
	a, b, c := &reader{name: "a", model: "llama"}, &reader{name: "b", model: "qwen"}, &reader{name: "c", model: "qwen"}
	f := newReaders(t, Options{}, []*reader{a, b, c}, nil)
	for i := range 12 {
		model, want := "llama", "a"
		if i%2 == 1 {
			model, want = "qwen", "bc"
		}
		if who, status := f.post(t, map[string]any{"model": model, "prompt": strings.Repeat("the same words ", 20)}); status != 200 ||
			who == "" || !strings.Contains(want, who) {
			t.Errorf("%s: %q answered, %d; want one of %q", model, who, status, want)
		}
	}
	if who, status := f.post(t, map[string]any{"model": "nobody's", "prompt": "hello"}); status != 200 || who == "" {
		t.Errorf("a model that nobody lists, as an adapter loaded a moment ago: %q answered, %d", who, status)
	}
	// One that fails does not send its requests to engines of other models.
	a.mu.Lock()
	a.status = 500
	a.mu.Unlock()
	b.took()
	c.took()
	if _, status := f.post(t, map[string]any{"model": "llama", "prompt": "hello"}); status != 503 || len(b.took())+len(c.took()) != 0 {
		t.Errorf("its only engine fails: %d, or others were asked", status)
	}
}
