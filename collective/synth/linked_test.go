package synth

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/verify"
)

// Edges that meet have different colours, and one colour more than edges meet at a node is enough.
func TestColours(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 0))
	for range 400 {
		n := 2 + rng.IntN(9)
		c, degree := newColouring(n), make([]int, n)
		most := 0
		for a := range n {
			for b := range a {
				if rng.IntN(3) > 0 {
					c.add(a, b)
					degree[a]++
					degree[b]++
					most = max(most, degree[a], degree[b])
				}
			}
		}
		seen := map[[2]int]bool{}
		for e, k := range c.col {
			for _, v := range e {
				if seen[[2]int{v, k}] {
					t.Fatalf("two edges of node %d have colour %d: %v", v, k, c.col)
				}
				seen[[2]int{v, k}] = true
			}
		}
		if most > 0 && c.used() > most+1 {
			t.Fatalf("%d colours where %d edges meet", c.used(), most)
		}
	}
}

// A channel for each link: proven on every kind of graph and operation, also where channels are few.
func TestLinked(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 0))
	nets := []*Net{cube(seq(8)...), complete(8, 64), ring(8, 25, 12), hub(5, 10), box(4, 10)}
	for range 12 {
		nets = append(nets, randomNet(rng))
	}
	for _, n := range nets {
		for _, op := range treeOps {
			p, err := n.Make(op, rng.IntN(n.Ranks), Wish{Loss: 0.02})
			if err != nil {
				t.Fatal(err)
			}
			for _, most := range []int{0, 2, 4, 16} {
				prog, err := p.Linked("synth", 1+rng.IntN(3), max(min(1+rng.IntN(2), most/2), 1), most)
				if err != nil {
					t.Fatalf("%s %s: %v", n.Name, op, err)
				}
				if _, err := verify.Program(prog); err != nil {
					t.Fatalf("%s %s, at most %d channels: %v\n%s", n.Name, op, most, err, prog)
				}
				if most > 0 && prog.Channels() > most {
					t.Errorf("%s %s: %d channels, at most %d wanted", n.Name, op, prog.Channels(), most)
				}
			}
		}
	}
}
