package paths

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

func preset(t testing.TB, name string, params map[string]int) *topo.Graph {
	t.Helper()
	built, err := build.BuildPreset(catalog.Default(), name, params)
	if err != nil {
		t.Fatal(err)
	}
	return built.Graph
}

func lookup(t testing.TB, g *topo.Graph, name string) topo.NodeID {
	t.Helper()
	n, err := g.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// between lists the paths between two named nodes and checks each of them.
func between(t testing.TB, g *topo.Graph, a, b string) []Path {
	t.Helper()
	list, err := Between(g, lookup(t, g, a), lookup(t, g, b), catalog.Default())
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		sound(t, g, &list[i])
	}
	return list
}

// sound checks what holds of every path: all bytes start at one end, every share
// is at a node before it leaves it, all arrive; the parts of the latency add up;
// rates are ordered; and every sentence is there.
func sound(t testing.TB, g *topo.Graph, p *Path) {
	t.Helper()
	at := map[topo.NodeID]float64{p.From: 1}
	for _, u := range p.Hops {
		from, to := g.Links[u.Link].Ends(u.Forward)
		if at[from] < float64(u.Share)-1e-4 {
			t.Fatalf("%s: %s carries %g but only %g is at %s", p.name(), g.LinkName(u.Link), u.Share, at[from], g.NodeName(from))
		}
		at[from] -= float64(u.Share)
		at[to] += float64(u.Share)
	}
	for n, share := range at {
		if want := float64(b2i(n == p.To)); math.Abs(share-want) > 1e-4 {
			t.Fatalf("%s: %g of the bytes end at %s", p.name(), share, g.NodeName(n))
		}
	}
	var sum unit.Time
	for _, term := range p.Terms {
		if term.Time <= 0 || term.What == "" {
			t.Fatalf("%s: term %+v", p.name(), term)
		}
		sum += term.Time
	}
	if sum != p.Latency || !(p.Loaded <= p.Expected && p.Expected <= p.Rate && p.Loaded > 0) || p.Count < 1 {
		t.Fatalf("%s: terms make %s of %s; rates %s %s %s; %d ways", p.name(), sum, p.Latency, p.Loaded, p.Expected, p.Rate, p.Count)
	}
	if p.Limit == "" || p.Reason == "" || (p.Crowd == "") != (p.Loaded == p.Expected) {
		t.Fatalf("%s: limit %q, reason %q, crowd %q at %s of %s", p.name(), p.Limit, p.Reason, p.Crowd, p.Loaded, p.Expected)
	}
	route := p.Route(g)
	if !strings.HasPrefix(route, g.NodeName(p.From)+" → ") || !strings.HasSuffix(route, " → "+g.NodeName(p.To)) {
		t.Fatalf("%s: route %q", p.name(), route)
	}
}

func mechanisms(list []Path) []Mechanism {
	var m []Mechanism
	for _, p := range list {
		m = append(m, p.Mechanism)
	}
	return m
}

// first gives the best path of a mechanism.
func first(t testing.TB, list []Path, m Mechanism) *Path {
	t.Helper()
	for i := range list {
		if list[i].Mechanism == m {
			return &list[i]
		}
	}
	t.Fatalf("no %s among %v", m, mechanisms(list))
	return nil
}

func near(t testing.TB, what string, got unit.Rate, want float64) {
	t.Helper()
	if g := float64(got) / 1e9; math.Abs(g-want) > want*0.005 {
		t.Errorf("%s: %.2f GB/s, want %.2f", what, g, want)
	}
}

// NVLink before PCIe before RDMA before sockets, for every pair of a host and
// for large and small messages, on the machines that the rule was made for.
func TestNVLinkBeforePCIeBeforeRDMABeforeSockets(t *testing.T) {
	for _, name := range []string{"superpod-a100", "superpod-h100"} {
		g := preset(t, name, nil)
		host := g.Hosts[0].Name
		for i := range 8 {
			for j := range 8 {
				if i == j {
					continue
				}
				list := between(t, g, fmt.Sprintf("%s:gpu%d", host, i), fmt.Sprintf("%s:gpu%d", host, j))
				for _, size := range []unit.Bytes{8, 64 * unit.KiB, Reference, unit.GiB} {
					Rank(list, size)
					got := slices.DeleteFunc(mechanisms(list), func(m Mechanism) bool { return m == Staged })
					if want := []Mechanism{NVSwitch, PCIe, RDMA, Sockets}; !slices.Equal(got, want) {
						t.Errorf("%s gpu%d to gpu%d, %s: %v", name, i, j, size, got)
					}
				}
			}
		}
	}
}

