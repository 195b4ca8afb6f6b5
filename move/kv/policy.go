package kv

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
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

// heap is a heap of leaves by rank, four below each; each leaf knows its index. Ranks lie in the list, so that comparing
// touches no leaf.
type heap struct{ list []leaf }

type leaf struct {
	rank rank
	n    *node
}

// fix puts a leaf whose rank has changed in its place.
func (h *heap) fix(n *node) {
	l := leaf{n.rank, n}
	if !h.up(int(n.at), l) {
		h.down(int(n.at), l)
	}
}

func (h *heap) push(n *node) {
	h.list = append(h.list, leaf{})
	h.up(len(h.list)-1, leaf{n.rank, n})
}

func (h *heap) remove(n *node) {
	i, last := int(n.at), len(h.list)-1
	moved := h.list[last]
	h.list[last] = leaf{}
	h.list = h.list[:last]
	n.at = -1
	if i < last && !h.up(i, moved) {
		h.down(i, moved)
	}
}

// up puts a leaf at an index or above it, and says whether it is above.
func (h *heap) up(i int, l leaf) bool {
	moved := false
	for i > 0 {
		p := (i - 1) / 4
		if !l.rank.less(h.list[p].rank) {
			break
		}
		h.list[i] = h.list[p]
		h.list[i].n.at = int32(i)
		i, moved = p, true
	}
	h.list[i], l.n.at = l, int32(i)
	return moved
}

// down puts a leaf at an index or below it.
func (h *heap) down(i int, l leaf) {
	for {
		first := 4*i + 1
		if first >= len(h.list) {
			break
		}
		c := first
		for k := first + 1; k < min(first+4, len(h.list)); k++ {
			if h.list[k].rank.less(h.list[c].rank) {
				c = k
			}
		}
		if !h.list[c].rank.less(l.rank) {
			break
		}
		h.list[i] = h.list[c]
		h.list[i].n.at = int32(i)
		i = c
	}
	h.list[i], l.n.at = l, int32(i)
}

// heads finds nodes by the first hash of their runs: open addressing by a mark of 64 bits, so that a hash that is not there
// costs one look at a table without pointers to follow. A map of hashes took twice the time of all calls together.
type heads struct {
	table []head // a node that is nil is an empty place
	shift int    // 64 less the bits of an index
	count int
}

type head struct {
	mark uint64
	n    *node
}

func (g *heads) home(mark uint64) int { return int(mark * 0x9E3779B97F4A7C15 >> g.shift) }

// find gives the node whose run begins with a hash, nil if there is none.
func (g *heads) find(h *Hash) *node {
	if g.count == 0 {
		return nil
	}
	mark := markOf(h)
	for i := g.home(mark); ; i++ {
		e := &g.table[i&(len(g.table)-1)]
		if e.n == nil {
			return nil
		}
		if e.mark == mark && e.n.run[0] == *h {
			return e.n
		}
	}
}

// add takes in a node whose first hash no other has.
func (g *heads) add(n *node) {
	if g.count++; 2*g.count > len(g.table) {
		old := g.table
		size := max(64, 2*len(old))
		g.table, g.shift = make([]head, size), 65-bits.Len(uint(size))
		for _, e := range old {
			if e.n != nil {
				g.put(e)
			}
		}
	}
	g.put(head{markOf(&n.run[0]), n})
}

func (g *heads) put(e head) {
	i := g.home(e.mark)
	for g.table[i&(len(g.table)-1)].n != nil {
		i++
	}
	g.table[i&(len(g.table)-1)] = e
}

// remove takes a node out; those behind it that would be nearer to their home in its place move up.
func (g *heads) remove(n *node) {
	last := len(g.table) - 1
	hole := g.home(markOf(&n.run[0])) & last
	for g.table[hole].n != n {
		hole = (hole + 1) & last
	}
	for i := (hole + 1) & last; g.table[i].n != nil; i = (i + 1) & last {
		if far := (i - g.home(g.table[i].mark)) & last; far >= (i-hole)&last {
			g.table[hole], hole = g.table[i], i
		}
	}
	g.table[hole] = head{}
	g.count--
}

