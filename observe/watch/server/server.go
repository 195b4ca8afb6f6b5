// Package server is weft watch: it receives agents' reports, lets a watch.Machine judge
// them twice per second, stores them, and serves the findings as a page, JSON and
// metrics.
//
//	agents ──POST /report──► Server ──► watch.Machine ──► page, JSON, /metrics
//	                            └────► observe/watch/internal/store ──► replay
//
// Agents and people use different addresses. Reports need the cluster's token: the
// listener made by cli presents and demands certificates derived from it.
package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/internal/store"
)

// Config of a server.
type Config struct {
	Watch watch.Config
	Dir   string       // of the store; "" keeps nothing
	Limit int64        // bytes of the store; 4 GiB if 0
	Token string       // which people from other hosts give as password; "" lets none in
	Read  string       // another password with which people see everything, and agents cannot report; "" for none
	URL   *url.URL     // at which a proxy serves the pages; nil without one
	Log   *slog.Logger // nil for silence
	Now   func() time.Time
	// Notice, where set, hears of incidents as they open and end.
	Notice func(watch.Incident)
}

// Server is one. Its methods may be called from any goroutine.
type Server struct {
	c     Config
	mu    sync.Mutex
	m     *watch.Machine
	store *store.Store
	coder *store.Coder
	means *store.Means
	file  int // number of the raw file that the coder is for
	told  map[string]bool
	names map[string][]string // of schemas in the store
	next  int64               // the moment that is judged next, in beats
	fresh []watch.Incident    // that opened or ended and were not told

	viewMu sync.Mutex
	view   []byte // JSON, of the last tick
	last   watch.View
	seq    int
	odd    bool
	change chan struct{}
	stats  struct{ refused, bytes, slowest float64 }
	opened map[string]int // incidents that opened, by kind
}

// New makes a server, with what the store knows of the past.
func New(c Config) (*Server, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Limit == 0 {
		c.Limit = 4 << 30
	}
	s := &Server{c: c, m: watch.New(c.Watch), told: map[string]bool{}, names: map[string][]string{}, opened: map[string]int{},
		change: make(chan struct{})}
	if c.Dir != "" {
		var err error
		if s.store, err = store.Open(c.Dir, c.Limit); err != nil {
			return nil, err
		}
		s.coder, s.means, s.file = store.NewCoder(), store.NewMeans(), s.store.Number(store.Raw)
		if err := s.restore(); err != nil {
			return nil, errors.Join(err, s.store.Close())
		}
	}
	s.publish(s.now())
	return s, nil
}

func (s *Server) now() float64 { return float64(s.c.Now().UnixNano()) / 1e9 }

// event is a record of kind store.Event.
type event struct {
	Incident *watch.Incident `json:"incident,omitempty"`
	Change   *watch.Change   `json:"change,omitempty"`
	Pause    *pause          `json:"pause,omitempty"`
	End      int64           `json:"end,omitempty"` // the last beat that a server judged
}

// pause is beats that a server did not judge, since it did not run then.
type pause struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Events reads the incidents and changes of a store.
func Events(dir string) (incidents []watch.Incident, changes []watch.Change, err error) {
	at := map[string]int{}
	err = store.Read(dir, store.Event, func(b []byte) bool {
		var e event
		if json.Unmarshal(b, &e) != nil {
			return true
		}
		if e.Change != nil {
			changes = append(changes, *e.Change)
		}
		if i := e.Incident; i != nil {
			key := fmt.Sprint(i.ID, i.Began)
			if k, ok := at[key]; ok {
				incidents[k] = *i
			} else {
				at[key] = len(incidents)
				incidents = append(incidents, *i)
			}
		}
		return true
	})
	return incidents, changes, err
}

// recent is how old reports may be that a new server begins with, in seconds.
const recent = 300

