package algo

import (
	"strconv"

	"github.com/weft-fabric/weft/sched"
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
// other and each tree carries half the data at the full rate.
//
// Sanders, Speck and Träff, Two-tree algorithms for full bandwidth broadcast,
// reduction and scan, 2009.
func init() {
	ops := []sched.Collective{sched.AllReduce, sched.Broadcast, sched.Reduce}
	register(&Algorithm{
		Name: "tree", Ops: ops,
		Summary:   "small messages: few steps",
		Steps:     "2 ceil(log2 n) + pieces - 1; half for broadcast, reduce",
		Sent:      "up to 2S inside the tree, S at leaves",
		Reference: "binary tree as in NCCL",
		Build:     func(s Spec) (string, error) { return trees(s, 1), nil },
	})
	register(&Algorithm{
		Name: "double-binary-tree", Ops: ops,
		Summary:   "small to middle messages: few steps at full bandwidth",
		Steps:     "2 ceil(log2 n) + pieces - 1; half for broadcast, reduce",
		Sent:      "2S, S at the roots",
		Reference: "Sanders, Speck, Träff 2009",
		Build:     func(s Spec) (string, error) { return trees(s, 2), nil },
	})
}

// position renames ranks for one tree: to gives the tree position of the rank
// that stands at r, from the rank at a position.
type position struct {
	to   string
	from func(pos string) string
}

// places gives the names of ranks in the two trees of a pair. A root other than
// 0 turns the first tree so that it starts there; the second is its partner.
func places(n, root, tree int, rooted bool) position {
	turn := func(shift int) position {
		return position{
			to:   "((r-" + itoa(shift) + ")%n)",
			from: func(p string) string { return "(" + p + "+" + itoa(shift) + ")%n" },
		}
	}
	switch {
	case tree == 0 && root == 0:
		return position{"r", func(p string) string { return p }}
	case tree == 0 || rooted:
		return turn(root)
	case n%2 == 0:
		return position{"(n-1-r)", func(p string) string { return "n-1-(" + p + ")" }}
	default:
		return turn(1)
	}
}

func trees(s Spec, count int) string {
	var t text
	pieces := orDefault(s.Pieces, 4)
	share := s.Channels * pieces // chunks of each tree
	t.line("root %d", s.Root)
	t.line("chunks %d", count*share)
	t.line("scratch %d", count*s.Channels)
	t.line("slots %d", orDefault(s.Slots, 2))
	for ch := range s.Channels {
		for tree := range count {
			p := places(s.Ranks, s.Root, tree, s.Op.Rooted())
			if count == 2 && tree == 1 && s.Op.Rooted() {
				p = mirror(s)
			}
			at := itoa((tree*s.Channels+ch)*pieces) + "+p"
			up := (ch*count + tree) * 2
			t.block(func() { treeUp(&t, s, p, at, pieces, up/2) }, "channels 1:")
			t.block(func() { treeDown(&t, s, p, at, pieces, up) }, "channels 1:")
		}
	}
	return t.String()
}

// mirror keeps the root and reverses the others, for the second tree of a rooted collective.
func mirror(s Spec) position {
	root := itoa(s.Root)
	return position{
		to:   "((" + root + "-r)%n)",
		from: func(p string) string { return "(" + root + "-(" + p + "))%n" },
	}
}

// level is the ranks of one height of the tree: those whose lowest set bit is b.
type level struct {
	b    int
	cond string
	kids []string // positions of the children, nearest to 0 first
	up   string   // position of the parent
}

// levels writes the tree as a few lines for each height, whatever the number of
// ranks: only the last rank of a height can have other children or another
// parent than its neighbours.
func levels(n int, pos string) []level {
	var out []level
	for b := 1; b < n; b *= 2 {
		last := (n - 1 - b) / (2 * b) * (2 * b) // the last position of this height is last+b
		regular := func(r int) ([]int, int) {
			var kids []int
			if b > 1 {
				kids = append(kids, -b/2)
				for h := b / 2; h >= 1; h /= 2 {
					if r+h < n {
						kids = append(kids, h)
						break
					}
				}
			}
			up := -b
			if r/(2*b)%2 == 0 && r+b < n {
				up = b
			}
			return kids, up
		}
		emit := func(cond string, kids []int, up int) {
			l := level{b: b, cond: cond, up: offset(pos, up)}
			for _, k := range kids {
				l.kids = append(l.kids, offset(pos, k))
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
	return out
}

func offset(pos string, d int) string {
	if d < 0 {
		return pos + "-" + itoa(-d)
	}
	return pos + "+" + itoa(d)
}

// top is the root's only child: the highest power of two below n.
func top(n int) string {
	h := 1
	for h*2 < n {
		h *= 2
	}
	return itoa(h)
}

// treeUp reduces towards position 0.
func treeUp(t *text, s Spec, p position, at string, pieces, tmp int) {
	if s.Op == sched.Broadcast {
		return
	}
	for _, l := range levels(s.Ranks, p.to) {
		t.block(func() {
			t.block(func() {
				up := p.from(l.up)
				switch len(l.kids) {
				case 0:
					t.line("send in[%s] to %s", at, up)
				case 1:
					t.line("recv-reduce-send in[%s] from %s to %s", at, p.from(l.kids[0]), up)
				default:
					t.line("recv-reduce in[%s] -> tmp[%d] from %s", at, tmp, p.from(l.kids[0]))
					t.line("recv-reduce-send tmp[%d] from %s to %s", tmp, p.from(l.kids[1]), up)
				}
			}, "repeat p < %d:", pieces)
		}, "if %s:", l.cond)
	}
	t.block(func() {
		t.block(func() { t.line("recv-reduce in[%s] -> out[%s] from %s", at, at, p.from(top(s.Ranks))) }, "repeat p < %d:", pieces)
	}, "if %s == 0:", p.to)
}

// treeDown passes results from position 0 to all.
func treeDown(t *text, s Spec, p position, at string, pieces, up int) {
	if s.Op == sched.Reduce {
		return
	}
	for _, l := range levels(s.Ranks, p.to) {
		t.block(func() {
			t.block(func() {
				switch len(l.kids) {
				case 0:
					t.line("recv -> out[%s] from %s", at, p.from(l.up))
				default:
					t.line("recv-copy-send -> out[%s] from %s to %s", at, p.from(l.up), p.from(l.kids[0]))
					for _, k := range l.kids[1:] {
						t.line("send out[%s] to %s", at, p.from(k))
					}
				}
			}, "repeat p < %d:", pieces)
		}, "if %s:", l.cond)
	}
	t.block(func() {
		t.block(func() {
			if s.Op == sched.Broadcast {
				t.line("copy in[%s] -> out[%s]", at, at)
			} else {
				t.line("wait channel %d done p+1", up)
			}
			t.line("send out[%s] to %s", at, p.from(top(s.Ranks)))
		}, "repeat p < %d:", pieces)
	}, "if %s == 0:", p.to)
}
