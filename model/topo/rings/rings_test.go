package rings

import (
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// near fails unless got is within share of want.
func near(t testing.TB, what string, got unit.Rate, want, share float64) {
	t.Helper()
	if g := float64(got) / 1e9; math.Abs(g-want) > share*want {
		t.Errorf("%s: %.1f GB/s, want %.1f within %.0f%%", what, g, want, share*100)
	}
}

func TestMeasuredOnTheV100CubeMesh(t *testing.T) {
	g := dgx1V(t)
	for _, c := range []struct {
		set      []int
		rings    int
		measured float64
	}{
		{[]int{0, 1}, 1, 22.6},
		{[]int{0, 1, 2, 3}, 4, 85.4},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7}, 6, 134.5},
	} {
		r := find(t, g, gpus(t, g, c.set...))
		if len(r.Rings) != c.rings || !r.Exact || r.Medium != NVLink {
			t.Errorf("%v: %d rings over %s, exact %t; want %d, proven", c.set, len(r.Rings), r.Medium, r.Exact, c.rings)
		}
		near(t, "wire", r.RingBus, 25*float64(c.rings), 1e-9)
		near(t, "expected", r.RingExpected, 22.4*float64(c.rings), 1e-9)
		near(t, "measured", r.RingExpected, c.measured, 0.06)
	}
}

func TestNVSwitchBoxesAsNVIDIAShowsThem(t *testing.T) {
	for _, c := range []struct {
		name   string
		g      *topo.Graph
		rings  int
		wire   float64
		figure float64
	}{
		{"A100", striped(t, 8, "pcie4", "nvlink3", 2, 2, 2, 2, 2, 2), 12, 300, 232},
		{"H100", striped(t, 8, "pcie5", "nvlink4", 5, 4, 4, 5), 18, 450, 370},
		{"B200", striped(t, 8, "pcie5", "nvlink5", 9, 9), 18, 900, 700},
	} {
		for n := 2; n <= 8; n++ {
			set := gpus(t, c.g)[:n]
			r := find(t, c.g, set)
			if r.Medium != NVSwitch || len(r.Rings) != c.rings || !r.Exact || r.Best() != "ring" {
				t.Errorf("%s: %d rings over %s, exact %t, best %s", c.name, len(r.Rings), r.Medium, r.Exact, r.Best())
			}
			near(t, c.name+" wire", r.RingBus, c.wire, 1e-5)
			near(t, c.name, r.RingExpected, c.figure, 1e-5)
			near(t, c.name+" trees", r.TreeBus, c.wire, 1e-5)
		}
	}
}

