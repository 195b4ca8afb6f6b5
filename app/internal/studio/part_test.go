package studio_test

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/app/internal/studio"
	"github.com/weft-fabric/weft/app/internal/studio/engine"
	"github.com/weft-fabric/weft/fabric/network"
	"github.com/weft-fabric/weft/internal/chrome"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
)

// One part has one name everywhere: the NIC n1:nic5 with its cable, in the cluster file's graph, in the simulator's faults and
// limits, at the switch port of the network plan, in an incident of weft watch, and on the picture.
func testPart(t *testing.T, ctx context.Context) {
	const nic, port = "n1:nic5", "leaf5:p2"
	open := sample(t, "four-hosts")
	c, err := cluster.Parse("four-hosts.yaml", []byte(open.Text), nil)
	if err != nil {
		t.Fatal(err)
	}
	g := c.Graph
	id, err := g.Lookup(nic)
	if err != nil {
		t.Fatal(err)
	}
	cable := topo.LinkID(topo.None)
	for _, e := range g.Edges(id) {
		if g.Nodes[e.Peer].Kind == topo.Switch {
			cable = e.Link
		}
	}
	link := g.LinkName(cable)
	if link != nic+" - "+port {
		t.Fatalf("the cable of %s is %q", nic, link)
	}
	// The simulator takes each of the names, and answers with the cable's.
	times := map[int64]bool{}
	for _, name := range []string{nic, port, link} {
		q, err := json.Marshal(engine.Collective{File: engine.File{Text: open.Text}, Faults: []engine.Fault{{Part: name, Factor: .25}},
			Op: "all-reduce", Bytes: 1 << 28, Algo: "ring"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := engine.New(engine.Default()).Do(t.Context(), "simulate", q, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var a struct {
			Limit string
			Time  int64 `json:"time_ps"`
		}
		b, _ := json.Marshal(got)
		if err := json.Unmarshal(b, &a); err != nil || !strings.HasPrefix(a.Limit, link+" (") {
			t.Errorf("with %s slow the limit is %q", name, a.Limit)
		}
		times[a.Time] = true
	}
	if len(times) != 1 {
		t.Errorf("the same fault by three names takes %v", times)
	}
	// The network plan has the cable at this port.
	plan, err := network.Make("four-hosts.yaml", c, nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, number, _ := strings.Cut(port, ":p")
	at := slices.IndexFunc(plan.Switches, func(s network.Switch) bool { return s.Name == leaf })
	found := false
	for _, p := range plan.Switches[at].Ports {
		found = found || strconv.Itoa(p.Number) == number && p.Link == cable && p.Peer == id
	}
	if !found {
		t.Errorf("port %s of the plan does not lead to %s", port, nic)
	}
	// Weft watch names it, and the picture finds it by every name.
	list := studio.Gallery()
	hang := list[slices.IndexFunc(list, func(p studio.Piece) bool { return p.File == "hang.html" })]
	last := hang.Open.Recording[len(hang.Open.Recording)-1].View.Incidents[0]
	if !slices.Contains(last.Subject.Devices, nic) {
		t.Errorf("the incident is about %v", last.Subject)
	}
	visit(t, ctx, server(t, hang.Open).URL, 1280, 900)
	chrome.Until(t, ctx, idle+` && app.stage.pins.length === 1`)
	want := `[` + strconv.Itoa(int(id)) + `,` + strconv.Itoa(int(id)) + `,` + strconv.Itoa(int(plan.Switches[at].Node)) + `]`
	if got := chrome.Ask[string](t, ctx, `JSON.stringify(['`+nic+`', '`+link+`', '`+port+
		`'].map(n => app.stage.lookup(n)?.id))`); got != want {
		t.Errorf("the picture finds %s, want %s", got, want)
	}
	const state = `app.stage.states.get('n' + app.stage.lookup('n1:gpu5').id)`
	if got := chrome.Ask[string](t, ctx, `app.stage.pins[0].name + ' ' + `+state); got != "n1:gpu5 failed" {
		t.Errorf("the pin is at %s", got)
	}
	const opened = `document.querySelector('#run-facts [data-key=open]').innerText`
	if got := chrome.Ask[string](t, ctx, opened); !strings.Contains(got, "1") {
		t.Errorf("at its end the recording says %q", got)
	}
	// The recording goes back to when all was well.
	chrome.Ask[bool](t, ctx, `(app.seek(10), true)`)
	if got := chrome.Ask[string](t, ctx, opened); !strings.Contains(got, "0") {
		t.Errorf("after ten seconds it says %q", got)
	}
	if got := chrome.Ask[string](t, ctx, state+` + ' ' + app.stage.pins.length`); got != "healthy 0" {
		t.Errorf("after ten seconds it is %s", got)
	}
	if got := chrome.Ask[string](t, ctx, `document.getElementById('pane-live').innerText`); strings.Contains(got, "hangs") {
		t.Errorf("after ten seconds the page says %s", got)
	}
	measured(t, ctx, link)
	chrome.Quiet(t, ctx)
}

// Lanes are named by what is in them: a switch that reduces is no ninth rank of eight GPUs.
func testSwitchLane(t *testing.T, ctx context.Context) {
	open := studio.Open{Name: "one", Text: "preset: dgx-h100\n", State: map[string]any{
		"a": map[string]any{"op": "all-reduce", "bytes": 1 << 20, "algo": "nvls"}, "ran": map[string]bool{"a": true}}}
	visit(t, ctx, server(t, open).URL, 1280, 800)
	click(t, ctx, "#tab-collective")
	chrome.Until(t, ctx, idle+` && app.results.a`)
	names := chrome.Ask[[]string](t, ctx, `lanesOf(app.results.a, '', 'a', app.stage).lanes.map(l => l.name)`)
	if len(names) != 9 || names[7] != "rank 7" || names[8] != "n0:nvs0" {
		t.Errorf("the lanes of a reduction in the switch: %q", names)
	}
	said := chrome.Ask[string](t, ctx, `lanesOf(app.results.a, '', 'a', app.stage).lanes.flatMap(l => l.spans.map(s => s[4]())).join()`)
	if strings.Contains(said, "rank 8") || !strings.Contains(said, "to n0:nvs0") {
		t.Errorf("the spans say %.300q", said)
	}
}

// measured checks the links of the recording. A host inside the tree sends 64 MiB of each all-reduce over every cable, four times a
// second in 1.7 ms each: 39.5 GB/s while they run. The prediction is 1.49 ms: 45.0 GB/s.
func measured(t *testing.T, ctx context.Context, cable string) {
	t.Helper()
	chrome.Until(t, ctx, `[...app.liveFeed.traffic.values()].some(Boolean) && app.idle()`)
	chrome.Ask[bool](t, ctx, `(app.seek(20), true)`)
	if n := chrome.Ask[int](t, ctx, `app.stage.ratios?.size ?? 0`); n != 64 {
		t.Fatalf("%d directions of cables are measured, want 64", n)
	}
	got := chrome.Ask[string](t, ctx, `app.liveFeed.history.findLast(h => h.t <= 20).links.filter(l => l.name.startsWith('`+cable+
		`')).map(l => l.name + ' ' + rateText(l.measured) + ' ' + rateText(l.expected) + ' ' + digits(l.ratio, 2)).join('; ')`)
	if want := cable + ", sent 39.5 GB/s 45.0 GB/s 0.88; " + cable + ", received 39.5 GB/s 45.0 GB/s 0.88"; got != want {
		t.Errorf("the cable is measured as %q, want %q", got, want)
	}
	if got := chrome.Ask[string](t, ctx, `document.getElementById('l-links').innerText`); !strings.Contains(got, "0.88×") ||
		!strings.Contains(got, "median of 64") {
		t.Errorf("the page shows %q", got)
	}
	explained(t, ctx)
	for _, look := range []string{"dark", "light"} {
		chrome.Scheme(t, ctx, look)
		chrome.Accessible(t, ctx, "links of a run, "+look)
	}
	chrome.Ask[bool](t, ctx, `(app.seek(app.total), true)`) // while nothing ends nothing is measured
	if n := chrome.Ask[int](t, ctx, `app.stage.ratios?.size ?? 0`); n != 0 {
		t.Errorf("%d links are measured in a hang", n)
	}
}
