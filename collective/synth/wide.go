package synth

import (
	"fmt"
	"github.com/weft-fabric/weft/model/heap"
	"github.com/weft-fabric/weft/model/sets"
	"math"
	"math/big"
	"slices"
)

// For many ranks the exact packing takes too long: a maximum flow for every link
// of every tree. Wide plans are made by filling links instead. The bound says how
// much every link carries when it is reached, so each tree grows by the way that
// costs least, where a hop costs 1 and a link the more the nearer it is to full:
//
//	cost of a way = hops from the root + sum over its links of steep · (load / what the bound allows)^8
//
// At first a full link costs less than a hop and only more than full a lot, which gives
// low trees. Where that does not reach the bound, links are filled evenly from the start.
// Links between switches of the fabric, where they hold something up, are used first as if
// each were a hop: a block then comes once to the hosts of a switch and is passed on there.
//
// What the trees reach is then counted, link by link: a plan below the bound is
// never taken for one that reaches it. Machines of alike hosts look the same from
// every host, and so do alike GPUs of a host and the hosts of a torus: trees are made
// for few roots and turned to the others.

// rotation is a renumbering of ranks that leaves every link as it is: ranks go round in
// blocks of size, each by the step. On a torus of hosts there is one for each dimension,
// and one more for the GPUs of a host if these are alike.
type rotation struct{ step, size int }

func (t rotation) of(rank, times int) int {
	return rank - rank%t.size + (rank%t.size+times*t.step)%t.size
}

// turns are the rotations of a network that go together: the next one is inside a step of the one before.
type turns struct {
	list   []rotation
	period int            // ranks after which everything repeats itself; all of them if nothing does
	class  sets.Sets[int] // by edge: the first one that turns take to it
	times  []int          // by edge: how often all turns together take it to itself
}

// first says which rank a rank is turned from.
func (t *turns) first(rank int) int {
	for _, d := range t.list {
		rank -= rank % d.size / d.step * d.step
	}
	return rank
}

// to turns a rank as its first one is turned to a root.
func (t *turns) to(rank, root int) int {
	for _, d := range t.list {
		rank = d.of(rank, root%d.size/d.step)
	}
	return rank
}

// back turns a rank as a root is turned back to its first one.
func (t *turns) back(rank, root int) int {
	for _, d := range t.list {
		rank = d.of(rank, (d.size-root%d.size/d.step*d.step)/d.step)
	}
	return rank
}

// turned finds how a network repeats itself.
func (n *Net) turned() *turns {
	t := &turns{period: n.Ranks, class: sets.New[int](len(n.Edges)), times: make([]int, len(n.Edges))}
	at := make(map[[2]int]int, len(n.Edges))
	twice := false
	for i, e := range n.Edges {
		_, known := at[[2]int{e.From, e.To}]
		twice = twice || known
		at[[2]int{e.From, e.To}] = i
	}
	order := 1
	for size := n.Ranks; size > 1 && !twice; {
		step, to := n.rotation(size, at)
		if to != nil {
			for i, e := range n.Edges {
				t.class.Join(i, at[[2]int{to[e.From], to[e.To]}])
			}
			t.list = append(t.list, rotation{step, size})
			order *= size / step
		}
		size = step
	}
	if len(t.list) > 0 && t.list[0].size == n.Ranks {
		t.period = t.list[0].step
	}
	t.class.Flatten()
	t.count(order)
	return t
}

// count says how many turned transfers take a link, of as many as there are ways to turn.
func (t *turns) count(order int) {
	alike := make([]int, len(t.class))
	for _, c := range t.class {
		alike[c]++
	}
	for i, c := range t.class {
		t.times[i] = order / alike[c]
	}
}

// rotation finds the smallest step by which ranks can turn in blocks of a size, and what that makes of every node. Where
// there is none, it gives the largest divisor of the size, for smaller blocks.
func (n *Net) rotation(size int, at map[[2]int]int) (step int, to []int) {
	largest := 1
	for step := 1; step < size; step++ {
		if size%step != 0 {
			continue
		}
		if to := n.rotate(rotation{step, size}, at); to != nil {
			return step, to
		}
		largest = step
	}
	return largest, nil
}

