package studio_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
)

// A request reaches the engine only from the page itself: by this host's name, not from another site, by POST, within the
// limit of its size, and with the token where there is one.
func TestWhoMayAsk(t *testing.T) {
	l := engine.Default()
	l.Body = 2048
	open := (&studio.Server{Engine: engine.New(l), Limits: l}).Handler()
	shut := (&studio.Server{Engine: engine.New(l), Limits: l, Token: "secret"}).Handler()
	none := func(context.Context) (*studio.Compiled, error) { return nil, errors.New("there is no go tool") }
	pages := (&studio.Server{Engine: engine.New(l), Limits: l, Compiled: none}).Handler()
	shutPages := (&studio.Server{Engine: engine.New(l), Limits: l, Compiled: none, Token: "secret"}).Handler()
	for _, c := range []struct {
		name, method, path, host, body string
		header                         map[string]string
		handler                        http.Handler
		code                           int
		says                           string
	}{
		{"the page", "GET", "/", "127.0.0.1:7080", "", nil, open, 200, "weft studio"},
		{"the page needs no token", "GET", "/", "localhost:7080", "", nil, shut, 200, "weft studio"},
		{"a rebound name", "GET", "/", "evil.example", "", nil, open, 421, "does not answer to the name"},
		{"a rebound name asks", "POST", "/api/start", "evil.example", "{}", nil, open, 421, "does not answer to the name"},
		{"a question", "POST", "/api/start", "localhost", "{}", nil, open, 200, `"samples"`},
		{"another site asks", "POST", "/api/start", "localhost", "{}", map[string]string{"Sec-Fetch-Site": "cross-site"}, open, 403, ""},
		{"another port asks", "POST", "/api/start", "localhost:7080", "{}", map[string]string{"Origin": "http://localhost:9999"}, open, 403, ""},
		{"a page from a file asks", "POST", "/api/start", "localhost:7080", "{}", map[string]string{"Origin": "null"}, open, 403, ""},
		{"by GET", "GET", "/api/start", "localhost", "", nil, open, 404, "there is no /api/start"},
		{"the list of methods", "GET", "/api/", "localhost", "", nil, open, 200, "simulate"},
		{"no such method", "POST", "/api/nonsense", "localhost", "{}", nil, open, 404, "GET /api/ lists them"},
		{"too much", "POST", "/api/scene", "localhost", strings.Repeat("x", 4096), nil, open, 413, "larger than 2048 bytes"},
		{"no JSON", "POST", "/api/scene", "localhost", "x", nil, open, 200, `{"error":{"text":"the request`},
		{"without the token", "POST", "/api/start", "localhost", "{}", nil, shut, 401, "#t="},
		{"with a wrong token", "POST", "/api/start", "localhost", "{}", map[string]string{"Authorization": "Bearer sesame"}, shut, 401, "#t="},
		{"with the token", "POST", "/api/start", "localhost", "{}", map[string]string{"Authorization": "Bearer secret"}, shut, 200, `"samples"`},
		{"a page, where none is written", "POST", "/page", "localhost", "{}", nil, open, 405, ""},
		{"a page that cannot be compiled", "POST", "/page", "localhost", "{}", nil, pages, 501, "no go tool"},
		{"a page of something else", "POST", "/page", "localhost", "[", nil, pages, 400, "cannot be read"},
		{"a page for another site", "POST", "/page", "localhost", "{}", map[string]string{"Sec-Fetch-Site": "cross-site"}, pages, 403, ""},
		{"a page without the token", "POST", "/page", "localhost", "{}", nil, shutPages, 401, "#t="},
		{"a file outside", "GET", "/../studio.go", "localhost", "", nil, open, 307, ""},
		{"nothing is followed", "GET", "/live/api/all", "localhost", "", nil, open, 404, ""},
	} {
		r := httptest.NewRequest(c.method, "http://"+c.host+c.path, strings.NewReader(c.body))
		for k, v := range c.header {
			r.Header.Set(k, v)
		}
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, r)
		if w.Code != c.code && !(c.code == 307 && w.Code >= 300 && w.Code < 500) || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d %.120s; want %d with %q", c.name, w.Code, w.Body, c.code, c.says)
		}
		if p := w.Header().Get("Content-Security-Policy"); !strings.Contains(p, "default-src 'self'") {
			t.Errorf("%s: policy %q", c.name, p)
		}
	}
}

