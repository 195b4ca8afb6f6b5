package synth

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

// What a rank does in an entry of Ordered.
const (
	nothing   = iota // lists are as long as the longest
	copyOwn          // its own input is a result
	sendIn           // its own input
	sendOut          // what it has received, or the sum
	sendSum          // a sum on its way up
	takeOut          // receives the result
	addFirst         // the first child's sum to its own
	addMore          // another child's
	addResult        // the last child's: the result
	addOnly          // the only child's: the result
	await            // until the channel beside it has come so far
	takeHold         // receives what it passes on
)

var rows = []struct {
	kind int
	text string
}{
	{await, "wait channel c^1 done %W+peer[%E]"},
	{sendIn, "send %I to %P"}, {sendOut, "send %O to %P"}, {sendSum, "send %S to %P"}, {takeOut, "recv -> %O from %P"},
	{copyOwn, "copy %I -> %O"},
	{takeHold, "recv -> %S from %P"},
	{addFirst, "recv-reduce %I -> %S from %P"}, {addMore, "recv-reduce %S -> %S from %P"}, {addResult, "recv-reduce %S -> %O from %P"},
	{addOnly, "recv-reduce %I -> %O from %P"},
}

// turn is one thing that a rank does for a tree.
type turn struct {
	start      float64 // when, were all pieces to flow at the rate of their links; late if it takes one in
	span       float64 // how long, for one that sends
	order      int     // of turns that start at the same time
	kind       int
	way        int
	root, peer int // relative to the rank
	needs      []*turn
	mate       *turn // the other end of the transfer
	rank, side int
	stage      int // how many rounds after the first turns of its piece it is done
	at         int // in its list
}

// follow puts a transfer after what it needs, in the same round on the same side, in the
// next one else. What is passed on comes in the next round, too, where rounds are made of slots.
func (t *timetable) follow(x, y *turn) {
	if y == nil {
		return
	}
	x.needs = append(x.needs, y)
	after := y.stage
	if t.roads == nil && (y.side != x.side || t.slots != nil && x.kind < takeOut && y.kind >= takeOut) {
		after++
	}
	x.stage = max(x.stage, after)
	x.mate.stage = max(x.mate.stage, x.stage)
}