func (s *Server) restore() error {
	incidents, changes, err := Events(s.c.Dir)
	if err != nil {
		return err
	}
	s.m.Restore(incidents, changes)
	if s.names, err = store.Schemas(s.c.Dir); err != nil {
		return err
	}
	for k := range s.names {
		s.told[k] = true
	}
	// Hosts, their facts and jobs as of the last minutes.
	d, begin := store.NewDecoder(), s.now()-recent
	return store.ReadSince(s.c.Dir, store.Raw, time.Now().Add(-recent*time.Second), func(b []byte) bool {
		if at, r, err := d.Report(b); err == nil && at > begin && at <= s.now() {
			if r.Counters != nil && r.Counters.Values != nil {
				r.Counters.Names = s.names[r.Counters.Schema]
			}
			_ = s.m.Observe(at, r) // what it refuses now it would have refused then
		}
		return true
	})
}

// Take takes a report.
func (s *Server) Take(r *watch.Report) (watch.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.judge(now)
	err := s.m.Observe(now, r)
	a := watch.Answer{Pulse: max(1, float64(s.m.HostCount())/1000)}
	switch {
	case errors.Is(err, watch.ErrSchema):
		a.Names = true
		return a, nil
	case err != nil:
		return a, err
	}
	s.keep(now, r)
	return a, nil
}

// keep stores a report.
func (s *Server) keep(now float64, r *watch.Report) {
	if s.store == nil {
		return
	}
	if c := r.Counters; c != nil && len(c.Values) > 0 {
		if !s.told[c.Schema] {
			s.names[c.Schema] = s.m.Names(c.Schema)
			s.told[c.Schema] = s.store.Append(store.Name, store.NamesRecord(c.Schema, s.m.Names(c.Schema)))
		}
		if b := s.means.Add(now, r.Host, c); b != nil {
			s.store.Append(store.Mean, b)
		}
	}
	if b, err := s.coder.Report(now, r); err == nil && !s.store.Append(store.Raw, b) {
		s.coder = store.NewCoder() // what changes is told from what is stored: the next reports are told whole
	}
}

// pace is how often a server judges, and makes a view for everybody every second time. It judges at beats, whole multiples
// of pace since 1970, and takes a report between the two beats in which it came: whoever plays the reports again judges the
// same moments with the same knowledge.
const pace = 500 * time.Millisecond

func beatAt(now float64) int64  { return int64(math.Floor(now / pace.Seconds())) }
func timeOf(beat int64) float64 { return float64(beat) * pace.Seconds() }

// missed is how many beats a server may be late. Beyond that it was stopped or starved itself: reports wait to be taken, and
// what it did not hear of meanwhile says nothing.
const missed = 4

// judge judges all beats up to now.
func (s *Server) judge(now float64) {
	last := beatAt(now)
	if s.next == 0 {
		s.next = last
	}
	if last-s.next > missed {
		p := pause{s.next, last}
		s.append(event{Pause: &p})
		s.m.Pause(timeOf(p.From), timeOf(p.To))
		s.next = last
	}
	for ; s.next <= last; s.next++ {
		s.fresh = append(s.fresh, s.m.Tick(timeOf(s.next))...)
	}
}

// Run judges twice a second until the context ends, and closes the store.
func (s *Server) Run(ctx context.Context) error {
	t := time.NewTicker(pace)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return s.Close()
		case <-t.C:
			s.Tick()
		}
	}
}

// Close writes what is left.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return nil
	}
	for _, b := range s.means.Rest() {
		s.store.Append(store.Mean, b)
	}
	s.append(event{End: s.next - 1})
	st := s.store
	s.store = nil
	return st.Close()
}

// notice logs incidents and passes them on. It is called without locks, as who takes them may ask the server.
func (s *Server) notice(news []watch.Incident) {
	for _, i := range news {
		if s.c.Notice != nil {
			s.c.Notice(i)
		}
		if i.Ended == 0 {
			s.c.Log.Warn("incident", "id", i.ID, "kind", i.Kind, "severity", i.Severity, "verdict", i.Verdict)
		} else {
			s.c.Log.Info("over", "id", i.ID, "kind", i.Kind, "verdict", i.Verdict)
		}
	}
}

