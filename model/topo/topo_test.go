package topo_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/unit"
	"pgregory.net/rapid"
)

var (
	ndr   = topo.Class{Kind: topo.InfiniBand, Gen: "ndr", Lanes: 4, Rate: 50e9, Latency: 100 * unit.Nanosecond}
	pcie5 = topo.Class{Kind: topo.PCIe, Gen: "pcie5", Lanes: 16, Rate: 63e9, Latency: 300 * unit.Nanosecond}
	nv4   = topo.Class{Kind: topo.NVLink, Gen: "nvlink4", Lanes: 2, Rate: 25e9, Latency: 100 * unit.Nanosecond}
)

// box is a small host: gpus GPUs, each on a PCIe switch of its own with a NIC,
// all on one CPU, joined by two NVSwitches.
func box(t testing.TB, gpus int) *topo.Graph {
	b := topo.NewBuilder("box")
	h := b.Host(topo.Host{Name: "box", Pod: topo.None, Rack: topo.None})
	cpu := b.Node(topo.Part(topo.CPU, h, "cpu0"))
	nvs := []topo.NodeID{b.Node(topo.Part(topo.NVSwitch, h, "nvs0")), b.Node(topo.Part(topo.NVSwitch, h, "nvs1"))}
	for i := range gpus {
		gpu := b.Node(topo.Part(topo.GPU, h, fmt.Sprintf("gpu%d", i)))
		pex := b.Node(topo.Part(topo.PCIeSwitch, h, fmt.Sprintf("pex%d", i)))
		nic := topo.Part(topo.NIC, h, fmt.Sprintf("nic%d", i))
		nic.Rail, nic.Fabric = int16(i), topo.None
		n := b.Node(nic)
		b.Link(topo.Link{A: gpu, B: pex, Class: b.Class(pcie5)})
		b.Link(topo.Link{A: n, B: pex, Class: b.Class(pcie5)})
		b.Link(topo.Link{A: pex, B: cpu, Class: b.Class(pcie5)})
		for _, s := range nvs {
			b.Link(topo.Link{A: gpu, B: s, Class: b.Class(nv4), Count: 9})
		}
	}
	return graph(t, b)
}

