package doctor

import (
	"maps"
	"slices"
)

// waits says who waits for whom: for each rank the members of its first unfinished operation that have not come to it.
// stuck are ranks that have not finished what others have.
func (w *world) waits(views map[int]*view) (edges []edge, stuck map[int]bool) {
	stuck = map[int]bool{}
	for _, r := range w.ranks() {
		v := views[r]
		o := v.first
		if o == nil {
			continue
		}
		key := w.keyOf(v.dump, o)
		wait, passed := w.lateFor(r, key, views)
		if len(wait) == 0 && passed {
			stuck[r] = true
		}
		for _, m := range wait {
			edges = append(edges, edge{from: r, to: m, op: o, group: key})
		}
	}
	return edges, stuck
}

// taking lists the ranks that take part in an operation: a group's members, or the two ends of a message. It is empty
// where the group is unknown.
func (g *Group) taking(o *Op) []int {
	switch {
	case g == nil || len(g.Ranks) < 2:
		return nil
	case !o.P2P:
		return g.Ranks
	case min(o.From, o.To) < 0 || max(o.From, o.To) >= len(g.Ranks):
		return nil
	}
	return []int{g.Ranks[o.From], g.Ranks[o.To]}
}

// lateFor lists who has not come to rank r's first unfinished operation, or those of which nothing is known if all others
// have come; passed says that somebody has finished it, so that r waits for nobody.
func (w *world) lateFor(r int, key string, views map[int]*view) (wait []int, passed bool) {
	v := views[r]
	var lost []int
	for _, m := range w.groups[key].taking(v.first) {
		switch {
		case m == r:
		case views[m] == nil && w.passed(m, key, v.first):
			passed = true
		case views[m] == nil:
			lost = append(lost, m)
		default:
			reach := w.reach(v, views[m], key, v.first)
			passed = passed || reach == 1
			if reach == -1 {
				wait = append(wait, m)
			}
		}
	}
	if len(wait) == 0 && !passed {
		wait = lost
	}
	return wait, passed
}

// missed gives the ranks without a dump that the others wait for. A rank is stuck at
// its oldest operation, so those that stand in the way of it count first.
func (w *world) missed(edges []edge, views map[int]*view) []int {
	oldest := slices.DeleteFunc(slices.Clone(edges), func(e edge) bool { return views[e.from].first != e.op })
	for _, list := range [][]edge{oldest, edges} {
		c, cycle := sinks(list)
		c = slices.DeleteFunc(c, func(r int) bool { return w.dumps[r] != nil })
		if len(c) > 0 && !cycle {
			return w.candidate(c)
		}
	}
	return nil
}

// selfStuck reports whether the oldest operation of a rank is one that all its
// peers have finished.
func (w *world) selfStuck(r int, views map[int]*view) bool {
	o := views[r].first
	if o == nil || o.P2P {
		return false
	}
	key := w.keyOf(views[r].dump, o)
	g := w.groups[key]
	if g == nil {
		return false
	}
	passed := false
	for _, m := range g.Ranks {
		if m == r || views[m] == nil {
			continue
		}
		switch arrived(views[m], key, o.Seq) {
		case -1:
			return false
		case 1:
			passed = true
		}
	}
	return passed
}

// edges draws who waits for whom. With missing set, ranks without a dump count as
// not arrived.
func (w *world) edges(views map[int]*view, stuck map[int]bool, missing bool) []edge {
	var out []edge
	for _, r := range w.ranks() {
		if stuck[r] {
			continue
		}
		out = w.inCollectives(out, r, views, missing)
		out = w.inMessages(out, r, views, missing)
	}
	return out
}

// inCollectives adds the members that a rank's collectives wait for: those that have not begun the oldest one.
func (w *world) inCollectives(out []edge, r int, views map[int]*view, missing bool) []edge {
	for _, key := range w.keys {
		st := views[r].coll[key]
		g := w.groups[key]
		if st == nil || st.oldest < 0 {
			continue
		}
		for _, m := range g.Ranks {
			switch {
			case m == r:
			case views[m] == nil && !missing:
			case views[m] == nil || arrived(views[m], key, st.oldest) < 0:
				out = append(out, edge{from: r, to: m, op: st.op, group: key})
			}
		}
	}
	return out
}

