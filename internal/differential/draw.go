// Package differential holds what is run against what is proven: it draws programs,
// proves them, and runs those that are proven in every world of comm, where they must
// give the same bits as the plain reference and must end.
package differential

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/weft-fabric/weft/collective/algo"
	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/collective/synth"
	"github.com/weft-fabric/weft/internal/mutant"
)

// Draw draws a program for n ranks: one of collective/algo with random parameters, one that
// weaves random trees and paths, or one text for all ranks. About half of them are then
// broken in one place or two, so that many are wrong. How says where it comes from.
func Draw(rng *rand.Rand, n int) (p *sched.Program, how string) {
	for p == nil {
		switch rng.IntN(6) {
		case 0:
			p, how = built(rng, n)
		case 5:
			p, how = made(rng, n)
		case 1:
			p, how = alike(rng, n)
		default:
			p, how = woven(rng, n)
		}
	}
	if rng.IntN(2) == 0 {
		return p, how
	}
	if len(p.Tables) > 0 && rng.IntN(3) == 0 { // in a table
		t := &p.Tables[rng.IntN(len(p.Tables))]
		if len(t.Values) > 0 {
			t.Values[rng.IntN(len(t.Values))] += int64(1 - 2*rng.IntN(2))
			if again, err := sched.Parse(p.String()); err == nil {
				return again, how + ", broken table " + t.Name
			}
			return Draw(rng, n)
		}
	}
	if len(p.Groups) > 0 && rng.IntN(4) == 0 { // in the text
		for whole, tries := p.String(), 0; p.String() == whole && tries < 20; tries++ {
			mutant.BreakText(p.Groups[rng.IntN(len(p.Groups))].Body, rng)
		}
		return p, how + ", broken text"
	}
	e, err := mutant.WriteOut(p)
	if err != nil {
		return p, how
	}
	for range 1 + rng.IntN(2) {
		for tries := 0; tries < 20; tries++ {
			if m, what := e.Break(rng); m != nil {
				e, how = m, how+", "+what
				break
			}
		}
	}
	return e.Program(), how
}

// ops are the collectives that are calls of comm, but for barriers, which have no data.
var ops = []sched.Collective{sched.AllReduce, sched.AllReduce, sched.AllReduce, sched.ReduceScatter, sched.AllGather, sched.Broadcast,
	sched.Reduce, sched.AllToAll, sched.Gather, sched.Scatter}

func slots(rng *rand.Rand) int {
	return []int{1, 1, 1, 2, 2, 3, 4, 7, 9, 40, 256}[rng.IntN(11)]
}

// made makes a program for a random network, with trees in tables: in every form that
// synth writes, for ranks alone and in hosts.
func made(rng *rand.Rand, n int) (*sched.Program, string) {
	if n < 2 {
		return nil, ""
	}
	var links strings.Builder
	for v := 1; v < n; v++ {
		fmt.Fprintf(&links, "r%d - r%d %d\n", rng.IntN(v), v, 1+rng.IntN(3))
	}
	for range rng.IntN(n) {
		fmt.Fprintf(&links, "r%d - leaf %d\n", rng.IntN(n), 1+rng.IntN(2))
	}
	if size := 2 + rng.IntN(2); rng.IntN(2) == 0 {
		for v := range n {
			if v%size == 0 {
				fmt.Fprintf(&links, "host h%d", v/size)
			}
			fmt.Fprintf(&links, " r%d", v)
			if v%size == size-1 || v == n-1 {
				links.WriteByte('\n')
			}
		}
	}
	net, err := synth.Read("random", links.String())
	if err != nil {
		return nil, ""
	}
	op := []sched.Collective{sched.AllReduce, sched.AllReduce, sched.AllGather, sched.ReduceScatter, sched.Broadcast,
		sched.Reduce}[rng.IntN(6)]
	root := rng.IntN(n)
	plan, err := net.Make(op, root, synth.Wish{Loss: 0.3 * rng.Float64()})
	if err != nil {
		return nil, ""
	}
	how := "synth"
	var p *sched.Program
	switch rng.IntN(8) {
	case 4, 5:
		how = "a channel for each link"
		p, err = plan.Linked("synth", 1+rng.IntN(3), 1+rng.IntN(2), []int{0, 4, 8}[rng.IntN(3)])
	case 0:
		how = "fewest hops"
		if plan, err = net.Shallow(op, root); err == nil {
			p, err = plan.Program("synth", 1+rng.IntN(2), rng.IntN(3))
		}
	case 1:
		how, op = "one shot", sched.AllReduce
		p, err = net.OneShot("synth")
	case 3:
		how = "trees in turn by booked links"
		p, err = plan.Booked("synth", 1+rng.IntN(3), []int{1, 2, 4}[rng.IntN(3)])
	case 2:
		how = "trees in turn"
		p, err = plan.Ordered("synth", 1+rng.IntN(3), []int{1, 2, 4}[rng.IntN(3)])
	default:
		p, err = plan.Even(len(plan.Ways)+rng.IntN(4)).Program("synth", 1+rng.IntN(3), rng.IntN(3))
	}
	if err != nil {
		return nil, ""
	}
	return p, how + " " + op.String()
}

