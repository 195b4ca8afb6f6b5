package synth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/sched"
)

// What a rank does in a row of Ordered.
const (
	copyOwn   = iota // its own input is a result
	sendIn           // its own input
	sendOut          // what it has received, or the sum
	sendSum          // a sum on its way up
	takeOut          // receives the result
	addFirst         // the first child's sum to its own
	addMore          // another child's
	addResult        // the last child's: the result
	addOnly          // the only child's: the result
)

var rows = []struct {
	kind int
	text string
}{
	{sendIn, "send %I to %P"}, {sendOut, "send %O to %P"}, {sendSum, "send %S to %P"}, {takeOut, "recv -> %O from %P"}, {copyOwn, "copy %I -> %O"},
	{addFirst, "recv-reduce %I -> %S from %P"}, {addMore, "recv-reduce %S -> %S from %P"}, {addResult, "recv-reduce %S -> %O from %P"}, {addOnly, "recv-reduce %I -> %O from %P"},
}

// Ordered writes the plan as a program of few channels: on each of them all trees take
// their turns in rounds. In a round a rank sends once and receives once, at most, and all
// keep to the order of the rounds, so that the first transfer that is not done can always
// go on. Channels work on pieces of their own and keep links busy side by side.
//
// Program needs a channel for each tree and child, which many ranks with a tree each
// have no room for.
func (p *Plan) Ordered(name string, pieces, channels int) (*sched.Program, error) {
	n := p.Net.Ranks
	if channels < 1 || pieces < 1 || pieces > 1<<16 || pieces%channels != 0 {
		return nil, fmt.Errorf("%d pieces on %d channels; want 1 to %d, in equal numbers", pieces, channels, 1<<16)
	}
	if len(p.Ways) == 0 {
		return nil, fmt.Errorf("the plan has no trees")
	}
	var t tables
	per := make([]int64, n)
	for _, w := range p.Ways {
		per[w.Root()] += w.Weight
	}
	blocks := p.Op.Blocks()
	at := make([]int64, n)
	var sum, total int64
	for _, w := range p.Ways {
		r := w.Root()
		if per[r] != per[0] && blocks {
			return nil, fmt.Errorf("rank %d has trees of weight %d, rank 0 of %d; blocks are equal", r, per[r], per[0])
		}
		total += w.Weight
		t.put("size", w.Weight)
		if blocks {
			t.put("local", at[r]*int64(pieces))
			t.put("at", (int64(r)*per[r]+at[r])*int64(pieces))
			at[r] += w.Weight
		} else {
			t.put("at", sum*int64(pieces))
			sum += w.Weight
		}
	}
	lists := p.turns()
	used := map[int]bool{}
	var scratch int64
	for _, list := range lists {
		for _, x := range list {
			used[x.kind] = true
		}
	}
	if used[sendSum] || used[addMore] || used[addFirst] {
		for _, w := range p.Ways {
			t.put("hold", scratch)
			scratch += w.Weight
		}
	}
	entries := int64(0)
	for _, list := range lists {
		t.put("begin", entries)
		t.put("count", int64(len(list)))
		for _, x := range list {
			t.put("kind", int64(x.kind))
			t.put("tree", int64(x.way))
			t.put("peer", int64(x.peer))
		}
		entries += int64(len(list))
	}
	each := pieces / channels
	tree, peer := "tree[begin[r]+i]", "peer[begin[r]+i]"
	piece := fmt.Sprintf("(c*%d+p)*size[%s] +: size[%s]", each, tree, tree)
	in, out := "in[at["+tree+"]+"+piece+"]", "out[at["+tree+"]+"+piece+"]"
	switch p.Op {
	case sched.AllGather:
		in = "in[local[" + tree + "]+" + piece + "]"
	case sched.ReduceScatter:
		out = "out[local[" + tree + "]+" + piece + "]"
	}
	hold := fmt.Sprintf("tmp[c*%d+hold[%s] +: size[%s]]", scratch, tree, tree)
	var body strings.Builder
	fmt.Fprintf(&body, "channels %d:\n  repeat p < %d:\n    repeat i < count[r]:\n", channels, each)
	for _, row := range rows {
		if used[row.kind] {
			text := strings.NewReplacer("%I", in, "%O", out, "%S", hold, "%P", peer).Replace(row.text)
			fmt.Fprintf(&body, "      if kind[begin[r]+i] == %d:\n        %s\n", row.kind, text)
		}
	}
	return assemble(p, name, &t, total*int64(pieces), scratch*int64(channels), "", body.String())
}

// turn is one thing that a rank does for a tree, in a round.
type turn struct{ round, kind, way, peer int }

