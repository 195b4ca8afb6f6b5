package synth

import (
	"math/big"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
	"github.com/weft-fabric/weft/model/unit"
)

// shapes are networks as people have them, with the optimum of all-gather and all-reduce in GB/s worked out by
// hand or by trying every cut and partition; where a switch is unbalanced or links differ by direction, by the
// linear program over all cuts.
var shapes = []struct {
	name, links string
	gather, sum string
}{
	// Three GPUs on one switch and one on another that leaves over half a link: GPU 3 holds all up.
	{"hosts that are not alike", "r0 - a 100\nr1 - a 100\nr2 - a 100\nr3 - b 100\na - b 12", "16", "12"},
	// A tree of PCIe: two GPUs a switch, the switches on a root port each.
	{"a box with PCIe only", "r0 - p0 16\nr1 - p0 16\nr2 - p1 16\nr3 - p1 16\np0 - root 16\np1 - root 16", "64/3", "32/3"},
	{"two boxes joined by one link", "r0 - a 50\nr1 - a 50\nr2 - b 50\nr3 - b 50\nr1 - r2 10", "20", "10"},
	{"a ring with a chord", "r0 - r1 10\nr1 - r2 10\nr2 - r3 10\nr3 - r4 10\nr4 - r5 10\nr5 - r0 10\nr0 - r3 10", "24", "14"},
	{"a star with unequal spokes", "r0 - s 40\nr1 - s 20\nr2 - s 10\nr3 - s 10", "40/3", "10"},
	{"parallel links", "r0 - r1 10\nr0 - r1 10\nr1 - r2 10\nr1 - r2 5\nr0 - r2 1", "24", "16"},
	{"a rank behind two switches", "r0 - r1 20\nr1 - r2 20\nr0 - a 20\na - b 8\nb - r3 20", "32/3", "8"},
	{"a hypercube",
		"r0 - r1 5\nr0 - r2 5\nr0 - r4 5\nr1 - r3 5\nr1 - r5 5\nr2 - r3 5\nr2 - r6 5\nr3 - r7 5\nr4 - r5 5\nr4 - r6 5\nr5 - r7 5\nr6 - r7 5",
		"120/7", "60/7"},
	// 3 by 3 without the middle: a ring.
	{"a grid with a hole", "r0 - r1 9\nr1 - r2 9\nr2 - r4 9\nr4 - r7 9\nr7 - r6 9\nr6 - r5 9\nr5 - r3 9\nr3 - r0 9", "144/7", "72/7"},
	{"one way round and a slow way back", "r0 r1 10\nr1 r2 10\nr2 r0 10\nr1 r0 2", "15", "8"},
	{"two switches of different widths", "r0 - a 10\nr1 - a 10\nr2 - a 10\nr0 - b 30\nr1 - b 30\nr2 - b 30", "60", "30"},
	{"a direct link beside a switch", "r0 - r1 30\nr0 - s 10\nr1 - s 10\nr2 - s 10", "15", "10"},
}

// On every shape the bound is what plain searches say, trees reach it, both forms of their programs are proven, and
// the reason names a part of the network.
func TestShapes(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			n, err := Read(s.name, s.links)
			if err != nil {
				t.Fatal(err)
			}
			plain := map[sched.Collective]*big.Rat{}
			if n.even() {
				plain[sched.AllGather] = new(big.Rat).Mul(plainForest(n), ratio(int64(n.Ranks), 1))
				plain[sched.AllReduce] = plainReduce(n, false)
			} else {
				plain[sched.AllGather] = new(big.Rat).Mul(everyCut(n, ones(n.Ranks), false), ratio(int64(n.Ranks), 1))
				plain[sched.AllReduce] = everyCut(n, nil, true)
			}
			for op, text := range map[sched.Collective]string{sched.AllGather: s.gather, sched.AllReduce: s.sum} {
				want := rat(t, text)
				want.Mul(want, ratio(int64(unit.GBps), int64(n.Unit)))
				b, err := n.Bounds(op, 0, false)
				if err != nil || b.Exact.Cmp(want) != 0 || b.Least != nil || plain[op].Cmp(want) != 0 {
					t.Fatalf("%s: %s %v, %s by hand, %s by trying all (%v)", op, b.Exact, b.Least, want, plain[op], err)
				}
				if !strings.ContainsAny(b.Why, "0123456789") || !strings.Contains(b.Why, "GB/s") && n.even() {
					t.Errorf("%s: %q names no part", op, b.Why)
				}
				p, err := n.Make(op, 0, Wish{})
				if err != nil {
					t.Fatal(op, err)
				}
				sound(t, p)
				if p.Exact.Cmp(want) != 0 {
					t.Errorf("%s: trees reach %s of %s", op, p.Exact, want)
				}
				for name, make := range map[string]func() (*sched.Program, error){
					"lanes": func() (*sched.Program, error) { return p.Program("synth", 2, 0) },
					"links": func() (*sched.Program, error) { return p.Linked("synth", 2, 1, 0) },
				} {
					prog, err := make()
					if err == nil {
						_, err = verify.Program(prog)
					}
					if err != nil {
						t.Errorf("%s, %s: %v", op, name, err)
					}
				}
				// Mapped back to the links, switches and all, no link carries more than it can.
				load, total := map[[2]int]float64{}, 0.0
				for _, w := range p.Ways {
					total += float64(w.Weight)
					for up, tree := range []*Tree{w.Down, w.Up} {
						for v := 0; tree != nil && v < n.Ranks; v++ {
							if u := tree.Parent[v]; u >= 0 {
								tree.made.spread(u, v, float64(w.Weight), 0, func(a, b int, part float64, _ int) {
									if up == 1 {
										a, b = b, a
									}
									load[[2]int{a, b}] += part
								})
							}
						}
					}
				}
				rate, _ := p.Exact.Float64()
				for _, e := range n.Edges {
					if got := load[[2]int{e.From, e.To}] * rate / total; got > float64(e.Cap)*(1+1e-9) {
						t.Errorf("%s: trees send %g from %s to %s, whose links carry %d", op, got, n.Names[e.From], n.Names[e.To], e.Cap)
					}
				}
			}
		})
	}
}
