package synth

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/flow"
	"github.com/weft-fabric/weft/model/unit"
)

// MostShallow is the number of ranks up to which Shallow searches.
const MostShallow = 16

// Shallow finds trees with the fewest hops, for messages so small that hops and
// not bytes count: from every root a tree of shortest ways, and among these, by
// search, those that put the least load on the busiest link. An all-reduce takes
// the rank as its root from which the farthest one is nearest.
func (n *Net) Shallow(op sched.Collective, root int) (*Plan, error) {
	if n.Ranks > MostShallow {
		return nil, fmt.Errorf("the fewest hops are searched for up to %d ranks; %s has %d", MostShallow, n.Name, n.Ranks)
	}
	b, err := n.Bounds(op, root, false)
	if err != nil {
		return nil, err
	}
	net := n
	up := op == sched.ReduceScatter || op == sched.Reduce
	if up {
		net = n.Reversed()
	}
	hops, width := net.hops()
	roots := []int{root}
	switch op {
	case sched.AllGather, sched.ReduceScatter:
		roots = sequence(n.Ranks)
	case sched.AllReduce:
		best, least := 0, n.Ranks+1
		for r := range n.Ranks {
			if far := slices.Max(distances(hops, r)); far < least {
				best, least = r, far
			}
		}
		roots = []int{best}
	case sched.Broadcast, sched.Reduce:
	default:
		return nil, fmt.Errorf("no trees for %s", op)
	}
	trees := balanced(hops, width, roots)
	p := &Plan{Net: n, Op: op, Root: root, Bound: b}
	for i := range trees {
		w := Way{Down: &trees[i], Weight: 1}
		switch {
		case up:
			w = Way{Up: &trees[i], Weight: 1}
		case op == sched.AllReduce:
			w.Up = &trees[i]
		}
		p.Ways = append(p.Ways, w)
	}
	// What the busiest link allows, as if links between ranks were the only ones.
	p.Exact = nil
	for from, row := range loads(trees, n.Ranks) {
		for to, load := range row {
			if load == 0 {
				continue
			}
			if r := ratio(width[from][to]*int64(len(trees)), int64(load)); p.Exact == nil || r.Cmp(p.Exact) < 0 {
				p.Exact = r
			}
		}
	}
	f, _ := p.Exact.Float64()
	p.Rate = unit.Rate(f) * n.Unit
	return p, nil
}

func sequence(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// hops gives for every rank the ranks that it reaches without passing another
// one, and what the widest way there carries.
func (n *Net) hops() (next [][]int, width [][]int64) {
	_, out := n.sides()
	next, width = make([][]int, n.Ranks), make([][]int64, n.Ranks)
	for r := range n.Ranks {
		width[r] = make([]int64, n.Ranks)
		most := make([]int64, n.Nodes())
		most[r] = flow.Endless
		queue := []int{r}
		for len(queue) > 0 {
			v := queue[0]
			queue = queue[1:]
			for _, i := range out[v] {
				e := n.Edges[i]
				if got := min(most[v], e.Cap); got > most[e.To] {
					most[e.To] = got
					if e.To >= n.Ranks {
						queue = append(queue, e.To)
					}
				}
			}
		}
		for v := range n.Ranks {
			if v != r && most[v] > 0 {
				next[r] = append(next[r], v)
				width[r][v] = most[v]
			}
		}
	}
	return next, width
}

// distances counts hops from the root. What cannot be reached is farther than any path is long.
func distances(next [][]int, root int) []int {
	far := make([]int, len(next))
	for v := range far {
		far[v] = len(next) + 1
	}
	far[root] = 0
	queue := []int{root}
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		for _, u := range next[v] {
			if far[u] > far[v]+1 {
				far[u] = far[v] + 1
				queue = append(queue, u)
			}
		}
	}
	return far
}

func loads(trees []Tree, n int) [][]float64 {
	load := make([][]float64, n)
	for v := range load {
		load[v] = make([]float64, n)
	}
	for _, t := range trees {
		for v, p := range t.Parent {
			if p >= 0 {
				load[p][v]++
			}
		}
	}
	return load
}

