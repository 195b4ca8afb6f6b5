package kv

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Tree is a bounded radix tree of block hashes.
//
//	[h0 h1 h2] ──┬── [h3 h4]        a node is a run of blocks that were always used together;
//	             └── [k3] ── [k4]   a path that leaves or ends inside a run splits it
//
// A hash names everything before it, so paths that share a hash share all before it; Insert
// refuses paths for which that is not so. A lock holds a path: locked blocks are not evicted, and
// neither is a block with others behind it. What is evicted first, the policy says.
//
// Times are numbers of any unit that never go back. A tree is not for several goroutines at once.
type Tree struct {
	o      Options
	root   node
	heads  heads // nodes by the first hash of their runs
	size   int
	locked int // blocks of nodes under locks
	clock  uint64

	heaps [2]heap // leaves that may go; ARC: used once, used often
	sizes [2]int  // ARC: blocks of both lists, T1 and T2
	past  ghosts
	share int     // ARC's p: what T1 is to have
	aging float64 // Cost: the score of the last to go
}

// Options are what a tree is made of.
type Options struct {
	Blocks   int // at most; at least 1
	Policy   Policy
	HalfLife float64 // of a use, for LFU, in the unit of times; 0 means never
	// Value is what a hit of the block at a depth is worth (seconds of computing saved), for Cost.
	Value func(depth int) float64
}

type node struct {
	parent            *node
	child, next, prev *node // first child; siblings
	run               []Hash
	depth             int // blocks before the run
	locks             int32
	at                int32 // in a heap; -1: in none
	uses              int
	heat              float64 // LFU: log2 of the uses, each times 2^(time/half-life)
	base              float64 // Cost: the tree's age at the last use
	often             bool    // ARC: in T2
	dead              bool    // cut off; a lock may still hold it
	rank              rank
}

// ErrNotChain is returned for a path with a hash that is in the tree behind other blocks.
var ErrNotChain = errors.New("kv: a hash of this path is known behind other blocks; hashes must cover everything before them")

// NewTree makes an empty tree. It panics where the options are wrong: they are the program's.
func NewTree(o Options) *Tree {
	if o.Policy == "" {
		o.Policy = LRU
	}
	if _, err := ParsePolicy(string(o.Policy)); err != nil || o.Blocks < 1 || o.HalfLife < 0 || o.Policy == Cost && o.Value == nil {
		panic(fmt.Sprintf("kv: tree of %d blocks, policy %q, half-life %g, value given: %t", o.Blocks, o.Policy, o.HalfLife, o.Value != nil))
	}
	return &Tree{o: o}
}

// Len is the number of blocks, Locked how many of them are under locks, Room how many there may be.
func (t *Tree) Len() int    { return t.size }
func (t *Tree) Locked() int { return t.locked }
func (t *Tree) Room() int   { return t.o.Blocks }

// Peek is how many blocks of a path are there. Nothing counts as used.
func (t *Tree) Peek(path []Hash) int {
	_, _, depth := t.find(path)
	return depth
}

// Match is how many blocks of a path are there; they count as used.
func (t *Tree) Match(path []Hash, now float64) int {
	n, in, depth := t.find(path)
	if depth > 0 {
		n = t.split(n, in)
		t.touch(n, now, true)
	}
	return depth
}

// Lock holds the blocks of a path that are there, and says how many. Every lock is given back by
// Unlock.
func (t *Tree) Lock(path []Hash) (Lock, int) {
	n, in, depth := t.find(path)
	if depth == 0 {
		return Lock{}, 0
	}
	n = t.split(n, in)
	t.hold(n)
	return Lock{n}, depth
}

// Lock holds a path.
type Lock struct{ n *node }

// Unlock gives a lock back.
func (t *Tree) Unlock(l Lock) {
	if l.n != nil {
		t.release(l.n)
	}
}

// Insert adds what is missing of a path and says how many of its blocks are there now: fewer than
// all if locks leave no room. Blocks that had to go are appended to gone.
func (t *Tree) Insert(path []Hash, now float64, gone []Hash) (int, []Hash, error) {
	n, in, depth := t.find(path)
	if depth > 0 {
		n = t.split(n, in)
		t.touch(n, now, false)
	}
	if depth == len(path) {
		return depth, gone, nil
	}
	t.clock++
	t.hold(n)
	defer t.release(n)
	last := n
	var err error
	for ; depth < len(path); depth++ {
		h := path[depth]
		if t.heads.find(&h) != nil {
			err = fmt.Errorf("block %d of the path, %s: %w", depth, h, ErrNotChain)
			break
		}
		was := t.remember(&h)
		if t.size >= t.o.Blocks {
			var ok bool
			if gone, ok = t.evict(gone, was == 1); !ok {
				break
			}
		}
		often := was >= 0
		if often {
			t.past.remove(was, markOf(&h))
		}
		if last == n || last.often != often {
			last = t.attach(last, append(make([]Hash, 0, len(path)-depth), h), depth, often)
		} else {
			last.run = append(last.run, h)
		}
		t.size++
		t.sizes[list(often)]++
		t.bound()
	}
	// None of the new nodes was in a heap while others were made room for.
	for m := last; m != n; m = m.parent {
		m.uses, m.heat, m.base = 1, now/t.halfLife(), t.aging
		m.rank = t.rankOf(m)
	}
	if last != n {
		t.offer(last)
	}
	return depth, gone, err
}

