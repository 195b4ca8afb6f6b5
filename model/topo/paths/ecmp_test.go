package paths

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// shortest counts the shortest ways between two NICs of a graph by plain
// breadth-first search over switches, parallel links one by one.
func shortest(g *topo.Graph, from, to topo.NodeID) uint64 {
	dist := map[topo.NodeID]int{from: 0}
	ways := map[topo.NodeID]uint64{from: 1}
	queue := []topo.NodeID{from}
	for q := 0; q < len(queue); q++ {
		n := queue[q]
		if n != from && g.Nodes[n].Kind != topo.Switch {
			continue
		}
		for _, e := range g.Edges(n) {
			if !g.Class(e.Link).Kind.Network() {
				continue
			}
			d, seen := dist[e.Peer]
			if !seen {
				d = dist[n] + 1
				dist[e.Peer] = d
				queue = append(queue, e.Peer)
			}
			if d == dist[n]+1 {
				ways[e.Peer] += ways[n] * uint64(g.Links[e.Link].Count)
			}
		}
	}
	return ways[to]
}

// checkCounts compares equalCost with the plain count for random pairs of NICs.
func checkCounts(t *testing.T, name string, g *topo.Graph, pairs int) {
	t.Helper()
	var nics []topo.NodeID
	g.Each(topo.NIC, func(n topo.NodeID, node *topo.Node) {
		if node.Fabric != topo.None {
			nics = append(nics, n)
		}
	})
	r := rand.New(rand.NewPCG(1, uint64(len(nics))))
	f := &finder{g: g, c: catalog.Default(), ways: map[span]uint64{}}
	seen := map[uint64]bool{}
	for range pairs {
		a, b := nics[r.IntN(len(nics))], nics[r.IntN(len(nics))]
		if a == b || g.Nodes[a].Fabric != g.Nodes[b].Fabric {
			continue
		}
		s := span{a, b, lane{g.Nodes[a].Fabric, topo.None}}
		if _, ok := f.wire(s, nil); !ok {
			continue
		}
		got, want := f.equalCost(s), shortest(g, a, b)
		if got != want {
			t.Fatalf("%s: %d ways from %s to %s, plain search counts %d", name, got, g.NodeName(a), g.NodeName(b), want)
		}
		seen[got] = true
	}
	t.Logf("%s: %d different counts: %v", name, len(seen), seen)
}

func TestEqualCostAgainstPlainSearch(t *testing.T) {
	for _, c := range []struct {
		name   string
		params map[string]int
	}{
		{"rail", map[string]int{"hosts": 200}},
		{"rail", map[string]int{"hosts": 200, "tiers": 3}},
		{"fat-tree", map[string]int{"hosts": 96, "tiers": 2}},
		{"fat-tree", map[string]int{"hosts": 300, "tiers": 3}},
		{"fat-tree", map[string]int{"hosts": 128, "tiers": 2, "down": 3, "up": 1}},
		{"superpod-h100", map[string]int{"su": 4}},
		{"dragonfly", map[string]int{"groups": 5}},
		{"dragonfly", map[string]int{"routers": 8, "ports": 4, "global": 4, "groups": 33}},
		{"torus", map[string]int{"x": 5, "y": 4, "z": 3}},
		{"torus", map[string]int{"x": 6, "y": 6, "z": 1}},
	} {
		name := fmt.Sprint(c.name, c.params)
		checkCounts(t, name, preset(t, c.name, c.params), 300)
	}
}