// built makes a program of an algorithm.
func built(rng *rand.Rand, n int) (*sched.Program, string) {
	all := algo.All()
	a := all[rng.IntN(len(all))]
	op := a.Ops[rng.IntN(len(a.Ops))]
	if op == sched.SendRecv {
		return nil, ""
	}
	s := algo.Spec{Op: op, Ranks: n, Channels: 1 + rng.IntN(3), Pieces: rng.IntN(4), Local: rng.IntN(n + 1), Aggregate: rng.IntN(3)}
	if rng.IntN(2) == 0 {
		s.Slots = slots(rng)
	}
	if op.Rooted() {
		s.Root = rng.IntN(n)
	}
	for c := 0; rng.IntN(3) == 0 && c < s.Channels; c++ {
		var order []sched.Rank
		for _, r := range rng.Perm(n) {
			order = append(order, sched.Rank(r))
		}
		s.Orders = append(s.Orders, order)
	}
	p, err := a.Program(s)
	if err != nil || p.Switches > 0 {
		return nil, ""
	}
	return p, fmt.Sprintf("%s with %d channels", a.Name, s.Channels)
}

// alike makes one text for all ranks, in which each sends much before it receives.
func alike(rng *rand.Rand, n int) (*sched.Program, string) {
	var b strings.Builder
	text := func(depth int, s string) { b.WriteString(strings.Repeat("  ", depth) + s + "\n") }
	line := func(depth int, format string, args ...any) { text(depth, fmt.Sprintf(format, args...)) }
	per := []int{1, 1, 2, 3, 5, 20, 64}[rng.IntN(7)]
	line(0, "weft 1\nname alike")
	// each writes a step for every one of some chunks, as a loop or as one step.
	wide := rng.IntN(3) == 0
	each := func(format string, base string) {
		if wide {
			text(1, strings.ReplaceAll(format, "@", base+" +: k"))
			return
		}
		text(1, "repeat i < k:")
		text(2, strings.ReplaceAll(format, "@", base+"+i"))
	}
	switch op := rng.IntN(4); {
	case op == 0 && n&(n-1) == 0:
		line(0, "op all-reduce\nranks %d\nlet k = %d\nchunks k\nscratch k\nslots %d\nchannels 1:", n, per, slots(rng))
		each("copy in[@] -> tmp[@]", "0")
		var bits []int
		for d := 1; d < n; d *= 2 {
			bits = append(bits, d)
		}
		rng.Shuffle(len(bits), func(i, j int) { bits[i], bits[j] = bits[j], bits[i] })
		for _, d := range bits {
			each(fmt.Sprintf("send tmp[@] to r^%d", d), "0")
			each(fmt.Sprintf("recv-reduce tmp[@] -> tmp[@] from r^%d", d), "0")
		}
		each("copy tmp[@] -> out[@]", "0")
	case op == 1:
		line(0, "op all-gather\nranks %d\nlet k = %d\nchunks n*k\nslots %d\nchannels 1:", n, per, slots(rng))
		each("copy in[@0] -> out[@]", "r*k")
		for _, d := range rng.Perm(n - 1) {
			each(fmt.Sprintf("send in[@0] to (r+%d)%%n", d+1), "r*k")
		}
		for _, d := range rng.Perm(n - 1) {
			each(fmt.Sprintf("recv -> out[@] from (r-%d)%%n", d+1), fmt.Sprintf("(r-%d)%%n*k", d+1))
		}
	case op == 2:
		line(0, "op all-to-all\nranks %d\nlet k = %d\nchunks n*k\nslots %d\nchannels 1:", n, per, slots(rng))
		each("copy in[@] -> out[@]", "r*k")
		for _, d := range rng.Perm(n - 1) {
			each(fmt.Sprintf("send in[@] to (r+%d)%%n", d+1), fmt.Sprintf("(r+%d)%%n*k", d+1))
		}
		for _, d := range rng.Perm(n - 1) {
			each(fmt.Sprintf("recv -> out[@] from (r-%d)%%n", d+1), fmt.Sprintf("(r-%d)%%n*k", d+1))
		}
	default:
		line(0, "op reduce-scatter\nranks %d\nlet k = %d\nchunks n*k\nslots %d\nchannels 1:", n, per, slots(rng))
		for _, d := range rng.Perm(n - 1) {
			each(fmt.Sprintf("send in[@] to (r+%d)%%n", d+1), fmt.Sprintf("(r+%d)%%n*k", d+1))
		}
		each("copy in[@] -> out[@0]", "r*k")
		for _, d := range rng.Perm(n - 1) {
			each(fmt.Sprintf("recv-reduce out[@0] -> out[@0] from (r-%d)%%n", d+1), "0")
		}
	}
	// In place of the own block, the chunks of the smaller buffer begin at 0.
	whole := strings.NewReplacer("r*k +: k0]", "0 +: k]", "r*k+i0]", "i]", "0 +: k0]", "0 +: k]", "0+i0]", "i]").Replace(b.String())
	p, err := sched.Parse(whole)
	if err != nil {
		panic(fmt.Sprintf("%v\n%s", err, whole))
	}
	return p, "alike"
}

