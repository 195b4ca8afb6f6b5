package design

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/internal/reference"
	"github.com/weft-fabric/weft/model/cluster"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/unit"
)

// wiring is a fabric given as plain lists, for graphs that no builder makes.
type wiring struct {
	hosts  int
	leaves int
	tops   int
	nics   [][3]int // host, leaf, Gb/s
	up     [][3]int // leaf, top, Gb/s
}

func (w wiring) graph(tb interface{ Fatal(...any) }) *topo.Graph {
	b := topo.NewBuilder("wired")
	f := b.Fabric(topo.Fabric{Name: "compute", Family: topo.Irregular})
	class := func(gbps int) topo.ClassID {
		return b.Class(topo.Class{Kind: topo.InfiniBand, Gen: fmt.Sprintf("ib%d", gbps), Lanes: 4, Rate: (unit.BitRate(gbps) * unit.Gbps).Bytes(),
			Latency: 100 * unit.Nanosecond})
	}
	inside := b.Class(topo.Class{Kind: topo.PCIe, Gen: "pcie5", Lanes: 16, Rate: 63 * unit.GBps, Latency: 100 * unit.Nanosecond})
	gpus := make([]topo.NodeID, w.hosts)
	hosts := make([]topo.HostID, w.hosts)
	for h := range w.hosts {
		hosts[h] = b.Host(topo.Host{Name: fmt.Sprintf("n%d", h), Pod: topo.None, Rack: topo.None})
		gpus[h] = b.Node(topo.Part(topo.GPU, hosts[h], "gpu0"))
	}
	switches := func(n, tier int, name string) []topo.NodeID {
		list := make([]topo.NodeID, n)
		for i := range list {
			s := topo.Part(topo.Switch, topo.None, fmt.Sprintf("%s%d", name, i))
			s.Tier, s.Fabric = uint8(tier), f
			list[i] = b.Node(s)
		}
		return list
	}
	leaves, tops := switches(w.leaves, 1, "leaf"), switches(w.tops, 2, "spine")
	for i, x := range w.nics {
		nic := topo.Part(topo.NIC, hosts[x[0]], fmt.Sprintf("nic%d", i))
		nic.Fabric = f
		n := b.Node(nic)
		b.Link(topo.Link{A: n, B: leaves[x[1]], Class: class(x[2])})
		pex := b.Node(topo.Part(topo.PCIeSwitch, hosts[x[0]], fmt.Sprintf("pex%d", i)))
		b.Link(topo.Link{A: n, B: pex, Class: inside})
		if i == 0 || w.nics[i-1][0] != x[0] {
			b.Link(topo.Link{A: gpus[x[0]], B: pex, Class: inside})
		}
	}
	for _, x := range w.up {
		b.Link(topo.Link{A: leaves[x[0]], B: tops[x[1]], Class: class(x[2])})
	}
	g, err := b.Graph()
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func drawWiring(t *rapid.T) wiring {
	w := wiring{hosts: rapid.IntRange(2, 8).Draw(t, "hosts"), leaves: rapid.IntRange(1, 4).Draw(t, "leaves"),
		tops: rapid.IntRange(1, 3).Draw(t, "tops")}
	rate := rapid.SampledFrom([]int{100, 200, 400})
	for h := range w.hosts {
		for range rapid.IntRange(1, 3).Draw(t, "nics") {
			w.nics = append(w.nics, [3]int{h, rapid.IntRange(0, w.leaves-1).Draw(t, "leaf"), rate.Draw(t, "rate")})
		}
	}
	for l := range w.leaves {
		for range rapid.IntRange(0, 4).Draw(t, "ups") {
			w.up = append(w.up, [3]int{l, rapid.IntRange(0, w.tops-1).Draw(t, "top"), rate.Draw(t, "rate")})
		}
	}
	return w
}

// TestContractedFlowIsTheFlow compares the network with endpoints contracted per
// leaf with one in which every node of the graph is a node.
func TestContractedFlowIsTheFlow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := drawWiring(t).graph(t)
		v, err := look(g)
		if err != nil {
			t.Fatal(err)
		}
		h := v.halfFlow()
		got := v.bisect(h)
		var list []reference.Pipe
		n := len(g.Nodes)
		node := func(id topo.NodeID) int { return int(id) + 1 }
		for i := range g.Links {
			if l := &g.Links[i]; g.Class(topo.LinkID(i)).Kind.Network() {
				r := int64(g.Rate(topo.LinkID(i)))
				list = append(list, reference.Pipe{A: node(l.A), B: node(l.B), There: r, Back: r})
			}
		}
		for i, e := range v.ends {
			if h.first[i] {
				list = append(list, reference.Pipe{B: node(e.node), There: 1 << 50})
			} else {
				list = append(list, reference.Pipe{A: node(e.node), B: n + 1, There: 1 << 50})
			}
		}
		if want := reference.Flow(n+2, list); got.MaxFlow != float64(want) {
			t.Fatalf("contracted %g, whole %d", got.MaxFlow, want)
		}
		if *got.Formula < got.MaxFlow-1 {
			t.Fatalf("the formula, an upper bound, gives %g below the flow %g", *got.Formula, got.MaxFlow)
		}
		if got.MaxFlow > got.Ideal {
			t.Fatalf("flow %g above the endpoints' rate %g", got.MaxFlow, got.Ideal)
		}
	})
}

