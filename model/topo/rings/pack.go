package rings

import (
	"math/bits"
	"slices"
)

// packer packs directed Hamiltonian cycles into a multigraph whose links carry
// one cycle each way.
type packer struct {
	n      int
	free   [][]int16 // from, to: links not used yet in that direction
	out    []uint64  // from: mask of the vertices with a free link to them
	in     []uint64  // to: likewise from them
	all    uint64
	steps  int
	budget int
	ties   []uint64 // per depth of a ring: the order among equals, drawn anew in each restart

	pair   bool // use a cycle and its reverse together
	sorted bool // rings in lexicographic order, so that each set of rings is met once
	want   int
	first  int // where rings start: the vertex with the fewest ways out
	rings  [][]int
	path   []int
}

// newPacker prepares the search for as many rings as fit. Rings begin at the GPU with the fewest links: it decides
// soonest.
func newPacker(links [][]int16, budget int) *packer {
	n := len(links)
	p := &packer{n: n, budget: budget, all: 1<<n - 1, free: make([][]int16, n), out: make([]uint64, n), in: make([]uint64, n)}
	for v := range links {
		p.free[v] = slices.Clone(links[v])
		for u, c := range links[v] {
			if c > 0 {
				p.out[v] |= 1 << u
				p.in[u] |= 1 << v
			}
		}
	}
	for v := range links {
		a, b := degree(links, v), degree(links, p.first)
		if a < b || a == b && bits.OnesCount64(p.out[v]) < bits.OnesCount64(p.out[p.first]) {
			p.first = v
		}
	}
	return p
}

// outcome of a search for a given number of rings.
type outcome int

const (
	found outcome = iota
	impossible
	unknown // the budget ended first
)

// pack looks for k rings. It tries, each with a share of the budget:
//
//  1. cycles used both ways, two rings each: half the depth, and enough on most
//     machines, since their links are as good in one direction as in the other;
//  2. every set of rings, in lexicographic order, for a short while: on most sets
//     of up to eight GPUs this ends, with rings or with the proof that there are none;
//  3. restarts that follow the vertex with the fewest ways on, ties at random;
//  4. every set of rings again, for as long as is left.
func pack(links [][]int16, k int, o Options) (rings [][]int, result outcome, steps int) {
	n := len(links)
	if n == 2 { // there and back: as many as there are links
		if int(links[0][1]) < k {
			return nil, impossible, 1
		}
		return slices.Repeat([][]int{{0, 1}}, k), found, 1
	}
	p := newPacker(links, o.Budget/4)
	if p.pairs(k) {
		return p.rings, found, p.steps
	}
	steps = p.steps
	exhaust := func(budget int) ([][]int, outcome) {
		p := newPacker(links, budget)
		p.want, p.sorted = k, true
		rings, result := p.search()
		steps += p.steps
		return rings, result
	}
	if rings, result = exhaust(o.Budget / 16); result != unknown {
		return rings, result, steps
	}
	random := o.Seed
	for left := o.Budget / 4; left > 0; {
		p := newPacker(links, min(left, 256*n*k))
		p.want = k
		for range n {
			p.ties = append(p.ties, mix(&random))
		}
		rings, result = p.search()
		steps, left = steps+p.steps, left-p.steps
		if result != unknown {
			return rings, result, steps
		}
	}
	rings, result = exhaust(o.Budget / 2)
	return rings, result, steps
}

// search looks for the rings that are wanted. One that ends within its budget without them has seen that there are none.
func (p *packer) search() ([][]int, outcome) {
	switch ok := p.ring(0); {
	case ok:
		return p.rings, found
	case p.steps < p.budget:
		return nil, impossible
	}
	return nil, unknown
}