// weaver writes a program out rank by rank.
type weaver struct {
	rng   *rand.Rand
	n     int
	p     *sched.Program
	out   int // chunks
	tmp   int
	next  int // of tmp
	steps [][][]sched.Step
	whole bool // a run of chunks is one step
}

// place is where a rank keeps something.
type place struct {
	buf sched.Buffer
	at  int
}

func (x place) ref(width int) sched.Ref {
	r := sched.Ref{Buf: x.buf, Index: sched.N(x.at)}
	if width > 1 {
		r.Count = sched.N(width)
	}
	return r
}

// end is an output of a rank that something belongs to.
type end struct{ rank, at int }

// woven makes a program of random trees, one for every few chunks.
func woven(rng *rand.Rand, n int) (*sched.Program, string) {
	op := ops[rng.IntN(len(ops))]
	per := []int{1, 1, 2, 3, 4, 6, 12}[rng.IntN(7)]
	chunks := per
	if op.Blocks() {
		chunks *= n
	}
	w := &weaver{rng: rng, n: n, whole: rng.IntN(2) == 0}
	w.p = &sched.Program{Name: "woven", Op: op, Ranks: n, Chunks: sched.N(chunks), Slots: slots(rng)}
	if op.Rooted() {
		w.p.Root = rng.IntN(n)
	}
	if rng.IntN(3) > 0 {
		w.tmp = 1 + rng.IntN(2*per+2)
		w.p.Scratch = sched.N(w.tmp)
	}
	w.out = w.p.NumChunks(sched.Out)
	channels := 1 + rng.IntN(3)*rng.IntN(2)
	for range channels {
		w.steps = append(w.steps, make([][]sched.Step, n))
	}
	for _, j := range rng.Perm(per) {
		width := 1
		if j+1 < per && rng.IntN(3) == 0 {
			width = 1 + rng.IntN(per-j)
		}
		w.jobs(j, per, width)
	}
	if rng.IntN(3) == 0 {
		w.hoist()
	}
	e := mutant.Explicit{Head: w.p, Steps: w.steps}
	return e.Program(), "woven"
}

// jobs does what the collective promises of some chunks of every block, some of which
// may have been done before: that only makes the program longer.
func (w *weaver) jobs(j, per, width int) {
	switch root := w.p.Root; w.p.Op {
	case sched.AllReduce:
		w.reduce(j, width, w.everywhere(j))
	case sched.Reduce:
		w.reduce(j, width, []end{{root, j}})
	case sched.Broadcast:
		w.move(root, j, width, w.everywhere(j))
	default:
		for _, b := range w.rng.Perm(w.n) {
			w.block(b, j, per, width)
		}
	}
}