// rotate says what every node becomes when ranks are turned, going by what switches are
// joined to; nil if some switch has no counterpart or some link is not kept.
func (n *Net) rotate(by rotation, at map[[2]int]int) []int {
	in, out := n.sides()
	known := map[uint64]int{}
	for v, k := range n.turnedNames(by, 0, in, out) {
		if _, twice := known[k]; twice {
			return nil
		}
		known[k] = v
	}
	to := make([]int, n.Nodes())
	for v, k := range n.turnedNames(by, 1, in, out) {
		u, ok := known[k]
		if !ok || (u < n.Ranks) != (v < n.Ranks) {
			return nil
		}
		to[v] = u
	}
	return n.kept(to, at)
}

// turnedNames names every node when ranks have been turned some times: a switch by the ranks that it is joined to, then by
// the names of its neighbours, and so on.
func (n *Net) turnedNames(by rotation, times int, in, out [][]int) []uint64 {
	name := make([]uint64, n.Nodes())
	for r := range n.Ranks {
		name[r] = scramble(uint64(by.of(r, times)) + 1)
	}
	for range 4 {
		next := slices.Clone(name)
		for v := n.Ranks; v < n.Nodes(); v++ {
			next[v] = name[v]
			for _, i := range out[v] {
				next[v] += scramble(name[n.Edges[i].To] ^ uint64(n.Edges[i].Cap)<<20)
			}
			for _, i := range in[v] {
				next[v] += scramble(name[n.Edges[i].From] ^ uint64(n.Edges[i].Cap)<<21)
			}
		}
		name = next
	}
	return name
}

// scramble spreads a number over all bits (splitmix64).
func scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// filler grows trees by filling links.
type filler struct {
	net    *Net
	out    [][]int32 // by node: edges
	class  []int     // by edge
	times  []float64 // by edge: how many of all turned trees use it where one uses its class
	load   []float64 // by class: trees that use a link of it
	room   []float64 // by class: what it carries at the bound
	steep  float64   // what a full link costs
	over   float64   // and one that is more than full
	scarce bool      // a link between switches of the fabric costs a hop
	period int
	dist   []float64
	via    []int32 // by node: the edge it was reached by, -1 for none
	source []int32 // by node: the rank of the tree that it was reached from
	queue  heap.Heap[reached]

	visited int // links that were looked at
}

// sprout is a tree that grows: by rank its parent, its depth (-1 outside), and the
// edges over which it is reached.
type sprout struct {
	root   int
	parent []int
	depth  []int
	path   [][]int32
	size   int
}

func newSprout(root, ranks int) *sprout {
	s := &sprout{root: root, parent: make([]int, ranks), depth: make([]int, ranks), path: make([][]int32, ranks), size: 1}
	for v := range ranks {
		s.parent[v], s.depth[v] = -1, -1
	}
	s.depth[root] = 0
	return s
}

type reached struct {
	dist float64
	node int32
}

// Before orders by distance, then by number.
func (x reached) Before(y reached) bool {
	return x.dist < y.dist || x.dist == y.dist && x.node < y.node
}

func (f *filler) cost(edge int32) float64 {
	c := f.class[edge]
	full := (f.load[c] + f.times[edge]) / f.room[c]
	steep := f.steep
	if full > 1+1e-9 {
		steep = f.over
	}
	full *= full
	full *= full
	few := 0.01 // of ways alike, the one over fewer links
	if f.scarce && f.net.between(int(edge)) {
		few = 1.1
	}
	return steep*full*full + few
}

// grow adds the ranks that cost least, one or up to most of them; false if none can be
// reached. Further ones are added for as long as those before have not made the way to
// them dearer by more than slack.
func (f *filler) grow(s *sprout, most int) bool {
	ranks := f.net.Ranks
	for v := range f.dist {
		f.dist[v], f.via[v] = math.Inf(1), -1
	}
	f.queue.Clear()
	for v, d := range s.depth {
		if d >= 0 {
			f.dist[v], f.source[v] = float64(d), int32(v)
			f.queue.Push(reached{float64(d), int32(v)})
		}
	}
	taken := 0
	for f.queue.Len() > 0 && taken < most {
		at := f.queue.Pop()
		v := int(at.node)
		if at.dist > f.dist[v] {
			continue
		}
		if v < ranks && s.depth[v] < 0 {
			if taken > 0 && f.dearer(v) {
				break
			}
			f.take(s, v)
			taken++
			f.dist[v], f.source[v] = float64(s.depth[v]), int32(v)
			f.queue.Push(reached{f.dist[v], int32(v)})
			continue
		}
		f.visited += len(f.out[v])
		for _, i := range f.out[v] {
			e := &f.net.Edges[i]
			if e.To < ranks && s.depth[e.To] >= 0 {
				continue
			}
			d := at.dist + f.cost(i)
			if e.To < ranks {
				d++ // a hop ends there, of like ones that to the same place in another host: the same rail
				if (e.To-int(f.source[v]))%f.period != 0 {
					d += 0.005
				}
			}
			if d < f.dist[e.To] {
				f.dist[e.To], f.via[e.To], f.source[e.To] = d, i, f.source[v]
				f.queue.Push(reached{d, int32(e.To)})
			}
		}
	}
	return taken > 0
}

