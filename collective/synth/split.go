package synth

import (
	"cmp"
	"fmt"
	"github.com/weft-fabric/weft/model/flow"
	"slices"
)

// wired is a network in whole numbers at work: capacities by pair of nodes, and
// what each rank feeds as a root.
type wired struct {
	net   *Net
	cap   [][]int64
	feed  []int64
	total int64
	far   [][]int // by pair of nodes: the fewest links between them that pass switches only
	hops  [][]int // and the most that what was split off passes

	wires [][]int64                // capacities before switches were removed
	over  map[[2]int]map[int]int64 // by pair of nodes: what was split off between them, by switch
}

// wire takes capacities for the edges of a network, and feeds for its ranks.
func (n *Net) wire(cap []int64, feed []int64) *wired {
	w := &wired{net: n, feed: feed, cap: make([][]int64, n.Nodes())}
	for v := range w.cap {
		w.cap[v] = make([]int64, n.Nodes())
	}
	for i, e := range n.Edges {
		w.cap[e.From][e.To] += cap[i]
	}
	for _, f := range feed {
		w.total += f
	}
	w.far, w.hops = n.reaches()
	return w
}

// reaches counts the links between nodes by the shortest way that passes switches only,
// and gives them for links alone. A pair that no such way joins is very far apart.
func (n *Net) reaches() (far, links [][]int) {
	_, out := n.sides()
	far, links = make([][]int, n.Nodes()), make([][]int, n.Nodes())
	for v := range far {
		far[v], links[v] = make([]int, n.Nodes()), make([]int, n.Nodes())
		for u := range far[v] {
			far[v][u] = n.Nodes()
		}
		far[v][v] = 0
		for queue := []int{v}; len(queue) > 0; queue = queue[1:] {
			at := queue[0]
			if at < n.Ranks && at != v {
				continue
			}
			for _, i := range out[at] {
				to := n.Edges[i].To
				if at == v {
					links[v][to] = 1
				}
				if far[v][to] == n.Nodes() {
					far[v][to] = far[v][at] + 1
					queue = append(queue, to)
				}
			}
		}
	}
	return far, links
}

// short reports whether the way from u over v to t is a shortest one: what two ranks send
// to one another takes those alone, on most machines, whatever longer ways there are.
func (w *wired) short(u, v, t int) bool {
	return u == t || w.hops[u][v]+w.hops[v][t] <= w.far[u][t]
}

// joined notes that a link from u to t now stands for c of the way over v, too.
func (w *wired) joined(u, v, t int, c int64) {
	if w.over[[2]int{u, t}] == nil {
		w.over[[2]int{u, t}] = map[int]int64{}
	}
	w.over[[2]int{u, t}][v] += c
	w.hops[u][t] = max(w.hops[u][t], w.hops[u][v]+w.hops[v][t])
}

// fits reports whether every rank can get what all ranks feed: then trees can be packed.
func (w *wired) fits() bool {
	n := w.net
	f := flow.New(n.Nodes()+1, 0)
	for r, x := range w.feed {
		f.Link(n.Nodes(), r, x, 0)
	}
	for u := range w.cap {
		for v, c := range w.cap[u] {
			if c > 0 {
				f.Link(u, v, c, 0)
			}
		}
	}
	for v := range n.Ranks {
		if f.Run(n.Nodes(), v, w.total) < w.total {
			return false
		}
	}
	return true
}

// split removes the switches: what enters one from u and leaves it to t becomes
// a link from u to t, so that the trees of ranks stay possible (Lovász, Mader;
// Bang-Jensen, Frank and Jackson for directed links).
//
//	u ──┐   ┌──► t          u ──────► t
//	    ├─w─┤          =>                     shared out evenly: first fit would
//	v ──┘   └──► z          v ──────► z       make a ring of every switch
//
// An even share is tried for a whole switch at once, and checked by one flow a
// rank; if it loses something, pairs are split one by one, each by as much as
// flows allow.
func (w *wired) split() error {
	n := w.net
	if err := w.balance(); err != nil {
		return err
	}
	w.over = map[[2]int]map[int]int64{}
	for _, row := range w.cap {
		w.wires = append(w.wires, slices.Clone(row))
	}
	left := make([]int, 0, n.Nodes()-n.Ranks)
	for v := n.Ranks; v < n.Nodes(); v++ {
		left = append(left, v)
	}
	// Switches inside hosts first, then those with most ranks at them.
	weight := func(v int) int {
		k := 0
		for u := range n.Ranks {
			if w.cap[u][v] > 0 {
				k++
			}
		}
		if n.Hosts[v] >= 0 {
			k += n.Nodes()
		}
		return k
	}
	slices.SortStableFunc(left, func(a, b int) int { return cmp.Compare(weight(b), weight(a)) })
	for _, v := range left {
		if w.evenly(v) {
			continue
		}
		if err := w.pairwise(v); err != nil {
			return err
		}
	}
	return nil
}

