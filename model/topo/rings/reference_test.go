package rings

import (
	"math/bits"
	"math/rand/v2"
	"testing"
)

// randomLinks gives a multigraph as a matrix of link counts.
func randomLinks(r *rand.Rand, n, most int, density float64) [][]int16 {
	links := make([][]int16, n)
	for v := range links {
		links[v] = make([]int16, n)
	}
	for v := range n {
		for u := range v {
			if r.Float64() < density {
				links[v][u] = int16(1 + r.IntN(most))
				links[u][v] = links[v][u]
			}
		}
	}
	return links
}

// cycles lists every directed Hamiltonian cycle of n vertices, from vertex 0.
func cycles(n int) [][]int {
	var all [][]int
	var grow func(path []int)
	grow = func(path []int) {
		if len(path) == n {
			all = append(all, append([]int(nil), path...))
			return
		}
	next:
		for v := 1; v < n; v++ {
			for _, u := range path {
				if u == v {
					continue next
				}
			}
			grow(append(path, v))
		}
	}
	grow([]int{0})
	return all
}

// mostRings is the plain reference: take or leave each cycle, as often as it fits.
func mostRings(links [][]int16) int {
	n := len(links)
	all := cycles(n)
	free := make([][]int16, n)
	for v := range links {
		free[v] = append([]int16(nil), links[v]...)
	}
	use := func(c []int, by int16) bool {
		ok := true
		for i, v := range c {
			u := c[(i+1)%n]
			free[v][u] += by
			ok = ok && free[v][u] >= 0
		}
		return ok
	}
	best, bound := 0, degree(links, 0)
	var from func(i, have int)
	from = func(i, have int) {
		best = max(best, have)
		for ; i < len(all) && best < bound; i++ {
			if use(all[i], -1) {
				from(i, have+1)
			}
			use(all[i], 1)
		}
	}
	from(0, 0)
	return best
}

func TestRingsAgainstTryingEverySet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	below := 0
	for i := range 1500 {
		n := 3 + i%3
		links := randomLinks(r, n, 2, 0.5+0.5*r.Float64())
		want := mostRings(links)
		bound, _ := minCut(links)
		got := 0
		for k := bound; k > 0; k-- {
			rings, result, _ := pack(links, k, Options{Budget: defaultBudget})
			if result == unknown {
				t.Fatalf("%v: %d rings undecided", links, k)
			}
			if result == found {
				got = len(rings)
				packed(t, links, rings)
				break
			}
		}
		if got != want {
			t.Fatalf("graph %d: %v: %d rings, trying every set gives %d", i, links, got, want)
		}
		if want < bound {
			below++
		}
	}
	t.Logf("%d of 1500 graphs have fewer rings than their smallest cut", below)
	if below < 50 {
		t.Errorf("only %d graphs test the proof that no more rings fit", below)
	}
}

// Six and seven vertices have too many sets to try them all, but on sparse graphs it can be done.
func TestRingsAgainstTryingEverySetOnSparseGraphs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 200 {
		links := randomLinks(r, 6+i%2, 2, 0.55-0.1*float64(i%2))
		want := mostRings(links)
		bound, _ := minCut(links)
		got := 0
		for k := bound; k > 0 && got == 0; k-- {
			rings, result, _ := pack(links, k, Options{Budget: defaultBudget, Seed: uint64(i)})
			if result == unknown {
				t.Fatalf("%v: %d rings undecided", links, k)
			}
			packed(t, links, rings)
			got = len(rings)
		}
		if got != want {
			t.Fatalf("graph %d: %v: %d rings, trying every set gives %d", i, links, got, want)
		}
	}
}

