package synth

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/verify"
)

// randomNet draws a connected network of 2 to 6 ranks and up to 2 switches.
func randomNet(rng *rand.Rand) *Net {
	ranks, switches := 2+rng.IntN(5), rng.IntN(3)
	n := testNet(fmt.Sprintf("random %d+%d", ranks, switches), ranks, switches)
	for v := 1; v < n.Nodes(); v++ {
		n.both(rng.IntN(v), v, 1+rng.Int64N(4))
	}
	for range rng.IntN(2 * n.Nodes()) {
		a, b := rng.IntN(n.Nodes()), rng.IntN(n.Nodes())
		if a != b {
			n.both(a, b, 1+rng.Int64N(4))
		}
	}
	n.Edges = gathered(n.Edges)
	return n
}

// plainForest is the least B+(S)/|S ∩ ranks|, by trying every S.
func plainForest(n *Net) *big.Rat {
	var best *big.Rat
	for set := range 1 << n.Nodes() {
		in := make([]bool, n.Nodes())
		for v := range in {
			in[v] = set>>v&1 == 1
		}
		c := n.cut(in)
		if len(c.Ranks) == 0 || len(c.Left) == 0 {
			continue
		}
		if r := ratio(c.Exit, int64(len(c.Ranks))); best == nil || r.Cmp(best) < 0 {
			best = r
		}
	}
	return best
}

// plainReduce is the least of the borders of disjoint sets that cover the ranks
// over 4(m-1), by trying every assignment of nodes to sets, or of switches to none.
func plainReduce(n *Net, adds bool) *big.Rat {
	part := make([]int, n.Nodes())
	var best *big.Rat
	var walk func(v, parts int)
	walk = func(v, parts int) {
		if v < n.Nodes() {
			first := 0
			if v >= n.Ranks && !adds {
				first = -1
			}
			last := parts
			if v >= n.Ranks {
				last = parts - 1
			}
			for p := first; p <= last; p++ {
				part[v] = p
				walk(v+1, max(parts, p+1))
			}
			return
		}
		if parts < 2 {
			return
		}
		var sum int64
		for _, e := range n.Edges {
			if a, b := part[e.From], part[e.To]; a != b {
				sum += e.Cap
				if a >= 0 && b >= 0 {
					sum += e.Cap
				}
			}
		}
		if r := ratio(sum, int64(4*(parts-1))); best == nil || r.Cmp(best) < 0 {
			best = r
		}
	}
	walk(0, 0)
	return best
}

// On random graphs the bounds are what brute force over all cuts and partitions
// gives, trees reach them, programs are proven, and a renaming of ranks or a
// link less change nothing or nothing for the better.
func TestRandomGraphs(t *testing.T) {
	const seed = 20
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 60 {
		n := randomNet(rng)
		fail := func(format string, args ...any) {
			t.Fatalf("seed %d, graph %d (%s): %s\n%v", seed, i, n.Name, fmt.Sprintf(format, args...), n.Edges)
		}
		for _, c := range []struct {
			op   sched.Collective
			adds bool
			want *big.Rat
		}{
			{sched.AllGather, false, new(big.Rat).Mul(plainForest(n), ratio(int64(n.Ranks), 1))},
			{sched.AllReduce, false, plainReduce(n, false)},
			{sched.AllReduce, true, plainReduce(n, true)},
		} {
			b, err := n.Bounds(c.op, 0, c.adds)
			if err != nil {
				fail("%s: %v", c.op, err)
			}
			if b.Exact.Cmp(c.want) != 0 || b.Least != nil && !c.adds {
				fail("%s, adds %t: %s, brute force %s; least %v", c.op, c.adds, b.Exact, c.want, b.Least)
			}
			if c.op == sched.AllReduce && b.Cut == nil && b.Parts == nil {
				fail("all-reduce without a proof")
			}
		}
		for _, op := range treeOps {
			p, err := n.Make(op, rng.IntN(n.Ranks), Wish{})
			if err != nil {
				fail("%s: %v", op, err)
			}
			sound(t, p)
			if p.Exact.Cmp(p.Bound.Exact) != 0 {
				fail("%s: trees reach %s of %s", op, p.Exact, p.Bound.Exact)
			}
			prog, err := p.Program("synth", 1+rng.IntN(3), rng.IntN(3))
			if err != nil {
				fail("%s: %v", op, err)
			}
			if _, err := verify.Program(prog); err != nil {
				fail("%s: %v", op, err)
			}
			low, err := n.Shallow(op, p.Root)
			if err != nil {
				fail("%s: %v", op, err)
			}
			if low.Height() > p.Height() {
				fail("%s: fewest hops %d, packed trees %d", op, low.Height(), p.Height())
			}
			if prog, err = low.Program("low", 1, 0); err == nil {
				_, err = verify.Program(prog)
			}
			if err != nil {
				fail("%s of fewest hops: %v", op, err)
			}
		}
		prog, err := n.OneShot("one")
		if err == nil {
			_, err = verify.Program(prog)
		}
		if err != nil {
			fail("one shot: %v", err)
		}
	}
}

// Ranks under other numbers have the same bounds.
func TestRenamedRanks(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 0))
	for range 40 {
		n := randomNet(rng)
		to := rng.Perm(n.Ranks)
		m := *n
		m.Edges = nil
		for _, e := range n.Edges {
			if e.From < n.Ranks {
				e.From = to[e.From]
			}
			if e.To < n.Ranks {
				e.To = to[e.To]
			}
			m.Edges = append(m.Edges, e)
		}
		for _, op := range []sched.Collective{sched.AllGather, sched.AllReduce, sched.ReduceScatter} {
			a, err := n.Bounds(op, 0, false)
			b, err2 := m.Bounds(op, 0, false)
			if err != nil || err2 != nil || a.Exact.Cmp(b.Exact) != 0 {
				t.Fatalf("%s: %v, renamed %v: %v %v", n.Name, a, b, err, err2)
			}
		}
	}
}

func TestNoSchedule(t *testing.T) {
	apart := testNet("apart", 4, 0).both(0, 1, 1).both(2, 3, 1)
	for _, op := range sched.Collectives() {
		if _, err := apart.Bounds(op, 0, false); err == nil {
			t.Errorf("%s on a graph in pieces has a bound", op)
		}
	}
	if _, err := ring(4, 1, 1).Bounds(sched.Broadcast, 4, false); err == nil {
		t.Error("a root outside the ranks has a bound")
	}
	if _, err := testNet("one", 1, 0).Bounds(sched.AllReduce, 0, false); err == nil {
		t.Error("one rank has a bound")
	}
	if _, err := ring(4, 1, 1).Make(sched.Scatter, 0, Wish{}); err == nil {
		t.Error("a scatter has trees")
	}
}
