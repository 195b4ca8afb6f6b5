package algo

import (
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/collective/sched"
)

func itoa(v int) string { return strconv.Itoa(v) }

//	       0                    Even ranks inside, odd ranks leaves. With b the
//	       │                    lowest set bit of r, the children of r are r-b/2
//	       8                    and r+b/2 (b halved on until it is a rank), the
//	   ┌───┴───┐                parent is r with b cleared and 2b set, or if there
//	   4       12               is no such rank, r with b cleared.
//	 ┌─┴─┐   ┌─┴─┐
//	 2   6  10   14             Pieces go up on one channel and come down on the
//	┌┴┐ ┌┴┐ ┌┴┐ ┌┴┐             next, so both directions of every link are busy.
//	1 3 5 7 9 ..
//
// The second tree of a pair is the first with the ranks mirrored (even counts)
// or shifted by one (odd counts), so that inner ranks of one are leaves of the
// other and each tree carries half the data at the full rate. Broadcast and
// reduce keep the root on top of both: there it is the other way round.
//
// Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast,
// reduction and scan, 2009.
func init() {
	ops := []sched.Collective{sched.AllReduce, sched.Broadcast, sched.Reduce, sched.Barrier}
	register(&Algorithm{
		Name: "tree", Traits: Traits{Vast: true, Short: 10}, Nests: true, Ops: ops,
		Summary:   "small messages: few steps",
		Steps:     "2 ceil(log2 n) for a piece; half for broadcast, reduce",
		Sent:      "up to 3S inside the tree, S at leaves",
		Reference: "binary tree as in NCCL",
		Build:     func(s Spec) (string, error) { return trees(s, 1), nil },
	})
	register(&Algorithm{
		Name: "double-binary-tree", Traits: Traits{Vast: true, Long: 10, Short: 5}, Ops: ops,
		Summary:   "small to middle messages: few steps at full bandwidth",
		Steps:     "2 ceil(log2 n) for a piece; half for broadcast, reduce",
		Sent:      "up to 2S; S for broadcast, reduce",
		Reference: "Sanders, Speck, Träff 2009",
		Build:     func(s Spec) (string, error) { return trees(s, 2), nil },
	})
}

// position renames ranks for one tree: to gives the tree position of the rank
// that stands at r, from the rank at a position.
type position struct {
	to   string
	from func(pos string) string
	top  string // the rank at position 0, if from does not give it
}

// circle is what a tree stands over: the ranks, or the domains. It names the number of one and how many there are.
type circle struct{ r, n string }

// turn puts the rank shift at position 0.
func turn(shift int) position { return circle{"r", "n"}.turn(shift) }

func (c circle) turn(shift int) position {
	if shift == 0 {
		return position{to: c.r, from: func(p string) string { return p }}
	}
	return position{
		to:   "((" + c.r + "-" + itoa(shift) + ")%" + c.n + ")",
		from: func(p string) string { return "(" + p + "+" + itoa(shift) + ")%" + c.n },
	}
}

// next keeps the root at position 0 and moves everyone else one position on, the last one to position 1. At even
// counts this swaps even and odd positions, except that the last rank stays a leaf.
func (c circle) next(root int) position {
	name := c.turn(root)
	q, less := name.to, "("+c.n+"-1)"
	to := "((" + q + "%" + less + "+1)*(" + q + " > 0))"
	return position{
		to: to,
		from: func(p string) string {
			return name.from("((" + strings.Replace(p, to, q+"+1", 1) + "-2)%" + less + "+1)")
		},
		top: itoa(root),
	}
}

// places gives the names of ranks in the two trees of a pair. A root other than
// 0 turns the first tree so that it starts there; the second keeps the root and
// reverses the others (odd counts) or moves them by one (even counts).
func places(s Spec, tree int) position { return circle{"r", "n"}.places(s, tree) }

func (c circle) places(s Spec, tree int) position {
	root := itoa(s.Root)
	switch {
	case tree == 0:
		return c.turn(s.Root)
	case s.Op.Rooted():
		if s.Ranks%2 == 0 && s.Ranks > 2 {
			return c.next(s.Root)
		}
		return position{
			to:   "((" + root + "-" + c.r + ")%" + c.n + ")",
			from: func(p string) string { return "(" + root + "-(" + p + "))%" + c.n },
		}
	case s.Ranks%2 == 0:
		return position{to: "(" + c.n + "-1-" + c.r + ")", from: func(p string) string { return c.n + "-1-(" + p + ")" }}
	default:
		return c.turn(1)
	}
}

func trees(s Spec, count int) string {
	var t text
	pieces := s.cut(4)
	share := s.Channels * pieces // chunks of each tree
	t.line("root %d", s.Root)
	t.line("chunks %d", count*share)
	t.line("scratch %d", count*s.Channels)
	t.line("slots %d", orDefault(s.Slots, 2))
	for ch := range s.Channels {
		for tree := range count {
			b := branch{
				op: s.Op, nodes: binary(s.Ranks, places(s, tree)), pieces: pieces,
				at: itoa((tree*s.Channels+ch)*pieces) + "+p", acc: "tmp[" + itoa(ch*count+tree) + "]",
				up: (ch*count + tree) * 2, flat: s.flat,
			}
			b.write(&t)
		}
	}
	return t.String()
}

