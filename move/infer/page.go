package infer

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"strings"

	"github.com/weft-fabric/weft/model/metrics"
	"github.com/weft-fabric/weft/move/openai"
)

//go:embed page
var files embed.FS

// Handler is the page of a cluster: requests, times and where each block lives; /api/serve is the same as JSON, /metrics
// for Prometheus, and /v1 is OpenAI's API.
func (c *Cluster) Handler() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /api/serve", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(c.Status())
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		c.Status().page().ServeHTTP(w, r)
	})
	api := openai.Handler(engine{c})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			api.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// page is the status for Prometheus.
func (s Status) page() *metrics.Page {
	m := &metrics.Page{}
	m.Add("weft_serve_requests_total", metrics.Counter, "Prompts that were asked.", float64(s.Asked))
	for _, t := range []struct {
		name, help string
		list       []Spread
	}{{"weft_serve_ttft_seconds", "Time to the first token of the last requests.", s.TTFT},
		{"weft_serve_tpot_seconds", "Time between tokens of the last requests.", s.TPOT}} {
		for _, x := range t.list {
			m.Add(t.name, metrics.Gauge, t.help, x.P50.Seconds(), "mode", string(x.Mode), "quantile", "0.5")
			m.Add(t.name, metrics.Gauge, t.help, x.P99.Seconds(), "mode", string(x.Mode), "quantile", "0.99")
		}
	}
	for _, x := range s.Workers {
		m.Add("weft_serve_worker_restarts_total", metrics.Counter, "How often a worker was started again.", float64(x.Restarts), "worker", x.Name,
			"role", string(x.Role))
	}
	return m
}
