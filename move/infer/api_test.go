package infer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
)

// record is a request as the official client sent it.
type record struct {
	Method, Path, Body string
	Headers            map[string]string
}

// answerBody is what the tests read of an answer, whole or an event of a stream.
type answerBody struct {
	ID, Object, Model string
	Choices           []struct {
		Index   int
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Finish  string          `json:"finish_reason"`
		Scores  json.RawMessage `json:"logprobs"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error *struct{ Message, Type, Param, Code string }
	Data  []struct{ ID string }
}

func (r record) send(t *testing.T, base string) (int, []answerBody) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), r.Method, base+r.Path, strings.NewReader(r.Body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range r.Headers {
		q.Header.Set(k, v)
	}
	got, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if got.Header.Get("Content-Type") == "text/event-stream" {
		return got.StatusCode, readEvents(t, got.Body, nil)
	}
	text, err := io.ReadAll(got.Body)
	var a answerBody
	if err != nil || json.Unmarshal(text, &a) != nil {
		t.Fatalf("%s: %v %s", r.Path, err, text)
	}
	return got.StatusCode, []answerBody{a}
}

// readEvents reads a stream to its end, and calls each with every event.
func readEvents(t *testing.T, in io.Reader, each func(n int)) (list []answerBody) {
	t.Helper()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]" {
			return list
		}
		var a answerBody
		if err := json.Unmarshal(data, &a); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if list = append(list, a); each != nil {
			each(len(list))
		}
	}
	t.Fatalf("the stream ended without [DONE] after %d events: %v", len(list), lines.Err())
	return nil
}

// textOf is the text of one choice of an answer.
func textOf(list []answerBody, index int) (text, finish string) {
	for _, a := range list {
		for _, c := range a.Choices {
			if c.Index == index {
				text += c.Text + c.Message.Content + c.Delta.Content
				finish += c.Finish
			}
		}
	}
	return text, finish
}

// oneProcess is the text that a single process answers.
func oneProcess(t *testing.T, m Model, text string, count int) string {
	t.Helper()
	tokens, _, _, err := Answer(m, []byte(text), count)
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for _, x := range tokens {
		b = append(b, x.Token)
	}
	return string([]rune(string(b)))
}

// The requests of python/tests/openai_client.py, as openai 2.54.0 sent them, with the answers that its checks ask for.
func TestRecordedClient(t *testing.T) {
	c, _ := start(t, Options{Prefill: 1, Decode: 2})
	server := httptest.NewServer(c.Handler())
	defer server.Close()
	file, err := os.ReadFile("testdata/openai-requests.json")
	var list []record
	if err != nil || json.Unmarshal(file, &list) != nil {
		t.Fatal(err)
	}
	fox, hello := oneProcess(t, c.o.Model, "The quick brown fox", 12),
		oneProcess(t, c.o.Model, "system: Be brief.\nuser: Hello\nassistant:", 10)
	drawn := map[string]string{}
	for i, r := range list {
		status, got := r.send(t, server.URL)
		text, finish := textOf(got, 0)
		fail := func(format string, a ...any) {
			t.Helper()
			t.Errorf("request %d, %s: %s: %d %+v", i, r.Body, fmt.Sprintf(format, a...), status, got)
		}
		switch {
		case r.Method == "GET" && status != 200:
			fail("no model")
		case strings.Contains(r.Body, "stop\""): // it names what the larger model says: here nothing is cut
			if text != fox {
				fail("want %q", fox)
			}
		case strings.Contains(r.Body, "brown fox"):
			u := got[len(got)-1].Usage
			if text != fox || finish != "length" || u == nil || u.Prompt != 19 || u.Completion != 12 || u.Total != 31 {
				fail("want %q", fox)
			}
		case strings.Contains(r.Body, "Hello"):
			if text != hello || finish != "length" {
				fail("want %q", hello)
			}
		case strings.Contains(r.Body, "seed"):
			all := ""
			for k := range 4 {
				one, _ := textOf(got, k)
				all += fmt.Sprintf("%q ", one)
			}
			if before := drawn[r.Body]; before != "" && before != all {
				fail("the same seed gave %s before", before)
			}
			drawn[r.Body] = all
		case strings.Contains(r.Body, "logprobs"):
			if len(got[0].Choices) != 1 || len(got[0].Choices[0].Scores) < 50 {
				fail("no scores")
			}
		case r.Method == "POST":
			if e := got[0].Error; status < 400 || e == nil || e.Type != "invalid_request_error" {
				fail("want an error")
			}
		}
	}
	if len(drawn) != 2 || len(list) != 17 {
		t.Errorf("%d requests, draws %v", len(list), drawn)
	}
}

// A decode worker is killed while its answer streams: the text is that of one process all the same, with one end.
func TestKilledMidStream(t *testing.T) {
	c, _ := start(t, Options{Prefill: 1, Decode: 2})
	server := httptest.NewServer(c.Handler())
	defer server.Close()
	want := oneProcess(t, c.o.Model, "Once upon a time", 120)
	moved := 0
	for events := range 6 {
		body := fmt.Sprintf(`{"model": %q, "prompt": "Once upon a time", "max_tokens": 120, "temperature": 0, "stream": true}`, Name)
		r, err := http.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		list := readEvents(t, r.Body, func(n int) {
			if n == 1+events {
				_ = c.Signal(c.Status().Requests[0].DecodeAt, syscall.SIGKILL) // it may have ended already
			}
		})
		r.Body.Close()
		if text, finish := textOf(list, 0); text != want || finish != "length" {
			t.Errorf("killed after %d events: %q %s, want %q", 1+events, text, finish, want)
		}
		moved += c.Status().Requests[0].Attempts - 1
	}
	t.Logf("%d answers were continued by another worker", moved)
}

// An answer that is stopped, or that nobody waits for any more, leaves no request behind.
func TestStoppedAnswersEnd(t *testing.T) {
	c, ctx := start(t, Options{Prefill: 1, Decode: 1})
	n := 0
	r, err := c.Answer(ctx, Question{Prompt: prompt(1, 20), Count: 100, Mode: Stream, Top: 3, Each: func(x Token, s []Score) bool {
		if len(s) != 4 || s[0].Token != x.Token || s[1] != s[0] || s[1].Log < s[2].Log || s[2].Log < s[3].Log {
			t.Errorf("%v: %v", x, s)
		}
		n++
		return n < 3
	}})
	if err != nil || n != 3 || r.State != "done" || len(r.Tokens) != 3 {
		t.Errorf("%d tokens: %+v, %v", n, r, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	_, err = c.Answer(ctx, Question{Prompt: prompt(2, 20), Count: 100, Mode: Stream, Top: -1, Each: func(Token, []Score) bool {
		cancel()
		return true
	}})
	for _, w := range c.Status().Workers {
		if w.Load != 0 {
			t.Errorf("%+v after %v", w, err)
		}
	}
}
