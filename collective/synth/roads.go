package synth

import (
	"github.com/weft-fabric/weft/model/heap"
	"math"
	"slices"
)

// roads are the links that transfers share, and when each can carry more. A timetable that
// knows them never sends more over a link at once than it carries: eight GPUs of a host that
// all begin with the neighbour to their left wait for one link of six.
//
// Where ranks are alike after a period, links are counted once for all that turning takes to them.
type roads struct {
	net     *Net
	period  int
	in, out [][]int
	class   []int     // by link: the first one that turning takes to it
	times   []float64 // by link: how many of all turned transfers take it where one takes its class
	free    []float64 // by class: when it can carry more
	known   map[[2]int][]part
	far     map[[2]int][]int // by rank and host it must not leave: links to every node, -1 where there is no way
}

// part is a link on the way of a transfer, and how long one of weight 1 takes of it.
type part struct {
	class int
	time  float64
}

func (n *Net) roads(period int) *roads {
	n = n.contracted()
	r := &roads{net: n, period: period, class: sequence(len(n.Edges)), times: make([]float64, len(n.Edges)),
		free:  make([]float64, len(n.Edges)),
		known: map[[2]int][]part{}, far: map[[2]int][]int{}}
	r.in, r.out = n.sides()
	for i := range r.times {
		r.times[i] = 1
	}
	if period == n.Ranks {
		return r
	}
	at := make(map[[2]int]int, len(n.Edges))
	for i, e := range n.Edges {
		at[[2]int{e.From, e.To}] = i
	}
	to := n.rotate(rotation{period, n.Ranks}, at)
	if to == nil {
		return r
	}
	seen := make([]bool, len(n.Edges))
	for i := range n.Edges {
		if seen[i] {
			continue
		}
		var round []int
		for k := i; !seen[k]; k = at[[2]int{to[n.Edges[k].From], to[n.Edges[k].To]}] {
			seen[k] = true
			round = append(round, k)
		}
		for _, k := range round {
			r.class[k], r.times[k] = i, float64(n.Ranks/period)/float64(len(round))
		}
	}
	return r
}

// home is the host that a transfer does not leave, -1 if it has to.
func (r *roads) home(from, to int) int {
	host := r.net.Hosts[from]
	if host >= 0 && host == r.net.Hosts[to] && r.dist(from, host)[to] >= 0 {
		return host
	}
	return -1
}

// way is what a transfer takes of which links: the shortest ways, in proportion to what they
// carry, and inside a host if it ends there.
func (r *roads) way(from, to int) []part {
	n := r.net
	turned := from - from%r.period
	from, to = from-turned, (to-turned+n.Ranks)%n.Ranks
	if way, ok := r.known[[2]int{from, to}]; ok {
		return way
	}
	dist := r.dist(from, r.home(from, to))
	share := map[int]float64{to: 1}
	var way []part
	for now := []int{to}; len(now) > 0; {
		v := now[0]
		now = now[1:]
		var total int64
		leads := func(i int) bool { // on a shortest way
			u := n.Edges[i].From
			return dist[u] >= 0 && dist[u]+1 == dist[v] && (u == from || u >= n.Ranks)
		}
		for _, i := range r.in[v] {
			if leads(i) {
				total += n.Edges[i].Cap
			}
		}
		// Every link carries as much of it as it is wide among those that lead here.
		for _, i := range r.in[v] {
			if !leads(i) {
				continue
			}
			e := &n.Edges[i]
			way = append(way, part{r.class[i], r.times[i] * share[v] / float64(total)})
			if share[e.From] == 0 && e.From != from {
				now = append(now, e.From)
			}
			share[e.From] += share[v] * float64(e.Cap) / float64(total)
		}
	}
	r.known[[2]int{from, to}] = way
	return way
}

// dist counts links from a rank to all nodes, through switches, or those of one host.
func (r *roads) dist(from, host int) []int {
	key := [2]int{from, host}
	if d := r.far[key]; d != nil {
		return d
	}
	d := make([]int, r.net.Nodes())
	for v := range d {
		d[v] = -1
	}
	d[from] = 0
	for now := []int{from}; len(now) > 0; now = now[1:] {
		for _, i := range r.out[now[0]] {
			if to := r.net.Edges[i].To; d[to] < 0 && (host < 0 || r.net.Hosts[to] == host) {
				if d[to] = d[now[0]] + 1; to >= r.net.Ranks {
					now = append(now, to)
				}
			}
		}
	}
	r.far[key] = d
	return d
}

// start is when a way is free, and span how long a transfer takes if it has the way for itself.
func (r *roads) start(way []part, ready float64) float64 {
	for _, l := range way {
		ready = max(ready, r.free[l.class])
	}
	return ready
}

func (r *roads) span(way []part) float64 {
	most := 0.0
	for _, l := range way {
		most = max(most, l.time)
	}
	return most
}

// book takes the links of a way from a time on.
func (r *roads) book(way []part, start, weight float64) {
	for _, l := range way {
		r.free[l.class] = max(r.free[l.class], start) + l.time*weight
	}
}

// ahead is how many transfers of a rank are looked at for the next one.
const ahead = 32

// pick calls do for the transfers of a level: for each rank next the one that can start
// first, going by what is booked so far.
func (t *timetable) pick(list []hop, up bool, ready [][]float64, do func(hop)) {
	if t.roads == nil {
		for _, h := range list {
			do(h)
		}
		return
	}
	ends := func(h hop) (from, to int) {
		if up {
			return h.child, h.parent
		}
		return h.parent, h.child
	}
	// Those to different ranks in turn, so that what is looked at takes all ways.
	n := t.plan.Net.Ranks
	queues := make([][]hop, 2*t.period)
	at := map[[2]int]int{}
	turn := make(map[hop]int, len(list))
	for _, h := range list {
		from, to := ends(h)
		key := [2]int{from % t.period, (to - from + n) % n}
		turn[h] = at[key]
		at[key]++
		q := 2*(from%t.period) + t.side(from, to)
		queues[q] = append(queues[q], h)
	}
	var queue heap.Heap[reached]
	for q, list := range queues {
		slices.SortStableFunc(list, func(a, b hop) int { return turn[a] - turn[b] })
		if len(list) > 0 {
			queue.Push(reached{t.ports[q/2][q%2].sends, int32(q)})
		}
	}
	for queue.Len() > 0 {
		top := queue.Pop()
		q := int(top.node)
		best, first := -1, math.Inf(1)
		for i, h := range queues[q][:min(ahead, len(queues[q]))] {
			from, to := ends(h)
			start := max(ready[h.way][from], t.ports[q/2][q%2].sends, t.ports[to%t.period][q%2].takes)
			if start = t.roads.start(t.roads.way(from, to), start); start < first {
				best, first = i, start
			}
		}
		if queue.Len() > 0 && first > max(top.dist, queue.First().dist)+least {
			queue.Push(reached{first, int32(q)})
			continue
		}
		do(queues[q][best])
		if queues[q] = slices.Delete(queues[q], best, best+1); len(queues[q]) > 0 {
			queue.Push(reached{t.ports[q/2][q%2].sends, int32(q)})
		}
	}
}

// side is 1 for what leaves a host, where that has channels of its own.
func (t *timetable) side(from, to int) int {
	if t.sides == 2 && t.box[from] != t.box[to] {
		return 1
	}
	return 0
}
