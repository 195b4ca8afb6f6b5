package web_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/weft-fabric/weft/view/report"
	"github.com/weft-fabric/weft/view/web"
)

var update = flag.Bool("update", false, "write testdata anew")

func get(b *web.Board, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.Handler().ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w
}

// small is a run of three slots in which one fails and comes back.
func small() *web.Board {
	b := web.NewBoard()
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	b.Job(web.Job{Title: "weft up", Model: "GPT", Layout: "dp3", Transport: "shm", Command: "weft up --ranks 3", Params: 1000, Ranks: 3,
		Started: start, Until: at(60_000)})
	for id := range 3 {
		b.Rank(web.Rank{ID: id, Rank: id, Host: fmt.Sprintf("n%d", id/2), Pid: 100 + id, State: web.Healthy, Replica: id, Memory: 1 << 20})
	}
	b.Epoch(web.Epoch{Number: 1, At: at(0), Members: []int{0, 1, 2}, Reason: "begin", Layout: "dp3"})
	for n := 1; n <= 4; n++ {
		if n == 3 {
			b.Event(web.Event{At: at(250), Kind: "failure", ID: 1, Text: "gone"})
			b.Rank(web.Rank{ID: 1, Rank: -1, Host: "n0", Pid: 101, State: web.Failed, Replica: 1})
			b.Epoch(web.Epoch{Number: 2, At: at(260), Members: []int{0, 2}, Reason: "rank 1 failed", Step: 2, Layout: "dp2"})
			b.Event(web.Event{At: at(270), Kind: "resumed", ID: -1, Detect: 10 * time.Millisecond, Resume: 20 * time.Millisecond})
		}
		for id := range 3 {
			if n >= 3 && id == 1 {
				continue
			}
			b.Step(report.Step{ID: id, Rank: id, Step: n, Epoch: uint64(1 + n/3), Loss: 4 / float64(n), Tokens: 1000, Began: at(100*n - 100),
				Arrived: at(100*n - 10 + id), Ended: at(100 * n),
				Forward: 30 * time.Millisecond, Backward: 50 * time.Millisecond, Comm: 10 * time.Millisecond, Exposed: 2 * time.Millisecond})
		}
	}
	b.Collectives(0, []report.Collective{{Op: "all-reduce", Bytes: 4000, Count: 4, Time: 8 * time.Microsecond, BusFactor: 1.5}})
	b.Collectives(2, []report.Collective{{Op: "all-reduce", Bytes: 4000, Count: 4, Time: 8 * time.Microsecond, BusFactor: 1.5},
		{Op: "barrier", Count: 1, Time: time.Microsecond}})
	b.Checkpoint(web.Checkpoint{Step: 2, At: at(200), State: "writing"})
	b.Checkpoint(web.Checkpoint{Step: 2, At: at(210), State: "complete", Bytes: 4096, Took: 5 * time.Millisecond})
	b.Measures([]web.Measure{{Name: "overlap hidden", Value: "80%", Note: "of 10 ms"}})
	time.Sleep(time.Second)
	return b
}

// Every view of a small run, word for word.
func TestViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := small()
		var index struct{ Views []struct{ Path string } }
		if err := json.Unmarshal(get(b, "http://localhost/api/").Body.Bytes(), &index); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		paths := []string{"/api/ranks?id=2", "/metrics"}
		for _, v := range index.Views {
			paths = append(paths, v.Path)
		}
		for _, path := range paths {
			w := get(b, "http://localhost"+path)
			if w.Code != 200 || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %d, %s", path, w.Code, w.Header())
			}
			fmt.Fprintf(&out, "%s\n----\n", path)
			if path == "/metrics" {
				out.Write(w.Body.Bytes())
			} else if err := json.Indent(&out, w.Body.Bytes(), "", "  "); err != nil {
				t.Fatal(err)
			}
			out.WriteString("\n")
		}
		got := regexp.MustCompile(`"board": "[0-9a-f]{12}"`).ReplaceAllString(out.String(), `"board": "..."`)
		file := filepath.Join("testdata", "views.txt")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Error(d)
		}
	})
}

