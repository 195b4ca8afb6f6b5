package design

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/view/draw"
)

var update = flag.Bool("update", false, "rewrite testdata with what is printed now")

// families are one small cluster of every sort that the report must handle.
var families = []struct {
	preset string
	params map[string]int
}{
	{"superpod-h100", map[string]int{"su": 1}}, {"superpod-a100", map[string]int{"su": 2}}, {"superpod-b300", nil}, {"superpod-b300-xdr", nil},
	{"rail", map[string]int{"hosts": 16}}, {"rail", map[string]int{"hosts": 16, "rail-only": 1}}, {"rail", map[string]int{"hosts": 1}},
	{"fat-tree", map[string]int{"hosts": 20, "down": 3, "up": 1}}, {"fat-tree", map[string]int{"hosts": 2}},
	{"dragonfly", map[string]int{"routers": 4, "ports": 8, "global": 2, "groups": 8}}, {"dragonfly", nil},
	{"torus", nil}, {"torus", map[string]int{"x": 3, "y": 5, "z": 1}}, {"tpu-v4", map[string]int{"x": 4, "y": 4, "z": 4}},
	{"alibaba-hpn", map[string]int{"segments": 2}}, {"gb200-su", nil}, {"gb200-nvl72", nil}, {"nvlink-256", nil},
}

// TestEveryFamily analyzes each and holds what every report must keep.
func TestEveryFamily(t *testing.T) {
	for _, f := range families {
		t.Run(fmt.Sprint(f.preset, f.params), func(t *testing.T) {
			r := preset(t, f.preset, f.params)
			if r.Oversubscription < 1 || r.Hosts == 0 || r.GPUs == 0 {
				t.Errorf("oversubscription %g, %d hosts, %d GPUs", r.Oversubscription, r.Hosts, r.GPUs)
			}
			if r.Hosts > 1 && r.Bisection.MaxFlow <= 0 {
				t.Error("no bisection")
			}
			if r.Bisection.Formula != nil && !r.Bisection.Agree {
				t.Errorf("formula %g, max-flow %g", *r.Bisection.Formula, r.Bisection.MaxFlow)
			}
			for _, l := range r.Losses {
				if l.BisectionLeft > 1+1e-9 || l.HostLeft > 1 || l.GPUsCutOff+l.GPUsDegraded > r.GPUs {
					t.Errorf("%+v", l)
				}
			}
			sum, power := 0.0, 0.0
			for _, it := range r.Bill {
				sum += it.UnitUSD * float64(it.Count)
				power += it.UnitWatts * float64(it.Count)
			}
			if sum != r.CostUSD || power != r.PowerWatts {
				t.Errorf("the bill adds up to $%g and %g W, the report says $%g and %g W", sum, power, r.CostUSD, r.PowerWatts)
			}
			if len(r.Checklist) != 24 {
				t.Errorf("%d checklist items", len(r.Checklist))
			}
			for _, c := range r.Checklist {
				if c.Evidence == "" || !slices.Contains([]string{Yes, No, NotApplicable, NeedsYou}, c.Answer) {
					t.Errorf("%s: %q with evidence %q", c.Key, c.Answer, c.Evidence)
				}
			}
			if r.Paths.WorstSwitches > 0 && r.Latency.Total <= 0 {
				t.Error("no latency")
			}
			check(t, r, "")
		})
	}
}

// check prints a report in every form and reads it back.
func check(t *testing.T, r *Report, svg string) {
	t.Helper()
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(&back)
	if err != nil || !bytes.Equal(raw, again) {
		t.Error("JSON does not survive a round trip")
	}
	var text, html bytes.Buffer
	if err := r.Text(&text); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"NaN", "+Inf", "%!", "<nil>"} {
		if strings.Contains(text.String(), bad) {
			t.Errorf("text holds %q", bad)
		}
	}
	if err := r.HTML(&html, svg); err != nil {
		t.Fatal(err)
	}
	wellFormed(t, html.String())
}

