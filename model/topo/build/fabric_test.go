package build

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// sizes are presets small enough to look at link by link.
var sizes = []struct {
	preset string
	params map[string]int
}{
	{"superpod-a100", map[string]int{"su": 2}},
	{"superpod-a100", map[string]int{"su": 7}},
	{"superpod-h100", map[string]int{"su": 3}},
	{"superpod-b200", map[string]int{"su": 9}},
	{"superpod-b300", map[string]int{"su": 2}},
	{"superpod-b300-xdr", map[string]int{"su": 1}},
	{"meta-rsc", map[string]int{"hosts": 130}},
	{"meta-24k", map[string]int{"zones": 2}},
	{"alibaba-hpn", map[string]int{"segments": 3}},
	{"gb200-su", map[string]int{"su": 1}},
	{"nvlink-256", nil},
	{"fat-tree", map[string]int{"hosts": 37}},
	{"fat-tree", map[string]int{"hosts": 300, "tiers": 3}},
	{"fat-tree", map[string]int{"hosts": 100, "down": 3}},
	{"rail", map[string]int{"hosts": 100}},
	{"rail", map[string]int{"hosts": 70, "rail-only": 1, "tiers": 2}},
	{"dragonfly", nil},
	{"dragonfly", map[string]int{"routers": 4, "ports": 2, "global": 2, "groups": 9}},
	{"dragonfly", map[string]int{"routers": 4, "ports": 4, "global": 2, "groups": 4}},
	{"torus", nil},
	{"torus", map[string]int{"x": 5, "y": 2, "z": 1}},
	{"torus", map[string]int{"x": 2, "y": 3, "z": 4}},
	{"tpu-v4", map[string]int{"x": 4, "y": 4, "z": 8}},
	{"tpu-v4", map[string]int{"x": 4, "y": 4, "z": 256}},
}

func each(t *testing.T, f func(t *testing.T, g *topo.Graph)) {
	c := catalog.Default()
	for _, s := range sizes {
		t.Run(fmt.Sprint(s.preset, s.params), func(t *testing.T) {
			b, err := BuildPreset(c, s.preset, s.params)
			if err != nil {
				t.Fatal(err)
			}
			f(t, b.Graph)
		})
	}
}

// TestWiring checks what every fabric promises: ports numbered from 1, downlinks
// before uplinks, NICs and switches in a fabric, tiers in step.
func TestWiring(t *testing.T) {
	each(t, func(t *testing.T, g *topo.Graph) {
		type side struct{ down, up int } // highest port down, lowest port up
		sides := map[topo.NodeID]*side{}
		g.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
			sides[n] = &side{0, 1 << 20}
			if s.Fabric < 0 || s.Tier < 1 || s.Ports == 0 || s.Model == "" {
				t.Errorf("%s: fabric %d, tier %d, %d ports, model %q", s.Name, s.Fabric, s.Tier, s.Ports, s.Model)
			}
			if len(g.Edges(n)) == 0 {
				t.Errorf("%s has no link", s.Name)
			}
		})
		g.Each(topo.NIC, func(n topo.NodeID, s *topo.Node) {
			for _, e := range g.Edges(n) {
				if p := &g.Nodes[e.Peer]; p.Kind == topo.Switch && (s.Fabric != p.Fabric || p.Tier != 1) {
					t.Errorf("%s of fabric %d is at %s of fabric %d, tier %d", g.NodeName(n), s.Fabric, p.Name, p.Fabric, p.Tier)
				}
			}
		})
		for i := range g.Links {
			l := &g.Links[i]
			for _, x := range []struct {
				n, peer topo.NodeID
				port    uint16
			}{{l.A, l.B, l.APort}, {l.B, l.A, l.BPort}} {
				s := sides[x.n]
				if s == nil {
					continue
				}
				if x.port == 0 || x.port > g.Nodes[x.n].Ports {
					t.Fatalf("%s: port %d", g.LinkName(topo.LinkID(i)), x.port)
				}
				if g.Nodes[x.peer].Tier < g.Nodes[x.n].Tier {
					s.down = max(s.down, int(x.port))
				} else {
					s.up = min(s.up, int(x.port))
				}
			}
		}
		for n, s := range sides {
			if s.down >= s.up {
				t.Errorf("%s: port %d leads down and port %d up", g.Nodes[n].Name, s.down, s.up)
			}
		}
	})
}

