package openai

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// However tokens cut a text, what is shown is the text up to the first stop string that was complete.
func TestTextDoesNotDependOnTokens(t *testing.T) {
	alphabet := []string{"a", "b", "ab", "é", "€", "𝄞", "\xff", "\xe2\x82"}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		draw := func(n int) (s string) {
			for range n {
				s += alphabet[r.IntN(len(alphabet))]
			}
			return s
		}
		var stops []string
		for range r.IntN(3) {
			stops = append(stops, string([]rune(draw(1+r.IntN(3)))))
		}
		all := []byte(draw(r.IntN(12)))
		// By the definition: a character at a time, until the text ends with a stop string.
		want := ""
		for _, c := range string(all) {
			want += string(c)
			cut := len(want)
			for _, s := range stops {
				if strings.HasSuffix(want, s) {
					cut = min(cut, len(want)-len(s))
				}
			}
			if cut < len(want) {
				want = want[:cut]
				break
			}
		}
		x, got := text{stop: stops}, ""
		for rest := all; len(rest) > 0; {
			n := 1 + r.IntN(min(len(rest), 5))
			piece := x.add(rest[:n])
			if got += piece; !strings.HasPrefix(want, got) {
				t.Fatalf("seed %d: %q of %q was shown, stops %q", seed, got, all, stops)
			}
			rest = rest[n:]
		}
		if got += x.end(); got != want {
			t.Fatalf("seed %d: %q of %q, want %q, stops %q", seed, got, all, want, stops)
		}
	}
}

// parrot answers every prompt with the prompt, a byte a token, and fails after some tokens if it is to.
type parrot struct{ fails int }

func (parrot) Card() Card { return Card{ID: "parrot", Owner: "test", Context: 100} }
func (parrot) Encode(s string) (ids []int) {
	for _, b := range []byte(s) {
		ids = append(ids, int(b))
	}
	return ids
}
func (parrot) Decode(id int) ([]byte, error) {
	if id < 0 || id > 255 {
		return nil, errors.New("no such token")
	}
	return []byte{byte(id)}, nil
}
func (p parrot) Generate(ctx context.Context, j Job, each func(Token) bool) (int, error) {
	for i := range j.Max {
		if p.fails > 0 && i+1 == p.fails {
			return 0, errors.New("the worker is gone")
		}
		b := byte(j.Prompt[i%len(j.Prompt)])
		if !each(Token{ID: int(b), Bytes: []byte{b}}) {
			break
		}
	}
	return 0, ctx.Err()
}

func post(t *testing.T, e Engine, path, body string) (int, string) {
	t.Helper()
	s := httptest.NewServer(Handler(e))
	defer s.Close()
	r, err := http.Post(s.URL+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// events reads a stream by the letter: lines of data, each followed by an empty line.
func events(t *testing.T, stream string) (list []map[string]any) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(stream))
	done := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || done || !lines.Scan() || lines.Text() != "" {
			t.Fatalf("not a stream of events: %q", stream)
		}
		if done = data == "[DONE]"; done {
			continue
		}
		d := json.NewDecoder(bytes.NewReader([]byte(data)))
		var e map[string]any
		if err := d.Decode(&e); err != nil {
			t.Fatalf("%v: %q", err, data)
		}
		list = append(list, e)
	}
	if !done {
		t.Fatalf("no [DONE]: %q", stream)
	}
	return list
}

