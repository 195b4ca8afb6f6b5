// Package studio is weft studio: one page to design a cluster, see it, watch a collective move through it, plan a model
// on it and follow a run, with the engine that answers the page.
//
//	page ── POST /api/METHOD ──► engine.Do        one answer: lines of JSON, progress first
//	     ── GET  /live/...   ──► 'up' or 'watch'  of the address that the command line names
//
// The page is plain scripts and one stylesheet, embedded. File writes the same page as one file with the engine as
// WebAssembly in it.
package studio

import (
	"context"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/view/kit"
	"github.com/weft-fabric/weft/view/web"
)

//go:embed page
var files embed.FS

// Open is what the page shows first.
type Open struct {
	Name  string `json:"name"`
	Text  string `json:"text"`            // the cluster file
	View  string `json:"view,omitempty"`  // design, collective, plan or live
	State any    `json:"state,omitempty"` // the rest of a page's state, as its link has it

	Recording []Frame `json:"recording,omitempty"` // what the live view shows where nothing is followed
}

// Server serves the page.
type Server struct {
	Engine *engine.Engine
	Limits engine.Limits
	Open   Open
	Token  string // that requests for answers must bear; empty for none
	// Compiled gives the engine that a page written as one file carries; nil where this server writes none.
	Compiled func(context.Context) (*Compiled, error)
	Live     http.Handler // the pages of a run or a cluster that this page may follow, such as Follow gives; nil for none

	mu      sync.Mutex
	clients map[string]*client
}

// client is one address that asks. It has one answer computed at a time, and a few that wait for it.
type client struct {
	turn    chan struct{} // holds one value: the turn
	waiting int
}

// mostWaiting is how many requests of a client may wait for the one that is computed.
const mostWaiting = 4

// Handler serves the page at / and answers at /api/.
func (s *Server) Handler() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		w.Header().Set("Cache-Control", "no-cache")
		if b, ok := kit.File(name); ok {
			serve(w, r, name, b)
			return
		}
		if name == "" {
			name = "index.html"
		}
		b, err := fs.ReadFile(page, name)
		if err != nil {
			fail(w, http.StatusNotFound, fmt.Sprintf("there is no %s here; the page is at /, its answers at /api/", r.URL.Path))
			return
		}
		serve(w, r, name, b)
	})
	mux.HandleFunc("GET /api/{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"methods": engine.Methods(),
			"how": "POST a JSON object to /api/NAME; the answer is lines of JSON: {\"progress\":...}, then {\"result\":...} or {\"error\":...}"})
	})
	mux.Handle("POST /api/{method}", http.NewCrossOriginProtection().Handler(s.admit(http.HandlerFunc(s.answer))))
	if s.Compiled != nil {
		mux.Handle("POST /page", http.NewCrossOriginProtection().Handler(s.admit(http.HandlerFunc(s.page))))
	}
	if s.Live != nil {
		mux.Handle("GET /live/", s.admit(http.StripPrefix("/live", s.Live)))
	}
	return web.Guard(mux)
}

func serve(w http.ResponseWriter, r *http.Request, name string, b []byte) {
	http.ServeContent(w, r, name, time.Time{}, strings.NewReader(string(b)))
}

func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{"error": map[string]string{"text": text}})
}

// admit lets requests with the token through, where there is one.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.Token != "" && subtle.ConstantTimeCompare([]byte(given), []byte(s.Token)) != 1 {
			fail(w, http.StatusUnauthorized, "this page needs the token that 'weft studio' printed; open the whole address, with #t=")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Follow passes requests on to the page of a run or a cluster at an address, and to nothing else.
func Follow(at *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(at)
			p.Out.Host = at.Host
			p.Out.Header.Del("Authorization")
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			fail(w, http.StatusBadGateway, fmt.Sprintf("%s does not answer: %v", at, err))
		},
	}
}

// answer computes one answer and sends it as lines, progress first.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("method")
	m, known := find(name)
	if !known {
		fail(w, http.StatusNotFound, fmt.Sprintf("there is no method %q; GET /api/ lists them", name))
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.Limits.Body))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", s.Limits.Body))
		return
	}
	if !m.Quick {
		done, err := s.take(r.Context(), r.RemoteAddr)
		if err != nil {
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusTooManyRequests, err.Error())
			return
		}
		defer done()
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	line := func(v any) {
		b, err := json.Marshal(v)
		if err != nil {
			b, _ = json.Marshal(map[string]any{"error": engine.Problem{Text: err.Error()}})
		}
		w.Write(append(b, '\n'))
		_ = out.Flush() // a recorder of a test has none
	}
	got, err := s.Engine.Do(r.Context(), name, body, func(p engine.Progress) { line(map[string]any{"progress": p}) })
	if err != nil {
		line(map[string]any{"error": problem(err)})
		return
	}
	if name == "start" {
		got = s.opened(got)
	}
	line(map[string]any{"result": got})
}

// opened adds to the start what this server was started with.
func (s *Server) opened(got any) any {
	m, ok := got.(map[string]any)
	if !ok {
		return got
	}
	if s.Open.Text != "" {
		m["open"] = s.Open
	}
	if s.Live != nil {
		m["live"] = true
	}
	m["page"] = s.Compiled != nil
	return m
}

// page writes the page as one file that opens with what was sent.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	var open Open
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, s.Limits.Body)).Decode(&open); err != nil {
		fail(w, http.StatusBadRequest, "what the page shows cannot be read: "+err.Error())
		return
	}
	c, err := s.Compiled(r.Context())
	if err != nil {
		fail(w, http.StatusNotImplemented, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Disposition", "attachment; filename=page.html")
	_ = File(w, c, open) // the reader has left
}

func find(name string) (engine.Method, bool) {
	for _, m := range engine.Methods() {
		if m.Name == name {
			return m, true
		}
	}
	return engine.Method{}, false
}

func problem(err error) *engine.Problem {
	if p, ok := errors.AsType[*engine.Problem](err); ok {
		return p
	}
	return &engine.Problem{Text: err.Error()}
}

// take waits for a client's turn.
func (s *Server) take(ctx context.Context, address string) (done func(), err error) {
	host, _, _ := net.SplitHostPort(address)
	s.mu.Lock()
	if s.clients == nil {
		s.clients = map[string]*client{}
	}
	c := s.clients[host]
	if c == nil {
		c = &client{turn: make(chan struct{}, 1)}
		s.clients[host] = c
	}
	if c.waiting >= mostWaiting {
		s.mu.Unlock()
		return nil, fmt.Errorf("%d requests wait already; cancel one, or wait", c.waiting)
	}
	c.waiting++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.waiting--; c.waiting == 0 {
			delete(s.clients, host)
		}
	}
	select {
	case c.turn <- struct{}{}:
		return func() { <-c.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