func graph(t testing.TB, b *topo.Builder) *topo.Graph {
	t.Helper()
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// clos builds hosts on a two- or three-tier rail fabric: pods pods, each with
// a leaf per rail and spines spines, and cores on top if any.
func clos(t testing.TB, pods, hostsPerPod, rails, spines, cores int) *topo.Graph {
	pattern := box(t, rails)
	b := topo.NewBuilder("clos")
	fabric := b.Fabric(topo.Fabric{Name: "compute", Family: topo.Clos})
	sw := func(tier, pod, rail, i int, name string) topo.NodeID {
		n := topo.Part(topo.Switch, topo.None, fmt.Sprintf("%s%d", name, i))
		n.Tier, n.Fabric, n.Pod, n.Rail = uint8(tier), fabric, int32(pod), int16(rail)
		return b.Node(n)
	}
	var leaves, tops [][]topo.NodeID
	for p := range pods {
		var l, s []topo.NodeID
		for r := range rails {
			l = append(l, sw(1, p, r, p*rails+r, "leaf"))
		}
		for i := range spines {
			s = append(s, sw(2, p, topo.None, p*spines+i, "spine"))
			for _, leaf := range l {
				b.Link(topo.Link{A: leaf, B: s[i], Class: b.Class(ndr)})
			}
		}
		leaves, tops = append(leaves, l), append(tops, s)
	}
	for c := range cores {
		core := sw(3, topo.None, topo.None, c, "core")
		for p := range pods {
			b.Link(topo.Link{A: tops[p][c%spines], B: core, Class: b.Class(ndr)})
		}
	}
	for h := range pods * hostsPerPod {
		pod := h / hostsPerPod
		_, first := b.Stamp(pattern, topo.Host{Name: fmt.Sprintf("n%d", h), Pod: int32(pod), Rack: topo.None})
		for i, n := range pattern.Nodes {
			if n.Kind == topo.NIC {
				b.At(first + topo.NodeID(i)).Fabric = fabric
				b.Link(topo.Link{A: first + topo.NodeID(i), B: leaves[pod][n.Rail], Class: b.Class(ndr)})
			}
		}
	}
	return graph(t, b)
}

func lookup(t testing.TB, g *topo.Graph, name string) topo.NodeID {
	t.Helper()
	n, err := g.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// follow checks that a way leads from one node to another, every share of the
// flow arriving once, and gives the names it passes on a single path.
func follow(t testing.TB, g *topo.Graph, f topo.Flow, way []topo.Use) []string {
	t.Helper()
	at := map[topo.NodeID]float64{f.From: 1}
	names := []string{g.NodeName(f.From)}
	for _, u := range way {
		from, to := g.Links[u.Link].Ends(u.Forward)
		if at[from] < float64(u.Share)-1e-5 {
			t.Fatalf("link %s carries %g but only %g is at %s", g.LinkName(u.Link), u.Share, at[from], g.NodeName(from))
		}
		at[from] -= float64(u.Share)
		at[to] += float64(u.Share)
		names = append(names, g.NodeName(to))
	}
	if math.Abs(at[f.To]-1) > 1e-4 {
		t.Fatalf("%g of the flow from %s arrives at %s: %v", at[f.To], g.NodeName(f.From), g.NodeName(f.To), names)
	}
	return names
}

func route(t testing.TB, g *topo.Graph, f topo.Flow) []string {
	t.Helper()
	way, err := g.Route(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, g, f, way)
}

func TestNaturalOrder(t *testing.T) {
	sorted := []string{"a", "leaf2", "leaf10", "n0", "n00", "n1", "n2x", "n10", "n10a2", "n10a10"}
	for i := range sorted {
		for j := range sorted {
			if got, want := topo.Natural(sorted[i], sorted[j]), compareInt(i, j); got != want {
				t.Errorf("Natural(%q, %q) = %d, want %d", sorted[i], sorted[j], got, want)
			}
		}
	}
}

func compareInt(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// The same elements in any order of insertion make the same graph.
func TestCanonicalOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		names := []string{"n10", "n2", "n1"}
		build := func(shuffle bool) *topo.Graph {
			b := topo.NewBuilder("x")
			fabric := b.Fabric(topo.Fabric{Name: "f", Family: topo.Clos})
			order := []int{0, 1, 2}
			if shuffle {
				rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
			}
			leaf := topo.Part(topo.Switch, topo.None, "leaf")
			leaf.Tier, leaf.Fabric = 1, fabric
			l := b.Node(leaf)
			for _, i := range order {
				h := b.Host(topo.Host{Name: names[i]})
				nic := topo.Part(topo.NIC, h, "nic0")
				nic.Fabric = fabric
				a, c := b.Node(nic), b.Node(topo.Part(topo.GPU, h, "gpu0"))
				if shuffle {
					b.Link(topo.Link{A: c, B: a, Class: b.Class(pcie5)})
					b.Link(topo.Link{A: l, B: a, APort: uint16(i + 1), Class: b.Class(ndr)})
				} else {
					b.Link(topo.Link{A: a, B: l, BPort: uint16(i + 1), Class: b.Class(ndr)})
					b.Link(topo.Link{A: a, B: c, Class: b.Class(pcie5)})
				}
				b.Attr(c, topo.Attrs{"busid": names[i]})
			}
			g, err := b.Graph()
			if err != nil {
				rt.Fatal(err)
			}
			return g
		}
		a, b := build(false), build(true)
		if !reflect.DeepEqual(a, b) {
			rt.Fatalf("graphs differ:\n%+v\n%+v", a, b)
		}
		if a.Hosts[0].Name != "n1" || a.NodeName(0) != "n1:gpu0" || a.Attrs[0]["busid"] != "n1" {
			rt.Fatalf("order: %+v", a.Hosts)
		}
	})
}

func TestAdjacencyIsSortedAndComplete(t *testing.T) {
	g := clos(t, 2, 3, 2, 2, 2)
	seen := 0
	for n := range g.Nodes {
		last := topo.Edge{Peer: -1, Link: -1}
		for _, e := range g.Edges(topo.NodeID(n)) {
			if e.Peer < last.Peer || e.Peer == last.Peer && e.Link <= last.Link {
				t.Fatalf("edges of %s out of order: %v after %v", g.NodeName(topo.NodeID(n)), e, last)
			}
			l := g.Links[e.Link]
			if l.A != topo.NodeID(n) && l.B != topo.NodeID(n) {
				t.Fatalf("edge %v is not at node %d", e, n)
			}
			last = e
			seen++
		}
	}
	if seen != 2*len(g.Links) {
		t.Fatalf("%d edges for %d links", seen, len(g.Links))
	}
}

