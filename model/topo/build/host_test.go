package build

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

func mustHost(t testing.TB, kind string) *topo.Graph {
	t.Helper()
	g, err := Host(catalog.Default(), kind, "n0")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func node(t testing.TB, g *topo.Graph, name string) topo.NodeID {
	t.Helper()
	n, err := g.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// accelerators counts the accelerator links of a node.
func accelerators(g *topo.Graph, n topo.NodeID) int {
	links := 0
	for _, e := range g.Edges(n) {
		if k := g.Class(e.Link).Kind; k.Accelerator() && k != topo.C2C {
			links += int(g.Links[e.Link].Count)
		}
	}
	return links
}

// Every known kind builds, twice the same, with as many GPUs and compute NICs as
// the catalogue says, names that count from nought, and a NIC for every GPU.
func TestEveryHostKindBuilds(t *testing.T) {
	c := catalog.Default()
	for _, kind := range HostKinds() {
		g := mustHost(t, kind)
		if !reflect.DeepEqual(g, mustHost(t, kind)) {
			t.Errorf("%s: two builds differ", kind)
		}
		want := c.Hosts[kind]
		if g.Hosts[0].Model != kind || g.Hosts[0].Name != "n0" {
			t.Errorf("%s: host is %+v", kind, g.Hosts[0])
		}
		next, nics := map[string]int{}, 0
		for i := range g.Nodes {
			n := &g.Nodes[i]
			prefix := strings.TrimRight(n.Name, "0123456789")
			if n.Name != fmt.Sprintf("%s%d", prefix, next[prefix]) {
				t.Errorf("%s: %s comes as number %d of its name", kind, n.Name, next[prefix])
			}
			next[prefix]++
			if prefix == "nic" {
				if int(n.Rail) != nics {
					t.Errorf("%s: %s is on rail %d", kind, n.Name, n.Rail)
				}
				nics++
			} else if n.Rail != topo.None {
				t.Errorf("%s: %s is on rail %d", kind, n.Name, n.Rail)
			}
			switch prefix {
			case "gpu", "cpu", "root", "pex", "nvs", "nic", "stor", "svc":
			default:
				t.Errorf("%s: unexpected name %s", kind, n.Name)
			}
			var err error
			switch n.Kind {
			case topo.GPU:
				_, err = c.GPU(n.Model)
			case topo.NIC:
				_, err = c.NIC(n.Model)
			case topo.NVSwitch:
				_, err = c.Switch(n.Model)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", kind, n.Name, err)
			}
			if n.Model == "" && n.Kind != topo.RootPort && n.Kind != topo.PCIeSwitch {
				t.Errorf("%s: %s has no model", kind, n.Name)
			}
		}
		if next["gpu"] != want.GPUs || nics != want.NICs {
			t.Errorf("%s: %d GPUs and %d NICs, the catalogue has %d and %d", kind, next["gpu"], nics, want.GPUs, want.NICs)
		}
		g.Each(topo.GPU, func(id topo.NodeID, n *topo.Node) {
			if near := g.Near(id); near == topo.None || !strings.HasPrefix(g.Nodes[near].Name, "nic") {
				t.Errorf("%s: %s has no compute NIC near it", kind, n.Name)
			} else if way, ok := g.Inside(id, near, nil); !ok || between(g, way) < c.Links[c.NICs[want.NIC].Link].Class(0).Rate {
				t.Errorf("%s: %s reaches %s at %s, less than its wire", kind, n.Name, g.Nodes[near].Name, between(g, way))
			}
		})
	}
}

func TestHostKindsAreTheCataloguesHosts(t *testing.T) {
	known := slices.SortedFunc(maps.Keys(catalog.Default().Hosts), topo.Natural)
	if !slices.Equal(known, HostKinds()) {
		t.Errorf("catalogue %v, wirings %v", known, HostKinds())
	}
	if _, err := Host(catalog.Default(), "dgx-z", "n0"); err == nil || !strings.Contains(err.Error(), `"dgx-z"`) ||
		!strings.Contains(err.Error(), "dgx-h100") {
		t.Errorf("unknown kind: %v", err)
	}
}

// A host takes the GPU and the NIC that the catalogue gives it.
func TestHostFollowsTheCatalogue(t *testing.T) {
	c := catalog.Default()
	h := c.Hosts["hgx-h100"]
	h.GPU, h.NIC = "H200", "BlueField-3"
	c.Hosts["hgx-h100"] = h
	g, err := Host(c, "hgx-h100", "n0")
	if err != nil {
		t.Fatal(err)
	}
	if gpu, nic := g.Nodes[node(t, g, "gpu0")].Model, g.Nodes[node(t, g, "nic0")].Model; gpu != "H200" || nic != "BlueField-3" {
		t.Errorf("%s, %s", gpu, nic)
	}
	h.GPU = "H900"
	c.Hosts["hgx-h100"] = h
	if _, err := Host(c, "hgx-h100", "n0"); err == nil || !strings.Contains(err.Error(), `"H900"`) {
		t.Errorf("unknown GPU: %v", err)
	}
}

// Every GPU has all the accelerator links of its model inside the host, but for
// cards without links, trays and superchips whose links leave the host, and TPU
// chips, four of whose six links do.
func TestAcceleratorLinksOfEveryGPU(t *testing.T) {
	c := catalog.Default()
	outside := map[string]int{"gb200": 18, "gb300": 18, "gh200": 18, "tpu-v4": 4}
	for _, kind := range HostKinds() {
		g := mustHost(t, kind)
		want := c.GPUs[c.Hosts[kind].GPU].Links - outside[kind]
		g.Each(topo.GPU, func(id topo.NodeID, n *topo.Node) {
			if got := accelerators(g, id); got != want {
				t.Errorf("%s: %s has %d links, want %d", kind, n.Name, got, want)
			}
		})
		g.Each(topo.NVSwitch, func(id topo.NodeID, n *topo.Node) {
			if used := accelerators(g, id); used > int(n.Ports) || n.Ports == 0 || n.Tier != 1 {
				t.Errorf("%s: %s uses %d of %d ports, tier %d", kind, n.Name, used, n.Ports, n.Tier)
			}
		})
	}
}

// between is the rate from one node to another along a way: each link gives its
// rate to the share of the bytes that it carries.
func between(g *topo.Graph, way []topo.Use) unit.Rate {
	rate := unit.Rate(math.Inf(1))
	for _, u := range way {
		rate = min(rate, g.Rate(u.Link)/unit.Rate(u.Share))
	}
	return rate
}

// Behind NVSwitches any two GPUs reach each other at the rate of all their
// links: 150, 300, 450 and 900 GB/s each way, on DGX-2 across its boards as well.
func TestAnyPairBehindNVSwitchUsesAllLinks(t *testing.T) {
	for kind, want := range map[string]unit.Rate{
		"dgx-2": 150e9, "dgx-a100": 300e9, "hgx-a100": 300e9, "dgx-h100": 450e9, "hgx-h100": 450e9, "dgx-h200": 450e9,
		"grand-teton": 450e9, "dgx-b200": 900e9, "dgx-b300": 900e9, "hgx-h20": 450e9, "hgx-h800": 200e9,
	} {
		g := mustHost(t, kind)
		var way []topo.Use
		var err error
		g.Each(topo.GPU, func(a topo.NodeID, _ *topo.Node) {
			g.Each(topo.GPU, func(b topo.NodeID, _ *topo.Node) {
				if a == b {
					return
				}
				if way, err = g.Route(topo.Flow{From: a, To: b}, way[:0]); err != nil {
					t.Fatal(err)
				}
				if got := between(g, way); math.Abs(float64(got-want)) > 1e-6*float64(want) { // shares are float32
					t.Errorf("%s: %s to %s at %s, want %s", kind, g.NodeName(a), g.NodeName(b), got, want)
				}
			})
		})
	}
}

// S2: four GPUs behind one PCIe switch that all send upwards get a quarter of
// its uplink each; among themselves they do not share it.
func TestS2FourGPUsShareOneUplink(t *testing.T) {
	g := mustHost(t, "pcie-8-plx")
	memory := node(t, g, "cpu0")
	load := map[topo.LinkID]float32{}
	for i := range 4 {
		way, ok := g.Inside(node(t, g, gpu(i)), memory, nil)
		if !ok {
			t.Fatal("no way to memory")
		}
		for _, u := range way {
			load[u.Link] += u.Share
		}
	}
	x16 := catalog.Default().Links["pcie4"].Class(0).Rate
	fair := unit.Rate(math.Inf(1))
	for l, share := range load {
		fair = min(fair, g.Rate(l)/unit.Rate(share))
	}
	if fair != x16/4 {
		t.Errorf("each GPU gets %s of %s", fair, x16)
	}
	clear(load)
	for i := range 4 { // a ring inside the switch
		way, _ := g.Inside(node(t, g, gpu(i)), node(t, g, gpu((i+1)%4)), nil)
		for _, u := range way {
			key := u.Link * 2
			if u.Forward {
				key++
			}
			if load[key] += u.Share; load[key] > 1 {
				t.Errorf("%s is shared in a ring", g.LinkName(u.Link))
			}
		}
	}
	// Without the switch every GPU has a root port, and so its sixteen lanes, to itself.
	g = mustHost(t, "pcie-8")
	way, _ := g.Inside(node(t, g, "gpu0"), node(t, g, "cpu0"), nil)
	if got := between(g, way); got != x16 {
		t.Errorf("a GPU on its own root port gets %s", got)
	}
}

// A Summit GPU reaches its CPU over two NVLinks, 50 GB/s each way, and has four more to its two neighbours.
func TestSummitGPUsReachTheCPUOverNVLink(t *testing.T) {
	g := mustHost(t, "summit")
	way, ok := g.Inside(node(t, g, "gpu4"), node(t, g, "cpu1"), nil)
	if !ok || len(way) != 1 || g.Class(way[0].Link).Kind != topo.NVLink || between(g, way) != 50e9 {
		t.Errorf("gpu4 to cpu1: %v at %s", way, between(g, way))
	}
	way, _ = g.Inside(node(t, g, "gpu0"), g.Near(node(t, g, "gpu0")), nil)
	if got := between(g, way); got != catalog.Default().Links["pcie4"].Class(8).Rate {
		t.Errorf("gpu0 to its NIC at %s, want eight lanes of PCIe 4", got)
	}
}

// Grace and Hopper: 900 GB/s both ways; Grace and two Blackwells: half of that to each.
func TestGraceReachesItsGPUsOverC2C(t *testing.T) {
	for kind, want := range map[string]unit.BothWays{"gh200": 900e9, "gb200": 450e9, "gb300": 450e9} {
		g := mustHost(t, kind)
		way, ok := g.Inside(node(t, g, "gpu0"), node(t, g, "cpu0"), nil)
		if !ok || between(g, way).BothWays() != want {
			t.Errorf("%s: %s", kind, between(g, way).BothWays())
		}
	}
}

// A GB300 feeds its 800 Gb/s NIC over PCIe 6 past Grace; a GB200 its 400 Gb/s NIC through Grace.
func TestGraceBlackwellFeedsItsNIC(t *testing.T) {
	c := catalog.Default()
	for kind, links := range map[string]int{"gb200": 3, "gb300": 2} {
		g := mustHost(t, kind)
		from := node(t, g, "gpu2")
		to := g.Near(from)
		way, ok := g.Inside(from, to, nil)
		wire := c.Links[c.NICs[g.Nodes[to].Model].Link].Class(0).Rate
		if got := between(g, way); !ok || len(way) != links || got < wire || g.Nodes[to].Name != "nic2" {
			t.Errorf("%s: %d links to %s at %s, the wire has %s", kind, len(way), g.Nodes[to].Name, got, wire)
		}
	}
}

// Each NIC sits beside its GPU: NIC i serves GPU i where there are as many, and
// the two GPUs of its PCIe switch where there are half as many.
func TestNICsServeTheirGPUs(t *testing.T) {
	for kind, per := range map[string]int{
		"dgx-1v": 2, "dgx-2": 2, "dgx-a100": 1, "hgx-a100": 1, "dgx-h100": 1, "hgx-h100": 1,
		"dgx-b200": 1, "dgx-b300": 1, "grand-teton": 1, "gb200": 1, "gb300": 1, "mi300x": 1, "pcie-8": 4, "pcie-8-plx": 4, "summit": 3,
	} {
		g := mustHost(t, kind)
		i := 0
		g.Each(topo.GPU, func(id topo.NodeID, n *topo.Node) {
			if got, want := g.Nodes[g.Near(id)].Name, fmt.Sprintf("nic%d", i/per); got != want {
				t.Errorf("%s: %s uses %s, want %s", kind, n.Name, got, want)
			}
			i++
		})
	}
}
