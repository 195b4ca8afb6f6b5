package algo_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
	"github.com/weft-fabric/weft/model/topo/rings"
)

// The rings that the search finds in a hybrid cube mesh are the channels of a
// program, which is proven and sends only between GPUs with a link.
func TestRingsOfACubeMesh(t *testing.T) {
	c := catalog.Default()
	g, err := build.Host(c, "dgx-1v", "n0")
	if err != nil {
		t.Fatal(err)
	}
	var gpus []topo.NodeID
	for i, n := range g.HostNodes(0) {
		if n.Kind == topo.GPU {
			gpus = append(gpus, g.Hosts[0].First+topo.NodeID(i))
		}
	}
	found, err := rings.Search(g, gpus, c, rings.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Rings) != 6 {
		t.Fatalf("%d rings, want the 6 that NCCL finds", len(found.Rings))
	}
	s := algo.Spec{Op: sched.AllReduce, Ranks: 8, Channels: 6, Pieces: 2}
	linked := map[verify.Pair]bool{}
	for _, r := range found.Rings {
		var order []sched.Rank
		for i, id := range r.Order {
			order = append(order, sched.Rank(slices.Index(found.GPUs, id)))
			next := r.Order[(i+1)%len(r.Order)]
			linked[verify.Pair{From: order[i], To: sched.Rank(slices.Index(found.GPUs, next))}] = true
		}
		s.Orders = append(s.Orders, order)
	}
	for _, op := range find(t, "ring").Ops {
		if op == sched.SendRecv {
			continue
		}
		s.Op, s.Root = op, 5*rooted(op)
		_, rep := prove(t, find(t, "ring"), s)
		for pair := range rep.Links {
			if !linked[pair] {
				t.Errorf("%s sends from %d to %d, which no ring does", op, pair.From, pair.To)
			}
		}
	}
}

// Every algorithm takes any order on every copy, at any root.
func TestAnyPlacementIsProven(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, a := range algo.All() {
		for _, op := range a.Ops {
			for _, n := range []int{2, 3, 5, 8, 12} {
				s := algo.Spec{Op: op, Ranks: n, Channels: 3, Local: []int{0, 2, 4}[n%3], Root: rng.IntN(n) * rooted(op), Pieces: 2}
				for range s.Channels - 1 {
					order := make([]sched.Rank, n)
					for i, r := range rng.Perm(n) {
						order[i] = sched.Rank(r)
					}
					s.Orders = append(s.Orders, order)
				}
				if p, _ := prove(t, a, s); p == nil {
					s.Local = 0
					prove(t, a, s)
				}
			}
		}
	}
}

// In an order, the ranks of a domain stand in a row, so only rail links leave
// it: rank l of one host to rank l of another.
func TestRailsStayStraight(t *testing.T) {
	const hosts, local = 4, 8
	s := algo.Spec{Op: sched.AllReduce, Ranks: hosts * local, Local: local}
	for _, pair := range [][2]string{{"ring", "ring"}, {"direct", "ring"}, {"ring", "halving-doubling"}, {"direct", "tree"},
		{"halving-doubling", "swing"}} {
		s.Inner, s.Outer = pair[0], pair[1]
		_, rep := prove(t, find(t, "hierarchical"), s)
		for l := range rep.Links {
			if l.From/local != l.To/local && l.From%local != l.To%local {
				t.Errorf("%s in %s crosses rails: %d to %d", pair[0], pair[1], l.From, l.To)
			}
		}
	}
}