// packed checks that rings are Hamiltonian and fit into the links.
func packed(t *testing.T, links [][]int16, rings [][]int) {
	t.Helper()
	n := len(links)
	used := make([][]int16, n)
	for v := range used {
		used[v] = make([]int16, n)
	}
	for _, ring := range rings {
		seen := 0
		for i, v := range ring {
			seen |= 1 << v
			u := ring[(i+1)%n]
			if used[v][u]++; used[v][u] > links[v][u] {
				t.Fatalf("%v: rings %v use %d to %d more than %d times", links, rings, v, u, links[v][u])
			}
		}
		if seen != 1<<n-1 || len(ring) != n {
			t.Fatalf("%v is no Hamiltonian cycle of %d", ring, n)
		}
	}
}

func TestMinCutAgainstEveryCut(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 2000 {
		n := 2 + i%7
		links := randomLinks(r, n, 3, r.Float64())
		want := -1
		for set := 1; set < 1<<n-1; set++ {
			if c := across(links, set); want < 0 || c < want {
				want = c
			}
		}
		got, side := minCut(links)
		mask := 0
		for _, v := range side {
			mask |= 1 << v
		}
		if got != want || across(links, mask) != got || mask == 0 || mask == 1<<n-1 {
			t.Fatalf("%v: cut %d at %v, want %d", links, got, side, want)
		}
	}
}

func across(links [][]int16, set int) int {
	c := 0
	for v := range links {
		for u := range links {
			if set>>v&1 != 0 && set>>u&1 == 0 {
				c += int(links[v][u])
			}
		}
	}
	return c
}

// Nash-Williams and Tutte 1961: k edge-disjoint spanning trees exist if and only
// if every partition of the vertices into p parts has at least k(p-1) edges
// between parts. The number of trees is the least of edges/(p-1), rounded down.
func TestTreesAgainstNashWilliamsAndTutte(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i := range 1200 {
		n := 2 + i%7
		links := randomLinks(r, n, 3, 0.3+0.7*r.Float64())
		var edges []edge
		for v := range n {
			for u := v + 1; u < n; u++ {
				for range links[v][u] {
					edges = append(edges, edge{v, u})
				}
			}
		}
		want := -1
		part := make([]int, n)
		var assign func(v, parts int)
		assign = func(v, parts int) {
			if v == n {
				if parts < 2 {
					return
				}
				between := 0
				for _, e := range edges {
					if part[e.a] != part[e.b] {
						between++
					}
				}
				if k := between / (parts - 1); want < 0 || k < want {
					want = k
				}
				return
			}
			for p := 0; p <= parts; p++ {
				part[v] = p
				assign(v+1, max(parts, p+1))
			}
		}
		assign(0, 0)
		trees := spanningTrees(n, edges)
		if len(trees) != want {
			t.Fatalf("%v: %d trees, the formula says %d", links, len(trees), want)
		}
		used := map[int]bool{}
		for _, tree := range trees {
			reached := 1
			for range n {
				for _, e := range tree {
					if a, b := reached>>edges[e].a&1, reached>>edges[e].b&1; a != b {
						reached |= 1<<edges[e].a | 1<<edges[e].b
					}
				}
			}
			for _, e := range tree {
				if used[e] {
					t.Fatalf("%v: edge %d in two trees", links, e)
				}
				used[e] = true
			}
			if len(tree) != n-1 || bits.OnesCount(uint(reached)) != n {
				t.Fatalf("%v: %v does not span", links, tree)
			}
		}
	}
}

// An exhausted budget is said, not hidden.
func TestBudget(t *testing.T) {
	g := complete(t, 6)
	r, err := Search(g, gpus(t, g), nil, Options{Budget: 200})
	if err != nil {
		t.Fatal(err)
	}
	if r.Exact || len(r.Rings) == 0 {
		t.Errorf("%d rings, exact %t within 200 steps: %s", len(r.Rings), r.Exact, r.Why)
	}
}

func BenchmarkSearchCubeMesh(b *testing.B) {
	g := dgx1V(b)
	set := gpus(b, g)
	for b.Loop() {
		if _, err := Search(g, set, nil, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSearchCompleteOfSix(b *testing.B) {
	g := complete(b, 6)
	set := gpus(b, g)
	for b.Loop() {
		if _, err := Search(g, set, nil, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