// everywhere is the same chunk of every rank.
func (w *weaver) everywhere(at int) (ends []end) {
	for r := range w.n {
		ends = append(ends, end{r, at})
	}
	return ends
}

// block does what jobs does for one rank's block, in collectives that divide a buffer among ranks.
func (w *weaver) block(b, j, per, width int) {
	root, at := w.p.Root, b*per+j
	switch w.p.Op {
	case sched.ReduceScatter:
		w.reduce(at, width, []end{{b, j}})
	case sched.AllGather:
		w.move(b, j, width, w.everywhere(at))
	case sched.Gather:
		w.move(b, j, width, []end{{root, at}})
	case sched.Scatter:
		w.move(root, at, width, []end{{b, j}})
	case sched.AllToAll:
		for _, q := range w.rng.Perm(w.n) {
			w.move(q, at, width, []end{{b, q*per + j}})
		}
	}
}

// add writes a step of a rank, for a run of chunks.
func (w *weaver) add(ch, rank, width int, s sched.Step) {
	if w.whole || width == 1 || s.Op == sched.Wait {
		w.steps[ch][rank] = append(w.steps[ch][rank], s)
		return
	}
	for k := range width {
		t := s
		for _, r := range []*sched.Ref{&t.Src, &t.Dst} {
			if r.Index != nil {
				*r = sched.Ref{Buf: r.Buf, Index: sched.N(int(r.Index.Val) + k)}
			}
		}
		w.steps[ch][rank] = append(w.steps[ch][rank], t)
	}
}

// keep finds room for what a rank keeps on the way: where it belongs, if it does,
// scratch, or anywhere in its output, which may be wrong.
func (w *weaver) keep(rank, width int, ends []end) place {
	for _, e := range ends {
		if e.rank == rank && w.rng.IntN(5) > 0 {
			return place{sched.Out, e.at}
		}
	}
	if w.tmp >= width && w.rng.IntN(6) > 0 {
		w.next = (w.next + width) % (w.tmp - width + 1)
		return place{sched.Tmp, w.next}
	}
	if w.out >= width {
		return place{sched.Out, w.rng.IntN(w.out - width + 1)}
	}
	return place{sched.Out, 0}
}

// tree gives every one of some ranks, but for the first, a parent among those before it.
func (w *weaver) tree(ranks []int) (children map[int][]int, parent map[int]int) {
	children, parent = map[int][]int{}, map[int]int{}
	for i, r := range ranks[1:] {
		p := ranks[w.rng.IntN(i+1)]
		if w.rng.IntN(3) == 0 {
			p = ranks[i] // a chain
		}
		parent[r], children[p] = p, append(children[p], r)
	}
	return children, parent
}

// reduce sums a chunk of all inputs at some rank and sends it to where it belongs.
func (w *weaver) reduce(at, width int, ends []end) {
	ch := w.rng.IntN(len(w.steps))
	ranks := w.rng.Perm(w.n)
	if w.rng.IntN(2) == 0 { // at one of the ends
		home := ends[w.rng.IntN(len(ends))].rank
		for i, r := range ranks {
			if r == home {
				ranks[0], ranks[i] = ranks[i], ranks[0]
			}
		}
	}
	home := ranks[0]
	children, parent := w.tree(ranks)
	in := place{sched.In, at}
	held := in
	for i := len(ranks) - 1; i >= 0; i-- { // children before their parents
		r := ranks[i]
		acc := w.keep(r, width, ends)
		src := in
		for k, c := range children[r] {
			from := sched.N(c)
			last := k == len(children[r])-1 && r != home
			switch {
			case last && w.rng.IntN(2) == 0:
				w.add(ch, r, width, sched.Step{Op: sched.RecvReduceSend, Src: src.ref(w.run(width)), From: from, To: sched.N(parent[r])})
			case last && w.rng.IntN(2) == 0:
				w.add(ch, r, width, sched.Step{Op: sched.RecvReduceCopySend, Src: src.ref(w.run(width)), Dst: acc.ref(w.run(width)), From: from,
					To: sched.N(parent[r])})
			case w.tmp > width && w.rng.IntN(4) == 0: // received, then added
				if src == in {
					w.add(ch, r, width, sched.Step{Op: sched.Copy, Src: in.ref(w.run(width)), Dst: acc.ref(w.run(width))})
				}
				t := place{sched.Tmp, w.rng.IntN(w.tmp - width + 1)}
				w.add(ch, r, width, sched.Step{Op: sched.Recv, Dst: t.ref(w.run(width)), From: from})
				w.add(ch, r, width, sched.Step{Op: sched.LocalReduce, Src: t.ref(w.run(width)), Dst: acc.ref(w.run(width))})
				src, last = acc, false
			default:
				w.add(ch, r, width, sched.Step{Op: sched.RecvReduce, Src: src.ref(w.run(width)), Dst: acc.ref(w.run(width)), From: from})
				src, last = acc, false
			}
			if last {
				src = place{} // it is sent
			}
		}
		if r == home {
			if held = src; held == in {
				w.add(ch, r, width, sched.Step{Op: sched.Copy, Src: in.ref(w.run(width)), Dst: acc.ref(w.run(width))})
				held = acc
			}
		} else if src.buf != 0 {
			w.add(ch, r, width, sched.Step{Op: sched.Send, Src: src.ref(w.run(width)), To: sched.N(parent[r])})
		}
	}
	w.spread(ch, home, held, width, ends)
}

