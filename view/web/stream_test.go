package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
)

// follow opens the stream after a position.
func follow(t *testing.T, s *httptest.Server, last string) *events {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	q, err := http.NewRequestWithContext(ctx, "GET", s.URL+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		q.Header.Set("Last-Event-ID", last)
	}
	r, err := s.Client().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Body.Close() })
	if got := r.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("the stream is %q", got)
	}
	return &events{r.Body, bufio.NewReaderSize(r.Body, 1<<20), ""}
}

type events struct {
	body io.Closer
	in   *bufio.Reader
	id   string
}

// next reads one event.
func (e *events) next(t *testing.T) (name string, data map[string]any) {
	t.Helper()
	for {
		line, err := e.in.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "event":
			name = value
		case "id":
			e.id = value
		case "data":
			if err := json.Unmarshal([]byte(value), &data); err != nil {
				t.Fatal(err)
			}
		case "":
			return name, data
		}
	}
}

// with reads until an event has a part.
func (e *events) with(t *testing.T, part string) map[string]any {
	t.Helper()
	for {
		if _, data := e.next(t); data[part] != nil {
			return data
		}
	}
}

func step(id, n int) report.Step {
	at := time.Now()
	return report.Step{ID: id, Rank: id, Step: n, Loss: 5 / float64(n), Tokens: 100, Began: at.Add(-time.Millisecond), Arrived: at, Ended: at}
}

func TestStreamTellsEverythingThenChanges(t *testing.T) {
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer b.Close()
	b.Job(web.Job{Title: "weft up"})
	b.Rank(web.Rank{ID: 0, State: web.Healthy})
	b.Step(step(0, 1))
	e := follow(t, s, "")
	name, all := e.next(t)
	if name != "all" || all["job"] == nil || len(all["ranks"].([]any)) != 1 || all["lateness"] == nil {
		t.Fatalf("%s: %v", name, all)
	}
	b.Step(step(0, 2))
	m := e.with(t, "steps")
	if got := fmt.Sprint(m["steps"]); got != "[[0 2]]" {
		t.Errorf("steps %s", got)
	}
	if m["full"] != false || m["job"] != nil || m["ranks"] != nil || m["collectives"] != nil || m["events"] != nil {
		t.Errorf("more than the change is told: %v", m)
	}
	if got := fmt.Sprint(m["loss"].(map[string]any)["steps"]); got != "[2]" {
		t.Errorf("loss of steps %s", got)
	}
	b.Rank(web.Rank{ID: 0, State: web.Failed})
	if m := e.with(t, "ranks"); m["ranks"].([]any)[0].(map[string]any)["state"] != "failed" {
		t.Errorf("%v", m["ranks"])
	}
}

func TestReaderComesBackToWhatItMissed(t *testing.T) {
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer b.Close()
	b.Rank(web.Rank{ID: 0, State: web.Healthy})
	b.Event(web.Event{Kind: "note", ID: -1, Text: "before"})
	first := follow(t, s, "")
	first.next(t)
	first.body.Close()
	b.Event(web.Event{Kind: "note", ID: -1, Text: "meanwhile"})
	again := follow(t, s, first.id)
	name, m := again.next(t)
	list, _ := m["events"].([]any)
	if name != "change" || len(list) != 1 || list[0].(map[string]any)["text"] != "meanwhile" || m["ranks"] != nil {
		t.Errorf("%s: %v", name, m)
	}
	for _, id := range []string{"0123456789ab.5", "nonsense", first.id + "0000"} {
		if name, _ := follow(t, s, id).next(t); name != "all" {
			t.Errorf("a reader that says it is at %q is sent %q", id, name)
		}
	}
}

// The last message of a board that is closed has what was fed before, and the
// server can shut down.
func TestStreamEnds(t *testing.T) {
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	e := follow(t, s, "")
	e.next(t)
	b.Job(web.Job{Title: "t", Ended: true})
	b.Close()
	b.Close()
	ended := false
	for {
		name, m := e.next(t)
		if j, ok := m["job"].(map[string]any); ok {
			ended = j["ended"].(bool)
		}
		if name == "bye" {
			break
		}
	}
	if !ended {
		t.Error("the end of the run was not told")
	}
	if err := s.Config.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// slow is a reader that takes its time, on a clock that a test owns.
type slow struct {
	mu       sync.Mutex
	head     http.Header
	each     time.Duration // to take a message
	deadline time.Time
	sent     []string
}

func (w *slow) Header() http.Header { return w.head }
func (w *slow) WriteHeader(int)     {}
func (w *slow) Flush()              {}

func (w *slow) SetWriteDeadline(at time.Time) error {
	w.deadline = at
	return nil
}

func (w *slow) Write(p []byte) (int, error) {
	if left := time.Until(w.deadline); left < w.each {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(w.each)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, string(p))
	return len(p), nil
}

func (w *slow) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sent)
}

func metric(t *testing.T, b *web.Board, name string) string {
	t.Helper()
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %s in\n%s", name, w.Body)
	return ""
}