// wellFormed reads a page tag by tag: every element closed, every anchor there, nothing fetched from elsewhere.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Entity = xml.HTMLEntity
	ids, refs := map[string]bool{}, []string{}
	var open []string
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not well-formed: %v", err)
		}
		switch tok := tok.(type) {
		case xml.StartElement:
			open = append(open, tok.Name.Local)
			for _, a := range tok.Attr {
				switch a.Name.Local {
				case "id":
					if ids[a.Value] {
						t.Errorf("id %q twice", a.Value)
					}
					ids[a.Value] = true
				case "href", "src":
					refs = append(refs, a.Value)
				}
			}
			if n := tok.Name.Local; n == "script" || n == "link" || n == "iframe" || n == "img" {
				t.Errorf("the page holds <%s>", n)
			}
		case xml.EndElement:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("left open: %v", open)
	}
	for _, r := range refs {
		if !strings.HasPrefix(r, "#") || !ids[r[1:]] {
			t.Errorf("link to %q leads nowhere in the page", r)
		}
	}
	for _, bad := range []string{"@import", "url(", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
}

func TestHTMLHoldsThePictureAndEscapesTheRest(t *testing.T) {
	c, err := cluster.Preset("rail", map[string]int{"hosts": 16})
	if err != nil {
		t.Fatal(err)
	}
	c.Name = `<script>alert("x")</script> & co`
	var svg strings.Builder
	if err := draw.Cluster(&svg, c.Graph, draw.Options{}); err != nil {
		t.Fatal(err)
	}
	r := analyze(t, c)
	check(t, r, svg.String())
	var page bytes.Buffer
	if err := r.HTML(&page, svg.String()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(page.String(), "<svg") || strings.Contains(page.String(), "<script") || strings.Contains(page.String(), "<?xml") {
		t.Error("no picture, or the name was not escaped")
	}
}

// TestJSONKeys holds the keys that scripts rely on.
func TestJSONKeys(t *testing.T) {
	raw, err := json.Marshal(preset(t, "superpod-h100", map[string]int{"su": 1}))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"name": "superpod-h100-1su", "hosts": 31.0, "service_hosts": 2.0, "gpus": 248.0,
		"switches.leaf": 8.0, "switches.spine": 4.0, "switches.core": 0.0,
		"cables.host_leaf": 252.0, "cables.leaf_spine": 256.0, "cables.spine_core": 0.0,
		"oversubscription": 1.0, "oversubscription_by_tier": nil, "bisection_bytes_per_s": 6.2e12,
		"bisection.formula": 6.2e12, "bisection.max_flow": 6.2e12, "bisection.agree": true, "bisection.method": nil,
		"power_watts": nil, "cost_usd": nil, "bill": nil, "checklist": nil, "failures": nil, "failure_domains": nil, "growth.next.hosts": 32.0,
	} {
		var v any = m
		for _, k := range strings.Split(key, ".") {
			object, ok := v.(map[string]any)
			if v = object[k]; !ok || v == nil {
				t.Errorf("no key %s", key)
				break
			}
		}
		if want != nil && v != nil && !reflect.DeepEqual(v, want) {
			t.Errorf("%s is %v, want %v", key, v, want)
		}
	}
}

// TestTranscript holds the whole text of a small cluster; -update rewrites it.
func TestTranscript(t *testing.T) {
	c, err := cluster.Preset("rail", map[string]int{"hosts": 16})
	if err != nil {
		t.Fatal(err)
	}
	c.Needs.Provided = map[string]string{"monitoring.health": "node exporter and an agent on every host",
		"failure.checkpoint": "every 30 minutes to object storage"}
	var got bytes.Buffer
	if err := analyze(t, c).Text(&got); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "rail-16.txt")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		a, b := strings.Split(got.String(), "\n"), strings.Split(string(want), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d is\n%s\nand was\n%s", i+1, a[i], b[i])
			}
		}
		t.Fatalf("%d lines, were %d", len(a), len(b))
	}
	for i, l := range strings.Split(got.String(), "\n") {
		if len([]rune(l)) > textWidth {
			t.Errorf("line %d is %d characters long", i+1, len([]rune(l)))
		}
	}
}

