package cases

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"github.com/weft-fabric/weft/predict/sim"
)

var update = flag.Bool("update", false, "rewrite docs/reference/tables/reference-cases.md")

// TestCases computes every case. A case fails if ours leaves the bounds that its
// closed form sets, or if its cause does not fit the figures: a figure within a tenth agrees.
func TestCases(t *testing.T) {
	list, err := computed()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range list {
		t.Run(c.ID, func(t *testing.T) {
			guide, ours := c.Figures()
			t.Logf("%s: guide %s, ours %s (%s): %s. %s", c.Claim, guide, ours, c.How, c.Verdict(), c.Why)
			if seen[c.ID] {
				t.Error("two cases have this id")
			}
			seen[c.ID] = true
			if !(c.Ours >= c.Bounds.Low*(1-1e-9) && c.Ours <= c.Bounds.High*(1+1e-9)) {
				t.Errorf("ours is %g %s, outside %g to %g (%s)", c.Ours, c.Unit, c.Bounds.Low, c.Bounds.High, c.Closed)
			}
			if c.Right() != (c.Cause == Agrees) {
				t.Errorf("guide %s, ours %s: the cause %q does not fit", guide, ours, c.Cause)
			}
			if c.Claim == "" || c.Why == "" || c.How == "" || c.Closed == "" || c.Unit == "" {
				t.Error("a field is empty")
			}
		})
	}
}

// TestExamples holds the boxes of the comparison and the torus to the example
// files: the same graph, and the best that the simulator finds on it is what the case says.
func TestExamples(t *testing.T) {
	list, err := computed()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ name, text, id string }{
		{"pcie", pcieFile, "links-5.2-pcie"}, {"cube-mesh", meshFile, "links-5.2-mesh"}, {"nvswitch", switchFile, "links-5.2-nvswitch"},
		{"torus", torusFile, "clusters-4-torus-shape"},
	} {
		t.Run(x.name, func(t *testing.T) {
			data, err := os.ReadFile("../../examples/collective-" + x.name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			want, err := cluster.Parse(x.name, data, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := cluster.Parse(x.name, []byte(x.text), nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want.Graph.Nodes, got.Graph.Nodes); d != "" {
				t.Errorf("nodes differ from the example's:\n%s", d)
			}
			if d := cmp.Diff(want.Graph.Links, got.Graph.Links); d != "" {
				t.Errorf("links differ from the example's:\n%s", d)
			}
			if x.name == "torus" && !bounded.Long() {
				return // a search over 1,024 GPUs takes 5 s of a processor
			}
			found, err := sim.Best(want.Graph, sched.AllReduce, want.Graph.Count(topo.GPU), unit.GB, sim.Options{}, sim.Wish{NoSwitches: true})
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(list, func(c Case) bool { return c.ID == x.id })
			if i < 0 {
				t.Fatalf("no case %s", x.id)
			}
			if best := ms(found.Result.Time); best > list[i].Ours*1.001 || best < list[i].Ours*0.99 {
				t.Errorf("%s takes %g ms; the case has %g", found.Program.Name, best, list[i].Ours)
			}
		})
	}
}

// TestPage holds docs/reference/tables/reference-cases.md to what the package computes.
func TestPage(t *testing.T) {
	list, err := computed()
	if err != nil {
		t.Fatal(err)
	}
	const file = "../../docs/reference/tables/reference-cases.md"
	page := Page(list)
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(have), page); d != "" {
		t.Errorf("docs/reference/tables/reference-cases.md is not what the cases give; go test ./internal/cases -run Page -update rewrites it:\n%s",
			d)
	}
}

// computed is All, computed once for all tests.
var computed = sync.OnceValues(All)

// A figure is printed in the unit of its chain that suits it.
func TestFigures(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{{27890, "ms", "27.9 s"}, {111.1, "ms", "111 ms"}, {8e-4, "GB/s", "0.8 MB/s"}, {112000, "Tb/s", "112 Pb/s"}, {9.52, "x", "9.52x"},
		{0, "B", "0 B"}, {1436, "ms", "1440 ms"}} {
		if got := amount(c.v, 3, c.unit, scaled(c.v, c.unit)); got != c.want {
			t.Errorf("%g %s prints as %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

// The verdict follows from the figures alone.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		guide Span
		ours  float64
		want  string
	}{
		{is(16), 15.75, "agrees within 2%"}, {is(300), 300, "agrees"}, {Span{1, 2}, 1.5, "agrees"},
		{is(600), 300, "2 times ours: one way taken for both ways"},
		{is(76), 152, "1/2 of ours: one way taken for both ways"}, {Span{2, 5}, 1.94, "agrees within 4%"},
		{is(1), 0, "ours is none: one way taken for both ways"},
	} {
		x := Case{Guide: c.guide, Ours: c.ours, Cause: BothWays}
		if got := x.Verdict(); got != c.want {
			t.Errorf("guide %v, ours %g: %q, want %q", c.guide, c.ours, got, c.want)
		}
	}
}

// A lab that has failed makes nothing up and does not panic: the first error is
// what All reports.
func TestFailedLab(t *testing.T) {
	first := errors.New("first")
	for _, entries := range [][]entry{layersGuide(), clustersGuide(), linksGuide(), modelsGuide(), transfersGuide()} {
		for _, e := range entries {
			l := newLab()
			l.err = first
			e.ours(l)
			if e.also != nil {
				e.also(l)
			}
			if l.err != first {
				t.Errorf("%s: %v took the place of the first error", e.id, l.err)
			}
		}
	}
	l := newLab()
	l.wire(l.preset("no-such-preset", nil), l.ring(8), unit.GB)
	if l.err == nil || !strings.Contains(l.err.Error(), "no-such-preset") {
		t.Errorf("an unknown preset gives %v", l.err)
	}
}