// compare is the order that all ranks keep to. Of what starts at the same time, sending
// comes first: it would else wait for what is received.
func (x *turn) compare(y *turn) int {
	takes := func(x *turn) int {
		if x.kind >= takeOut {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(x.start, y.start), cmp.Compare(takes(x), takes(y)), cmp.Compare(x.order, y.order))
}

// late is how many transfers a rank sends on before it looks for one that comes in: a
// channel does one thing after another, and would else stand still until it is there.
const late = 2

// least keeps two times apart.
const least = 1e-7

// port is when a rank's links of one side are free.
type port struct{ sends, takes float64 }

// timetable says what the ranks of one period do, each on two sides: inside its host and
// out of it, which are links of their own and carry at once.
type timetable struct {
	plan   *Plan
	period int // ranks after which everything repeats itself
	sides  int
	cost   [2]float64
	ports  [][2]port
	lists  [2][][]*turn // by side and rank below period
	count  int
	moves  []*turn // sending ends, in the order that they were found
	stages int     // the last one
	slots  []int   // by transfer, in the order that they are found: when in a round; nil where each waits for what it passes on
	roads  *roads  // links that are booked; nil where only those of ranks count
	box    []int   // by node, as boxes has it
}

// round is how long one takes by the links of ranks.
func (t *timetable) round() float64 {
	most := 0.0
	for _, p := range t.ports {
		for side := range p {
			most = max(most, p[side].sends, p[side].takes)
		}
	}
	return most
}

func (t *timetable) longest(side int) int {
	most := 0
	for _, list := range t.lists[side] {
		most = max(most, len(list))
	}
	return most
}

// Ordered writes the plan as a program of few channels, on which all trees take their
// turns: Program needs a channel for each tree and child, which many ranks with a tree
// each have no room for.
//
// All transfers are put into one order that every rank keeps to, so that the first one
// that is not done can always go on. Links inside a host and those out of it have a
// channel each, as the slow ones would hold the fast ones up on one. A channel that
// passes on what came in on the one beside it waits for that. Several such pairs of
// channels work on pieces of their own, and each goes on with its next piece while the
// other still has to do with the last. In a round a channel does all turns, each for the
// piece that is its turn's stage behind the first:
//
//	round             0                1                        2
//	out of the host   piece 0, stage 0 piece 1, stage 0         piece 2, stage 0
//	inside                             piece 0, stage 1: passed piece 1, stage 1
//
// Where all hosts are alike, lists are those of one host's ranks, with roots and peers
// relative to the rank that looks them up.
//
// Each channel, or each pair of them, has each pieces of its own.
func (p *Plan) Ordered(name string, each, channels int) (*sched.Program, error) {
	if len(p.Ways) == 0 {
		return nil, fmt.Errorf("the plan has no trees")
	}
	t := p.timetable(channels > 1, nil, nil)
	all := []*timetable{t} // for each pair of channels, or for all alike
	if slots := t.colours(); slots != nil {
		if u := p.timetable(channels > 1, slots, nil); u.round()*float64(each+u.stages) < t.round()*float64(each+t.stages) {
			t, all = u, []*timetable{u}
			for pair := 1; pair < channels/t.sides && t.crossing(); pair++ {
				all = append(all, p.timetable(channels > 1, t.shifted(pair, channels/t.sides), nil))
			}
		}
	}
	return p.written(name, each, channels, all)
}

// Booked writes the plan as Ordered does, with all turns of a piece in one round: transfers are
// booked on the links of the fabric that they share, one after another, and each comes after what
// it passes on. A round of very many transfers keeps links busy that way while a piece goes
// down its trees, so that few pieces are enough.
func (p *Plan) Booked(name string, each, channels int) (*sched.Program, error) {
	if len(p.Ways) == 0 {
		return nil, fmt.Errorf("the plan has no trees")
	}
	return p.written(name, each, channels, []*timetable{p.timetable(channels > 1, nil, p.Net.roads(p.Repeats()))})
}

// written writes a program of timetables, one for each pair of channels, or one for all alike.
func (p *Plan) written(name string, each, channels int, all []*timetable) (*sched.Program, error) {
	n, t := p.Net.Ranks, all[0]
	pieces := each * channels / t.sides
	if channels < 1 || channels%t.sides != 0 || each < 1 || pieces > 1<<16 {
		return nil, fmt.Errorf("%d pieces for each of %d channels, which come in groups of %d; want 1 piece or more, and at most %d in all",
			each, channels, t.sides, 1<<16)
	}
	per := make([]int64, n)
	var total int64
	for _, w := range p.Ways {
		per[w.Root()] += w.Weight
		total += w.Weight
	}
	equal := !slices.ContainsFunc(per, func(x int64) bool { return x != per[0] })
	if p.Op.Blocks() && !equal {
		return nil, fmt.Errorf("roots have trees of %d to %d in all; blocks are equal", slices.Min(per), slices.Max(per))
	}
	var tab tables
	// Ways of one period, or all of them where roots have unequal shares.
	base := len(p.Ways) * t.period / n
	at := make([]int64, n)
	var sum int64
	for i, w := range p.Ways {
		if equal && i >= base {
			break
		}
		tab.put("size", w.Weight)
		if equal {
			tab.put("at", at[w.Root()]*int64(pieces))
			at[w.Root()] += w.Weight
		} else {
			tab.put("at", sum*int64(pieces))
			sum += w.Weight
		}
	}
	used := map[int]bool{}
	start := 0
	for _, t := range all {
		for side := range t.sides {
			longest := t.longest(side)
			tab.put("start", int64(start))
			tab.put("count", int64(longest))
			start += longest * t.period
			for _, list := range t.lists[side] {
				for i := range longest {
					x := &turn{}
					if i < len(list) {
						x = list[i]
					}
					used[x.kind] = true
					way := x.way
					if equal {
						way %= base
					}
					tab.put("kind", int64(x.kind))
					tab.put("stage", int64(x.stage))
					tab.put("tree", int64(way))
					tab.put("root", int64(x.root))
					tab.put("peer", int64(x.peer))
				}
			}
		}
	}
	side, who, pair, beside := "0", "r", "c", "0"
	if t.sides == 2 {
		side, pair, beside = "c%2", "c/2", "(c^1)%2"
	}
	if len(all) > 1 {
		side, beside = "c", "c^1"
	}
	if t.period < n {
		who = fmt.Sprintf("r%%%d", t.period)
	}
	entry := fmt.Sprintf("start[%s]+(%s)*count[%s]+i", side, who, side)
	look := func(table string) string { return table + "[" + entry + "]" }
	tree := look("tree")
	now, done := "p", "p*count["+beside+"]"
	if t.stages > 0 {
		now = "p-" + look("stage")
		done = fmt.Sprintf("(p-%d)*count[%s]", t.stages, beside)
	}
	piece := fmt.Sprintf("at[%s]+(%s*%d+%s)*size[%s] +: size[%s]]", tree, pair, each, now, tree, tree)
	block := ""
	if equal {
		block = fmt.Sprintf("(r+%s)%%n*%d+", look("root"), per[0]*int64(pieces))
	}
	in, out := "in["+block+piece, "out["+block+piece
	// Sums on their way up lie where the result will, or in scratch of the whole size.
	hold, scratch := out, int64(0)
	if p.Op != sched.AllReduce {
		hold = "tmp[" + piece
		if equal {
			hold = fmt.Sprintf("tmp[%s*%d+%s", look("root"), per[0]*int64(pieces), piece)
		}
		if used[sendSum] || used[addFirst] {
			scratch = total * int64(pieces)
		}
	}
	switch p.Op {
	case sched.AllGather:
		in = "in[" + piece
	case sched.ReduceScatter:
		out = "out[" + piece
	}
	var body strings.Builder
	fmt.Fprintf(&body, "channels %d:\n  repeat p < %d:\n    repeat i < count[%s]:\n", channels, each+t.stages, side)
	fill := strings.NewReplacer("%I", in, "%O", out, "%S", hold, "%P", "(r+"+look("peer")+")%n", "%E", entry, "%W", done)
	indent := "      "
	if t.stages > 0 && t.sides == 1 { // not all have a piece in the first rounds and in the last
		fmt.Fprintf(&body, "      if %s <= p && p <= %s+%d:\n", look("stage"), look("stage"), each-1)
		indent += "  "
	} else if t.sides == 2 && t.stages == 0 { // who waits for a step counts all entries
		fmt.Fprintf(&body, "      if %s == %d:\n        wait channel c^1 done 0\n", look("kind"), nothing)
	} else if t.stages > 0 { // not all have a piece in the first rounds and in the last; who waits for a step counts these, too
		fmt.Fprintf(&body, "      if %s < %s || %s+%d < p || %s == %d:\n        wait channel c^1 done 0\n      else:\n",
			"p", look("stage"), look("stage"), each-1, look("kind"), nothing)
		indent += "  "
	}
	for _, row := range rows {
		if used[row.kind] {
			fmt.Fprintf(&body, "%sif %s == %d:\n%s  %s\n", indent, look("kind"), row.kind, indent, fill.Replace(row.text))
		}
	}
	return assemble(p, name, &tab, total*int64(pieces), scratch, "", body.String())
}

// Repeats is the number of ranks after which the plan is the same again, turned; that of
// all ranks where it never is.
func (p *Plan) Repeats() int {
	if p.period > 0 {
		return p.period
	}
	return p.Net.Ranks
}

// timetable puts all transfers into an order. Two sides have channels of their own if
// that is wanted and hosts have several ranks.
//
// A transfer starts when its ranks are free and what it passes on is there, or in the slot
// of a round that is given for it: then what it passes on came in a round before.
func (p *Plan) timetable(apart bool, slots []int, roads *roads) *timetable {
	n := p.Net.Ranks
	t := &timetable{plan: p, period: p.Repeats(), sides: 1, cost: [2]float64{1, 1}, slots: slots, roads: roads}
	t.box = p.Net.boxes()
	if inside, outside := p.Net.faces(t.box); apart && inside > 0 && outside > 0 {
		t.sides = 2
		t.cost = [2]float64{1 / inside, 1 / outside}
	}
	t.ports = make([][2]port, t.period)
	for s := range t.lists {
		t.lists[s] = make([][]*turn, t.period)
	}
	base := len(p.Ways) * t.period / n
	ways := p.Ways[:base]
	ups, downs := make([]levels, base), make([]levels, base)
	last := make([][]*turn, base)    // by way and rank: what gave it what it has to pass on
	ready := make([][]float64, base) // and when
	high, low := 0, 0
	for i, w := range ways {
		last[i], ready[i] = make([]*turn, n), make([]float64, n)
		if w.Up != nil {
			ups[i] = w.Up.levels()
			high = max(high, len(ups[i].at))
		}
		if w.Down != nil {
			downs[i] = w.Down.levels()
			low = max(low, len(downs[i].at))
		}
	}
	sums := make([]map[int]*turn, base) // by way and rank: the turn that sent its sum
	for d := high - 1; d >= 0; d-- {
		came := map[[2]int][]*turn{} // by way and parent
		var keys [][2]int
		t.pick(p.hops(ups, d), true, ready, func(h hop) {
			root := ways[h.way].Up.Root
			kind := sendSum
			if len(ups[h.way].kids[h.child]) == 0 {
				kind = sendIn
			}
			give, take := t.move(h.way, root, h.child, h.parent, kind, addMore, ready[h.way][h.child])
			t.follow(give, last[h.way][h.child])
			if kind == sendSum {
				if sums[h.way] == nil {
					sums[h.way] = map[int]*turn{}
				}
				sums[h.way][h.child] = give
			}
			key := [2]int{h.way, h.parent}
			if came[key] == nil {
				keys = append(keys, key)
			}
			came[key] = append(came[key], take)
		})
		for _, key := range keys { // sums are added in the order they come
			way, v, list := key[0], key[1], came[key]
			root := v == ways[way].Up.Root
			slices.SortFunc(list, func(a, b *turn) int {
				switch {
				case t.roads != nil:
					return cmp.Compare(a.order, b.order)
				case t.slots != nil:
					return cmp.Or(cmp.Compare(a.stage, b.stage), cmp.Compare(a.side, b.side), a.compare(b))
				}
				return cmp.Or(cmp.Compare(a.stage, b.stage), cmp.Compare(a.side, b.side), cmp.Compare(a.order, b.order))
			})
			for k, x := range list {
				switch {
				case root && len(list) == 1:
					x.kind = addOnly
				case root && k == len(list)-1:
					x.kind = addResult
				case k == 0:
					x.kind = addFirst
				}
				if k > 0 {
					t.follow(x, list[k-1])
				}
				last[way][v], ready[way][v] = x, max(ready[way][v], x.mate.start+x.mate.span)
			}
		}
	}
	for i, w := range ways {
		for v := range n { // below the root nobody has the result yet
			if w.Down != nil && v != w.Down.Root {
				ready[i][v], last[i][v] = 0, nil
			}
		}
		if w.Down != nil && w.Up == nil {
			t.add(&turn{kind: copyOwn, way: i, rank: w.Down.Root})
		}
	}
	for d := range low {
		t.pick(p.hops(downs, d), false, ready, func(h hop) {
			w := &ways[h.way]
			give, take := t.move(h.way, w.Down.Root, h.parent, h.child, sendOut, takeOut, ready[h.way][h.parent])
			if w.Up == nil && h.parent == w.Down.Root {
				give.kind = sendIn
			}
			t.follow(give, last[h.way][h.parent])
			t.follow(take, sums[h.way][h.child]) // the result takes the place of the sum
			last[h.way][h.child], ready[h.way][h.child] = take, give.start+give.span
			if t.roads != nil {
				ready[h.way][h.child] = take.start
			}
		})
	}
	t.settle()
	return t
}

// colours gives every transfer a slot of a round, so that in each slot a rank sends one and
// takes one on each of its sides, in as few slots as the busiest rank has transfers (König:
// the links of a graph of two sides have as many colours as the most that meet). Transfers
// that are turned into one another have the same slot, so that ranks which are alike do the
// same at the same time and none gets ahead of the others. Those that take links which many
// share are spread over the slots. It gives nil where trees have unequal weights, which
// would make slots of unequal length.
func (t *timetable) colours() []int {
	for _, w := range t.plan.Ways {
		if w.Weight != t.plan.Ways[0].Weight {
			return nil
		}
	}
	slots, kind, firsts := t.classes()
	far := t.plan.Net.distant()
	n := t.plan.Net.Ranks
	ends := func(k int) [2]int { // senders, then takers
		x := t.moves[k]
		return [2]int{t.plan.first(x.rank), n + t.plan.first(x.mate.rank)}
	}
	for side := range t.sides {
		degree := make([]int, 2*n)
		most := 0
		for _, k := range firsts {
			if t.moves[k].side == side {
				for _, port := range ends(k) {
					degree[port]++
					most = max(most, degree[port])
				}
			}
		}
		taken := make([][]int, 2*n) // by end and slot: the transfer, counted from 1
		for port, d := range degree {
			if d > 0 {
				taken[port] = make([]int, most)
			}
		}
		crowd := make([]int, most) // by slot: transfers that go far
		put := func(k, slot int) {
			slots[k] = slot
			for _, port := range ends(k) {
				taken[port][slot] = k + 1
			}
			if x := t.moves[k]; far(x.rank, x.mate.rank) {
				crowd[slot]++
			}
		}
		for _, k := range firsts {
			if t.moves[k].side != side {
				continue
			}
			from, to := ends(k)[0], ends(k)[1]
			distant := far(t.moves[k].rank, t.moves[k].mate.rank)
			slot := -1
			for s := range most {
				if taken[from][s]+taken[to][s] == 0 && (slot < 0 || distant && crowd[s] < crowd[slot]) {
					if slot = s; !distant {
						break
					}
				}
			}
			if slot < 0 { // one that is free at the sender: what takes it at the taker goes to one that is free there, and so on
				slot = slices.Index(taken[from], 0)
				other := slices.Index(taken[to], 0)
				var chain []int
				for port, s := to, slot; taken[port][s] > 0; s = slot + other - s {
					chain = append(chain, taken[port][s]-1)
					e := ends(chain[len(chain)-1])
					port = e[0] + e[1] - port
				}
				for _, c := range chain {
					for _, port := range ends(c) {
						taken[port][slots[c]] = 0
					}
					if x := t.moves[c]; far(x.rank, x.mate.rank) {
						crowd[slots[c]]--
					}
				}
				for _, c := range chain {
					put(c, slot+other-slots[c])
				}
			}
			put(k, slot)
		}
	}
	for k := range slots {
		slots[k] = slots[kind[k]]
	}
	return slots
}

// crossing reports whether some transfers take links that many share.
func (t *timetable) crossing() bool {
	far := t.plan.Net.distant()
	return slices.ContainsFunc(t.moves, func(x *turn) bool { return far(x.rank, x.mate.rank) })
}

// shifted is the slots of one of several pairs of channels: each starts elsewhere in the
// round, so that not all take the links at once that many share.
func (t *timetable) shifted(pair, of int) []int {
	var most [2]int
	for i, x := range t.order() {
		most[x.side] = max(most[x.side], t.slots[i]+1)
	}
	list := make([]int, len(t.slots))
	for i, x := range t.order() {
		list[i] = (t.slots[i] + pair*most[x.side]/of) % most[x.side]
	}
	return list
}

// order is the transfers as they were found.
func (t *timetable) order() []*turn {
	list := slices.Clone(t.moves)
	slices.SortFunc(list, func(a, b *turn) int { return cmp.Compare(a.order, b.order) })
	return list
}

// classes says for every transfer which is the first one that is turned to it, and lists these.
func (t *timetable) classes() (slots, kind, firsts []int) {
	type class struct{ way, from, to int }
	slots, kind = make([]int, len(t.moves)), make([]int, len(t.moves))
	at := make([]int, len(t.plan.Ways)) // by way: which of its root's it is
	seen := map[int]int{}
	for i := range at {
		root := t.plan.Ways[i].Root()
		at[i] = seen[root]
		seen[root]++
	}
	known := map[class]int{}
	for k, x := range t.moves {
		root := t.plan.Ways[x.way].Root()
		c := class{at[x.way] << 1, t.plan.back(x.rank, root), t.plan.back(x.mate.rank, root)}
		if x.mate.kind >= addFirst {
			c.way++
		}
		c.way = c.way*t.plan.Net.Ranks + t.plan.first(root)
		first, ok := known[c]
		if !ok {
			first, known[c] = k, k
			firsts = append(firsts, k)
		}
		kind[k] = first
	}
	return slots, kind, firsts
}

// distant says which ranks have no switch in common, with switches joined whose links hold
// nothing up: what they send to one another takes links that many share.
func (n *Net) distant() func(a, b int) bool {
	n = n.contracted()
	_, out := n.sides()
	at := make([]map[int]bool, n.Ranks)
	for r := range at {
		at[r] = map[int]bool{}
		for _, i := range out[r] {
			at[r][n.Edges[i].To] = true
		}
	}
	in := make([]map[int]bool, n.Ranks)
	for r := range in {
		in[r] = map[int]bool{}
	}
	for _, e := range n.Edges {
		if e.To < n.Ranks {
			in[e.To][e.From] = true
		}
	}
	return func(a, b int) bool {
		if at[a][b] {
			return false
		}
		for v := range at[a] {
			if in[b][v] {
				return false
			}
		}
		return true
	}
}

// move books a transfer from one rank to another.
func (t *timetable) move(way, root, from, to, give, take int, ready float64) (a, b *turn) {
	n := t.plan.Net.Ranks
	side, weight := t.side(from, to), float64(t.plan.Ways[way].Weight)
	out, in := &t.ports[from%t.period][side], &t.ports[to%t.period][side]
	start, span := max(ready, out.sends, in.takes), t.cost[side]*weight
	switch {
	case t.slots != nil:
		start = span * float64(t.slots[t.count])
	case t.roads != nil:
		links := t.roads.way(from, to)
		start, span = t.roads.start(links, start), t.roads.span(links)*weight
		t.roads.book(links, start, weight)
	}
	end := start + span
	out.sends, in.takes = max(out.sends, end), max(in.takes, end)
	t.count++
	a = &turn{start: start, span: span, order: t.count, kind: give, way: way, root: (root - from + n) % n, peer: (to - from + n) % n,
		rank: from, side: side}
	b = &turn{start: start, order: t.count, kind: take, way: way, root: (root - to + n) % n, peer: (from - to + n) % n, rank: to, side: side}
	b.start += late * span
	a.mate, b.mate = b, a
	t.add(a)
	t.add(b)
	t.moves = append(t.moves, a)
	return a, b
}

func (t *timetable) add(x *turn) {
	t.lists[x.side][x.rank%t.period] = append(t.lists[x.side][x.rank%t.period], x)
}

// settle sorts the lists, and puts waits in where a turn needs one of the other side.
func (t *timetable) settle() {
	place := func() {
		for _, lists := range t.lists {
			for _, list := range lists {
				for i, x := range list {
					x.at = i
					t.stages = max(t.stages, x.stage)
				}
			}
		}
	}
	// What is needed comes first, and messages between two ranks are taken in the order
	// that they are sent. All of that goes by the order in which transfers were found.
	type conn struct{ from, ahead, side int }
	before := map[conn]*turn{}
	if t.slots != nil {
		slices.SortStableFunc(t.moves, (*turn).compare)
	}
	after := func(x, y *turn) {
		if y != nil && (y.side == x.side || t.roads != nil) && y.stage == x.stage {
			x.start = max(x.start, y.start+least)
		}
	}
	for _, x := range t.moves {
		key := conn{x.rank % t.period, x.peer, x.side}
		for _, y := range x.needs {
			after(x, y)
		}
		if y := before[key]; y != nil {
			x.start = max(x.start, y.start+least)
			x.mate.start = max(x.mate.start, y.mate.start+least)
		}
		x.mate.start = max(x.mate.start, x.start)
		for _, y := range x.mate.needs {
			after(x.mate, y)
		}
		before[key] = x
	}
	for _, lists := range t.lists {
		for _, list := range lists {
			slices.SortStableFunc(list, (*turn).compare)
		}
	}
	place()
	type waiting struct{ wait, done *turn }
	var waits []waiting
	for side, lists := range t.lists {
		for r, list := range lists {
			var with []*turn
			seen := map[[2]int]int{} // by stage of the one that waits and of the one waited for
			for _, x := range list {
				for _, y := range x.needs {
					key := [2]int{x.stage, y.stage}
					if at, ok := seen[key]; y.side == side || ok && at >= y.at {
						continue
					}
					seen[key] = y.at
					w := &turn{kind: await, way: x.way, stage: x.stage, side: side}
					with = append(with, w)
					waits = append(waits, waiting{w, y})
				}
				with = append(with, x)
			}
			t.lists[side][r] = with
		}
	}
	place()
	for _, w := range waits { // one round of the other side is as long as its longest list
		w.wait.peer = w.done.at + 1 + (t.stages-w.wait.stage+w.done.stage)*t.longest(w.done.side)
	}
}

// boxes says which nodes are in one box, by node, -1 for none: those of a host, or, where ranks are not of several hosts, those behind the
// switch to which their widest links lead:
//
//	r0 ══ box0 ══ r1    r2 ══ box1 ══ r3       wide links inside
//	 └──────┴──── net ────┴──────┘             narrow ones outside
func (n *Net) boxes() []int {
	if slices.ContainsFunc(n.Hosts[:n.Ranks], func(h int) bool { return h != n.Hosts[0] }) {
		return n.Hosts
	}
	box, widest := slices.Repeat([]int{-1}, n.Nodes()), make([]int64, n.Ranks)
	for _, e := range n.Edges {
		if e.From < n.Ranks && e.Cap > widest[e.From] {
			box[e.From], widest[e.From] = e.To, e.Cap
		}
	}
	for r := range n.Ranks {
		if box[r] < n.Ranks { // another rank: there is no box
			return n.Hosts
		}
		box[box[r]] = box[r]
	}
	return box
}

// faces is how much a rank sends inside its box and out of it, on average; 0 where boxes are not known or have one rank each.
func (n *Net) faces(box []int) (inside, outside float64) {
	for _, e := range n.Edges {
		if e.From >= n.Ranks {
			continue
		}
		if h := box[e.From]; h < 0 {
			return 0, 0
		} else if box[e.To] == h {
			inside += float64(e.Cap)
		} else {
			outside += float64(e.Cap)
		}
	}
	return inside / float64(n.Ranks), outside / float64(n.Ranks)
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
