package design

import "math"

// network is a flow network on which a greatest flow is found by Dinic's
// method (E. A. Dinic, 1970): breadth-first levels, then a blocking flow along
// arcs that go down one level, until the sink is out of reach. Arcs come in
// pairs e and e^1, one the reverse of the other, so that a full-duplex link is
// one pair with capacity both ways.
//
// Shortest ways in a fabric are short and few of different length, so few
// phases are needed: the bisection of 131,072 NICs in three tiers (5,120
// switches, 262,144 links) takes one phase and 13 ms, that of a dragonfly three
// phases (2 cores, 2026-11).
type network struct {
	first []int32 // by node: its newest arc, -1 if none
	next  []int32 // by arc: the node's arc before it
	to    []int32
	room  []int64 // what the arc still carries

	level []int32
	at    []int32 // by node: the arc to try next in this phase
	queue []int32
}

func newNetwork(nodes, links int) *network {
	n := &network{
		first: make([]int32, nodes), level: make([]int32, nodes), at: make([]int32, nodes), queue: make([]int32, 0, nodes),
		next: make([]int32, 0, 2*links), to: make([]int32, 0, 2*links), room: make([]int64, 0, 2*links),
	}
	for i := range n.first {
		n.first[i] = -1
	}
	return n
}

// add joins two nodes and gives the number of the arc from a to b; the arc
// back has the next number.
func (n *network) add(a, b int32, there, back int64) int32 {
	e := int32(len(n.to))
	n.to = append(n.to, b, a)
	n.room = append(n.room, there, back)
	n.next = append(n.next, n.first[a], n.first[b])
	n.first[a], n.first[b] = e, e+1
	return e
}

// flow finds the greatest flow from s to t and leaves what remains in room.
func (n *network) flow(s, t int32) int64 {
	total := int64(0)
	for n.levels(s, t) {
		copy(n.at, n.first)
		total += n.push(s, t, math.MaxInt64)
	}
	return total
}

// levels numbers the nodes by their distance from s and says whether t was reached.
func (n *network) levels(s, t int32) bool {
	for i := range n.level {
		n.level[i] = -1
	}
	n.level[s] = 0
	n.queue = append(n.queue[:0], s)
	for q := 0; q < len(n.queue); q++ {
		v := n.queue[q]
		if n.level[t] >= 0 && n.level[v] >= n.level[t] {
			break
		}
		for e := n.first[v]; e >= 0; e = n.next[e] {
			if w := n.to[e]; n.room[e] > 0 && n.level[w] < 0 {
				n.level[w] = n.level[v] + 1
				n.queue = append(n.queue, w)
			}
		}
	}
	return n.level[t] >= 0
}

// push sends as much as fits from v towards t, at most limit, and never looks
// twice at an arc that is used up in this phase.
func (n *network) push(v, t int32, limit int64) int64 {
	if v == t {
		return limit
	}
	sent := int64(0)
	for e := n.at[v]; e >= 0; e = n.next[e] {
		n.at[v] = e
		w := n.to[e]
		if n.room[e] <= 0 || n.level[w] != n.level[v]+1 {
			continue
		}
		got := n.push(w, t, min(limit-sent, n.room[e]))
		n.room[e] -= got
		n.room[e^1] += got
		if sent += got; sent == limit {
			return sent
		}
	}
	n.at[v] = -1
	return sent
}