// Chips of a TPU pod: as many orders of steps as the multinomial says, doubled
// for each dimension gone half way round.
func TestWaysOnATorusOfChips(t *testing.T) {
	g := preset(t, "tpu-v4", map[string]int{"x": 4, "y": 4, "z": 8})
	var chips []topo.NodeID
	g.Each(topo.GPU, func(n topo.NodeID, _ *topo.Node) { chips = append(chips, n) })
	for _, c := range []struct {
		pos  int
		want uint64
	}{
		{1, 1},                 // one step
		{2, 2},                 // half way round x, either way
		{1 + 4, 2},             // x then y, y then x
		{1 + 4 + 16, 6},        // 3!
		{2 + 2*4 + 4*16, 3360}, // 8!/(2! 2! 4!) = 420, three halves: x 8
	} {
		a, b := g.At(int(g.Nodes[chips[0]].Fabric), 0), g.At(int(g.Nodes[chips[0]].Fabric), c.pos)
		list, err := Between(g, a, b, catalog.Default())
		if err != nil {
			t.Fatal(err)
		}
		if p := first(t, list, ICI); p.Count != c.want {
			t.Errorf("position %d: %d ways, want %d", c.pos, p.Count, c.want)
		}
	}
}

// Any two endpoints of random clusters: every path is sound.
func TestEveryPathIsSound(t *testing.T) {
	for _, c := range []struct {
		name   string
		params map[string]int
	}{
		{"rail", map[string]int{"hosts": 40}},
		{"fat-tree", map[string]int{"hosts": 40}},
		{"superpod-h100", nil},
		{"superpod-a100", nil},
		{"alibaba-hpn", map[string]int{"segments": 1}},
		{"gb200-su", nil},
		{"nvlink-256", nil},
		{"dragonfly", map[string]int{"groups": 3}},
		{"torus", map[string]int{"x": 3, "y": 3, "z": 3}},
		{"tpu-v4", map[string]int{"x": 4, "y": 4, "z": 4}},
		{"dgx-1v", nil}, {"dgx-1p", nil}, {"dgx-2", nil}, {"summit", nil}, {"gh200", nil}, {"mi300x", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := preset(t, c.name, c.params)
			var ends []topo.NodeID
			for i := range g.Nodes {
				if k := g.Nodes[i].Kind; k == topo.GPU || k == topo.CPU || k == topo.NIC {
					ends = append(ends, topo.NodeID(i))
				}
			}
			r := rand.New(rand.NewPCG(9, uint64(len(ends))))
			found := map[Mechanism]int{}
			for range 400 {
				a := ends[r.IntN(len(ends))]
				b := ends[min(r.IntN(len(ends)), r.IntN(len(ends)))]
				if r.IntN(2) == 0 { // often within one host
					h := g.Nodes[a].Host
					b = g.Hosts[h].First + topo.NodeID(r.IntN(int(g.Hosts[h].Count)))
				}
				list, err := Between(g, a, b, catalog.Default())
				if err != nil {
					continue
				}
				for i := range list {
					sound(t, g, &list[i])
					found[list[i].Mechanism]++
				}
			}
			if len(found) == 0 {
				t.Error("no path between any two endpoints")
			}
			t.Log(found)
		})
	}
}

// BenchmarkBetween asks for paths across a three-tier rail fabric of 131,072 GPUs.
func BenchmarkBetween(b *testing.B) {
	c := catalog.Default()
	box, err := build.Host(c, "dgx-h100", "n0")
	if err != nil {
		b.Fatal(err)
	}
	cluster := build.Cluster{Name: "large", Fabrics: []build.Fabric{
		build.Clos{Name: "compute", Rails: true, Tiers: 3, Leaf: build.Tier{Model: "SN5600"}}}}
	hosts := build.Hosts{Box: box, PerRack: 4}
	for i := range 1 << 14 {
		hosts.Names = append(hosts.Names, fmt.Sprintf("n%d", i))
	}
	cluster.Hosts = []build.Hosts{hosts}
	g, _, err := cluster.Build(c)
	if err != nil {
		b.Fatal(err)
	}
	for _, pair := range [][2]string{{"n0:gpu0", "n0:gpu5"}, {"n0:gpu0", "n16000:gpu0"}, {"n0:gpu0", "n16000:gpu5"}} {
		x, y := lookup(b, g, pair[0]), lookup(b, g, pair[1])
		b.Run(pair[0]+"-"+pair[1], func(b *testing.B) {
			for b.Loop() {
				if _, err := Between(g, x, y, c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
