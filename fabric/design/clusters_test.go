package design

import (
	"bytes"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/format"
	"github.com/weft-fabric/weft/model/topo/paths"
)

// parsed reads a cluster file and fails the test if it is refused.
func parsed(t *testing.T, file string) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Parse("c.yaml", []byte(file), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// text prints a report.
func text(t *testing.T, r *Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Text(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestMixedHostsSayTheRatioOfEveryLeaf: H100 and A100 pods have different ratios.
func TestMixedHostsSayTheRatioOfEveryLeaf(t *testing.T) {
	r := analyze(t, parsed(t, "hosts:\n  h[0-31]: dgx-h100\n  a[0-31]: dgx-a100\nfabric: {family: rail, switch: QM9700}\n"))
	leaf := r.Tiers[0]
	if leaf.Ratio != 1 || len(leaf.Switches) != 2 || leaf.Switches[0].Count != 8 || leaf.Switches[1].Ratio != 0.5 {
		t.Errorf("%+v", leaf)
	}
	if s := text(t, r); !strings.Contains(s, "8 at 1:1, 8 at 0.5:1") || !strings.Contains(s, "200 Gb/s to 400 Gb/s") {
		t.Error(s[:2000])
	}
}

// TestNVL72NeedUsesTheNVLinkDomain: eight racks share the gradient over 72 NICs
// each, 0.34 s, not over the four of a host; and the longest path leaves the rack.
func TestNVL72NeedUsesTheNVLinkDomain(t *testing.T) {
	c, err := cluster.Preset("gb200-su", nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Needs.Params = 175e9
	r := analyze(t, c)
	n := r.Need
	if n.Groups != 8 || n.GroupGPUs != 72 || n.NICs != 72 || math.Abs(n.ShardedSeconds-0.340) > 0.001 {
		t.Errorf("%d groups of %d GPUs and %d NICs: %.3f s over the network", n.Groups, n.GroupGPUs, n.NICs, n.ShardedSeconds)
	}
	if inside := 2 * 71.0 / 72 * 700e9 / 900e9; math.Abs(n.InsideSeconds-inside) > 1e-6 || n.Seconds != n.InsideSeconds {
		t.Errorf("inside a rack %.3f s, want %.3f; %.3f in all", n.InsideSeconds, inside, n.Seconds)
	}
	v, err := look(c.Graph)
	if err != nil {
		t.Fatal(err)
	}
	var domain [2]int32
	for i, name := range []string{r.Paths.WorstFrom, r.Paths.WorstTo} {
		id, err := c.Graph.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		domain[i] = v.domain[c.Graph.Nodes[id].Host]
	}
	if domain[0] == domain[1] {
		t.Errorf("the longest path, %s to %s, stays in one NVLink domain", r.Paths.WorstFrom, r.Paths.WorstTo)
	}
}

// TestLatencyAgreesWithPaths: design and `weft topo paths` say the same of the same two ends.
func TestLatencyAgreesWithPaths(t *testing.T) {
	for _, f := range families {
		c, err := cluster.Preset(f.preset, f.params)
		if err != nil {
			t.Fatal(err)
		}
		r := analyze(t, c)
		if len(r.Latency.Terms) == 0 {
			continue
		}
		a, errA := c.Graph.Lookup(r.Latency.From)
		b, errB := c.Graph.Lookup(r.Latency.To)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		found, err := paths.Between(c.Graph, a, b, c.Catalog)
		if err != nil {
			t.Fatal(err)
		}
		sum, match := 0.0, false
		for _, term := range r.Latency.Terms {
			sum += term.Micros
		}
		for _, p := range found {
			match = match || math.Abs(p.Latency.Microseconds()-r.Latency.Total) < 1e-9
		}
		if !match || math.Abs(sum-r.Latency.Total) > 1e-6 {
			t.Errorf("%s: %.3f us, terms add up to %.3f, paths gives %v", f.preset, r.Latency.Total, sum, found[0].Latency)
		}
	}
}

// TestLongestPathIsTheSlowest: of paths with equally many switches the one through
// the slower hosts counts.
func TestLongestPathIsTheSlowest(t *testing.T) {
	c := parsed(t, "hosts:\n  g[1-12]: hgx-h100\n  old[1-4]: dgx-a100\nfabric: {family: fat-tree, switch: SN5600, leaves: 2}\n")
	r := analyze(t, c)
	for _, from := range []string{"g1:gpu0", "old1:gpu0"} {
		for _, to := range []string{"g12:gpu1", "old4:gpu7"} {
			a, errA := c.Graph.Lookup(from)
			b, errB := c.Graph.Lookup(to)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			found, err := paths.Between(c.Graph, a, b, c.Catalog)
			if err != nil {
				t.Fatal(err)
			}
			if got := plainest(found).Latency.Microseconds(); got > r.Latency.Total+1e-9 {
				t.Errorf("%s to %s takes %.2f us, the longest path %.2f", from, to, got, r.Latency.Total)
			}
		}
	}
}

// TestCablesHaveTheirOwnLengths: a link inside a rack is quicker than one to a spine.
func TestCablesHaveTheirOwnLengths(t *testing.T) {
	r := analyze(t, example(t, "../../examples/rail-1k.yaml"))
	var names []string
	for _, term := range r.Latency.Terms {
		names = append(names, term.Name)
	}
	all := strings.Join(names, "; ")
	for _, want := range []string{"2 x ndr link of 20 m", "2 x ndr link of 30 m", "4 x PCIe switch"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s lacks %q", all, want)
		}
	}
}

// TestPiecesAreSaidFirst: two switches that nothing joins.
func TestPiecesAreSaidFirst(t *testing.T) {
	r := analyze(t,
		parsed(t,
			"hosts: {\"n[0-3]\": dgx-a100}\nswitches: {\"s[0-1]\": QM8790}\nlinks:\n  - [\"n[0-1]:nic0\", s0]\n  - [\"n[2-3]:nic0\", s1]\n"))
	if r.Pieces == nil || r.Pieces.Count != 2 || r.Pieces.HostsCutOff != 2 || r.BisectionRate != 0 {
		t.Fatalf("%+v, bisection %g", r.Pieces, r.BisectionRate)
	}
	lines := strings.Split(text(t, r), "\n")
	if !strings.HasPrefix(lines[5], "THE FABRIC IS IN 2 PIECES: 2 hosts of 4 do not reach the rest") {
		t.Error(lines[5])
	}
	if s, _, _ := strings.Cut(text(t, r), "Counts"); strings.Contains(s, "1:1") || strings.Contains(s, " us\n") {
		t.Errorf("the summary looks healthy:\n%s", s)
	}
	var page bytes.Buffer
	if err := r.HTML(&page, ""); err != nil || !strings.Contains(page.String(), `class="alarm">THE FABRIC IS IN 2 PIECES`) {
		t.Errorf("the page does not say it: %v", err)
	}
	if whole := analyze(t, example(t, "../../examples/two-fabrics.yaml")); whole.Pieces != nil {
		t.Errorf("two fabrics that every host is in are no pieces: %+v", whole.Pieces)
	}
}

// TestOneNICHostLosesAllWithItsCable: 0%, not 100%.
func TestOneNICHostLosesAllWithItsCable(t *testing.T) {
	r := analyze(t, parsed(t, "hosts: {\"n[0-3]\": dgx-a100}\nswitches: {s0: QM8790}\nlinks:\n  - [\"n[0-3]:nic0\", s0]\n"))
	l, ok := r.loss("host cable")
	if !ok || l.HostLeft != 0 || l.HostsCutOff != 1 || l.GPUsCutOff != 8 {
		t.Errorf("%+v", l)
	}
	if v := r.Redundancy[0]; v.Answer != No || !strings.Contains(v.Evidence, "0% of that host's rate left") {
		t.Errorf("%+v", v)
	}
}

// TestUnstatedRatesAreNoFacts: Slurm names cables without rates.
func TestUnstatedRatesAreNoFacts(t *testing.T) {
	d, err := format.Find("slurm")
	if err != nil {
		t.Fatal(err)
	}
	g, err := d.Decode("fabric", []byte("SwitchName=s0 Nodes=n[0-3]\nSwitchName=s1 Nodes=n[4-7]\nSwitchName=top Switches=s[0-1]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Analyze(&cluster.Cluster{Graph: g}); err == nil || !strings.Contains(err.Error(), "10 links") ||
		!strings.Contains(err.Error(), "not stated") {
		t.Errorf("%v", err)
	}
	r := analyze(t, &cluster.Cluster{Graph: g.WithClass(catalog.Default().Links["ndr"].Class(0))})
	if r.Sizes.NICRate != 50e9 || r.Oversubscription != 4 {
		t.Errorf("%g bytes/s, %g:1", r.Sizes.NICRate, r.Oversubscription)
	}
}

// TestDefaultsAreMeasured: failure rates, rents and prices name their year and source.
func TestDefaultsAreMeasured(t *testing.T) {
	r := preset(t, "superpod-h100", nil)
	if f := r.failure("gpu"); f.Rate < 0.10 || f.Rate > 0.12 || !strings.Contains(f.Source, "Llama 3 (2024)") {
		t.Errorf("%+v", f)
	}
	// The rates put together give what was measured: 16,384 GPUs, 2,048 hosts, 268+14+7 stops in 54 days.
	for part, want := range map[string]float64{"gpu": 268.0 / 16_384, "host": 14.0 / 2048, "nic": 7.0 / 16_384} {
		if got := cluster.DefaultNeeds().FailureRates[part] * 54 / 365; math.Abs(got/want-1) > 0.02 {
			t.Errorf("%s: %g in 54 days, measured %g", part, got, want)
		}
	}
	if e := r.Economics; e.CloudPrice > 5 || !strings.Contains(e.CloudSource, "2026-05") {
		t.Errorf("rent $%g, %s", e.CloudPrice, e.CloudSource)
	}
	dated := regexp.MustCompile(`^20\d\d-\d\d$`)
	for _, it := range r.Bill {
		if it.UnitUSD > 0 && (!dated.MatchString(it.Date) || it.Source == "") {
			t.Errorf("%+v", it)
		}
	}
}

// TestTransceiversByCage counts the twin-port cages of NVIDIA's four-unit H100
// SuperPOD: 32 in each of 48 switches, four in each DGX, one for each port of
// the fabric managers.
func TestTransceiversByCage(t *testing.T) {
	r := preset(t, "superpod-h100", map[string]int{"su": 4})
	if want := 48*32 + 127*4 + 4; r.Optics.Transceivers != want {
		t.Errorf("%d transceivers, want %d: %+v", r.Optics.Transceivers, want, r.Optics.Choices)
	}
}

// TestRacksHoldServiceHosts: storage servers stand somewhere, too.
func TestRacksHoldServiceHosts(t *testing.T) {
	file := `
kinds:
  store:
    devices:
      cpu0: {kind: cpu}
      root0: {kind: root-port, parent: cpu0}
      nic0: {kind: nic, model: ConnectX-7, parent: root0, link: pcie5, storage: true}
hosts:
  "n[0-7]": {kind: dgx-h100, rack: 4}
  "s[0-7]": {kind: store, rack: 4}
fabrics:
  compute: {family: rail, switch: QM9700}
  storage: {family: fat-tree, switch: QM9700, service: true}
`
	r := analyze(t, parsed(t, file))
	if r.Sizes.Racks != 4 || r.ServiceHosts != 8 {
		t.Errorf("%d racks, %d service hosts; want 4 and 8", r.Sizes.Racks, r.ServiceHosts)
	}
}

// TestReportSpeaksPlainly: no names that only the authors know, and no model that nobody asked about.
func TestReportSpeaksPlainly(t *testing.T) {
	inside := regexp.MustCompile(`\bS[0-4]\b|document|175B`)
	for _, f := range families {
		r := preset(t, f.preset, f.params)
		s := text(t, r)
		if m := inside.FindString(s); m != "" {
			t.Errorf("%s: the report says %q", f.preset, m)
		}
		for _, word := range []string{"stretch", " ways ", "longest way", "the one over the other"} {
			if strings.Contains(s, word) {
				t.Errorf("%s: the report says %q", f.preset, word)
			}
		}
		r.Textbook = NewTextbook(catalog.Default(), 3)
		if s := text(t, r); !strings.Contains(s, "Worked figures of introductory texts") || regexp.MustCompile(`\bS[0-4]\b`).MatchString(s) {
			t.Errorf("%s: the textbook section is missing or speaks in numbers", f.preset)
		}
	}
	c := example(t, "../../examples/rail-1k.yaml")
	c.Needs.Params = 70e9
	if s := text(t, analyze(t, c)); !strings.Contains(s, "Reducing the gradients of 70B parameters") {
		t.Error("a model that is asked about is not judged")
	}
}

// TestChipsHaveNoSwitches keeps the summary of a torus short.
func TestChipsHaveNoSwitches(t *testing.T) {
	r := preset(t, "tpu-v4", map[string]int{"x": 4, "y": 4, "z": 4})
	if s := text(t, r); strings.Contains(s, "0 leaf") {
		t.Error("a torus of chips is said to have 0 leaf switches")
	}
	if g := r.Endpoint; g != "chip" {
		t.Error(g)
	}
}