// Cut removes the blocks of a path from the n-th on and all behind them, locked or not, and
// appends them to gone: for blocks that turned out to be lost or damaged.
func (t *Tree) Cut(path []Hash, n int, gone []Hash) []Hash {
	at, _, depth := t.find(path)
	if n < 0 || depth <= n {
		return gone
	}
	for at.depth > n {
		at = at.parent
	}
	if k := n - at.depth; k > 0 {
		t.split(at, k) // what is left of the node begins with block n
	}
	above := at.parent
	gone = t.prune(at, gone)
	if above != &t.root {
		t.offer(above)
	}
	return gone
}

// Next gives up to most blocks that followed a path most often: what a prefetch reads ahead.
func (t *Tree) Next(path []Hash, most int) []Hash {
	n, in, depth := t.find(path)
	if depth < len(path) {
		return nil
	}
	var out []Hash
	for len(out) < most {
		if in == len(n.run) {
			best := n.child
			for c := n.child; c != nil; c = c.next {
				if c.uses > best.uses || c.uses == best.uses && c.rank.used > best.rank.used {
					best = c
				}
			}
			if best == nil {
				break
			}
			n, in = best, 0
		}
		take := min(most-len(out), len(n.run)-in)
		out = append(out, n.run[in:in+take]...)
		in += take
	}
	return out
}

// Uses is how often the last block of a path was used: 0 if it is not there.
func (t *Tree) Uses(path []Hash) int {
	if n, _, depth := t.find(path); depth == len(path) && depth > 0 {
		return n.uses
	}
	return 0
}

// find walks down: the node where the path ends or leaves, how many blocks of its run match, and
// how many of the path.
func (t *Tree) find(path []Hash) (n *node, in, depth int) {
	n = &t.root
	for depth < len(path) {
		c := t.heads.find(&path[depth])
		if c == nil || c.parent != n {
			break
		}
		k := 0
		for k < len(c.run) && depth < len(path) && c.run[k] == path[depth] {
			k++
			depth++
		}
		n = c
		if k < len(c.run) {
			return n, k, depth
		}
	}
	return n, len(n.run), depth
}

// split cuts a run after k blocks and gives the node of the first part. The node itself keeps the
// second part, so locks that end there stay good.
func (t *Tree) split(n *node, k int) *node {
	if k == len(n.run) {
		return n
	}
	head := &node{}
	*head = *n
	head.run, head.at, head.child, head.next, head.prev = slices.Clone(n.run[:k]), -1, nil, nil, nil
	t.unlink(n)
	t.link(n.parent, head)
	t.heads.remove(n)
	n.run, n.parent, n.depth = slices.Clone(n.run[k:]), head, n.depth+k
	t.link(head, n)
	t.heads.add(head)
	t.heads.add(n)
	return head
}

func (t *Tree) link(parent, n *node) {
	n.parent, n.prev, n.next = parent, nil, parent.child
	if n.next != nil {
		n.next.prev = n
	}
	parent.child = n
}

func (t *Tree) unlink(n *node) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		n.parent.child = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	}
	n.next, n.prev = nil, nil
}

func (t *Tree) attach(parent *node, run []Hash, depth int, often bool) *node {
	n := &node{run: run, depth: depth, at: -1, often: often}
	n.rank.used = t.clock
	t.link(parent, n)
	t.heads.add(n)
	return n
}

// touch marks a path as the latest; with use it counts as used once more.
func (t *Tree) touch(n *node, now float64, use bool) {
	t.clock++
	for ; n != &t.root; n = n.parent {
		if use {
			n.uses++
			if t.o.Policy == LFU {
				n.heat = addLog(n.heat, now/t.halfLife())
			}
			if !n.often && t.o.Policy == ARC {
				t.drop(n)
				n.often = true
				t.sizes[0] -= len(n.run)
				t.sizes[1] += len(n.run)
			}
		}
		n.rank.used, n.base = t.clock, t.aging
		n.rank = t.rankOf(n)
		if n.at >= 0 {
			t.heaps[list(n.often)].fix(n)
		} else {
			t.offer(n)
		}
	}
}

