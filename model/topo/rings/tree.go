package rings

// edge is one physical link between two vertices.
type edge struct{ a, b int }

// spanningTrees packs as many edge-disjoint spanning trees as there are into an
// undirected multigraph of n vertices and gives them as lists of edge indices.
//
// It grows k forests edge by edge (matroid partition, Edmonds 1965; for forests
// Roskind and Tarjan 1985). An edge goes into a forest where it closes no cycle;
// if it closes one in each, it may take the place of an edge on such a cycle,
// which then looks for a place itself. The shortest such chain of replacements
// keeps all forests forests; when no chain exists for any edge left, the forests
// hold as many edges as any k forests can. k is the largest for which they all
// span, tried from an upper bound downwards.
func spanningTrees(n int, edges []edge) [][]int {
	most := len(edges) / (n - 1)
	links := make([][]int16, n)
	for v := range links {
		links[v] = make([]int16, n)
	}
	for _, e := range edges {
		links[e.a][e.b]++
		links[e.b][e.a]++
	}
	if cut, _ := minCut(links); cut < most { // each tree needs a link in every cut
		most = cut
	}
	for k := most; k > 0; k-- {
		p := newPartition(n, edges, k)
		if p.grow() == k*(n-1) {
			return p.members()
		}
	}
	return nil
}

// partition is k forests over the same vertices.
type partition struct {
	n      int
	edges  []edge
	k      int
	in     []int     // forest of each edge, -1 for none
	adj    [][][]int // forest, vertex: edges there
	via    []int     // the search's way back: the edge that this one would make room for
	into   []int     // and the forest in which it would take this one's place
	queue  []int
	parent []int // of a vertex in the forest walked through, by edge
	seen   []bool
}

func newPartition(n int, edges []edge, k int) *partition {
	p := &partition{n: n, edges: edges, k: k, in: make([]int, len(edges)), adj: make([][][]int, k),
		via: make([]int, len(edges)), into: make([]int, len(edges)), parent: make([]int, n), seen: make([]bool, n)}
	for i := range p.in {
		p.in[i] = -1
	}
	for f := range p.adj {
		p.adj[f] = make([][]int, n)
	}
	return p
}

// grow places every edge it can and says how many it placed. An edge that finds
// no place never will: what the forests span together only grows.
func (p *partition) grow() int {
	placed := 0
	for e := range p.edges {
		if p.place(e) {
			placed++
		}
	}
	return placed
}

// place adds an edge to one of the k forests, moving others between them if it must: the augmenting paths of matroid
// partition, breadth first. It returns false if no exchange makes room.
func (p *partition) place(e int) bool {
	const fresh, start = -2, -1
	for i := range p.via {
		p.via[i] = fresh
	}
	p.via[e] = start
	p.queue = append(p.queue[:0], e)
	for q := 0; q < len(p.queue); q++ {
		x := p.queue[q]
		for f := range p.k {
			if f == p.in[x] {
				continue
			}
			cycle, joined := p.path(f, p.edges[x].a, p.edges[x].b)
			if !joined {
				p.chain(x, f)
				return true
			}
			for _, y := range cycle {
				if p.via[y] == fresh {
					p.via[y], p.into[y] = x, f
					p.queue = append(p.queue, y)
				}
			}
		}
	}
	return false
}

// chain puts edge x into forest f, and each edge before it into the place it made.
func (p *partition) chain(x, f int) {
	for {
		old, back := p.in[x], p.via[x]
		if old >= 0 {
			p.remove(old, x)
		}
		p.add(f, x)
		if back < 0 {
			return
		}
		x, f = back, p.into[x]
	}
}

func (p *partition) add(f, e int) {
	p.in[e] = f
	p.adj[f][p.edges[e].a] = append(p.adj[f][p.edges[e].a], e)
	p.adj[f][p.edges[e].b] = append(p.adj[f][p.edges[e].b], e)
}

func (p *partition) remove(f, e int) {
	for _, v := range []int{p.edges[e].a, p.edges[e].b} {
		list := p.adj[f][v]
		for i, x := range list {
			if x == e {
				p.adj[f][v] = append(list[:i], list[i+1:]...)
				break
			}
		}
	}
}

// path gives the edges between two vertices of a forest, false if it does not join them.
func (p *partition) path(f, a, b int) ([]int, bool) {
	for v := range p.seen {
		p.seen[v] = false
	}
	p.seen[a] = true
	stack := []int{a}
	for len(stack) > 0 && !p.seen[b] {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, e := range p.adj[f][v] {
			if u := p.edges[e].a + p.edges[e].b - v; !p.seen[u] {
				p.seen[u], p.parent[u] = true, e
				stack = append(stack, u)
			}
		}
	}
	if !p.seen[b] {
		return nil, false
	}
	var list []int
	for v := b; v != a; {
		e := p.parent[v]
		list = append(list, e)
		v = p.edges[e].a + p.edges[e].b - v
	}
	return list, true
}

func (p *partition) members() [][]int {
	trees := make([][]int, p.k)
	for e, f := range p.in {
		if f >= 0 {
			trees[f] = append(trees[f], e)
		}
	}
	return trees
}

// hang roots a tree at the vertex from which it is shallowest, the first among
// equals, and gives each vertex's parent (-1 for the root), the edge to it, and
// the depth.
func hang(n int, edges []edge, tree []int) (root int, parent, up []int, depth int) {
	depth = n
	for r := range n {
		p, u, d := hangAt(n, edges, tree, r)
		if d < depth {
			root, parent, up, depth = r, p, u, d
		}
	}
	return root, parent, up, depth
}

// hangAt roots a tree: the parent of each node, the edge to it, and the depth. A node that the tree does not reach has
// parent -1, as the root has.
func hangAt(n int, edges []edge, tree []int, root int) (parent, up []int, depth int) {
	parent, up = make([]int, n), make([]int, n)
	level := make([]int, n)
	for v := range n {
		parent[v], up[v], level[v] = -1, -1, -1
	}
	level[root] = 0
	queue := []int{root}
	for q := 0; q < len(queue); q++ {
		v := queue[q]
		depth = level[v]
		for _, e := range tree {
			u := edges[e].a + edges[e].b - v
			if edges[e].a != v && edges[e].b != v || level[u] >= 0 {
				continue
			}
			parent[u], up[u], level[u] = v, e, level[v]+1
			queue = append(queue, u)
		}
	}
	return parent, up, depth
}