// Measured bus bandwidths of large messages, as NVIDIA shows them (GTC24
// S62129): the expected rates are the same ones.
func TestFiguresNVIDIAShows(t *testing.T) {
	h100 := preset(t, "superpod-h100", nil)
	list := between(t, h100, h100.Hosts[0].Name+":gpu0", h100.Hosts[0].Name+":gpu1")
	near(t, "NVLink4", first(t, list, NVSwitch).Expected, 370)
	near(t, "PCIe 5", first(t, list, PCIe).Expected, 48)
	list = between(t, h100, h100.Hosts[0].Name+":gpu0", h100.Hosts[1].Name+":gpu0")
	near(t, "400G RDMA", first(t, list, RDMA).Expected, 48)

	a100 := preset(t, "superpod-a100", nil)
	list = between(t, a100, a100.Hosts[0].Name+":gpu0", a100.Hosts[0].Name+":gpu1")
	near(t, "NVLink3", first(t, list, NVSwitch).Expected, 232)
	near(t, "NVLink3 on the wire", first(t, list, NVSwitch).Rate, 300)
	near(t, "PCIe 4", first(t, list, PCIe).Expected, 24)
	list = between(t, a100, a100.Hosts[0].Name+":gpu0", a100.Hosts[1].Name+":gpu0")
	near(t, "200G RDMA", first(t, list, RDMA).Expected, 24)

	list = between(t, plain(t, "100gbe", 1), "n0:gpu0", "n1:gpu0")
	near(t, "100GbE sockets", first(t, list, Sockets).Expected, 10)
	near(t, "100GbE RoCE", first(t, list, RDMA).Expected, 12)
	list = between(t, plain(t, "10gbe", 1), "n0:gpu0", "n1:gpu0")
	near(t, "10GbE sockets", first(t, list, Sockets).Expected, 1)
}

// plain is two hosts with some GPUs on one PCIe switch and one NIC, at one switch.
func plain(t testing.TB, network string, gpus int) *topo.Graph {
	t.Helper()
	c := catalog.Default()
	b := topo.NewBuilder("plain")
	class := func(gen string) topo.ClassID {
		l, err := c.Link(gen)
		if err != nil {
			t.Fatal(err)
		}
		return b.Class(l.Class(0))
	}
	fabric := b.Fabric(topo.Fabric{Name: "compute", Family: topo.Clos})
	sw := topo.Part(topo.Switch, topo.None, "leaf0")
	sw.Tier, sw.Fabric = 1, fabric
	leaf := b.Node(sw)
	for h := range 2 {
		host := b.Host(topo.Host{Name: fmt.Sprintf("n%d", h), Pod: topo.None, Rack: topo.None})
		cpu := b.Node(topo.Part(topo.CPU, host, "cpu0"))
		root := b.Node(topo.Part(topo.RootPort, host, "root0"))
		pex := b.Node(topo.Part(topo.PCIeSwitch, host, "pex0"))
		n := topo.Part(topo.NIC, host, "nic0")
		n.Fabric = fabric
		nic := b.Node(n)
		b.Link(topo.Link{A: cpu, B: root, Class: class("iomesh")})
		b.Link(topo.Link{A: root, B: pex, Class: class("pcie4")})
		b.Link(topo.Link{A: pex, B: nic, Class: class("pcie4")})
		b.Link(topo.Link{A: nic, B: leaf, Class: class(network)})
		for i := range gpus {
			gpu := b.Node(topo.Part(topo.GPU, host, fmt.Sprintf("gpu%d", i)))
			b.Link(topo.Link{A: pex, B: gpu, Class: class("pcie4")})
		}
	}
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Four GPUs on one PCIe switch each get a quarter of its uplink, and of the NIC
// behind it, when all of them use it; peers under the switch do not share it.
func TestSharedBus(t *testing.T) {
	g := plain(t, "hdr", 4)
	list := between(t, g, "n0:gpu0", "n0:cpu0")
	p := first(t, list, PCIe)
	near(t, "alone", p.Expected, 24)
	near(t, "all four", p.Loaded, 6)
	if p.Crowd != "4 GPUs share n0:root0 - n0:pex0" {
		t.Errorf("crowd %q", p.Crowd)
	}
	p = first(t, between(t, g, "n0:gpu0", "n0:gpu3"), PCIe)
	near(t, "under the switch", p.Loaded, 24)
	if p.Detail != "PIX" {
		t.Errorf("detail %q", p.Detail)
	}
	near(t, "NIC", first(t, between(t, g, "n0:gpu0", "n1:gpu2"), RDMA).Loaded, 6)
}

// In one rail a leaf joins the hosts. Across rails the fabric has spines, of
// which there are as many ways as links, and PXN avoids them; without spines
// between rails PXN is the only way left.
func TestCrossRail(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 64})
	same := between(t, g, "n0:gpu3", "n1:gpu3")
	if p := first(t, same, RDMA); p.Detail != "rail 3" || p.Count != 1 || strings.Contains(p.Route(g), "spine") {
		t.Errorf("same rail: %q, %d ways, %s", p.Detail, p.Count, p.Route(g))
	}
	cross := between(t, g, "n0:gpu0", "n1:gpu5")
	spine, pxn := first(t, cross, RDMA), first(t, cross, RDMAPXN)
	if spine.Detail != "rail 0 to rail 5" || !strings.Contains(spine.Route(g), "spine") || spine.Count < 2 {
		t.Errorf("spine: %q, %d ways, %s", spine.Detail, spine.Count, spine.Route(g))
	}
	if pxn.Count != 1 || strings.Contains(pxn.Route(g), "spine") || !strings.Contains(pxn.Route(g), "n0:gpu5") || len(pxn.Stores) != 1 {
		t.Errorf("PXN: %d ways, stored %v, %s", pxn.Count, pxn.Stores, pxn.Route(g))
	}
	near(t, "PXN", pxn.Expected, float64(spine.Expected)/1e9)

	only := preset(t, "rail", map[string]int{"hosts": 64, "rail-only": 1})
	if m := mechanisms(between(t, only, "n0:gpu0", "n1:gpu5")); slices.Contains(m, RDMA) || m[0] != RDMAPXN {
		t.Errorf("rail only: %v", m)
	}
}