// The views of a board that was fed nothing are there and have empty lists.
func TestViewsOfNothing(t *testing.T) {
	b := web.NewBoard()
	for _, path := range []string{"all", "job", "ranks", "topology", "loss", "throughput", "collectives", "lateness", "timeline", "epochs",
		"checkpoints", "measures"} {
		w := get(b, "http://localhost/api/"+path)
		var v map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != 200 {
			t.Errorf("%s: %d %v", path, w.Code, err)
		}
		for k, x := range v {
			if x == nil && k != "loss" {
				t.Errorf("%s: %s is null", path, k)
			}
		}
	}
	if got := get(b, "http://localhost/metrics").Body.String(); strings.Contains(got, "weft_loss") {
		t.Error("a loss is told although there is none")
	}
}

// How a run stands follows from what was heard and when.
func TestStateOfTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := web.NewBoard()
		is := func(want string) float64 {
			t.Helper()
			var v struct {
				Summary struct {
					State string
					Rate  float64 `json:"tokens_per_s"`
				}
			}
			if err := json.Unmarshal(get(b, "http://localhost/api/job").Body.Bytes(), &v); err != nil {
				t.Fatal(err)
			}
			if v.Summary.State != want {
				t.Errorf("the run is %s, want %s", v.Summary.State, want)
			}
			return v.Summary.Rate
		}
		is("waiting")
		b.Job(web.Job{Started: time.Now()})
		b.Rank(web.Rank{ID: 0, State: web.Starting})
		is("starting")
		b.Rank(web.Rank{ID: 0, State: web.Healthy, Pid: 1})
		for n := range 20 {
			time.Sleep(500 * time.Millisecond)
			b.Step(step(0, n+1))
		}
		if rate := is("training"); rate != 200 {
			t.Errorf("%v tokens a second; 100 every half second are 200", rate)
		}
		time.Sleep(30 * time.Second)
		if rate := is("stalled"); rate < 40 || rate > 60 {
			t.Errorf("%v tokens a second after 30 s without a step", rate)
		}
		b.Rank(web.Rank{ID: 0, State: web.Failed, Pid: 1})
		is("recovering")
		b.Job(web.Job{Started: time.Now().Add(-time.Minute), Ended: true})
		time.Sleep(time.Hour)
		if rate := is("ended"); rate != 200 {
			t.Errorf("%v tokens a second is told of a run that has ended; it made 200", rate)
		}
	})
}

// A failure counts once, whoever tells of it, and again after the rank was
// healthy.
func TestFailuresCountOnce(t *testing.T) {
	b := web.NewBoard()
	for range 3 {
		b.Rank(web.Rank{ID: 1, State: web.Healthy})
		b.Rank(web.Rank{ID: 1, State: web.Suspect})
		b.Event(web.Event{Kind: "failure", ID: 1})
		b.Rank(web.Rank{ID: 1, State: web.Failed})
		b.Event(web.Event{Kind: "failure", ID: 1})
		b.Event(web.Event{Kind: "failure", ID: -1, Text: "of no rank"})
		b.Rank(web.Rank{ID: 1, State: web.Starting})
	}
	if got := metric(t, b, "weft_failures_total"); got != "3" {
		t.Errorf("%s failures of 3 are counted", got)
	}
}

// A loss that is not a number is told as such, in JSON too.
func TestLossThatIsNoNumber(t *testing.T) {
	b := web.NewBoard()
	s := step(0, 1)
	s.Loss = math.NaN()
	b.Step(s)
	var v struct {
		Summary struct {
			Loss     *float64
			Diverged bool
		}
	}
	if err := json.Unmarshal(get(b, "http://localhost/api/all").Body.Bytes(), &v); err != nil || v.Summary.Loss != nil || !v.Summary.Diverged {
		t.Errorf("%+v %v", v, err)
	}
	if got := metric(t, b, "weft_loss"); got != "NaN" {
		t.Errorf("weft_loss %s", got)
	}
}