// mix is SplitMix64.
func mix(state *uint64) uint64 {
	*state += 0x9e3779b97f4a7c15
	x := *state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// pairs looks for k/2 cycles to be used both ways, and one more ring if k is odd.
func (p *packer) pairs(k int) bool {
	p.pair, p.sorted, p.want = true, true, k/2
	if !p.ring(0) {
		return false
	}
	both := p.rings
	p.rings = nil
	for _, r := range both {
		back := slices.Clone(r)
		slices.Reverse(back[1:])
		p.rings = append(p.rings, r, back)
	}
	if k%2 == 0 {
		return true
	}
	p.pair, p.sorted, p.want = false, false, k
	return p.ring(0)
}

// ring starts the next ring, unless enough are there. least is the vertex that
// the ring before went to first.
func (p *packer) ring(least int) bool {
	if len(p.rings) == p.want {
		return true
	}
	if !p.enough(p.want-len(p.rings), least) {
		return false
	}
	p.path = append(p.path[:0], p.first)
	return p.extend(1<<p.first, p.sorted && len(p.rings) > 0)
}

// extend adds a vertex to the ring under way; same says that it equals the last
// complete ring so far, below which it must not sort.
func (p *packer) extend(seen uint64, same bool) bool {
	at := p.path[len(p.path)-1]
	if seen == p.all {
		// Of a cycle and its reverse the one with the smaller second vertex stands for both.
		return p.out[at]&(1<<p.first) != 0 && !(p.pair && at < p.path[1]) && p.close(at)
	}
	least := 0
	if same {
		least = p.rings[len(p.rings)-1][len(p.path)]
	}
	for next := p.out[at] &^ seen &^ (1<<least - 1); next != 0; {
		v := p.choose(next, seen)
		next &^= 1 << v
		if p.steps++; p.steps >= p.budget {
			return false
		}
		p.take(at, v, -1)
		p.path = append(p.path, v)
		if p.open(v, seen|1<<v) && p.extend(seen|1<<v, same && v == least) {
			return true
		}
		p.path = p.path[:len(p.path)-1]
		p.take(at, v, 1)
		if p.steps >= p.budget {
			return false
		}
	}
	return false
}

// choose picks the next vertex to try: in order when rings are sorted, else the
// one with the fewest ways on.
func (p *packer) choose(next, seen uint64) int {
	if p.ties == nil {
		return bits.TrailingZeros64(next)
	}
	best, fewest := -1, ^uint64(0)
	for m := next; m != 0; m &= m - 1 {
		v := bits.TrailingZeros64(m)
		tie := p.ties[len(p.path)%len(p.ties)] ^ uint64(v)*0x9e3779b97f4a7c15
		if score := uint64(bits.OnesCount64(p.out[v]&^seen))<<56 | tie>>8; score < fewest {
			best, fewest = v, score
		}
	}
	return best
}

// open reports whether every vertex not seen yet can still be entered and left,
// and the first one be come back to, when the ring stands at a vertex.
func (p *packer) open(at int, seen uint64) bool {
	rest := p.all &^ seen
	if rest == 0 {
		return true
	}
	if p.out[at]&rest == 0 || p.in[p.first]&rest == 0 {
		return false
	}
	for m := rest; m != 0; m &= m - 1 {
		v := bits.TrailingZeros64(m)
		self := uint64(1) << v
		if p.in[v]&(rest&^self|1<<at) == 0 || p.out[v]&(rest&^self|1<<p.first) == 0 {
			return false
		}
	}
	return true
}

// close ends a ring with the way back from its last vertex and goes on to the next ring.
func (p *packer) close(at int) bool {
	if p.steps++; p.steps >= p.budget {
		return false
	}
	path := slices.Clone(p.path)
	p.take(at, p.first, -1)
	p.rings = append(p.rings, path)
	if p.ring(path[1]) {
		return true
	}
	p.rings = p.rings[:len(p.rings)-1]
	p.take(at, p.first, 1)
	p.path = append(p.path[:0], path...)
	return false
}

// take uses a link (by -1) or gives it back (by 1), both ways if rings come in pairs.
func (p *packer) take(a, b int, by int16) {
	p.use(a, b, by)
	if p.pair {
		p.use(b, a, by)
	}
}

func (p *packer) use(a, b int, by int16) {
	p.free[a][b] += by
	switch c := p.free[a][b]; {
	case c == 0:
		p.out[a] &^= 1 << b
		p.in[b] &^= 1 << a
	case c == 1 && by > 0:
		p.out[a] |= 1 << b
		p.in[b] |= 1 << a
	}
}

// enough reports whether the links left let r more rings through every cut (of
// up to smallCut vertices all of them, else around single ones), when they may
// leave the first vertex only towards least and beyond.
func (p *packer) enough(r, least int) bool {
	per := r
	if p.pair {
		per = 2 * r
	}
	ways := 0
	for u, c := range p.free[p.first] {
		if !p.sorted || u >= least {
			ways += int(c)
		}
	}
	if ways < per {
		return false
	}
	return p.n > smallCut || p.everyCut(per)
}

// everyCut reports whether at least per links lead out of every set of vertices.
func (p *packer) everyCut(per int) bool {
	// cut[S] from cut[S without its highest vertex v]: links from v to outside S
	// come in, links from the rest of S to v no longer count.
	var cut [1 << smallCut]int32
	for set := 1; set < 1<<p.n-1; set++ {
		v := bits.Len(uint(set)) - 1
		rest := set &^ (1 << v)
		c := cut[rest]
		for u := range p.n {
			switch {
			case u == v:
			case rest>>u&1 != 0:
				c -= int32(p.free[u][v])
			default:
				c += int32(p.free[v][u])
			}
		}
		cut[set] = c
		if int(c) < per {
			return false
		}
	}
	return true
}

const smallCut = 8