// move sends a chunk of a rank's input to where it belongs.
func (w *weaver) move(rank, at, width int, ends []end) {
	w.spread(w.rng.IntN(len(w.steps)), rank, place{sched.In, at}, width, ends)
}

// run is how many chunks a step has of a run of them.
func (w *weaver) run(width int) int {
	if w.whole {
		return width
	}
	return 1
}

// spread sends what a rank holds to where it belongs, over a tree that may pass others.
func (w *weaver) spread(ch, home int, held place, width int, ends []end) {
	if len(w.steps) > 1 && w.rng.IntN(4) == 0 { // on another channel, after a wait
		other := (ch + 1) % len(w.steps)
		for r := range w.n {
			if done := len(w.steps[ch][r]); done > 0 && w.rng.IntN(8) > 0 {
				w.add(other, r, 1, sched.Step{Op: sched.Wait, Channel: sched.N(ch), Done: sched.N(done)})
			}
		}
		ch = other
	}
	at := map[int]int{}
	list := []int{home}
	for _, i := range w.rng.Perm(len(ends)) {
		e := ends[i]
		at[e.rank] = e.at
		if e.rank != home {
			list = append(list, e.rank)
		}
	}
	for r := range w.n { // passed, though it does not belong there
		if _, ok := at[r]; !ok && r != home && len(list) > 1 && w.rng.IntN(4) == 0 {
			i := 1 + w.rng.IntN(len(list)-1)
			list = append(list[:i], append([]int{r}, list[i:]...)...)
		}
	}
	children, parent := w.tree(list)
	if own, ok := at[home]; ok && held != (place{sched.Out, own}) {
		w.add(ch, home, width, sched.Step{Op: sched.Copy, Src: held.ref(w.run(width)), Dst: place{sched.Out, own}.ref(w.run(width))})
	}
	for _, r := range list {
		from := held
		kids := children[r]
		if r != home {
			own, ok := at[r]
			if from = (place{sched.Out, own}); !ok {
				if len(kids) == 0 {
					from = w.keep(r, width, nil)
				} else {
					from = w.keep(r, width, ends)
				}
			}
			if len(kids) > 0 && w.rng.IntN(2) == 0 {
				w.add(ch, r, width, sched.Step{Op: sched.RecvSend, Dst: from.ref(w.run(width)), From: sched.N(parent[r]), To: sched.N(kids[0])})
				kids = kids[1:]
			} else {
				w.add(ch, r, width, sched.Step{Op: sched.Recv, Dst: from.ref(w.run(width)), From: sched.N(parent[r])})
			}
		}
		for _, k := range kids {
			w.add(ch, r, width, sched.Step{Op: sched.Send, Src: from.ref(w.run(width)), To: sched.N(k)})
		}
	}
}

// hoist lets ranks send their inputs before they do anything else, which needs slots.
func (w *weaver) hoist() {
	for c := range w.steps {
		for r, list := range w.steps[c] {
			var first, rest []sched.Step
			for _, s := range list {
				if s.Op == sched.Send && s.Src.Buf == sched.In {
					first = append(first, s)
				} else {
					rest = append(rest, s)
				}
			}
			w.steps[c][r] = append(first, rest...)
		}
	}
}