// Tick judges now.
func (s *Server) Tick() {
	s.mu.Lock()
	now := s.now()
	s.judge(now)
	news := s.fresh
	s.fresh = nil
	for i := range news {
		s.append(event{Incident: &news[i]})
	}
	for _, c := range s.m.News() {
		s.append(event{Change: &c})
	}
	if s.store != nil {
		trouble := ""
		if err := s.store.Flush(); err != nil {
			trouble = err.Error()
		}
		s.m.Store(trouble)
		if n := s.store.Number(store.Raw); n != s.file { // a new file begins with whole values
			s.file, s.coder = n, store.NewCoder()
		}
	}
	s.mu.Unlock()
	s.viewMu.Lock()
	for _, i := range news {
		if i.Ended == 0 {
			s.opened[i.Kind]++
		}
	}
	s.viewMu.Unlock()
	s.notice(news)
	if s.odd = !s.odd; s.odd || len(news) > 0 {
		s.publish(now)
	}
}

func (s *Server) append(e event) {
	if s.store == nil {
		return
	}
	if b, err := json.Marshal(e); err == nil {
		s.store.Append(store.Event, b)
	}
}

// publish makes the view that everybody gets until the next tick.
func (s *Server) publish(now float64) {
	s.mu.Lock()
	v := s.m.View(now)
	s.mu.Unlock()
	b, err := json.Marshal(v)
	if err != nil {
		s.c.Log.Error("the view cannot be written", "error", err)
		return
	}
	s.viewMu.Lock()
	defer s.viewMu.Unlock()
	s.view, s.last = b, v
	s.seq++
	close(s.change)
	s.change = make(chan struct{})
}

// View is that of the last tick.
func (s *Server) View() watch.View {
	s.viewMu.Lock()
	defer s.viewMu.Unlock()
	return s.last
}

// Rows are joined rows, see watch.Machine.Table.
func (s *Server) Rows(job, host string, from, most int) ([]watch.Row, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.Table(job, host, from, most)
}

// maxReport is how long a report may be: flight records are in it.
const maxReport = 32 << 20

var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Reports serves POST /report.
func (s *Server) Reports() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /report", func(w http.ResponseWriter, r *http.Request) {
		buf := buffers.Get().(*bytes.Buffer)
		defer buffers.Put(buf)
		buf.Reset()
		if _, err := io.Copy(buf, http.MaxBytesReader(w, r.Body, maxReport)); err != nil {
			s.refuse(w, fmt.Errorf("the report was not read: %w", err))
			return
		}
		var rep watch.Report
		if err := json.Unmarshal(buf.Bytes(), &rep); err != nil {
			s.refuse(w, fmt.Errorf("this is not a report: %w", err))
			return
		}
		a, err := s.Take(&rep)
		if err != nil {
			s.refuse(w, err)
			return
		}
		answer(w, a)
	})
	return mux
}

func (s *Server) refuse(w http.ResponseWriter, err error) {
	s.viewMu.Lock()
	first := s.stats.refused == 0
	s.stats.refused++
	s.viewMu.Unlock()
	if first {
		s.c.Log.Warn("a report was refused; further ones are counted", "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	b, _ := json.Marshal(watch.Answer{Error: err.Error()})
	w.Write(b)
}

// History gives a series of a host: five-minute means, and for the last hour the reports
// themselves.
func (s *Server) History(host, series string, from, to float64) ([]store.Point, error) {
	if s.c.Dir == "" {
		return nil, errors.New("this server keeps no history; start it with --dir")
	}
	s.mu.Lock()
	names := map[string][]string{}
	for k, v := range s.names {
		names[k] = v
	}
	s.mu.Unlock()
	list := []store.Point{}
	err := store.Read(s.c.Dir, store.Mean, func(b []byte) bool {
		if p, ok := store.MeanOf(b, host, series, names); ok && p.At >= from && p.At <= to {
			list = append(list, p)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	d := store.NewDecoder()
	end := 0.0
	if n := len(list); n > 0 {
		end = list[n-1].At + store.Bucket
	}
	err = store.Read(s.c.Dir, store.Raw, func(b []byte) bool {
		if !bytes.Contains(b[:min(len(b), 512)], []byte(`"`+host+`"`)) {
			return true
		}
		at, r, err := d.Report(b)
		if err != nil || r.Host != host || at < from || at > to || at < end || r.Counters == nil {
			return true
		}
		if i := slices.Index(names[r.Counters.Schema], series); i >= 0 && i < len(r.Counters.Values) {
			x := r.Counters.Values[i]
			list = append(list, store.Point{At: at, Mean: x, Least: x, Great: x})
		}
		return true
	})
	return list, err
}
