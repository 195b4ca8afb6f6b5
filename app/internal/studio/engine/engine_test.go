package engine

import (
	"context"
	"encoding/json"
	"testing"
	"time"
)

func do(t *testing.T, e *Engine, method string, q any) (map[string]any, error) {
	t.Helper()
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Do(context.Background(), method, body, nil)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	m["#"] = len(text)
	return m, nil
}

func TestTry(t *testing.T) {
	e := New(Default())
	for _, s := range Samples() {
		for _, m := range []string{"scene", "design", "simulate", "bound"} {
			var q any = File{s.Text}
			if m == "simulate" || m == "bound" {
				q = Collective{File: File{s.Text}, Op: "all-reduce", Bytes: 64 << 20, Algo: "auto"}
			}
			at := time.Now()
			got, err := do(t, e, m, q)
			if err != nil {
				t.Logf("%s %s: %v (%v)", s.Name, m, err, time.Since(at))
				continue
			}
			t.Logf("%s %s: %v bytes, %v", s.Name, m, got["#"], time.Since(at))
			if m == "simulate" {
				t.Logf("   %v %v us, limit %v, notes %v", got["algo"], got["time_ps"].(float64)/1e6, got["limit"], got["notes"])
				if tr, ok := got["trace"].(map[string]any); ok {
					t.Logf("   period %v shown %d spans %d gaps %d cut %v members %d of %v load %v", tr["period"], len(tr["shown"].([]any)), len(tr["rank"].([]any)), len(tr["gaps"].([]any)), tr["cut"], len(tr["members"].([]any)), tr["all"], tr["load_tiers"])
				}
			}
			if m == "scene" {
				t.Logf("   %v x %v, %d blocks, %d rows, links %v folded %v bands %d", got["w"], got["h"], len(got["blocks"].([]any)), func() int { r, _ := got["rows"].([]any); return len(r) }(), got["all_links"], got["folded"], len(got["bands"].([]any)))
			}
			if m == "bound" {
				t.Logf("   %v; sets %v edges %d", got["why"], got["sets"], len(got["edges"].([]any)))
			}
		}
	}
}