func (t *Tree) halfLife() float64 {
	if t.o.HalfLife == 0 {
		return math.Inf(1)
	}
	return t.o.HalfLife
}

func (t *Tree) rankOf(n *node) rank {
	r := rank{used: n.rank.used}
	switch t.o.Policy {
	case LFU:
		r.score = n.heat
	case Cost:
		r.score = n.base + float64(n.uses)*t.o.Value(n.depth+len(n.run)-1)
	}
	return r
}

func list(often bool) int {
	if often {
		return 1
	}
	return 0
}

// offer puts a leaf that may go into its heap.
func (t *Tree) offer(n *node) {
	if n.at < 0 && n.child == nil && n.locks == 0 && !n.dead && n != &t.root {
		n.rank = t.rankOf(n) // its last block may be another than before
		t.heaps[list(n.often)].push(n)
	}
}

// drop takes a node out of its heap.
func (t *Tree) drop(n *node) {
	if n.at >= 0 {
		t.heaps[list(n.often)].remove(n)
	}
}

func (t *Tree) hold(n *node) {
	for ; n != nil; n = n.parent {
		if n.locks++; n.locks == 1 && n != &t.root {
			if !n.dead {
				t.locked += len(n.run)
			}
			if n.at >= 0 {
				t.drop(n)
			}
		}
	}
}

func (t *Tree) release(n *node) {
	for ; n != nil; n = n.parent {
		if n.locks--; n.locks == 0 && n != &t.root {
			if !n.dead {
				t.locked -= len(n.run)
			}
			t.offer(n)
		}
	}
}

// remember adapts ARC's share to a block that is missed, and says in which list of the past it is: -1 for none.
func (t *Tree) remember(h *Hash) int {
	if t.o.Policy != ARC {
		return -1
	}
	was := t.past.find(markOf(h))
	once, often := t.past.count[0], t.past.count[1]
	switch was {
	case 0:
		t.share = min(t.o.Blocks, t.share+max(often/once, 1))
	case 1:
		t.share = max(0, t.share-max(once/often, 1))
	}
	return was
}

// bound keeps ARC's memory of what went: T1 and B1 at most as many as blocks, all at most twice.
func (t *Tree) bound() {
	if t.o.Policy != ARC {
		return
	}
	p := &t.past
	for t.sizes[0]+p.count[0] > t.o.Blocks && p.count[0] > 0 {
		p.drop(0)
	}
	for t.size+p.count[0]+p.count[1] > 2*t.o.Blocks {
		if p.count[1] > 0 {
			p.drop(1)
		} else {
			p.drop(0)
		}
	}
}

// evict removes the last block of the leaf that goes first. again says that the block that needs
// the room was among the often used.
func (t *Tree) evict(gone []Hash, again bool) ([]Hash, bool) {
	from := 0
	if t.o.Policy == ARC {
		if t.sizes[0] == 0 || t.sizes[0] < t.share || t.sizes[0] == t.share && !again {
			from = 1
		}
		if len(t.heaps[from].list) == 0 {
			from = 1 - from
		}
	}
	if len(t.heaps[from].list) == 0 {
		return gone, false
	}
	n := t.heaps[from].list[0].n
	t.aging = n.rank.score
	last := len(n.run) - 1
	h := n.run[last]
	gone = append(gone, h)
	t.size--
	t.sizes[list(n.often)]--
	if t.o.Policy == ARC {
		t.past.add(from, markOf(&h))
	}
	if last > 0 {
		if n.run = n.run[:last]; cap(n.run) > 16 && last < cap(n.run)/4 {
			n.run = slices.Clone(n.run)
		}
		if t.o.Policy == Cost {
			n.rank = t.rankOf(n)
			t.heaps[from].fix(n)
		}
		return gone, true
	}
	t.drop(n)
	t.unlink(n)
	t.heads.remove(n)
	n.dead = true
	t.offer(n.parent)
	return gone, true
}

// prune removes a node and all below it.
func (t *Tree) prune(n *node, gone []Hash) []Hash {
	t.drop(n)
	for n.child != nil {
		gone = t.prune(n.child, gone)
	}
	if n.locks > 0 {
		t.locked -= len(n.run)
	}
	n.dead = true
	t.unlink(n)
	t.heads.remove(n)
	t.size -= len(n.run)
	t.sizes[list(n.often)] -= len(n.run)
	return append(gone, n.run...)
}
