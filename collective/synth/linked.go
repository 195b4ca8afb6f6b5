package synth

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// transfer is what one rank sends another for a tree.
type transfer struct {
	way, from, to int
	give, take    int // kinds, as in Ordered
	stage         int // how many rounds after the first transfers of its piece
	channel       int
	needs         [2][]*transfer // what must be done before, at the sender and at the taker
	at            [2]int         // in the lists of both
}

// Linked writes the plan as a program with a channel for each direction of each pair of
// ranks that send to one another: a rank sends all trees' pieces for a peer one after the
// other on one channel. So a link carries one message at a time and trees of unequal
// weight do not disturb one another, and a rank needs only as many channels as it has
// peers, both ways. Pairs get channels as edges of a graph get colours: no rank has two
// peers on a channel, as long as there are channels enough; most bounds them, 0 for no limit.
// Several copies of these channels work on pieces of their own, each on as many: while one
// message is set up, another one is on the link.
//
// A round does every transfer once, each for the piece that is its stage behind the first,
// so that what is passed on came in a round before:
//
//	round        0             1             2
//	0 to 1       piece 0       piece 1       piece 2      stage 0
//	1 to 2                     piece 0       piece 1      stage 1
func (p *Plan) Linked(name string, each, copies, most int) (*sched.Program, error) {
	n := p.Net.Ranks
	pieces := each * copies
	if each < 1 || copies < 1 || pieces > 1<<16 {
		return nil, fmt.Errorf("%d pieces for each of %d copies; want 1 of both or more, and at most %d pieces in all", each, copies, 1<<16)
	}
	if most > 0 && most/copies < 2 {
		return nil, fmt.Errorf("%d channels for %d copies; each sends and takes on channels of their own", most, copies)
	}
	var t tables
	var all []*transfer
	var scratch int64
	if p.Exchange() {
		all, scratch = p.exchanged(&t, pieces)
	} else {
		all = p.transfers()
	}
	channels := p.channels(all, most/copies)
	stages := 0
	for _, x := range all {
		stages = max(stages, x.stage)
	}
	per := make([]int64, n)
	var total int64
	for _, w := range p.Ways {
		per[w.Root()] += w.Weight
		total += w.Weight
	}
	if p.Op.Blocks() && slices.ContainsFunc(per, func(x int64) bool { return x != per[0] }) {
		return nil, fmt.Errorf("roots have trees of %d to %d in all; blocks are equal", slices.Min(per), slices.Max(per))
	}
	at := make([]int64, n)
	var sum int64
	for _, w := range p.Ways {
		if p.Exchange() {
			break
		}
		r := w.Root()
		t.put("size", w.Weight)
		t.put("local", at[r]*int64(pieces))
		if p.Op.Blocks() {
			t.put("at", (int64(r)*per[r]+at[r])*int64(pieces))
			at[r] += w.Weight
		} else {
			t.put("at", sum*int64(pieces))
			sum += w.Weight
		}
	}
	used := p.list(&t, all, channels)
	base, copied := "c", ""
	if copies > 1 {
		base, copied = fmt.Sprintf("c%%%d", channels), fmt.Sprintf("c/%d*%d+", channels, each)
	}
	mine := fmt.Sprintf("[(%s)*n+r]", base)
	entry := "first" + mine + "+i"
	look := func(table string) string { return table + "[" + entry + "]" }
	tree := look("tree")
	span := fmt.Sprintf("+(%sp-%s)*size[%s] +: size[%s]]", copied, look("stage"), tree, tree)
	in, out, hold := "in[at["+tree+"]"+span, "out[at["+tree+"]"+span, "out[at["+tree+"]"+span
	if p.Op != sched.AllReduce && used[addFirst] {
		hold, scratch = "tmp[at["+tree+"]"+span, total*int64(pieces)
	}
	switch p.Op {
	case sched.AllGather:
		in = "in[local[" + tree + "]" + span
	case sched.ReduceScatter:
		out = "out[local[" + tree + "]" + span
	case sched.AllToAll:
		out, hold, total = "out[local["+tree+"]"+span, "tmp[hold["+tree+"]"+span, int64(n)*exchangeParts
	}
	var body strings.Builder
	fmt.Fprintf(&body, "channels %d:\n  repeat p < %d:\n    repeat i < count%s:\n", channels*copies, each+stages, mine)
	fmt.Fprintf(&body, "      if p < %s || %s+%d < p:\n        wait channel c^1 done 0\n      else:\n", look("stage"), look("stage"), each-1)
	fill := strings.NewReplacer("%I", in, "%O", out, "%S", hold, "%P", look("peer"))
	for _, row := range rows {
		text := row.text
		if row.kind == await { // its columns tree and peer hold the channel that is waited for, and a step of it
			with := look("tree")
			if copies > 1 {
				with = fmt.Sprintf("c/%d*%d+%s", channels, channels, with)
			}
			text = fmt.Sprintf("wait channel %s done (p-%d)*count[%s*n+r]+%s", with, stages, look("tree"), look("peer"))
		}
		if used[row.kind] {
			fmt.Fprintf(&body, "        if %s == %d:\n          %s\n", look("kind"), row.kind, fill.Replace(text))
		}
	}
	if p.Exchange() { // its own block
		own := exchangeParts * pieces
		fmt.Fprintf(&body, "channels 1:\n  copy in[r*%d +: %d] -> out[r*%d +: %d]\n", own, own, own, own)
	}
	return assemble(p, name, &t, total*int64(pieces), scratch, "", body.String())
}

