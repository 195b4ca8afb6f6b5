package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/view/kit"
)

//go:embed page
var files embed.FS

// view is one part of a run as JSON. /api/ lists them under "views".
type view struct {
	Path string `json:"path"` // where it is served
	Text string `json:"text"` // what it has
	make func(b *Board, r *http.Request) (any, error)
}

// views lists them in the order of the page.
var views = []view{
	{"/api/all", "everything below except ranks' last steps and epochs' members; the first event of /events", (*Board).viewAll},
	{"/api/job", "what runs, and its progress", (*Board).viewJob},
	{"/api/ranks", "every rank with its state, position and last step; ?id=N for one, with its last steps and output", (*Board).viewRanks},
	{"/api/topology", "hosts, link kinds and the layout's groups", (*Board).viewTopology},
	{"/api/loss", "loss by step", (*Board).viewLoss},
	{"/api/throughput", "tokens per second over time, and the step time", (*Board).viewThroughput},
	{"/api/collectives", "operations by size: calls, time, algorithm and bus bandwidth", (*Board).viewCollectives},
	{"/api/lateness", "how long after the earliest rank each one reached the commit, for the last 240 steps", (*Board).viewLateness},
	{"/api/timeline", "events and epochs in order, with times to detect and to resume", (*Board).viewTimeline},
	{"/api/epochs", "epochs with their members", (*Board).viewEpochs},
	{"/api/checkpoints", "checkpoints by step", (*Board).viewCheckpoints},
	{"/api/measures", "overlap, bubble, memory, scaling", (*Board).viewMeasures},
}

// Handler serves the page at /, the stream at /events, views at /api/ and
// figures for Prometheus at /metrics. It answers requests that name this host
// by an address, as localhost or by its own name: under any other name, a page
// from elsewhere could have its readers' browsers ask for it.
func (b *Board) Handler() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	static := http.FileServerFS(page)
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		if b, ok := kit.File(strings.TrimPrefix(r.URL.Path, "/")); ok {
			w.Header().Set("Cache-Control", "no-cache")
			http.ServeContent(w, r, r.URL.Path, time.Time{}, bytes.NewReader(b))
			return
		}
		if _, err := fs.Stat(page, strings.TrimPrefix(r.URL.Path, "/")); r.URL.Path != "/" && err != nil {
			fail(w, http.StatusNotFound, fmt.Sprintf("there is no %s here; see / for the page and /api/ for what is there as JSON", r.URL.Path))
			return
		}
		w.Header().Set("Cache-Control", "no-cache")
		static.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /events", b.stream)
	mux.HandleFunc("GET /metrics", b.metrics)
	mux.HandleFunc("GET /api/{$}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, map[string]any{"views": views, "stream": "/events", "metrics": "/metrics",
			"units": "_ns nanoseconds, _us microseconds, _bytes bytes, _per_s a second, gb_per_s 10^9 bytes a second; instants are RFC 3339"})
	})
	for _, v := range views {
		mux.HandleFunc("GET "+v.Path, func(w http.ResponseWriter, r *http.Request) {
			got, err := v.make(b, r)
			if err != nil {
				fail(w, http.StatusBadRequest, err.Error())
				return
			}
			answer(w, got)
		})
	}
	return Guard(mux)
}

// Guard answers requests that name this host by an address, as localhost or by its own
// name, and lets pages load nothing from elsewhere.
func Guard(next http.Handler) http.Handler {
	own, _ := os.Hostname()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if !local(r.Host, own) {
			fail(w, http.StatusMisdirectedRequest, fmt.Sprintf("this page does not answer to the name %q; open it by address, as localhost or as %s",
				r.Host, own))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// local says whether a Host header names this host in a way that no foreign
// name server decides about: an address, localhost, or the host's own name.
func local(host, own string) bool {
	name := host
	if i := strings.LastIndexByte(name, ':'); i >= 0 && !strings.HasSuffix(name, "]") {
		name = name[:i]
	}
	if inner, ok := strings.CutPrefix(name, "["); ok {
		name = strings.TrimSuffix(inner, "]")
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || own != "" && name == strings.ToLower(own)
}

func answer(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(append(body, '\n'))
}

func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	body, _ := json.Marshal(map[string]string{"error": text})
	w.Write(append(body, '\n'))
}

func (b *Board) viewAll(*http.Request) (any, error) { return b.since(0), nil }

func (b *Board) viewJob(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return struct {
		jobView
		Summary summary `json:"summary"`
	}{jobView{b.job, b.endedAt}, b.summary(time.Now())}, nil
}

// viewRanks lists the ranks, or one by its id. An unknown id gives an empty list.
func (b *Board) viewRanks(r *http.Request) (any, error) {
	text, id := r.URL.Query().Get("id"), -1
	if text != "" {
		var err error
		if id, err = strconv.Atoi(text); err != nil {
			return nil, fmt.Errorf("id=%q is not a number; leave it out for all ranks", text)
		}
	}
	list := b.rankViews(id)
	if text != "" {
		one := []rankView{}
		for _, v := range list {
			if v.ID == id {
				one = append(one, v)
			}
		}
		list = one
	}
	return map[string]any{"ranks": list}, nil
}

func (b *Board) viewTopology(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topology(), nil
}

func (b *Board) viewLoss(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lossSince(0), nil
}

func (b *Board) viewThroughput(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return struct {
		*throughputView
		Tokens int64    `json:"tokens"`
		Time   stepTime `json:"step_time"`
	}{b.rateSince(0), b.tokens, b.stepTime()}, nil
}

func (b *Board) viewCollectives(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]any{"collectives": b.collectives()}, nil
}

func (b *Board) viewLateness(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lateSince(0), nil
}

func (b *Board) viewTimeline(*http.Request) (any, error) {
	m := b.since(0)
	if m.Events == nil {
		m.Events = []eventRow{}
	}
	if m.Epochs == nil {
		m.Epochs = []epochView{}
	}
	return map[string]any{"events": m.Events, "epochs": m.Epochs, "failures": m.Summary.Failures, "restarts": m.Summary.Restarts,
		"detect": m.Summary.Detect, "resume": m.Summary.Resume}, nil
}

func (b *Board) viewEpochs(*http.Request) (any, error) {
	return map[string]any{"epochs": b.epochList()}, nil
}

func (b *Board) viewCheckpoints(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Checkpoint, 0, len(b.saves))
	for _, r := range b.saves {
		list = append(list, r.Checkpoint)
	}
	return map[string]any{"checkpoints": list}, nil
}

func (b *Board) viewMeasures(*http.Request) (any, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]any{"measures": append([]Measure{}, b.measures...)}, nil
}
