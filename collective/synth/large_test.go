package synth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/topo"
	"github.com/weft-fabric/weft/model/topo/build"
	"github.com/weft-fabric/weft/model/topo/catalog"
)

func preset(t testing.TB, name string, params map[string]int) (*topo.Graph, []topo.NodeID) {
	t.Helper()
	built, err := build.BuildPreset(catalog.Default(), name, params)
	if err != nil {
		t.Fatal(err)
	}
	var gpus []topo.NodeID
	built.Graph.Each(topo.GPU, func(id topo.NodeID, _ *topo.Node) { gpus = append(gpus, id) })
	return built.Graph, gpus
}

func BenchmarkBound1024(b *testing.B) {
	g, gpus := preset(b, "rail", map[string]int{"hosts": 128})
	for b.Loop() {
		n, err := FromGraph(g, gpus, Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce} {
			if _, err := n.Bounds(op, 0, false); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// Generation time by size: GPUs of rail-optimised hosts with eight each.
func BenchmarkMake(b *testing.B) {
	for _, hosts := range []int{1, 8, 32, 128} {
		for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce} {
			b.Run(fmt.Sprint(hosts*8, op), func(b *testing.B) {
				g, gpus := preset(b, "rail", map[string]int{"hosts": hosts})
				for b.Loop() {
					n, err := FromGraph(g, gpus, Options{})
					if err != nil {
						b.Fatal(err)
					}
					p, err := n.Make(op, 0, Wish{Loss: 0.02})
					if err != nil {
						b.Fatal(err)
					}
					b.Logf("%d trees of %d hops, %.4g of the bound", len(p.Ways), p.Height(), p.Share())
				}
			})
		}
	}
}

// Trees of many ranks are made by filling links, for one host where all are alike. They
// span, no link carries more than it can at the rate they are said to reach, and their
// program is proven.
func TestManyRanks(t *testing.T) {
	for _, c := range []struct {
		hosts  int
		fail   bool
		period int
	}{{4, false, 8}, {4, true, 32}, {9, false, 8}} {
		g, gpus := preset(t, "rail", map[string]int{"hosts": c.hosts})
		n, err := FromGraph(g, gpus, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c.fail { // one GPU without its way out
			n = without(n, 3, slices.IndexFunc(n.Names, func(s string) bool { return strings.HasPrefix(s, "leaf3") }))
		}
		for _, op := range []sched.Collective{sched.AllGather, sched.ReduceScatter, sched.AllReduce, sched.Broadcast} {
			p, err := n.Make(op, 0, Wish{Loss: 0.02})
			if err != nil {
				t.Fatal(op, err)
			}
			sound(t, p)
			if least := map[bool]float64{false: 0.98, true: 0.85}[c.fail]; p.Share() < least || p.Share() > 1 {
				t.Errorf("%d hosts, %s: %g of the bound", c.hosts, op, p.Share())
			}
			if !op.Rooted() && p.Repeats() != c.period {
				t.Errorf("%d hosts, %s: repeats after %d ranks, want %d", c.hosts, op, p.Repeats(), c.period)
			}
			for _, channels := range []int{1, 4} {
				prog, err := p.Ordered("synth", 2, channels)
				if err != nil {
					t.Fatal(op, err)
				}
				rep, err := verify.Right(prog)
				if err != nil {
					t.Fatalf("%d hosts, %s on %d channels: %v", c.hosts, op, channels, err)
				}
				if want := "rotation"; c.hosts == 9 && !op.Rooted() && rep.Method != want {
					t.Errorf("%s: proven by %s, want %s", op, rep.Method, want)
				}
				booked, err := p.Booked("synth", 2, channels)
				if err != nil {
					t.Fatal(op, err)
				}
				if _, err := verify.Right(booked); err != nil {
					t.Fatalf("%d hosts, %s booked on %d channels: %v", c.hosts, op, channels, err)
				}
			}
		}
	}
}

// What is proven by following one host is what unrolling proves, and mutants that
// unrolling refuses are refused.
func TestRotationByHosts(t *testing.T) {
	g, gpus := preset(t, "rail", map[string]int{"hosts": 9})
	n, err := FromGraph(g, gpus, Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(5, 0))
	for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce} {
		p, err := n.Make(op, 0, Wish{Loss: 0.02})
		if err != nil {
			t.Fatal(err)
		}
		prog, err := p.Ordered("synth", 2, 2)
		if err != nil {
			t.Fatal(err)
		}
		fast, err := verify.Right(prog)
		if err != nil {
			t.Fatal(err)
		}
		slow, err := verify.Unrolled(prog)
		if err != nil {
			t.Fatal(err)
		}
		if fast.Method != "rotation" || fast.Actions != slow.Actions || fast.MaxSent != slow.MaxSent || fast.MaxRecv != slow.MaxRecv ||
			fast.Steps != slow.Steps {
			t.Errorf("%s: following one host says %s, %d actions, %d and %d chunks, %d steps; unrolling %d, %d and %d, %d",
				op, fast.Method, fast.Actions, fast.MaxSent, fast.MaxRecv, fast.Steps, slow.Actions, slow.MaxSent, slow.MaxRecv, slow.Steps)
		}
		for range 3 {
			broken := *prog
			broken.Tables = slices.Clone(prog.Tables)
			k := rng.IntN(len(broken.Tables))
			table := &broken.Tables[k]
			table.Values = slices.Clone(table.Values)
			at := rng.IntN(len(table.Values))
			table.Values[at]++
			again, err := sched.Parse(broken.String())
			if err != nil {
				continue
			}
			_, fast := verify.Right(again)
			_, slow := verify.Unrolled(again)
			if (fast == nil) != (slow == nil) {
				t.Errorf("%s with entry %d of %s one more: following one host says %v, unrolling %v", op, at, table.Name, fast, slow)
			}
		}
	}
}

// A torus and a dragonfly look the same from every rank: trees of one root are turned to all
// others, they span, and no link carries more than at the rate they are said to reach.
func TestTurnedInEveryDirection(t *testing.T) {
	for _, c := range []struct {
		name   string
		params map[string]int
		roots  int
		least  float64
	}{{"torus", map[string]int{"x": 3, "y": 3, "z": 2}, 1, 0.9}, {"rail", map[string]int{"hosts": 6}, 1, 0.98}} {
		g, gpus := preset(t, c.name, c.params)
		n, err := FromGraph(g, gpus, Options{})
		if err != nil {
			t.Fatal(err)
		}
		turned := n.contracted().turned()
		var roots []int
		for r := range n.Ranks {
			if turned.first(r) == r {
				roots = append(roots, r)
			}
		}
		if len(roots) != c.roots {
			t.Errorf("%s: %d roots, want %d; turns %v", c.name, len(roots), c.roots, turned.list)
		}
		p, err := n.Make(sched.AllGather, 0, Wish{Loss: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		sound(t, p)
		if p.Share() < c.least || p.Share() > 1 {
			t.Errorf("%s: %g of the bound", c.name, p.Share())
		}
	}
}

// A NIC that serves two GPUs cannot copy: the bound is below that of the cuts around ranks,
// trees reach it, and their program is proven.
func TestSharedWayOut(t *testing.T) {
	n := testNet("shared", 4, 3) // 0 and 1 leave by 4 and come back by 5; 6 is the fabric
	n.both(0, 1, 9).both(2, 3, 9)
	for _, e := range [][3]int{{0, 4, 2}, {1, 4, 2}, {4, 6, 2}, {6, 5, 2}, {5, 0, 2}, {5, 1, 2}, {2, 6, 2}, {6, 2, 2}, {3, 6, 2}, {6, 3, 2}} {
		n.Edges = append(n.Edges, Edge{From: e[0], To: e[1], Cap: int64(e[2])})
	}
	n.Names[5] = n.Names[4]
	if !n.even() {
		t.Fatal("the two directions of a part are not each other's mirror")
	}
	for _, op := range treeOps {
		p, err := n.Make(op, 2, Wish{})
		if err != nil {
			t.Fatal(op, err)
		}
		if p.Share() != 1 {
			t.Errorf("%s: trees reach %g of the bound %s", op, p.Share(), p.Bound.Exact)
		}
		prog, err := p.Program("synth", 2, 0)
		if err == nil {
			_, err = verify.Program(prog)
		}
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
}
