package server

import (
	"bytes"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-fabric/weft/model/metrics"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/internal/store"
	"github.com/weft-fabric/weft/view/kit"
	"github.com/weft-fabric/weft/view/web"
)

//go:embed page
var files embed.FS

func answer(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(append(b, '\n'))
}

func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	b, _ := json.Marshal(map[string]string{"error": text})
	w.Write(append(b, '\n'))
}

// api lists what is there as JSON, in the order of the page.
var api = []struct{ Path, Text string }{
	{"/api/view", "everything that the page shows"},
	{"/api/health", "the state of the cluster at a glance"},
	{"/api/incidents", "what is and was wrong, with evidence"},
	{"/api/jobs", "jobs"},
	{"/api/table", "job, rank, GPU, NIC, rail, leaf, port; ?job=J&host=H&from=N&n=N"},
	{"/api/heat", "ports by rail and switch"},
	{"/api/collectives", "operations by size against prediction and baseline"},
	{"/api/late", "ranks by lateness"},
	{"/api/links", "delay matrices"},
	{"/api/changes", "what changed in the last 24 hours"},
	{"/api/hosts", "hosts"},
	{"/api/series", "names and last values of the series of a host; ?host=H"},
	{"/api/history", "a series over time; ?host=H&series=NAME&hours=24"},
}

// Pages serves the page at /, the views at /api/, their changes at /events, and metrics.
func (s *Server) Pages() http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // it is embedded
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
			fail(w, http.StatusNotFound, fmt.Sprintf("there is no %s here; see / for the page and /api/ for JSON", r.URL.Path))
			return
		}
		w.Header().Set("Cache-Control", "no-cache")
		static.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /api/{$}", func(w http.ResponseWriter, r *http.Request) {
		list := []map[string]string{}
		for _, a := range api {
			list = append(list, map[string]string{"path": a.Path, "text": a.Text})
		}
		answer(w, map[string]any{"views": list, "stream": "/events", "metrics": "/metrics",
			"units": "_s seconds, _bytes bytes, at and began seconds since 1970, gb_per_s 10^9 bytes a second"})
	})
	part := func(path string, f func(v *watch.View) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			v := s.View()
			answer(w, f(&v))
		})
	}
	part("/api/health", func(v *watch.View) any { return v.Health })
	part("/api/incidents", func(v *watch.View) any { return map[string]any{"incidents": v.Incidents} })
	part("/api/jobs", func(v *watch.View) any { return map[string]any{"jobs": v.Jobs} })
	part("/api/heat", func(v *watch.View) any { return v.Heat })
	part("/api/collectives", func(v *watch.View) any { return map[string]any{"collectives": v.Collectives} })
	part("/api/late", func(v *watch.View) any { return map[string]any{"late": v.Late} })
	part("/api/links", func(v *watch.View) any { return map[string]any{"links": v.Links} })
	part("/api/changes", func(v *watch.View) any { return map[string]any{"changes": v.Changes} })
	mux.HandleFunc("GET /api/view", s.wholeView)
	mux.HandleFunc("GET /api/table", s.table)
	mux.HandleFunc("GET /api/hosts", s.hosts)
	mux.HandleFunc("GET /api/series", s.series)
	mux.HandleFunc("GET /api/history", s.history)
	mux.HandleFunc("GET /events", s.stream)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, s.View().Health.State) })
	mux.HandleFunc("GET /explain/{id}", explain)
	return s.proxied(web.Guard(s.admit(mux)))
}