// Behind an oversubscribed leaf the way over the spine has less under load, and PXN has not.
func TestOversubscribedSpine(t *testing.T) {
	g := preset(t, "fat-tree", map[string]int{"hosts": 128, "tiers": 2, "down": 3, "up": 1})
	last := g.Hosts[len(g.Hosts)-1].Name
	p := first(t, between(t, g, g.Hosts[0].Name+":gpu0", last+":gpu0"), RDMA)
	near(t, "alone", p.Expected, 48)
	near(t, "all", p.Loaded, 16)
	if !strings.Contains(p.Crowd, "down and") {
		t.Errorf("crowd %q", p.Crowd)
	}
}

func TestTwoPlanes(t *testing.T) {
	g := preset(t, "alibaba-hpn", map[string]int{"segments": 2})
	list := between(t, g, "n0:gpu0", "n200:gpu0")
	planes := map[string]bool{}
	for _, p := range list {
		if p.Mechanism == RDMA {
			planes[p.Detail] = true
			near(t, "one plane", p.Expected, 24)
			if p.Count != 60 {
				t.Errorf("%s: %d ways, want one by each of 60 aggregation switches", p.Detail, p.Count)
			}
		}
	}
	both := first(t, list, RDMAPlanes)
	if len(planes) != 2 || list[0].Mechanism != RDMAPlanes || both.Count != 3600 {
		t.Errorf("%v: %v", planes, mechanisms(list))
	}
	near(t, "both planes", both.Expected, 48)
}

// GPUs of one rack are joined by NVLink across hosts; racks are not.
func TestRacksOfNVLink(t *testing.T) {
	g := preset(t, "gb200-su", nil)
	a, b := g.Hosts[0].Name, g.Hosts[17].Name
	if list := between(t, g, a+":gpu0", b+":gpu3"); list[0].Mechanism != NVSwitch || list[1].Mechanism == NVSwitch {
		t.Errorf("one rack: %v", mechanisms(list))
	} else {
		near(t, "one rack", list[0].Rate, 900)
	}
	if m := mechanisms(between(t, g, a+":gpu0", g.Hosts[18].Name+":gpu0")); slices.Contains(m, NVSwitch) || !slices.Contains(m, RDMA) {
		t.Errorf("two racks: %v", m)
	}
	if list := between(t, g, a+":gpu0", a+":cpu0"); list[0].Mechanism != C2C {
		t.Errorf("to Grace: %v", mechanisms(list))
	}
}

// Without a link of their own, V100 GPUs 0 and 5 have NVLink by way of 1 or 4,
// which is faster than PCIe across the sockets.
func TestRelayOnTheCubeMesh(t *testing.T) {
	g := preset(t, "dgx-1v", nil)
	list := between(t, g, "n0:gpu0", "n0:gpu5")
	p := first(t, list, Relay)
	if list[0].Mechanism != Relay || p.Count != 2 || p.Detail != "by gpu4" && p.Detail != "by gpu1" {
		t.Errorf("%v: %s, %d ways", mechanisms(list), p.Detail, p.Count)
	}
	if m := mechanisms(between(t, g, "n0:gpu0", "n0:gpu3")); m[0] != NVLink || m[1] != Relay {
		t.Errorf("direct: %v", m)
	}
}