// inMessages adds the peers of a rank's messages that are not at theirs yet. A receive whose send is nowhere is weak: it
// may have been posted far ahead.
func (w *world) inMessages(out []edge, r int, views map[int]*view, missing bool) []edge {
	v := views[r]
	for _, pk := range slices.Sorted(maps.Keys(v.p2p)) {
		o := v.p2p[pk][0]
		key := w.keyOf(v.dump, o)
		g := w.groups[key]
		if g == nil || o.From < 0 || o.To < 0 || o.From >= len(g.Ranks) || o.To >= len(g.Ranks) {
			continue
		}
		recv := g.Ranks[o.To] == r
		m := g.Ranks[o.To]
		if recv {
			m = g.Ranks[o.From]
		}
		pv := views[m]
		if pv == nil {
			if missing {
				out = append(out, edge{from: r, to: m, op: o, group: key, weak: recv})
			}
			continue
		}
		theirs := pv.p2p[pk]
		if len(theirs) == 0 && pv.dump.Truncated && !pv.dump.Idle {
			continue
		}
		if len(theirs) == 0 || pv.first.Record < theirs[0].Record {
			out = append(out, edge{from: r, to: m, op: o, group: key, weak: recv && len(theirs) == 0})
		}
	}
	return out
}

// leavesOf says which components wait for no other one, and how many nodes each has.
func leavesOf(comp map[int]int, out map[int][]int) (leaves map[int]bool, size map[int]int) {
	leaves, size = map[int]bool{}, map[int]int{}
	for n, c := range comp {
		size[c]++
		if _, seen := leaves[c]; !seen {
			leaves[c] = true
		}
		if slices.ContainsFunc(out[n], func(m int) bool { return comp[m] != c }) {
			leaves[c] = false
		}
	}
	return leaves, size
}

// sinks gives the ranks that others wait for and that wait for nobody outside
// themselves; cycle says that they wait for one another.
func sinks(edges []edge) (ranks []int, cycle bool) {
	out := map[int][]int{}
	nodes := map[int]bool{}
	for _, e := range edges {
		out[e.from] = append(out[e.from], e.to)
		nodes[e.from], nodes[e.to] = true, true
	}
	comp := components(slices.Sorted(maps.Keys(nodes)), out)
	leaves, size := leavesOf(comp, out)
	single := false
	for c, leaf := range leaves {
		single = single || leaf && size[c] == 1
	}
	for n, c := range comp {
		if leaves[c] && (size[c] == 1 || !single) {
			ranks = append(ranks, n)
			cycle = cycle || size[c] > 1
		}
	}
	slices.Sort(ranks)
	return ranks, cycle
}

// tarjan is what Tarjan's algorithm knows of the nodes it has seen.
type tarjan struct {
	index map[int]int // the order in which nodes were entered, from 1
	low   map[int]int // the earliest node on the stack that a node reaches
	comp  map[int]int // nodes that have left the stack
	stack []int
	comps int
}

func (t *tarjan) enter(n int) {
	t.index[n] = len(t.index) + 1
	t.low[n] = t.index[n]
	t.stack = append(t.stack, n)
}

// leave ends a component if n was its first node: all that was entered since then belongs to it.
func (t *tarjan) leave(n int) {
	if t.low[n] != t.index[n] {
		return
	}
	for t.comp[n] == 0 {
		top := len(t.stack) - 1
		t.comp[t.stack[top]] = t.comps + 1
		t.stack = t.stack[:top]
	}
	t.comps++
}

// components numbers the strongly connected components of a graph from 1 (Tarjan,
// without recursion).
func components(nodes []int, out map[int][]int) map[int]int {
	t := tarjan{index: map[int]int{}, low: map[int]int{}, comp: map[int]int{}}
	type frame struct{ n, i int }
	for _, root := range nodes {
		if t.index[root] != 0 {
			continue
		}
		frames := []frame{{root, 0}}
		for len(frames) > 0 {
			f := &frames[len(frames)-1]
			n := f.n
			if f.i == 0 {
				t.enter(n)
			}
			if f.i < len(out[n]) {
				m := out[n][f.i]
				f.i++
				if t.index[m] == 0 {
					frames = append(frames, frame{m, 0})
				} else if t.comp[m] == 0 {
					t.low[n] = min(t.low[n], t.index[m])
				}
				continue
			}
			t.leave(n)
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				p := frames[len(frames)-1].n
				t.low[p] = min(t.low[p], t.low[n])
			}
		}
	}
	return t.comp
}
