package build

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"pgregory.net/rapid"
)

var mostFit = regexp.MustCompile(`at most (\d+) hosts fit`)

// TestClosProperties builds fabrics of random shapes and checks what Clos
// promises, each by plain counting on the finished graph.
func TestClosProperties(t *testing.T) {
	base := catalog.Default()
	box, err := Host(base, "dgx-h100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := catalog.Default()
		sw := c.Switches["QM9700"]
		sw.Name, sw.Ports = "sw", 2*rapid.IntRange(4, 32).Draw(t, "half of the ports")
		c.Switches["sw"] = sw
		x := Clos{
			Name: "f", Leaf: Tier{Model: "sw"},
			Rails:  rapid.Bool().Draw(t, "rails"),
			Tiers:  rapid.IntRange(0, 3).Draw(t, "tiers"),
			Planes: rapid.IntRange(0, 3).Draw(t, "planes"),
			Unit:   rapid.IntRange(0, 12).Draw(t, "unit"),
			Block:  rapid.IntRange(0, 3).Draw(t, "block"),
		}
		if x.Rails {
			x.ByRail = rapid.Bool().Draw(t, "by rail")
		} else {
			x.Leaves = rapid.IntRange(0, 8).Draw(t, "leaves")
		}
		hosts := rapid.IntRange(1, 90).Draw(t, "hosts")
		g, _, err := Cluster{Name: "x", Hosts: []Hosts{{Box: box, Names: numbered("n", hosts)}}, Fabrics: []Fabric{x}}.Build(c)
		if err != nil {
			if m := mostFit.FindStringSubmatch(err.Error()); m != nil {
				if most, _ := strconv.Atoi(m[1]); most >= hosts {
					t.Fatal(err) // it refuses what it says would fit
				}
			}
			t.Skip(err)
		}
		checkClos(t, g, x, hosts)
	})
}

func checkClos(t *rapid.T, g *topo.Graph, x Clos, hosts int) {
	planes := max(x.Planes, 1)
	links := map[[2]topo.NodeID]int{}
	up := map[uint8]map[int]bool{} // by tier, the numbers of uplinks that switches have
	uplinks := map[topo.NodeID]int{}
	nicLinks := 0
	root := make([]topo.NodeID, len(g.Nodes))
	for i := range root {
		root[i] = topo.NodeID(i)
	}
	find := func(n topo.NodeID) topo.NodeID {
		for root[n] != n {
			n = root[n]
		}
		return n
	}
	for i := range g.Links {
		l := &g.Links[i]
		a, b := &g.Nodes[l.A], &g.Nodes[l.B]
		if b.Kind != topo.Switch {
			continue
		}
		if a.Kind == topo.NIC {
			nicLinks++
			continue
		}
		if b.Tier != a.Tier+1 || a.Plane != b.Plane {
			t.Fatalf("%s: tiers %d and %d, planes %d and %d", g.LinkName(topo.LinkID(i)), a.Tier, b.Tier, a.Plane, b.Plane)
		}
		links[[2]topo.NodeID{l.A, l.B}]++
		uplinks[l.A]++
		root[find(l.A)] = find(l.B)
	}
	if nicLinks != hosts*8*planes {
		t.Fatalf("%d links to NICs", nicLinks)
	}
	// Every switch of a tier has equally many uplinks, evenly over its peers; those
	// of a spine may differ by one.
	least, most := map[topo.NodeID]int{}, map[topo.NodeID]int{}
	for ends, n := range links {
		low := ends[0]
		if least[low] == 0 || n < least[low] {
			least[low] = n
		}
		most[low] = max(most[low], n)
		if tolerated := int(g.Nodes[low].Tier) - 1; most[low]-least[low] > tolerated {
			t.Fatalf("%s has %d links to one switch above and %d to another", g.NodeName(low), least[low], most[low])
		}
	}
	checkCores(t, g)
	top := uint8(1)
	g.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
		top = max(top, s.Tier)
		if up[s.Tier] == nil {
			up[s.Tier] = map[int]bool{}
		}
		up[s.Tier][uplinks[n]] = true
	})
	for tier, numbers := range up {
		if len(numbers) != 1 || numbers[0] != (tier == top) {
			t.Fatalf("tier %d of %d has switches with uplinks %v", tier, top, numbers)
		}
	}
	// A plane is one piece, unless its rails are kept apart.
	pieces := map[int8]map[topo.NodeID]bool{}
	g.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
		if pieces[s.Plane] == nil {
			pieces[s.Plane] = map[topo.NodeID]bool{}
		}
		pieces[s.Plane][find(n)] = true
	})
	want := 1
	if top == 1 {
		want = 0 // as many as leaves
	} else if top == 2 && x.ByRail {
		want = 8
	}
	for plane, p := range pieces {
		if want > 0 && len(p) != want {
			t.Fatalf("plane %d is in %d pieces, want %d", plane, len(p), want)
		}
	}
	if len(pieces) != planes {
		t.Fatalf("%d planes", len(pieces))
	}
}

// TestEven compares the rule for the number of switches with its definition.
func TestEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		need, links := rapid.IntRange(1, 200).Draw(t, "need"), rapid.IntRange(1, 200).Draw(t, "links")
		want := 0
		for s := links; s >= need; s-- {
			if links%s == 0 {
				want = s
			}
		}
		if got := even(need, links); got != want {
			t.Fatalf("%d for at least %d that divide %d, want %d", got, need, links, want)
		}
	})
}

// checkCores: with one core less the uplinks of the spines would not find ports,
// unless the cores are grouped, where a group takes whole cores.
func checkCores(t *rapid.T, g *topo.Graph) {
	cores, up, ports, groups := 0, 0, 0, map[topo.NodeID]topo.NodeID{}
	var find func(n topo.NodeID) topo.NodeID
	find = func(n topo.NodeID) topo.NodeID {
		if p, ok := groups[n]; ok && p != n {
			return find(p)
		}
		return n
	}
	g.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
		if s.Tier != 3 {
			return
		}
		cores++
		ports = int(s.Ports)
		for _, e := range g.Edges(n) {
			up++
			if a, b := find(n), find(e.Peer); a != b {
				groups[a] = b
			}
		}
	})
	if cores == 0 {
		return
	}
	roots := map[topo.NodeID]bool{}
	g.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
		if s.Tier == 3 {
			roots[find(n)] = true
		}
	})
	if least := (up + ports - 1) / ports; cores > least+len(roots) {
		t.Fatalf("%d cores in %d groups where %d have the ports for %d uplinks", cores, len(roots), least, up)
	}
}