// A small message ranks by latency: through host memory it is there before a NIC
// has been told of it, while a large one waits for the staging buffer.
func TestSizeChangesTheOrder(t *testing.T) {
	g := preset(t, "superpod-h100", nil)
	host := g.Hosts[0].Name
	list := between(t, g, host+":gpu0", host+":gpu1")
	index := func(m Mechanism) int { return slices.Index(mechanisms(list), m) }
	Rank(list, 8)
	if index(Staged) > index(RDMA) {
		t.Errorf("8 bytes: %v", mechanisms(list))
	}
	Rank(list, Reference)
	if index(Staged) < index(RDMA) {
		t.Errorf("1 MiB: %v", mechanisms(list))
	}
	if !strings.Contains(list[index(Staged)].Reason, "stored and forwarded once") {
		t.Errorf("reason: %s", list[index(Staged)].Reason)
	}
	for i := 1; i < len(list); i++ {
		if list[i].Time(Reference) < list[i-1].Time(Reference) {
			t.Errorf("%s before %s", list[i-1].name(), list[i].name())
		}
	}
}

func TestEndpointsOfEveryKind(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 4})
	for _, c := range []struct {
		a, b string
		want []Mechanism
	}{
		{"n0:cpu0", "n0:cpu1", []Mechanism{RDMA, Socket, Sockets}},
		{"n0:cpu0", "n1:cpu1", []Mechanism{RDMA, Sockets}}, // two sockets, two rails, and no GPU to carry PXN
		{"n0:gpu0", "n0:nic0", []Mechanism{PCIe}},
		{"n0:nic0", "n2:nic0", []Mechanism{RDMA}},
		{"n0:nic0", "n0:nic1", []Mechanism{PCIe, RDMA}},
		{"n0:nic2", "n1:gpu2", []Mechanism{RDMA}},
		{"n3:gpu1", "n1:cpu0", []Mechanism{RDMA, RDMAPXN, Sockets}},
	} {
		got := mechanisms(between(t, g, c.a, c.b))
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s to %s: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestErrors(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 2})
	c := catalog.Default()
	gpu := lookup(t, g, "n0:gpu0")
	for want, f := range map[string]func() ([]Path, error){
		"both ends":          func() ([]Path, error) { return Between(g, gpu, gpu, c) },
		"a path joins":       func() ([]Path, error) { return Between(g, gpu, lookup(t, g, "leaf0"), c) },
		"node number 999999": func() ([]Path, error) { return Between(g, gpu, 999999, c) },
		"no catalogue":       func() ([]Path, error) { return Between(g, gpu, gpu+1, nil) },
		"no path": func() ([]Path, error) {
			b := topo.NewBuilder("apart")
			for _, h := range []string{"n0", "n1"} {
				b.Node(topo.Part(topo.GPU, b.Host(topo.Host{Name: h}), "gpu0"))
			}
			g, err := b.Graph()
			if err != nil {
				t.Fatal(err)
			}
			return Between(g, 0, 1, c)
		},
	} {
		if list, err := f(); err == nil || !strings.Contains(err.Error(), want) || list != nil {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestPrint(t *testing.T) {
	g := preset(t, "rail", map[string]int{"hosts": 64})
	var b strings.Builder
	if err := Print(&b, g, between(t, g, "n0:gpu0", "n1:gpu0"), Reference); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mechanism", "1 MiB", "n0:nic0 → leaf0:p1 → n1:nic0", "shortest time for 1 MiB",
		"message posted to the NIC 1 us"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing from\n%s", want, b.String())
		}
	}
}

// The JSON form names nodes, and its hops are those of the path.
func TestReports(t *testing.T) {
	g := preset(t, "dgx-h100", nil)
	list := between(t, g, "n0:gpu0", "n0:gpu5")
	out := Reports(g, list, Reference)
	if len(out) != len(list) || out[0].Mechanism != NVSwitch || out[0].Rate != 450e9 || out[0].Expected != 370e9 || out[0].Rank != 1 {
		t.Errorf("%+v", out[0])
	}
	if h := out[0].Hops; h[0].From != "n0:gpu0" || h[len(h)-1].To != "n0:gpu5" || h[0].Gen != "nvlink4" {
		t.Errorf("hops %+v", h)
	}
}
