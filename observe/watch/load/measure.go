package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-fabric/weft/observe/internal/health"
	"github.com/weft-fabric/weft/observe/watch"
)

// Result is what a server was measured to need.
type Result struct {
	Hosts    int     `json:"hosts"`
	Series   int     `json:"series"`
	Every    float64 `json:"every_s"`
	Seconds  float64 `json:"seconds"`
	Reports  int64   `json:"reports"`
	Failed   int64   `json:"failed"`
	Behind   float64 `json:"behind_s"` // how late the generator was with its last report
	Cores    float64 `json:"server_cores"`
	Memory   int64   `json:"server_memory_bytes"` // the most it had resident
	Verdict  float64 `json:"verdict_s"`           // from the report of a lost link to the incident; -1 if none came
	PageP50  float64 `json:"page_p50_ms"`
	PageP99  float64 `json:"page_p99_ms"`
	PageMax  float64 `json:"page_max_ms"`
	ViewSize int     `json:"view_bytes"`
}

var lost = health.Status{Key: health.Key{Device: "mlx5_2", Port: "1", Metric: "link_downed"}, State: health.Bad, Value: 1,
	Why: "a link was lost", Fix: "cable or port; drain"}

// Target is a server under load.
type Target struct {
	Client  *http.Client
	Reports string // URL
	Page    string // URL
	PID     int    // of the server
}

// usage is the processor time of a process and its memory.
func usage(pid int) (cpu float64, peak int64) {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if i := bytes.LastIndexByte(b, ')'); i > 0 {
		if f := strings.Fields(string(b[i+1:])); len(f) > 13 {
			u, _ := strconv.ParseFloat(f[11], 64)
			s, _ := strconv.ParseFloat(f[12], 64)
			cpu = (u + s) / 100
		}
	}
	b, _ = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) > 1 && f[0] == "VmHWM:" {
			peak, _ = strconv.ParseInt(f[1], 10, 64)
		}
	}
	return cpu, peak << 10
}

// Run loads a server for a time with the reports of all hosts, spread evenly, over a
// number of connections, and measures it. After two thirds of the time a host reports a
// lost link; how long the incident takes to show is the delay to a verdict.
func (w *World) Run(ctx context.Context, t Target, length time.Duration, connections int) (r Result, err error) {
	r = Result{Hosts: w.Hosts, Series: w.Series, Every: w.Every, Verdict: -1}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &sender{w: w, t: t}
	if err := s.post(ctx, 0, time.Now()); err != nil {
		return r, fmt.Errorf("the first report: %w", err)
	}
	cpu0, _ := usage(t.PID)
	began := time.Now()
	var wg sync.WaitGroup
	connections = min(connections, w.Hosts)
	for c := range connections {
		wg.Add(1)
		go func() {
			defer wg.Done()
			s.hosts(ctx, c, connections, began, length)
		}()
	}
	page, err := s.look(ctx, &r, began, length)
	if err != nil {
		return r, err
	}
	r.Seconds = time.Since(began).Seconds()
	cpu1, peak := usage(t.PID)
	cancel()
	wg.Wait()
	r.Reports, r.Failed, r.Behind = s.sent.Load(), s.failed.Load(), time.Duration(s.behind.Load()).Seconds()
	r.Cores, r.Memory = (cpu1-cpu0)/r.Seconds, peak
	slices.Sort(page)
	if n := len(page); n > 0 {
		r.PageP50, r.PageP99, r.PageMax = page[n/2], page[min(n-1, n*99/100)], page[n-1]
	}
	return r, nil
}

// sender reports for all hosts of a world.
type sender struct {
	w            *World
	t            Target
	sent, failed atomic.Int64
	behind       atomic.Int64 // nanoseconds by which the last report was late
	known        atomic.Bool  // the server has the names of the series
	broken       atomic.Bool  // a host has lost its link
}

// post reports for one host, with the names of its series where the server asks for them.
func (s *sender) post(ctx context.Context, host int, at time.Time) error {
	a, err := s.send(ctx, host, at, !s.known.Load())
	if err == nil && a.Names {
		_, err = s.send(ctx, host, at, true)
	}
	s.known.Store(err == nil)
	return err
}

// send reports for one simulated host. names says whether to send the series' names again, as the last answer asked
// for.
func (s *sender) send(ctx context.Context, host int, at time.Time, names bool) (a watch.Answer, err error) {
	w := s.w
	rep := w.Counters(host, float64(at.UnixNano())/1e9, names)
	if w.Ranks {
		w.AddRanks(rep, host, float64(at.UnixNano())/1e9-w.Every, float64(at.UnixNano())/1e9)
	}
	if host == w.Hosts/2 && s.broken.Load() {
		rep.Counters.States = append(rep.Counters.States, lost)
	}
	b, err := json.Marshal(rep)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.t.Reports+"/report", bytes.NewReader(b))
	if err != nil {
		return a, err
	}
	res, err := s.t.Client.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// hosts reports for every connections-th host from first on, each when it is due.
func (s *sender) hosts(ctx context.Context, first, connections int, began time.Time, length time.Duration) {
	w := s.w
	for round := 0; ; round++ {
		for h := first; h < w.Hosts; h += connections {
			due := began.Add(time.Duration((float64(round) + float64(h)/float64(w.Hosts)) * w.Every * float64(time.Second)))
			if due.Sub(began) > length {
				return
			}
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
				return
			}
			s.behind.Store(int64(time.Since(due)))
			if err := s.post(ctx, h, time.Now()); err != nil {
				s.failed.Add(1)
			} else {
				s.sent.Add(1)
			}
		}
	}
}

func (s *sender) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.t.Page+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := s.t.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// look reads the page again and again, breaks a link after two thirds of the time, and notes when the page tells of it. It returns
// the milliseconds of each answer.
func (s *sender) look(ctx context.Context, r *Result, began time.Time, length time.Duration) (page []float64, err error) {
	var brokeAt time.Time
	for time.Since(began) < length && ctx.Err() == nil {
		for _, p := range []string{"/", "/api/view", "/api/table?n=64"} {
			at := time.Now()
			b, err := s.get(ctx, p)
			page = append(page, float64(time.Since(at))/1e6)
			if err != nil {
				return page, err
			}
			if p == "/api/view" {
				r.ViewSize = len(b)
				if !brokeAt.IsZero() && r.Verdict < 0 && bytes.Contains(b, []byte(`"kind":"check"`)) {
					r.Verdict = time.Since(brokeAt).Seconds()
				}
			}
		}
		if brokeAt.IsZero() && time.Since(began) > length*2/3 {
			s.broken.Store(true)
			if err := s.post(ctx, s.w.Hosts/2, time.Now()); err != nil {
				return page, err
			}
			brokeAt = time.Now()
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return page, nil
}
