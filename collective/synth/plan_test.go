package synth

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

var treeOps = []sched.Collective{sched.AllGather, sched.ReduceScatter, sched.Broadcast, sched.Reduce, sched.AllReduce}

// sound checks that trees span, and that their weights are the rate at the bound.
func sound(t *testing.T, p *Plan) {
	t.Helper()
	for _, w := range p.Ways {
		for _, tree := range []*Tree{w.Up, w.Down} {
			if tree == nil {
				continue
			}
			for v := range tree.Parent {
				for u, hops := v, 0; u != tree.Root; u, hops = tree.Parent[u], hops+1 {
					if tree.Parent[u] < 0 || hops > len(tree.Parent) {
						t.Fatalf("%s %s: tree of %d does not span: %v", p.Net.Name, p.Op, tree.Root, tree.Parent)
					}
				}
			}
		}
	}
}

// Trees reach the bound, and the program of them is proven, on every graph whose optimum is known.
func TestPlansReachTheBound(t *testing.T) {
	for _, c := range optima {
		if c.net.Ranks > 8 && c.net.Name != "2 x 8, 8 rails" {
			continue // some seconds each, and alike
		}
		t.Run(c.net.Name, func(t *testing.T) {
			for _, op := range treeOps {
				p, err := c.net.Make(op, 0, Wish{})
				if err != nil {
					t.Fatal(op, err)
				}
				sound(t, p)
				if p.Exact.Cmp(p.Bound.Exact) != 0 {
					t.Errorf("%s: trees reach %s of %s", op, p.Exact.RatString(), p.Bound.Exact.RatString())
				}
				for how, write := range map[string]func(string, int, int) (*sched.Program, error){"in order": p.Ordered, "booked": p.Booked} {
					prog, err := write("synth", 2, 4)
					if err != nil {
						t.Fatal(op, err)
					}
					if _, err := verify.Program(prog); err != nil {
						t.Fatalf("%s, %s: %v\n%s", op, how, err, prog)
					}
					if prog.Channels() != 4 {
						t.Errorf("%s, %s: %d channels, want 4", op, how, prog.Channels())
					}
				}
				for lanes := range 3 {
					prog, err := p.Program("synth", 3, lanes)
					if err != nil {
						t.Fatal(op, err)
					}
					rep, err := verify.Program(prog)
					if err != nil {
						t.Fatalf("%s: %v\n%s", op, err, prog)
					}
					again, err := sched.Parse(prog.String())
					if err != nil || again.Digest() != prog.Digest() {
						t.Fatalf("%s does not round-trip: %v", op, err)
					}
					t.Logf("%s: %d trees, height %d, %d channels, %d steps", op, len(p.Ways), p.Height(), prog.Channels(), rep.Steps)
				}
			}
		})
	}
}

// An all-reduce up and down a chain has its root in the middle: half the hops, and the same bytes on every link.
func TestAllReduceRootsInTheMiddle(t *testing.T) {
	n, err := Read("chain", "r0 - r1 10\nr1 - r2 10\nr2 - r3 10\nr3 - r4 10\nr4 - r5 10\nr5 - r6 10\n")
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Make(sched.AllReduce, 0, Wish{})
	if err != nil {
		t.Fatal(err)
	}
	sound(t, p)
	if p.Height() != 6 || p.Share() != 1 {
		t.Errorf("%d hops up and down, %g of the bound; want 3 each way and all of it", p.Height(), p.Share())
	}
}

// With a slow NIC, the trees of an all-reduce at the full rate are too many, and those for rounded rates lose a fifth. A reduce-scatter and
// an all-gather over the same trees lose a tenth.
func TestHalvesBeatRoundedTrees(t *testing.T) {
	var text strings.Builder
	for v := range 20 {
		net := 25
		if v == 5 {
			net = 12
		}
		fmt.Fprintf(&text, "r%d - box%d 300\nr%d - rail%d %d\n", v, v/5, v, v%5, net)
	}
	n, err := Read("4 boxes of 5, a slow NIC", text.String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Make(sched.AllReduce, 0, Wish{Loss: 0.02})
	if err != nil {
		t.Fatal(err)
	}
	if share := p.Share(); share < 0.9 || share > 1 {
		t.Errorf("trees reach %.3f of the bound, want 0.9", share)
	}
}
