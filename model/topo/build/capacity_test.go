package build

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// TestMixedHostsWithinSwitches draws hosts of different rates on one fabric and
// adds up, for every switch of every graph built, what is plugged into it: never
// more ports or bandwidth than the switch has.
func TestMixedHostsWithinSwitches(t *testing.T) {
	c := catalog.Default()
	kinds := []string{"dgx-h100", "dgx-a100", "hgx-h100", "hgx-a100", "dgx-1v", "pcie-8"}
	boxes := map[string]*topo.Graph{}
	for _, k := range kinds {
		box, err := Host(c, k, "n0")
		if err != nil {
			t.Fatal(err)
		}
		boxes[k] = box
	}
	rng := rand.New(rand.NewPCG(1, 7))
	built := 0
	for range 300 {
		x := Cluster{Name: "x"}
		for i := range 1 + rng.IntN(3) {
			kind := kinds[rng.IntN(len(kinds))]
			x.Hosts = append(x.Hosts, Hosts{Box: boxes[kind], Names: numbered(string(rune('a'+i)), 1+rng.IntN(40))})
		}
		clos := Clos{Name: "f", Rails: rng.IntN(2) == 0, Leaf: Tier{Model: []string{"QM9700", "QM8790", "Q3400"}[rng.IntN(3)]},
			Unit: rng.IntN(3) * 8}
		if rng.IntN(4) == 0 {
			clos.Leaf.Down, clos.Leaf.Up = 1+rng.IntN(90), 1+rng.IntN(90)
		}
		x.Fabrics = []Fabric{clos}
		g, _, err := x.Build(c)
		if err != nil {
			continue // refused: nothing to count
		}
		built++
		checkSwitches(t, c, g)
	}
	if built < 100 {
		t.Fatalf("only %d of 300 clusters were built; the test looks at too little", built)
	}
}

// checkSwitches holds every switch against its data sheet.
func checkSwitches(t *testing.T, c *catalog.Catalog, g *topo.Graph) {
	t.Helper()
	g.Each(topo.Switch, func(id topo.NodeID, n *topo.Node) {
		sw := c.Switches[n.Model]
		native := c.Links[sw.Link].Class(0).Rate
		have, used := float64(native)*float64(sw.Ports), 0.0
		whole, half := 0, 0
		for _, e := range g.Edges(id) {
			rate := g.Class(e.Link).Rate
			used += float64(rate)
			if rate*2 <= native*1.000001 && sw.Split >= 2 {
				half++
			} else {
				whole++
			}
		}
		if used > have*1.000001 {
			t.Fatalf("%s: %s (%s) carries %.1f Tb/s and has %.1f", g.Name, n.Name, n.Model, used*8e-12, have*8e-12)
		}
		if ports := whole + (half+sw.Split-1)/max(sw.Split, 1); ports > sw.Ports {
			t.Fatalf("%s: %s (%s) needs %d ports and has %d", g.Name, n.Name, n.Model, ports, sw.Ports)
		}
	})
}

// TestOneSlowHostKeepsTheUplinks: one A100 host among H100 hosts has HDR links
// of its own and leaves everybody else's links and all uplinks at NDR.
func TestOneSlowHostKeepsTheUplinks(t *testing.T) {
	c := catalog.Default()
	h, _ := Host(c, "dgx-h100", "n0")
	a, _ := Host(c, "dgx-a100", "n0")
	g, _, err := Cluster{Name: "x", Hosts: []Hosts{{Box: h, Names: numbered("h", 63)}, {Box: a, Names: []string{"a0"}}},
		Fabrics: []Fabric{Clos{Name: "f", Rails: true, Leaf: Tier{Model: "QM9700"}}}}.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for i := range g.Links {
		l := &g.Links[i]
		if class := g.Classes[l.Class]; class.Kind.Network() {
			where := "up "
			if g.Nodes[l.A].Kind == topo.NIC {
				where = "host "
			}
			count[where+class.Gen]++
		}
	}
	if count["up hdr"] != 0 || count["up ndr"] != 512 || count["host hdr"] != 8 || count["host ndr"] != 63*8 {
		t.Errorf("links by sort: %v; want 512 uplinks and 504 host links of NDR, 8 host links of HDR", count)
	}
	checkSwitches(t, c, g)
}