// slack is how much dearer, in hops, the way to a rank may have become since it was found.
const slack = 0.05

// dearer reports whether the way to a rank costs more by now than when it was found.
func (f *filler) dearer(v int) bool {
	cost, u := 1.0, v
	for u == v || u >= f.net.Ranks {
		cost += f.cost(f.via[u])
		u = f.net.Edges[f.via[u]].From
	}
	return cost > f.dist[v]-f.dist[u]+slack
}

// take joins a rank to the tree by the way it was reached.
func (f *filler) take(s *sprout, v int) {
	u := v
	for u == v || u >= f.net.Ranks {
		s.path[v] = append(s.path[v], f.via[u])
		f.load[f.class[f.via[u]]] += f.times[f.via[u]]
		u = f.net.Edges[f.via[u]].From
	}
	s.parent[v], s.depth[v] = u, s.depth[u]+1
	s.size++
}

// drop takes a tree's load off the links.
func (f *filler) drop(s *sprout) {
	for _, path := range s.path {
		for _, i := range path {
			f.load[f.class[i]] -= f.times[i]
		}
	}
}

// fullest is the load of the fullest link, with 1 for what it carries at the bound.
func (f *filler) fullest() float64 {
	most := 0.0
	for c, l := range f.load {
		if f.room[c] > 0 {
			most = max(most, l/f.room[c])
		}
	}
	return most
}

// mostRegrown bounds how often trees are taken out and grown again, mostVisited the
// links that are looked at before what was found is good enough, and rounds says in how
// many a tree of very many ranks is grown.
const (
	mostRegrown = 3
	mostVisited = 200_000_000
	rounds      = 32
)

// contracted joins switches of the fabric whose link can hold nothing up: one that
// carries all that its other links bring. What can flow between ranks stays the same,
// and a fabric that blocks nothing becomes one switch, the same for all hosts.
func (n *Net) contracted() *Net {
	c := *n
	c.Edges = slices.Clone(n.Edges)
	for again := true; again; {
		again = false
		in, out := c.sides()
		sum := func(list []int) (total int64) {
			for _, i := range list {
				total += c.Edges[i].Cap
			}
			return total
		}
		into := make([]int, c.Nodes()) // what a switch becomes
		for v := range into {
			into[v] = v
		}
		for v := c.Ranks; v < c.Nodes(); v++ {
			if c.Hosts[v] >= 0 || into[v] != v {
				continue
			}
			for _, i := range out[v] {
				s := c.Edges[i].To
				if s < c.Ranks || c.Hosts[s] >= 0 || s == v || into[s] != s || slices.Contains(into[:v], v) {
					continue
				}
				var back int64
				for _, j := range in[v] {
					if c.Edges[j].From == s {
						back = c.Edges[j].Cap
					}
				}
				if up := c.Edges[i].Cap; sum(in[v])-back <= up && sum(out[v])-up <= back {
					into[v], again = s, true
					break
				}
			}
		}
		if !again {
			break
		}
		var kept []Edge
		for _, e := range c.Edges {
			e.From, e.To = into[e.From], into[e.To]
			if e.From != e.To {
				kept = append(kept, e)
			}
		}
		c.Edges = gathered(kept)
	}
	c.Names, c.Hosts = slices.Clone(n.Names), slices.Clone(n.Hosts)
	unit := c.Unit
	c.renumber()
	if c.Unit != unit { // keep the scale, which rates are in
		for i := range c.Edges {
			c.Edges[i].Cap *= int64(math.Round(float64(c.Unit / unit)))
		}
		c.Unit = unit
	}
	return &c
}

// between reports whether an edge joins two switches of the fabric.
func (n *Net) between(edge int) bool {
	e := &n.Edges[edge]
	return e.From >= n.Ranks && e.To >= n.Ranks && n.Hosts[e.From] < 0 && n.Hosts[e.To] < 0
}