func TestRackOf72(t *testing.T) {
	b := topo.NewBuilder("nvl72")
	link, err := catalog.Default().Link("nvlink5")
	if err != nil {
		t.Fatal(err)
	}
	class := b.Class(link.Class(0))
	var all []topo.NodeID
	for h := range 18 {
		host := b.Host(topo.Host{Name: "n" + string(rune('a'+h))})
		for i := range 4 {
			all = append(all, b.Node(topo.Part(topo.GPU, host, "gpu"+string(rune('0'+i)))))
		}
	}
	for s := range 18 {
		n := b.Node(topo.Part(topo.NVSwitch, topo.None, "nvs"+string(rune('a'+s))))
		for _, gpu := range all {
			b.Link(topo.Link{A: gpu, B: n, Class: class})
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	r := find(t, g, gpus(t, g))
	if len(r.Rings) != 18 || !r.Exact || len(r.Others) != 0 {
		t.Errorf("%d rings, exact %t", len(r.Rings), r.Exact)
	}
	near(t, "wire", r.RingBus, 900, 1e-5)
}

// The boards of a DGX-2 are joined by 48 links, a ring needs one each way: all
// of a GPU's six links are used. With thinner trunks they limit.
func TestTrunkBetweenBoards(t *testing.T) {
	g := dgx2(t, 8)
	r := find(t, g, gpus(t, g))
	near(t, "16 GPUs", r.RingBus, 150, 1e-5)
	if len(r.Rings) != 6 || !r.Exact || !strings.Contains(r.Why, "6 links into the switches") {
		t.Errorf("%d rings, exact %t, %s", len(r.Rings), r.Exact, r.Why)
	}
	r = find(t, g, gpus(t, g, 7, 0, 12, 3)) // in any order given
	near(t, "4 GPUs", r.RingBus, 150, 1e-5)

	thin := newMachine(t, 4, "pcie3", "upi1")
	a, b := thin.part(topo.NVSwitch, "nvs0"), thin.part(topo.NVSwitch, "nvs1")
	for i, gpu := range thin.gpus {
		thin.join(gpu, []topo.NodeID{a, b}[i/2], "nvlink2", 6)
	}
	thin.join(a, b, "nvlink2", 2)
	g = thin.graph()
	r = find(t, g, gpus(t, g))
	near(t, "thin trunk", r.RingBus, 50, 1e-5)
	if !r.Exact || !strings.Contains(r.Why, "reach the others at 50 GB/s") {
		t.Errorf("exact %t, %s", r.Exact, r.Why)
	}
	near(t, "one board", find(t, g, gpus(t, g, 0, 1)).RingBus, 150, 1e-5)
}

// Tillson 1980: the complete digraph of n vertices falls into n-1 directed
// Hamiltonian cycles for every n but 4 and 6.
func TestCompleteMesh(t *testing.T) {
	g := complete(t, 8)
	for n, rings := range map[int]int{2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 6, 8: 7} {
		r := find(t, g, gpus(t, g)[:n])
		if len(r.Rings) != rings || !r.Exact || r.Medium != XGMI {
			t.Errorf("%d GPUs: %d rings over %s, exact %t after %d steps; want %d", n, len(r.Rings), r.Medium, r.Exact, r.Steps, rings)
		}
		if len(r.Trees) != n/2 {
			t.Errorf("%d GPUs: %d trees, want %d", n, len(r.Trees), n/2)
		}
		t.Logf("%d GPUs: %d steps", n, r.Steps)
	}
}

// Every subset of the cube mesh gets an answer, proven.
func TestEverySubsetOfTheCubeMesh(t *testing.T) {
	g := dgx1V(t)
	all := gpus(t, g)
	most := 0
	for mask := 3; mask < 256; mask++ {
		var set []topo.NodeID
		for i, n := range all {
			if mask>>i&1 != 0 {
				set = append(set, n)
			}
		}
		if len(set) < 2 {
			continue
		}
		r := find(t, g, set)
		if !r.Exact {
			t.Errorf("%v: not proven after %d steps: %s", set, r.Steps, r.Why)
		}
		most = max(most, r.Steps)
	}
	t.Logf("at most %d steps", most)
}

func TestNoRingButATree(t *testing.T) {
	g := dgx1V(t)
	r := find(t, g, gpus(t, g, 0, 1, 4)) // 1 ─ 0 ═ 4
	if r.Medium != NVLink || len(r.Rings) != 0 || len(r.Trees) != 1 || r.Best() != "tree" || !r.Exact {
		t.Errorf("%s: %d rings, %d trees, best %s, exact %t", r.Medium, len(r.Rings), len(r.Trees), r.Best(), r.Exact)
	}
	near(t, "tree", r.TreeBus, 25*4/3.0, 1e-6)
	if r.Trees[0].Root != r.GPUs[0] || r.Trees[0].Depth != 1 {
		t.Errorf("root %d, depth %d; want GPU 0 in the middle", r.Trees[0].Root, r.Trees[0].Depth)
	}
	if len(r.Others) != 1 || r.Others[0].Medium != PCIe {
		t.Errorf("others: %v", r.Others)
	}
}

func TestNoNVLinkFallsBackToPCIe(t *testing.T) {
	g := dgx1V(t)
	r := find(t, g, gpus(t, g, 0, 5))
	if r.Medium != PCIe || len(r.Rings) != 1 || !r.Exact || len(r.Others) != 0 {
		t.Errorf("%s: %d rings, exact %t, others %v", r.Medium, len(r.Rings), r.Exact, r.Others)
	}
	near(t, "expected", r.RingExpected, 12, 0.01)
}

// GPUs given in an order that crosses the sockets at every step still get a ring
// that crosses them once, and four GPUs of a PCIe box get its full rate.
func TestPCIeRingFollowsTheTree(t *testing.T) {
	g := newMachine(t, 8, "pcie4", "upi1").graph()
	r := find(t, g, gpus(t, g, 0, 4, 1, 5, 2, 6, 3, 7))
	if !r.Exact || r.Medium != PCIe {
		t.Errorf("exact %t over %s: %s", r.Exact, r.Medium, r.Why)
	}
	near(t, "across sockets", r.RingBus, 20.8, 0.01)
	if !strings.Contains(r.Why, "cpu0 → cpu1") {
		t.Errorf("limit: %s", r.Why)
	}
	r = find(t, g, gpus(t, g, 3, 0, 2, 1))
	near(t, "one socket", r.RingBus, 31.5, 0.01)
	near(t, "one socket, expected", r.RingExpected, 24, 0.01)
	near(t, "one socket, trees", r.TreeBus, 31.5*0.75, 0.01)
}

// Eight sockets in a circle, one GPU each: the ring must go round, not across.
func TestSocketsInACircle(t *testing.T) {
	m := &machine{t: t, c: catalog.Default(), b: topo.NewBuilder("circle")}
	m.host = m.b.Host(topo.Host{Name: "n0"})
	var cpus []topo.NodeID
	for i := range 6 {
		cpus = append(cpus, m.part(topo.CPU, "cpu"+string(rune('0'+i))))
		root := m.part(topo.RootPort, "root"+string(rune('0'+i)))
		gpu := m.part(topo.GPU, "gpu"+string(rune('0'+i)))
		m.join(cpus[i], root, "iomesh", 1)
		m.join(root, gpu, "pcie4", 1)
	}
	circle := []int{0, 3, 1, 4, 2, 5}
	for i, c := range circle {
		m.join(cpus[c], cpus[circle[(i+1)%6]], "upi1", 1)
	}
	g := m.graph()
	r := find(t, g, gpus(t, g))
	near(t, "circle", r.RingBus, 20.8, 0.01)
}

func TestWrongSets(t *testing.T) {
	g := dgx1V(t)
	cpu, err := g.Lookup("n0:cpu0")
	if err != nil {
		t.Fatal(err)
	}
	for want, set := range map[string][]topo.NodeID{
		"at least 2":    gpus(t, g)[:1],
		"named twice":   {gpus(t, g)[0], gpus(t, g)[1], gpus(t, g)[0]},
		"n0:cpu0 is a ": {gpus(t, g)[0], cpu},
		"node number":   {gpus(t, g)[0], 9999},
	} {
		if _, err := Search(g, set, catalog.Default(), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", set, err, want)
		}
	}
	b := topo.NewBuilder("apart")
	for _, h := range []string{"n0", "n1"} {
		b.Node(topo.Part(topo.GPU, b.Host(topo.Host{Name: h}), "gpu0"))
	}
	g, err = b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Search(g, gpus(t, g), catalog.Default(), Options{}); err == nil || !strings.Contains(err.Error(), "different hosts") {
		t.Errorf("two hosts: %v", err)
	}
}

func TestSameArgumentsSameResult(t *testing.T) {
	g := complete(t, 8)
	var first strings.Builder
	if err := find(t, g, gpus(t, g)).Print(&first, g); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		var again strings.Builder
		if err := find(t, g, gpus(t, g)).Print(&again, g); err != nil {
			t.Fatal(err)
		}
		if again.String() != first.String() {
			t.Fatalf("%s\nthen\n%s", first.String(), again.String())
		}
	}
}

func TestPrint(t *testing.T) {
	g := dgx1V(t)
	var b strings.Builder
	if err := find(t, g, gpus(t, g, 0, 1, 2, 3)).Print(&b, g); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4 rings, no more possible: bus 100 GB/s on the wire, 89.6 GB/s expected",
		"gpu0 has 4 links into the set", "3 trees", "over pcie"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing from\n%s", want, b.String())
		}
	}
}

// The JSON form names nodes.
func TestReport(t *testing.T) {
	g := dgx1V(t)
	r := find(t, g, gpus(t, g, 0, 1, 2, 3))
	out := r.Report(g)
	if out.Medium != NVLink || len(out.Rings) != 4 || len(out.Trees) != 3 || len(out.Others) != 1 || out.RingBus != 100e9 ||
		out.GPUs[3] != "n0:gpu3" {
		t.Errorf("%+v", out)
	}
	if e := out.Trees[0].Edges; len(e) != 3 || !strings.HasPrefix(e[0][1], "n0:gpu") {
		t.Errorf("edges %v", e)
	}
}

// Where nobody has measured a generation the result says so and does not guess.
func TestUnmeasuredIsSaid(t *testing.T) {
	c := catalog.Default()
	link := c.Links["nvlink2"]
	link.Efficiency = 0
	c.Links["nvlink2"] = link
	g := dgx1V(t)
	r, err := Search(g, gpus(t, g), c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Unmeasured != "nvlink2" || r.RingExpected != r.RingBus {
		t.Errorf("unmeasured %q, %s of %s", r.Unmeasured, r.RingExpected, r.RingBus)
	}
}
