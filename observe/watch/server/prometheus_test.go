package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/observe/agent"
	"github.com/weft-fabric/weft/observe/watch"
	"github.com/weft-fabric/weft/observe/watch/server"
	"github.com/weft-fabric/weft/run/launch"
)

// A real Prometheus scrapes an agent and a server, knows the rules that 'weft watch
// export' writes, and answers questions about both.
func TestPrometheusScrapes(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus here; 'make test' as root on Debian installs it")
	}
	if testing.Short() {
		t.Skip("starts Prometheus")
	}
	c := agent.Default()
	c.Host = "scraped"
	a := agent.New(c)
	a.Sample(time.Now())
	eyes := httptest.NewServer(a.Handler())
	defer eyes.Close()
	s, err := server.New(server.Config{Watch: watch.Config{Title: "scraped"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Take(a.Counters(time.Now(), true)); err != nil {
		t.Fatal(err)
	}
	s.Tick()
	pages := httptest.NewServer(s.Pages())
	defer pages.Close()

	dir := t.TempDir()
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [weft.rules.yml]\nscrape_configs:\n- job_name: weft-agents\n  static_configs: [{targets: [%q]}]\n- job_name: weft-watch\n  static_configs: [{targets: [%q]}]\n",
		strings.TrimPrefix(eyes.URL, "http://"), strings.TrimPrefix(pages.URL, "http://"))
	for name, text := range map[string]string{"prometheus.yml": config, "weft.rules.yml": watch.Rules("")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port, err := launch.HoldPort()
	if err != nil {
		t.Fatal(err)
	}
	defer port.Release()
	addr := fmt.Sprintf("127.0.0.1:%d", port.Number)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr, "--log.level=warn")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 5*time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	ask := func(path string, into any) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(into)
	}
	var got struct {
		Data struct {
			Result []struct{ Metric map[string]string }
			Groups []struct {
				Rules []struct{ Health, LastError string }
			}
		}
	}
	waiting := map[string]string{"weft_agent_info": "host", "node_netstat_Tcp_OutSegs": "", "weft_watch_hosts": "",
		"weft_health_state": "check"}
	for len(waiting) > 0 {
		for query, label := range waiting {
			if err := ask("/api/v1/query?query="+query, &got); err == nil && len(got.Data.Result) > 0 {
				if label != "" && got.Data.Result[0].Metric[label] == "" {
					t.Errorf("%s has no label %s: %v", query, label, got.Data.Result[0].Metric)
				}
				delete(waiting, query)
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for Prometheus to know %v\n%s", waiting, out.String())
		case <-time.After(200 * time.Millisecond):
		}
	}
	// Rules are evaluated without an error.
	for {
		if err := ask("/api/v1/rules", &got); err != nil {
			t.Fatal(err)
		}
		n, unknown := 0, 0
		for _, g := range got.Data.Groups {
			for _, r := range g.Rules {
				n++
				if r.Health == "unknown" {
					unknown++
				} else if r.Health != "ok" {
					t.Errorf("a rule is not well: %s", r.LastError)
				}
			}
		}
		if n > 20 && unknown == 0 {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for rules: %d known, %d not evaluated", n, unknown)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
