package synth

import (
	"fmt"
	"math"
	"math/big"
	"testing"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// testNet is a network of ranks and switches with links of GB/s both ways.
func testNet(name string, ranks, switches int) *Net {
	n := &Net{Name: name, Ranks: ranks, Unit: unit.GBps}
	for v := range ranks + switches {
		label := fmt.Sprintf("gpu%d", v)
		if v >= ranks {
			label = fmt.Sprintf("switch%d", v-ranks)
		}
		n.Names, n.Hosts = append(n.Names, label), append(n.Hosts, -1)
	}
	return n
}

func (n *Net) both(a, b int, c int64) *Net {
	n.Edges = append(n.Edges, Edge{From: a, To: b, Cap: c, Links: 1}, Edge{From: b, To: a, Cap: c, Links: 1})
	return n
}

// cube is the DGX-1V's cube mesh, links of 25 GB/s, of the GPUs given.
func cube(gpus ...int) *Net {
	links := map[[2]int]int64{{0, 1}: 1, {0, 2}: 1, {0, 3}: 2, {0, 4}: 2, {1, 2}: 2, {1, 3}: 1, {1, 5}: 2, {2, 3}: 2, {2, 6}: 1,
		{3, 7}: 1, {4, 5}: 1, {4, 6}: 1, {4, 7}: 2, {5, 6}: 2, {5, 7}: 1, {6, 7}: 2}
	n := testNet(fmt.Sprint("cube", gpus), len(gpus), 0)
	for i, a := range gpus {
		for j, b := range gpus[:i] {
			if c := links[[2]int{b, a}]; c > 0 {
				n.both(j, i, 25*c)
			}
		}
	}
	return n
}

// box is ranks on one switch.
func box(ranks int, c int64) *Net {
	n := testNet(fmt.Sprintf("box of %d", ranks), ranks, 1)
	for r := range ranks {
		n.both(r, ranks, c)
	}
	return n
}

// boxes is some boxes of ranks, each with a switch, and a network of several
// switches that share the ranks by rail.
func boxes(count, ranks, rails int, inside, net int64) *Net {
	n := testNet(fmt.Sprintf("%d x %d, %d rails", count, ranks, rails), count*ranks, count+rails)
	for r := range n.Ranks {
		n.Hosts[r] = r / ranks
		n.both(r, n.Ranks+r/ranks, inside)
		n.both(r, n.Ranks+count+r%rails, net)
	}
	for b := range count {
		n.Hosts[n.Ranks+b] = b
	}
	return n
}

func complete(ranks int, c int64) *Net {
	n := testNet(fmt.Sprintf("mesh of %d", ranks), ranks, 0)
	for a := range ranks {
		for b := range a {
			n.both(b, a, c)
		}
	}
	return n
}

// ring is a ring of ranks whose link between 0 and 1 carries first; 0 for a dead link.
func ring(ranks int, c, first int64) *Net {
	n := testNet(fmt.Sprintf("ring of %d, %d", ranks, first), ranks, 0)
	for r := range ranks {
		switch {
		case r > 0:
			n.both(r, (r+1)%ranks, c)
		case first > 0:
			n.both(0, 1, first)
		}
	}
	return n
}

func line(links ...int64) *Net {
	n := testNet(fmt.Sprint("line", links), len(links)+1, 0)
	for i, c := range links {
		n.both(i, i+1, c)
	}
	return n
}

func without(n *Net, a, b int) *Net {
	out := *n
	out.Name += " less a link"
	out.Edges = nil
	for _, e := range n.Edges {
		if !(e.From == a && e.To == b || e.From == b && e.To == a) {
			out.Edges = append(out.Edges, e)
		}
	}
	return &out
}

func seq(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// hub is rank 0 in the middle of others.
func hub(ranks int, c int64) *Net {
	n := testNet("hub", ranks, 0)
	for r := 1; r < ranks; r++ {
		n.both(0, r, c)
	}
	return n
}

// optima are exact: the rate at which every rank broadcasts at once, trees per
// root, the scale of capacities, then all-reduce, the same where switches add,
// and broadcast from rank 0, in GB/s; the cut that limits an all-gather as ranks in it, what leads out of
// it and ranks left out; and all-gathers with 1, 2 and 4 trees a root, where they are known.
var optima = []struct {
	net             *Net
	x               string
	k               int64
	u               string
	ar, adds, bcast string
	cut             [3]int64
	few             []float64
}{
	{cube(0, 1), "25", 1, "1/25", "25", "25", "25", [3]int64{1, 25, 1}, []float64{50, 50, 50}},
	{cube(0, 1, 2), "25", 1, "1/25", "50", "50", "50", [3]int64{2, 50, 1}, []float64{75, 75, 75}},
	{cube(seq(4)...), "100/3", 4, "3/25", "75", "75", "100", [3]int64{3, 100, 1}, []float64{100, 100, 133.3333}},
	{cube(seq(5)...), "25/2", 1, "2/25", "50", "50", "50", [3]int64{4, 50, 1}, []float64{62.5, 62.5, 62.5}},
	{cube(seq(6)...), "15", 3, "1/5", "125/2", "125/2", "75", [3]int64{5, 75, 1}, []float64{75, 85.7143, 85.7143}},
	{cube(seq(7)...), "50/3", 2, "3/25", "75", "75", "100", [3]int64{6, 100, 1}, []float64{87.5, 116.6667, 116.6667}},
	{cube(seq(8)...), "150/7", 6, "7/25", "600/7", "600/7", "150", [3]int64{7, 150, 1}, []float64{133.3333, 160, 160}},
	{cube(0, 1, 4), "25/2", 1, "2/25", "25", "25", "25", [3]int64{2, 25, 1}, []float64{37.5, 37.5, 37.5}},
	{box(16, 150), "10", 1, "1/10", "80", "150", "150", [3]int64{15, 150, 1}, nil},
	{box(8, 300), "300/7", 1, "7/300", "1200/7", "300", "300", [3]int64{7, 300, 1}, nil},
	{box(8, 450), "450/7", 1, "7/450", "1800/7", "450", "450", [3]int64{7, 450, 1}, nil},
	{boxes(2, 8, 1, 300, 25), "65/3", 13, "3/5", "520/3", "200", "200", [3]int64{15, 325, 1}, []float64{342.8571, 342.8571, 342.8571}},
	{boxes(2, 8, 2, 300, 25), "65/3", 13, "3/5", "520/3", "200", "200", [3]int64{15, 325, 1}, []float64{342.8571, 342.8571, 342.8571}},
	{boxes(2, 8, 8, 300, 25), "65/3", 13, "3/5", "520/3", "200", "200", [3]int64{15, 325, 1}, []float64{342.8571, 342.8571, 342.8571}},
	{boxes(4, 8, 1, 300, 25), "25/3", 1, "3/25", "400/3", "200", "200", [3]int64{24, 200, 8}, nil},
	{complete(8, 64), "64", 1, "1/64", "256", "256", "448", [3]int64{7, 448, 1}, nil},
	{without(complete(8, 64), 0, 1), "384/7", 6, "7/64", "1728/7", "1728/7", "384", [3]int64{7, 384, 1}, nil},
	{complete(4, 64), "64", 1, "1/64", "128", "128", "192", [3]int64{3, 192, 1}, nil},
	{ring(8, 25, 25), "50/7", 2, "7/25", "200/7", "200/7", "50", [3]int64{7, 50, 1}, []float64{50, 57.1429, 57.1429}},
	{ring(8, 25, 0), "25/7", 1, "7/25", "25", "25", "25", [3]int64{7, 25, 1}, []float64{28.5714, 28.5714, 28.5714}},
	{ring(8, 25, 12), "37/7", 37, "7", "187/7", "187/7", "37", [3]int64{7, 37, 1}, []float64{40, 40, 42.1053}},
	{line(25, 25, 25), "25/3", 1, "3/25", "25", "25", "25", [3]int64{3, 25, 1}, nil},
	{line(25, 10, 25), "5", 1, "1/5", "10", "10", "10", [3]int64{2, 10, 2}, nil},
	{box(4, 10), "10/3", 1, "3/10", "20/3", "10", "10", [3]int64{3, 10, 1}, nil},
	{hub(5, 10), "5/2", 1, "2/5", "10", "10", "10", [3]int64{4, 10, 1}, nil},
	{boxes(2, 4, 1, 10, 1), "1", 1, "1", "4", "4", "4", [3]int64{4, 4, 4}, nil},
	{testNet("triangle", 3, 0).both(0, 1, 1).both(1, 2, 1).both(0, 2, 2), "1", 1, "1", "2", "2", "2", [3]int64{2, 2, 1}, nil},
}

func rat(t *testing.T, s string) *big.Rat {
	t.Helper()
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		t.Fatalf("%q is not a number", s)
	}
	return r
}

func TestOptima(t *testing.T) {
	for _, c := range optima {
		t.Run(c.net.Name, func(t *testing.T) {
			x := rat(t, c.x)
			n := ratio(int64(c.net.Ranks), 1)
			for _, w := range []struct {
				op   sched.Collective
				adds bool
				want *big.Rat
			}{
				{sched.AllGather, false, new(big.Rat).Mul(x, n)}, {sched.ReduceScatter, true, new(big.Rat).Mul(x, n)},
				{sched.AllReduce, false, rat(t, c.ar)}, {sched.AllReduce, true, rat(t, c.adds)},
				{sched.Broadcast, false, rat(t, c.bcast)}, {sched.Reduce, false, rat(t, c.bcast)},
			} {
				b, err := c.net.Bounds(w.op, 0, w.adds)
				if err != nil {
					t.Fatal(err)
				}
				if b.Exact.Cmp(w.want) != 0 || b.Least != nil && !w.adds {
					t.Errorf("%s, switches that add %t: %s, want %s; reached %v", w.op, w.adds, b.Exact.RatString(), w.want.RatString(), b.Least)
				}
				if b.Why == "" {
					t.Errorf("%s says no reason", w.op)
				}
			}
			b, err := c.net.Bounds(sched.AllGather, 0, false)
			if err != nil {
				t.Fatal(err)
			}
			if got := [3]int64{int64(len(b.Cut.Ranks)), b.Cut.Exit, int64(len(b.Cut.Left))}; got != c.cut {
				t.Errorf("all-gather is limited by %d ranks that leave over %d, %d left out; want %v", got[0], got[1], got[2], c.cut)
			}
			for i, want := range c.few {
				k := int64(1) << i
				rate := new(big.Rat).Quo(ratio(k*int64(c.net.Ranks), 1), c.net.least(x, ones(c.net.Ranks), k))
				if got, _ := rate.Float64(); math.Abs(got-want) > 1e-4*want {
					t.Errorf("%d trees a root reach %g, want %g", k, got, want)
				}
			}
			if k, u := c.net.trees(x); k != c.k || u.Cmp(rat(t, c.u)) != 0 {
				t.Errorf("%d trees a root at scale %s, want %d at %s", k, u.RatString(), c.k, c.u)
			}
		})
	}
}
