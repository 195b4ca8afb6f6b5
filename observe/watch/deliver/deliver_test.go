package deliver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/run/launch"
	logs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

var silent = slog.New(slog.DiscardHandler)

const exposition = `# HELP weft_watch_hosts Hosts that report.
# TYPE weft_watch_hosts gauge
weft_watch_hosts 3
# HELP weft_watch_incidents_opened_total Incidents that opened since the server started.
# TYPE weft_watch_incidents_opened_total counter
weft_watch_incidents_opened_total{kind="hang"} 2
weft_watch_incidents_opened_total{kind="rank-dead"} 0
# TYPE weft_watch_late_seconds gauge
weft_watch_late_seconds{job="a \"b\", c}",rank="7",host=""} 0.25
`

func TestParse(t *testing.T) {
	list, err := Parse(exposition)
	if err != nil || len(list) != 4 {
		t.Fatal(list, err)
	}
	if s := list[1]; s.Name != "weft_watch_incidents_opened_total" || !s.Counter || s.Value != 2 || s.Labels[0] != [2]string{"kind", "hang"} {
		t.Errorf("%+v", s)
	}
	if s := list[3]; s.Labels[1] != [2]string{"job", `a "b", c}`} || s.Counter {
		t.Errorf("%+v", s)
	}
	for _, bad := range []string{"x", "x y", `x{a="b} 1`, `x{a} 1`} {
		if _, err := Parse(bad + "\n"); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// A real Prometheus takes what remote write sends, and answers with it.
func TestPrometheusTakesRemoteWrite(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus here")
	}
	if testing.Short() {
		t.Skip("starts Prometheus")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte("global: {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	port, err := launch.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	at := fmt.Sprintf("127.0.0.1:%d", port.Number)
	cmd := bounded.Command(t, program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+at, "--web.enable-remote-write-receiver", "--log.level=warn")
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	target, err := ParseTarget("remote-write=http://" + at + "/api/v1/write")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		Push(ctx, 100*time.Millisecond, func(w io.Writer) { io.WriteString(w, exposition) }, []Target{target}, silent)
	}()
	defer func() { cancel(); <-over }()
	var got struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  []any
			}
		}
	}
	for tick := time.Tick(50 * time.Millisecond); len(got.Data.Result) == 0; { // the bound of the process ends this loop
		<-tick
		res, err := http.Get("http://" + at + "/api/v1/query?query=weft_watch_late_seconds")
		if err != nil {
			continue
		}
		_ = json.NewDecoder(res.Body).Decode(&got)
		res.Body.Close()
	}
	r := got.Data.Result[0]
	if r.Metric["job"] != `a "b", c}` || r.Metric["rank"] != "7" || r.Value[1] != "0.25" {
		t.Errorf("Prometheus has %+v", r)
	}
	http.DefaultClient.CloseIdleConnections()
}

// receiver takes requests and answers as it is told.
func receiver(t *testing.T, answers ...func(w http.ResponseWriter)) (url string, taken chan *http.Request, bodies chan []byte) {
	t.Helper()
	taken, bodies = make(chan *http.Request, 16), make(chan []byte, 16)
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if n < len(answers) {
			answers[n](w)
		}
		n++
		taken <- r
		bodies <- b
	}))
	t.Cleanup(s.Close)
	return s.URL, taken, bodies
}

func TestCollectorTakesMetrics(t *testing.T) {
	url, taken, bodies := receiver(t)
	target, err := ParseTarget("otlp=" + url)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		Push(ctx, time.Hour, func(w io.Writer) { io.WriteString(w, exposition) }, []Target{target}, silent)
	}()
	r, b := <-taken, <-bodies
	cancel()
	<-over
	if r.URL.Path != "/v1/metrics" || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %v", r.URL, r.Header)
	}
	var got metrics.ExportMetricsServiceRequest
	if err := protojson.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	list := got.ResourceMetrics[0].ScopeMetrics[0].Metrics
	if len(list) != 3 || list[0].GetGauge().DataPoints[0].GetAsDouble() != 3 {
		t.Fatalf("%v", list)
	}
	sum := list[1].GetSum()
	if !sum.GetIsMonotonic() || len(sum.DataPoints) != 2 || sum.DataPoints[0].StartTimeUnixNano == 0 ||
		sum.DataPoints[0].Attributes[0].Value.GetStringValue() != "hang" {
		t.Errorf("%v", sum)
	}
}

// incident opens, and with an end is over.
func incident(end float64) watch.Incident {
	return watch.Incident{ID: 7, Kind: "rank-dead", Severity: doctor.Critical, Confidence: 0.99, Job: "train <1>",
		Subject: doctor.Subject{Ranks: []int{3}, Hosts: []string{"n1"}}, Began: 1.7e9, Ended: end,
		Verdict: "rank 3 (process 12 on n1) of train <1> was killed by SIGKILL" + strings.Repeat(" & so on", 500), Cause: "somebody killed it",
		Fix: "look", Evidence: []watch.Evidence{{At: 1.7e9, Text: "the kernel says so"}}}
}

