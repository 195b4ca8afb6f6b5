package synth

import (
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// Of every known graph, and of random ones, the paths of an all-to-all reach nine tenths of the bound or more and never exceed it, all
// parts of every block arrive, links carry what the rate allows, and the program is proven.
func TestAllToAllReachesItsBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var nets []*Net
	for _, c := range optima {
		if c.net.Ranks <= 8 {
			nets = append(nets, c.net)
		}
	}
	for range 6 {
		n := ring(3+rng.IntN(5), 10+int64(rng.IntN(3))*10, 10)
		n.both(0, n.Ranks/2, 20)
		nets = append(nets, n)
	}
	for _, n := range nets {
		p, err := n.Make(sched.AllToAll, 0, Wish{})
		if err != nil {
			t.Fatal(n.Name, err)
		}
		if share := p.Share(); share < 0.9 || share > 1 {
			t.Errorf("%s: paths reach %.3f of the bound", n.Name, share)
		}
		parts := map[[2]int]int64{}
		for i, w := range p.Ways {
			parts[[2]int{w.Down.Root, p.ends[i]}] += w.Weight
		}
		for a := range n.Ranks {
			for b := range n.Ranks {
				if want := int64(exchangeParts); a != b && parts[[2]int{a, b}] != want {
					t.Fatalf("%s: %d of %d parts from %d to %d", n.Name, parts[[2]int{a, b}], want, a, b)
				}
			}
		}
		if n.Ranks > 5 {
			continue // proving takes the square of what is sent
		}
		for _, copies := range []int{1, 2} {
			prog, err := p.Linked("synth", 2, copies, 0)
			if err == nil {
				_, err = verify.Program(prog)
			}
			if err != nil {
				t.Errorf("%s, %d copies: %v", n.Name, copies, err)
			}
		}
	}
}
