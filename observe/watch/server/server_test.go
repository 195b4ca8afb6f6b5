package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/load"
)

// clock is a time that tests move.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

// feed lets a world report for some seconds, a second at a time.
func feed(t *testing.T, s *Server, c *clock, w *load.World, seconds int) {
	t.Helper()
	for range seconds {
		c.at = c.at.Add(time.Second)
		at := float64(c.at.UnixNano()) / 1e9
		for h := range w.Hosts {
			r := &watch.Report{Host: w.Host(h), Boot: "boot", At: at, Every: 1}
			if c.at.Unix()%10 == 0 {
				r = w.Counters(h, at, true)
				r.Every = 1
			}
			w.AddRanks(r, h, at-1, at)
			if _, err := s.Take(r); err != nil {
				t.Fatal(err)
			}
		}
		s.Tick()
	}
}

func incidents(v watch.View) (out []string) {
	for _, i := range v.Incidents {
		out = append(out, fmt.Sprint(i.Kind, i.Subject.Ranks, i.Subject.Devices))
	}
	slices.Sort(out)
	return out
}

// What a server knew is known after kill -9 of it, and a replay of what it recorded gives
// the same verdicts at the same times.
func TestRestartAndReplay(t *testing.T) {
	dir := t.TempDir()
	c := &clock{time.Unix(1_800_000_000, 0)}
	cfg := Config{Watch: watch.Config{Title: "test"}, Dir: dir, Limit: 64 << 20, Now: c.now}
	var live []watch.Incident
	cfg.Notice = func(i watch.Incident) { live = append(live, i) }
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := load.New(4, 80, 10, 3, float64(c.at.Unix()-1000))
	feed(t, s, c, w, 30)
	if len(live) > 0 {
		t.Fatalf("healthy: %v", live[0].Verdict)
	}
	w.Late, w.Down, w.Slow = 9, 2, 1
	feed(t, s, c, w, 45)
	want := incidents(s.View())
	if len(want) != 3 || !strings.HasPrefix(want[2], "straggler[9]") {
		t.Fatalf("%q", want)
	}
	// As after kill -9: nothing was closed, and the lock is gone with the process.
	s.store.Close()
	s.store = nil
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if got := incidents(again.View()); !slices.Equal(got, want) {
		t.Errorf("after a restart %q, before %q", got, want)
	}
	if v := again.View(); v.Health.Hosts != 4 || v.Health.Jobs != 1 {
		t.Errorf("after a restart: %+v", v.Health)
	}
	points, err := again.History("n1", `node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"}`, 0, 1e12)
	if err != nil || len(points) < 7 {
		t.Errorf("history: %d points, %v", len(points), err)
	}
	var played []watch.Incident
	if err := Replay(dir, cfg.Watch, 0, math.Inf(1), func(_ float64, _ *watch.Machine, news []watch.Incident) bool {
		played = append(played, news...)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for _, i := range live {
		if !slices.ContainsFunc(played, func(p watch.Incident) bool {
			return p.Kind == i.Kind && slices.Equal(p.Subject.Ranks, i.Subject.Ranks) && math.Abs(p.Began-i.Began) <= 2 && p.Verdict == i.Verdict
		}) {
			t.Errorf("not replayed: %s", i.Verdict)
		}
	}
}

// Everything that is listed answers with JSON, and reports that are no reports are
// refused with a reason.
// Reports that find no room while nothing can be written leave a gap, and the values after it are right.
func TestHistoryAfterAGap(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)}
	dir := t.TempDir()
	s, err := New(Config{Dir: dir, Limit: 4 << 30, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float64, 100_000)
	names := make([]string, len(values))
	for i := range names {
		names[i] = fmt.Sprintf("series_%d", i)
	}
	want := map[float64]float64{}
	take := func() {
		c.at = c.at.Add(time.Second)
		for i := range values {
			values[i] += 0.3 // told whole: long reports
		}
		values[1] = float64(c.at.Unix() - 1_800_000_000) // told by its change
		want[s.now()] = values[1]
		if _, err := s.Take(&watch.Report{Host: "h", At: s.now(), Every: 1,
			Counters: &watch.Counters{Schema: "s", Names: names, Values: values}}); err != nil {
			t.Fatal(err)
		}
		names = nil // told once
	}
	take()
	s.Tick()
	for range 75 { // 64 MiB wait for the disk at most
		take()
	}
	s.Tick()
	for range 3 {
		take()
	}
	s.Tick()
	points, err := s.History("h", "series_1", 0, 1e12)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(points); n < 4 || n >= len(want) {
		t.Errorf("%d of %d values were kept; want some of the first and the last three", n, len(want))
	}
	for _, p := range points {
		if p.Mean != want[p.At] {
			t.Errorf("%v at %v, want %v", p.Mean, p.At, want[p.At])
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestHTTP(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)}
	s, err := New(Config{Watch: watch.Config{Title: "test"}, Dir: t.TempDir(), Limit: 16 << 20, Now: c.now, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w := load.New(2, 80, 10, 3, float64(c.at.Unix()-1000))
	feed(t, s, c, w, 25)
	pages := httptest.NewServer(s.Pages())
	defer pages.Close()
	for _, a := range api {
		path := a.Path
		switch path {
		case "/api/series":
			path += "?host=n1"
		case "/api/history":
			path += "?host=n1&series=weft_load_series_total%7Bn=%2270%22%7D"
		}
		res, err := http.Get(pages.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !json.Valid(b) {
			t.Errorf("%s: %d %.200s", path, res.StatusCode, b)
		}
	}
	for path, want := range map[string]int{"/": 200, "/app.js": 200, "/style.css": 200, "/base.css": 200, "/icon.svg": 200, "/nothing": 404,
		"/metrics": 200, "/healthz": 200, "/api/series?host=zz": 404} {
		res, err := http.Get(pages.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, res.StatusCode, want)
		}
	}
	// People from elsewhere need the token.
	for given, want := range map[string]int{"": 401, "wrong": 401, "secret": 200} {
		r := httptest.NewRequest("GET", "http://10.0.0.1/api/health", nil)
		r.RemoteAddr = "10.0.0.9:1234"
		r.SetBasicAuth("x", given)
		rec := httptest.NewRecorder()
		s.Pages().ServeHTTP(rec, r)
		if rec.Code != want {
			t.Errorf("token %q: %d", given, rec.Code)
		}
	}
	reports := httptest.NewServer(s.Reports())
	defer reports.Close()
	for _, body := range []string{"", "garbage", `{"host":""}`, `{"host":"x","ranks":[{"rank":-5}]}`,
		`{"host":"x","counters":{"schema":"q","names":["a"],"values":[]}}`, strings.Repeat("[", 100000)} {
		res, err := http.Post(reports.URL+"/report", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var a watch.Answer
		err = json.NewDecoder(res.Body).Decode(&a)
		res.Body.Close()
		if res.StatusCode != 400 || err != nil || a.Error == "" {
			t.Errorf("%.40q: %d %v %+v", body, res.StatusCode, err, a)
		}
	}
	if v := s.View(); v.Health.Hosts != 2 {
		t.Errorf("garbage made hosts: %+v", v.Health)
	}
}

// What agents report is the JSON that the server reads, states included.
func TestReportsAsJSON(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)}
	s, err := New(Config{Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	w := load.New(1, 80, 10, 3, float64(c.at.Unix()-1000))
	w.Down = 0
	b, err := json.Marshal(w.Counters(0, float64(c.at.Unix()), true))
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	s.Reports().ServeHTTP(rec, httptest.NewRequest("POST", "/report", bytes.NewReader(b)))
	if rec.Code != 200 {
		t.Fatal(rec.Body)
	}
	c.at = c.at.Add(time.Second)
	s.Tick()
	if got := incidents(s.View()); len(got) != 1 || got[0] != "check[] [n0:mlx5_2]" {
		t.Errorf("%q", got)
	}
}

func FuzzReport(f *testing.F) {
	w := load.New(1, 70, 10, 3, 0)
	r := w.Counters(0, 100, true)
	w.AddRanks(r, 0, 90, 100)
	b, _ := json.Marshal(r)
	f.Add(b)
	f.Add([]byte(`{"host":"a","has_ranks":true,"ranks":[{"job":"j","rank":1,"size":2,"groups":[{"name":"g","ranks":[5,-1],"done":3,"in":true}],"links":[{"local":"a","remote":"b"}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &clock{time.Unix(1_800_000_000, 0)}
		s, err := New(Config{Now: c.now, Watch: watch.Config{Hang: 1}})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			rec := httptest.NewRecorder()
			s.Reports().ServeHTTP(rec, httptest.NewRequest("POST", "/report", bytes.NewReader(body)))
			c.at = c.at.Add(3 * time.Second)
			s.Tick()
		}
		watch.Screen(s.View(), nil, watch.Style{Color: true})
	})
}

// A replay gives the incidents of the live server: the same ones, with the same words and subjects, at the same times, however
// reports, looks and pauses of the server fall.
func TestReplayIsLive(t *testing.T) {
	type key struct {
		kind, verdict, subject string
		began, ended           float64
	}
	total := 0
	for seed := range uint64(bounded.Times(3, 20)) {
		rng := rand.New(rand.NewPCG(seed, 4))
		dir := t.TempDir()
		c := &clock{time.Unix(1_800_000_000, int64(rng.IntN(1e9)))}
		cfg := Config{Watch: watch.Config{Title: "test", Hang: 8}, Dir: dir, Limit: 64 << 20, Now: c.now}
		var live, played []key
		note := func(to *[]key, i watch.Incident) {
			*to = append(*to, key{i.Kind, i.Verdict, i.Subject.String(), i.Began, i.Ended})
		}
		cfg.Notice = func(i watch.Incident) { note(&live, i) }
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		w := load.New(4, 80, 10, seed+1, float64(c.at.Unix()-1000))
		after := [4]float64{s.now(), s.now(), s.now(), s.now()}
		for step := range 150 {
			switch {
			case step == 30:
				w.Late, w.Down, w.Slow = 9, 2, 1
			case step == 90:
				w.Late, w.Down, w.Slow = -1, -1, -1
			}
			c.at = c.at.Add(time.Duration(200+rng.IntN(1200)) * time.Millisecond)
			if rng.IntN(40) == 0 { // the server is starved
				c.at = c.at.Add(time.Duration(rng.IntN(9)) * time.Second)
			}
			for h := range w.Hosts {
				c.at = c.at.Add(time.Duration(rng.IntN(40)) * time.Millisecond)
				at := s.now()
				r := &watch.Report{Host: w.Host(h), Boot: "boot", At: at, Every: 1}
				if step%10 == h {
					r = w.Counters(h, at, true)
				}
				w.AddRanks(r, h, after[h], at)
				if step > 60 && step < 75 && h == 3 {
					continue
				}
				after[h] = at
				if a, err := s.Take(r); err != nil || a.Names {
					t.Fatal(err, a)
				}
			}
			if rng.IntN(3) > 0 {
				s.Tick()
			}
		}
		for range 40 { // nobody reports any more
			c.at = c.at.Add(450 * time.Millisecond)
			s.Tick()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Replay(dir, cfg.Watch, 0, math.Inf(1), func(_ float64, _ *watch.Machine, news []watch.Incident) bool {
			for _, i := range news {
				note(&played, i)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		total += len(live)
		if !slices.Equal(live, played) {
			t.Errorf("seed %d: live\n%+v\nreplayed\n%+v", seed, live, played)
		}
	}
	if total < 12 {
		t.Errorf("%d incidents: too little to compare", total)
	}
}

// What the machine found is in the metrics: incidents by kind, late ranks, collectives and how long jobs are quiet.
func TestMetricsOfIncidents(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)}
	s, err := New(Config{Watch: watch.Config{Predict: func(string, int64, int) (float64, bool) { return 0.001, true }}, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	w := load.New(4, 80, 10, 3, float64(c.at.Unix()-1000))
	feed(t, s, c, w, 30)
	w.Late = 9
	feed(t, s, c, w, 45)
	rec := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://localhost/metrics", nil)
	r.RemoteAddr = "127.0.0.1:9"
	s.Pages().ServeHTTP(rec, r)
	for _, want := range []string{`weft_watch_incidents_opened_total{kind="straggler"} 1`, `weft_watch_incidents_opened_total{kind="hang"} 0`,
		`weft_watch_incident{kind="straggler",severity=`,
		`,rank="9",host="n1"} `, "\nweft_watch_late_ratio{", "\nweft_watch_collective_seconds{", "\nweft_watch_collective_predicted_seconds{",
		"\nweft_watch_collective_baseline_ratio{", "\nweft_watch_job_quiet_seconds{"} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, rec.Body)
		}
	}
}

// Behind a proxy the page is below a path, answers to the proxy's name alone, and asks people who come through it for a
// password: the cluster's, or the one for reading.
func TestBehindAProxy(t *testing.T) {
	at, err := url.Parse("https://ops.example/weft/")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Token: "secret", Read: "look", URL: at})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(s.Pages())
	defer front.Close()
	for _, x := range []struct {
		host, path, password string
		forwarded            bool
		code                 int
	}{
		{"ops.example", "/weft/api/health", "", false, 200},
		{"ops.example", "/api/health", "", false, 200}, // a proxy that takes the path off
		{"ops.example", "/weft", "", false, 301},
		{"ops.example", "/weft/explain/link_downed", "", false, 200},
		{"ops.example", "/weft/explain/nothing", "", false, 404},
		{"ops.example", "/weft/api/health", "", true, 401},
		{"ops.example", "/weft/api/health", "wrong", true, 401},
		{"ops.example", "/weft/api/health", "look", true, 200},
		{"ops.example", "/weft/api/health", "secret", true, 200},
		{"evil.example", "/weft/api/health", "", false, 421},
	} {
		r, err := http.NewRequest("GET", front.URL+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = x.host
		if x.forwarded {
			r.Header.Set("X-Forwarded-For", "192.0.2.7")
		}
		if x.password != "" {
			r.SetBasicAuth("me", x.password)
		}
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != x.code {
			t.Errorf("%+v: %d", x, res.StatusCode)
		}
	}
}
