package synth

import (
	"fmt"
	"math"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
	"github.com/weft-fabric/weft/model/unit"
)

// slots is how many messages may be under way between two ranks.
const slots = 8

// Pieces is how finely to cut a buffer of a size: a tree of D hops takes
// (D+c-1)(A + m/(c r)) for c pieces of m bytes at rate r, least for
// c = sqrt((D-1) m / (A r)). A is what a hop costs.
func (p *Plan) Pieces(size unit.Bytes, hop unit.Time) int {
	if hop <= 0 {
		hop = unit.Microsecond
	}
	time := size.Over(p.Rate).Seconds() / hop.Seconds()
	c := math.Sqrt(float64(max(p.Height()-1, 1)) * time)
	return int(min(max(math.Round(c), 1), 256))
}

// tables collects what a program looks up.
type tables struct {
	names  []string
	values map[string][]int64
}

func (t *tables) put(name string, values ...int64) {
	if t.values == nil {
		t.values = map[string][]int64{}
	}
	if t.values[name] == nil {
		t.names = append(t.names, name)
	}
	t.values[name] = append(t.values[name], values...)
}

// trees writes the tables of one side: for every tree and rank the parent, and
// where its children are in the list of all.
func (t *tables) trees(prefix string, ranks int, list []*Tree) (kids [][][]int) {
	for _, tree := range list {
		below := make([][]int, ranks)
		for v, p := range tree.Parent {
			if p >= 0 {
				below[p] = append(below[p], v)
			}
		}
		for v := range ranks {
			t.put(prefix+"parent", int64(max(tree.Parent[v], 0)))
			t.put(prefix+"kids", int64(len(below[v])))
			t.put(prefix+"first", int64(len(t.values[prefix+"kid"])))
			for _, k := range below[v] {
				t.put(prefix+"kid", int64(k))
			}
		}
		kids = append(kids, below)
	}
	return kids
}