// TestLossesOnTheGraph takes every switch out of random fabrics and compares
// with a plain search over the graph.
func TestLossesOnTheGraph(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWiring(t)
		g := w.graph(t)
		v, err := look(g)
		if err != nil {
			t.Fatal(err)
		}
		h := v.halfFlow()
		v.bisect(h)
		b := v.breaker(h, float64(h.run(removal{})))
		dead := rapid.IntRange(0, len(v.nodes)-1).Draw(t, "dead")
		got := b.try(removal{nodes: map[int32]bool{int32(dead): true}}, nil)

		// Switches joined without the dead one, and the hosts on each such set.
		most := 0
		for p := range v.nodes {
			if p == dead {
				continue
			}
			seen := map[topo.NodeID]bool{v.nodes[p]: true}
			queue := []topo.NodeID{v.nodes[p]}
			hosts := map[topo.HostID]bool{}
			for len(queue) > 0 {
				n := queue[0]
				queue = queue[1:]
				for _, e := range g.Edges(n) {
					switch peer := &g.Nodes[e.Peer]; {
					case peer.Kind == topo.NIC:
						hosts[peer.Host] = true
					case e.Peer != v.nodes[dead] && !seen[e.Peer]:
						seen[e.Peer] = true
						queue = append(queue, e.Peer)
					}
				}
			}
			most = max(most, len(hosts))
		}
		if want := len(g.Hosts) - most; got.HostsCutOff != want || got.GPUsCutOff != want {
			t.Fatalf("without %s: %d hosts cut off, want %d", g.NodeName(v.nodes[dead]), got.HostsCutOff, want)
		}
		if got.BisectionLeft > 1 || got.BisectionLeft < 0 {
			t.Fatalf("%g of the bisection left", got.BisectionLeft)
		}
	})
}

// TestUnevenWiringIsFound wires all uplinks of both leaves to different spines:
// the uplinks add up, and nothing can pass.
func TestUnevenWiringIsFound(t *testing.T) {
	w := wiring{hosts: 2, leaves: 2, tops: 3, nics: [][3]int{{0, 0, 400}, {1, 1, 400}},
		up: [][3]int{{0, 0, 400}, {1, 1, 400}, {0, 2, 100}, {1, 2, 100}}}
	r := analyze(t, &cluster.Cluster{Graph: w.graph(t), Catalog: catalog.Default()})
	if r.Bisection.MaxFlow != 12.5e9 || *r.Bisection.Formula != 50e9 || r.Bisection.Agree {
		t.Errorf("flow %g, formula %g, agree %v", r.Bisection.MaxFlow, *r.Bisection.Formula, r.Bisection.Agree)
	}
	if r.Oversubscription != 1 || math.Abs(r.Bisection.Ratio-4) > 1e-9 {
		t.Errorf("oversubscription %g by tier, %g from end to end", r.Oversubscription, r.Bisection.Ratio)
	}
}

func analyze(tb testing.TB, c *cluster.Cluster) *Report {
	tb.Helper()
	r, err := Analyze(c)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func preset(tb testing.TB, name string, params map[string]int) *Report {
	tb.Helper()
	c, err := cluster.Preset(name, params)
	if err != nil {
		tb.Fatal(err)
	}
	return analyze(tb, c)
}

// TestOneSpineLost: hosts with a NIC at each of two leaves stay joined without
// the only spine, but the leaves do not.
func TestOneSpineLost(t *testing.T) {
	w := wiring{hosts: 2, leaves: 2, tops: 1, nics: [][3]int{{0, 0, 400}, {0, 1, 400}, {1, 0, 400}, {1, 1, 400}},
		up: [][3]int{{0, 0, 400}, {0, 0, 400}, {1, 0, 400}, {1, 0, 400}}}
	r := analyze(t, &cluster.Cluster{Graph: w.graph(t), Catalog: catalog.Default()})
	if l, _ := r.loss("spine"); l.Pieces != 1 || l.HostsCutOff != 0 || l.BisectionLeft != 1 {
		t.Errorf("%+v", l)
	}
	if r.Redundancy[2].Answer != No {
		t.Errorf("%+v", r.Redundancy[2])
	}
}