// ghosts are marks of evicted blocks in the order of their eviction (ARC's B1 and B2): a table of both, and for each a
// queue of those in it and those taken out since. A mark is 64 bits of a hash: two blocks with one mark would
// at most move the share of the lists by one.
type ghosts struct {
	table []ghost // open addressing; seq 0 is an empty place
	shift int     // 64 less the bits of an index
	next  uint64
	count [2]int
	queue [2][]ghost
	head  [2]int
}

// ghost is a mark and a number that grows, times two, plus the list.
type ghost struct{ mark, seq uint64 }

func markOf(h *Hash) uint64 {
	le := binary.LittleEndian
	return le.Uint64(h[:]) ^ bits.RotateLeft64(le.Uint64(h[8:]), 17) ^ bits.RotateLeft64(le.Uint64(h[16:]),
		31) ^ bits.RotateLeft64(le.Uint64(h[24:]), 47)
}

func (g *ghosts) home(mark uint64) int { return int(mark * 0x9E3779B97F4A7C15 >> g.shift) }

// at is the place of a mark, or the empty one where it would be.
func (g *ghosts) at(mark uint64) *ghost {
	for i := g.home(mark); ; i++ {
		e := &g.table[i&(len(g.table)-1)]
		if e.seq == 0 || e.mark == mark {
			return e
		}
	}
}

// find says in which list a mark is: -1 for none.
func (g *ghosts) find(mark uint64) int {
	if g.table != nil {
		if e := g.at(mark); e.seq != 0 {
			return int(e.seq & 1)
		}
	}
	return -1
}

// add remembers the mark of a block that was evicted, in one of two lists, as the latest. The table stays at most half
// full. Entries that were overtaken stay in the queue until it is mostly made of them.
func (g *ghosts) add(list int, mark uint64) {
	if n := g.count[0] + g.count[1] + 1; 2*n > len(g.table) {
		old := g.table
		size := max(64, 2*len(old))
		g.table, g.shift = make([]ghost, size), 65-bits.Len(uint(size))
		for _, e := range old {
			if e.seq != 0 {
				*g.at(e.mark) = e
			}
		}
	}
	g.next++
	e := ghost{mark, g.next<<1 | uint64(list)}
	at := g.at(mark)
	if at.seq != 0 {
		g.count[at.seq&1]-- // it was there: it is the latest now
	}
	*at = e
	g.count[list]++
	q, head := append(g.queue[list], e), g.head[list]
	if head > 64 && head > len(q)/2 || len(q)-head > 2*g.count[list]+64 {
		keep := q[:0]
		for _, e := range q[head:] {
			if g.at(e.mark).seq == e.seq {
				keep = append(keep, e)
			}
		}
		q, g.head[list] = keep, 0
	}
	g.queue[list] = q
}

// remove takes a mark out; those behind it that would be nearer to their home in its place move up.
func (g *ghosts) remove(list int, mark uint64) {
	last := len(g.table) - 1
	hole := g.home(mark) & last
	for g.table[hole].mark != mark || g.table[hole].seq == 0 {
		hole = (hole + 1) & last
	}
	for i := (hole + 1) & last; g.table[i].seq != 0; i = (i + 1) & last {
		if far := (i - g.home(g.table[i].mark)) & last; far >= (i-hole)&last {
			g.table[hole], hole = g.table[i], i
		}
	}
	g.table[hole] = ghost{}
	g.count[list]--
}

// drop forgets the oldest of a list.
func (g *ghosts) drop(list int) {
	for g.head[list] < len(g.queue[list]) {
		e := g.queue[list][g.head[list]]
		g.head[list]++
		if g.at(e.mark).seq == e.seq {
			g.remove(list, e.mark)
			return
		}
	}
}