// TestSameTwice builds everything twice.
func TestSameTwice(t *testing.T) {
	c := catalog.Default()
	for _, s := range sizes[:3] {
		a, errA := BuildPreset(c, s.preset, s.params)
		b, errB := BuildPreset(c, s.preset, s.params)
		if errA != nil || errB != nil || !reflect.DeepEqual(a.Graph, b.Graph) {
			t.Errorf("%s is not the same twice: %v, %v", s.preset, errA, errB)
		}
	}
}

// TestRoutes sends flows between random GPUs: every way is connected, begins and
// ends where it should, has an up-and-down shape where there are tiers, and is
// the same when asked again.
func TestRoutes(t *testing.T) {
	each(t, func(t *testing.T, g *topo.Graph) {
		var gpus []topo.NodeID
		g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { gpus = append(gpus, n) })
		r := rand.New(rand.NewPCG(7, 11))
		for range 300 {
			f := topo.Flow{From: gpus[r.IntN(len(gpus))], To: gpus[r.IntN(len(gpus))], Key: r.Uint64(), PXN: r.IntN(2) == 0, Valiant: r.IntN(2) == 0}
			way, err := g.Route(f, nil)
			if err != nil {
				if railsApart(g, f) && errors.Is(err, topo.ErrUnreachable) {
					continue
				}
				t.Fatal(err)
			}
			checkWay(t, g, f, way)
			again, _ := g.Route(f, nil)
			if !reflect.DeepEqual(way, again) {
				t.Fatalf("%v and %v", way, again)
			}
		}
	})
}

// railsApart reports whether a flow wants to change rails where no spine joins them.
func railsApart(g *topo.Graph, f topo.Flow) bool {
	out, in := g.Near(f.From), g.Near(f.To)
	return strings.HasPrefix(g.Name, "rail-70") && !f.PXN && g.Nodes[out].Rail != g.Nodes[in].Rail
}

// checkWay follows the links of a way that is not striped.
func checkWay(t *testing.T, g *topo.Graph, f topo.Flow, way []topo.Use) {
	t.Helper()
	into, outof := map[topo.NodeID]float32{}, map[topo.NodeID]float32{}
	var tiers []int
	network, striped := 0, false
	for _, u := range way {
		from, to := g.Links[u.Link].Ends(u.Forward)
		outof[from] += u.Share
		into[to] += u.Share
		striped = striped || u.Share != 1
		if g.Class(u.Link).Kind.Network() {
			network++
			tiers = append(tiers, int(g.Nodes[to].Tier))
		}
	}
	for n := range into { // what goes in comes out, but for the two ends
		want := into[n]
		switch n {
		case f.To:
			want--
		case f.From:
			want++
		}
		if d := outof[n] - want; d > 1e-4 || d < -1e-4 {
			t.Fatalf("%s to %s: %v in and %v out at %s", g.NodeName(f.From), g.NodeName(f.To), into[n], outof[n], g.NodeName(n))
		}
	}
	if f.From != f.To && (outof[f.From] < 0.999 || into[f.To] < 0.999) {
		t.Fatalf("%s to %s: %v leaves and %v arrives", g.NodeName(f.From), g.NodeName(f.To), outof[f.From], into[f.To])
	}
	family := topo.Clos
	if len(g.Fabrics) > 0 {
		family = g.Fabrics[0].Family
	}
	if family == topo.Clos && len(tiers) > 0 {
		down := false
		for i := 1; i < len(tiers); i++ {
			if tiers[i] < tiers[i-1] {
				down = true
			} else if down {
				t.Fatalf("%s to %s goes up again: tiers %v", g.NodeName(f.From), g.NodeName(f.To), tiers)
			}
		}
		if len(tiers)%2 != 0 || len(tiers) > 6 {
			t.Fatalf("%d network links: tiers %v", len(tiers), tiers)
		}
	}
	if most := 5; family == topo.Dragonfly {
		if f.Valiant {
			most = 7 // one group more: another local and another global link
		}
		if network > most {
			t.Fatalf("%d network links, Valiant %v", network, f.Valiant)
		}
	}
}

