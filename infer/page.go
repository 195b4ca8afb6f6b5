package infer

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
)

//go:embed page
var files embed.FS

// Handler is the page of a cluster: requests, times and where each block lives; /api/serve is the same as JSON and
// /metrics for Prometheus.
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
		fmt.Fprintf(w, "# TYPE weft_serve_requests_total counter\nweft_serve_requests_total %d\n", s.Asked)
		fmt.Fprintln(w, "# TYPE weft_serve_ttft_seconds gauge")
		for _, x := range s.TTFT {
			fmt.Fprintf(w, "weft_serve_ttft_seconds{mode=%q,quantile=\"0.5\"} %g\n", x.Mode, x.P50.Seconds())
			fmt.Fprintf(w, "weft_serve_ttft_seconds{mode=%q,quantile=\"0.99\"} %g\n", x.Mode, x.P99.Seconds())
		}
		fmt.Fprintln(w, "# TYPE weft_serve_worker_restarts_total counter")
		for _, x := range s.Workers {
			fmt.Fprintf(w, "weft_serve_worker_restarts_total{worker=%q,role=%q} %d\n", x.Name, x.Role, x.Restarts)
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}
