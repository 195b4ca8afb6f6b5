package synth

import (
	"cmp"
	"fmt"
	"github.com/weft-fabric/weft/model/flow"
	"slices"
)

// Tree is a spanning tree of ranks that is used Weight times over.
type Tree struct {
	Root   int
	Parent []int // by rank; -1 for the root
	Weight int64

	made *wired // what it was packed in, with links turned round for a tree up; nil where links were filled
	was  *Tree  // the tree as it was packed, where another rank has become the root
}

// centred is the tree with the root that makes it lowest. Data that climbs and descends it takes the same
// links both ways whichever rank is the root.
func (t *Tree) centred() *Tree {
	n := len(t.Parent)
	next := make([][]int, n)
	for v, p := range t.Parent {
		if p >= 0 {
			next[v], next[p] = append(next[v], p), append(next[p], v)
		}
	}
	best, least := t, t.Height()
	for root := range n {
		one := &Tree{Root: root, Parent: make([]int, n), Weight: t.Weight, made: t.made, was: t}
		one.Parent[root] = -1
		for now := []int{root}; len(now) > 0; now = now[1:] {
			for _, v := range next[now[0]] {
				if v != one.Parent[now[0]] {
					one.Parent[v] = now[0]
					now = append(now, v)
				}
			}
		}
		if h := one.Height(); h < least {
			best, least = one, h
		}
	}
	return best
}

// Height is the number of hops from the root to the farthest rank. A path of an all-to-all does not reach all ranks.
func (t *Tree) Height() int {
	most := 0
	for v := range t.Parent {
		h := 0
		for u := v; u != t.Root && t.Parent[u] >= 0; u = t.Parent[u] {
			h++
		}
		most = max(most, h)
	}
	return most
}

// group is trees under construction that are alike so far.
type group struct {
	root   int
	parent []int
	member []int // in the order they were reached
	in     []bool
	depth  []int
	weight int64
}

// pack finds spanning trees from every root, as many as it feeds, that fit into
// the links together (Edmonds 1973; grown edge by edge as Tarjan, and Bérczi and
// Frank, with many alike trees at once). A link from x, which the first group
// has, to y, which it lacks, may be taken by
//
//	min( what is left of the link, trees of the group, F(x, y) - trees of all other groups )
//
// of them, where the flow F runs in what is left plus, for each other group,
// a way from x to all that the group has reached. So the others can still be
// completed. Trees grow breadth-first, which keeps them low.
func (w *wired) pack() ([]Tree, error) {
	n := w.net.Ranks
	left := make([][]int64, n)
	for v := range left {
		left[v] = slices.Clone(w.cap[v][:n])
	}
	var open []*group
	for r, k := range w.feed {
		if k > 0 {
			g := &group{root: r, parent: make([]int, n), member: []int{r}, in: make([]bool, n), depth: make([]int, n), weight: k}
			for v := range g.parent {
				g.parent[v] = -1
			}
			g.in[r] = true
			open = append(open, g)
		}
	}
	var done []Tree
	for len(open) > 0 {
		g := open[0]
		if len(g.member) == n {
			done = append(done, Tree{Root: g.root, Parent: g.parent, Weight: g.weight})
			open = open[1:]
			continue
		}
		x, y, most := w.extend(left, open)
		if most == 0 {
			return nil, fmt.Errorf("%s: no tree from %s can be completed", w.net.Name, w.net.Names[g.root])
		}
		if most < g.weight {
			rest := &group{root: g.root, parent: slices.Clone(g.parent), member: slices.Clone(g.member), in: slices.Clone(g.in),
				depth: slices.Clone(g.depth), weight: g.weight - most}
			g.weight = most
			open = slices.Insert(open, 1, rest)
		}
		left[x][y] -= most
		g.parent[y], g.in[y], g.depth[y] = x, true, g.depth[x]+1
		g.member = append(g.member, y)
	}
	return merged(done), nil
}

func flowOver(left [][]int64, nodes int) *flow.Network {
	f := flow.New(nodes, 0)
	for u := range left {
		for v, c := range left[u] {
			if c > 0 {
				f.Link(u, v, c, 0)
			}
		}
	}
	return f
}

// targets lists the ranks outside a group that a rank has capacity left to, wide links first: they take the whole group.
func (g *group) targets(left []int64) (list []int) {
	for v, c := range left {
		if !g.in[v] && c > 0 {
			list = append(list, v)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(min(left[b], g.weight), min(left[a], g.weight)) })
	return list
}

// extend finds a link for the first open group and how many of its trees may take it.
func (w *wired) extend(left [][]int64, open []*group) (x, y int, most int64) {
	n, g := w.net.Ranks, open[0]
	f := flowOver(left, n+len(open))
	var others int64
	starts := make([]int, 0, len(open))
	for i, o := range open[1:] {
		others += o.weight
		starts = append(starts, n+i)
		for _, v := range o.member {
			f.Link(n+i, v, flow.Endless, 0)
		}
	}
	order := slices.Clone(g.member)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(g.depth[a], g.depth[b]) })
	base := f.Arcs()
	for _, u := range order {
		targets := g.targets(left[u])
		if len(targets) == 0 {
			continue
		}
		f.Trim(base)
		for i, o := range open[1:] {
			f.Link(u, starts[i], o.weight, 0)
		}
		for _, v := range targets {
			want := min(left[u][v], g.weight)
			if got := f.Run(u, v, others+want) - others; got > 0 {
				return u, v, min(got, want)
			}
		}
	}
	return 0, 0, 0
}

// merged joins equal trees, and orders them by root.
func merged(list []Tree) []Tree {
	slices.SortStableFunc(list, func(a, b Tree) int {
		return cmp.Or(cmp.Compare(a.Root, b.Root), slices.Compare(a.Parent, b.Parent))
	})
	var out []Tree
	for _, t := range list {
		if k := len(out); k > 0 && out[k-1].Root == t.Root && slices.Equal(out[k-1].Parent, t.Parent) {
			out[k-1].Weight += t.Weight
			continue
		}
		out = append(out, t)
	}
	return out
}