// lower takes off parts until their sum is most: the largest first, and as much of all that are as large.
func lower(parts []*int64, sum, most int64) {
	for sum > most {
		slices.SortStableFunc(parts, func(a, b *int64) int { return cmp.Compare(*b, *a) })
		top := *parts[0]
		k := 1
		for k < len(parts) && *parts[k] == top {
			k++
		}
		floor := int64(0)
		if k < len(parts) {
			floor = *parts[k]
		}
		off := min(max((sum-most)/int64(k), 1), max(top-floor, 1))
		for _, p := range parts[:k] {
			d := min(off, sum-most, *p)
			*p -= d
			sum -= d
		}
	}
}

// balance takes capacity off switches that take in more than they pass on, or less.
func (w *wired) balance() error {
	n := w.net
	for again := true; again; {
		again = false
		for v := n.Ranks; v < n.Nodes(); v++ {
			var in, out int64
			for u := range n.Nodes() {
				in += w.cap[u][v]
				out += w.cap[v][u]
			}
			if in == out {
				continue
			}
			again = true
			most := min(in, out)
			var parts []*int64
			for u := range n.Nodes() {
				p := &w.cap[u][v]
				if out > in {
					p = &w.cap[v][u]
				}
				if *p > 0 {
					parts = append(parts, p)
				}
			}
			lower(parts, max(in, out), most)
		}
	}
	if !w.fits() {
		return fmt.Errorf("%s: switches with unequal sides cannot be balanced without loss", n.Name)
	}
	return nil
}

// evenly shares out a whole switch at once. It reports whether trees stay possible.
func (w *wired) evenly(v int) bool {
	n := w.net
	var in, out []int
	for u := range n.Nodes() {
		if w.cap[u][v] > 0 {
			in = append(in, u)
		}
		if w.cap[v][u] > 0 {
			out = append(out, u)
		}
	}
	if len(in) == 0 {
		return true
	}
	apart := func(u, t int) bool {
		return u != t && (n.Hosts[v] >= 0 || n.Hosts[u] < 0 || n.Hosts[u] != n.Hosts[t])
	}
	allowed := []func(u, t int) bool{
		func(u, t int) bool { return apart(u, t) && w.short(u, v, t) },
		func(u, t int) bool { return u != t && w.short(u, v, t) },
		func(u, t int) bool { return w.short(u, v, t) }, // from a node back to itself: dropped
		apart,
		func(u, t int) bool { return u != t },
	}
	for _, ok := range allowed {
		share := w.shares(v, in, out, ok)
		if share == nil {
			continue
		}
		saved := make([][]int64, len(in))
		for i, u := range in {
			saved[i] = slices.Clone(w.cap[u])
			for j, t := range out {
				if u != t {
					w.cap[u][t] += share[i][j]
				}
			}
			w.cap[u][v] = 0
		}
		kept := slices.Clone(w.cap[v])
		clear(w.cap[v])
		if w.fits() {
			for i, u := range in {
				for j, t := range out {
					if share[i][j] > 0 && u != t {
						w.joined(u, v, t, share[i][j])
					}
				}
			}
			return true
		}
		for i, u := range in {
			w.cap[u] = saved[i]
		}
		w.cap[v] = kept
	}
	return false
}