// Program writes the plan as a program that cuts each tree's share into pieces.
// Lanes bounds the channels on which a rank sends to its children; 0 for one a child.
//
// Data climbs a tree on one channel: a rank adds what its children send to its
// own, in their order, and passes the sum on. It descends on one channel for each
// child of a rank (a lane), so that a rank sends to all its children at once, or
// on fewer, where children share a lane in turn; a lane that is not the one a
// piece comes in on waits for that.
//
//	channel of the way       up: leaves send, others add and send on
//	channels of its lanes    down: lane i of L leads to the children i, i+L, i+2L, ...
func (p *Plan) Program(name string, pieces, lanes int) (*sched.Program, error) {
	n := p.Net.Ranks
	if pieces < 1 || pieces > 1<<16 {
		return nil, fmt.Errorf("%d pieces; want 1 to %d", pieces, 1<<16)
	}
	if len(p.Ways) == 0 {
		return nil, fmt.Errorf("the plan has no trees")
	}
	var t tables
	var up, down []*Tree
	same := true
	for _, w := range p.Ways {
		if w.Up != nil {
			up = append(up, w.Up)
		}
		if w.Down != nil {
			down = append(down, w.Down)
		}
		same = same && w.Up != nil && w.Down != nil && equalTrees(w.Up, w.Down)
	}
	// Where the chunks of each way lie: in the block of its root, or all after one another.
	per := make([]int64, n)
	var total, scratch int64
	for _, w := range p.Ways {
		per[w.Root()] += w.Weight
		total += w.Weight
	}
	blocks := p.Op.Blocks()
	at := make([]int64, n)
	var sum int64
	for _, w := range p.Ways {
		r := w.Root()
		t.put("root", int64(r))
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
	if blocks {
		for r := range per {
			if per[r] != per[0] {
				return nil, fmt.Errorf("rank %d has trees of weight %d, rank 0 of %d; blocks are equal", r, per[r], per[0])
			}
		}
	}
	upName := "up_"
	if same {
		upName = ""
	}
	whole := func(buf string) string { return buf + "[at[%T]+p*size[%T] +: size[%T]]" }
	part := func(buf string) string { return buf + "[local[%T]+p*size[%T] +: size[%T]]" }
	in, out := whole("in"), whole("out")
	switch p.Op {
	case sched.AllGather:
		in = part("in")
	case sched.ReduceScatter:
		out = part("out")
	}
	var body strings.Builder
	lines := func(indent int, tree string, text ...string) {
		for _, l := range text {
			for strings.HasPrefix(l, "  ") {
				l = l[2:]
				body.WriteString("  ")
			}
			body.WriteString(strings.Repeat("  ", indent))
			body.WriteString(strings.ReplaceAll(l, "%T", tree))
			body.WriteByte('\n')
		}
	}
	first := 0 // channel of the first lane
	if len(up) > 0 {
		kids := t.trees(upName, n, up)
		first = len(up)
		deep := false
		for i, w := range p.Ways {
			t.put("hold", scratch)
			for _, list := range kids[i] {
				if len(list) > 1 {
					deep = true
				}
			}
			scratch += w.Weight
		}
		if !deep {
			scratch = 0
		}
		climb(lines, upName, in, out, len(up), deep)
	}
	if len(down) > 0 {
		kids := t.trees("", n, down)
		if same { // they were written already
			for _, k := range []string{"parent", "kids", "first", "kid"} {
				t.values[k] = t.values[k][:len(t.values[k])/2]
			}
		}
		channels, shared := 0, false
		for i := range down {
			fan := 0
			for _, list := range kids[i] {
				fan = max(fan, len(list))
			}
			wide := fan
			if lanes > 0 {
				wide = min(fan, lanes)
			}
			shared = shared || wide < fan
			via, turns := make([]int64, n), make([]int64, n)
			for _, list := range kids[i] {
				for k, v := range list {
					via[v] = int64(first + channels + k%wide)
					mine := len(kids[i][v]) - k%wide // children of v on the lane that it is served on
					turns[v] = int64(max((mine+wide-1)/wide, 1))
				}
			}
			t.put("via", via...)
			t.put("turns", turns...)
			for lane := range wide {
				t.put("tree", int64(i))
				t.put("lane", int64(lane))
				t.put("wide", int64(wide))
			}
			channels += wide
		}
		descend(lines, in, out, first, channels, upName, len(up) > 0, shared)
	}
	return assemble(p, name, &t, total*int64(pieces), scratch, fmt.Sprintf("let pieces = %d\n", pieces), body.String())
}

// assemble puts a program together from its tables and its body.
func assemble(p *Plan, name string, t *tables, chunks, scratch int64, lets, text string) (*sched.Program, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "weft 1\nname %s\nop %s\nranks %d\n", name, p.Op, p.Net.Ranks)
	if p.Op.Rooted() {
		fmt.Fprintf(&b, "root %d\n", p.Root)
	}
	b.WriteString(lets)
	for _, k := range t.names {
		if !looksUp(text, k) {
			continue
		}
		fmt.Fprintf(&b, "table %s:", k)
		for _, v := range t.values[k] {
			fmt.Fprintf(&b, " %d", v)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "chunks %d\n", chunks)
	if scratch > 0 {
		fmt.Fprintf(&b, "scratch %d\n", scratch)
	}
	fmt.Fprintf(&b, "slots %d\n%s", slots, text)
	return sched.Parse(b.String())
}

// looksUp reports whether a text names a table.
func looksUp(text, table string) bool {
	for at := 0; ; {
		i := strings.Index(text[at:], table+"[")
		if i < 0 {
			return false
		}
		at += i
		if before := text[at-1]; before != '_' && (before < 'a' || before > 'z') {
			return true
		}
		at++
	}
}

func equalTrees(a, b *Tree) bool {
	if a.Root != b.Root {
		return false
	}
	for v := range a.Parent {
		if a.Parent[v] != b.Parent[v] {
			return false
		}
	}
	return true
}

// climb writes the way up: a channel for each tree.
func climb(lines func(int, string, ...string), pre, in, out string, trees int, deep bool) {
	i := "c*n+r"
	kid := func(k string) string { return pre + "kid[" + pre + "first[" + i + "]" + k + "]" }
	parent := pre + "parent[" + i + "]"
	kids := pre + "kids[" + i + "]"
	sum := "tmp[hold[c] +: size[c]]"
	step := func(indent int, l string) { lines(indent, "c", l) }
	step(0, fmt.Sprintf("channels %d:", trees))
	step(1, "repeat p < pieces:")
	step(2, "if "+kids+" == 0:")
	step(3, "send "+in+" to "+parent)
	step(2, "if "+kids+" == 1:")
	step(3, "if r == root[c]:")
	step(4, "recv-reduce "+in+" -> "+out+" from "+kid(""))
	step(3, "else:")
	step(4, "recv-reduce-send "+in+" from "+kid("")+" to "+parent)
	if !deep {
		return
	}
	step(2, "if 1 < "+kids+":")
	step(3, "recv-reduce "+in+" -> "+sum+" from "+kid(""))
	step(3, "repeat k < "+kids+"-2:")
	step(4, "recv-reduce "+sum+" -> "+sum+" from "+kid("+1+k"))
	step(3, "if r == root[c]:")
	step(4, "recv-reduce "+sum+" -> "+out+" from "+kid("+"+kids+"-1"))
	step(3, "else:")
	step(4, "recv-reduce-send "+sum+" from "+kid("+"+kids+"-1")+" to "+parent)
}

// descend writes the way down: a channel for each lane of each tree.
func descend(lines func(int, string, ...string), in, out string, first, channels int, pre string, climbs, shared bool) {
	c := "c"
	if first > 0 {
		c = fmt.Sprintf("c-%d", first)
	}
	tree, lane := "tree["+c+"]", "lane["+c+"]"
	i := tree + "*n+r"
	kid := "kid[first[" + i + "]+" + lane + "]"
	step := func(indent int, l string) { lines(indent, tree, l) }
	// rest sends to the other children of a lane.
	rest := func(indent int, src string) {
		if shared {
			step(indent, "repeat k < (kids["+i+"]-"+lane+"-1)/wide["+c+"]:")
			step(indent+1, "send "+src+" to kid[first["+i+"]+"+lane+"+(k+1)*wide["+c+"]]")
		}
	}
	done := "p+1"
	if shared {
		done = "p*turns[" + i + "]+1"
	}
	step(0, fmt.Sprintf("channels %d:", channels))
	step(1, "repeat p < pieces:")
	step(2, "if r == root[%T]:")
	src := out
	if climbs {
		step(3, "if "+lane+" < kids["+i+"]:")
		step(4, "wait channel %T done (p+1)*"+pre+"kids["+i+"]")
	} else {
		src = in
		step(3, "if "+lane+" == 0:")
		step(4, "copy "+in+" -> "+out)
		step(3, "if "+lane+" < kids["+i+"]:")
	}
	step(4, "send "+src+" to "+kid)
	rest(4, src)
	step(2, "else:")
	step(3, "if c == via["+i+"]:")
	step(4, "if "+lane+" < kids["+i+"]:")
	step(5, "recv-copy-send -> "+out+" from parent["+i+"] to "+kid)
	rest(5, out)
	step(4, "else:")
	step(5, "recv -> "+out+" from parent["+i+"]")
	step(3, "else:")
	step(4, "if "+lane+" < kids["+i+"]:")
	step(5, "wait channel via["+i+"] done "+done)
	step(5, "send "+out+" to "+kid)
	rest(5, out)
}
