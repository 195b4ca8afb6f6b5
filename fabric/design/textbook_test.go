package design

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo/catalog"
)

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }

// need settles one for hosts of eight GPUs and eight NICs.
func needOf(params, bytesPer, step float64, ranks, hosts int, rate float64) Need {
	n := Need{Params: params, BytesPer: bytesPer, StepSeconds: step, Ranks: ranks, Groups: hosts, NICs: 8, Group: "host", NICRate: rate}
	n.settle()
	return n
}

// 175B parameters of 4 bytes on 10,000 GPUs, "1.4 TB a step": that is what one
// GPU sends, not the cluster.
func TestTextTenThousandGPUsNeed(t *testing.T) {
	n := needOf(175e9, 4, 1, 10_000, 1250, 50e9)
	if n.Gradient != 700e9 {
		t.Errorf("gradient %g", n.Gradient)
	}
	if !near(n.FlatBytes, 1.4e12, 1e-3) || !near(n.FlatSeconds, 28, 1e-3) {
		t.Errorf("one ring: %g bytes, %g s", n.FlatBytes, n.FlatSeconds)
	}
	if !near(n.ShardedBytes, 175e9, 1e-3) || !near(n.ShardedSeconds, 3.5, 1e-3) || n.ModelParallel != 4 {
		t.Errorf("shared: %g bytes, %g s, %d parts", n.ShardedBytes, n.ShardedSeconds, n.ModelParallel)
	}
	if !strings.HasPrefix(n.Verdict, "does not fit") {
		t.Error(n.Verdict)
	}
	if n := needOf(175e9, 4, 4, 10_000, 1250, 50e9); !strings.HasPrefix(n.Verdict, "fits") || n.ModelParallel != 1 {
		t.Errorf("at 4 s a step: %s", n.Verdict)
	}
}

// 350 GB over 200 Gb/s on 256 GPUs "in 14 ms": it is 28 s.
func TestTextThreeHundredFiftyGigabytesIn28Seconds(t *testing.T) {
	n := needOf(350e9, 1, 1, 256, 32, 25e9)
	if !near(n.FlatSeconds, 27.89, 1e-3) {
		t.Errorf("%g s", n.FlatSeconds)
	}
	c := correction(t, networkText, "14 ms")
	if !strings.HasPrefix(c.Computed, "27.9 s unsharded") || c.Agrees {
		t.Error(c.Computed)
	}
}

// A GPU at 2% a year and 50,000 hours between failures: these differ ninefold.
func TestTextGPUMeanTimeContradictsItsRate(t *testing.T) {
	if c := correction(t, clusterText, "50,000 hours"); c.Computed != "438,000 hours" || c.Agrees {
		t.Error(c.Computed)
	}
	if c := correction(t, clusterText, "200 failures"); !strings.HasPrefix(c.Computed, "200 failures, one every 1.82 days; 50 NICs") ||
		!c.Agrees {
		t.Error(c.Computed)
	}
}

// The checklist has seven groups and 24 items.
func TestChecklistIsWhole(t *testing.T) {
	groups := map[string]int{}
	keys := map[string]bool{}
	for _, c := range checkItems {
		groups[c.Group]++
		keys[c.Key] = true
	}
	if len(checkItems) != 24 || len(keys) != 24 || len(groups) != 7 {
		t.Errorf("%d items, %d keys, %d groups", len(checkItems), len(keys), len(groups))
	}
	want := map[string]int{"topology": 3, "hardware": 3, "host layout": 3, "reliability": 4, "failure handling": 4, "monitoring": 4,
		"tuning": 3}
	for g, n := range want {
		if groups[g] != n {
			t.Errorf("%s has %d items, want %d", g, groups[g], n)
		}
	}
}

// 700 W x 8 x 45 days x $0.10 is $604.80, not $12,000.
func TestTextElectricity(t *testing.T) {
	if got := energy(textWatts, textPCIeDays, textPrice); !near(got, 604.8, 1e-9) {
		t.Errorf("$%g", got)
	}
	if c := correction(t, nvlinkText, "$12,000"); c.Computed != "$604.80" {
		t.Error(c.Computed)
	}
}

// one run is cheapest in the cloud, and owning wins from the second run on
// at the text's own rent.
func TestTextBreakEven(t *testing.T) {
	list, crossings := options(3, catalog.Default())
	if got := list[2].PerRun - textTransfer; got != textCloudRental {
		t.Errorf("rent $%g, the text says $%d", got, textCloudRental)
	}
	if list[2].First != textCloudTotal {
		t.Errorf("cloud, first run: $%g", list[2].First)
	}
	if list[0].First > textPCIeTotal || list[1].First > textDGXTotal {
		t.Error("with the right electricity both machines cost less than the text says")
	}
	if !near(textPCIeTotal-list[0].First, textPCIePower-604.8, 1e-9) || !near(textDGXTotal-list[1].First, textDGXPower-241.92, 1e-9) {
		t.Error("the difference is the electricity alone")
	}
	if crossings[0].Answer != "run 2" {
		t.Errorf("DGX against cloud from %s", crossings[0].Answer)
	}
	if list[1].PerRunOverAll > list[0].PerRunOverAll {
		t.Error("over three years a run on the DGX is cheaper than on the PCIe server")
	}
}