// Values are copied: a feeder may use its slices again.
func TestBoardCopies(t *testing.T) {
	b := web.NewBoard()
	members, list := []int{1, 2}, []web.Measure{{Name: "a"}}
	b.Epoch(web.Epoch{Number: 1, Members: members})
	b.Measures(list)
	members[0], list[0].Name = 9, "z"
	if got := get(b, "http://localhost/api/epochs").Body.String(); !strings.Contains(got, "[1,2]") {
		t.Error(got)
	}
	if got := get(b, "http://localhost/api/measures").Body.String(); !strings.Contains(got, `"a"`) {
		t.Error(got)
	}
}

func TestOnlyLocalNamesAreAnswered(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	b := web.NewBoard()
	for host, code := range map[string]int{
		"localhost": 200, "localhost:7070": 200, "LOCALHOST:7070": 200, "127.0.0.1:7070": 200, "[::1]:7070": 200, "[::1]": 200,
		"192.168.1.5:80": 200, "a.localhost:1": 200, own + ":7070": 200,
		"evil.example": 421, "evil.example:7070": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example:7070": 421, "": 421,
		"xlocalhost": 421,
	} {
		for _, path := range []string{"/", "/api/all", "/events", "/metrics"} {
			if code == 200 && path == "/events" {
				continue
			}
			q := httptest.NewRequest("GET", "http://localhost"+path, nil)
			q.Host = host
			w := httptest.NewRecorder()
			b.Handler().ServeHTTP(w, q)
			if w.Code != code {
				t.Errorf("%s of host %q is answered %d, want %d", path, host, w.Code, code)
			}
			if code == 421 && !strings.Contains(w.Body.String(), "open it by address") {
				t.Errorf("host %q: %s", host, w.Body)
			}
		}
	}
}

func TestAnswersAreGuarded(t *testing.T) {
	b := web.NewBoard()
	w := get(b, "http://localhost/")
	for k, want := range map[string]string{"Content-Security-Policy": "default-src 'self'", "X-Content-Type-Options": "nosniff",
		"Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer"} {
		if got := w.Header().Get(k); !strings.Contains(got, want) {
			t.Errorf("%s: %q", k, got)
		}
	}
	if got := w.Header().Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("pages from %s may read this one", got)
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, httptest.NewRequest(method, "http://localhost/api/all", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s is answered %d", method, w.Code)
		}
	}
	for _, path := range []string{"/none", "/api/none", "/../web.go", "/page/index.html"} {
		if w := get(b, "http://localhost"+path); w.Code == 200 {
			t.Errorf("%s is answered", path)
		}
	}
	if w := get(b, "http://localhost/api/ranks?id=x"); w.Code != 400 || !strings.Contains(w.Body.String(), "not a number") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Everything the page loads is embedded, typed and free of other hosts, and
// its markup has no script of its own.
func TestPageIsWhole(t *testing.T) {
	b := web.NewBoard()
	foreign := regexp.MustCompile(`https?://[^'"\s)]+`)
	err := fs.WalkDir(os.DirFS("page"), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		want, err := os.ReadFile(filepath.Join("page", path))
		if err != nil {
			return err
		}
		target := "/" + path
		if path == "index.html" {
			target = "/"
		}
		w := get(b, "http://localhost"+target)
		if w.Code != 200 || !bytes.Equal(w.Body.Bytes(), want) {
			t.Errorf("%s: %d, %d of %d bytes", path, w.Code, w.Body.Len(), len(want))
		}
		types := map[string]string{".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
		if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, types[filepath.Ext(path)]) || types[filepath.Ext(path)] == "" {
			t.Errorf("%s is %q", path, got)
		}
		for _, url := range foreign.FindAllString(string(want), -1) {
			if url != "http://www.w3.org/2000/svg" { // a name, not an address
				t.Errorf("%s names %s", path, url)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page := get(b, "http://localhost/").Body.String()
	if regexp.MustCompile(`<script(>| [^>]*>[^<])|<style| style=| on[a-z]+="`).MatchString(page) {
		t.Error("the page has a script or style within")
	}
	ids := regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(page, -1)
	seen := []string{}
	for _, m := range ids {
		if slices.Contains(seen, m[1]) {
			t.Errorf("id %s is there twice", m[1])
		}
		seen = append(seen, m[1])
	}
}
