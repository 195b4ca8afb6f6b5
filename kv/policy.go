package kv

import (
	"fmt"
	"math"
	"strings"
)

// Policy says which leaf of a tree goes first.
type Policy string

// The policies.
//
//	lru   the one not used for the longest time
//	lfu   the one used least, where a use counts half as much after each half-life
//	arc   adaptive replacement (Megiddo and Modha, FAST 2003): once used and often used blocks in
//	      two lists whose shares follow the blocks that are missed
//	cost  the one whose loss costs least: uses times the time to compute the block again less the
//	      time to read it, aged as in GreedyDual (Cherkasova, 1998)
const (
	LRU  Policy = "lru"
	LFU  Policy = "lfu"
	ARC  Policy = "arc"
	Cost Policy = "cost"
)

// Policies are all of them.
var Policies = []Policy{LRU, LFU, ARC, Cost}

// ParsePolicy finds a policy by name.
func ParsePolicy(name string) (Policy, error) {
	var known []string
	for _, p := range Policies {
		if string(p) == name {
			return p, nil
		}
		known = append(known, string(p))
	}
	return "", fmt.Errorf("policy %q; known: %s", name, strings.Join(known, ", "))
}

// rank is a place in the order of eviction: the least goes first. Ties go to what was used first.
type rank struct {
	score float64
	used  uint64
}

func (a rank) less(b rank) bool {
	if a.score != b.score {
		return a.score < b.score
	}
	return a.used < b.used
}

// addLog is log2(2^a + 2^b).
func addLog(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	return a + math.Log2(1+math.Exp2(b-a))
}

// heap is a binary heap of leaves by rank; each knows its index.
type heap struct{ list []*node }

func (h *heap) fix(n *node) {
	if !h.up(int(n.at)) {
		h.down(int(n.at))
	}
}

func (h *heap) push(n *node) {
	n.at = int32(len(h.list))
	h.list = append(h.list, n)
	h.up(int(n.at))
}

func (h *heap) remove(n *node) {
	i, last := int(n.at), len(h.list)-1
	moved := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	n.at = -1
	if i < last {
		h.list[i], moved.at = moved, int32(i)
		h.fix(moved)
	}
}

func (h *heap) up(i int) bool {
	n, moved := h.list[i], false
	for i > 0 {
		p := (i - 1) / 2
		if !n.rank.less(h.list[p].rank) {
			break
		}
		h.list[i] = h.list[p]
		h.list[i].at = int32(i)
		i, moved = p, true
	}
	h.list[i], n.at = n, int32(i)
	return moved
}

func (h *heap) down(i int) {
	n := h.list[i]
	for {
		c := 2*i + 1
		if c >= len(h.list) {
			break
		}
		if c+1 < len(h.list) && h.list[c+1].rank.less(h.list[c].rank) {
			c++
		}
		if !h.list[c].rank.less(n.rank) {
			break
		}
		h.list[i] = h.list[c]
		h.list[i].at = int32(i)
		i = c
	}
	h.list[i], n.at = n, int32(i)
}

// ghosts are hashes of evicted blocks in the order of their eviction (ARC's B1 and B2): a map of both, and for each a
// queue of those in it and those taken out since.
type ghosts struct {
	at    map[Hash]uint64 // a number that grows, times two, plus the list
	next  uint64
	count [2]int
	queue [2][]ghost
	head  [2]int
}

type ghost struct {
	hash Hash
	seq  uint64
}

// find says in which list a hash is: -1 for none.
func (g *ghosts) find(h Hash) int {
	if seq, ok := g.at[h]; ok {
		return int(seq & 1)
	}
	return -1
}

func (g *ghosts) add(list int, h Hash) {
	if g.at == nil {
		g.at = map[Hash]uint64{}
	}
	g.next++
	seq := g.next<<1 | uint64(list)
	g.at[h] = seq
	g.count[list]++
	q, head := append(g.queue[list], ghost{h, seq}), g.head[list]
	if head > 64 && head > len(q)/2 || len(q)-head > 2*g.count[list]+64 {
		keep := q[:0]
		for _, e := range q[head:] {
			if g.at[e.hash] == e.seq {
				keep = append(keep, e)
			}
		}
		clear(q[len(keep):])
		q, g.head[list] = keep, 0
	}
	g.queue[list] = q
}

func (g *ghosts) remove(list int, h Hash) {
	delete(g.at, h)
	g.count[list]--
}

// drop forgets the oldest of a list.
func (g *ghosts) drop(list int) {
	for g.head[list] < len(g.queue[list]) {
		e := g.queue[list][g.head[list]]
		g.head[list]++
		if g.at[e.hash] == e.seq {
			g.remove(list, e.hash)
			return
		}
	}
}
