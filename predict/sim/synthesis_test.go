package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// On random meshes and random trees of switches, and on a ring and a mesh with a weak link, trees reach the
// bound, the program of them is proven, and its simulated time for 1 GiB is
// within 2% of the bound with enough pieces, and never below it.
func TestSynthesisedReachesTheBound(t *testing.T) {
	seed := uint64(7)
	if s := os.Getenv("WEFT_TEST_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	list := []string{
		"r0 - r1 12\nr1 - r2 25\nr2 - r3 25\nr3 - r0 25\n",
		"r0 - r2 64\nr0 - r3 64\nr1 - r2 64\nr1 - r3 64\nr2 - r3 64\n",
	}
	for range 3 {
		var b strings.Builder
		n := 3 + rng.IntN(2)
		for v := 1; v < n; v++ {
			fmt.Fprintf(&b, "r%d - r%d %d\n", rng.IntN(v), v, 10+10*rng.IntN(3))
		}
		fmt.Fprintf(&b, "r0 - r%d 20\n", n-1)
		list = append(list, b.String())
	}
	// The same with switches, ranks on a tree of them. Between two ranks there is one way: where
	// there are several, of different widths, messages between them take the shortest only.
	for range 3 {
		var b strings.Builder
		n, switches := 3+rng.IntN(2), 1+rng.IntN(2)
		for v := 1; v < switches; v++ {
			fmt.Fprintf(&b, "s%d - s%d %d\n", rng.IntN(v), v, 20+20*rng.IntN(2))
		}
		for v := range n {
			fmt.Fprintf(&b, "r%d - s%d %d\n", v, v%switches, 20+10*rng.IntN(2))
		}
		list = append(list, b.String())
	}
	// And with both: a direct link beside a switch, ways of different length and width.
	list = append(list, "r0 - r1 10\nr0 - s 10\nr1 - s 10\n", "r0 - r1 30\nr0 - s 10\nr1 - s 10\nr2 - s 10\n")
	for range 3 {
		list = append(list, mixedLinks(rng))
	}
	for i, text := range list {
		net, err := synth.Read("mesh", text)
		if err != nil {
			t.Fatal(err)
		}
		g, gpus, ok := net.Graph()
		if !ok {
			t.Fatalf("%s has no graph", text)
		}
		for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce} {
			p, err := net.Make(op, 0, synth.Wish{})
			if err != nil {
				t.Fatal(err)
			}
			if p.Share() != 1 {
				t.Errorf("seed %d, %d %s: trees reach %g of the bound", seed, i, op, p.Share())
			}
			s, err := Synthesise(g, gpus, op, unit.GiB, Options{}, SynthWish{Pieces: 400, Split: true})
			if err != nil {
				t.Fatal(err)
			}
			if share := float64(s.Result.AlgBW / s.Plan.Bound.Rate); share < 0.98 || share > 1.000001 {
				t.Errorf("seed %d, %d %s: %s reaches %.4f of the bound\n%s", seed, i, op, s.Form, share, text)
			}
			few, err := p.Program("synth", 2, 0)
			if err == nil {
				_, err = verify.Program(few)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// mixedLinks draws 3 or 4 ranks with one or two switches and direct links between some.
func mixedLinks(rng *rand.Rand) string {
	var b strings.Builder
	n, switches := 3+rng.IntN(2), 1+rng.IntN(2)
	for v := range n {
		fmt.Fprintf(&b, "r%d - s%d %d\n", v, rng.IntN(switches), 10+10*rng.IntN(3))
	}
	for s := 1; s < switches; s++ {
		fmt.Fprintf(&b, "s0 - s%d %d\n", s, 20+10*rng.IntN(3))
	}
	for range 1 + rng.IntN(2) {
		a := rng.IntN(n)
		fmt.Fprintf(&b, "r%d - r%d %d\n", a, (a+1)%n, 10+10*rng.IntN(2))
	}
	return b.String()
}

// Once it is to stop, the best form so far is kept and the answer says that others were left out.
func TestStoppedSynthesis(t *testing.T) {
	net, err := synth.Read("ring", "r0 - r1 3\nr1 - r2 25\nr2 - r3 25\nr3 - r0 25\n")
	if err != nil {
		t.Fatal(err)
	}
	g, gpus, _ := net.Graph()
	forms := 0
	wish := SynthWish{Tell: func(string) { forms++ }, Stop: func() bool { return forms > 1 }}
	s, err := Synthesise(g, gpus, sched.AllReduce, 16*unit.MiB, Options{}, wish)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Stopped || s.Result == nil || forms != 2 || len(s.Tried) != 2 {
		t.Errorf("stopped %t after %d forms, %d tried, kept %q", s.Stopped, forms, len(s.Tried), s.Form)
	}
}

// One dead link of a cube mesh: found without being asked for, as it saves more than 5%.
func TestAutoSynthesises(t *testing.T) {
	net, err := synth.Read("ring", "r0 - r1 3\nr1 - r2 25\nr2 - r3 25\nr3 - r0 25\n")
	if err != nil {
		t.Fatal(err)
	}
	g, _, _ := net.Graph()
	f, err := Best(g, sched.AllReduce, 4, 64*unit.MiB, Options{}, Wish{})
	if err != nil {
		t.Fatal(err)
	}
	if f.Program.Name != "synth" {
		t.Errorf("the fastest is %s, %s: %v", f.Program.Name, f.Result.Time, f.Tried)
	}
	if f, err = Best(g, sched.AllReduce, 4, 64*unit.MiB, Options{}, Wish{Plain: true}); err != nil || f.Program.Name == "synth" {
		t.Errorf("made for the machine although not wanted: %v", err)
	}
}

// Where the fabric carries a third of what its hosts send, a block comes once to the hosts of a leaf and is passed
// on there. Ranks that are alike do the same at the same time, and pairs of channels take the narrow links in
// turn: more of the bound than a ring reaches, 92%. In an order of their own for each rank it was 42%.
func TestNarrowFabric(t *testing.T) {
	built, err := build.BuildPreset(catalog.Default(), "fat-tree", map[string]int{"hosts": 12, "down": 3, "up": 1})
	if err != nil {
		t.Fatal(err)
	}
	var gpus []topo.NodeID
	built.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	net, err := Net(built.Graph, gpus, Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := net.Make(sched.AllGather, 0, synth.Wish{Loss: DefaultLoss})
	if err != nil {
		t.Fatal(err)
	}
	prog, err := p.Ordered("synth", 8, 4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Right(prog); err != nil {
		t.Fatal(err)
	}
	res, err := Run(built.Graph, []Job{{Program: prog, Size: unit.GiB, Place: gpus}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if share := float64(res.AlgBW / p.Bound.Rate); share < 0.9 || share > 1 {
		t.Errorf("%d trees of %d hops reach %.3f of the bound", len(p.Ways), p.Height(), share)
	}
}

// Of many ranks few pieces are simulated. A round of theirs has transfers enough to keep all links busy, if links
// are booked one after another: two pieces reach 86% of the bound, and 59% in stages (2026-11-17).
func TestFewPiecesOfManyRanks(t *testing.T) {
	built, err := build.BuildPreset(catalog.Default(), "rail", map[string]int{"hosts": 16})
	if err != nil {
		t.Fatal(err)
	}
	var gpus []topo.NodeID
	built.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	net, err := Net(built.Graph, gpus, Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := net.Make(sched.AllGather, 0, synth.Wish{Loss: DefaultLoss})
	if err != nil {
		t.Fatal(err)
	}
	share := map[string]float64{}
	for how, write := range map[string]func(string, int, int) (*sched.Program, error){"ordered": p.Ordered, "booked": p.Booked} {
		prog, err := write("synth", 1, 4)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := verify.Right(prog); err != nil {
			t.Fatal(err)
		}
		res, err := Run(built.Graph, []Job{{Program: prog, Size: unit.GiB, Place: gpus}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		share[how] = float64(res.AlgBW / p.Bound.Rate)
	}
	t.Logf("%v", share)
	if share["booked"] < 0.85 || share["booked"] > 1 || share["booked"] < share["ordered"] {
		t.Errorf("of the bound: %v", share)
	}
}

// Boxes with a fast switch inside and a slow one that joins them: two ranks of a box meet in both, and what they send one another
// must not take the slow one, which the boxes need among themselves.
func TestBoxesBehindOneSwitch(t *testing.T) {
	for _, b := range [][4]int{{2, 4, 300, 25}, {3, 3, 240, 40}} {
		text := ""
		for r := range b[0] * b[1] {
			text += fmt.Sprintf("r%d - box%d %d\nr%d - net %d\n", r, r/b[1], b[2], r, b[3])
		}
		net, err := synth.Read("boxes", text)
		if err != nil {
			t.Fatal(err)
		}
		g, gpus, _ := net.Graph()
		for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce} {
			s, err := Synthesise(g, gpus, op, unit.GiB, Options{}, SynthWish{Loss: DefaultLoss})
			if err != nil {
				t.Fatal(err)
			}
			if share := float64(s.Result.AlgBW / s.Plan.Bound.Rate); share < 0.95 || share > 1.000001 {
				t.Errorf("%v %s: %s reaches %.4f of the bound", b, op, s.Form, share)
			}
		}
	}
}

// What would take long to simulate is not simulated where the wish says so, and the answer names it.
func TestSynthesisLeavesOutWhatTakesLong(t *testing.T) {
	c, err := cluster.Preset("rail", map[string]int{"hosts": 2})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Synthesise(c.Graph, c.Graph.First(topo.GPU, 12), sched.AllReduce, unit.MiB, Options{Catalog: c.Catalog},
		SynthWish{Loss: DefaultLoss, Most: 500})
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, x := range s.Tried {
		if x.Why == "its messages take long to simulate" {
			left++
		}
	}
	if left == 0 || s.Result.Actions > 500 {
		t.Errorf("%d forms were left out; the one taken has %d actions", left, s.Result.Actions)
	}
}

// Boxes of ranks that one network switch joins: the link into the box and the one out of it are both kept busy, and blocks of an all-to-all
// pass straight.
func TestBoxesBehindOneSwitchReachTheBound(t *testing.T) {
	for _, c := range []struct {
		graph linkGraph
		op    sched.Collective
		least float64
	}{
		{boxGraph("4 boxes of 8, one switch", 4, 8, 1, 100, 50, -1, -1), sched.AllReduce, 0.95},
		{boxGraph("2 boxes of 6, one switch", 2, 6, 1, 100, 40, -1, -1), sched.AllToAll, 0.99},
		{boxGraph("2 boxes of 4, one switch", 2, 4, 1, 10, 1, -1, -1), sched.AllToAll, 0.99},
		{boxGraph("2 boxes of 6, two rails", 2, 6, 2, 300, 25, -1, -1), sched.AllToAll, 0.92},
	} {
		if share, why := shareOf(t, c.graph, c.op); share < c.least {
			t.Errorf("%s, %s: %.1f%% of the bound, want %.0f%%: %s", c.graph.name, c.op, 100*share, 100*c.least, why)
		}
	}
}
