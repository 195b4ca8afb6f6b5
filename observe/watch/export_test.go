package watch

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// annotationFields are those that Grafana's schema of classic dashboards has; it allows no others.
var annotationFields = []string{"name", "datasource", "enable", "hide", "iconColor", "filter", "target", "type", "builtIn"}

// The dashboards keep to Grafana's schema, every metric in them is one that agents or servers serve, and Prometheus reads
// every question.
func TestDashboards(t *testing.T) {
	boards, err := Dashboards()
	if err != nil || len(boards) != 3 {
		t.Fatal(len(boards), err)
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
	metric := regexp.MustCompile(`\b(?:node_infiniband|weft|DCGM_FI)_\w+`)
	rules := "groups:\n- name: panels\n  rules:\n"
	for name, b := range boards {
		var d struct {
			Panels []struct {
				Title, Type string
				GridPos     map[string]int
				Targets     []struct{ Expr string }
			}
			Annotations, Templating struct{ List []map[string]any }
			SchemaVersion           int
		}
		if err := json.Unmarshal(b, &d); err != nil || len(d.Panels) < 8 || len(d.Templating.List) == 0 || d.SchemaVersion == 0 {
			t.Fatalf("%s: %v, %d panels, schema version %d", name, err, len(d.Panels), d.SchemaVersion)
		}
		for _, a := range d.Annotations.List {
			for k := range a {
				if !slices.Contains(annotationFields, k) {
					t.Errorf("%s: Grafana's schema has no %s in annotations", name, k)
				}
			}
		}
		for _, p := range d.Panels {
			if p.Type == "" || len(p.GridPos) != 4 {
				t.Errorf("%s: type %q at %v", p.Title, p.Type, p.GridPos)
			}
			rules += fmt.Sprintf("  - record: panel\n    labels: {n: \"%s %d\"}\n    expr: %s\n",
				name, strings.Count(rules, "record"), strings.NewReplacer("$host", ".*", "$job", ".*").Replace(p.Targets[0].Expr))
			for _, m := range metric.FindAllString(p.Targets[0].Expr, -1) {
				name := strings.TrimSuffix(strings.TrimPrefix(m, "node_infiniband_"), "_total")
				if !strings.Contains(string(src), m) && !strings.Contains(string(src), `"`+name+`"`) && !strings.Contains(m, "_xid_") {
					t.Errorf("%s: nobody serves %s", p.Title, m)
				}
			}
		}
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed")
	}
	path := filepath.Join(t.TempDir(), "panels.yml")
	if err := os.WriteFile(path, []byte(rules), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := bounded.Command(t, tool, "check", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
