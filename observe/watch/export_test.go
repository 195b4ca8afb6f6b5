package watch

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/observe/doctor"
	"github.com/weft-fabric/weft/observe/internal/health"
)

// Prometheus' own tool takes the rules, and every check of the agents has one.
func TestRules(t *testing.T) {
	text := Rules("https://ops.example/weft/")
	for _, r := range health.Rules {
		if !strings.Contains(text, `check="`+r.Metric+`"`) {
			t.Errorf("no rule for %s", r.Metric)
		}
	}
	for _, m := range regexp.MustCompile(`runbook: "weft doctor explain ([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if _, _, ok := Explain(m[1]); !ok && !strings.Contains(m[1], "$labels.kind") {
			if _, err := doctor.Explain(m[1]); err != nil {
				t.Error(err)
			}
		}
	}
	if n := strings.Count(text, "- alert:"); n != strings.Count(text, "runbook_url: ") || strings.Contains(Rules(""), "runbook_url") {
		t.Error("an alert has no link, or one to nowhere")
	}
	if n := strings.Count(text, "- alert:"); n != strings.Count(text, "    for: ") {
		t.Error("a rule has no waiting time")
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	path := filepath.Join(t.TempDir(), "weft.rules.yml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := bounded.Command(t, tool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	// A link that went down raises its alert after its waiting time.
	test := filepath.Join(filepath.Dir(path), "test.yml")
	os.WriteFile(test, []byte(`rule_files: [weft.rules.yml]
evaluation_interval: 10s
tests:
- interval: 10s
  input_series:
  - series: 'weft_health_state{instance="n1",device="mlx5_0",port="1",check="link_downed"}'
    values: '1 1 3 3 3 3 3 3 3'
  alert_rule_test:
  - eval_time: 30s
    alertname: WeftLinkDowned
  - eval_time: 80s
    alertname: WeftLinkDowned
    exp_alerts:
    - exp_labels: {severity: critical, instance: n1, device: mlx5_0, port: "1", check: link_downed}
      exp_annotations: {summary: "n1 mlx5_0: a link was lost", action: "cable or port; drain", runbook: "weft doctor explain link_downed", runbook_url: "https://ops.example/weft/explain/link_downed"}
`), 0o644)
	if out, err := bounded.Command(t, tool, "test", "rules", test).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The dashboard is JSON, and every metric in it is one that agents serve.
func TestDashboard(t *testing.T) {
	b, err := Dashboard()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title, Type string
			GridPos     map[string]int
			Targets     []struct{ Expr string }
		}
		Annotations, Templating struct{ List []map[string]any }
		SchemaVersion           int
	}
	if err := json.Unmarshal(b, &d); err != nil || len(d.Panels) < 10 {
		t.Fatalf("%v, %d panels", err, len(d.Panels))
	}
	// What Grafana's schema of dashboards demands.
	if len(d.Annotations.List) == 0 || len(d.Templating.List) == 0 || d.SchemaVersion == 0 {
		t.Errorf("annotations %v, templating %v, schema version %d", d.Annotations, d.Templating, d.SchemaVersion)
	}
	src, err := os.ReadFile("../agent/metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	served, err := os.ReadFile("server/http.go")
	if err != nil {
		t.Fatal(err)
	}
	src = append(src, served...)
	for _, want := range []string{"weft_watch_incident", "weft_watch_late", "weft_watch_collective"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no panel shows %s", want)
		}
	}
	metric := regexp.MustCompile(`\b(?:node|weft|DCGM)_\w+`)
	for _, p := range d.Panels {
		if p.Type == "" || len(p.GridPos) != 4 {
			t.Errorf("%s: type %q at %v", p.Title, p.Type, p.GridPos)
		}
		for _, m := range metric.FindAllString(p.Targets[0].Expr, -1) {
			name := strings.TrimSuffix(strings.TrimPrefix(m, "node_infiniband_"), "_total")
			if !strings.Contains(string(src), m) && !strings.Contains(string(src), `"`+name+`"`) && !strings.Contains(m, "_xid_") {
				t.Errorf("%s: no agent serves %s", p.Title, m)
			}
		}
	}
}