// rounds gives transfers their rounds: in each a rank sends at most once and receives
// at most once.
type rounds struct{ sends, takes []map[int]bool }

// first books the first round from ready on in which from can send and to can receive.
func (r *rounds) first(ready, from, to int) int {
	for r.sends[from][ready] || r.takes[to][ready] {
		ready++
	}
	r.sends[from][ready], r.takes[to][ready] = true, true
	return ready
}

// hop is a transfer of a tree between a rank and one of its children.
type hop struct{ way, parent, child int }

// hops lists the transfers at a depth of all trees; those with the same distance
// between their ranks stand together, as they disturb nobody.
func (p *Plan) hops(all []levels, depth int) []hop {
	var list []hop
	for i, l := range all {
		if depth >= len(l.at) {
			continue
		}
		for _, v := range l.at[depth] {
			for _, k := range l.kids[v] {
				list = append(list, hop{i, v, k})
			}
		}
	}
	n := p.Net.Ranks
	apart := func(h hop) int { return (h.child - h.parent + n) % n }
	slices.SortStableFunc(list, func(a, b hop) int { return cmp.Compare(apart(a), apart(b)) })
	return list
}

// turns is what every rank does, in the order that all keep to: round by round, and in a
// round sending before receiving.
func (p *Plan) turns() [][]turn {
	n := p.Net.Ranks
	lists := make([][]turn, n)
	add := func(round, r, kind, way, peer int) { lists[r] = append(lists[r], turn{round, kind, way, peer}) }
	r := rounds{make([]map[int]bool, n), make([]map[int]bool, n)}
	for v := range n {
		r.sends[v], r.takes[v] = map[int]bool{}, map[int]bool{}
	}
	ups, downs := make([]levels, len(p.Ways)), make([]levels, len(p.Ways))
	ready := make([][]int, len(p.Ways)) // by tree and rank: the first round in which it can pass on what it has
	high, low := 0, 0
	for i, w := range p.Ways {
		ready[i] = make([]int, n)
		if w.Up != nil {
			ups[i] = w.Up.levels()
			high = max(high, len(ups[i].at))
		}
		if w.Down != nil {
			downs[i] = w.Down.levels()
			low = max(low, len(downs[i].at))
		}
	}
	for d := high - 1; d >= 0; d-- {
		came := map[[2]int][]turn{} // by tree and parent
		for _, h := range p.hops(ups, d) {
			round := r.first(ready[h.way][h.child], h.child, h.parent)
			kind := sendSum
			if len(ups[h.way].kids[h.child]) == 0 {
				kind = sendIn
			}
			add(round, h.child, kind, h.way, h.parent)
			came[[2]int{h.way, h.parent}] = append(came[[2]int{h.way, h.parent}], turn{round, 0, h.way, h.child})
		}
		for key, list := range came {
			way, v := key[0], key[1]
			slices.SortFunc(list, func(a, b turn) int { return a.round - b.round })
			root := v == p.Ways[way].Up.Root
			for k, t := range list {
				kind := addMore
				switch {
				case root && len(list) == 1:
					kind = addOnly
				case root && k == len(list)-1:
					kind = addResult
				case k == 0:
					kind = addFirst
				}
				add(t.round, v, kind, way, t.peer)
				ready[way][v] = max(ready[way][v], t.round+1)
			}
		}
	}
	for i, w := range p.Ways {
		for v := range n { // below the root nobody has the result yet
			if w.Down != nil && v != w.Down.Root {
				ready[i][v] = 0
			}
		}
		if w.Down != nil && w.Up == nil {
			add(0, w.Down.Root, copyOwn, i, 0)
		}
	}
	for d := range low {
		for _, h := range p.hops(downs, d) {
			round := r.first(ready[h.way][h.parent], h.parent, h.child)
			add(round, h.parent, sendOut, h.way, h.child)
			add(round, h.child, takeOut, h.way, h.parent)
			ready[h.way][h.child] = round + 1
		}
	}
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b turn) int {
			return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.kind, b.kind))
		})
	}
	return lists
}

// levels are the ranks of a tree by their distance from the root.
type levels struct {
	at   [][]int
	kids [][]int
}

func (t *Tree) levels() levels {
	l := levels{kids: make([][]int, len(t.Parent))}
	for v, p := range t.Parent {
		if p >= 0 {
			l.kids[p] = append(l.kids[p], v)
		}
	}
	for now := []int{t.Root}; len(now) > 0; {
		l.at = append(l.at, now)
		var next []int
		for _, v := range now {
			next = append(next, l.kids[v]...)
		}
		now = next
	}
	return l
}