// A reader that takes nothing is dropped; one that is slow gets fewer messages
// and misses nothing; and whoever feeds the board waits for neither.
func TestSlowReadersHoldNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := web.NewBoard()
		ctx, cancel := context.WithCancel(t.Context())
		stuck, lazy := &slow{head: http.Header{}, each: time.Hour}, &slow{head: http.Header{}, each: 3 * time.Second}
		var all sync.WaitGroup
		for _, w := range []*slow{stuck, lazy} {
			q := httptest.NewRequest("GET", "http://localhost/events", nil).WithContext(ctx)
			all.Go(func() { b.Handler().ServeHTTP(w, q) })
		}
		for n := range 600 { // a minute
			before := time.Now()
			b.Step(step(0, n+1))
			if time.Since(before) != 0 {
				t.Fatal("the feeder waited")
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		if got := metric(t, b, "weft_web_dropped_total"); got != "1" {
			t.Errorf("%s readers were dropped", got)
		}
		if got := metric(t, b, "weft_web_readers"); got != "1" {
			t.Errorf("%s readers are left", got)
		}
		if got := metric(t, b, "weft_web_skipped_total"); got == "0" {
			t.Error("no message was skipped for a slow reader")
		}
		cancel()
		all.Wait()
		if n := len(lazy.sent); n < 15 || n > 25 {
			t.Errorf("a reader that takes 3 s a message got %d in 70 s", n)
		}
		if last := strings.Join(lazy.sent, ""); !strings.Contains(last, `"steps":[[0,600]]`) {
			t.Error("the slow reader was not told the last step")
		}
	})
}

// Changes are told at most four times a second, and once a second that there
// are none.
func TestPaceOfTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := web.NewBoard()
		ctx, cancel := context.WithCancel(t.Context())
		w := &slow{head: http.Header{}}
		var all sync.WaitGroup
		all.Go(func() {
			b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/events", nil).WithContext(ctx))
		})
		for n := range 1000 {
			b.Step(step(0, n+1))
			time.Sleep(10 * time.Millisecond)
		}
		busy := w.count()
		time.Sleep(10 * time.Second)
		quiet := w.count() - busy
		cancel()
		all.Wait()
		if busy < 36 || busy > 42 {
			t.Errorf("%d messages in ten seconds of a busy run", busy)
		}
		if quiet < 9 || quiet > 12 {
			t.Errorf("%d messages in ten quiet seconds", quiet)
		}
	})
}

// A connection that is opened and never read does not hold feeders, and ends
// with the server.
func TestConnectionThatIsNeverRead(t *testing.T) {
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer b.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	for n := range 100 {
		for id := range 300 {
			b.Step(step(id, n+1))
		}
	}
}

// Ranks feed the board all at once while readers come, follow and go.
func TestManyFeedersAndReaders(t *testing.T) {
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer b.Close()
	var all sync.WaitGroup
	for id := range 8 {
		all.Go(func() {
			for n := range 300 {
				b.Rank(web.Rank{ID: id, Rank: id, Pid: 1 + n/100, State: web.Healthy})
				b.Step(step(id, n+1))
				b.Collectives(id, []report.Collective{{Op: "all-reduce", Bytes: 8, Count: int64(n%100 + 1), Time: 1}})
				b.Event(web.Event{Kind: "note", ID: id})
				b.Epoch(web.Epoch{Number: uint64(n / 50), Members: []int{id}})
				b.Checkpoint(web.Checkpoint{Step: n, State: "complete"})
			}
		})
	}
	for _, path := range []string{"/api/all", "/api/ranks", "/api/timeline", "/api/epochs", "/metrics"} {
		all.Go(func() {
			for range 10 {
				if w := get(b, "http://localhost"+path); w.Code != 200 {
					t.Errorf("%s: %d", path, w.Code)
				}
			}
		})
	}
	e := follow(t, s, "")
	e.next(t)
	all.Wait()
	var v struct {
		Collectives []struct{ Count int }
		Summary     struct{ Step int }
	}
	if err := json.Unmarshal(get(b, "http://localhost/api/all").Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v.Summary.Step != 300 || len(v.Collectives) != 1 || v.Collectives[0].Count != 8*300 {
		t.Errorf("%+v", v)
	}
}

// Who asks for the stream's head alone is not kept.
func TestHeadOfTheStream(t *testing.T) {
	b := web.NewBoard()
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, httptest.NewRequest("HEAD", "http://localhost/events", nil))
	if w.Code != 200 || w.Body.Len() > 0 {
		t.Errorf("%d with %d bytes", w.Code, w.Body.Len())
	}
}

func TestTooManyReaders(t *testing.T) {
	b := web.NewBoard()
	s := httptest.NewServer(b.Handler())
	defer s.Close()
	defer b.Close()
	for range 64 {
		follow(t, s, "").next(t)
	}
	r, err := s.Client().Get(s.URL + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("the 65th reader is answered %s", r.Status)
	}
}