// Rounds is how finely to cut a buffer of a size for Linked: in c rounds and as many more as there
// are stages, each of k messages of m/c bytes on the busiest channel, of which each costs hop
// beside its bytes, c = sqrt(stages · time / k hop) takes least.
func (p *Plan) Rounds(size unit.Bytes, hop unit.Time) int {
	if hop <= 0 {
		hop = unit.Microsecond
	}
	busy := map[[2]int]int{}
	stages, most := 0, 1
	all := p.transfers
	if p.Exchange() {
		all = func() []*transfer { list, _ := p.exchanged(&tables{}, 1); return list }
	}
	for _, x := range all() {
		stages = max(stages, x.stage)
		busy[[2]int{x.from, x.to}]++
		most = max(most, busy[[2]int{x.from, x.to}])
	}
	c := math.Sqrt(float64(max(stages, 1)) * size.Over(p.Rate).Seconds() / (float64(most) * hop.Seconds()))
	return int(min(max(math.Round(c), 1), 256))
}

// transfers lists what ranks send one another for one piece of every tree, each after what it passes on.
func (p *Plan) transfers() []*transfer {
	var all []*transfer
	for i, w := range p.Ways {
		last := make([]*transfer, p.Net.Ranks) // by rank: what gave it what it passes on
		sums := make([]*transfer, p.Net.Ranks) // and what sent its sum up
		add := func(x *transfer, atFrom, atTo []*transfer) {
			for end, list := range [2][]*transfer{atFrom, atTo} {
				for _, y := range list {
					if y != nil {
						x.needs[end] = append(x.needs[end], y)
						x.stage = max(x.stage, y.stage+1)
					}
				}
			}
			all = append(all, x)
		}
		if w.Up != nil {
			up := w.Up.levels()
			for d := len(up.at) - 1; d >= 0; d-- {
				for _, v := range up.at[d] {
					for k, child := range up.kids[v] {
						x := &transfer{way: i, from: child, to: v, give: sendSum, take: addMore}
						if len(up.kids[child]) == 0 {
							x.give = sendIn
						}
						switch root := v == w.Up.Root; {
						case root && len(up.kids[v]) == 1:
							x.take = addOnly
						case root && k == len(up.kids[v])-1:
							x.take = addResult
						case k == 0:
							x.take = addFirst
						}
						add(x, last[child:child+1], last[v:v+1])
						last[v], sums[child] = x, x
					}
				}
			}
		}
		if w.Down == nil {
			continue
		}
		down := w.Down.levels()
		for _, at := range down.at {
			for _, v := range at {
				for _, child := range down.kids[v] {
					x := &transfer{way: i, from: v, to: child, give: sendOut, take: takeOut}
					if w.Up == nil && v == w.Down.Root {
						x.give = sendIn
					}
					from := last[v]
					if v != w.Down.Root && from != nil && from.take != takeOut {
						from = nil
					}
					add(x, []*transfer{from}, sums[child:child+1]) // the result takes the place of the sum
					last[child] = x
				}
			}
		}
	}
	return all
}