// nearest hangs every rank below the first of its parents on a shortest way from the root, and lists all of these.
func nearest(next [][]int, width [][]int64, root int) (Tree, [][]int) {
	n, far := len(next), distances(next, root)
	t := Tree{Root: root, Parent: make([]int, n), Weight: 1}
	choices := make([][]int, n)
	for v := range n {
		t.Parent[v] = -1
		if v == root {
			continue
		}
		for u := range n {
			if far[u]+1 == far[v] && width[u][v] > 0 {
				choices[v] = append(choices[v], u)
			}
		}
		t.Parent[v] = choices[v][0]
	}
	return t, choices
}

// balanced hangs every rank below a parent on a shortest way, and moves ranks to
// other such parents as long as that lowers the sum of squares of the links'
// loads over their widths, which the busiest links rule.
func balanced(next [][]int, width [][]int64, roots []int) []Tree {
	n := len(next)
	trees := make([]Tree, len(roots))
	choices := make([][][]int, len(roots)) // by tree and rank: parents on a shortest way
	for i, r := range roots {
		trees[i], choices[i] = nearest(next, width, r)
	}
	load := loads(trees, n)
	for moved, round := true, 0; moved && round < 64; round++ {
		moved = false
		for i := range trees {
			for v, options := range choices[i] {
				for _, u := range options {
					old := trees[i].Parent[v]
					if u == old {
						continue
					}
					a, b := float64(width[old][v]), float64(width[u][v])
					before := load[old][v]*load[old][v]/a + load[u][v]*load[u][v]/b
					after := (load[old][v]-1)*(load[old][v]-1)/a + (load[u][v]+1)*(load[u][v]+1)/b
					if after < before-1e-9 {
						load[old][v]--
						load[u][v]++
						trees[i].Parent[v], moved = u, true
					}
				}
			}
		}
	}
	return trees
}

// OneShot writes an all-reduce in which every rank's whole input goes down a tree
// to all others, and everybody adds in the same order: half the hops of a sum
// that climbs and comes down, and n times the bytes.
func (n *Net) OneShot(name string) (*sched.Program, error) {
	if n.Ranks > MostShallow {
		return nil, fmt.Errorf("the fewest hops are searched for up to %d ranks; %s has %d", MostShallow, n.Name, n.Ranks)
	}
	hops, width := n.hops()
	trees := balanced(hops, width, sequence(n.Ranks))
	var t tables
	var list []*Tree
	for i := range trees {
		list = append(list, &trees[i])
	}
	kids := t.trees("", n.Ranks, list)
	channels := 0
	for i := range trees {
		fan := 0
		via := make([]int64, n.Ranks)
		for _, below := range kids[i] {
			fan = max(fan, len(below))
			for k, v := range below {
				via[v] = int64(channels + k)
			}
		}
		t.put("via", via...)
		for lane := range fan {
			t.put("tree", int64(i))
			t.put("lane", int64(lane))
		}
		channels += fan
	}
	var b strings.Builder
	fmt.Fprintf(&b, "weft 1\nname %s\nop all-reduce\nranks %d\n", name, n.Ranks)
	for _, k := range t.names {
		fmt.Fprintf(&b, "table %s:", k)
		for _, v := range t.values[k] {
			fmt.Fprintf(&b, " %d", v)
		}
		b.WriteByte('\n')
	}
	i := "tree[c]*n+r"
	kid := "kid[first[" + i + "]+lane[c]]"
	fmt.Fprintf(&b, "chunks 1\nscratch n\nslots 1\nchannels %d:\n", channels)
	for _, l := range []string{
		"  if r == tree[c]:",
		"    if lane[c] < kids[" + i + "]:",
		"      send in[0] to " + kid,
		"  else:",
		"    if c == via[" + i + "]:",
		"      if lane[c] < kids[" + i + "]:",
		"        recv-copy-send -> tmp[tree[c]] from parent[" + i + "] to " + kid,
		"      else:",
		"        recv -> tmp[tree[c]] from parent[" + i + "]",
		"    else:",
		"      if lane[c] < kids[" + i + "]:",
		"        wait channel via[" + i + "] done 1",
		"        send tmp[tree[c]] to " + kid,
		"channels 1:",
		"  if r == 0:",
		"    copy in[0] -> out[0]",
		"  else:",
		"    wait channel via[r] done 1",
		"    copy tmp[0] -> out[0]",
		"  repeat q < n-1:",
		"    if r == q+1:",
		"      reduce in[0] -> out[0]",
		"    else:",
		"      wait channel via[(q+1)*n+r] done 1",
		"      reduce tmp[q+1] -> out[0]",
	} {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	return sched.Parse(b.String())
}
