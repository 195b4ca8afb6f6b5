// Package flow finds greatest flows and narrowest cuts.
package flow

import "math"

// Endless is a capacity that no cut can contain.
const Endless = math.MaxInt64 / 8

// Network is a graph on which a greatest flow is found by Dinic's method (E. A. Dinic, 1970): breadth-first levels, then a blocking
// flow along arcs that lead one level down, until the sink is out of reach. Arcs come in pairs e and e^1, one the reverse of the other,
// so that a full-duplex link is one pair with capacity both ways. Capacities can be changed between runs.
//
// Shortest ways in a fabric are short and few of different length, so few phases are needed: the bisection of 131,072 NICs in three
// tiers (5,120 switches, 262,144 links) takes one phase and 13 ms, that of a dragonfly three phases (2 cores, 2026-11).
type Network struct {
	first []int32 // by node: its newest arc, -1 if none
	next  []int32 // by arc: the node's arc before it
	to    []int32
	full  []int64 // what the arc carries
	room  []int64 // and what of that the last run left

	level []int32
	at    []int32 // by node: the arc to try next in this phase
	queue []int32
}

// New makes a network without arcs; links is how many pairs of them to expect.
func New(nodes, links int) *Network {
	n := &Network{next: make([]int32, 0, 2*links), to: make([]int32, 0, 2*links), full: make([]int64, 0, 2*links),
		room: make([]int64, 0, 2*links)}
	for range nodes {
		n.Node()
	}
	return n
}

// Node adds a node.
func (n *Network) Node() {
	n.first, n.level, n.at = append(n.first, -1), append(n.level, 0), append(n.at, 0)
}

// Link joins two nodes and gives the number of the arc from a to b; the arc back has the next number.
func (n *Network) Link(a, b int, there, back int64) int {
	e := len(n.to)
	n.to = append(n.to, int32(b), int32(a))
	n.full = append(n.full, there, back)
	n.room = append(n.room, there, back)
	n.next = append(n.next, n.first[a], n.first[b])
	n.first[a], n.first[b] = int32(e), int32(e+1)
	return e
}

// Arcs is the number of arcs, which the next pair begins with.
func (n *Network) Arcs() int { return len(n.to) }

// Trim takes away the arcs from a number on.
func (n *Network) Trim(arcs int) {
	for i := len(n.to) - 2; i >= arcs; i -= 2 {
		n.first[n.to[i]], n.first[n.to[i+1]] = n.next[i+1], n.next[i]
	}
	n.to, n.next, n.full, n.room = n.to[:arcs], n.next[:arcs], n.full[:arcs], n.room[:arcs]
}

// Set changes the capacity of an arc for the runs to come.
func (n *Network) Set(arc int, c int64) { n.full[arc] = c }

// Used is what the last flow sent over an arc, less what it sent back.
func (n *Network) Used(arc int) int64 { return n.full[arc] - n.room[arc] }

// Run finds the greatest flow from s to t, or stops at want.
func (n *Network) Run(s, t int, want int64) int64 {
	copy(n.room, n.full)
	var total int64
	for total < want && n.levels(int32(s), int32(t)) {
		copy(n.at, n.first)
		total += n.push(int32(s), int32(t), want-total)
	}
	return total
}

// levels numbers the nodes by their distance from s and reports whether t was reached; without a t, which is -1, it numbers all.
func (n *Network) levels(s, t int32) bool {
	for i := range n.level {
		n.level[i] = -1
	}
	n.level[s] = 0
	n.queue = append(n.queue[:0], s)
	for q := 0; q < len(n.queue); q++ {
		v := n.queue[q]
		if t >= 0 && n.level[t] >= 0 && n.level[v] >= n.level[t] {
			break
		}
		for e := n.first[v]; e >= 0; e = n.next[e] {
			if w := n.to[e]; n.room[e] > 0 && n.level[w] < 0 {
				n.level[w] = n.level[v] + 1
				n.queue = append(n.queue, w)
			}
		}
	}
	return t >= 0 && n.level[t] >= 0
}

// push sends as much as fits from v towards t, at most limit, and never looks twice at an arc that is used up in this phase.
func (n *Network) push(v, t int32, limit int64) int64 {
	if v == t {
		return limit
	}
	var sent int64
	for ; n.at[v] >= 0; n.at[v] = n.next[n.at[v]] {
		e := n.at[v]
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
	return sent
}

// Near says which nodes s still reaches after a greatest flow: the narrowest cut that is nearest to s.
func (n *Network) Near(s int) []bool {
	in := make([]bool, len(n.first))
	n.levels(int32(s), -1)
	for v := range in {
		in[v] = n.level[v] >= 0
	}
	return in
}

// Far says which nodes do not reach t any more: the narrowest cut that is nearest to t.
func (n *Network) Far(t int) []bool {
	in := make([]bool, len(n.first))
	for v := range in {
		in[v] = true
	}
	in[t] = false
	for queue := []int32{int32(t)}; len(queue) > 0; queue = queue[1:] {
		for e := n.first[queue[0]]; e >= 0; e = n.next[e] {
			if w := n.to[e]; n.room[e^1] > 0 && in[w] {
				in[w] = false
				queue = append(queue, w)
			}
		}
	}
	return in
}
