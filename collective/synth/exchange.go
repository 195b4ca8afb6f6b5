package synth

import (
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// An all-to-all has a block for every pair of ranks, and each block a path of its own. Which paths is a flow problem: all
// pairs at once, at the highest rate that the links allow (maximum concurrent flow). Each block is cut into parts; each part
// takes the path that is cheapest where links cost more the fuller they are, and in a few sweeps every part may change its
// mind. The prices that links have in the end prove a bound as well: whatever the paths, the blocks of all pairs take up
//
//	sum over pairs of block * cheapest path   of what all links offer,   sum over links of capacity * price
//
// A path that passes other ranks is stored there in scratch and sent on.

// mostExchanged is the number of ranks up to which an all-to-all is made: paths grow with the square.
const mostExchanged = 32

// parts is how many parts a block has, sweeps how often they are placed anew.
const (
	exchangeParts  = 12
	exchangeSweeps = 8
)

// shortest is so little steepness that blocks take the shortest path, wide links being shorter, and of equal ones the
// emptiest. worthDetours is by how many percent detours must raise the rate: blocks that pass straight keep links in step,
// and a detour is passed on by a rank that has blocks of its own to send.
const (
	shortest     = 0.02
	worthDetours = 1
)

// exchange is the search for paths.
type exchange struct {
	n     *Net
	out   [][]int   // by node: its edges
	load  []float64 // by edge: parts that cross it
	price []float64
	ideal float64 // parts per capacity, were all links as full as the fullest must be
	steep float64 // how fast prices rise
}

// exchange finds the paths of an all-to-all, and the bound that their links' prices prove.
func (p *Plan) exchange() error {
	n := p.Net
	if n.Ranks > mostExchanged {
		return fmt.Errorf("an all-to-all is made for up to %d ranks; %s has %d", mostExchanged, n.Name, n.Ranks)
	}
	x := &exchange{n: n, out: make([][]int, n.Nodes()), load: make([]float64, len(n.Edges)), price: make([]float64, len(n.Edges))}
	for e, edge := range n.Edges {
		x.out[edge.From] = append(x.out[edge.From], e)
	}
	bound, _ := p.Bound.Exact.Float64()
	x.ideal = float64(n.Ranks) * exchangeParts / bound
	var best [][][]int
	for worth, steeps := ratio(100+worthDetours, 100), []float64{shortest, 12, 30, 80}; len(steeps) > 0; steeps = steeps[1:] {
		clear(x.load)
		x.steep = steeps[0]
		paths := x.paths()
		x.tighten(p.Bound)
		rate := x.rate()
		switch {
		case best == nil:
			p.Exact, best = rate, paths
		case rate.Cmp(new(big.Rat).Mul(p.Exact, worth)) > 0:
			p.Exact, best, worth = rate, paths, ratio(1, 1)
		}
		if p.Exact.Cmp(p.Bound.Exact) >= 0 {
			break
		}
	}
	p.lay(best)
	if p.Bound.Least = nil; p.Exact.Cmp(p.Bound.Exact) < 0 {
		p.Bound.Least = p.Exact
	}
	f, _ := p.Bound.Exact.Float64()
	p.Bound.Rate = unit.Rate(f) * n.Unit
	return nil
}

// paths gives every part of every block a path: by pair, the edges of each part.
func (x *exchange) paths() [][][]int {
	n := x.n.Ranks
	paths := make([][][]int, n*n)
	for s := range n {
		for t := range n {
			if s != t {
				paths[s*n+t] = make([][]int, exchangeParts)
			}
		}
	}
	for range exchangeSweeps {
		for k := range n * n * exchangeParts {
			pair, part := k%(n*n), k/(n*n)
			if s, t := pair/n, pair%n; s != t {
				x.add(paths[pair][part], -1)
				x.reprice()
				paths[pair][part] = x.path(x.cheapest(s), s, t)
				x.add(paths[pair][part], 1)
			}
		}
	}
	return paths
}

func (x *exchange) add(path []int, parts float64) {
	for _, e := range path {
		x.load[e] += parts
	}
}

// reprice makes links dearer the fuller they are.
func (x *exchange) reprice() {
	for e, edge := range x.n.Edges {
		x.price[e] = math.Exp(min(x.steep*x.load[e]/(float64(edge.Cap)*x.ideal), 600)) / float64(edge.Cap)
	}
}

// cheapest finds the last edge of the cheapest path to every node (Dijkstra).
func (x *exchange) cheapest(s int) []int {
	cost, last, done := make([]float64, x.n.Nodes()), make([]int, x.n.Nodes()), make([]bool, x.n.Nodes())
	for v := range cost {
		cost[v], last[v] = math.Inf(1), -1
	}
	cost[s] = 0
	for range cost {
		at := -1
		for v := range cost {
			if !done[v] && (at < 0 || cost[v] < cost[at]) {
				at = v
			}
		}
		done[at] = true
		for _, e := range x.out[at] {
			if to := x.n.Edges[e].To; cost[at]+x.price[e] < cost[to] {
				cost[to], last[to] = cost[at]+x.price[e], e
			}
		}
	}
	return last
}

func (x *exchange) path(last []int, s, t int) []int {
	var path []int
	for v := t; v != s; v = x.n.Edges[last[v]].From {
		path = append(path, last[v])
	}
	slices.Reverse(path)
	return path
}

// rate is what the fullest link allows, as bytes of a buffer over time.
func (x *exchange) rate() *big.Rat {
	var least *big.Rat
	for e, edge := range x.n.Edges {
		if load := int64(math.Round(x.load[e])); load > 0 {
			r := ratio(edge.Cap*int64(x.n.Ranks)*exchangeParts, load)
			if least == nil || r.Cmp(least) < 0 {
				least = r
			}
		}
	}
	return least
}

// tighten lowers the bound to what prices prove, in whole numbers: the prices in the end, and the same price for all links.
func (x *exchange) tighten(b *Bound) {
	x.reprice()
	flat := slices.Repeat([]float64{1}, len(x.price))
	for _, prices := range [][]float64{slices.Clone(x.price), flat} {
		most := slices.Max(prices)
		whole := make([]int64, len(prices))
		for e := range whole {
			whole[e] = int64(math.Round(prices[e] / most * (1 << 20)))
			x.price[e] = float64(whole[e])
		}
		offer, need := new(big.Int), new(big.Int)
		for e, edge := range x.n.Edges {
			offer.Add(offer, new(big.Int).Mul(big.NewInt(edge.Cap), big.NewInt(whole[e])))
		}
		for s := range x.n.Ranks {
			last := x.cheapest(s)
			for t := range x.n.Ranks {
				for _, e := range x.path(last, s, t) {
					need.Add(need, big.NewInt(whole[e]))
				}
			}
		}
		if need.Sign() == 0 {
			continue
		}
		rate := new(big.Rat).Mul(new(big.Rat).SetFrac(offer, need), ratio(int64(x.n.Ranks), 1))
		if rate.Cmp(b.Exact) < 0 {
			b.Exact, b.Cut, b.Least = rate, nil, nil
			b.Why = "the blocks of all pairs together need more of all links than any cut shows: no choice of paths does with less"
		}
	}
}

// lay turns the paths into ways: equal paths of a pair become one that carries more.
func (p *Plan) lay(paths [][][]int) {
	n := p.Net
	p.roads = map[[2]int]map[[2]int]float64{}
	for s := range n.Ranks {
		for t := range n.Ranks {
			first := len(p.Ways)
			for _, path := range paths[s*n.Ranks+t] {
				tree := &Tree{Root: s, Parent: slices.Repeat([]int{-1}, n.Ranks)}
				at, begin := s, 0
				for i, e := range path {
					if to := n.Edges[e].To; to < n.Ranks {
						tree.Parent[to] = at
						p.road(at, to, path[begin:i+1])
						at, begin = to, i+1
					}
				}
				same := slices.IndexFunc(p.Ways[first:], func(w Way) bool { return equalTrees(w.Down, tree) })
				if same >= 0 {
					p.Ways[first+same].Weight++
					continue
				}
				p.Ways = append(p.Ways, Way{Down: tree, Weight: 1})
				p.ends = append(p.ends, t)
			}
		}
	}
}

// road notes which links a part takes between two ranks.
func (p *Plan) road(a, b int, path []int) {
	pair := [2]int{a, b}
	if p.roads[pair] == nil {
		p.roads[pair] = map[[2]int]float64{}
	}
	for _, e := range path {
		p.roads[pair][[2]int{p.Net.Edges[e].From, p.Net.Edges[e].To}]++
	}
}

// exchanged is what ranks send one another for one piece of every path, and the tables of where pieces lie: in the input
// of the first rank, in the output of the last, and in the scratch of those between.
func (p *Plan) exchanged(t *tables, pieces int) (all []*transfer, scratch int64) {
	n := p.Net.Ranks
	at := map[[2]int]int64{}   // by pair: parts so far
	held := make([][]int64, n) // by rank: weights in scratch so far, by position
	used := func(v int) int64 { return int64(len(held[v])) }
	for i, w := range p.Ways {
		s, end := w.Down.Root, p.ends[i]
		pair := [2]int{s, end}
		t.put("size", w.Weight)
		t.put("at", (int64(end)*exchangeParts+at[pair])*int64(pieces))
		t.put("local", (int64(s)*exchangeParts+at[pair])*int64(pieces))
		at[pair] += w.Weight
		var hops []int // from the end back
		for v := end; v != s; v = w.Down.Parent[v] {
			hops = append(hops, v)
		}
		slices.Reverse(hops)
		hold := int64(0)
		for _, v := range hops[:len(hops)-1] {
			hold = max(hold, used(v))
		}
		for _, v := range hops[:len(hops)-1] {
			held[v] = append(held[v], make([]int64, hold+w.Weight-used(v))...)
			scratch = max(scratch, hold+w.Weight)
		}
		t.put("hold", hold*int64(pieces))
		from, last := s, (*transfer)(nil)
		for _, v := range hops {
			x := &transfer{way: i, from: from, to: v, give: sendSum, take: takeHold}
			if from == s {
				x.give = sendIn
			}
			if v == end {
				x.take = takeOut
			}
			if last != nil {
				x.needs[0], x.stage = []*transfer{last}, last.stage+1
			}
			all = append(all, x)
			from, last = v, x
		}
	}
	return all, scratch * int64(pieces)
}

// Exchange reports whether the plan is one of paths between pairs, which only Linked writes.
func (p *Plan) Exchange() bool { return p.Op == sched.AllToAll }