// long is a question that takes minutes.
func long(t *testing.T) string {
	t.Helper()
	q := engine.Collective{File: engine.File{Text: sample(t, "rail-131k").Text}, Op: "all-to-all", Bytes: 1 << 30, Algo: "auto"}
	b, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// begin asks and returns at the first line of progress.
func begin(t *testing.T, ctx context.Context, url, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, `{"progress":`) {
		t.Fatalf("the first line is %q: %v", line, err)
	}
	return answer
}

// A client has one answer computed at a time. Others wait, and too many are turned away; quick ones pass by. When the
// reader leaves, the computation ends and the next one begins.
func TestTurns(t *testing.T) {
	s := server(t, studio.Open{})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	first := begin(t, ctx, s.URL+"/api/simulate", long(t))
	defer first.Body.Close()
	quick, err := http.Post(s.URL+"/api/start", "application/json", strings.NewReader("{}"))
	if err != nil || quick.StatusCode != 200 {
		t.Fatalf("while one is computed: %v %v", quick, err)
	}
	quick.Body.Close()
	codes, done := make(chan int, 8), make(chan bool)
	waiting, stop := context.WithCancel(t.Context())
	for range 8 {
		go func() {
			r, _ := http.NewRequestWithContext(waiting, "POST", s.URL+"/api/prove", strings.NewReader(`{"program":"x"}`))
			if answer, err := http.DefaultClient.Do(r); err == nil {
				codes <- answer.StatusCode
				answer.Body.Close()
			} else {
				codes <- 0
			}
			done <- true
		}()
	}
	for range 5 { // three of the eight wait
		if code := <-codes; code != http.StatusTooManyRequests {
			t.Errorf("a request beyond those that may wait: %d", code)
		}
		<-done
	}
	leave() // of the one that is computed
	for range 3 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("after the reader left: %d", code)
		}
		<-done
	}
	stop()
}

// The page follows the run that the command line named, and nothing else: neither a path outside it nor another host.
func TestLivePassesOn(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the page's token was passed on")
		}
		io.WriteString(w, `{"path":"`+r.URL.Path+`"}`)
	}))
	defer other.Close()
	at, err := url.Parse(other.URL + "/run/")
	if err != nil {
		t.Fatal(err)
	}
	l := engine.Default()
	s := httptest.NewServer((&studio.Server{Engine: engine.New(l), Limits: l, Live: studio.Follow(at)}).Handler())
	defer s.Close()
	get := func() (int, string) {
		answer, err := http.Get(s.URL + "/live/api/all")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(b)
	}
	if code, body := get(); code != 200 || body != `{"path":"/run/api/all"}` {
		t.Errorf("%d %s", code, body)
	}
	other.Close()
	if code, body := get(); code != http.StatusBadGateway || !strings.Contains(body, "does not answer") {
		t.Errorf("without the run: %d %s", code, body)
	}
}

// The pages of the gallery are states that the page takes: known samples, operations and parts.
func TestGallery(t *testing.T) {
	e := engine.New(engine.Default())
	for _, p := range studio.Gallery() {
		if p.Open.Text == "" {
			t.Errorf("%s has no cluster file", p.File)
		}
		b, err := json.Marshal(map[string]string{"text": p.Open.Text})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Do(t.Context(), "scene", b, nil); err != nil {
			t.Errorf("%s: %v", p.File, err)
		}
	}
	var page strings.Builder
	if err := studio.Index(&page); err != nil || strings.Count(page.String(), "<h2>") != len(studio.Gallery()) {
		t.Errorf("the index: %v", err)
	}
}