// A failure before the first token is a status that a client may retry; after it, it is the last event.
func TestFailures(t *testing.T) {
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		body := `{"model": "parrot", "prompt": "hello", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": true}`
		if status, text := post(t, parrot{1}, path, body); status != 503 || !strings.Contains(text, `"the worker is gone"`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
		status, text := post(t, parrot{3}, path, body)
		list := events(t, text)
		last, _ := list[len(list)-1]["error"].(map[string]any)
		if status != 200 || last == nil || last["message"] != "the worker is gone" || last["type"] != "server_error" {
			t.Errorf("%s: %d %s", path, status, text)
		}
		for _, e := range list[:len(list)-1] {
			if c := e["choices"].([]any)[0].(map[string]any); c["finish_reason"] != nil {
				t.Errorf("a failed choice ends with %v", c["finish_reason"])
			}
		}
		if status, text := post(t, parrot{3}, path, strings.Replace(body, "true", "false", 1)); status != 503 ||
			strings.Contains(text, "choices") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// What is wrong with a request is named, with the parameter that is.
func TestRefusals(t *testing.T) {
	for _, x := range []struct{ path, body, param, message string }{
		{"completions", `{`, "", "not JSON"},
		{"completions", `{"prompt": "x"}`, "model", "model is missing; this server has parrot"},
		{"completions", `{"model": "parrot"}`, "prompt", "want a string"},
		{"completions", `{"model": "parrot", "prompt": ""}`, "prompt", "empty"},
		{"completions", `{"model": "parrot", "prompt": []}`, "prompt", "empty"},
		{"completions", `{"model": "parrot", "prompt": [1, 300]}`, "prompt", "token 1 of prompt 0"},
		{"completions", `{"model": "parrot", "prompt": "x", "max_tokens": 0}`, "max_tokens", "at least 1"},
		{"completions", `{"model": "parrot", "prompt": "x", "max_tokens": "many"}`, "max_tokens", "string"},
		{"completions", `{"model": "parrot", "prompt": "x", "max_tokens": 100}`, "prompt", "100 tokens"},
		{"completions", `{"model": "parrot", "prompt": "x", "stop": ["a","b","c","d","e"]}`, "stop", "5 strings"},
		{"completions", `{"model": "parrot", "prompt": "x", "stop": 7}`, "stop", "want a string"},
		{"completions", `{"model": "parrot", "prompt": "x", "stop": ""}`, "stop", "empty"},
		{"completions", `{"model": "parrot", "prompt": "x", "n": 65}`, "n", "at most 64"},
		{"completions", `{"model": "parrot", "prompt": "x", "top_p": -1}`, "top_p", "0 to 1"},
		{"completions", `{"model": "parrot", "prompt": "x", "logprobs": 6}`, "logprobs", "0 to 5"},
		{"completions", `{"model": "parrot", "prompt": "x", "best_of": 3}`, "best_of", "not supported"},
		{"chat/completions", `{"model": "parrot", "messages": []}`, "messages", "empty"},
		{"chat/completions", `{"model": "parrot", "messages": [{"role": "boss", "content": "x"}]}`, "messages[0].role", "boss"},
		{"chat/completions", `{"model": "parrot", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}`,
			"messages[0].content", "image_url"},
		{"chat/completions", `{"model": "parrot", "messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}`,
			"top_logprobs", "logprobs: true"},
		{"chat/completions", `{"model": "parrot", "messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}}`,
			"response_format", "not supported"},
	} {
		status, text := post(t, parrot{}, "/v1/"+x.path, x.body)
		var e struct {
			Error struct{ Message, Type, Param string }
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Errorf("%s: %v", x.body, err)
		}
		if status != 400 || e.Error.Param != x.param || !strings.Contains(e.Error.Message, x.message) || e.Error.Type != "invalid_request_error" {
			t.Errorf("%s: %d %s", x.body, status, text)
		}
	}
	s := httptest.NewServer(Handler(parrot{}))
	defer s.Close()
	r, err := http.Post(s.URL+"/v1/completions", "text/plain", strings.NewReader(`{"model": "parrot", "prompt": "x"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if r.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("text/plain: %s", r.Status)
	}
}

// A stop string in an answer cuts it; the prompt may be echoed, whatever it holds.
func TestStopAndEcho(t *testing.T) {
	_, text := post(t, parrot{}, "/v1/completions", `{"model": "parrot", "prompt": "abcdef", "max_tokens": 6, "stop": "de", "echo": true}`)
	var a struct {
		Choices []struct {
			Text   string
			Finish string `json:"finish_reason"`
		}
		Usage Usage
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	if c := a.Choices[0]; c.Text != "abcdefabc" || c.Finish != "stop" || a.Usage.Completion != 5 || a.Usage.Prompt != 6 {
		t.Errorf("%s", text)
	}
}
