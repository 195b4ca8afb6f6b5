package build

import (
	"math"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

// TestMetaRSC: 16,000 ports are exactly a full fat-tree of 40-port switches.
func TestMetaRSC(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "meta-rsc", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := count(b.Graph, 1), (counts{2000, 16000, 800, 800, 400, 16000, 16000, 16000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	b.Graph.Each(topo.Switch, func(n topo.NodeID, s *topo.Node) {
		if len(b.Graph.Edges(n)) != 40 {
			t.Errorf("%s uses %d of 40 ports", s.Name, len(b.Graph.Edges(n)))
		}
	})
}

// TestMeta24K: 24,576 GPUs, 192 racks of 16 in each of eight zones, 1:7 on top.
func TestMeta24K(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "meta-24k", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := b.Graph
	got := count(g, 1)
	if got.gpus != 24576 || got.leaf != 8*192 || got.spine != 8*18 {
		t.Errorf("%+v", got)
	}
	racks, zones := map[int32]int{}, map[int32]int{}
	g.Each(topo.GPU, func(_ topo.NodeID, n *topo.Node) { racks[n.Rack]++; zones[n.Pod]++ })
	if len(racks) != 8*192 || racks[77] != 16 || len(zones) != 8 || zones[3] != 3072 {
		t.Errorf("%d racks of %d, %d zones of %d", len(racks), racks[77], len(zones), zones[3])
	}
	if over := float64(got.leafSpine) / float64(got.spineCore); math.Abs(over-7) > 0.2 {
		t.Errorf("%.2f:1 between zones, want 7:1", over)
	}
	if got.leafSpine*16 != got.hostLeaf*18 {
		t.Errorf("%d links up for %d down", got.leafSpine, got.hostLeaf)
	}
}

// TestAlibabaHPN: 1,024 GPUs a segment, 15 segments, each NIC in both planes,
// and planes that share nothing.
func TestAlibabaHPN(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "alibaba-hpn", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := b.Graph
	if got := count(g, 1); got.gpus != 15360 || got.leaf != 15*16 || got.spine != 120 || got.core != 0 {
		t.Errorf("%+v", got)
	}
	pods := map[int32]int{}
	g.Each(topo.GPU, func(_ topo.NodeID, n *topo.Node) { pods[n.Pod]++ })
	if len(pods) != 15 || pods[14] != 1024 {
		t.Errorf("%d segments of %d", len(pods), pods[14])
	}
	g.Each(topo.NIC, func(n topo.NodeID, s *topo.Node) {
		if s.Fabric == topo.None {
			return
		}
		planes := map[int8]bool{}
		for _, e := range g.Edges(n) {
			if p := &g.Nodes[e.Peer]; p.Kind == topo.Switch {
				planes[p.Plane] = true
				if rate := g.Rate(e.Link).Bits(); math.Abs(float64(rate)-200e9) > 1e6 {
					t.Fatalf("%s at %s", g.LinkName(e.Link), rate)
				}
			}
		}
		if !planes[0] || !planes[1] {
			t.Fatalf("%s is in planes %v", g.NodeName(n), planes)
		}
	})
	for i := range g.Links {
		a, b := &g.Nodes[g.Links[i].A], &g.Nodes[g.Links[i].B]
		if a.Kind == topo.Switch && a.Plane != b.Plane {
			t.Fatalf("%s crosses planes", g.LinkName(topo.LinkID(i)))
		}
	}
}

// TestNVLink256: 57.6 TB/s leave the hosts, 18 trays of two chips full to the last port.
func TestNVLink256(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "nvlink-256", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := b.Graph
	chips, rate := 0, 0.0
	g.Each(topo.NVSwitch, func(n topo.NodeID, s *topo.Node) {
		if s.Tier != 2 {
			return
		}
		chips++
		links := 0
		for _, e := range g.Edges(n) {
			links += int(g.Links[e.Link].Count)
			rate += float64(g.Rate(e.Link))
		}
		if links != int(s.Ports) {
			t.Errorf("%s uses %d of %d ports", s.Name, links, s.Ports)
		}
	})
	if chips != 36 || math.Abs(rate-57.6e12) > 1e9 {
		t.Errorf("%d chips, %.1f TB/s", chips, rate/1e12)
	}
	from, _ := g.Lookup("n0:gpu0")
	to, _ := g.Lookup("n31:gpu7")
	way, err := g.Route(topo.Flow{From: from, To: to}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range way {
		if !g.Class(u.Link).Kind.Accelerator() {
			t.Fatalf("%s on the way", g.LinkName(u.Link))
		}
	}
	if _, err := BuildPreset(catalog.Default(), "nvlink-256", map[string]int{"hosts": 33}); err == nil {
		t.Error("33 hosts fit")
	}
}

// TestGB200Unit: 72 GPUs of a rack on NVLink, and racks joined by rails.
func TestGB200Unit(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "gb200-su", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := b.Graph
	for _, c := range []struct {
		to     string
		inside bool
	}{{"n17:gpu3", true}, {"n18:gpu0", false}} {
		from, _ := g.Lookup("n0:gpu0")
		to, err := g.Lookup(c.to)
		if err != nil {
			t.Fatal(err)
		}
		way, err := g.Route(topo.Flow{From: from, To: to}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.Class(way[0].Link).Kind == topo.NVLink; got != c.inside {
			t.Errorf("n0:gpu0 to %s: on NVLink %v", c.to, got)
		}
	}
}

// TestDoesNotFit: what is refused says what would fit.
func TestDoesNotFit(t *testing.T) {
	c := catalog.Default()
	small := c.Switches["QM9700"]
	small.Name, small.Ports = "small", 7
	c.Switches["small"] = small
	for _, x := range []struct {
		hosts int
		f     Fabric
		want  string
	}{
		{300, Clos{Rails: true, Tiers: 2, Leaf: Tier{Model: "QM9700"}}, "at most 256 hosts fit, or use tiers: 3"},
		{300, Clos{Tiers: 1, Leaf: Tier{Model: "QM9700"}}, "takes 8 hosts; use tiers: 2"},
		{9000, Clos{Rails: true, Tiers: 3, Leaf: Tier{Model: "QM9700"}}, "at most 8192 hosts fit"},
		{100, Clos{Leaf: Tier{Model: "small"}}, "7 ports of leaf small do not divide 1:1; write down: 3, up: 3"},
		{10, Clos{Rails: true, Tiers: 2, Leaf: Tier{Model: "QM9700", Oversub: Ratio{2, 1}}}, "write down: 42, up: 21, which leaves 1 unused"},
		{100, Clos{Rails: true, Unit: 40, Tiers: 2, Leaf: Tier{Model: "QM9700"}}, "at most 32 hosts a unit fit"},
		{10, Clos{Leaves: 9, Tiers: 2, Leaf: Tier{Model: "QM9700"}}, "only 8 NICs"},
		{10, Clos{Leaf: Tier{Model: "QM97"}}, "known: "},
		{10, Clos{Leaf: Tier{Model: "QM9700"}, Tiers: 4}, "known: 1, 2, 3"},
		{10, Clos{Leaf: Tier{Model: "QM9700"}, Unit: -1}, "between 0 and"},
		{64, Clos{Rails: true, Tiers: 2, Leaf: Tier{Model: "QM9700"}, Spine: Tier{Count: 5}}, "5 spines do not fit"},
		{10, Clos{Leaf: Tier{Model: "QM9700", Down: 60, Up: 20}}, "80 ndr links need 80 ports of QM9700, which has 64"},
		{10, Clos{Leaf: Tier{Model: "QM9700"}, Link: "400gbe"}, "is ethernet"},
		{1000, Dragonfly{Routers: 4, Ports: 2, Global: 2, Groups: 9, Model: "QM9700"}, "72 fit"},
		{1, Dragonfly{Routers: 4, Ports: 2, Global: 2, Groups: 10, Model: "QM9700"}, "2 to 9 groups"},
		{1, Dragonfly{Routers: 60, Ports: 20, Global: 2, Model: "QM9700"}, "in all, and QM9700 has 64"},
		{100, Torus{Dims: []int{2, 2}, Ports: 8, Model: "QM9700"}, "32 fit"},
		{1, Torus{Dims: []int{0, 2}, Ports: 8, Model: "QM9700"}, "at least 1"},
		{1, Torus{Dims: []int{1 << 20, 2}, Ports: 8, Model: "QM9700"}, "places"},
		{1, Torus{Dims: []int{2}, Ports: 63, Model: "QM9700"}, "for its neighbours"},
	} {
		_, err := simple(c, "x", "dgx-h100", x.hosts, 0, x.f)
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v\ngot  %v\nwant %q", x.f, err, x.want)
		}
	}
}

// TestMostHostsFit: the number that an error or a report names does fit, and one more does not.
func TestMostHostsFit(t *testing.T) {
	c := catalog.Default()
	tiny := c.Switches["QM9700"]
	tiny.Name, tiny.Ports = "tiny", 16
	c.Switches["tiny"] = tiny
	for _, f := range []Clos{
		{Rails: true, Tiers: 2}, {Rails: true, Tiers: 2, ByRail: true}, {Tiers: 2}, {Tiers: 1}, {Rails: true, Tiers: 3}, {Tiers: 3},
		{Rails: true, Tiers: 3, ByRail: true}, {Rails: true, Tiers: 2, Leaf: Tier{Oversub: Ratio{3, 1}}},
		{Tiers: 3, Spine: Tier{Oversub: Ratio{3, 1}}},
	} {
		f.Leaf.Model = "tiny"
		b, err := simple(c, "x", "dgx-h100", 1, 0, f)
		if err != nil {
			t.Fatal(err)
		}
		most := b.Growth.MaxHosts
		if _, err := simple(c, "x", "dgx-h100", most, 0, f); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
		if _, err := simple(c, "x", "dgx-h100", most+1, 0, f); err == nil {
			t.Errorf("%+v: %d hosts fit too", f, most+1)
		}
	}
}

// TestPresetNames: unknown names and parameters are answered with the known ones.
func TestPresetNames(t *testing.T) {
	c := catalog.Default()
	seen := map[string]bool{}
	for _, p := range Presets() {
		if seen[p.Name] || p.Summary == "" {
			t.Errorf("preset %q comes twice or has no summary", p.Name)
		}
		seen[p.Name] = true
	}
	if _, err := BuildPreset(c, "superpod-h10", nil); err == nil || !strings.Contains(err.Error(), "superpod-h100") {
		t.Error(err)
	}
	if _, err := BuildPreset(c, "superpod-h100", map[string]int{"zones": 1}); err == nil || !strings.Contains(err.Error(), "it takes: su") {
		t.Error(err)
	}
	if _, err := BuildPreset(c, "superpod-h100", map[string]int{"su": -1}); err == nil || !strings.Contains(err.Error(), "between") {
		t.Error(err)
	}
}

// TestGrowth: one unit more has one unit more.
func TestGrowth(t *testing.T) {
	b, err := BuildPreset(catalog.Default(), "superpod-h100", map[string]int{"su": 3})
	if err != nil {
		t.Fatal(err)
	}
	if b.Growth.UnitHosts != 32 || b.Growth.MaxHosts != 256 || b.Next == nil {
		t.Errorf("%+v", b.Growth)
	}
	g, err := b.Next()
	if err != nil || count(g, 1).hosts != 127 {
		t.Error(err)
	}
}