// node is some ranks of a tree that are alike: the ranks for which cond holds,
// their children and their parent. The one at the top has no parent.
type node struct {
	cond string
	kids []string
	up   string
}

// relatives gives how far a position's children and its parent are from it, in the tree over n positions where it has
// height b. A child that there is no rank for is left out, and its place goes to the highest below it that there is.
func relatives(n, b, pos int) (kids []int, up int) {
	if b > 1 {
		kids = append(kids, -b/2)
		for h := b / 2; h >= 1; h /= 2 {
			if pos+h < n {
				kids = append(kids, h)
				break
			}
		}
	}
	if pos/(2*b)%2 == 0 && pos+b < n {
		return kids, b
	}
	return kids, -b
}

// binary writes the tree as a few nodes for each height, whatever the number of
// ranks: only the last rank of a height can have other children or another
// parent than its neighbours.
func binary(n int, p position) []node {
	pos := p.to
	var out []node
	for b := 1; b < n; b *= 2 {
		last := (n - 1 - b) / (2 * b) * (2 * b) // the last position of this height is last+b
		regular := func(r int) ([]int, int) { return relatives(n, b, r) }
		emit := func(cond string, kids []int, up int) {
			l := node{cond: cond, up: p.from(offset(pos, up))}
			if p.top != "" && cond == pos+" == "+itoa(-up) {
				l.up = p.top
			}
			for _, k := range kids {
				l.kids = append(l.kids, p.from(offset(pos, k)))
			}
			out = append(out, l)
		}
		for parity := range 2 { // 0: the parent is above, 1: below
			if first := b + parity*2*b; first < n {
				kids, up := regular(first)
				cond := pos + "%" + itoa(4*b) + " == " + itoa(first)
				if (last/(2*b))%2 == parity {
					lk, lu := regular(last + b)
					emit(pos+" == "+itoa(last+b), lk, lu)
					cond += " && " + pos + " != " + itoa(last+b)
					if first == last+b {
						continue
					}
				}
				emit(cond, kids, up)
			}
		}
	}
	root := node{cond: pos + " == 0"}
	if n > 1 {
		root.kids = []string{p.from(itoa(1 << (log2(n) - 1)))} // the highest power of two below n
	}
	return append(out, root)
}

func offset(pos string, d int) string {
	if d < 0 {
		return pos + "-" + itoa(-d)
	}
	return pos + "+" + itoa(d)
}

// branch is one tree with its share of the data. It climbs on channel up and
// descends on the next one, or does both on one channel if it is flat.
type branch struct {
	op     sched.Collective
	nodes  []node
	pieces int
	at     string // the chunk of piece p
	acc    string // where a node with several children adds up
	up     int
	flat   bool
}

func (b branch) write(t *text) {
	climbs, descends := b.op != sched.Broadcast, b.op != sched.Reduce
	in, out := "in["+b.at+"]", "out["+b.at+"]"
	all := func(body func(node)) {
		for _, nd := range b.nodes {
			t.block(func() { t.each(b.pieces, func() { body(nd) }) }, "if %s:", nd.cond)
		}
	}
	if b.flat {
		t.block(func() {
			all(func(nd node) {
				nd.climb(t, in, b.acc, out)
				nd.descend(t, out)
			})
		}, "channels 1:")
		return
	}
	t.block(func() {
		if climbs {
			all(func(nd node) { nd.climb(t, in, b.acc, out) })
		}
	}, "channels 1:")
	t.block(func() {
		if descends {
			all(func(nd node) {
				switch {
				case nd.up != "":
				case climbs:
					t.line("wait channel %d done (p+1)*%d", b.up, max(len(nd.kids), 1))
				default:
					t.line("copy %s -> %s", in, out)
				}
				nd.descend(t, out)
			})
		}
	}, "channels 1:")
}

// climb adds what the children send to src and passes it on, or stores it in
// dst at the top.
func (nd node) climb(t *text, src, acc, dst string) {
	if len(nd.kids) == 0 {
		if nd.up != "" {
			t.line("send %s to %s", src, nd.up)
		} else {
			t.line("copy %s -> %s", src, dst)
		}
		return
	}
	for i, k := range nd.kids {
		switch {
		case i < len(nd.kids)-1:
			t.line("recv-reduce %s -> %s from %s", src, acc, k)
			src = acc
		case nd.up != "":
			t.line("recv-reduce-send %s from %s to %s", src, k, nd.up)
		default:
			t.line("recv-reduce %s -> %s from %s", src, dst, k)
		}
	}
}

// descend passes results from the top to all.
func (nd node) descend(t *text, dst string) {
	kids := nd.kids
	switch {
	case nd.up == "":
	case len(kids) == 0:
		t.line("recv -> %s from %s", dst, nd.up)
	default:
		t.line("recv-copy-send -> %s from %s to %s", dst, nd.up, kids[0])
		kids = kids[1:]
	}
	for _, k := range kids {
		t.line("send %s to %s", dst, k)
	}
}