// explain says what an incident, a finding or a check means: alerts link to it.
func explain(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	cause, fix, ok := watch.Explain(id)
	if e, err := doctor.Explain(id); !ok && err == nil {
		cause, fix, ok = e.Title+": "+e.Cause, e.Fix, true
	}
	if !ok {
		fail(w, http.StatusNotFound, fmt.Sprintf("there is no finding, incident or check %q", id))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(w, "%s\n\ncause  %s\ndo     %s\n", id, cause, fix)
}

// proxied lets a proxy serve the pages at another name and below a path. It may take the path off or leave it on.
func (s *Server) proxied(next http.Handler) http.Handler {
	u := s.c.URL
	if u == nil {
		return next
	}
	prefix := strings.TrimSuffix(u.Path, "/")
	below := http.StripPrefix(prefix, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Host, u.Host) { // the name that the operator gave is no foreign one
			r = r.Clone(r.Context())
			r.Host = "localhost"
		}
		switch {
		case prefix != "" && r.URL.Path == prefix:
			http.Redirect(w, r, prefix+"/", http.StatusMovedPermanently)
		case prefix != "" && strings.HasPrefix(r.URL.Path, prefix+"/"):
			below.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) wholeView(w http.ResponseWriter, _ *http.Request) {
	s.viewMu.Lock()
	b := s.view
	s.viewMu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write(b)
}

func (s *Server) table(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	from, _ := strconv.Atoi(q.Get("from"))
	n, err := strconv.Atoi(q.Get("n"))
	if err != nil || n < 1 {
		n = 200
	}
	rows, total := s.Rows(q.Get("job"), q.Get("host"), max(0, from), min(n, 10000))
	answer(w, map[string]any{"rows": rows, "total": total, "from": max(0, from)})
}

func (s *Server) hosts(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	list := s.m.Hosts(s.now())
	s.mu.Unlock()
	answer(w, map[string]any{"hosts": list})
}

func (s *Server) series(w http.ResponseWriter, r *http.Request) {
	host := r.URL.Query().Get("host")
	s.mu.Lock()
	names, values := s.m.Series(host)
	values = slices.Clone(values)
	s.mu.Unlock()
	if names == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("host %q has reported no series; see /api/hosts", host))
		return
	}
	list := []map[string]any{}
	for i, n := range names {
		list = append(list, map[string]any{"name": n, "value": values[i]})
	}
	answer(w, map[string]any{"host": host, "series": list})
}

func (s *Server) history(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	hours, err := strconv.ParseFloat(q.Get("hours"), 64)
	if err != nil || hours <= 0 || hours > 24*400 {
		hours = 24
	}
	list, err := s.History(q.Get("host"), q.Get("series"), s.now()-hours*3600, s.now())
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	answer(w, map[string]any{"host": q.Get("host"), "series": q.Get("series"), "points": list})
}

// same compares a password with the one that is asked for; none is like none.
func same(given, want string) bool {
	return want != "" && subtle.ConstantTimeCompare([]byte(given), []byte(want)) == 1
}

// admit lets people of this host in, and those of others who give the token as password.
func (s *Server) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		if ip := net.ParseIP(host); ip != nil && !ip.IsLoopback() ||
			r.Header.Get("X-Forwarded-For") != "" { // a proxy on this host speaks for others
			_, given, _ := r.BasicAuth()
			if !same(given, s.c.Token) && !same(given, s.c.Read) {
				w.Header().Set("WWW-Authenticate", `Basic realm="weft watch: the password is WEFT_TOKEN"`)
				fail(w, http.StatusUnauthorized, "give the cluster's token as password, with any name")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// stream sends the view when it has changed, at most once a second.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	for {
		s.viewMu.Lock()
		b, seq, change := s.view, s.seq, s.change
		s.viewMu.Unlock()
		_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second)) // a recorder has none
		if _, err := fmt.Fprintf(w, "event: view\nid: %d\ndata: %s\n\n", seq, b); err != nil {
			return
		}
		if out.Flush() != nil {
			return
		}
		select {
		case <-change:
		case <-r.Context().Done():
			return
		}
	}
}

// mostSeries bounds the series of ranks and of collectives, those that cost most first.
const mostSeries = 1000