// a million steps of 110 ms take 30.6 hours, and that is right.
func TestTextMillionSteps(t *testing.T) {
	if c := correction(t, trainingText, "30.6 hours"); c.Computed != "30.6 and 55.6 hours" || !c.Agrees {
		t.Error(c.Computed)
	}
	if c := correction(t, trainingText, "110 ms on eight"); c.Computed != "2.05 s or more" {
		t.Error(c.Computed)
	}
}

func correction(t *testing.T, source, part string) Correction {
	t.Helper()
	for _, c := range corrections(catalog.Default()) {
		if c.Source == source && strings.Contains(c.Document, part) {
			return c
		}
	}
	t.Fatalf("no correction of %s about %q", source, part)
	return Correction{}
}

// NVIDIA's published SuperPOD tables, row by row.
func TestSuperPODCounts(t *testing.T) {
	f, err := os.Open("../../../shared/reference/data/superpod_counts.csv")
	if err != nil {
		t.Skip("the reference table is not beside the checkout")
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		generation, _, _ := strings.Cut(row[0], "_")
		var want [9]int
		for i := range want {
			if want[i], err = strconv.Atoi(row[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(fmt.Sprintf("%s/%d", row[0], want[0]), func(t *testing.T) {
			r := preset(t, "superpod-"+strings.ToLower(generation), map[string]int{"su": want[0]})
			got := [9]int{want[0], r.Hosts, r.GPUs, r.Switches.Leaf, r.Switches.Spine, r.Switches.Core, r.Cables.HostLeaf, r.Cables.LeafSpine,
				r.Cables.SpineCore}
			if got != want {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if r.Oversubscription != 1 || !r.Bisection.Agree {
				t.Errorf("oversubscription %g, formula agrees: %v", r.Oversubscription, r.Bisection.Agree)
			}
			if half := float64(r.GPUs/2) * 50e9; r.BisectionRate != half {
				t.Errorf("bisection %g, half of the NICs at full rate %g", r.BisectionRate, half)
			}
		})
	}
}

// DGX B300 with two planes of Ethernet: a cable of 800 Gb/s carries two links.
func TestSuperPODB300CountsCablesNotLinks(t *testing.T) {
	r := preset(t, "superpod-b300", map[string]int{"su": 4})
	if r.Cables.HostLeaf != 2048 || r.Cables.LeafSpine != 2048 {
		t.Errorf("%+v", r.Cables)
	}
	l, ok := r.loss("plane")
	if !ok || l.GPUsCutOff != 0 || l.HostLeft != 0.5 || l.BisectionLeft != 0.5 {
		t.Errorf("one of two planes lost: %+v", l)
	}
	billed := 0
	for _, it := range r.Bill {
		if it.Kind == "cable" {
			billed += it.Count
		}
	}
	if billed != r.Cables.Total() {
		t.Errorf("%d cables billed of %d", billed, r.Cables.Total())
	}
}

// a 3D torus of 4,096 chips. The bisection of 16 x 16 x 16 is 2 x 16^2
// links, that of the text's 4 x 4 x 256 only 2 x 4^2.
func TestTPUv4Bisection(t *testing.T) {
	for _, dims := range [][3]int{{16, 16, 16}, {4, 4, 256}, {4, 4, 4}, {2, 4, 8}} {
		r := preset(t, "tpu-v4", map[string]int{"x": dims[0], "y": dims[1], "z": dims[2]})
		n, k := dims[0]*dims[1]*dims[2], max(dims[0], dims[1], dims[2])
		if want := float64(2*n/k) * 50e9; r.BisectionRate != want || !r.Bisection.Agree {
			t.Errorf("%v: %g, want %g; formula agrees: %v", dims, r.BisectionRate, want, r.Bisection.Agree)
		}
	}
}

// Meta's 24K cluster is built 1:7 at the top.
func TestMeta24KOneToSeven(t *testing.T) {
	r := preset(t, "meta-24k", nil)
	if math.Round(r.Oversubscription) != 7 || !r.Bisection.Agree {
		t.Errorf("%g:1 at the worst tier", r.Oversubscription)
	}
}

// every server reaches several leaves, so that no leaf takes one down.
func TestRailsSurviveALeaf(t *testing.T) {
	r := preset(t, "rail", map[string]int{"hosts": 64})
	l, _ := r.loss("leaf")
	if l.GPUsCutOff != 0 || l.HostLeft != 7.0/8 || l.GPUsDegraded != 32*8 {
		t.Errorf("rails: %+v", l)
	}
	r = preset(t, "fat-tree", map[string]int{"hosts": 64})
	if l, _ = r.loss("leaf"); l.GPUsCutOff == 0 || r.Redundancy[1].Answer != No {
		t.Errorf("one leaf a host: %+v, %+v", l, r.Redundancy[1])
	}
}
