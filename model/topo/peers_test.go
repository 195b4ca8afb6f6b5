package topo

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/model/unit"
)

// TestPeeredFabricIsRouted draws fabrics in which switches are joined at random,
// also inside a tier, and routes between all hosts. A route exists where a plain
// search finds one, is as short, and follows the links.
func TestPeeredFabricIsRouted(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		b := NewBuilder("random")
		class := b.Class(Class{Kind: InfiniBand, Gen: "ndr", Lanes: 4, Rate: 50 * unit.GBps, Latency: unit.Nanosecond})
		fabric := b.Fabric(Fabric{Name: "network", Family: Irregular})
		switches := 2 + rng.IntN(8)
		var sw []NodeID
		for i := range switches {
			n := Part(Switch, None, fmt.Sprintf("sw%d", i))
			n.Fabric = fabric
			sw = append(sw, b.Node(n))
		}
		for i := range 2 + rng.IntN(6) {
			h := b.Host(Host{Name: fmt.Sprintf("n%d", i), Pod: None, Rack: None})
			n := Part(NIC, h, "nic0")
			n.Fabric = fabric
			nic := b.Node(n)
			for range 1 + rng.IntN(2) {
				b.Link(Link{A: nic, B: sw[rng.IntN(switches)], Class: class, Count: 1})
			}
		}
		for range rng.IntN(2 * switches) {
			if x, y := rng.IntN(switches), rng.IntN(switches); x != y {
				b.Link(Link{A: sw[x], B: sw[y], Class: class, Count: 1})
			}
		}
		b.InferTiers(fabric)
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		if !g.Peered(0) {
			continue // routed up and down, tested elsewhere
		}
		for a := range g.Hosts {
			for z := range g.Hosts {
				checkShortest(t, g, seed, g.Hosts[a].First, g.Hosts[z].First, rng.Uint64())
			}
		}
	}
}

func checkShortest(t *testing.T, g *Graph, seed uint64, from, to NodeID, key uint64) {
	t.Helper()
	want := plainHops(g, from, to)
	way, err := g.Route(Flow{From: from, To: to, Key: key}, nil)
	if (err == nil) != (want >= 0) {
		t.Fatalf("seed %d: %s to %s: %v, and a plain search finds %d hops", seed, g.NodeName(from), g.NodeName(to), err, want)
	}
	if err != nil {
		return
	}
	at := from
	for _, u := range way {
		x, y := g.Links[u.Link].Ends(u.Forward)
		if x != at {
			t.Fatalf("seed %d: %s to %s: the way breaks at %s", seed, g.NodeName(from), g.NodeName(to), g.NodeName(at))
		}
		at = y
	}
	if at != to || len(way) != want {
		t.Fatalf("seed %d: %s to %s: %d hops to %s, want %d", seed, g.NodeName(from), g.NodeName(to), len(way), g.NodeName(at), want)
	}
}

// plainHops is a breadth-first search in which only switches pass bytes on; -1 if there is no way.
func plainHops(g *Graph, from, to NodeID) int {
	if from == to {
		return 0
	}
	dist := map[NodeID]int{from: 0}
	queue := []NodeID{from}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		for _, e := range g.Edges(n) {
			if _, seen := dist[e.Peer]; seen {
				continue
			}
			dist[e.Peer] = dist[n] + 1
			if e.Peer == to {
				return dist[to]
			}
			if g.Nodes[e.Peer].Kind == Switch {
				queue = append(queue, e.Peer)
			}
		}
	}
	return -1
}