// TestTorusMinimal compares the length of every way with the sum of ring distances.
func TestTorusMinimal(t *testing.T) {
	c := catalog.Default()
	for _, dims := range [][3]int{{16, 16, 16}, {4, 4, 256}, {4, 2, 6}} {
		b, err := BuildPreset(c, "tpu-v4", map[string]int{"x": dims[0], "y": dims[1], "z": dims[2]})
		if err != nil {
			t.Fatal(err)
		}
		g := b.Graph
		places := dims[0] * dims[1] * dims[2]
		if g.Count(topo.GPU) != places {
			t.Fatal(g.Count(topo.GPU))
		}
		for i := range places {
			n := g.At(0, i)
			links, want := 0, 0
			for _, e := range g.Edges(n) {
				if g.Class(e.Link).Kind == topo.ICI {
					links++
				}
			}
			for _, d := range dims {
				want += min(d-1, 2)
			}
			if links != want {
				t.Fatalf("%v: chip %d has %d links, want %d", dims, i, links, want)
			}
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range 500 {
			i, j := r.IntN(places), r.IntN(places)
			way, err := g.Route(topo.Flow{From: g.At(0, i), To: g.At(0, j)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			want, x, y := 0, i, j
			for _, d := range dims {
				a := (x%d - y%d + d) % d
				want += min(a, d-a)
				x, y = x/d, y/d
			}
			if len(way) != want {
				t.Fatalf("%v: %d links from chip %d to %d, want %d", dims, len(way), i, j, want)
			}
		}
	}
}

// TestDragonflyGlobal checks the palm tree: every two groups are joined, and with
// a·h+1 groups by exactly one link.
func TestDragonflyGlobal(t *testing.T) {
	c := catalog.Default()
	for _, p := range [][4]int{{4, 2, 2, 9}, {4, 2, 2, 5}, {4, 2, 2, 2}, {2, 4, 3, 7}, {8, 4, 4, 33}, {6, 4, 3, 8}} {
		b, err := BuildPreset(c, "dragonfly", map[string]int{"routers": p[0], "ports": p[1], "global": p[2], "groups": p[3]})
		if err != nil {
			t.Fatal(err)
		}
		g := b.Graph
		joined := map[[2]int32]int{}
		perRouter := map[topo.NodeID]int{}
		for i := range g.Links {
			x, y := &g.Nodes[g.Links[i].A], &g.Nodes[g.Links[i].B]
			if x.Kind == topo.Switch && x.Pod != y.Pod {
				joined[[2]int32{min(x.Pod, y.Pod), max(x.Pod, y.Pod)}]++
				perRouter[g.Links[i].A]++
				perRouter[g.Links[i].B]++
			}
		}
		want := p[0] * p[2] / (p[3] - 1)
		if len(joined) != p[3]*(p[3]-1)/2 {
			t.Errorf("%v: %d pairs of groups are joined", p, len(joined))
		}
		for pair, n := range joined {
			if n != want {
				t.Errorf("%v: groups %v have %d links, want %d", p, pair, n, want)
			}
		}
		for n, links := range perRouter {
			if links > p[2] {
				t.Errorf("%v: %s has %d global links", p, g.NodeName(n), links)
			}
		}
	}
}

// TestECMPSpread hashes 6,400 flows of one pair over the 16 spines of a rail
// fabric. With 15 degrees of freedom chi-square stays under 37.7 but once in a thousand.
func TestECMPSpread(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "rail", map[string]int{"hosts": 128})
	if err != nil {
		t.Fatal(err)
	}
	g := b.Graph
	from, _ := g.Lookup("n0:gpu0")
	to, _ := g.Lookup("n100:gpu0")
	hits := map[topo.NodeID]int{}
	const flows = 6400
	for key := range uint64(flows) {
		way, err := g.Route(topo.Flow{From: from, To: to, Key: key}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range way {
			if _, n := g.Links[u.Link].Ends(u.Forward); g.Nodes[n].Tier == 2 && g.Nodes[n].Kind == topo.Switch {
				hits[n]++
			}
		}
	}
	if len(hits) != 16 {
		t.Fatalf("%d spines are used", len(hits))
	}
	chi, want := 0.0, float64(flows)/16
	for _, n := range hits {
		chi += (float64(n) - want) * (float64(n) - want) / want
	}
	if chi > 37.7 {
		t.Errorf("chi-square %.1f: %v", chi, hits)
	}
}

// TestRailStaysOnLeaf: same rail and pod is one switch apart, same rail elsewhere three.
func TestRailStaysOnLeaf(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "rail", map[string]int{"hosts": 128})
	if err != nil {
		t.Fatal(err)
	}
	g := b.Graph
	for _, c := range []struct {
		to       string
		pxn      bool
		switches int
	}{{"n31:gpu3", false, 1}, {"n32:gpu3", false, 3}, {"n31:gpu4", false, 3}, {"n31:gpu4", true, 1}} {
		from, _ := g.Lookup("n0:gpu3")
		to, err := g.Lookup(c.to)
		if err != nil {
			t.Fatal(err)
		}
		way, err := g.Route(topo.Flow{From: from, To: to, Key: 5, PXN: c.pxn}, nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, u := range way {
			if _, to := g.Links[u.Link].Ends(u.Forward); g.Nodes[to].Kind == topo.Switch {
				n++
			}
		}
		if n != c.switches {
			t.Errorf("n0:gpu3 to %s, PXN %v: %d switches, want %d", c.to, c.pxn, n, c.switches)
		}
	}
}

// TestTwoFabrics: two fabrics share no switch, rails keep the hosts' numbers, and
// a flow between GPUs whose nearest NICs are in different ones still finds a way.
func TestTwoFabrics(t *testing.T) {
	c := catalog.Default()
	box, err := Host(c, "dgx-h100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	nics := numbered("nic", 8)
	g, _, err := Cluster{Name: "two", Hosts: []Hosts{{Box: box, Names: numbered("n", 64)}}, Fabrics: []Fabric{
		Clos{Name: "red", Rails: true, NICs: nics[:4], Leaf: Tier{Model: "QM9700"}},
		Clos{Name: "blue", Rails: true, NICs: nics[4:], Leaf: Tier{Model: "QM9700"}},
		Clos{Name: "storage", Service: true, Leaf: Tier{Model: "QM9700"}},
	}}.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	for name, rail := range map[string]int16{"n5:nic2": 2, "n5:nic6": 6, "red-leaf1": 1, "blue-leaf1": 5} {
		n, err := g.Lookup(name)
		if err != nil || g.Nodes[n].Rail != rail {
			t.Errorf("%s is on rail %d, want %d; %v", name, g.Nodes[n].Rail, rail, err)
		}
	}
	for i := range g.Links {
		if a, b := &g.Nodes[g.Links[i].A], &g.Nodes[g.Links[i].B]; b.Kind == topo.Switch && a.Fabric != b.Fabric {
			t.Fatalf("%s joins two fabrics", g.LinkName(topo.LinkID(i)))
		}
	}
	from, _ := g.Lookup("n0:gpu1")
	to, _ := g.Lookup("n63:gpu5")
	for _, pxn := range []bool{false, true} {
		f := topo.Flow{From: from, To: to, Key: 9, PXN: pxn}
		way, err := g.Route(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		checkWay(t, g, f, way)
	}
}

// without gives the graph less some links.
func without(t *testing.T, g *topo.Graph, dead map[topo.LinkID]bool) *topo.Graph {
	t.Helper()
	b := topo.NewBuilder(g.Name)
	for _, f := range g.Fabrics {
		b.Fabric(f)
	}
	for _, h := range g.Hosts {
		b.Host(h)
	}
	for _, n := range g.Nodes {
		b.Node(n)
	}
	for i, l := range g.Links {
		if !dead[topo.LinkID(i)] {
			l.Class = b.Class(g.Classes[l.Class])
			b.Link(l)
		}
	}
	less, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return less
}

// TestKilledLinks takes a tenth of the links between switches away, by a seed:
// the same seed leaves the same graph and the same ways, and every flow still
// finds one that goes up and down.
func TestKilledLinks(t *testing.T) {
	c := catalog.Default()
	for _, s := range []struct {
		preset string
		params map[string]int
	}{{"rail", map[string]int{"hosts": 128}}, {"superpod-a100", map[string]int{"su": 7}}, {"alibaba-hpn", map[string]int{"segments": 2}}} {
		b, err := BuildPreset(c, s.preset, s.params)
		if err != nil {
			t.Fatal(err)
		}
		kill := func() *topo.Graph {
			r := rand.New(rand.NewPCG(21, 22))
			dead := map[topo.LinkID]bool{}
			for i := range b.Graph.Links {
				if b.Graph.Nodes[b.Graph.Links[i].A].Kind == topo.Switch && r.IntN(10) == 0 {
					dead[topo.LinkID(i)] = true
				}
			}
			return without(t, b.Graph, dead)
		}
		x, y := kill(), kill()
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("%s: the same seed leaves two graphs", s.preset)
		}
		r := rand.New(rand.NewPCG(23, 24))
		var gpus []topo.NodeID
		x.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { gpus = append(gpus, n) })
		for range 300 {
			f := topo.Flow{From: gpus[r.IntN(len(gpus))], To: gpus[r.IntN(len(gpus))], Key: r.Uint64()}
			way, err := x.Route(f, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkWay(t, x, f, way)
			if again, _ := y.Route(f, nil); !reflect.DeepEqual(way, again) {
				t.Fatalf("%s: %v and %v", s.preset, way, again)
			}
		}
	}
}