// fill makes k trees for each rank of the roots, those of the first period before the
// others, and gives the rate of each root that they reach, of x at most. It looks no
// further where that is a share of x that is enough.
func (n *Net) fill(roots []int, x *big.Rat, k int, enough float64) ([]Tree, *turns, *big.Rat, error) {
	n = n.contracted()
	t := &turns{period: n.Ranks, class: sets.New[int](len(n.Edges)), times: make([]int, len(n.Edges))}
	if len(roots) == n.Ranks {
		t = n.turned()
	}
	f := &filler{net: n, out: make([][]int32, n.Nodes()), class: t.class, times: make([]float64, len(n.Edges)),
		load: make([]float64, len(n.Edges)),
		room: make([]float64, len(n.Edges)), period: t.period, dist: make([]float64, n.Nodes()), via: make([]int32, n.Nodes()),
		source: make([]int32, n.Nodes())}
	rate, _ := x.Float64()
	for i, e := range n.Edges {
		f.out[e.From] = append(f.out[e.From], int32(i))
		f.times[i] = float64(max(t.times[i], 1))
		if t.class[i] == i {
			f.room[i] = float64(e.Cap) * float64(k) / rate
		}
	}
	var base []int
	for _, r := range roots {
		if t.first(r) == r {
			base = append(base, r)
		}
	}
	var best []*sprout
	least := math.Inf(1)
	crossing := slices.ContainsFunc(sequence(len(n.Edges)), n.between)
	for _, try := range []struct {
		steep  float64
		scarce bool
	}{{0.25, true}, {128, true}, {0.25, false}, {16, false}, {128, false}} {
		if try.scarce && !crossing {
			continue
		}
		clear(f.load)
		f.steep, f.over, f.scarce = try.steep, max(try.steep, 64), try.scarce
		var list []*sprout
		for range k {
			for _, r := range base {
				list = append(list, newSprout(r, n.Ranks))
			}
		}
		some := 1 // side by side, so that no tree is first everywhere
		if n.Ranks > mostChecked {
			some = n.Ranks / rounds
		}
		for open := true; open; {
			open = false
			for _, s := range list {
				if s.size == n.Ranks {
					continue
				}
				if !f.grow(s, some) {
					return nil, nil, nil, fmt.Errorf("no tree from %s reaches all ranks of %s", n.Names[s.root], n.Name)
				}
				open = true
			}
		}
		for turn := 0; ; turn++ {
			if full := f.fullest(); full < least-1e-9 {
				least, best = full, slices.Clone(list)
			}
			if turn == mostRegrown || 1/least >= enough || f.visited > mostVisited {
				break
			}
			for i, s := range list {
				f.drop(s)
				list[i] = newSprout(s.root, n.Ranks)
				for list[i].size < n.Ranks {
					f.grow(list[i], some)
				}
			}
		}
		if 1/least >= enough || f.visited > mostVisited {
			break
		}
	}
	load := make([]int64, len(n.Edges))
	var first []Tree
	for _, s := range best {
		for _, path := range s.path {
			for _, i := range path {
				load[t.class[i]] += int64(f.times[i])
			}
		}
		first = append(first, Tree{Root: s.root, Parent: s.parent, Weight: 1})
	}
	var trees []Tree
	first = merged(first)
	to := make([]int, n.Ranks)
	for root := range n.Ranks { // by period, and those of a period by their roots
		for v := range to {
			to[v] = t.to(v, root)
		}
		for _, s := range first {
			if s.Root != t.first(root) {
				continue
			}
			turned := Tree{Root: root, Parent: make([]int, n.Ranks), Weight: s.Weight}
			for v, p := range s.Parent {
				if p >= 0 {
					p = to[p]
				}
				turned.Parent[to[v]] = p
			}
			trees = append(trees, turned)
		}
	}
	// The rate is that of the fullest link, as a fraction.
	reach := new(big.Rat)
	for i, l := range load {
		if l > 0 {
			if r := ratio(n.Edges[i].Cap*int64(k), l); reach.Sign() == 0 || r.Cmp(reach) < 0 {
				reach = r
			}
		}
	}
	if reach.Cmp(x) > 0 {
		return nil, nil, nil, fmt.Errorf("%s: trees carry %s from every root, more than the bound %s", n.Name, reach.RatString(), x.RatString())
	}
	return trees, t, reach, nil
}