func TestInsideAHostBytesTakeNVLink(t *testing.T) {
	g := box(t, 4)
	f := topo.Flow{From: lookup(t, g, "gpu0"), To: lookup(t, g, "gpu3")}
	way, err := g.Route(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	follow(t, g, f, way)
	if len(way) != 4 || way[0].Share != 0.5 {
		t.Fatalf("want two NVSwitches, half the flow each, got %+v", way)
	}
}

func TestRailsMeetAtTheLeafOthersAtTheSpine(t *testing.T) {
	g := clos(t, 2, 4, 4, 2, 2)
	same := route(t, g, topo.Flow{From: lookup(t, g, "n0:gpu1"), To: lookup(t, g, "n3:gpu1"), Key: 1})
	if got := strings.Join(same, " "); got != "n0:gpu1 n0:pex1 n0:nic1 leaf1 n3:nic1 n3:pex1 n3:gpu1" {
		t.Error(got)
	}
	cross := route(t, g, topo.Flow{From: lookup(t, g, "n0:gpu1"), To: lookup(t, g, "n3:gpu2"), Key: 1})
	if len(cross) != 9 || !strings.HasPrefix(cross[4], "spine") || cross[5] != "leaf2" {
		t.Error(cross)
	}
	pods := route(t, g, topo.Flow{From: lookup(t, g, "n0:gpu1"), To: lookup(t, g, "n7:gpu1"), Key: 1})
	if len(pods) != 11 || !strings.HasPrefix(pods[5], "core") {
		t.Error(pods)
	}
	// With PXN the bytes change rails inside the host and stay on one leaf.
	way, err := g.Route(topo.Flow{From: lookup(t, g, "n0:gpu1"), To: lookup(t, g, "n3:gpu2"), PXN: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	switches := map[string]bool{}
	for _, u := range way {
		if l := g.Links[u.Link]; g.Nodes[l.B].Kind == topo.Switch {
			switches[g.NodeName(l.B)] = true
		}
	}
	if len(switches) != 1 || !switches["leaf2"] {
		t.Errorf("PXN passed %v, want leaf2 alone", switches)
	}
}

// Hashing spreads flows evenly over the spines, and a flow keeps its way.
func TestHashingIsEvenAndStable(t *testing.T) {
	g := clos(t, 1, 2, 2, 8, 0)
	from, to := lookup(t, g, "n0:gpu0"), lookup(t, g, "n1:gpu1")
	count := map[string]int{}
	const flows = 8000
	for key := range uint64(flows) {
		names := route(t, g, topo.Flow{From: from, To: to, Key: key})
		count[names[4]]++
		if again := route(t, g, topo.Flow{From: from, To: to, Key: key}); again[4] != names[4] {
			t.Fatal("a flow changed its way")
		}
	}
	chi := 0.0
	for _, c := range count {
		d := float64(c) - flows/8
		chi += d * d / (flows / 8)
	}
	if len(count) != 8 || chi > 24.3 { // 0.999 quantile at 7 degrees of freedom
		t.Errorf("chi-square %.1f over %v", chi, count)
	}
}

// Every pair of endpoints is routed, and the way has the length the structure says.
func TestEveryPairIsRouted(t *testing.T) {
	g := clos(t, 3, 2, 2, 2, 4)
	rapid.Check(t, func(rt *rapid.T) {
		pick := func(label string) topo.NodeID {
			h := rapid.IntRange(0, len(g.Hosts)-1).Draw(rt, label)
			return g.Hosts[h].First + topo.NodeID(rapid.IntRange(0, 1).Draw(rt, label+"gpu"))
		}
		f := topo.Flow{From: pick("from"), To: pick("to"), Key: rapid.Uint64().Draw(rt, "key"), PXN: rapid.Bool().Draw(rt, "pxn")}
		way, err := g.Route(f, nil)
		if err != nil {
			rt.Fatal(err)
		}
		follow(t, g, f, way)
		a, b := g.Nodes[f.From], g.Nodes[f.To]
		want := 10
		switch {
		case f.From == f.To:
			want = 0
		case a.Host == b.Host:
			want = 4 // two NVSwitches in parallel
		case a.Pod == b.Pod && a.Name == b.Name:
			want = 6
		case a.Pod == b.Pod:
			want = 8
		}
		if f.PXN && a.Host != b.Host && a.Name != b.Name {
			want += 4
			if a.Pod == b.Pod {
				want -= 2
			}
		}
		if len(way) != want {
			rt.Fatalf("%s to %s: %d links, want %d", g.NodeName(f.From), g.NodeName(f.To), len(way), want)
		}
	})
}

func TestUnreachableSaysWho(t *testing.T) {
	b := topo.NewBuilder("two")
	for _, name := range []string{"a", "b"} {
		h := b.Host(topo.Host{Name: name})
		b.Node(topo.Part(topo.GPU, h, "gpu0"))
	}
	g := graph(t, b)
	_, err := g.Route(topo.Flow{From: 0, To: 1}, nil)
	if !errors.Is(err, topo.ErrUnreachable) || !strings.Contains(err.Error(), "a:gpu0") || !strings.Contains(err.Error(), "b:gpu0") {
		t.Error(err)
	}
}

func TestValidationNamesTheElement(t *testing.T) {
	for want, build := range map[string]func(*topo.Builder){
		`two hosts are named "n0"`: func(b *topo.Builder) {
			b.Host(topo.Host{Name: "n0"})
			b.Host(topo.Host{Name: "n0"})
		},
		`two nodes are named "n0:gpu0"`: func(b *topo.Builder) {
			h := b.Host(topo.Host{Name: "n0"})
			b.Node(topo.Part(topo.GPU, h, "gpu0"))
			b.Node(topo.Part(topo.NIC, h, "gpu0"))
		},
		"leads to nowhere": func(b *topo.Builder) {
			h := b.Host(topo.Host{Name: "n0"})
			b.Link(topo.Link{A: b.Node(topo.Part(topo.GPU, h, "gpu0")), B: 77, Class: b.Class(ndr)})
		},
		"joins a node to itself": func(b *topo.Builder) {
			h := b.Host(topo.Host{Name: "n0"})
			n := b.Node(topo.Part(topo.GPU, h, "gpu0"))
			b.Link(topo.Link{A: n, B: n, Class: b.Class(nv4)})
		},
		`the PCIe tree of host "n0" has a cycle`: func(b *topo.Builder) {
			h := b.Host(topo.Host{Name: "n0"})
			x, y := b.Node(topo.Part(topo.PCIeSwitch, h, "pex0")), b.Node(topo.Part(topo.PCIeSwitch, h, "pex1"))
			z := b.Node(topo.Part(topo.RootPort, h, "root0"))
			for _, p := range [][2]topo.NodeID{{x, y}, {y, z}, {z, x}} {
				b.Link(topo.Link{A: p[0], B: p[1], Class: b.Class(pcie5)})
			}
		},
		`port 3 of "leaf0" is used twice`: func(b *topo.Builder) {
			leaf := b.Node(topo.Part(topo.Switch, topo.None, "leaf0"))
			for i := range 2 {
				h := b.Host(topo.Host{Name: fmt.Sprint("n", i)})
				b.Link(topo.Link{A: b.Node(topo.Part(topo.NIC, h, "nic0")), B: leaf, BPort: 3, Class: b.Class(ndr)})
			}
		},
		`"leaf0" needs 2 ports and has 1`: func(b *topo.Builder) {
			n := topo.Part(topo.Switch, topo.None, "leaf0")
			n.Ports = 1
			leaf := b.Node(n)
			for i := range 2 {
				h := b.Host(topo.Host{Name: fmt.Sprint("n", i)})
				b.Link(topo.Link{A: b.Node(topo.Part(topo.NIC, h, "nic0")), B: leaf, Class: b.Class(ndr)})
			}
		},
		"both must be known": func(b *topo.Builder) {
			h := b.Host(topo.Host{Name: "n0"})
			x, y := b.Node(topo.Part(topo.GPU, h, "gpu0")), b.Node(topo.Part(topo.GPU, h, "gpu1"))
			b.Link(topo.Link{A: x, B: y, Class: b.Class(topo.Class{Kind: topo.NVLink})})
		},
	} {
		b := topo.NewBuilder("bad")
		build(b)
		if _, err := b.Graph(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestLookupHelps(t *testing.T) {
	g := clos(t, 1, 2, 2, 1, 0)
	for name, want := range map[string]string{
		"n9:gpu0": `no host "n9" among 2 hosts, "n0" to "n1"`,
		"n0:gpu9": "it has: gpu0 gpu1 cpu0",
		"gpu0":    "HOST:PART",
	} {
		if _, err := g.Lookup(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Lookup(%q): %v, want %q", name, err, want)
		}
	}
}

// Eight GPUs and four equally near NICs pair up two to one.
func TestAffinityIsShared(t *testing.T) {
	b := topo.NewBuilder("x")
	h := b.Host(topo.Host{Name: "n0"})
	cpu := b.Node(topo.Part(topo.CPU, h, "cpu0"))
	for i := range 8 {
		b.Link(topo.Link{A: b.Node(topo.Part(topo.GPU, h, fmt.Sprint("gpu", i))), B: cpu, Class: b.Class(pcie5)})
	}
	for i := range 4 {
		b.Link(topo.Link{A: b.Node(topo.Part(topo.NIC, h, fmt.Sprint("nic", i))), B: cpu, Class: b.Class(pcie5)})
	}
	g := graph(t, b)
	load := map[topo.NodeID]int{}
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { load[g.Near(n)]++ })
	if len(load) != 4 {
		t.Fatalf("GPUs per NIC: %v", load)
	}
	for nic, n := range load {
		if n != 2 {
			t.Errorf("%s serves %d GPUs, want 2", g.NodeName(nic), n)
		}
	}
}
