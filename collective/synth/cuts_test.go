package synth

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/internal/bounded"
)

// oneWayNet draws a strongly connected network of 2 to 4 ranks and up to 2 switches whose links
// differ by direction, so that switches take in more than they pass on, or less.
func oneWayNet(rng *rand.Rand) *Net {
	for {
		ranks, switches := 2+rng.IntN(3), rng.IntN(3)
		n := testNet(fmt.Sprintf("one-way %d+%d", ranks, switches), ranks, switches)
		for range 2*n.Nodes() + rng.IntN(2*n.Nodes()) {
			if a, b := rng.IntN(n.Nodes()), rng.IntN(n.Nodes()); a != b {
				n.Edges = append(n.Edges, Edge{From: a, To: b, Cap: 1 + rng.Int64N(5), Links: 1})
			}
		}
		n.Edges = gathered(n.Edges)
		if n.apart() == nil {
			return n
		}
	}
}

// everyCut is the linear program with a row for each of all cuts and a variable for each link, solved in whole
// numbers: what ranks can feed to all others at once. With up it is that of an all-reduce: links are divided
// between ways down and up, and what ranks feed is free.
func everyCut(n *Net, weight []int64, up bool) *big.Rat {
	e := len(n.Edges)
	feeds, sides := 1, 1
	if up {
		feeds, sides = n.Ranks, 2
	}
	l := &linear{gain: make([]int64, feeds+sides*e)}
	for i := range feeds {
		l.gain[i] = 1
	}
	add := func(row []int64, limit int64) { l.rows, l.limit = append(l.rows, row), append(l.limit, limit) }
	for i := range n.Edges {
		row := make([]int64, len(l.gain))
		for s := range sides {
			row[feeds+s*e+i] = 1
		}
		add(row, n.Edges[i].Cap)
	}
	for s := range sides {
		for v := n.Ranks; v < n.Nodes(); v++ {
			for _, sign := range []int64{1, -1} {
				row := make([]int64, len(l.gain))
				for i, x := range n.Edges {
					if x.To == v {
						row[feeds+s*e+i] += sign
					}
					if x.From == v {
						row[feeds+s*e+i] -= sign
					}
				}
				add(row, 0)
			}
		}
		for set := 1; set < 1<<n.Nodes(); set++ {
			row := make([]int64, len(l.gain))
			whole := true
			for r := range n.Ranks {
				if set>>r&1 == 0 {
					whole = false
				} else if up {
					row[r]++
				} else {
					row[0] += weight[r]
				}
			}
			if whole {
				continue
			}
			for i, x := range n.Edges {
				from, to := x.From, x.To
				if s == 1 {
					from, to = to, from
				}
				if set>>from&1 == 1 && set>>to&1 == 0 {
					row[feeds+s*e+i]--
				}
			}
			add(row, 0)
		}
	}
	_, total := l.exact()
	return total
}

// Where links differ by direction and switches cannot copy, bounds are the optimum over all cuts, trees reach
// it, and scatters and all-to-alls are what the narrowest of all cuts allows.
func TestOneWayGraphs(t *testing.T) {
	seed := uint64(11)
	for i := range bounded.Times(25, 2000) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		n := oneWayNet(rng)
		fail := func(format string, args ...any) {
			t.Errorf("seed %d, graph %d (%s): %s\n%v", seed, i, n.Name, fmt.Sprintf(format, args...), n.Edges)
		}
		root := rng.IntN(n.Ranks)
		alone := make([]int64, n.Ranks)
		alone[root] = 1
		all := ratio(int64(n.Ranks), 1)
		for op, want := range map[sched.Collective]*big.Rat{
			sched.AllGather:     new(big.Rat).Mul(all, everyCut(n, ones(n.Ranks), false)),
			sched.ReduceScatter: new(big.Rat).Mul(all, everyCut(n.Reversed(), ones(n.Ranks), false)),
			sched.Broadcast:     everyCut(n, alone, false),
			sched.Reduce:        everyCut(n.Reversed(), alone, false),
			sched.AllReduce:     everyCut(n, nil, true),
		} {
			b, err := n.Bounds(op, root, false)
			if err != nil || b.Exact.Cmp(want) != 0 || b.Least != nil {
				fail("%s: %v %v, all cuts %s", op, b, err, want)
				continue
			}
			copies, err := n.Bounds(op, root, true)
			if err != nil || copies.Exact.Cmp(want) < 0 {
				fail("%s: %v %v with switches that add, %s without", op, copies, err, want)
			}
			p, err := n.Make(op, root, Wish{})
			if err != nil {
				fail("%s: %v", op, err)
				continue
			}
			sound(t, p)
			if p.Exact.Cmp(want) != 0 {
				fail("%s: trees reach %s of %s", op, p.Exact, want)
			}
		}
		for op, net := range map[sched.Collective]*Net{sched.Scatter: n, sched.Gather: n.Reversed(), sched.AllToAll: n} {
			var want *big.Rat
			for set := 1; set < 1<<n.Nodes(); set++ {
				in := make([]bool, n.Nodes())
				for v := range in {
					in[v] = set>>v&1 == 1
				}
				c := net.cut(in)
				moved := int64(len(c.Ranks) * len(c.Left))
				if op != sched.AllToAll {
					moved = int64(len(c.Left))
				}
				if moved == 0 || op != sched.AllToAll && !in[root] {
					continue
				}
				if r := ratio(c.Exit*int64(n.Ranks), moved); want == nil || r.Cmp(want) < 0 {
					want = r
				}
			}
			if b, err := n.Bounds(op, root, false); err != nil || b.Exact.Cmp(want) != 0 {
				fail("%s: %v %v, narrowest cut %s", op, b, err, want)
			}
		}
	}
}

// An all-to-all over leaves with few links to one another is limited by them, not by a rank's own link.
func TestAllToAllByLeaf(t *testing.T) {
	n := testNet("leaves", 16, 2)
	for r := range 16 {
		n.both(r, 16+r/8, 10)
	}
	n.both(16, 17, 20)
	b, err := n.Bounds(sched.AllToAll, 0, false)
	if err != nil || b.Exact.Cmp(ratio(5, 1)) != 0 {
		t.Errorf("%v %v, want 5: 64 blocks of 16 pass 20", b, err)
	}
}

// A rank that is written in two ways was taken for rank 0.
func TestReadOneName(t *testing.T) {
	for _, text := range []string{"r0 - r1 25\nr01 - r2 25\n", "r0 - r1 25\nhost a r0 r1\nhost b r1\n"} {
		if n, err := Read("x", text); err == nil {
			t.Errorf("%q was read as %v", text, n.Edges)
		}
	}
}