// channels gives every pair of ranks a channel for each direction, and says how many there are.
func (p *Plan) channels(all []*transfer, most int) int {
	type pair [2]int
	load := map[pair]int64{}
	var pairs []pair
	for _, x := range all {
		k := pair{min(x.from, x.to), max(x.from, x.to)}
		if load[k] == 0 {
			pairs = append(pairs, k)
		}
		load[k] += p.Ways[x.way].Weight
	}
	slices.SortFunc(pairs, func(a, b pair) int {
		return cmp.Or(cmp.Compare(load[b], load[a]), cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	// Vizing: one colour more than a rank has peers is enough (Misra and Gries).
	c := newColouring(p.Net.Ranks)
	for _, k := range pairs {
		c.add(k[0], k[1])
	}
	colours := c.used()
	if most > 0 {
		colours = min(colours, most/2)
	}
	// What two colours have is paths and even rings, so ranks fall into two sides, and one channel
	// leads from side to side: no rank sends and takes on it. Of more colours, the lower rank's side.
	side := make([][]int, colours)
	for k := range side {
		side[k] = make([]int, p.Net.Ranks)
		for v := range side[k] {
			side[k][v] = -1
		}
		var walk func(v, s int)
		walk = func(v, s int) {
			side[k][v] = s
			for _, e := range pairs {
				for end := range 2 {
					if e[end] == v && c.of(e[0], e[1])%colours == k && side[k][e[1-end]] < 0 {
						walk(e[1-end], 1-s)
					}
				}
			}
		}
		for v := range side[k] {
			if side[k][v] < 0 {
				walk(v, 0)
			}
		}
	}
	for _, x := range all {
		k := c.of(x.from, x.to) % colours
		x.channel = 2 * k
		if a, b := side[k][x.from], side[k][x.to]; a > b || a == b && x.from > x.to {
			x.channel++
		}
	}
	return 2 * colours
}

// list writes the lists of all channels and ranks, and says which kinds they have.
func (p *Plan) list(t *tables, all []*transfer, channels int) map[int]bool {
	n := p.Net.Ranks
	type item struct {
		kind, stage, tree, peer int
		x                       *transfer // for a wait: the one it waits for
		end                     int
	}
	lists := make([][]item, channels*n)
	stages := 0
	order := slices.Clone(all)
	slices.SortStableFunc(order, func(a, b *transfer) int { return cmp.Compare(a.stage, b.stage) })
	owned := map[[2]int]bool{} // by way and rank: its own input is in the result
	for _, x := range order {
		stages = max(stages, x.stage)
		for end, rank := range [2]int{x.from, x.to} {
			list := &lists[x.channel*n+rank]
			if end == 0 && x.give == sendIn && p.Ways[x.way].Up == nil && !p.Exchange() && !owned[[2]int{x.way, rank}] {
				owned[[2]int{x.way, rank}] = true
				*list = append(*list, item{kind: copyOwn, tree: x.way})
			}
			for _, y := range x.needs[end] {
				if y.channel != x.channel {
					*list = append(*list, item{kind: await, stage: x.stage, tree: y.channel, x: y, end: y.end(rank)})
				}
			}
			one := item{kind: x.give, stage: x.stage, tree: x.way, peer: x.to}
			if end == 1 {
				one.kind, one.peer = x.take, x.from
			}
			x.at[end] = len(*list)
			*list = append(*list, one)
		}
	}
	used := map[int]bool{}
	for at, list := range lists {
		t.put("first", int64(len(t.values["kind"])))
		t.put("count", int64(len(list)))
		for _, e := range list {
			if e.kind == await { // its piece was done some rounds before, by as many steps as that channel has
				e.peer = e.x.at[e.end] + 1 + (stages-e.stage+e.x.stage)*len(lists[e.x.channel*n+at%n])
			}
			used[e.kind] = true
			t.put("kind", int64(e.kind))
			t.put("stage", int64(e.stage))
			t.put("tree", int64(e.tree))
			t.put("peer", int64(e.peer))
		}
	}
	return used
}

func (x *transfer) end(rank int) int {
	if x.from == rank {
		return 0
	}
	return 1
}

// colouring gives edges colours so that those which meet differ (Misra and Gries, 1992): at
// most one colour more than edges meet at a node.
type colouring struct {
	at  []map[int]int // by node and colour: the other end
	col map[[2]int]int
}

func newColouring(nodes int) *colouring {
	c := &colouring{at: make([]map[int]int, nodes), col: map[[2]int]int{}}
	for v := range c.at {
		c.at[v] = map[int]int{}
	}
	return c
}

func (c *colouring) of(a, b int) int { return c.col[[2]int{min(a, b), max(a, b)}] }

func (c *colouring) set(a, b, colour int) {
	c.at[a][colour], c.at[b][colour] = b, a
	c.col[[2]int{min(a, b), max(a, b)}] = colour
}

func (c *colouring) unset(a, b int) int {
	k := [2]int{min(a, b), max(a, b)}
	colour := c.col[k]
	delete(c.at[a], colour)
	delete(c.at[b], colour)
	delete(c.col, k)
	return colour
}

func (c *colouring) free(v, colour int) bool {
	_, taken := c.at[v][colour]
	return !taken
}

func (c *colouring) least(ok func(colour int) bool) int {
	for k := 0; ; k++ {
		if ok(k) {
			return k
		}
	}
}

func (c *colouring) used() int {
	most := 0
	for _, k := range c.col {
		most = max(most, k+1)
	}
	return most
}

// add colours one more edge.
func (c *colouring) add(u, v int) {
	degree := 0
	for _, at := range c.at {
		degree = max(degree, len(at)+1)
	}
	degree = max(degree, len(c.at[u])+1, len(c.at[v])+1)
	if k := c.least(func(k int) bool { return c.free(u, k) && c.free(v, k) }); k < degree {
		c.set(u, v, k)
		return
	}
	// A fan of u: each edge of it has a colour that is free at the end before.
	fan := []int{v}
	for grown := true; grown; {
		grown = false
		for k := range degree + 1 {
			w, taken := c.at[u][k]
			if taken && !slices.Contains(fan, w) && c.free(fan[len(fan)-1], k) {
				fan, grown = append(fan, w), true
				break
			}
		}
	}
	mine := c.least(func(k int) bool { return c.free(u, k) })
	last := c.least(func(k int) bool { return c.free(fan[len(fan)-1], k) })
	// The path from u of both colours changes them, so that last is free at u.
	if mine != last {
		var path [][2]int
		for at, k := u, last; ; k = mine + last - k {
			to, ok := c.at[at][k]
			if !ok {
				break
			}
			path = append(path, [2]int{at, to})
			at = to
		}
		was := make([]int, len(path))
		for i, e := range path {
			was[i] = c.unset(e[0], e[1])
		}
		for i, e := range path {
			c.set(e[0], e[1], mine+last-was[i])
		}
	}
	// The fan up to the first end where last is free turns: each edge takes the colour of the next.
	stop := 0
	for i, w := range fan {
		if i > 0 && !c.free(fan[i-1], c.of(u, w)) {
			break // the change of colours cut the fan
		}
		if stop = i; c.free(w, last) {
			break
		}
	}
	for i := 0; i < stop; i++ {
		c.set(u, fan[i], c.unset(u, fan[i+1]))
	}
	c.set(u, fan[stop], last)
}