// shares divides what enters a switch among what leaves it, as evenly as whole
// numbers allow: the least amount that no pair exceeds, in the order of a circle
// so that no target is first for all.
func (w *wired) shares(v int, in, out []int, ok func(u, t int) bool) [][]int64 {
	var want, low, high int64
	for _, u := range in {
		want += w.cap[u][v]
		pairs := int64(howMany(out, func(t int) bool { return ok(u, t) }))
		if pairs == 0 {
			return nil
		}
		low = max(low, (w.cap[u][v]+pairs-1)/pairs)
		high = max(high, w.cap[u][v])
	}
	s, t := len(in)+len(out), len(in)+len(out)+1
	try := func(most int64) [][]int64 {
		f := flow.New(len(in)+len(out)+2, 0)
		links := make([][]int, len(in))
		for i, u := range in {
			f.Link(s, i, w.cap[u][v], 0)
			links[i] = make([]int, len(out))
			for k := range out {
				j := (i + 1 + k) % len(out)
				links[i][j] = -1
				if ok(u, out[j]) {
					links[i][j] = f.Link(i, len(in)+j, most, 0)
				}
			}
		}
		for j, u := range out {
			f.Link(len(in)+j, t, w.cap[v][u], 0)
		}
		if f.Run(s, t, want) < want {
			return nil
		}
		return used(f, links)
	}
	if try(high) == nil {
		return nil
	}
	return try(leastThat(low, high, func(most int64) bool { return try(most) != nil }))
}

// leastThat halves the numbers from low to high until the least is left for which ok holds, as it does for high.
func leastThat(low, high int64, ok func(int64) bool) int64 {
	for low < high {
		if mid := low + (high-low)/2; ok(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

func howMany(list []int, is func(v int) bool) (n int) {
	for _, v := range list {
		if is(v) {
			n++
		}
	}
	return n
}

// used is what a flow takes of links, nothing where the link is -1.
func used(f *flow.Network, links [][]int) [][]int64 {
	share := make([][]int64, len(links))
	for i := range links {
		share[i] = make([]int64, len(links[i]))
		for j, l := range links[i] {
			if l >= 0 {
				share[i][j] = f.Used(l)
			}
		}
	}
	return share
}

// pairwise splits a switch pair by pair: at first no pair gets more than an even share,
// then all that is possible, and what no shortest way takes in the end.
func (w *wired) pairwise(v int) error {
	n := w.net
	for turn := range 4 {
		even, short := turn%2 == 0, turn < 2
		for u := range n.Nodes() {
			most := w.cap[u][v]
			if even {
				most = max(most/int64(max(n.Ranks-1, 1)), 1)
			}
			for k := range n.Nodes() {
				t := (u + 1 + k) % n.Nodes()
				if w.cap[u][v] == 0 {
					break
				}
				if even && w.detour(u, v, t) {
					continue
				}
				if short && !w.short(u, v, t) {
					continue
				}
				w.offload(u, v, t, min(most, w.cap[u][v], w.cap[v][t]))
			}
		}
	}
	return w.emptied(v)
}

// detour reports whether a switch is no way to go from u to t: back to u itself, or out of a host and in again.
func (w *wired) detour(u, v, t int) bool {
	hosts := w.net.Hosts
	return u == t || hosts[v] < 0 && hosts[u] >= 0 && hosts[u] == hosts[t]
}

// emptied refuses a switch that is left with capacity of some sender.
func (w *wired) emptied(v int) error {
	n := w.net
	for u := range n.Nodes() {
		if w.cap[u][v] > 0 {
			return fmt.Errorf("%s: switch %s cannot be removed: %d of what %s sends through it has nowhere to go",
				n.Name, n.Names[v], w.cap[u][v], n.Names[u])
		}
	}
	return nil
}

// offload moves as much as trees allow, up to most, from u-v-t to a link u-t.
// From a node back to itself it is dropped.
func (w *wired) offload(u, v, t int, most int64) {
	move := func(c int64) {
		w.cap[u][v] -= c
		w.cap[v][t] -= c
		if u != t {
			w.cap[u][t] += c
		}
	}
	low, high := int64(0), most // low is possible
	for c := most; low < high; c = low + (high-low+1)/2 {
		move(c)
		ok := w.fits()
		move(-c)
		if ok {
			low = c
		} else {
			high = c - 1
		}
	}
	if low > 0 {
		move(low)
		if u != t {
			w.joined(u, v, t, low)
		}
	}
}