// TestSameInputSameBytes analyzes twice.
func TestSameInputSameBytes(t *testing.T) {
	for _, name := range []string{"superpod-h100", "alibaba-hpn", "dragonfly", "tpu-v4"} {
		var text [2]bytes.Buffer
		for i := range text {
			r := preset(t, name, nil)
			if err := errors.Join(r.Text(&text[i]), json.NewEncoder(&text[i]).Encode(r)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(text[0].Bytes(), text[1].Bytes()) {
			t.Errorf("%s: two reports of one cluster differ", name)
		}
	}
}

func TestWrongNeedsAreNamed(t *testing.T) {
	c, err := cluster.Preset("rail", map[string]int{"hosts": 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		needs cluster.Needs
		want  string
	}{
		{cluster.Needs{FailureRates: map[string]float64{"fan": 0.1}}, `"fan"; known parts: gpu, host, nic`},
		{cluster.Needs{FailureRates: map[string]float64{"gpu": -1}}, "cannot be negative"},
		{cluster.Needs{Provided: map[string]string{"coffee": "yes"}}, `"coffee"; known checklist keys: topology.scale`},
	} {
		c.Needs = bad.needs
		if _, err := Analyze(c); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%v, want %q", err, bad.want)
		}
	}
	if _, err := Analyze(nil); err == nil {
		t.Error("no cluster, and no error")
	}
	host, err := build.Host(catalog.Default(), "dgx-h100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Analyze(&cluster.Cluster{Graph: host}); err == nil || !strings.Contains(err.Error(), "no network between hosts") {
		t.Errorf("one host alone: %v", err)
	}
}

// TestProvidedNeverOverrulesTheGraph: the owner's word answers what the graph
// cannot, and only stands beside what it can.
func TestProvidedNeverOverrulesTheGraph(t *testing.T) {
	c, err := cluster.Preset("fat-tree", map[string]int{"hosts": 16})
	if err != nil {
		t.Fatal(err)
	}
	c.Needs.Provided = map[string]string{"reliability.switch": "we bought MLAG", "tuning.nccl": "measured with nccl-tests"}
	for _, item := range analyze(t, c).Checklist {
		switch item.Key {
		case "reliability.switch":
			if item.Answer != No || !strings.Contains(item.Evidence, "the owner adds: we bought MLAG") {
				t.Errorf("%+v", item)
			}
		case "tuning.nccl":
			if item.Answer != Yes || item.Evidence != "the owner: measured with nccl-tests" {
				t.Errorf("%+v", item)
			}
		case "tuning.ib":
			if item.Answer != NeedsYou {
				t.Errorf("%+v", item)
			}
		}
	}
}

// TestAffinityOfBoxes: a DGX keeps GPU and NIC behind one PCIe switch, a box without switches does not.
func TestAffinityOfBoxes(t *testing.T) {
	answers := func(kind string) map[string]string {
		cat := catalog.Default()
		box, err := build.Host(cat, kind, "n0")
		if err != nil {
			t.Fatal(err)
		}
		g, _, err := build.Cluster{Name: kind, Hosts: []build.Hosts{{Box: box, Names: []string{"n0", "n1", "n2", "n3"}}},
			Fabrics: []build.Fabric{build.Clos{Name: "compute", Leaf: build.Tier{Model: "QM9700"}, Link: ""}}}.Build(cat)
		if err != nil {
			t.Skip(err)
		}
		out := map[string]string{}
		for _, c := range analyze(t, &cluster.Cluster{Graph: g, Catalog: cat}).Checklist {
			out[c.Key] = c.Answer
		}
		return out
	}
	if a := answers("dgx-h100"); a["host.affinity"] != Yes || a["host.nic_per_gpu"] != Yes || a["host.nvlink"] != Yes {
		t.Errorf("dgx-h100: %v", a)
	}
	if a := answers("pcie-8"); a["host.affinity"] != No || a["host.nic_per_gpu"] != No || a["host.nvlink"] != No {
		t.Errorf("pcie-8: %v", a)
	}
}

// BenchmarkAnalyze is the whole report of a three-tier rail fabric of 128-port switches.
func BenchmarkAnalyze(b *testing.B) {
	for _, gpus := range []int{1 << 10, 1 << 13, 1 << 17} {
		b.Run(fmt.Sprintf("%dgpus", gpus), func(b *testing.B) {
			cat := catalog.Default()
			box, err := build.Host(cat, "dgx-h100", "n0")
			if err != nil {
				b.Fatal(err)
			}
			names := make([]string, gpus/8)
			for i := range names {
				names[i] = fmt.Sprintf("n%d", i)
			}
			g, _, err := build.Cluster{Name: "large", Hosts: []build.Hosts{{Box: box, Names: names, PerRack: 4}},
				Fabrics: []build.Fabric{build.Clos{Name: "compute", Rails: true, Tiers: 3, Leaf: build.Tier{Model: "SN5600"}}}}.Build(cat)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				r := analyze(b, &cluster.Cluster{Graph: g, Catalog: cat})
				if r.GPUs != g.Count(topo.GPU) {
					b.Fatal(r.GPUs)
				}
			}
		})
	}
}
