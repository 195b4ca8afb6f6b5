package web_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/view/web"
)

// keysOf adds the keys of a JSON value, as paths: ranks[].id, summary.states.*.
func keysOf(at string, v any, keys map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if strings.HasSuffix(at, "states") {
				k = "*" // the keys are names of states
			}
			path := k
			if at != "" {
				path = at + "." + k
			}
			keys[path] = true
			keysOf(path, x, keys)
		}
	case []any:
		for _, x := range v {
			keysOf(at+"[]", x, keys)
		}
	}
}

// docs/http.md lists every key of every view, and no other. The views are those of
// the real handler, fed with a run in which everything happens.
func TestPageOfHTTP(t *testing.T) {
	page, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	d := newDemo(8, 4, 2, 2, time.Now().Add(-time.Minute))
	for range 140 {
		d.next()
	}
	d.measure()
	d.Log(0, time.Now(), "a line that the rank has printed")
	d.Job(web.Job{Title: "weft up", Ranks: 8, Started: time.Now().Add(-time.Minute), Until: time.Now(), Ended: true, Watch: "/watch/", Studio: "/studio/"})
	h := d.Handler()
	get := func(path string) map[string]any {
		r := httptest.NewRequest("GET", "http://localhost"+path, nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var v map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return v
	}
	var paths []string
	for _, v := range get("/api/")["views"].([]any) {
		paths = append(paths, v.(map[string]any)["path"].(string))
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")
	for _, path := range paths {
		_, section, found := strings.Cut(string(page), "\n### "+path+"\n")
		if !found {
			t.Errorf("docs/http.md has no section %s", path)
			continue
		}
		section, _, _ = strings.Cut(section, "\n##")
		var listed []string
		for _, m := range row.FindAllStringSubmatch(section, -1) {
			listed = append(listed, m[1])
		}
		keys := map[string]bool{}
		keysOf("", get(path), keys)
		if path == "/api/ranks" {
			keysOf("", get(path+"?id=0"), keys)
		}
		var served []string
		for k := range keys {
			if path != "/api/all" || !strings.ContainsAny(k, ".[") { // its parts are listed at their own views
				served = append(served, k)
			}
		}
		sort.Strings(served)
		for _, k := range served {
			if !slices.Contains(listed, k) {
				t.Errorf("docs/http.md, %s: add the row\n| `%s` | |", path, k)
			}
		}
		for _, k := range listed {
			if !keys[k] {
				t.Errorf("docs/http.md, %s: `%s` is not served", path, k)
			}
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
	var metrics []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\w+) (\w+)$`).FindAllStringSubmatch(w.Body.String(), -1) {
		metrics = append(metrics, fmt.Sprintf("| `%s` | %s |", m[1], m[2]))
	}
	_, section, _ := strings.Cut(string(page), "\n## /metrics\n")
	for _, m := range metrics {
		if !strings.Contains(section, m) {
			t.Errorf("docs/http.md, /metrics: add the row\n%s |", m)
		}
	}
	if n := strings.Count(section, "\n| `weft_"); n != len(metrics) {
		t.Errorf("docs/http.md lists %d metrics, %d are served", n, len(metrics))
	}
}
