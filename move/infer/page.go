package infer

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"strings"

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
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		s := c.Status()
		head := func(name, kind, help string) { fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
		head("weft_serve_requests_total", "counter", "Prompts that were asked.")
		fmt.Fprintf(w, "weft_serve_requests_total %d\n", s.Asked)
		for _, t := range []struct {
			name, help string
			list       []Spread
		}{{"weft_serve_ttft_seconds", "Time to the first token of the last requests.", s.TTFT}, {"weft_serve_tpot_seconds", "Time between tokens of the last requests.", s.TPOT}} {
			head(t.name, "gauge", t.help)
			for _, x := range t.list {
				fmt.Fprintf(w, "%s{mode=%q,quantile=\"0.5\"} %g\n%s{mode=%q,quantile=\"0.99\"} %g\n", t.name, x.Mode, x.P50.Seconds(), t.name, x.Mode, x.P99.Seconds())
			}
		}
		head("weft_serve_worker_restarts_total", "counter", "How often a worker was started again.")
		for _, x := range s.Workers {
			fmt.Fprintf(w, "weft_serve_worker_restarts_total{worker=%q,role=%q} %d\n", x.Name, x.Role, x.Restarts)
		}
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