// judged adds what the machine found: incidents by kind, jobs, late ranks and collectives.
func (s *Server) judged(m *metrics.Page, v *watch.View) {
	s.viewMu.Lock()
	opened := maps.Clone(s.opened)
	s.viewMu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(watch.Kinds)) {
		m.Add("weft_watch_incidents_opened_total", metrics.Counter, "Incidents that opened since the server started.",
			float64(opened[k]), "kind", k)
	}
	for _, j := range v.Jobs {
		m.Add("weft_watch_job_quiet_seconds", metrics.Gauge, "Time since an operation of the job last ended.", j.Quiet, "job", j.Job)
	}
	for _, l := range v.Late[:min(len(v.Late), mostSeries)] {
		of := []string{"job", l.Job, "group", l.Group, "rank", strconv.Itoa(l.Rank), "host", l.Host}
		m.Add("weft_watch_late_seconds", metrics.Gauge, "How late a rank comes to collectives when it comes last.", l.Late, of...)
		m.Add("weft_watch_late_ratio", metrics.Gauge, "Share of the time that others wait for a rank.", l.Cost, of...)
	}
	for i := range v.Collectives[:min(len(v.Collectives), mostSeries)] {
		c := &v.Collectives[i]
		of := []string{"job", c.Job, "group", c.Group, "op", c.Op, "bytes", fmt.Sprint(c.Bytes), "ranks", fmt.Sprint(c.Ranks)}
		m.Add("weft_watch_collective_seconds", metrics.Gauge, "Median time of a collective in the last window.", c.Took, of...)
		m.Add("weft_watch_collective_predicted_seconds", metrics.Gauge, "Time that is predicted for it; 0 without a prediction.",
			c.Predicted, of...)
		m.Add("weft_watch_collective_predicted_ratio", metrics.Gauge, "Time against its prediction; 0 without one.", c.Against, of...)
		m.Add("weft_watch_collective_baseline_ratio", metrics.Gauge, "Time against its baseline; 0 while that is learnt.", c.Ratio, of...)
	}
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) { s.page().ServeHTTP(w, r) }

// WriteMetrics writes what /metrics serves.
func (s *Server) WriteMetrics(w io.Writer) { _ = s.page().Write(w) }

func (s *Server) page() *metrics.Page {
	v, m := s.View(), &metrics.Page{}
	h := v.Health
	m.Add("weft_watch_hosts", metrics.Gauge, "Hosts that report.", float64(h.Hosts))
	m.Add("weft_watch_hosts_silent", metrics.Gauge, "Hosts that reported and are silent.", float64(h.Silent))
	m.Add("weft_watch_jobs", metrics.Gauge, "Jobs.", float64(h.Jobs))
	m.Add("weft_watch_ranks", metrics.Gauge, "Ranks of jobs.", float64(h.Ranks))
	m.Add("weft_watch_series", metrics.Gauge, "Series that hosts report.", float64(h.Series))
	for _, k := range []string{"info", "warning", "critical"} {
		m.Add("weft_watch_incidents", metrics.Gauge, "Incidents that are open.", float64(h.Open[k]), "severity", k)
	}
	kinds := map[[3]string]int{}
	for _, i := range v.Incidents {
		if i.Ended == 0 {
			kinds[[3]string{i.Kind, i.Severity.String(), i.Job}]++
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(kinds), func(a, b [3]string) int { return slices.Compare(a[:], b[:]) }) {
		m.Add("weft_watch_incident", metrics.Gauge, "Open incidents by kind and job.", float64(kinds[k]), "kind", k[0], "severity", k[1],
			"job", k[2])
	}
	s.judged(m, &v)
	m.Add("weft_watch_reports_total", metrics.Counter, "Reports that were taken.", float64(h.Reports))
	s.viewMu.Lock()
	refused := s.stats.refused
	s.viewMu.Unlock()
	m.Add("weft_watch_reports_refused_total", metrics.Counter, "Reports that were refused.", refused)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != nil {
		for _, k := range []store.Kind{store.Raw, store.Mean, store.Event} {
			m.Add("weft_watch_store_bytes", metrics.Gauge, "Size of the store.", float64(s.store.Size(k)), "kind", fmt.Sprint(k))
		}
	}
	return m
}