// delivered sends an incident that opens and ends to a hook, and gives the bodies.
func delivered(t *testing.T, bodiesWanted int, make func(url string) string,
	answers ...func(w http.ResponseWriter)) (got []map[string]any) {
	t.Helper()
	url, _, bodies := receiver(t, answers...)
	h, err := ParseHook(make(url), "https://ops.example/weft")
	if err != nil {
		t.Fatal(err)
	}
	n := NewNotifier([]*Hook{h}, silent)
	n.pause = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	over := chanOf(func() { n.Run(ctx) })
	n.Notice(incident(0))
	n.Notice(incident(1.7e9 + 60))
	for range bodiesWanted {
		var m map[string]any
		if err := json.Unmarshal(<-bodies, &m); err != nil {
			t.Fatal(err)
		}
		got = append(got, m)
	}
	cancel()
	<-over
	return got
}

func chanOf(f func()) chan struct{} {
	c := make(chan struct{})
	go func() { defer close(c); f() }()
	return c
}

// Slack's limits: 150 characters of a header, 3,000 of a section; & < > are escaped.
func TestSlack(t *testing.T) {
	ok := func(w http.ResponseWriter) { io.WriteString(w, "ok") }
	got := delivered(t, 2, func(url string) string { return "slack=" + url }, ok, ok)
	for i, m := range got[:2] {
		if m["text"] == "" {
			t.Error("no text for notifications")
		}
		for _, x := range m["blocks"].([]any) {
			b := x.(map[string]any)
			most := map[string]int{"header": 150, "section": 3000}[b["type"].(string)]
			if text, is := b["text"].(map[string]any); is && utf8.RuneCountInString(text["text"].(string)) > most {
				t.Errorf("%d: %s has %d characters", i, b["type"], len(text["text"].(string)))
			}
		}
	}
	if b, _ := json.Marshal(got[0]["blocks"]); !strings.Contains(string(b), "train \\u0026lt;1\\u0026gt; was killed") ||
		!strings.Contains(string(b), "https://ops.example/weft/explain/rank-dead") {
		t.Errorf("%s", b)
	}
	if head := got[1]["blocks"].([]any)[0].(map[string]any)["text"].(map[string]any)["text"]; head != "Over after 60 s: rank-dead" {
		t.Errorf("head %q", head)
	}
}

// PagerDuty resolves what it triggered under one key. A receiver that is busy is tried again.
func TestPagerDuty(t *testing.T) {
	busy := func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) }
	fine := func(w http.ResponseWriter) { w.WriteHeader(http.StatusAccepted) }
	got := delivered(t, 3, func(url string) string {
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte(url+"/v2/enqueue R0123\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "pagerduty=@" + file
	}, busy, fine)
	if got[0]["dedup_key"] != got[1]["dedup_key"] || got[1]["event_action"] != "trigger" {
		t.Errorf("not tried again: %v", got[1])
	}
	last := got[len(got)-1]
	p := got[0]["payload"].(map[string]any)
	if got[0]["routing_key"] != "R0123" || p["severity"] != "critical" || p["source"] != "n1" || len([]rune(p["summary"].(string))) != 1024 ||
		last["event_action"] != "resolve" || last["dedup_key"] != got[0]["dedup_key"] || last["payload"] != nil {
		t.Errorf("%v %v", got[0], last)
	}
	if _, err := time.Parse(time.RFC3339Nano, p["timestamp"].(string)); err != nil {
		t.Error(err)
	}
}

func TestAlertmanagerForm(t *testing.T) {
	got := delivered(t, 2, func(url string) string { return "webhook=" + url })
	a := got[0]["alerts"].([]any)[0].(map[string]any)
	if got[0]["version"] != "4" || got[0]["status"] != "firing" || a["endsAt"] != "0001-01-01T00:00:00Z" ||
		a["labels"].(map[string]any)["kind"] != "rank-dead" || got[1]["status"] != "resolved" || got[1]["groupKey"] != got[0]["groupKey"] {
		t.Errorf("%v", got)
	}
}

func TestCollectorTakesIncidents(t *testing.T) {
	url, taken, bodies := receiver(t)
	h, err := ParseHook("otlp="+url, "")
	if err != nil {
		t.Fatal(err)
	}
	n := NewNotifier([]*Hook{h}, silent)
	ctx, cancel := context.WithCancel(t.Context())
	over := chanOf(func() { n.Run(ctx) })
	n.Notice(incident(0))
	r, b := <-taken, <-bodies
	cancel()
	<-over
	var got logs.ExportLogsServiceRequest
	if err := protojson.Unmarshal(b, &got); err != nil || r.URL.Path != "/v1/logs" {
		t.Fatal(r.URL, err)
	}
	if l := got.ResourceLogs[0].ScopeLogs[0].LogRecords[0]; l.SeverityNumber != 17 || l.TimeUnixNano != 1.7e18 ||
		!strings.HasPrefix(l.Body.GetStringValue(), "rank 3") {
		t.Errorf("%v", l)
	}
}

func TestWrongReceivers(t *testing.T) {
	for _, text := range []string{"", "slack", "slack=", "slack=hooks.slack.com", "mail=x", "pagerduty=@/nothing", "pagerduty=ftp://x key"} {
		if h, err := ParseHook(text, ""); err == nil {
			t.Errorf("%q is %+v", text, h)
		}
	}
	for _, text := range []string{"", "otlp", "otlp=collector:4318", "statsd=http://x"} {
		if h, err := ParseTarget(text); err == nil {
			t.Errorf("%q is %+v", text, h)
		}
	}
}
